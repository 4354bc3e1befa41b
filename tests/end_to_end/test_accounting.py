"""What the real sacct says: slurmdbd with a database of its own, and a controller of Slurm that forgets jobs at once."""

from __future__ import annotations

import json
import os
import re
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from tests.end_to_end.bench import Cluster, Place
from tests.end_to_end.test_cluster import engine_processes, measuring, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.accounting

EATS_MEMORY = "python3 -c 'held = bytearray(300 * 2**20); import time; time.sleep(60)'"
# srun ends before slurmctld has heard of its step's end; a job that ends first has no trace of how the step ended.
STEP_HEARD_OF = "while squeue --noheader --steps --jobs=$SLURM_JOB_ID --format=%i | grep -q '[.]0'; do sleep 0.2; done"
# Options of sbatch, and the script.
SHELL_JOBS = {
    "good": ("", "exit 0"),
    "three": ("", "exit 3"),
    "step": ("", f"srun sh -c 'exit 7'; {STEP_HEARD_OF}; exit 0"),
    "killed": ("", "kill -KILL $$"),
    "late": ("", "sleep 400"),
    "ended": ("", "trap '' TERM; while :; do sleep 1; done"),
    "dark": ("--nodes=2 --nodelist=n3,n4", "srun sleep 400"),
    "many": ("--nodes=9", "exit 0"),
    "held": ("--hold", "exit 0"),
    "memory": ("--mem=60", EATS_MEMORY),
    "step-memory": ("--mem=60", f"srun {EATS_MEMORY}; {STEP_HEARD_OF}; exit 4"),
}
# State, exit status, signal, derived exit code, a step out of memory.
ENDS: dict[str, tuple[str, int, int, int, bool]] = {
    "good": ("COMPLETED", 0, 0, 0, False),
    "three": ("FAILED", 3, 0, 0, False),
    "step": ("COMPLETED", 0, 0, 7, False),
    "killed": ("FAILED", 0, 9, 0, False),
    "late": ("TIMEOUT", 0, 0, 0, False),
    "ended": ("CANCELLED", 0, 0, 0, False),
    "dark": ("NODE_FAIL", 0, 0, 0, False),
    "memory": ("OUT_OF_MEMORY", 0, 125, 0, False),
    "step-memory": ("FAILED", 4, 0, 0, True),
}


@pytest.fixture(scope="module")
def recorded(repository: Path, place: Place) -> Iterator[Cluster]:
    """A cluster with accounting."""
    root = repository / f".devcluster-acct-{os.getpid()}"
    found = Cluster(repository / "slurm" / "devcluster", root, place.root, {"GPUS": "3", "ACCOUNTING": "yes"})
    up = found.call("up", check=False, timeout_s=120)
    assert up.returncode == 0, up.stderr
    found.configure(KillWait=20)  # two questions are asked of a job that is ending, on a machine that may be busy
    yield found
    found.call("down")
    assert not (root / "database").exists()
    shutil.rmtree(root, ignore_errors=True)


@pytest.fixture(scope="module")
def jobs(recorded: Cluster) -> dict[str, str]:
    """The shell jobs above, each on its way to its end: ids by name; `one of` an array besides."""
    found = {}
    for name, (options, body) in SHELL_JOBS.items():
        if "memory" in name and "MEMORY=yes" not in (recorded.root / "settings").read_text():
            continue
        words = ("--parsable", "--no-requeue", f"--output={recorded.root}/shared/{name}.out", *options.split())
        found[name] = recorded.login("sbatch", *words, "--wrap", body).strip()
    array = recorded.login("sbatch", "--parsable", "--array=0-2", "--wrap", "exit $SLURM_ARRAY_TASK_ID").strip()
    found["one of"] = f"{array}_1"
    running = ("late", "ended", "dark")
    wait_until(lambda: all(recorded.job(found[name])["JobState"] == "RUNNING" for name in running), 300, "their start")
    recorded.call("node-kill", "n4")
    recorded.login("scontrol", "update", f"JobId={found['late']}", "EndTime=now+1")
    return found


