from __future__ import annotations

from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest
from rich.console import Console

from dynamo_mlperf.files import write_json
from dynamo_mlperf.record import Reason
from dynamo_mlperf.report.run_data import read_run
from dynamo_mlperf.report.summary import print_summary
from tests.report.run_builder import Kind, build_run, plan

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN = Path(__file__).parent / "golden"


def summary(run_dir: Path, width: int = 80) -> str:
    out = StringIO()
    print_summary(run_dir, Console(file=out, width=width))
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


@pytest.mark.parametrize("kind", get_args(Kind))
def test_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    monkeypatch.chdir(tmp_path)
    build_run(Path("runs") / kind, kind)
    assert summary(Path("runs") / kind) == (GOLDEN / f"summary_{kind}.txt").read_text()


@pytest.mark.parametrize("kind", get_args(Kind))
def test_no_line_is_wider_than_the_terminal(tmp_path: Path, kind: Kind) -> None:
    build_run(tmp_path / "run", kind)
    for width in (60, 80):
        assert max(len(line) for line in summary(tmp_path / "run", width).splitlines()) <= width


@pytest.mark.parametrize(
    ("kind", "code"), [("valid", "\x1b[1;32mVALID"), ("invalid", "\x1b[1;33mINVALID"), ("failed", "\x1b[1;31mFAILED")]
)
def test_the_verdict_is_a_word_and_a_colour(tmp_path: Path, kind: Kind, code: str) -> None:
    build_run(tmp_path / "run", kind)
    out = StringIO()
    print_summary(tmp_path / "run", Console(file=out, width=80, force_terminal=True, color_system="standard"))
    assert out.getvalue().startswith(code)


def rewritten(root: Path, change: Callable[[dict[str, object]], object]) -> Path:
    paths = build_run(root, queries=800)
    verdict = dict(read_run(root).verdict or {})
    change(verdict)
    write_json(paths.verdict, verdict)
    return root


def test_markup_and_escape_sequences_stay_text(tmp_path: Path) -> None:
    reason = Reason("[red]check[/red]", "a\x1b[2Jb", ":smile:", "[/nothing]")
    fields = {name: getattr(reason, name) for name in ("check", "wanted", "got", "action")}
    found = summary(rewritten(tmp_path / "run", lambda v: v.update(reasons=[fields])))
    assert "[red]check[/red]: wanted a\ufffd[2Jb, got :smile:" in found
    assert "[/nothing]" in found
    assert "\x1b" not in found


def test_a_routing_proof_claims_no_bytes(tmp_path: Path) -> None:
    moved = {"disaggregated": True, "proof": "routing only", "requests": 64, "remote_prefills": 64, "kv_bytes": 0}
    found = summary(rewritten(tmp_path / "run", lambda v: v.update(disaggregation=moved)))
    assert "64 of 64 requests" in found
    assert "did not measure (proof: routing only)" in found
    assert "NIXL" not in found


def test_a_rehearsal_says_so_over_its_figures(tmp_path: Path) -> None:
    found = summary(rewritten(tmp_path / "run", lambda v: v.update({"class": "rehearsal"})))
    assert "Throughput, simulated" in found
    assert "Latency, ms, simulated" in found


def test_an_aggregated_deployment_has_nothing_to_prove(tmp_path: Path) -> None:
    moved = {"disaggregated": False, "proof": "none", "requests": 64}
    found = summary(rewritten(tmp_path / "run", lambda v: v.update(disaggregation=moved)))
    assert "Aggregated deployment: nothing to prove." in found


def test_many_workers_are_told_by_role(tmp_path: Path) -> None:
    paths = build_run(tmp_path / "run", queries=800)
    wide = plan()
    wide["workers"] += [{"role": "decode", "index": i, "ranks": [{"node": 3, "gpu": i}]} for i in range(8, 40)]
    write_json(paths.plan, wide)
    found = summary(paths.root)
    assert "4 prefill workers, ready after 2 min 02 s to 2 min 15 s, median 2 min 08 s" in found
    assert "40 decode workers, ready after 2 min 19 s to 2 min 48 s" in found
    assert "never ready: decode-8, decode-9," in found


def test_a_forged_process_name_leads_to_no_other_file(tmp_path: Path) -> None:
    paths = build_run(tmp_path / "run", "failed")
    (tmp_path / "secret.log").write_text("secret")
    paths.events.write_text(paths.events.read_text().replace('"decode-3"', '"../../secret"'))
    assert "secret.log" not in summary(paths.root, width=400)


def test_a_terminal_that_is_not_utf8_gets_question_marks(tmp_path: Path) -> None:
    build_run(tmp_path / "run", "failed")
    raw = BytesIO()
    terminal = TextIOWrapper(raw, encoding="ascii")
    print_summary(tmp_path / "run", Console(file=terminal, width=80))
    terminal.flush()
    assert raw.getvalue().startswith(b"FAILED  qwen3-vl-235b-a22b")
