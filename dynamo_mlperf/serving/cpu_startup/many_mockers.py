"""Several mocker workers in one process, each with health and metrics on a port of its own.

`python -m dynamo.mocker --num-workers K` (Dynamo 1.6.1) gives one port to all K: the first worker takes it, the others
show no metrics, and since they cannot host the model's files there either, their model cards differ and frontends list
them but reject them as incompatible. Here each worker finds its own port in the environment when it is made.
"""

import os
from collections.abc import Callable

import dynamo.mocker.main as mocker

ports = iter(os.environ["DYNAMO_MLPERF_SYSTEM_PORTS"].split(","))
create: Callable[..., object] = mocker.create_runtime


def create_on_next_port(*args: object, **kwargs: object) -> object:
    """What the mocker calls for each of its workers."""
    os.environ["DYN_SYSTEM_PORT"] = next(ports)
    return create(*args, **kwargs)


mocker.create_runtime = create_on_next_port
mocker.main()
