"""What the operating system allows against what the run needs, and what a client notices of itself."""

from __future__ import annotations

import resource
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dynamo_mlperf.benchmark.rules import Reduction, benchmark
from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.load.health import client_limit
from dynamo_mlperf.load.limits import Limits, check_limits, planned_in_flight, read_limits
from dynamo_mlperf.load.settings import LoadSettings, build_settings
from dynamo_mlperf.load.spec import MeasureSpec
from dynamo_mlperf.load.vitals import TICK_S, Vitals, private_mb


def settings(scenario: str, qps: float, name: str = "qwen3-vl-235b-a22b", samples: int = 8000) -> LoadSettings:
    return build_settings(benchmark(name), scenario, qps, samples, Reduction(600 if qps > 50 else 3, samples, 90))


def spec(loaded: LoadSettings, frontends: int = 1, workers: int = 1) -> MeasureSpec:
    places = tuple((f"10.0.0.{number}", 8000) for number in range(frontends))
    return MeasureSpec(loaded, Path("requests"), places, Path("out"), workers)


@pytest.mark.parametrize(
    ("loaded", "workers", "planned"),
    [
        (settings("Interactive", 100), 1, 150),  # 1.5 s at 100/s
        (settings("Server", 100), 3, 1200),
        (settings("Server", 0.01, samples=64), 1, 1),
        (settings("Server", 100, "llama2-70b-99.9"), 1, 300),  # 2 s to the first token and one more
        (replace(settings("Offline", 1), max_in_flight=500), 4, 2000),
        (replace(settings("Offline", 1, samples=64), max_in_flight=500), 4, 64),
    ],
)
def test_planned_in_flight(loaded: LoadSettings, workers: int, planned: int) -> None:
    assert planned_in_flight(spec(loaded, workers=workers)) == planned


def refused(loaded: LoadSettings, limits: Limits, frontends: int, workers: int) -> str:
    with pytest.raises(MeasureError) as caught:
        check_limits(spec(loaded, frontends, workers), limits)
    return str(caught.value)


def test_too_few_descriptors_are_refused_and_the_hint_works() -> None:
    loaded = settings("Server", 100)
    limits = Limits(1200, 1024, 28_232, 4096)
    text = refused(loaded, limits, 1, 1)
    assert "1200 requests in flight over 1 client processes need 1264 open files each, and the limit is 1024" in text
    assert "ulimit -Hn 1264" in text
    assert "2 client processes" in text
    check_limits(spec(loaded, 1, 2), limits)
    check_limits(spec(loaded, 1, 1), replace(limits, descriptors=1264))
    check_limits(spec(loaded, 1, 1), replace(limits, descriptors=resource.RLIM_INFINITY))


def test_too_few_ports_are_refused_and_the_hint_works() -> None:
    loaded = settings("Server", 3000)
    limits = Limits(36_000, 1_000_000, 10_000, None)
    text = refused(loaded, limits, 3, 1)
    assert "36000 requests in flight need 12000 local ports for each of 3 frontends, and there are 10000" in text
    assert "use 4 frontends" in text
    check_limits(spec(loaded, 4, 1), limits)
    check_limits(spec(loaded, 3, 1), replace(limits, ports=None))


def test_limits_are_those_of_this_machine(tmp_path: Path) -> None:
    found = read_limits(spec(settings("Server", 100)))
    assert found.descriptors == resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert found.ports is not None
    assert found.ports > 0
    (tmp_path / "ipv4").mkdir()
    (tmp_path / "ipv4" / "ip_local_port_range").write_text("32768\t60999\n")
    assert read_limits(spec(settings("Server", 100)), tmp_path) == Limits(1200, found.descriptors, 28_232, None)


def client(**changes: Any) -> dict[str, Any]:
    process = {"name": "client worker 0", "role": "http", "cpu_s": 1.0, "busy_share": 0.0, "loop_lag_ms": {"p99": 1.0}}
    return {
        "issue_delay_ms": {"p99": changes.pop("delay_ms", 1.0)},
        "wall_s": changes.pop("wall_s", 60.0),
        "processes": [{"name": "loadgen", "role": "loadgen", "cpu_s": 59.0}, {**process, **changes}],
    }


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, None),
        ({"delay_ms": 14.9}, None),
        ({"delay_ms": 15.1}, "issue delay p99 15.1 ms is over 1% of the 1500 ms limit"),
        ({"delay_ms": None}, None),
        ({"cpu_s": 55.0}, "client worker 0 used 92% of a core"),
        ({"cpu_s": 55.0, "wall_s": 0.5}, None),
        ({"busy_share": 0.06}, "client worker 0 used over 90% of a core in 6% of the run"),
        ({"loop_lag_ms": {"p99": 75.5}}, "client worker 0 saw bytes up to 75.5 ms late (p99), over 5% of the 1500 ms"),
        ({"loop_lag_ms": {"p99": None}}, None),
    ],
)
def test_a_client_that_could_have_touched_the_result_is_named_with_a_remedy(
    changes: dict[str, Any], said: str | None
) -> None:
    text = client_limit(client(**changes), settings("Interactive", 100))
    if said is None:
        assert text is None
    else:
        assert text is not None
        assert text.startswith(said)
        assert "raise client_workers" in text


def test_offline_minds_only_a_saturated_process() -> None:
    offline = settings("Offline", 1)
    assert client_limit(client(delay_ms=1000.0, busy_share=0.5, loop_lag_ms={"p99": 500.0}), offline) is None
    assert client_limit(client(cpu_s=55.0), offline) is not None


def test_an_account_of_an_older_run_is_judged_too() -> None:
    older = client()
    older["processes"] = [{"name": "client worker 0", "role": "http", "cpu_s": 1.0}]
    assert client_limit(older, settings("Interactive", 100)) is None


def test_vitals_see_a_loop_that_is_late_and_busy() -> None:
    vitals = Vitals()
    vitals.start()
    time.sleep(TICK_S)
    vitals.tick()
    busy_until = time.process_time() + 1.1
    while time.process_time() < busy_until:
        pass
    vitals.tick()
    account = vitals.account()
    assert account["loop_lag_ms"]["max"] >= 1000
    assert account["loop_lag_ms"]["p50"] < account["loop_lag_ms"]["max"]
    assert account["cpu_s"] >= 1.1
    assert account["busiest_share"] > 0
    assert 0 < account["private_mb"] == pytest.approx(private_mb(), abs=50)


def test_vitals_without_a_tick() -> None:
    vitals = Vitals()
    vitals.start()
    assert vitals.account()["loop_lag_ms"] == {"p50": None, "p99": None, "max": None}
    assert private_mb(Path("/nonexistent")) == 0
