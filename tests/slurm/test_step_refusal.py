"""Steps that Slurm does not start: what becomes of srun's words and of scontrol's, as Slurm 22.05 says them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from dynamo_mlperf.errors import ServingError, SetupError
from dynamo_mlperf.files import RunPaths
from dynamo_mlperf.process.command import Command
from dynamo_mlperf.process.signals import StopFlag
from dynamo_mlperf.record import EventLog
from dynamo_mlperf.serving.supervisor import Layer, Supervisor
from dynamo_mlperf.slurm.allocation import SlurmAllocation, SlurmJob
from dynamo_mlperf.slurm.step_refusal import Held, held_by_others, refused_words, step_refusal
from tests.fakes.slurm_programs import FakeSlurm

JOB = (
    "JobId=1 JobName=wrap JobState=RUNNING NodeList=n[1-2] NumNodes=2 NumCPUs=64 TRES=cpu=64,mem=250G,node=2,billing=64 "
    "JOB_GRES=gpu:4   Nodes=n[1-2] CPU_IDs=0-31 Mem=128000 GRES=gpu:2(IDX:0-1) MinCPUsNode=1 Power= TresPerNode=gres:gpu:2"
)
STEP = (
    "StepId={step} UserId=0 StartTime=2026-11-30T18:50:04 TimeLimit=UNLIMITED State={state} Partition=main NodeList={nodes} "
    "Nodes=1 CPUs=32 Tasks=32 Name={name} Network=(null) TRES={tres} ResvPorts=(null) CPUFreqReq=Default Dist=Block "
    "SrunHost:Pid=login:30026 {gpus}"
)
BATCH = STEP.format(step="1.batch", state="RUNNING", nodes="n1", name="batch", tres="(null)", gpus="")
HOG = STEP.format(
    step="1.0", state="RUNNING", nodes="n2", name="hog", tres="cpu=32,mem=125G,node=1", gpus="TresPerNode=gres:gpu:2"
)
PENDING = STEP.format(step="1.TDB", state="PENDING", nodes="n[1-2]", name="(null)", tres="(null)", gpus="")
OURS = STEP.format(
    step="1.3", state="RUNNING", nodes="n2", name="dmp-abcdef-decode-0", tres="cpu=1,mem=125G,node=1", gpus=""
)
REMARK = "srun: cluster configuration lacks support for cpu binding\n"
BUSY = f"{REMARK}srun: error: Unable to create step for job 1: Requested nodes are busy\n"
SILENT = (
    f"{REMARK}srun: error: slurm_receive_msgs: [[n2]:6818] failed: Socket timed out on send/recv operation\n"
    "srun: error: Task launch for StepId=2.0 failed on node n2: Socket timed out on send/recv operation\n"
    "srun: error: Application launch failed: Socket timed out on send/recv operation\nsrun: Job step aborted\n"
)
LOST = (
    f"{REMARK}srun: error: Unable to confirm allocation for job 2: Socket timed out on send/recv operation\n"
    "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 2\n"
)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (BUSY, "Requested nodes are busy"),
        (SILENT, "Socket timed out on send/recv operation"),
        (LOST, "Socket timed out on send/recv operation"),
        (
            "srun: error: timeout waiting for task launch, started 0 of 1 tasks\n",
            "timeout waiting for task launch, started 0 of 1 tasks",
        ),
        ("srun: Job 9 step creation temporarily disabled, retrying (Requested nodes are busy)\n", ""),
        ("loading weights\nsrun: error: n2: task 0: Killed\n", ""),
        ("INFO the log said: srun: error: Unable to create step for job 1: Requested nodes are busy\n", ""),
    ],
)
def test_only_srun_itself_says_that_a_step_was_not_started(tmp_path: Path, log: str, words: str) -> None:
    path = tmp_path / "decode-0.log"
    assert refused_words(path) == ""
    path.write_text(log)
    assert refused_words(path) == words


def test_what_others_leave_nothing_of_is_missing() -> None:
    held = held_by_others(JOB, f"{BATCH}\n{HOG}\n{OURS}\n{PENDING}", "n2")
    who = "of n2 held by step 1.0 (hog)"
    assert held.texts == (f"32 of 32 CPUs {who}", f"128000 of 128000 MiB of memory {who}", f"2 of 2 GPUs {who}")
    assert held.steps == ("1.0",)
    assert held_by_others(JOB, f"{BATCH}\n{HOG}\n{OURS}", "n1") == Held()
    half = HOG.replace("cpu=32,mem=125G", "cpu=16,mem=1000M").replace("TresPerNode=gres:gpu:2", "")
    other = half.replace("1.0 ", "1.4 ").replace("Name=hog", "Name=boar")
    assert held_by_others(JOB, half, "n2") == Held()
    both = held_by_others(JOB, f"{half}\n{other}", "n2")
    assert both == Held(("32 of 32 CPUs of n2 held by step 1.0 (hog), step 1.4 (boar)",), ("1.0", "1.4"))
    assert held_by_others("", "", "n2") == held_by_others("nonsense", "StepId=1.0 State=RUNNING", "n2") == Held()


@pytest.mark.parametrize(
    ("words", "missing", "action"),
    [
        ("Requested nodes are busy", "CPUs, memory or GPUs of n2", "scontrol show step"),
        ("Memory required by task is not available", "memory", "--mem=0"),
        ("More processors requested than permitted", "CPUs", "--exclusive"),
        ("Invalid generic resource (gres) specification", "GPUs", "--gres=gpu:N"),
        ("Requested node configuration is not available", "the node", "--exclude=n2"),
        ("Required node not available (down, drained or reserved)", "the node", "scontrol show node n2"),
        ("Job prolog is still running", "a node whose prolog has ended", "step_start_s"),
        ("Socket timed out on send/recv operation", "an answer of Slurm", "scontrol ping"),
        ("Unable to contact slurm controller (connect failure)", "an answer of Slurm", "scontrol show node n2"),
    ],
)
def test_srun_s_words_name_a_resource_and_one_action(words: str, missing: str, action: str) -> None:
    refusal = step_refusal("decode-0 on node 1 (n2)", "n2", words, 60.2, Held())
    assert refusal.what == f"Slurm did not start decode-0 on node 1 (n2) in 60 s: {words}; missing: {missing}"
    assert action in refusal.action


def test_words_that_nobody_knows_are_told_as_they_are() -> None:
    refusal = step_refusal("etcd on node 0 (n1)", "n1", "Step limit reached for this job", 0.3, Held())
    assert refusal.what == "Slurm did not start etcd on node 0 (n1) in 0 s: Step limit reached for this job"
    assert "slurm/faq.md" in refusal.action


class Bench:
    """A supervisor in a job of two nodes whose srun says what a real one has said."""

    def __init__(self, slurm: FakeSlurm, root: Path, said: str, status: int = 1) -> None:
        (slurm.directory / "said").write_text(said)
        slurm.script("srun", f"cat {slurm.directory}/said >&2; exit {status}")
        slurm.script("scontrol", f"case $* in *step*) echo '{HOG}';; *) echo '{JOB}';; esac")
        slurm.answers("squeue", "")
        self.paths = RunPaths(root)
        self.paths.logs.mkdir(parents=True)
        self.allocation = SlurmAllocation(SlurmJob("1", ("n1", "n2"), "/home/me"))
        self.supervisor = Supervisor(self.allocation, self.paths, EventLog(self.paths), StopFlag())

    def command(self, name: str) -> Command:
        return Command(name, ("engine",), {}, self.paths.log_of(name), node=1)


def waits_for_ever() -> None:
    """A probe that never finds anything."""


@pytest.mark.parametrize(("layer", "may_end"), [(Layer.WORKER, False), (Layer.LOAD, True), (Layer.AGENT, True)])
def test_a_step_that_waits_too_long_ends_the_run_whatever_it_is(
    slurm: FakeSlurm, tmp_path: Path, layer: Layer, *, may_end: bool
) -> None:
    bench = Bench(slurm, tmp_path / "run", BUSY)
    bench.supervisor.start(bench.command("decode-0"), layer, may_end=may_end)
    with pytest.raises(SetupError, match=r"Slurm did not start decode-0 on node 1 \(n2\) in [0-9]+ s: ") as raised:
        bench.supervisor.wait_for(waits_for_ever, 60, lambda: "nobody noticed")
    assert "; missing: 32 of 32 CPUs of n2 held by step 1.0 (hog), 128000 of " in raised.value.what
    assert raised.value.action == "end what holds it: scancel 1.0; or start that with --overlap"
    assert "--immediate=60" in slurm.calls("srun")[0]
    bench.supervisor.stop_all()


def test_a_refused_task_is_told_as_one(slurm: FakeSlurm, tmp_path: Path) -> None:
    bench = Bench(slurm, tmp_path / "run", SILENT, 140)
    task = bench.supervisor.start(bench.command("stage-1"), Layer.TASK, may_end=True)
    with pytest.raises(SetupError, match=r"Slurm did not start stage-1 on node 1 \(n2\).*missing: an answer of Slurm"):
        bench.supervisor.wait_tasks([task], 60, "staging", lambda _left: None)
    assert slurm.calls("scontrol") == [], "Slurm is not asked who holds what where that is not the cause"
    bench.supervisor.stop_all()


def test_a_step_that_ran_has_died(slurm: FakeSlurm, tmp_path: Path) -> None:
    bench = Bench(slurm, tmp_path / "run", "loading weights\nsrun: error: n2: task 0: Killed\n", 137)
    bench.supervisor.start(bench.command("decode-0"), Layer.WORKER)
    with pytest.raises(ServingError, match=r"decode-0 on node 1 \(n2\) was killed by SIGKILL"):
        bench.supervisor.wait_for(waits_for_ever, 60, lambda: "nobody noticed")
    bench.supervisor.stop_all()


def test_a_replica_that_may_be_lost_is_lost_when_slurm_does_not_start_it(slurm: FakeSlurm, tmp_path: Path) -> None:
    bench = Bench(slurm, tmp_path / "run", BUSY)
    lost: list[str] = []
    bench.supervisor.start(
        bench.command("aggregated-0"), Layer.WORKER, on_loss=lambda child: lost.append(child.command.name)
    )
    bench.supervisor.wait_for(lambda: lost or None, 60, lambda: "nobody was told")
    bench.supervisor.pause(0.2)
    assert lost == ["aggregated-0"]
    bench.supervisor.stop_all()


def test_a_slurm_that_does_not_answer_is_asked_once_and_not_at_every_rung(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(slurm, tmp_path / "run", "")
    monkeypatch.setattr("dynamo_mlperf.slurm.allocation.SLURM_ANSWER_S", 1.0)
    slurm.script("srun", "exec sleep 600")
    slurm.script("squeue", "exec sleep 600")
    child = bench.supervisor.start(bench.command("decode-0"), Layer.WORKER)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        bench.allocation.send([child], number)
    assert len(slurm.calls("squeue")) == 1
    bench.supervisor.stop_all()
    assert child.poll() == -signal.SIGKILL
