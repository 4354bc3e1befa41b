"""A live job that a run attaches to: what Slurm says of it, which nodes are free, and whom it refuses."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.slurm.allocation import SlurmAllocation, SlurmJob
from dynamo_mlperf.slurm.attach import (
    LiveJob,
    choose_hosts,
    controller_step_name,
    live_job,
    other_runs,
    parse_live_job,
    parse_runs,
    refuse_neighbour,
)
from tests.fakes.slurm_programs import FakeSlurm

if TYPE_CHECKING:
    from pathlib import Path

# As Slurm 22.05.8 prints it for `salloc --no-shell --nodes=4 --gres=gpu:2`, shortened.
LINE = (
    "JobId=17 JobName=no-shell UserId={user} GroupId=root(0) Priority=1 JobState=RUNNING Reason=None Requeue=1 "
    "TimeLimit=01:00:00 EndTime=1800000000 NodeList=n[1-4] BatchHost=n1 NumNodes=4 NumCPUs=4 JOB_GRES=gpu:8   "
    "Nodes=n[1-3] CPU_IDs=0 Mem=4000 GRES=gpu:2(IDX:0-1)   Nodes=n4 CPU_IDs=0-1 Mem=4000 GRES=gpu:a100:1(IDX:0),"
    "gpu:v100:2(IDX:1,3) MinCPUsNode=1 Command=(null) WorkDir=/home/me \n"
)
MINE = LINE.format(user=f"me({os.getuid()})")
HOSTS = ("n1", "n2", "n3", "n4")
# As squeue prints it with our format, from two runs of which one has begun only just now; names of other tools too.
STEPS = """\
17.0      dmp-0a1b2c.0-1          n1
17.3      dmp-0a1b2c-node-0       n1
17.4      dmp-0a1b2c-decode-0     n2
17.5      dmp-ffffff.3            n1
17.interactive interactive        n1
17.6      dmp-own                 n3
"""


def test_nodes_gpus_and_time_are_slurms(slurm: FakeSlurm) -> None:
    slurm.answers("scontrol", MINE)
    job = live_job("17")
    assert (job.job_id, job.hosts, job.end_t) == ("17", HOSTS, 1.8e9)
    assert job.gpus == {"n1": 2, "n2": 2, "n3": 2, "n4": 3}


@pytest.mark.parametrize(
    ("line", "said", "action"),
    [
        (LINE.format(user="her(4711)"), r"job 17 is of user her \(id 4711\)", "job of your own"),
        (
            MINE.replace("RUNNING Reason=None", "PENDING Reason=Resources").replace("n[1-4]", ""),
            r"does not run: it is PENDING \(Resources\), waits for nodes",
            "salloc",
        ),
        (MINE.replace("RUNNING", "COMPLETED"), "it is COMPLETED, ended", "salloc"),
        (MINE.replace("RUNNING", "SUSPENDED"), "it is SUSPENDED", "wait"),
        (MINE + MINE, "is 2 jobs", "17_3"),
        ("slurm_load_jobs error\n", "job 17: scontrol's answer names no job", "scontrol show job 17"),
    ],
)
def test_a_job_that_cannot_be_used_is_refused(slurm: FakeSlurm, line: str, said: str, action: str) -> None:
    slurm.answers("scontrol", line)
    with pytest.raises(SetupError, match=said) as refused:
        live_job("17")
    assert action in refused.value.action


def test_no_job_and_no_number_are_refused(slurm: FakeSlurm) -> None:
    slurm.script("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    with pytest.raises(SetupError, match="job 99: scontrol ended with 1: slurm_load_jobs error: Invalid job id"):
        live_job("99")
    with pytest.raises(ConfigError, match="'--help' is no job's id"):
        live_job("--help")
    assert len(slurm.calls("scontrol")) == 1


def test_a_program_that_says_nothing_is_told_by_how_it_ended(slurm: FakeSlurm) -> None:
    slurm.script("scontrol", "kill -9 $$")
    with pytest.raises(SetupError, match="job 17: scontrol was killed by SIGKILL: it said nothing"):
        live_job("17")
    slurm.script("squeue", "exit 1")
    with pytest.raises(SetupError, match="squeue ended with 1: it said nothing"):
        other_runs(job())


def test_scattered_nodes_fit_into_a_steps_name() -> None:
    hosts = [f"h{at}" for at in range(4000)]
    for positions in (list(range(0, 200, 2)), [0, *range(1, 4000, 2)], [0, 3999], list(range(4000))):
        name = controller_step_name("0a1b2c", positions)
        assert len(name) <= 1024
        (back,) = parse_runs(f"17.1 {name} h0", hosts)
        assert back.hosts == {hosts[at] for at in positions}
    with pytest.raises(SetupError, match=r"2250 nodes of the job, .* do not fit into a step's name"):
        controller_step_name("0a1b2c", range(0, 4500, 2))


def test_squeue_is_asked_for_names_as_long_as_slurm_takes(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", "")
    assert other_runs(job()) == []
    assert "StepName:1025," in slurm.calls("squeue")[0]


@pytest.mark.parametrize(
    ("row", "used"),
    [
        ("17.0 dmp-0a1b2c.1-99999999 n1", {"n1", "n2", "n3", "n4"}),
        ("17.0 dmp-0a1b2c.0-99999999999999 n2", {"n2"}),
        ("17.0 dmp-0a1b2c.\u00b2 n1", {"n1"}),
        ("17.0 dmp-0a1b2c.xffffff0a n3", {"n2", "n3", "n4"}),
        ("17.0 dmp-0a1b2c.1", {"n2"}),
        ("17.0 dmp-0a1b2c.x n1", {"n1"}),
    ],
)
def test_names_that_are_not_ours_do_no_harm(row: str, used: set[str]) -> None:
    (run,) = parse_runs(row, HOSTS)
    assert run.hosts == used


def test_nodes_that_are_no_list_are_slurms_fault() -> None:
    with pytest.raises(SetupError, match=r"squeue's row of step 17\.0: node list 'n"):
        parse_runs("17.0 dmp-0a1b2c.1 n[", HOSTS)


def job(**given: int) -> LiveJob:
    return LiveJob("17", HOSTS, given)


def test_runs_are_told_by_their_steps_and_nodes_that_they_will_use() -> None:
    one, other = parse_runs(STEPS, HOSTS)
    assert (one.token, one.hosts, one.controller, one.steps) == ("0a1b2c", frozenset({"n1", "n2"}), "17.0", 3)
    assert (other.token, other.hosts, other.controller) == ("ffffff", frozenset({"n1", "n4"}), "17.5")
    positions = [0, 1, 2, 5, 7, 8]
    assert controller_step_name("0a1b2c", positions) == "dmp-0a1b2c.0-2.5.7-8"
    (back,) = parse_runs(f"17.1 {controller_step_name('0a1b2c', positions)} h0", [f"h{k}" for k in range(9)])
    assert back.hosts == {f"h{k}" for k in positions}


def test_the_first_free_nodes_are_taken_and_too_few_are_told_with_the_numbers() -> None:
    (one, _) = parse_runs(STEPS, HOSTS)
    assert choose_hosts(job(), [], nodes=2, gpus=0) == ("n1", "n2")
    assert choose_hosts(job(), [one], nodes=2, gpus=0) == ("n3", "n4")
    with pytest.raises(SetupError, match=r"job 17 has 4 nodes \(n1, n2, n3, n4\), 5 planned") as few:
        choose_hosts(job(), [], nodes=5, gpus=0)
    assert "--nodes=5" in few.value.action
    with pytest.raises(
        SetupError, match=r"another run of ours is under way on 2 of them \(n1, n2; 3 steps\), 2 free, 3 "
    ):
        choose_hosts(job(), [one], nodes=3, gpus=0)
    given = job(n1=2, n2=4, n3=2, n4=4)
    assert choose_hosts(given, [], nodes=2, gpus=4) == ("n2", "n4")
    with pytest.raises(SetupError, match=r"was given 2 or 4 GPUs on each of 4 nodes .*, 4 on each of 3 planned"):
        choose_hosts(given, [], nodes=3, gpus=4)


def test_of_two_that_attach_at_once_the_first_goes_on(slurm: FakeSlurm) -> None:
    slurm.answers("squeue", STEPS)
    refuse_neighbour(job(), "0a1b2c", ("n1", "n2"), "17.0")
    with pytest.raises(SetupError, match=r"quicker on 1 of 2 nodes \(n1\) of job 17"):
        refuse_neighbour(job(), "ffffff", ("n1", "n4"), "17.5")
    refuse_neighbour(job(), "ffffff", ("n3", "n4"), "17.5")
    slurm.answers("squeue", STEPS.replace("17.0      dmp-0a1b2c.0-1          n1\n", ""))
    with pytest.raises(SetupError, match="quicker"):  # one in a batch script has no step of its own, and asks nobody
        refuse_neighbour(job(), "ffffff", ("n1", "n4"), "17.2")


def test_an_attached_allocation_has_its_own_nodes_and_asks_for_neighbours(slurm: FakeSlurm) -> None:
    slurm.answers("scontrol", MINE)
    slurm.answers("squeue", STEPS)
    environment = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "5", "SLURM_JOB_NODELIST": "n1"}
    attached = SlurmJob.attached(environment, ("n1", "n4"), "/home/me")
    allocation = SlurmAllocation(attached, token="ffffff")
    assert [node.host for node in allocation.nodes] == ["n1", "n4"]
    assert allocation.describe() == "Slurm job 17 on 2 nodes (n1, n4), attached as step 17.5"
    with pytest.raises(SetupError, match="quicker"):
        allocation.refuse_neighbours()
    SlurmAllocation(SlurmJob("17", HOSTS, "/home/me"), token="ffffff").refuse_neighbours()
    with pytest.raises(SetupError, match="not a step"):
        SlurmJob.attached({"SLURM_JOB_ID": "17"}, ("n1",), "/home/me")


def test_a_job_of_an_array_goes_by_its_own_id() -> None:
    line = MINE.replace("JobId=17", "JobId=19 ArrayJobId=17 ArrayTaskId=3")
    assert parse_live_job("17_3", line, os.getuid()).job_id == "19"
    assert parse_live_job("17", MINE.replace(" GRES=gpu:2(IDX:0-1) ", " GRES= "), os.getuid()).gpus["n1"] == 0


def test_how_an_attached_run_stands_is_told_by_its_step_and_its_record(slurm: FakeSlurm, tmp_path: Path) -> None:
    from dynamo_mlperf.slurm.runs import read_run
    from dynamo_mlperf.slurm.standing import standings

    root = tmp_path / "runs" / "sample-17-0a1b2c"
    root.mkdir(parents=True)
    place = "Slurm job 17 on 2 nodes (n1, n2), attached as step 17.0"
    (root / "events.jsonl").write_text(f'{{"t": 1.0, "event": "job_begin", "run": "x", "place": "{place}"}}\n')
    slurm.answers("squeue", "17.0\n17.3\n")
    run = read_run(root)
    assert (run.job_id, run.step) == ("17", "17.0")
    assert standings([run])[0][0].outcome.word == "RUNNING"
    slurm.answers("squeue", "17.10\n17.3\n")
    assert standings([run])[0][0].outcome.word == "LOST"
    slurm.script("squeue", "exit 1")
    assert standings([run])[0][0].outcome.word == "UNKNOWN"
    with (root / "events.jsonl").open("a") as events:
        events.write('{"t": 2.0, "event": "job_end", "exit_code": 0}\n')
    (root / "verdict.json").write_text('{"verdict": "VALID", "reasons": []}')
    (standing,), _ = standings([read_run(root)])
    assert (standing.outcome.word, standing.job) == ("VALID", None), "though the job goes on"
    assert slurm.calls("scontrol") == []
