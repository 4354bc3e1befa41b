"""Replicas that die while the load runs: the job goes on where the file says so, and the result says what happened."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from dynamo_mlperf.job.losses import Loss, stragglers, told
from dynamo_mlperf.record import Verdict
from tests.job.chain import Place, Run, machine_is_busy


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("losses"))


def aggregated(policy: str, **reduced: float) -> dict[str, Any]:
    args = {"max-num-seqs": 64, "speedup-ratio": 10}
    role = {"workers": 3, "on_worker_loss": policy, "args": args}
    return {
        "nodes": {"count": 1, "gpus": 3},
        "roles": {"prefill": None, "decode": None, "aggregated": role},
        "reduced": {"min_duration_s": 18, **reduced},
    }


def kill(run: Run, name: str) -> None:
    os.kill(run.pid_of(name), signal.SIGKILL)


@pytest.mark.dynamo
@pytest.mark.loadgen
def test_a_lost_replica_is_restarted_or_dropped_and_the_result_names_it(place: Place) -> None:
    with (
        place.run(place.topology(aggregated("restart"))) as restarting,
        place.run(place.topology(aggregated("drop"))) as dropping,
    ):
        for run in (restarting, dropping):
            run.wait_until_measuring()
            kill(run, "aggregated-1")
        assert restarting.wait_for("worker_back", process="aggregated-1")["seconds"] > 0
        for run, became in ((restarting, "restarted"), (dropping, "dropped")):
            ended, verdict = run.end(), run.verdict()
            (loss,) = json.loads(run.paths.evidence.read_text())["losses"]
            assert (loss["process"], loss["became"]) == ("aggregated-1", became)
            (note,) = [note for note in verdict["notes"] if note.startswith("lost: ")]
            assert note.startswith("lost: aggregated-1 on node 0 (localhost) was killed by SIGKILL: " + became)
            # In a rehearsal a loss is told; only a failed request would make it INVALID, and those went on elsewhere,
            # unless more had piled up at the lost one than Dynamo hands on.
            checks = {reason["check"] for reason in verdict["reasons"]}
            if not (machine_is_busy() and checks & {"failed requests", "client-limited"}):
                assert (verdict["verdict"], verdict["failed_requests"], ended.status) == ("VALID", 0, 0), checks
            assert verdict["requests"] == 264
            run.assert_nothing_left()
        counted = json.loads(restarting.paths.evidence.read_text())["workers"]
        assert counted["aggregated-1"]["served"] > 0
        assert set(json.loads(dropping.paths.evidence.read_text())["workers"]) == {"aggregated-0", "aggregated-2"}


@pytest.mark.dynamo
@pytest.mark.loadgen
def test_the_loss_of_the_last_replica_ends_the_job(place: Place) -> None:
    with place.run(place.topology(aggregated("drop", min_duration_s=60))) as run:
        run.wait_until_measuring()
        for index in range(3):
            kill(run, f"aggregated-{index}")
        ended = run.end()
        assert (ended.status, run.verdict()["verdict"]) == (4, "FAILED")
        assert run.verdict()["reasons"][0]["got"].startswith("no worker is left; the last: aggregated-")
        run.assert_nothing_left()


@contextlib.contextmanager
def held_back(pid: int) -> Iterator[None]:
    """A process that gets little of its time, as on a busy or a broken node.

    Its turns are shorter than a request, so that each request of its waits; and it waits for so long at a time that
    its peers are faster even where all are slow.
    """
    over = threading.Event()

    def hold() -> None:
        with contextlib.suppress(ProcessLookupError):  # it ends while it is held back
            while not over.is_set():
                os.kill(pid, signal.SIGSTOP)
                over.wait(0.8)
                os.kill(pid, signal.SIGCONT)
                over.wait(0.02)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.dynamo
@pytest.mark.loadgen
def test_a_straggler_is_dropped_before_the_measurement_and_the_result_names_it(place: Place) -> None:
    edits = aggregated("fail", min_duration_s=3)
    edits["nodes"]["gpus"] = edits["roles"]["aggregated"]["workers"] = 4
    edits["roles"]["aggregated"]["drop_stragglers"] = True
    with place.run(place.topology(edits)) as run:
        run.wait_for("workers_listed")
        with held_back(run.pid_of("aggregated-2")):
            lost = run.wait_for("worker_lost", process="aggregated-2")
        ended, verdict, evidence = run.end(), run.verdict(), json.loads(run.paths.evidence.read_text())
        assert lost["became"] == "dropped"
        dropped = set(evidence["warmup"]["dropped"])  # on a busy machine another one may be slow, too
        assert "aggregated-2" in dropped
        assert set(evidence["workers"]) == {f"aggregated-{index}" for index in range(4)} - dropped
        told_of = "lost: aggregated-2 on node 0 (localhost) took "
        (note,) = [note for note in verdict["notes"] if note.startswith(told_of)]
        assert note.endswith(" times as long as the median worker in the warm-up: dropped")
        assert (verdict["verdict"], verdict["failed_requests"], ended.status) == ("VALID", 0, 0), verdict["reasons"]
        run.assert_nothing_left()


LOSS = Loss("aggregated-7", 3, "n4", 0.0, "was killed by SIGKILL", "restarted", 4.25)


@pytest.mark.parametrize(
    ("result_class", "verdict", "losses", "becomes"),
    [
        ("official", "VALID", [LOSS, LOSS], "INVALID"),
        ("official", "VALID", [], "VALID"),
        ("reduced", "VALID", [LOSS], "VALID"),
        ("reduced", "INVALID", [LOSS], "INVALID"),
        ("official", "FAILED", [LOSS], "FAILED"),
    ],
)
def test_only_an_official_run_may_lose_nobody(
    result_class: Any, verdict: Any, losses: list[Loss], becomes: str
) -> None:
    said = told(Verdict(verdict, result_class, "b", "Server", "/run"), losses, {})
    assert said.verdict == becomes
    assert len(said.notes) == len(losses)
    if becomes == "INVALID" and result_class == "official":
        assert said.reasons[-1].got == (
            "aggregated-7 on node 3 (n4) was killed by SIGKILL: restarted, served again after 4.2 s and 1 more"
        )


def test_a_straggler_is_one_against_the_median_of_its_role() -> None:
    def worker(served: int, mean_ms: float) -> Counter[str]:
        return Counter(served=served, served_ms=round(served * mean_ms))

    moved = {
        "prefill-0": worker(100, 900.0),
        "prefill-1": worker(100, 1000.0),
        "decode-0": worker(100, 100.0),
        "decode-1": worker(100, 149.0),
        "decode-2": worker(100, 151.0),
        "decode-3": worker(100, 100.0),
        "decode-4": worker(4, 9000.0),
        "decode-5": worker(100, 90.0),
    }
    assert stragglers(moved) == {"decode-2": 1.51}
    said = told(Verdict("VALID", "official", "b", "Server", "/run"), [], stragglers(moved))
    assert (said.verdict, said.notes) == ("VALID", ("straggler: decode-2's requests took 1.51 times the median",))
