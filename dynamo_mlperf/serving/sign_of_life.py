"""Whether nodes still have power: a worker that says nothing may be starved, or its node may be gone."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import ServingError
from dynamo_mlperf.process.node_agent import unreachable

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from dynamo_mlperf.serving.endpoints import Endpoints

SIGN_OF_LIFE_S = 1.0
"""How long a node may take to accept or refuse a connection, which the kernel does, however busy its programs are."""
_REFUSALS = frozenset({os.strerror(errno.ECONNREFUSED), os.strerror(errno.ECONNRESET)})


def lost_nodes(endpoints: Endpoints, workers: Collection[str], what: str) -> ServingError | None:
    """The loss of nodes as an error, where nodes of these workers give no sign of life; else None.

    Args:
        endpoints: Addresses.
        workers: Names of workers; each of their nodes is tried by the port of one.
        what: What was noticed, for people.
    """
    chosen = [one for one in endpoints.plan.workers if one.name in workers]
    gone = silent({endpoints.node_of(one).host: endpoints.system(one) for one in chosen})
    if not gone:
        return None
    return ServingError(
        f"{', '.join(gone)} no longer answers; {what}",
        f"see why (sinfo -R), or run without that node: --exclude={','.join(gone)}",
    )


def silent(places: Mapping[str, tuple[str, int]]) -> list[str]:
    """Those that neither accept nor refuse a connection within SIGN_OF_LIFE_S.

    Args:
        places: Address and port by name.
    """
    failed = unreachable(list(places.values()), SIGN_OF_LIFE_S)
    why = {name: failed.get(f"{address}:{port}") for name, (address, port) in places.items()}
    return [name for name, problem in why.items() if problem is not None and problem not in _REFUSALS]
