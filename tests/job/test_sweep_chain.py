"""A sweep on this machine with real Dynamo, real LoadGen and simulated engines: what restarts, what resumes."""

from __future__ import annotations

import json
import signal
import sys
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from dynamo_mlperf.cli import main
from dynamo_mlperf.report.sweep import read_sweep
from dynamo_mlperf.tuning.bottleneck import CLEAR
from tests.job.chain import Place, Run, client_was_late, machine_is_busy

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.dynamo, pytest.mark.loadgen]

RATES = [7, 24]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("sweep"))


def swept_file(place: Place, **sweep: Any) -> Path:
    """Three slots; a decode worker holds about 9 QPS, a prefill worker far more.

    At the higher rate the last ones wait for two seconds where there are two decode workers, and for six where there
    is one; the limit leaves room to both sides, and to a client that a busy machine holds up.
    """
    return place.topology(
        {
            "nodes": {"count": 1, "gpus": 3},
            "roles": {
                "prefill": {"workers": 2},
                "decode": {"args": {"max-num-seqs": 9, "speedup-ratio": 1}},
            },
            "measure": {"target_qps": None},
            "sweep": {"splits": ["2P1D", "1P2D"], "rates": RATES, "prune": False, **sweep},
            "reduced": {"latency_limit_ms": 4500},
        }
    )


def summary(run: Run) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((run.paths.root / "sweep" / "summary.json").read_text())
    return value


def test_a_sweep_keeps_what_it_can_and_resumes_where_it_was_killed(place: Place) -> None:
    file = swept_file(place)
    with place.run(file, verb="sweep") as cut:
        cut.wait_for("split_ready", split="1P2D")
        ids = {name: cut.pid_of(name) for name in ("frontend-0", "prefill-0", "decode-0", "decode-1")}
        assert all(psutil.pid_exists(pid) for pid in ids.values())
        starts = [event["process"] for event in cut.events() if event["event"] == "process_started"]
        workers = [name for name in starts if name.startswith(("prefill", "decode"))]
        assert sorted(workers) == ["decode-0", "decode-1", "prefill-0", "prefill-1"], "none was started twice"
        assert not psutil.pid_exists(cut.pid_of("prefill-1"))
        ready = [event["process"] for event in cut.events() if event["event"] == "process_ready"]
        assert sorted(ready) == ["decode-0", "decode-1", "prefill-0", "prefill-1"], "those that serve on are told once"
        assert not [event for event in cut.events() if event["event"] in {"worker_lost", "error"}]
        first = summary(cut)["splits"]
        assert [one["split"] for one in first] == ["2P1D"]
        cut.send(signal.SIGKILL)
        assert cut.end().status == -signal.SIGKILL
    assert not cut.paths.verdict.exists()
    with place.run(file, "--resume", str(cut.paths.root), "--json", verb="sweep") as resumed:
        ended = resumed.end()
    told = summary(resumed)
    assert (told["state"], told["not_measured"], told["pruned"]) == ("finished", [], [])
    by_name = {one["split"]: one for one in told["splits"]}
    assert {**by_name["2P1D"], "resumed": False} == first[0]
    assert not [name for name in resumed.commands() if name.startswith("2P1D-")], "not measured again"
    assert by_name["2P1D"]["bottleneck"]["role"] == "decode"
    resumed.assert_nothing_left()
    held = [one for one in told["splits"] if one["rate_qps"] is not None]
    if not held:
        runs = [json.loads(path.read_text()) for path in (resumed.paths.root / "sweep").glob("*/rate-*/verdict.json")]
        assert all(client_was_late(run) for run in runs if run["target_qps"] == min(RATES)), ended.stderr
        assert (ended.status, told["winner"]) == (5, None)
        return
    assert ended.status == 0, ended.stderr
    best = max(held, key=lambda one: one["rate_qps"])
    assert told["winner"] == best["split"]
    is_result(resumed, best)
    assert json.loads(ended.stdout)["sweep"] == told
    view = read_sweep(resumed.paths.root)
    assert view is not None
    assert [row.split for row in view.rows if row.winner] == [best["split"]]
    assert "Sweep over splits, simulated" in resumed.paths.report.read_text()


