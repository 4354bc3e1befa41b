"""Programs that run what nobody has read, and work that is spread over processes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import psutil
import pytest

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.process.confined import MOST_ANSWER_BYTES, run_confined
from dynamo_mlperf.process.spread import Spread


def python(code: str, given: str = "", timeout_s: float = 60.0) -> tuple[int | None, str]:
    done = run_confined([sys.executable, "-I", "-c", code, "{}"], given, timeout_s=timeout_s)
    return done.status, done.answer


def test_a_program_has_a_directory_of_its_own_that_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    code = "import os, sys; open('kept', 'w').write('x'); print(os.getcwd() == sys.argv[1], sorted(os.environ), sys.argv[1])"
    status, answer = python(code)
    same, *names, place = answer.split()
    assert (status, same) == (0, "True")
    assert "SECRET" not in "".join(names)
    assert not Path(place).exists()


def test_what_it_is_given_and_how_it_ended_are_told() -> None:
    assert python("import sys; print(sys.stdin.read()[::-1]); sys.exit(3)", "é中") == (3, "中é\n")
    assert python("import os; os.kill(os.getpid(), 9)")[0] == -9


def test_a_program_is_killed_with_all_that_it_started_when_its_time_is_up() -> None:
    code = "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    for timeout_s in (3.0, 60.0):  # a busy machine may need longer to start it
        status, answer = python(code, timeout_s=timeout_s)
        assert status is None
        if answer:
            break
    deadline = time.monotonic() + 60
    while _runs(int(answer)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_an_answer_without_end_is_cut() -> None:
    status, answer = python(f"import sys; sys.stdout.write('x' * {MOST_ANSWER_BYTES + 5})")
    assert (status, len(answer)) == (0, MOST_ANSWER_BYTES)


@pytest.mark.network
def test_there_is_no_network_where_the_machine_can_take_it_away() -> None:
    assert python("print([line.split(':')[0].strip() for line in open('/proc/net/dev')][2:])") == (0, "['lo']\n")


def test_a_program_that_is_not_there_is_told() -> None:
    with pytest.raises(SetupError, match="no-such-program cannot be started"):
        run_confined(["no-such-program"], "", timeout_s=5.0)


def slow_square(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


@pytest.mark.parametrize("workers", [1, 2])
def test_results_come_in_the_order_of_the_tasks(workers: int) -> None:
    spread = Spread(slow_square, workers)
    early = [result for number in range(20) for result in spread.put(number)]
    late = list(spread.rest())
    spread.close()
    assert [square for square, _ in early + late] == [number * number for number in range(20)]
    assert len(late) == min(20, 2 * workers)
    assert ({pid for _, pid in early + late} == {os.getpid()}) is (workers == 1)


def fatal(_number: int) -> int:
    os._exit(1)


def test_a_process_that_dies_is_told() -> None:
    spread = Spread(fatal, 2)
    spread.put(1)
    with pytest.raises(SetupError, match="ended from outside"):
        list(spread.rest())
    spread.close()
