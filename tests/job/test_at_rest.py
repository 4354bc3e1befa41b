"""Rest between probes, where the file says that workers are not to be restarted."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from dynamo_mlperf.errors import ServingError
from dynamo_mlperf.job.at_rest import Rest
from dynamo_mlperf.serving.gauges import GAUGES
from dynamo_mlperf.topology.searching import Search

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.job.deployment import Deployment

RUNNING, LABELS = GAUGES["running"]


class Engines:
    """A deployment of one worker whose page says how much it runs."""

    def __init__(self) -> None:
        self.running, self.restarted, self.nudges = 0.0, False, 0
        self.gate = SimpleNamespace(metrics=self._metrics, workers=[SimpleNamespace(name="decode-0")])

    def _metrics(self) -> Mapping[str, str]:
        labels = ",".join(f'{name}="{value}"' for name, value in LABELS.items())
        return {"decode-0": f"# TYPE {RUNNING} gauge\n{RUNNING}{{{labels}}} {self.running}\n"}

    def warm_up(self, bodies: object) -> None:
        assert bodies
        self.nudges += 1

    def restart(self, names: object) -> None:
        assert names == ["decode-0"]
        self.restarted, self.running = True, 0.0


def rest_of(engines: Engines, *, restart_workers: bool) -> Rest:
    def nothing(*_: Any, **__: Any) -> None:
        return None

    job = SimpleNamespace(
        progress=SimpleNamespace(say=nothing),
        supervisor=SimpleNamespace(pause=nothing),
        events=SimpleNamespace(add=nothing),
    )
    settings = Search(rest_s=1.0, restart_workers=restart_workers)
    return Rest(cast("Job", job), cast("Deployment", engines), settings, [b"{}"])


def test_workers_that_do_not_come_to_rest_end_the_run_where_none_may_be_restarted() -> None:
    engines = Engines()
    rest = rest_of(engines, restart_workers=False)
    assert rest.reach()["restarted"] is False
    engines.running = 3.0
    with pytest.raises(ServingError, match=r"did not come to rest within 1 s: decode-0 running 3") as problem:
        rest.reach()
    assert "restart_workers: true" in problem.value.action
    assert (engines.restarted, engines.nudges) == (False, 1)


def test_they_are_restarted_where_they_may_be() -> None:
    engines = Engines()
    engines.running = 3.0
    found = rest_of(engines, restart_workers=True).reach()
    assert (found["restarted"], found["above"], engines.restarted) == (True, {"decode-0": {"running": 3.0}}, True)
