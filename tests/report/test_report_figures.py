from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from dynamo_mlperf.files import write_json
from dynamo_mlperf.report.figures import derive_figures
from dynamo_mlperf.report.run_data import read_run
from tests.report.run_builder import build_run

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.report.figures import Figures


def figures_of(root: Path) -> Figures:
    return derive_figures(read_run(root))


def run_with(root: Path, **changed: Any) -> Figures:
    """Figures of a valid run whose verdict says something else."""
    paths = build_run(root, queries=800)
    verdict = dict(read_run(root).verdict or {})
    write_json(paths.verdict, {**verdict, **changed})
    return figures_of(root)


def test_judged_figures_are_the_verdicts_and_the_rest_is_counted(tmp_path: Path) -> None:
    paths = build_run(tmp_path / "run", queries=24000)
    run = read_run(paths.root)
    assert run.queries is not None
    end_to_end, ttft, tpot = figures_of(paths.root).latencies
    latencies = np.sort(run.queries.completed_ms - run.queries.issued_ms)
    assert end_to_end.percentiles[0.5] == pytest.approx(latencies[12000])
    assert end_to_end.percentiles[0.9] == pytest.approx(latencies[21600])
    verdict = run.verdict or {}
    assert end_to_end.percentiles[0.99] == verdict["latency_p99_ms"]["end_to_end"]["plain"]
    assert end_to_end.early_stopping == verdict["latency_p99_ms"]["end_to_end"]["early_stopping"]
    assert end_to_end.over_text == f"{int((latencies > 1500).sum())}, 204 allowed"
    assert [(row.name, row.judged_at, row.limit) for row in (ttft, tpot)] == [
        ("TTFT", None, None),
        ("TPOT", None, None),
    ]
    per_token = (run.queries.completed_ms - run.queries.first_token_ms) / (run.queries.output_tokens - 1)
    assert tpot.percentiles[0.5] == pytest.approx(np.sort(per_token)[12000])


@pytest.mark.parametrize("state", ["FAILED", None])
def test_what_did_not_measure_has_no_figure_even_where_the_files_hold_some(tmp_path: Path, state: str | None) -> None:
    figures = run_with(tmp_path / "run", verdict=state)
    assert not figures.measured
    shown = (figures.completed_qps, figures.tokens_per_second, figures.requests, figures.duration_s)
    assert shown == (None, None, None, None)
    assert figures.latencies == ()


@pytest.mark.parametrize("text", ['{"verdict": "VAL', "{}", "[]", '{"verdict": "valid"}', '{"verdict": "\\u001b[31m"}'])
def test_a_verdict_that_cannot_be_read_is_not_one_that_is_yet_to_come(tmp_path: Path, text: str) -> None:
    paths = build_run(tmp_path / "run", queries=800)
    paths.verdict.write_text(text)
    damaged = figures_of(paths.root)
    assert (damaged.state, damaged.measured) == ("DAMAGED", False)
    assert damaged.meaning.endswith("copy the run directory again.")
    paths.verdict.unlink()
    assert figures_of(paths.root).state == "NO VERDICT"


def test_too_few_queries_are_said_to_be_too_few(tmp_path: Path) -> None:
    constraint = {
        "plain": 900.0, "at_percentile": 900.0, "early_stopping": None, "limit": 1500.0, "percentile": 0.99,
        "over_limit": 0, "over_limit_allowed": -1,
    }  # fmt: skip
    row = run_with(tmp_path / "run", latency_p99_ms={"end_to_end": constraint}).latencies[0]
    assert (row.early_stopping, row.over_text) == (None, "0, too few queries")


def test_a_reduced_percentile_stands_beside_p99(tmp_path: Path) -> None:
    row = figures_of(build_run(tmp_path / "run", "invalid").root).latencies[0]
    assert list(row.percentiles) == [0.5, 0.9, 0.97, 0.99]
    assert row.judged_at == 0.97
    assert [row.percentiles[f] for f in row.percentiles] == sorted(v for v in row.percentiles.values() if v is not None)


def test_an_unknown_constraint_shows_what_the_verdict_says(tmp_path: Path) -> None:
    row = run_with(tmp_path / "run", latency_p99_ms={"jitter": {"plain": 3.0, "limit": 4.0}}).latencies[0]
    assert (row.name, row.constraint, row.percentiles) == ("jitter", "jitter", {0.5: None, 0.9: None, 0.99: 3.0})


def test_token_latencies_are_called_by_their_names_and_end_to_end_is_shown(tmp_path: Path) -> None:
    constraint = {"plain": 3.0, "at_percentile": 3.0, "early_stopping": 3.5, "limit": 4.0, "percentile": 0.99}
    rows = run_with(tmp_path / "run", latency_p99_ms={"ttft": constraint, "tpot": constraint}).latencies
    assert [(row.name, row.judged_at) for row in rows] == [("TTFT", 0.99), ("TPOT", 0.99), ("end-to-end", None)]


def test_offline_counts_samples(tmp_path: Path) -> None:
    assert run_with(tmp_path / "run", scenario="Offline").rate_unit == "samples/s"


@pytest.mark.parametrize("odd", ["text", 7, [], {"end_to_end": 3}, None])
def test_a_verdict_of_another_form_does_not_stop_a_report(tmp_path: Path, odd: object) -> None:
    figures = run_with(tmp_path / "run", latency_p99_ms=odd, reasons=odd, notes=odd, target_qps=odd, disaggregation=odd)
    assert figures.state == "VALID"


def test_evidence_counts_before_there_is_a_verdict(tmp_path: Path) -> None:
    paths = build_run(tmp_path / "run", queries=800)
    paths.verdict.unlink()
    proof = figures_of(paths.root).proof
    assert proof is not None
    assert (proof.remote_prefills, proof.requests, proof.failed_transfers) == (800, 800, 0)


def test_a_counter_that_is_absent_is_not_zero(tmp_path: Path) -> None:
    proof = run_with(tmp_path / "run", disaggregation={"disaggregated": True, "proof": "kv-counters"}).proof
    assert proof is not None
    assert proof.failed_transfers is None
