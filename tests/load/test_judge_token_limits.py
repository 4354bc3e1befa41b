"""Language models are judged by TTFT and TPOT alone: a long answer is no late one, a late first token is."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamo_mlperf.benchmark.rules import Reduction, benchmark
from dynamo_mlperf.load.settings import build_settings
from dynamo_mlperf.load.verdict import judge
from dynamo_mlperf.record import Verdict
from tests.fakes.oracle import Script
from tests.load.test_judge_directory import run_to_judge

pytestmark = pytest.mark.loadgen


def _measured(root: Path, script: Script) -> Verdict:
    """Llama 2 Server: 44 queries, none of which may be over a limit at p90."""
    lowered = Reduction(min_duration_s=0.5, samples=44, percentile=90)
    settings = build_settings(benchmark("llama2-70b-99.9"), "Server", 30, 44, lowered)
    run_to_judge(root, settings, script, [f"sample {number}" for number in range(44)], max_tokens=1024)
    return judge(root / "loadgen", settings, None, "reduced", str(root))


def test_eight_seconds_with_early_tokens_are_valid(tmp_path: Path) -> None:
    verdict = _measured(tmp_path, Script(ttft_ms=200, tpot_ms=20, tokens=400))
    # A busy machine may hold the client up, and the verdict says so: no other reason is accepted.
    assert {reason.check for reason in verdict.reasons} <= {"client-limited"}
    assert set(verdict.latency_p99_ms) == {"ttft", "tpot"}
    assert [latency.over_limit for latency in verdict.latency_p99_ms.values()] == [0, 0]
    assert verdict.latency_p99_ms["tpot"].plain >= 19
    assert (verdict.duration_s or 0) > 8


def test_the_same_with_a_late_first_token_is_invalid_for_ttft(tmp_path: Path) -> None:
    verdict = _measured(tmp_path, Script(ttft_ms=2500, tpot_ms=20, tokens=4))
    texts = [reason.text() for reason in verdict.reasons]
    assert verdict.verdict == "INVALID"
    assert any(text.startswith("ttft within 2000 ms: wanted at most 0 of 44 over, got 44 over") for text in texts)
    assert not any(text.startswith(("tpot within", "end_to_end")) for text in texts)
