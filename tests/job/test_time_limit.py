"""A measurement that is longer than the job's time is told before the job waits for nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.job.time_limit import check_time_limit, refuse_without_time, seconds_of
from dynamo_mlperf.topology.spec import load_topology

if TYPE_CHECKING:
    from pathlib import Path

LARGE = "q3vl-gb200x16-interactive-4p8d.yaml"


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("5", 300),
        ("5:30", 330),
        ("04:00:00", 14_400),
        ("1-0", 86_400),
        ("1-2", 93_600),
        ("1-2:30", 95_400),
        ("1-02:30:10", 95_410),
        ("0", None),
        ("UNLIMITED", None),
        ("soon", None),
        ("", None),
    ],
)
def test_times_are_read_as_sbatch_reads_them(written: str, seconds: int | None) -> None:
    assert seconds_of(written) == seconds


def _told(repository: Path, tmp_path: Path, *changes: tuple[str, str], options: tuple[str, ...] = ()) -> str | None:
    text = (repository / "topologies" / LARGE).read_text()
    for old, new in changes:
        assert text.count(old) == 1
        text = text.replace(old, new)
    file = tmp_path / LARGE
    file.write_text(text)
    return check_time_limit(text, load_topology(file), tmp_path, options)


def test_a_rate_too_low_for_the_jobs_time_is_told_with_both_figures(repository: Path, tmp_path: Path) -> None:
    low = ("target_qps: 40", "target_qps: 0.1")
    assert _told(repository, tmp_path) is None
    said = _told(repository, tmp_path, low) or ""
    assert said.startswith("one test takes 22 h 13 min or more (8000 queries "), said
    assert "at 0.1 per second), but --time=04:00:00 (line 3) ends the job after 4 h 00 min; give --time more" in said
    assert _told(repository, tmp_path, low, options=("--time=2-0",)) is None
    assert "--time=20 (the command line)" in (_told(repository, tmp_path, low, options=("-t20",)) or "")
    assert _told(repository, tmp_path, low, ("--time=04:00:00 ", "")) is None


def test_the_start_needs_time_too_but_none_where_engines_are_simulated(repository: Path, tmp_path: Path) -> None:
    said = _told(repository, tmp_path, options=("--time=00:24:59",)) or ""
    start = (
        ", and the start before it up to 15 min 00 s (timeouts.ready_s), but --time=00:24:59 (the command line) ends"
    )
    assert start in said, said
    assert _told(repository, tmp_path, options=("--time=00:25:00",)) is None
    quick = ("\nmeasure:", "\ntimeouts: {ready_s: 60}\nmeasure:")
    assert _told(repository, tmp_path, quick, options=("--time=00:24:59",)) is None
    simulated = ("engine: vllm", "engine: mocker")
    flags = [("max-num-batched-tokens: 17920, ", ""), ("max-num-batched-tokens: 2048, ", "")]
    assert _told(repository, tmp_path, simulated, *flags, options=("--time=00:10:00",)) is None


def test_a_search_needs_time_for_one_test_at_least(repository: Path, tmp_path: Path) -> None:
    searched = ("  target_qps: 40\n", "")
    block = ("\nmeasure:", "\nsearch: {}\nmeasure:")
    short = ("--time=04:00:00", "--time=9")
    assert _told(repository, tmp_path, searched, block) is None
    assert "(600 s at least by its settings), but --time=9 " in (
        _told(repository, tmp_path, searched, block, short) or ""
    )


def test_what_is_longer_than_the_time_left_is_refused_with_both_figures(repository: Path, tmp_path: Path) -> None:
    topology = load_topology(repository / "topologies" / LARGE)
    refuse_without_time(topology, tmp_path, 3600.0, "job 17")
    for left_s, told in ((240.0, "4 min 00 s"), (-30.0, "0.00 s")):
        with pytest.raises(SetupError) as refused:
            refuse_without_time(topology, tmp_path, left_s, "job 17")
        what = refused.value.what
        assert what.startswith("one test takes 10 min 00 s or more ("), what
        assert what.endswith(f" queries at 40 per second), and job 17 has {told} left for it"), what