def standings(cluster: Cluster, ids: list[str], calls: Path | None = None) -> dict[str, dict[str, Any]]:
    """What `status` says of jobs, by their id there; `calls` takes a line for each question to Slurm."""
    words = ["dynamo-mlperf", "status", *ids, "--json"]
    if calls is not None:
        calls.mkdir(exist_ok=True)
        for name in ("sacct", "scontrol", "squeue"):
            program = calls / name
            program.write_text(f'#!/bin/sh\necho {name} >>{calls}/asked\nexec {shutil.which(name)} "$@"\n')
            program.chmod(0o755)
        words = ["sh", "-c", f'PATH={calls}:$PATH exec "$@"', "sh", *words]
    return dict(zip(ids, json.loads(cluster.login(*words)), strict=True))


def seen(standing: dict[str, Any]) -> tuple[str, int, int, int, bool]:
    job = standing["job"]
    return job["state"], job["exit_code"], job["signal"], job["derived"], job["step_out_of_memory"]


def test_all_ends_of_jobs_come_from_sacct_by_one_question(
    recorded: Cluster, jobs: dict[str, str], place: Place
) -> None:
    state = ("sacct", "-X", "-n", "-P", "-j", jobs["ended"], "--format=State")
    wait_until(lambda: recorded.login(*state).startswith("RUNNING"), 300, "the database to hear of its start")
    recorded.login("scancel", jobs["ended"])
    grace = recorded.login(*state)
    found = standings(recorded, [jobs["ended"]])[jobs["ended"]]
    # sacct tells of the decision, not of the end: the job ignores SIGTERM, so its processes are there for KillWait more.
    assert grace.startswith("CANCELLED by")
    assert (found["outcome"]["word"], found["job"]["state"]) == ("RUNNING", "COMPLETING")
    told = {name: ENDS[name] for name in jobs if name in ENDS}
    ids = list(jobs.values())
    known: dict[str, dict[str, Any]] = {}

    def over() -> bool:
        known.update(standings(recorded, ids))
        return all(known[jobs[name]]["job"]["state"] == end[0] for name, end in told.items())

    wait_until(over, 300, "the ends of all jobs")
    assert known[jobs["one of"]]["job"]["exit_code"] == 1, "of an array, by the id that squeue shows"
    assert known[jobs["held"]]["job"]["reason"] == "JobHeldUser"
    assert known[jobs["many"]]["job"]["reason"] == "PartitionNodeLimit"
    assert known[jobs["many"]]["outcome"]["word"] == "WAITING"
    forgotten = ("scontrol", "show", "job", jobs["dark"])
    wait_until(lambda: recorded.call("exec", *forgotten, check=False).returncode != 0, 300, "scontrol to forget")
    calls = place.root / "asked-of-slurm"
    again = standings(recorded, ids, calls)
    assert (calls / "asked").read_text().split() == ["sacct", "scontrol"], "one question for all jobs to each"
    assert {name: seen(again[jobs[name]]) for name in told} == told
    assert {again[jobs[name]]["job"]["source"] for name in told} == {"sacct"}
    assert again[jobs["ended"]]["job"]["reason"] == "by user 0"
    codes = {name: again[jobs[name]]["outcome"]["exit_code"] for name in told if name != "good"}
    expected = {"three": 3, "step": 4, "killed": 137, "late": 143, "ended": 143, "dark": 4}
    assert codes == expected | {name: 4 for name in told if "memory" in name}
    if "step-memory" in told:
        assert "ran out of memory" in again[jobs["step-memory"]]["outcome"]["warnings"][0]
    recorded.call("node-boot", "n4")


def topology(place: Place, name: str, interface: str, min_duration_s: float = 3, **more: object) -> Path:
    """One worker of each role on one node."""
    role = {"workers": 1, "args": {"max-num-seqs": 64, "speedup-ratio": 10}}
    (place.root / f"{interface}.yaml").write_text(
        f"interface: {interface}\nlocal_path: ${{DEVCLUSTER_DIR}}/nvme\nshared_path: ${{DEVCLUSTER_DIR}}/shared\n"
    )
    measure = {"benchmark": "qwen3-vl-235b-a22b", "scenario": "Interactive", "dataset": "assets/tiny-product-catalogue"}
    content = {
        "schema": 1,
        "name": name,
        "site": str(place.root / f"{interface}.yaml"),
        "nodes": {"count": 1, "gpus": 3},
        "model": {"name": "tiny", "weights": {"path": "assets/tiny-qwen3-vl-moe"}},
        "engine": "mocker",
        "device": "cpu",
        "roles": {"prefill": role, "decode": role},
        "measure": measure if "sweep" in more else {**measure, "target_qps": 6},
        "reduced": {
            "min_duration_s": min_duration_s,
            "samples": 44,
            "percentile": 90,
            "latency_limit_ms": 20000,
        },
        "timeouts": {"warmup_requests": 2},
        **more,
    }
    head = "#!/usr/bin/env -S dynamo-mlperf job\n#SBATCH --nodes=1 --gres=gpu:3 --exclusive --time=10 --no-requeue\n"
    return place.write(f"{name}.yaml", head + yaml.safe_dump(content))


