"""Engines that a run holds: others measure through them, each with a run of its own, and none of them starts any."""

from __future__ import annotations

import json
import signal
import stat
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psutil
import pytest
import yaml

from dynamo_mlperf.job.held import ANSWER, HELD_DIR, REQUEST, TOPOLOGY
from dynamo_mlperf.submission.consistency import shared_findings
from dynamo_mlperf.submission.nodes import nodes_of
from dynamo_mlperf.submission.results import collect
from tests.job.chain import END_S, Place, Run, client_was_late, wait_until

pytestmark = [pytest.mark.dynamo, pytest.mark.loadgen]

ENGINES = ("prefill-0", "decode-0", "frontend-0", "etcd")
LONG = {"reduced": {"min_duration_s": 300}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("held"))


@pytest.fixture(scope="module")
def holder(place: Place) -> Iterator[Run]:
    """A run that has measured and holds its engines for the tests of this module."""
    with place.holding() as run:
        yield run
        run.send(signal.SIGINT)
        ended = run.end()
        assert (ended.status, run.verdict()["verdict"]) == (0, "VALID"), ended.stderr
        assert [event["what"] for event in run.events() if event["event"] == "hold_end"] == ["stopped by SIGINT"]
        assert run.phases()[-3:] == ["hold", "stop", "record"]
        run.assert_nothing_left()


def name_of(run: Run) -> str:
    return run.paths.root.name


def standing(place: Place, run: Run) -> dict[str, Any]:
    (found,) = json.loads(place.command("status", name_of(run), "--json").stdout)
    return dict(found)


def assert_same_engines(holder: Run) -> None:
    """Each was started once, and lives."""
    assert holder.process.poll() is None, holder.stderr()
    started = [entry["process"] for entry in holder.events() if entry["event"] == "process_started"]
    assert [started.count(name) for name in ENGINES] == [1] * len(ENGINES)
    assert all(psutil.pid_exists(holder.pid_of(name)) for name in ENGINES)
    assert not [
        entry for entry in holder.events() if entry["event"] == "process_exited" and entry["process"] in ENGINES
    ]


def requests_served(run: Run) -> dict[str, float]:
    return {name: counts["served"] for name, counts in json.loads(run.paths.evidence.read_text())["workers"].items()}


def assert_measured(run: Run, status: int, stderr: str) -> dict[str, Any]:
    verdict = run.verdict()
    if client_was_late(verdict):
        assert status == 5, stderr
    else:
        assert (verdict["verdict"], verdict["reasons"], status) == ("VALID", [], 0), stderr
    return verdict


def test_a_file_that_measures_otherwise_is_measured_by_the_same_engines(place: Place, holder: Run) -> None:
    first = json.loads(holder.paths.verdict.read_text())
    assert (holder.paths.root / "report.html").exists(), "the first result is there while the engines are held"
    file = place.topology({"measure": {"target_qps": 9, "scenario": "Server"}, "reduced": {"min_duration_s": 4}})
    with place.run(file, "--attach", name_of(holder)) as run:
        ended = run.end()
        verdict = assert_measured(run, ended.status, ended.stderr)
        assert (verdict["scenario"], verdict["target_qps"], verdict["class"]) == ("Server", 9, "rehearsal")
        assert any(
            note.startswith(f"engines held by run {name_of(holder)}, up for ") and note.endswith(", measurement 2")
            for note in verdict["notes"]
        ), verdict["notes"]
        assert ended.stdout.splitlines()[-1].startswith(("VALID [rehearsal]", "INVALID"))
        assert f"engines held by run {name_of(holder)}" in ended.stderr
        assert "measuring" in ended.stderr
        # Evidence is of this measurement alone: nothing of the holder's own requests is in it.
        assert set(requests_served(run).values()) == {verdict["requests"]}
        assert run.paths.topology.read_bytes() == file.read_bytes()
        assert {"rest.json", "plan.json", "versions.json", "report.html", "measure.json"} <= {
            path.name for path in run.paths.root.iterdir()
        }
        assert run.phases() == ["rest", "check", "canary", "warmup", "measure", "judge", "record"]
        # What the engines wrote meanwhile is among its logs, and nothing of those goes on.
        assert set(ENGINES) <= {path.stem for path in run.paths.logs.glob("*.log")}
        for name in ENGINES:
            assert run.paths.log_of(name).read_bytes() in holder.paths.log_of(name).read_bytes()
        whole, own = holder.paths.log_of("frontend-0"), run.paths.log_of("frontend-0")
        assert 0 < own.stat().st_size < whole.stat().st_size, "two lines for each request"
        linked = [path.name for path in run.paths.logs.iterdir() if path.stat().st_nlink > 1]
        assert linked == [], "no record of a run that has ended changes"
        assert run.commands().keys() == {*ENGINES, "loadgen"}
        assert {"prefill-0", "decode-0"} & {
            e.get("process") for e in run.events() if e["event"] == "process_started"
        } == set()
        judged = json.loads(place.command("judge", str(run.paths.root), "--json").stdout)
        assert (judged["verdict"], judged["requests"]) == (verdict["verdict"], verdict["requests"])
        assert standing(place, run)["outcome"]["word"] == verdict["verdict"]
        # For a submission it is a run like the holder's own: of the same code, versions, nodes and deployment.
        results, _ = collect((holder.paths.root, run.paths.root))
        assert shared_findings(results, rehearsal=True) == []
        seen, other = (replace(nodes_of(result.runs[0]), run="") for result in results)
        assert (seen, bool(seen.facts)) == (other, True)
    assert_same_engines(holder)
    assert json.loads(holder.paths.verdict.read_text()) == first
    assert "loadgen" in holder.commands()
    assert len([entry for entry in holder.events() if entry.get("process") == "loadgen"]) == 2, (
        "start and end of its own"
    )
    held = standing(place, holder)
    assert (held["outcome"]["word"], held["phase"]) == ("RUNNING", "hold")
    assert f"measured {first['verdict']}; its engines are held, " in held["outcome"]["text"]


