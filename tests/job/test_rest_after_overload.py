"""R35: a deliberate overload whose requests are aborted, then a light probe: the engines work on the light one alone.

By the simulated engines' own counters, so that a busy machine changes nothing; what it is in milliseconds measures
`tests/performance/rest.py`, whose deployment and probes these are.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from dynamo_mlperf.load.queries import read_queries
from dynamo_mlperf.serving.gauges import parse_gauges
from tests.job.chain import Place

pytestmark = [pytest.mark.dynamo, pytest.mark.loadgen]
FIRST, STEP = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"


@pytest.fixture(scope="module")
def probes(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """The folders of three probes in one deployment: light after a fresh start, overload, light after rest."""
    place = Place(tmp_path_factory.mktemp("rest"))
    light = ("--light-s", "4", "--light-qps", "6")
    words = ("--rounds", "1", "--kinds", "rest", *light, "--overload-s", "3", "--directory", "bench")
    done = subprocess.run(
        [sys.executable, "-m", "tests.performance.rest", *words],
        cwd=place.root,
        env={**place.environment(), "PYTHONPATH": str(repository)},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert len(done.stdout.splitlines()) == 3, done.stderr[-3000:]  # its exit code is about milliseconds
    return place.root / "bench" / "run"


def counted(page: Path) -> dict[str, float]:
    """Every counter and sum of a page, over its label sets."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page.read_text()):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def moved(before: Path, after: Path) -> dict[str, float]:
    """What the decode worker counted between two pages."""
    begun = counted(before / "decode-0.prom")
    return {name: value - begun.get(name, 0.0) for name, value in counted(after / "decode-0.prom").items()}


def test_the_overload_was_aborted_with_many_in_flight(probes: Path) -> None:
    last = json.loads((probes / "probe-002" / "stream.jsonl").read_text().splitlines()[-1])
    assert last["issued"] - last["completed"] > 100
    assert "baseline" in json.loads((probes / "probe-003" / "rest.json").read_text())


def test_nothing_of_it_is_in_the_engines_when_the_light_probe_begins(probes: Path) -> None:
    for page in (probes / "probe-003" / "metrics" / "before").glob("*.prom"):
        gauges = parse_gauges(page.read_text())
        assert gauges.keys() >= {"in_flight", "queued"}, page
        assert max(gauges.values()) < 0.003, (page, gauges)


@pytest.mark.parametrize("light", ["probe-001", "probe-003"])
def test_every_token_that_is_generated_is_the_light_probes_own(probes: Path, light: str) -> None:
    queries = read_queries(probes / light / "loadgen" / "queries.csv")
    window = moved(probes / light / "metrics" / "before", probes / light / "metrics" / "after")
    assert window["dynamo_component_requests_total"] == len(queries) == 64
    assert window[f"{FIRST}_count"] == len(queries)
    assert window[f"{STEP}_count"] == sum(queries.output_tokens - 1)


def test_its_simulated_first_tokens_wait_for_no_seat(probes: Path) -> None:
    """Mean time to first token by the engine: under the overload requests queued for seconds."""
    pages = [probes / name / "metrics" for name in ("probe-002", "probe-003")]
    overload = moved(pages[0] / "before", pages[1] / "before")
    light = moved(pages[1] / "before", pages[1] / "after")
    assert light[f"{FIRST}_sum"] / light[f"{FIRST}_count"] < overload[f"{FIRST}_sum"] / overload[f"{FIRST}_count"] / 2