@pytest.mark.dynamo
@pytest.mark.loadgen
def test_verbs_and_exit_codes_rest_on_sacct(place: Place, recorded: Cluster) -> None:
    topology(place, "kept", "eth0")
    topology(place, "refused", "ib0")
    topology(place, "halted", "eth0", min_duration_s=120)
    halted = json.loads(recorded.login("dynamo-mlperf", "submit", "halted.yaml", "--json"))["job_id"]
    refused = recorded.call("exec", "dynamo-mlperf", "submit", "refused.yaml", "--wait", "--json", check=False)
    assert refused.returncode == 3, refused.stderr
    ended = json.loads(refused.stdout)
    assert (ended["outcome"]["word"], ended["job"]["exit_code"]) == ("FAILED", 3)
    assert "has no address on interface ib0" in ended["outcome"]["text"]
    kept = recorded.call("exec", "dynamo-mlperf", "submit", "kept.yaml", "--wait", "--json", check=False, timeout_s=150)
    assert kept.returncode == 0, kept.stderr
    ended = json.loads(kept.stdout)
    assert (ended["outcome"]["word"], ended["outcome"]["success"], ended["job"]["source"]) == ("VALID", True, "sacct")
    wait_until(lambda: measuring(place, f"halted-{halted}"), 90, "the measurement")
    cancelled = recorded.call("exec", "dynamo-mlperf", "cancel", halted, "--json", check=False, timeout_s=90)
    (end,) = json.loads(cancelled.stdout)
    # sacct calls it CANCELLED at once; the verb waits for what still ends.
    assert (cancelled.returncode, end["state"], end["left"]) == (0, "CANCELLED", []), cancelled.stderr
    assert engine_processes(recorded) == {}
    verdict = json.loads((place.root / "runs" / f"halted-{halted}" / "verdict.json").read_text())
    assert verdict["reasons"][0]["check"] == "interrupted"
    found = standings(recorded, [halted])[halted]
    assert (found["outcome"]["word"], found["outcome"]["exit_code"]) == ("CANCELLED", 143)


@pytest.mark.dynamo
@pytest.mark.loadgen
def test_a_parallel_sweep_sends_an_array_and_its_jobs_are_known_by_both_ids(place: Place, recorded: Cluster) -> None:
    topology(place, "spread", "eth0", sweep={"splits": ["1P1D", "1P2D"], "rates": [4]})
    words = ("dynamo-mlperf", "sweep", "spread.yaml", "--parallel", "2", "--run-dir", "spread", "--json")
    done = recorded.call("exec", *words, check=False, timeout_s=240)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    assert (summary["state"], [one["split"] for one in summary["splits"]]) == ("finished", ["1P1D", "1P2D"])
    sent = {point["split"]: point for point in json.loads((place.root / "spread" / "points.json").read_text())["sent"]}
    ids = [point["job_id"] for point in sent.values()]
    assert all(re.fullmatch(r"[0-9]+_[01]", one) for one in ids)
    by_array = standings(recorded, ids)
    assert [one["job"]["state"] for one in by_array.values()] == ["COMPLETED", "COMPLETED"]
    for point in sent.values():
        run_dir = str(place.root / "spread" / "points" / point["run_dir"])
        (found,) = standings(recorded, [run_dir]).values()
        assert (found["outcome"]["word"], found["outcome"]["success"]) == ("VALID", True)
        assert found["job"]["job_id"] == by_array[point["job_id"]]["job"]["job_id"]
