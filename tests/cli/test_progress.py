"""Progress: live lines that fit the terminal, few plain lines elsewhere, and what was cut short is marked."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from dynamo_mlperf.cli import progress as module
from dynamo_mlperf.cli.progress import TerminalProgress
from dynamo_mlperf.job.measurement import progress_line

LONG = "0 of 24 workers loaded, waiting for " + ", ".join(f"decode-{number}" for number in range(24))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that a test sets."""
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def piped(width: int = 80) -> tuple[TerminalProgress, StringIO]:
    out = StringIO()
    return TerminalProgress(Console(file=out, width=width, highlight=False)), out


def test_a_piped_phase_is_two_lines_and_one_more_every_ten_seconds(clock: list[float]) -> None:
    progress, out = piped()
    progress.phase("ready")
    for second in range(13):
        clock[0] = 100.0 + second
        progress.say(f"{second} of 24 workers loaded")
    progress.phase("canary")
    progress.close()
    assert out.getvalue().splitlines() == [
        "[   0.0 s] waiting for the workers",
        "[  10.0 s] waiting for the workers  10 of 24 workers loaded",
        "  waiting for the workers: 12.0 s  12 of 24 workers loaded",
        "[  12.0 s] a request for each worker, KV canary",
        "  a request for each worker, KV canary: 0.0 s",
    ]


def test_constraints_are_called_as_people_do(clock: list[float]) -> None:
    progress, out = piped()
    progress.phase("search")
    progress.note("probe-004: cannot pass, stopped after 14 s (16 queries over the end_to_end limit)")
    clock[0] += 10
    progress.say("search/end_to_end.json")
    progress.close()
    text = out.getvalue()
    assert "[   0.0 s] probe-004: cannot pass, stopped after 14 s (16 queries over the end-to-end limit)\n" in text
    assert "  search/end_to_end.json\n" in text, "a path stays"


def test_a_piped_line_is_one_line_however_long(clock: list[float]) -> None:
    progress, out = piped()
    progress.phase("ready")
    clock[0] += 10
    progress.say(LONG)
    progress.close()
    assert out.getvalue().splitlines()[1:] == [
        f"[  10.0 s] waiting for the workers  {LONG}",
        f"  waiting for the workers: 10.0 s  {LONG}",
    ]


@pytest.mark.parametrize(
    ("how", "text", "closed"),
    [
        ("failed", "0 of 2 workers loaded", "  waiting for the workers: 12.8 s, failed: 0 of 2 workers loaded"),
        ("stopped", "", "  waiting for the workers: 12.8 s, stopped"),
        ("", "2 of 2 workers loaded", "  waiting for the workers: 12.8 s  2 of 2 workers loaded"),
    ],
)
def test_what_was_cut_short_is_marked(clock: list[float], how: str, text: str, closed: str) -> None:
    progress, out = piped()
    progress.phase("ready")
    clock[0] += 12.8
    if text:
        progress.say(text)
    if how:
        progress.cut_short(how)
    progress.phase("stop")
    progress.phase("record")
    progress.close()
    lines = [line for line in out.getvalue().splitlines() if not line.startswith("[")]
    assert lines == [closed, "  stopping: 0.0 s", "  recording: 0.0 s"]


def drawn_live(clock: list[float], phase: str, text: str, width: int) -> list[str]:
    """The lines of the last frame that is drawn 12 s after the phase began."""
    out = StringIO()
    progress = TerminalProgress(Console(file=out, width=width, force_terminal=True, color_system=None))
    progress.phase(phase)
    clock[0] += 12
    progress.say(text)
    assert progress._status is not None
    progress._status._live.refresh()
    drawn = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line) for line in re.split(r"[\r\n]+", out.getvalue())]
    progress.close()
    begins = [place for place, line in enumerate(drawn) if f"{module.PHASE_TEXTS[phase]} 12 s" in line]
    return drawn[begins[-1] :]


