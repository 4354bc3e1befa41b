"""LoadGen's settings by a topology file alone; nothing of the data set is read, so that a plan can tell them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.load.given_conf import with_user_conf
from dynamo_mlperf.load.settings import TooFewSamplesError, build_settings

if TYPE_CHECKING:
    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.topology.spec import Topology

_ANY_QPS = 1.0
"""In the settings of a job that finds its rate by itself, until it has one."""


def decide_settings(topology: Topology, samples: int, base_dir: Path | None = None) -> LoadSettings:
    """LoadGen's settings from the file's `measure:` and `reduced:`.

    Args:
        topology: The file.
        samples: Samples of the data set at hand.
        base_dir: What `measure.user_conf` is relative to; None = the working directory.

    Raises:
        ConfigError: The data set is smaller than the rules ask for, or a line of the user.conf is of no use.
    """
    wanted, reduced = topology.measure, topology.reduced
    try:
        settings = build_settings(
            benchmark(wanted.benchmark, wanted.round),
            wanted.scenario,
            wanted.target_qps or _ANY_QPS,
            samples,
            reduction=reduced.reduction() if reduced else None,
            request_timeout_s=topology.timeouts.request_s,
            round_name=wanted.round,
        )
    except TooFewSamplesError as problem:
        raise ConfigError(f"measure.dataset {wanted.dataset}: {problem.what}", problem.action) from None
    if wanted.user_conf is None:
        return settings
    return with_user_conf(settings, ((base_dir or Path.cwd()) / wanted.user_conf).absolute())
