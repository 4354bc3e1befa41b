"""What Slurm says of jobs: sacct where accounting runs, scontrol where not, one question for all."""

from __future__ import annotations

import re
import time

import pytest

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.slurm.jobs import JobInfo, parse_sacct, parse_scontrol, query_jobs
from dynamo_mlperf.slurm.states import STATES, state_name
from tests.fakes.slurm_programs import NO_ACCOUNTING, NO_CONTROLLER, NO_SUCH_JOB, FakeSlurm

SACCT = """7|7|COMPLETED|0:0|0:0|n[1-2]|None|100|110|120
8|8|CANCELLED by 1000|0:15|0:0|n1|None|100|110|120
9|9|RUNNING|0:0|0:0|n3|None|100|110|Unknown
10|10|PENDING|0:0|0:0|None assigned|None|100|Unknown|Unknown
11|11|TIMEOUT|0:0|4:0|n4|None|100|110|120
14|12_1|FAILED|1:0|0:125|n4|None|100|110|120
a line of another shape
"""
WAITING = (
    "JobId=10 JobName=a b.yaml UserId=me(1) JobState=PENDING Reason=Resources Dependency=(null) ExitCode=0:0 "
    "DerivedExitCode=0:0 AllocNode:Sid=login:1 NodeList=(null) Command=/dev/stdin --site a=b WorkDir=/home/me "
    "StdOut=/home/me/slurm-10.out Power= Comment=x JobState=COMPLETED"
)
RUNNING = "JobId=9 JobState=RUNNING Reason=None ExitCode=0:0 DerivedExitCode=0:0 NodeList=n3 StdOut=/home/me/out 9.txt"


def test_sacct_lines() -> None:
    found = parse_sacct(SACCT)
    assert found["7"] == JobInfo("7", "COMPLETED", 0, 0, 0, "", "n[1-2]", source="sacct", end_t=120.0)
    assert (found["8"].state, found["8"].signal, found["8"].reason) == ("CANCELLED", 15, "by user 1000")
    assert (found["9"].state, found["9"].exit_code) == ("RUNNING", None), "its 0:0 means nothing before its end"
    assert (found["10"].nodes, found["11"].derived) == ("", 4)
    assert found["14"] == found["12_1"], "one of an array, by its own id and as squeue shows it"
    assert (found["14"].job_id, found["14"].step_out_of_memory, found["11"].step_out_of_memory) == ("14", True, False)
    assert sorted(found) == ["10", "11", "12_1", "14", "7", "8", "9"]


def test_scontrol_lines() -> None:
    found = parse_scontrol(f"{WAITING}\n{RUNNING}\nNo jobs in the system\n")
    assert found["10"] == JobInfo("10", "PENDING", None, 0, 0, "Resources", "", "/home/me/slurm-10.out", "scontrol")
    assert (found["9"].nodes, found["9"].output) == ("n3", "/home/me/out 9.txt")


def test_all_jobs_are_asked_for_at_once_and_the_reason_comes_from_scontrol(slurm: FakeSlurm) -> None:
    slurm.answers("sacct", SACCT)
    slurm.answers("scontrol", f"{WAITING}\n{RUNNING}\nJobId=7 JobState=FAILED ExitCode=1:0\n")
    found = query_jobs(["7", "10", "9", "99"])
    assert (found["7"].state, found["7"].source) == ("COMPLETED", "sacct")
    assert (found["10"].reason, found["10"].source) == ("Resources", "scontrol")
    assert found["99"] == JobInfo("99", "UNKNOWN")
    assert len(slurm.calls("sacct")) == len(slurm.calls("scontrol")) == 1
    assert "--jobs=7,10,9,99" in slurm.calls("sacct")[0]


def test_ended_jobs_that_sacct_knows_need_no_second_question(slurm: FakeSlurm) -> None:
    slurm.answers("sacct", SACCT)
    slurm.script("scontrol", "exit 1")
    assert query_jobs(["7", "8"])["8"].state == "CANCELLED"
    assert slurm.calls("scontrol") == []


def test_a_job_that_sacct_calls_cancelled_runs_until_its_processes_have_ended(slurm: FakeSlurm) -> None:
    slurm.answers("sacct", f"8|8|CANCELLED by 1000|0:0|0:0|n1|None|100|110|{time.time() - 5:.0f}\n")
    slurm.answers("scontrol", "JobId=8 JobState=COMPLETING Reason=None ExitCode=0:0 NodeList=n1\n")
    assert (query_jobs(["8"])["8"].state, query_jobs(["8"])["8"].ended) == ("COMPLETING", False)
    slurm.answers("scontrol", "JobId=8 JobState=CANCELLED Reason=None ExitCode=0:15 NodeList=n1\n")
    assert (query_jobs(["8"])["8"].ended, query_jobs(["8"])["8"].source) == (True, "sacct")


def test_a_job_that_sacct_alone_holds_for_running_is_unknown(slurm: FakeSlurm) -> None:
    slurm.answers("sacct", SACCT)
    slurm.answers("scontrol", WAITING)
    found = query_jobs(["9", "10"])
    assert (found["9"].state, found["9"].reason) == (
        "UNKNOWN",
        "sacct holds it for RUNNING, slurmctld does not know it",
    )
    assert found["10"].state == "PENDING"
    slurm.script("scontrol", NO_CONTROLLER)
    assert query_jobs(["9"])["9"].state == "RUNNING", "nobody contradicts sacct"


def test_without_accounting_scontrol_answers(slurm: FakeSlurm) -> None:
    slurm.script("sacct", NO_ACCOUNTING)
    slurm.answers("scontrol", RUNNING)
    assert query_jobs(["9"])["9"].source == "scontrol"
    slurm.script("scontrol", NO_SUCH_JOB)
    assert query_jobs(["9"])["9"] == JobInfo("9")


def test_a_slurm_that_does_not_answer_is_an_error_not_a_state(slurm: FakeSlurm) -> None:
    slurm.script("sacct", NO_ACCOUNTING)
    slurm.script("scontrol", NO_CONTROLLER)
    with pytest.raises(SetupError, match="Unable to contact slurm controller"):
        query_jobs(["9", "10"])


def test_the_table_of_states_is_total() -> None:
    # The names of squeue(1) and sacct(1) of 22.05, the flags of slurm.h, and what 25.11 added.
    manual = (
        "BOOT_FAIL CANCELLED COMPLETED CONFIGURING COMPLETING DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PENDING PREEMPTED "
        "RUNNING RESV_DEL_HOLD REQUEUE_FED REQUEUE_HOLD REQUEUED RESIZING REVOKED SIGNALING SPECIAL_EXIT STAGE_OUT "
        "STOPPED SUSPENDED TIMEOUT LAUNCH_FAILED RECONFIG_FAIL POWER_UP_NODE EXPEDITING UNKNOWN"
    )
    assert sorted(manual.split(" ")) == sorted(STATES)
    assert all(
        re.fullmatch("waiting|running|ended|unknown", state.stage) and state.meaning for state in STATES.values()
    )


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("CANCELLED by 1000", "CANCELLED"),
        ("CANCELLED+", "CANCELLED"),
        ("RUNNING", "RUNNING"),
        ("COMPLETING,FAILED", "COMPLETING"),
        ("", "UNKNOWN"),
        ("SOMETHING_NEW", "UNKNOWN"),
    ],
)
def test_states_as_slurm_writes_them(written: str, name: str) -> None:
    assert state_name(written) == name
