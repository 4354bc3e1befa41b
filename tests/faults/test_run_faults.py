"""Processes that die, hang or never come: the run ends by itself, names the cause, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Mapping
from typing import Any

import pytest

from tests.job.chain import Ended, Place, Run, listening, marked_processes, wait_until

pytestmark = [pytest.mark.dynamo, pytest.mark.loadgen]

LONG: Mapping[str, Any] = {"reduced": {"min_duration_s": 40}}
"""Longer than any of these tests needs: what ends before was ended."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("faults"))


def engines(place: Place, role: str, instead: str) -> str:
    """A site whose workers of one role do something else; all other engines are real."""
    script = f"""case "$*" in *"--disaggregation-mode {role}"*) {instead};; esac
exec $PYTHON "$@" """
    return str(place.site(engine_python=str(place.program("python", script)), local_path=str(place.local)))


def failed(run: Run, ended: Ended) -> str:
    """Exit 4, a FAILED verdict without a figure, nothing left; returns the reason."""
    verdict = run.verdict()
    assert (ended.status, verdict["verdict"]) == (4, "FAILED"), ended.stderr
    assert verdict["completed_qps"] is None
    assert verdict["latency_p99_ms"] == {}
    assert "Traceback" not in ended.stderr
    assert ended.stdout.splitlines()[-1].startswith("FAILED (run) [rehearsal] ")
    run.assert_nothing_left()
    reason = str(verdict["reasons"][0]["got"])
    assert f"error: {reason}" in ended.stderr
    return reason


def test_a_worker_that_dies_while_loading(place: Place) -> None:
    site = engines(place, "decode", "echo no such kernel image >&2; exit 7")
    with place.run(place.topology(), "--site", site) as run:
        reason = failed(run, run.end())
        assert reason.startswith("decode-0 on node 1 (localhost) ended with status 7")
        assert "no such kernel image" in reason
        assert "decode-0.log" in run.verdict()["reasons"][0]["action"]
        assert run.phases()[-3:] == ["ready", "stop", "record"]


def test_a_worker_that_ends_well_is_a_failure_too(place: Place) -> None:
    with place.run(place.topology(), "--site", engines(place, "prefill", "exit 0")) as run:
        assert failed(run, run.end()).startswith("prefill-0 on node 0 (localhost) ended with status 0")


def test_a_worker_that_never_gets_ready(place: Place) -> None:
    site = engines(place, "decode", "exec sleep 600")
    with place.run(place.topology({"timeouts": {"ready_s": 8}}), "--site", site) as run:
        reason = failed(run, run.end())
    late = r"prefill-0 on node 0 \(log logs/prefill-0.log\), "  # on a busy machine the good one needs longer, too
    told = r"not ready after 8 s: {}decode-0 on node 1 \(log logs/decode-0.log\)"
    assert re.fullmatch(f"1 of 2 workers {told.format('')}|2 of 2 workers {told.format(late)}", reason), reason


@pytest.mark.parametrize("victim", ["prefill-0", "decode-0", "frontend-0", "etcd", "loadgen"])
def test_a_death_while_measuring_names_who_and_how(place: Place, victim: str) -> None:
    with place.run(place.topology(LONG)) as run:
        run.wait_until_measuring()
        os.kill(run.pid_of(victim), signal.SIGKILL)
        reason = failed(run, run.end())
        assert reason.startswith(f"{victim} on node {int(victim == 'decode-0')} (localhost) was killed by SIGKILL")
        assert run.phases()[-3:] == ["measure", "stop", "record"]
        assert run.paths.log_of(victim).exists()


def test_a_worker_that_hangs_while_measuring(place: Place) -> None:
    with place.run(place.topology({"reduced": {"min_duration_s": 4}, "timeouts": {"request_s": 2}})) as run:
        run.wait_until_measuring()
        os.kill(run.pid_of("decode-0"), signal.SIGSTOP)
        ended = run.end()
        verdict = run.verdict()
        assert (ended.status, verdict["verdict"]) in {(4, "FAILED"), (5, "INVALID")}, ended.stderr
        told = json.dumps(verdict["reasons"])
        assert "decode-0" in told or "no answer" in told or "timeout" in told, told
        run.assert_nothing_left()


