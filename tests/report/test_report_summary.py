from __future__ import annotations

import json
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import pytest
from rich.console import Console

from dynamo_mlperf.files import write_json
from dynamo_mlperf.record import Reason
from dynamo_mlperf.report.page import write_report
from dynamo_mlperf.report.run_data import read_run
from dynamo_mlperf.report.summary import print_summary
from tests.report.run_builder import Kind, build_run, plan, worker_names

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN = Path(__file__).parent / "golden"


def summary(run_dir: Path, width: int = 80) -> str:
    out = StringIO()
    print_summary(run_dir, Console(file=out, width=width))
    return out.getvalue()


@pytest.mark.parametrize("kind", get_args(Kind))
def test_summary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Kind) -> None:
    monkeypatch.chdir(tmp_path)
    build_run(Path("runs") / kind, kind)
    assert summary(Path("runs") / kind) == (GOLDEN / f"summary_{kind}.txt").read_text()


@pytest.mark.parametrize("kind", get_args(Kind))
def test_no_line_is_wider_than_the_terminal(tmp_path: Path, kind: Kind) -> None:
    root = build_run(tmp_path / "run", kind).root
    for width in (60, 80):
        wide = [line.split() for line in summary(root, width).splitlines() if len(line) > width]
        assert all(len(words) == 1 and words[0].startswith(str(root)) for words in wide)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_no_line_ends_in_blanks(tmp_path: Path, kind: Kind) -> None:
    lines = summary(build_run(tmp_path / "run", kind).root, 72).splitlines()
    assert [line for line in lines if line != line.rstrip()] == []


def test_a_path_is_whole_and_the_page_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = build_run(tmp_path / "a-long-name-of-a-folder" / "run", queries=800)
    write_report(paths.root)
    elsewhere = summary(paths.root, 60).partition("Files ")[2].splitlines()[1:]
    assert elsewhere == [
        f"  {paths.report}",
        "    the report, for a browser",
        f"  {paths.load / 'mlperf_log_summary.txt'}",
        "    the load client's own summary",
        f"  {paths.root}",
        "    everything that the run left",
    ]
    monkeypatch.chdir(tmp_path / "a-long-name-of-a-folder")
    assert summary(paths.root, 60).partition("Files ")[2].splitlines()[1:4] == [
        "  run/report.html  the report, for a browser",
        "  run/loadgen/mlperf_log_summary.txt",
        "    the load client's own summary",
    ]


def test_a_run_of_before_the_model_was_recorded_is_shown_without_it(tmp_path: Path) -> None:
    paths = build_run(tmp_path / "run", queries=800)
    now = summary(paths.root)
    verdict = json.loads(paths.verdict.read_text())
    del verdict["model"]
    write_json(paths.verdict, verdict)
    assert summary(paths.root) == now.replace("  model  qwen3-vl-235b-a22b-nvfp4\n", "")
    assert "<dt>Model" not in write_report(paths.root).read_text()


OBITUARY = (
    "decode-3 on node 1 (gb200-002) ended with status 7; its last lines:\n    loading weights\n    no kernel image"
)


def failed_run(root: Path, got: str, action: str = "read logs/decode-3.log", error: str | None = None) -> Path:
    paths = build_run(root, "failed")
    verdict = dict(read_run(root).verdict or {})
    verdict["reasons"] = [{"check": "run", "wanted": "a measurement", "got": got, "action": action}]
    write_json(paths.verdict, verdict)
    text = f"{got}\n  Try: {action}" if error is None else error
    paths.events.write_text(paths.events.read_text().replace('"decode-3 died before it was ready"', json.dumps(text)))
    return root


def why(root: Path, width: int = 100) -> list[str]:
    return summary(root, width).split("\n\n")[1].splitlines()[1:]


def test_a_death_is_told_once_by_its_first_and_its_last_line(tmp_path: Path) -> None:
    assert why(failed_run(tmp_path / "run", OBITUARY)) == [
        "  1. run: wanted a measurement, got decode-3 on node 1 (gb200-002) ended with status 7",
        "     2 min 35 s after the job began; last line of its log: no kernel image",
        "   → read logs/decode-3.log",
    ]


def test_the_log_of_a_death_is_named_where_the_action_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    root = failed_run(tmp_path / "run", "decode-3 ended", "see logs/")
    (root / "logs" / "decode-3.log").write_text("loading\n\x1b[31mCUDA error\x1b[0m\n\n")
    assert why(root)[1:] == [
        "     2 min 35 s after the job began; last line of its log: CUDA error",
        "     run/logs/decode-3.log",
        "   → see logs/",
    ]


def test_a_death_and_an_error_that_no_reason_names_are_told(tmp_path: Path) -> None:
    root = failed_run(tmp_path / "run", "decode-30 is late", error="the store is gone\n  Try: again")
    found = why(root)
    assert found[2] == "  decode-3 on gb200-002 ended by itself after 2 min 35 s, status -9"
    assert found[3] == "    last line of its log: CUDA error: out of memory"
    assert found[-1] == "  error: the store is gone"


def test_workers_on_virtual_nodes_and_cpus_stand_on_different_slots(tmp_path: Path) -> None:
    paths = build_run(tmp_path / "run", queries=800)
    local = plan()
    for node in local["binding"]:
        node["host"] = "localhost"
    write_json(paths.plan, local)
    paths.topology.write_text(paths.topology.read_text() + "device: cpu\n")
    found = summary(paths.root)
    assert "4P8D, 4 nodes, 16 slots" in found
    assert "prefill-1  node 1 slot 0-1" in found
    assert "decode-7   node 3 slot 3" in found
    assert "GPU" not in found


def test_a_long_reason_leaves_the_headline_in_one_piece(tmp_path: Path) -> None:
    reason = {"check": "end_to_end within 1000000000 ms", "wanted": "1", "got": "2", "action": ""}
    root = rewritten(
        tmp_path / "run", lambda v: v.update({"verdict": "INVALID", "class": "reduced", "reasons": [reason]})
    )
    assert summary(root).splitlines()[:2] == [
        "INVALID (end-to-end within 1000000000 ms) [reduced]",
        "  qwen3-vl-235b-a22b  Interactive",
    ]


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
    assert raw.getvalue().startswith(b"FAILED [official]  qwen3-vl-235b-a22b")


def test_workers_of_another_run_are_told_as_its_own(tmp_path: Path) -> None:
    paths = build_run(tmp_path / "run", queries=800)
    own = summary(paths.root)
    events = [json.loads(line) for line in paths.events.read_text().splitlines()]
    kept = [event for event in events if str(event.get("process", "")) not in worker_names()]
    begin = {"t": events[0]["t"], "event": "job_begin", "held_by": "/w/runs/first-17"}
    paths.events.write_text("".join(json.dumps(event) + "\n" for event in [begin, *kept[1:]]))
    workers = summary(paths.root).partition("Workers ")[2].partition("Files ")[0]
    assert workers.count("held by first-17") == len(worker_names())
    assert "not started" not in workers
    assert "held by" not in own
