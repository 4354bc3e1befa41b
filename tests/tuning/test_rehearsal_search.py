"""The search of a rehearsal, on made-up systems whose limit is known."""

from __future__ import annotations

import math

import pytest

from dynamo_mlperf.tuning.rehearsal import THROUGHPUT, Knee, Scene, System, _bottleneck, _highest
from dynamo_mlperf.tuning.rehearsal_engines import Factors
from dynamo_mlperf.tuning.simulation import Bar, Simulated


class MadeUp(Scene):
    """`limit` queries per second of each worker of a role, both roles in a row; `steep`: how fast latency grows."""

    def __init__(self, limit: dict[str, float], capacity: float, steep: float = 4.0) -> None:
        super().__init__(None, System({}, Factors(), Bar({}, 0.99, 600.0, 1), "kv_router"), {})  # type: ignore[arg-type]
        object.__setattr__(self, "limit", limit)
        object.__setattr__(self, "top", capacity)
        object.__setattr__(self, "steep", steep)
        object.__setattr__(self, "runs", [])

    def run(self, workers: dict[str, int], rate: float, *, coarse: bool = False) -> Simulated:  # type: ignore[override]
        self.runs.append((rate, coarse))  # type: ignore[attr-defined]
        knee = 1.0 / sum(1.0 / (self.limit[role] * count) for role, count in workers.items())  # type: ignore[attr-defined]
        off = 1.2 if coarse else 1.0  # few requests flatter
        return Simulated(rate, {}, self.steep * math.log(rate / (off * knee)), "end_to_end")  # type: ignore[attr-defined]

    def capacity(self, workers: dict[str, int]) -> float:  # type: ignore[override]
        return self.top * sum(workers.values()) / 12  # type: ignore[attr-defined, no-any-return]


WORKERS = {"prefill": 4, "decode": 8}


@pytest.mark.parametrize("knee", [3.0, 17.0, 40.0, 71.0, 95.0, 700.0])
@pytest.mark.parametrize("steep", [0.3, 4.0, 60.0])
def test_the_highest_rate_that_passes_is_found_in_few_runs(knee: float, steep: float) -> None:
    scene = MadeUp({"prefill": knee / 4, "decode": 1e9}, capacity=max(100.0, 1.3 * knee), steep=steep)
    found = _highest(scene, WORKERS, scene.capacity(WORKERS))
    assert found.rate == pytest.approx(knee, rel=0.02)
    assert found.binding == "end_to_end"
    fine = [rate for rate, coarse in scene.runs if not coarse]  # type: ignore[attr-defined]
    assert len(fine) <= 13


def test_a_system_within_every_limit_ends_what_it_can() -> None:
    scene = MadeUp({"prefill": 1e9, "decode": 1e9}, capacity=100.0)
    found = _highest(scene, WORKERS, 100.0)
    assert (found.rate, found.binding, found.failed) == (100.0, THROUGHPUT, None)


def test_a_system_over_the_limit_at_any_rate_has_no_rate() -> None:
    scene = MadeUp({"prefill": 1e-6, "decode": 1e9}, capacity=1_000.0)
    found = _highest(scene, WORKERS, 1_000.0)
    assert found.rate is None
    assert found.binding == "end_to_end"


@pytest.mark.parametrize(
    ("limit", "role"),
    [({"prefill": 5.0, "decode": 9.0}, "prefill"), ({"prefill": 9.0, "decode": 1.0}, "decode")],
)
def test_the_bottleneck_is_the_role_of_which_one_more_helps(limit: dict[str, float], role: str) -> None:
    scene = MadeUp(limit, capacity=100.0)
    found = _highest(scene, WORKERS, 100.0)
    assert _bottleneck(scene, WORKERS, found, 100.0) == role


def test_where_no_worker_helps_no_role_is_named() -> None:
    scene = MadeUp({"prefill": 5.0, "decode": 2.5}, capacity=100.0, steep=1e-6)
    run = Simulated(20.5, {}, math.inf, "end_to_end")  # nothing ends: two such runs tell nothing
    assert _bottleneck(scene, WORKERS, Knee(20.0, "end_to_end", run), 100.0) is not None
    same = scene.run(WORKERS, 20.5)
    assert _bottleneck(scene, WORKERS, Knee(20.0, "end_to_end", same), 100.0) is None
    assert _bottleneck(scene, {"aggregated": 4}, Knee(20.0, "end_to_end", same), 100.0) == "aggregated"
