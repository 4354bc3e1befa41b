"""What a resumed sweep takes from the records of another run: whole ones alone, and never a file to write into."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.job.redoing import changes, refuse_changed
from dynamo_mlperf.job.split_record import finished_split, split_changes
from dynamo_mlperf.job.sweep import way_on
from dynamo_mlperf.job.sweep_records import SweepRecords, run_at
from dynamo_mlperf.topology.role_splits import RoleCount, RoleSplit

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SPLIT = RoleSplit("1P1D", (RoleCount("prefill", 1, 1), RoleCount("decode", 1, 1)))
SOUGHT = {"search.tolerance": 0.05, "search.low": None, "search.time_budget_s": 60.0}
MEASURED = {
    "split": "1P1D",
    "sought": SOUGHT,
    "rate_qps": 16.0,
    "ceiling_qps": None,
    "target_qps": 16.0,
    "confirmed_in": "rate-001",
    "kind": "answer",
    "reason": "full-length VALID run at 16 QPS",
    "restarts": 0,
    "engine_seconds": 9.5,
}


def _run(folder: Path, rate: float, text: str | None = None) -> None:
    folder.mkdir(parents=True)
    latency = {"end_to_end": {"at_percentile": 9.0, "limit": 10.0, "over_limit": 0, "over_limit_allowed": 2}}
    verdict = {"verdict": "INVALID", "target_qps": rate, "latency_p99_ms": latency}
    (folder / "verdict.json").write_text(json.dumps(verdict) if text is None else text)


def _taken_over(old: Path, new: Path, sought: Mapping[str, Any] | None = None) -> tuple[SweepRecords, Path]:
    records = SweepRecords(new, {}, sought=SOUGHT if sought is None else sought)
    records.take_over(old, (SPLIT,), {})
    return records, records.folder(SPLIT)


def test_a_run_at_another_rate_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    _run(old / "1P1D" / "rate-002", 60.0)
    _run(old / "1P1D" / "rate-003", 4.0, '{"verdict": "VAL')
    (old / "1P1D" / "rate-004").mkdir()
    _, folder = _taken_over(old, new)
    assert [one.name for one in folder.iterdir()] == ["rate-002"], "what did not end is not taken over"
    at_60, known = run_at(folder, 60.0)
    assert (at_60.name, known and known["target_qps"]) == ("rate-002", 60.0)
    at_30, known = run_at(folder, 30.0)
    assert (at_30.name, known, at_30.exists()) == ("rate-003", None, False)


@pytest.mark.parametrize(
    "damage",
    [
        {"rate_qps": "16"},
        {"rate_qps": float("nan")},
        {"ceiling_qps": [1]},
        {"confirmed_in": "../../other"},
        {"confirmed_in": None},
        {"target_qps": None},
        {"reason": None},
        {"engine_seconds": float("inf")},
    ],
)
def test_an_edited_split_is_refused(damage: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "split.json").write_text(json.dumps(MEASURED | damage))
    with pytest.raises(ConfigError, match="is not as a sweep wrote it") as refused:
        finished_split(tmp_path)
    assert refused.value.action == "remove it; its split is then measured again"
    (tmp_path / "split.json").unlink()
    assert finished_split(tmp_path) is None


def test_a_split_that_failed_is_tried_again_and_one_that_was_measured_is_not(tmp_path: Path) -> None:
    old = tmp_path / "old" / "1P1D"
    _run(old / "rate-001", 16.0)
    (old / "split.json").write_text(json.dumps(MEASURED | {"split": "9P9D"}))
    records, _ = _taken_over(tmp_path / "old", tmp_path / "whole")
    assert [(one["split"], one["resumed"]) for one in records.splits] == [("1P1D", True)]
    failed = {"kind": "failed", "rate_qps": None, "target_qps": None, "confirmed_in": None}
    (old / "split.json").write_text(json.dumps(MEASURED | failed))
    records, folder = _taken_over(tmp_path / "old", tmp_path / "again")
    assert records.splits == []
    assert [one.name for one in folder.iterdir()] == ["rate-001"]


def test_a_split_that_was_found_with_another_tolerance_is_not_kept_and_its_runs_are(tmp_path: Path) -> None:
    old = tmp_path / "old" / "1P1D"
    _run(old / "rate-001", 16.0)
    (old / "split.json").write_text(json.dumps(MEASURED))
    tighter = SOUGHT | {"search.tolerance": 0.01}
    records, folder = _taken_over(tmp_path / "old", tmp_path / "new", tighter)
    assert records.splits == []
    assert [one.name for one in folder.iterdir()] == ["rate-001"]
    with pytest.raises(
        ConfigError, match=r"1 finished splits \(1P1D\) .*search.tolerance 0.05 there, 0.01 now"
    ) as refused:
        refuse_changed({"1P1D": split_changes(MEASURED, tighter), "2P1D": []}, tmp_path / "old")
    assert "--redo" in refused.value.action


def test_only_what_counts_again_is_told_as_such(tmp_path: Path) -> None:
    old = tmp_path / "old" / "1P1D"
    _run(old / "rate-001", 16.0)
    for name in ("probe-001", "probe-002"):
        (old / name).mkdir()
        (old / name / "record.json").write_text("{}")
    begun = {
        name: SweepRecords(tmp_path / name, {}, sought=sought).take_over(tmp_path / "old", (SPLIT,), {})
        for name, sought in (("search", SOUGHT), ("rates", {"sweep.rates": [16.0]}))
    }
    assert begun == {"search": {"1P1D": 2}, "rates": {"1P1D": 1}}


def test_a_larger_budget_matters_only_where_nothing_was_located() -> None:
    larger = SOUGHT | {"search.time_budget_s": 600.0}
    assert changes(SOUGHT, larger, located=True) == []
    assert changes(SOUGHT, larger, located=False) == ["search.time_budget_s 60.0 there, 600.0 now"]
    assert changes(None, SOUGHT, located=True), "a record that does not say"
    assert changes({"sweep.rates": [3.0]}, {"sweep.rates": [3.0, 6.0]}, located=True)


def test_what_to_do_without_a_winner_is_what_its_splits_lacked() -> None:
    assert "#SBATCH --time" in way_on(set())
    assert "sweep.time_budget_s" in way_on({"budget"})
    assert "lower sweep.rates" in way_on({"budget", "impossible"})