def test_a_controller_that_is_killed_leaves_nothing_that_the_next_run_keeps(place: Place) -> None:
    """Its processes end with it; one that will not is found, named and ended by the next run, and so is its scratch."""
    site = engines(place, "prefill", "trap '' TERM; $PYTHON \"$@\" & wait; sleep 600")
    topology = place.topology(LONG)
    with place.run(topology, "--site", site) as run:
        run.wait_until_measuring()
        stubborn = run.pid_of("prefill-0")
        run.send(signal.SIGKILL)
        run.process.wait()
        wait_until(lambda: {process.info["name"] for process in marked_processes(run.run_id)} <= {"python", "python3"})
        facts = json.loads(place.command("doctor", "--here", "--json").stdout)
        assert facts["leftovers"][str(stubborn)].startswith(f"{run.run_id}@")
        assert [mark for mark in facts["abandoned"].values() if mark.startswith(f"{run.run_id}@")]
        short = place.topology()
        with place.run(short) as following:
            ended = following.end()
            assert (following.verdict()["verdict"], ended.status) == ("VALID", 0), ended.stderr
            following.assert_nothing_left()
            found = [entry for entry in following.events() if entry["event"] == "leftover_ended"]
            assert stubborn in {entry["pid"] for entry in found}
        run.assert_nothing_left()
        assert not run.paths.verdict.exists()


def test_doctor_ends_what_a_dead_controller_left(place: Place) -> None:
    site = engines(place, "prefill", "trap '' TERM; exec sleep 600")
    with place.run(place.topology(), "--site", site) as run:
        stubborn = run.pid_of("prefill-0")
        run.send(signal.SIGKILL)
        run.process.wait()
        assert place.command("doctor", "--here", "--end-leftovers").returncode == 0
        run.assert_nothing_left()
        facts = json.loads(place.command("doctor", "--here", "--json").stdout)
        assert str(stubborn) not in facts["leftovers"]
        assert not [mark for mark in facts["abandoned"].values() if mark.startswith(f"{run.run_id}@")]


def test_two_runs_at_once_keep_apart(place: Place) -> None:
    """The site has ports for exactly two runs, so each must take its own block."""
    low = free_range(48)
    site = str(place.site(port_range=[low, low + 47], local_path=str(place.root / "shared-disk")))
    topology = place.topology()
    with place.run(topology, "--site", site) as one, place.run(topology, "--site", site) as two:
        runs = (one, two)
        ended = [run.end() for run in runs]
        for run, end in zip(runs, ended, strict=True):
            assert (run.verdict()["verdict"], end.status) == ("VALID", 0), end.stderr
            run.assert_nothing_left()
        assert one.run_id != two.run_id
        assert set(one.ports()) & set(two.ports()) == set()
        assert {*one.ports(), *two.ports()} == set(range(low, low + 48))
        spaces = [run.commands()["frontend-0"]["env"]["DYN_NAMESPACE"] for run in runs]
        models = [json.loads((run.paths.root / "measure.json").read_text()) for run in runs]
        assert spaces[0] != spaces[1]
        assert models[0]["frontends"] != models[1]["frontends"]
        for run in runs:
            workers = json.loads(run.paths.evidence.read_text())["workers"]
            assert {name: counts["served"] for name, counts in workers.items()} == {"prefill-0": 44, "decode-0": 44}
        staged = [path for path in (place.root / "shared-disk").iterdir() if not path.name.startswith(".")]
        assert len(staged) == 1


def free_range(count: int) -> int:
    """First of `count` ports in a row on which nobody listens."""
    busy = listening().keys()
    return next(low for low in range(14000, 19000, count) if not busy & set(range(low, low + count)))