def test_a_split_that_cannot_win_is_skipped_with_the_figures_that_say_so(place: Place) -> None:
    """Two decode workers hold 24 QPS and not 33, so one holds 16.5 at most, or 23.6 with the largest margin."""
    edits = {
        "nodes": {"count": 1, "gpus": 3},
        "roles": {
            "prefill": {"workers": 1},
            "decode": {"workers": 2, "args": {"max-num-seqs": 9, "speedup-ratio": 1}},
        },
        "measure": {"target_qps": None},
        "sweep": {"splits": ["2P1D", "1P2D"], "rates": [24, 33]},
        "reduced": {"latency_limit_ms": 3600, "min_duration_s": 6},
    }
    with place.run(place.topology(edits), verb="sweep") as run:
        ended = run.end()
    told = summary(run)
    first = told["splits"][0]
    assert first["split"] == "1P2D", "the file's own split comes first"
    if (first["rate_qps"], first["bottleneck"]["role"]) != (24, "decode") or first["bottleneck"]["held_share"] < CLEAR:
        runs = [json.loads(path.read_text()) for path in (run.paths.root / "sweep").glob("1P2D/rate-*/verdict.json")]
        assert any(client_was_late(one) for one in runs) or machine_is_busy(), (first, ended.stderr)
        return
    assert [one["split"] for one in told["splits"]] == ["1P2D"]
    (skipped,) = told["pruned"]
    assert skipped["split"] == "2P1D"
    assert skipped["reason"].startswith("decode bounds it: 2 decode workers held at most 33 QPS at 1P2D (")
    assert skipped["reason"].endswith("; 1P2D holds 24")
    assert (ended.status, told["state"], told["winner"], told["not_measured"]) == (0, "finished", "1P2D", [])
    assert not [name for name in run.commands() if name.startswith(("2P1D-", "prefill-1"))], (
        "nothing was started for it"
    )
    assert "2P1D skipped: decode bounds it" in ended.stderr
    assert skipped["reason"] in run.paths.report.read_text()


def is_result(run: Run, best: dict[str, Any]) -> None:
    """The winner's confirming run is the run's result, with the winner's plan."""
    verdict, root = run.verdict(), run.paths.root
    assert (verdict["verdict"], verdict["target_qps"]) == ("VALID", best["target_qps"])
    confirmed = root / "sweep" / best["split"] / best["confirmed_in"]
    for name in ("loadgen/mlperf_log_detail.txt", "measure.json"):
        assert (root / name).read_bytes() == (confirmed / name).read_bytes()
    plan = json.loads(run.paths.plan.read_text())
    assert plan["split"]["workers"] == best["split"]
    assert plan["binding"][0]["address"] == "127.0.0.1"
    evidence = json.loads(run.paths.evidence.read_text())
    assert evidence["workers"].keys() == {f"{one['role']}-{one['index']}" for one in plan["workers"]}
    assert evidence["canary"]["requests"] > 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--splits", "4P8D"), "asked for"),
        (("--splits", "../x"), "no split"),
        (("--splits", "2P1D,2P1x1D"), "listed already"),
        (("--splits", ","), "sweep.splits: wanted at least 1 entries, got 0"),
        (("--rates", ",".join(map(str, range(1, 102)))), "sweep.rates: wanted at most 100 entries, got 101"),
        (("--splits", "2P1D", "--all"), "--all and --splits"),
        (("--rates", "nan"), "finite"),
        (("--rates", "5,x"), "no number"),
        (("--resume", "/nowhere"), "nowhere"),
        (("--redo",), "--redo is given without --resume"),
        (("--redo", "--parallel", "2"), "--redo is given without --resume"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_starts(
    place: Place,
    words: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert said in refusal(place, monkeypatch, capsys, *words)


def refusal(
    place: Place,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *words: str,
    file: Path | None = None,
) -> str:
    """What `sweep` says when it refuses."""
    monkeypatch.chdir(place.root)
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    with pytest.raises(SystemExit) as end:
        main(["sweep", str(file or swept_file(place)), *words])
    told = capsys.readouterr().err
    assert end.value.code == 2, told
    assert "Try:" in told
    return told


def test_a_prediction_that_is_none_is_refused(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place.root / "wrong.json").write_text('{"schema": 1}')
    for name, said in (("nowhere.json", "nowhere.json"), ("wrong.json", "no prediction")):
        assert said in refusal(place, monkeypatch, capsys, file=swept_file(place, prediction=name))


def test_a_sweep_of_something_else_is_not_resumed(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "sweep" / "2P1D"
    old.mkdir(parents=True)
    (tmp_path / "events.jsonl").write_text("")
    for text, said in (('{"model.name": "other"}', "something else"), ("[1", "no JSON")):
        (old / "identity.json").write_text(text)
        assert said in refusal(place, monkeypatch, capsys, "--resume", str(tmp_path))
