"""When Slurm ends our job: its own word, else what it told the job at its begin."""

from __future__ import annotations

from pathlib import Path

import pytest

from dynamo_mlperf.slurm.deadline import end_time, parse_end_time


def test_the_end_is_read_from_what_scontrol_shows() -> None:
    shown = "JobId=7 JobName=x RunTime=00:00:10 TimeLimit=00:30:00 StartTime=1780000000 EndTime=1780001800 Deadline=N/A"
    assert parse_end_time(shown) == 1780001800.0
    assert parse_end_time(shown.replace("1780001800", "Unknown")) is None
    assert parse_end_time("") is None


def test_without_scontrol_the_job_s_own_environment_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert end_time("7", {"SLURM_JOB_END_TIME": "1780001800"}) == 1780001800.0
    assert end_time("7", {}) is None


def test_scontrol_s_word_counts_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "scontrol"
    program.write_text('#!/bin/sh\necho "JobId=$4 EndTime=1780009999"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert end_time("7", {"SLURM_JOB_END_TIME": "1780001800"}) == 1780009999.0