@pytest.mark.parametrize("width", [40, 80])
def test_the_live_lines_fit_the_terminal(clock: list[float], width: int) -> None:
    live = drawn_live(clock, "ready", f"[bold] {LONG}", width)
    assert len(live) == 4
    assert all(len(line.rstrip()) <= width - 1 for line in live)
    assert live[-1].rstrip().endswith("…")


@pytest.mark.parametrize("word", ["x" * 200, f"a {'x' * 200} b"])
def test_a_word_wider_than_the_terminal_is_cut(clock: list[float], word: str) -> None:
    assert all(len(line.rstrip()) <= 39 for line in drawn_live(clock, "ready", word, 40))


def test_a_probe_of_a_search_is_told_whole_on_80_columns(clock: list[float]) -> None:
    probe = "probe-007 at 11.416 QPS, to find a rate that fails (best so far 9.6029, 102 s spent): "
    counts = "128 of 256 queries, 37 in flight, p50 1899 ms, p99 3662 ms, 0 over the limit of 14 allowed so far, "
    live = drawn_live(clock, "search", f"{probe}{counts}about 7 s left", 80)
    assert " ".join(" ".join(live).split()).endswith(f"{probe}{counts}about 7 s left")


@pytest.mark.parametrize("width", [40, 80])
def test_a_line_that_stays_breaks_between_words_on_a_terminal(clock: list[float], width: int) -> None:
    out = StringIO()
    progress = TerminalProgress(Console(file=out, width=width, force_terminal=True, color_system=None))
    progress.phase("search")
    clock[0] += 3
    progress.note(f"probe 1: {LONG}")
    progress.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue())
    lines = [line for line in re.split(r"[\r\n]+", text) if "decode-" in line]
    assert len(lines) > 1
    assert all(len(line.rstrip()) <= width - 1 for line in lines)
    assert all(line.startswith("    ") for line in lines[1:])
    assert set(re.findall(r"decode-\d+", " ".join(lines))) == {f"decode-{number}" for number in range(24)}


def test_the_load_clients_line_has_no_clock_of_its_own() -> None:
    seen = {"t_s": 12.0, "completed": 18, "expected_queries": 64, "in_flight": 5}
    assert progress_line(seen) == "18 of 64 queries, 5 in flight"


OVER = {"over": {"ttft": 90, "tpot": 3}, "over_in_flight": {"ttft": 27}, "over_limit": 90, "over_limit_allowed": 103}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "cannot be VALID any more: 117 over, 103 allowed"),
        ({"generated_queries": 64}, "cannot be VALID any more: 117 over, 103 allowed"),
        ({"generated_queries": None}, "90 over the limit of 103 allowed so far"),  # how many there will be is a guess
        ({"over_in_flight": {"ttft": 13}}, "90 over the limit of 103 allowed so far"),
        ({"over_limit_allowed": -1}, "90 over the limit of 0 allowed so far"),
        ({"left_s": 0.0}, "103 allowed"),
        ({"left_s": 0.0, "issued": 64}, "103 allowed, waiting for 5 answers"),
        ({"left_s": 2.0, "issued": 64}, "103 allowed, about 2 s left"),
    ],
)
def test_the_load_clients_line_says_what_is_lost_and_what_is_awaited(more: dict[str, object], said: str) -> None:
    seen = {"completed": 18, "expected_queries": 64, "issued": 23, "in_flight": 5, "left_s": None, **OVER, **more}
    assert progress_line(seen).endswith(said)


@pytest.mark.parametrize("terminal", [False, True])
def test_a_place_that_cannot_be_written_to_does_not_stop_the_job(*, terminal: bool) -> None:
    full = Path("/dev/full").open("w", buffering=1)  # noqa: SIM115 - closing it would fail as well, which is the point
    progress = TerminalProgress(Console(file=full, width=80, force_terminal=terminal))
    for phase in ("ready", "measure", "stop"):
        progress.phase(phase)
        progress.say("1 of 2 workers loaded")
    progress.close()
    with pytest.raises(OSError, match="No space left"):
        full.close()