def test_another_deployment_is_refused_with_both_values(place: Place, holder: Run) -> None:
    role = {"workers": 1, "args": {"max-num-seqs": 32, "speedup-ratio": 10}}
    site = place.site(local_path=str(place.local), port_range=[21000, 22000])
    files = {
        "roles.decode.args.max-num-seqs is 64 there, 32 here": (place.topology({"roles": {"decode": role}}), ()),
        "model.name is 'tiny-qwen3-vl-moe' there, 'other' here": (place.topology({"model": {"name": "other"}}), ()),
        "frontends.router is 'round-robin' there, 'kv' here": (place.topology({"frontends": {"router": "kv"}}), ()),
        "site.port_range is [20000, 32000] there, [21000, 22000] here": (place.topology(), ("--site", str(site))),
    }
    for told, (file, flags) in files.items():
        done = place.command("run", str(file), "--attach", name_of(holder), *flags)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert f"run {name_of(holder)} holds another deployment: " in done.stderr
        assert told in done.stderr
        assert f"Try: write here what is there, or start anew: `dynamo-mlperf cancel {name_of(holder)}`" in done.stderr
    assert_same_engines(holder)


def test_what_cannot_run_on_held_engines_is_refused(place: Place, holder: Run) -> None:
    name = name_of(holder)
    again = place.command("run", str(place.topology()), "--attach", name, "--hold")
    assert (again.returncode, "leave --hold and --hold-for out" in again.stderr) == (2, True)
    sweep = place.command("sweep", str(place.topology()), "--splits", "1P1D", "--attach", name)
    assert (sweep.returncode, "a sweep changes its workers" in sweep.stderr) == (2, True), sweep.stderr
    manifest = place.root / "staging" / "tiny-qwen3-vl-moe.yaml"
    text = manifest.read_text()
    try:
        manifest.write_text(text.replace("name: tiny-qwen3-vl-moe", "name: tiny-other", 1))
        changed = place.command("run", str(place.topology()), "--attach", name)
    finally:
        manifest.write_text(text)
    assert (changed.returncode, "weights.stage has changed since" in changed.stderr) == (2, True), changed.stderr


def test_one_measurement_at_a_time_and_cancel_leaves_the_engines(place: Place, holder: Run) -> None:
    with place.run(place.topology(LONG), "--attach", name_of(holder)) as run:
        run.wait_until_measuring()
        elsewhere = place.command("logs", name_of(run), "decode-0")
        assert (elsewhere.returncode, f"Try: dynamo-mlperf logs {name_of(holder)} decode-0" in elsewhere.stderr) == (
            2,
            True,
        ), elsewhere.stderr
        second = place.command("run", str(place.topology()), "--attach", name_of(holder))
        assert (second.returncode, second.stdout) == (3, "")
        assert f"run {name_of(holder)} measures for {run.run_id} right now" in second.stderr
        assert "Try: ask again when that has ended" in second.stderr
        assert (standing(place, run)["outcome"]["word"], standing(place, run)["phase"]) == ("RUNNING", "measure")
        assert f"now {name_of(run)}" in standing(place, holder)["outcome"]["text"]
        (cancelled,) = json.loads(place.command("cancel", name_of(run), "--json").stdout)
        assert (cancelled["state"], cancelled["left"]) == ("ended: CANCELLED", [])
        ended = run.end()
        verdict = run.verdict()
        assert (ended.status, verdict["verdict"]) == (143, "FAILED"), ended.stderr
        assert (verdict["reasons"][0]["check"], verdict["reasons"][0]["got"]) == ("interrupted", "stopped by SIGTERM")
    assert_same_engines(holder)
    wait_until(lambda: [e for e in holder.events() if e["event"] == "held_measurement_end"][-1]["exit_code"] == 143)


