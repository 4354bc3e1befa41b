"""A sweep that ends on its way from one split to the next, while new workers start: its record is whole, and it goes on."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from dynamo_mlperf.job.resuming import begun_run
from dynamo_mlperf.topology.spec import load_topology
from tests.job.chain import Place, Run
from tests.job.test_sweep_chain import summary, swept_file

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.dynamo, pytest.mark.loadgen]
ON_ITS_WAY = "its workers were being started"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("sweep-cuts"))


def held_site(place: Place, name: str) -> str:
    """A site where a run's first decode worker comes up, and no later one does."""
    seen = place.root / f"{name}-has-decode"
    held = f"if [ -e {seen} ]; then while :; do sleep 0.2; done; fi; touch {seen}"
    script = f'case "$*" in *"--disaggregation-mode decode"*) {held};; esac\nexec $PYTHON "$@"'
    return str(place.site(engine_python=str(place.program("python", script)), local_path=str(place.local)))


def not_measured(run: Run) -> list[dict[str, Any]]:
    told = summary(run)
    assert [one["split"] for one in told["splits"]] == ["2P1D"]
    found: list[dict[str, Any]] = told["not_measured"]
    return found


def test_a_sweep_goes_on_that_was_ended_or_killed_while_workers_changed(place: Place) -> None:
    file = swept_file(place, rates=[7])
    with (
        place.run(file, "--site", held_site(place, "ended"), verb="sweep") as ended,
        place.run(file, "--site", held_site(place, "killed"), verb="sweep") as killed,
    ):
        for run in (ended, killed):
            run.wait_for("process_started", process="decode-1")
        early = place.command("sweep", str(file), "--resume", str(killed.paths.root), "--run-dir", "early")
        assert early.returncode == 2, "no search of it holds its lock now"
        assert f"the run in {killed.paths.root} still runs\n  Try: wait for its end, or: dynamo-" in early.stderr
        assert not (place.root / "early").exists()
        ended.send(signal.SIGTERM)
        killed.send(signal.SIGKILL)
        assert (ended.end().status, killed.end().status) == (143, -signal.SIGKILL)
        for run in (ended, killed):
            run.assert_nothing_left()
    verdict = ended.verdict()
    assert (verdict["verdict"], verdict["reasons"][0]["check"]) == ("FAILED", "interrupted")
    assert summary(ended)["state"] == "stopped"
    why = f"{ON_ITS_WAY} when the run ended: stopped by SIGTERM; resume the sweep"
    assert not_measured(ended) == [{"split": "1P2D", "reason": why}]
    shown = " ".join(place.command("report", str(ended.paths.root)).stdout.split())
    assert f"1P2D not measured: {why}" in shown
    assert not killed.paths.verdict.exists()
    assert summary(killed)["state"] == "running", "nobody was left to say more"
    assert not_measured(killed) == [{"split": "1P2D", "reason": ON_ITS_WAY}]

    with place.run(file, "--resume", str(killed.paths.root), verb="sweep") as resumed:
        done = resumed.end()
    told = summary(resumed)
    assert (told["state"], told["not_measured"]) == ("finished", [])
    assert {one["split"]: one["resumed"] for one in told["splits"]} == {"2P1D": True, "1P2D": False}
    assert told["resumes"] == {"run": str(killed.paths.root), "finished": ["2P1D"], "probes": {}}
    assert not [name for name in resumed.commands() if name.startswith("2P1D-")], "not measured again"
    assert done.status == (5 if told["winner"] is None else 0), done.stderr
    resumed.assert_nothing_left()


def test_a_run_that_was_cut_before_its_sweep_began_leads_to_the_one_that_it_was_to_go_on_with(
    repository: Path, tmp_path: Path
) -> None:
    topology = load_topology(repository / "topologies" / "rehearse-sweep.yaml")
    runs = [tmp_path / name for name in ("first", "second", "third")]
    for run, old in zip(runs, (None, *runs), strict=False):
        run.mkdir()
        event = {"t": 1.0, "event": "job_begin", "run": run.name, **({"resumes": str(old)} if old else {})}
        (run / "events.jsonl").write_text(json.dumps(event) + "\n")
    (runs[0] / "sweep").mkdir()
    assert begun_run(runs[2], topology) == runs[0]
    (runs[1] / "sweep").mkdir()
    assert begun_run(runs[2], topology) == runs[1]
    assert begun_run(tmp_path, topology) == tmp_path, "no run at all is told as such"


def loadgen_killed(run: Run, name: str) -> None:
    run.wait_for("process_started", process=name)
    os.kill(run.pid_of(name), signal.SIGKILL)


def test_a_run_whose_loadgen_was_killed_is_made_once_more_and_then_told_as_failed(place: Place) -> None:
    """As the kernel does where memory runs out: it says nothing of the rate."""
    file = swept_file(place, rates=[7])
    with place.run(file, verb="sweep") as run:
        loadgen_killed(run, "2P1D-rate-001")
        for name in ("1P2D-rate-001", "1P2D-rate-002"):
            loadgen_killed(run, name)
        done = run.end()
    told = {one["split"]: one for one in summary(run)["splits"]}
    assert told["2P1D"]["kind"] != "failed", "its second run measured"
    assert "2P1D at 7 QPS: 2P1D-rate-001 on node 0 (localhost) was killed by SIGKILL" in done.stderr
    assert (told["1P2D"]["kind"], told["1P2D"]["rate_qps"]) == ("failed", None)
    assert "1 split measured, 1 failed to measure" in " ".join(done.stdout.split())
    run.assert_nothing_left()
