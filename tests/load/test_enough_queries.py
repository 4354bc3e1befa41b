"""Enough queries for the early-stopping rule: by arithmetic before the test, and as LoadGen then issues them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest

from dynamo_mlperf.benchmark.early_stopping import allowed_over_limit
from dynamo_mlperf.benchmark.rules import Reduction, benchmark
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.job.expected import refuse_too_few
from dynamo_mlperf.load.enough import enough_queries
from dynamo_mlperf.load.settings import LoadSettings, build_settings
from tests.fakes.oracle import Oracle, Script
from tests.load.test_loadgen_runs import Bench, Load


def settings(
    rate: float, seconds: float, samples: int, percentile: float = 90, scenario: str = "Interactive"
) -> LoadSettings:
    lowered = Reduction(seconds, samples, None if scenario == "Offline" else percentile, None)
    return build_settings(benchmark("qwen3-vl-235b-a22b"), scenario, rate, 10**6, lowered)


@pytest.mark.parametrize(
    ("rate", "seconds", "samples", "planned", "few"),
    [
        (14, 3, 44, 44, False),  # as LoadGen issued it in a rehearsal of these settings: 44 requests
        (1, 3, 43, 43, True),
        (14, 3, 43, 43, True),
        (15, 3, 43, 86, False),
        (1, 60, 20, 60, False),
        (0.5, 60, 20, 40, True),
    ],
)
def test_queries_are_sent_in_whole_data_sets_and_p90_needs_44(
    rate: float, seconds: float, samples: int, planned: int, *, few: bool
) -> None:
    enough = enough_queries(settings(rate, seconds, samples))
    assert (enough.planned, enough.needed, enough.too_few) == (planned, 44, few)
    if few:
        mended = enough_queries(settings(enough.rate_qps, seconds, samples))
        assert not mended.too_few, "the way out leads out"
        almost = (
            enough_queries(settings(enough.rate_qps - 1.01 / seconds, seconds, samples))
            if enough.rate_qps > 1.01 / seconds
            else None
        )
        assert almost is None or almost.too_few, "and no further than needed"


@pytest.mark.parametrize(("client", "needed"), [("loadgen", 459), ("endpoints", 662)])
def test_the_clients_rules_differ_by_one_query(client: Literal["loadgen", "endpoints"], needed: int) -> None:
    found = enough_queries(settings(1, 10, 10, 99), client)
    assert found.needed == needed
    over = 0 if client == "loadgen" else 1
    assert allowed_over_limit(needed, 0.99) == over
    assert allowed_over_limit(needed - 1, 0.99) == over - 1


def test_offline_has_no_latency_to_judge_and_a_tenth_more_samples() -> None:
    found = enough_queries(settings(14, 3, 44, scenario="Offline"))
    assert (found.planned, found.needed, found.too_few) == (88, 0, False)  # 46.2 samples, in sets of 44


def test_official_is_refused_and_all_else_warned_with_both_numbers() -> None:
    few = settings(0.5, 60, 20)
    warning = refuse_too_few(few, "loadgen", "reduced")
    assert warning is not None
    assert "40 queries in about 80 s by these settings" in warning
    assert "the early-stopping rule at p90 needs 44 even with none over the limit" in warning
    assert "a target_qps of 0.6833 or more" in warning
    full = build_settings(benchmark("qwen3-vl-235b-a22b"), "Interactive", 1, 8000)
    assert refuse_too_few(full, "loadgen", "official") is None
    sharper = replace(full, percentile=0.9999)  # a user.conf may raise it
    with pytest.raises(ConfigError, match=r"8000 queries in about 8000 s .* p99\.99 needs 46050"):
        refuse_too_few(sharper, "loadgen", "official")


def test_arrivals_at_random_may_fill_a_data_set_more_or_less() -> None:
    found = enough_queries(build_settings(benchmark("qwen3-vl-235b-a22b"), "Interactive", 39.9, 8000))
    assert (found.fewest, found.planned, found.most) == (24_000, 24_000, 32_000)
    found = enough_queries(build_settings(benchmark("qwen3-vl-235b-a22b"), "Interactive", 40.1, 8000))
    assert (found.fewest, found.planned, found.most) == (24_000, 32_000, 32_000)
    for offline, client in (("Offline", "loadgen"), ("Interactive", "endpoints")):
        alike = enough_queries(settings(39.9, 600, 8000, scenario=offline), client)  # type: ignore[arg-type]
        assert alike.fewest == alike.planned == alike.most


@pytest.mark.loadgen
def test_loadgen_issues_a_data_set_more_than_the_rate_says_and_progress_tells(tmp_path: Path) -> None:
    bench, load = Bench(tmp_path), Load("Interactive", qps=252.0, seconds=1.0, samples=64)
    enough = enough_queries(load.settings)
    with Oracle(Script(ttft_ms=5, tpot_ms=1, tokens=5)) as oracle:
        issued = bench.run(load, oracle.port).requests
    progress = json.loads((bench.out / "progress.json").read_text())
    assert (enough.planned, issued, enough.most) == (256, 320, 320)
    assert (progress["generated_queries"], progress["over_limit_allowed"]) == (320, 19)