def test_ctrl_c_ends_the_measurement_and_not_the_engines(place: Place, holder: Run) -> None:
    with place.run(place.topology(LONG), "--attach", str(holder.paths.root)) as run:
        run.wait_until_measuring()
        run.send(signal.SIGINT)
        ended = run.end()
        assert (ended.status, run.verdict()["reasons"][0]["got"]) == (130, "stopped by SIGINT"), ended.stderr
        assert "its engines stay" in ended.stderr
        loadgen = next(e for e in run.events() if e["event"] == "process_exited" and e["process"] == "loadgen")
        assert loadgen, "the load client is gone, too"
    with place.run(place.topology(), "--attach", name_of(holder)) as run:
        ended = run.end()
        verdict = assert_measured(run, ended.status, ended.stderr)
        assert set(requests_served(run).values()) == {verdict["requests"]}


def test_who_asked_may_die_and_the_measurement_comes_to_its_end(place: Place, holder: Run) -> None:
    with place.run(place.topology(), "--attach", name_of(holder)) as run:
        run.wait_until_measuring()
        run.process.kill()
        run.process.wait()
        wait_until_ended(run)
        assert_measured(run, run.events()[-1]["exit_code"], run.stderr())
    assert_same_engines(holder)


def wait_until_ended(run: Run) -> None:
    import time

    deadline = time.monotonic() + END_S
    while run.events()[-1]["event"] != "job_end":
        assert time.monotonic() < deadline, run.events()
        time.sleep(0.05)


def test_requests_are_the_owners_and_are_held_to_their_form(place: Place, holder: Run) -> None:
    spool = holder.paths.root / HELD_DIR
    assert stat.S_IMODE(spool.stat().st_mode) == 0o700
    marker = place.root / "marker"
    good = {"file": "/f.yaml", "base_dir": str(place.root), "run_dir": str(place.root / "runs" / "forged")}
    topology = yaml.safe_load(place.topology().read_text())
    rate = {"measure": {"target_qps": f"`touch {marker}`"}}
    forged: list[tuple[dict[str, Any] | str, dict[str, Any], str]] = [
        ("{", topology, "is no JSON"),
        ({"run_id": "elsewhere"}, topology, "asks for a run elsewhere, and lies in forged-1"),
        ({"run_dir": "../../forged"}, topology, "run_dir: wanted an absolute path"),
        ({"command": "touch"}, topology, "command: no such key"),
        ({}, {**topology, "name": f"x; touch {marker}"}, "name: wanted up to 80 lower-case letters"),
        ({"site": f"$(touch {marker})"}, topology, ""),
        ({"blocks": rate}, topology, "measure.target_qps: wanted a number"),
    ]
    for number, (keys, content, told) in enumerate(forged):
        root, beside = spool / f"forged-{number}", spool / f".forged-{number}"
        beside.mkdir()
        request = keys if isinstance(keys, str) else json.dumps({"run_id": root.name, **good, **keys})
        (beside / REQUEST).write_text(request)
        (beside / TOPOLOGY).write_text(yaml.safe_dump(content))
        beside.rename(root)
        wait_until((root / ANSWER).exists)
        answer = json.loads((root / ANSWER).read_text())
        assert (answer["exit_code"], told in answer["what"]) == (2, True), answer
    assert not marker.exists()
    assert not (place.root / "runs" / "forged").exists()
    assert_same_engines(holder)


def test_a_search_runs_on_held_engines(place: Place, holder: Run) -> None:
    file = place.topology({"measure": {"target_qps": None}, "reduced": {"min_duration_s": 2}})
    options = ("--low", "8", "--high", "16", "--tolerance", "0.2")
    with place.run(file, *options, "--attach", name_of(holder), verb="search") as run:
        ended = run.end()
        verdict = run.verdict()
        assert verdict["verdict"] in {"VALID", "INVALID"}, ended.stderr
        assert (run.paths.root / "search" / "answer.json").exists()
        assert run.events()[0]["laid_over"]["search"]["high"] == 16
    assert_same_engines(holder)


def test_who_holds_nothing_cannot_be_measured_through(place: Place, holder: Run) -> None:
    unknown = place.command("run", str(place.topology()), "--attach", "nobody")
    assert (unknown.returncode, "no run 'nobody'" in unknown.stderr) == (2, True)
    other = next(
        path
        for path in (place.root / "runs").iterdir()
        if path != holder.paths.root and (path / "verdict.json").exists()
    )
    done = place.command("run", str(place.topology()), "--attach", other.name)
    assert (done.returncode, f"run {other.name} holds no engines: it is " in done.stderr) == (2, True), done.stderr
    assert "dynamo-mlperf run FILE --hold" in done.stderr
