from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dynamo_mlperf.errors import ExitCode, SetupError, Stopped
from dynamo_mlperf.process.command import inherited_environment
from dynamo_mlperf.process.dialogue import Dialogue

ECHO = "import sys, json\nfor line in sys.stdin: print(json.dumps({'twice': json.loads(line)['n'] * 2}), flush=True)"
LARGE = "import sys, json\nfor line in sys.stdin: print(json.dumps({'many': [1.5] * 400000}), flush=True)"


def talk(code: str) -> Dialogue:
    return Dialogue("the program", (sys.executable, "-c", code), inherited_environment())


def test_questions_are_answered_one_after_another() -> None:
    with talk(ECHO) as program:
        assert [program.ask({"n": n}, 30)["twice"] for n in (1, 5)] == [2, 10]


def test_an_answer_larger_than_a_pipe_comes_whole() -> None:
    with talk(LARGE) as program:
        assert len(program.ask({}, 60)["many"]) == 400_000
        assert len(program.ask({}, 60)["many"]) == 400_000


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("import sys; sys.exit('out of luck')", "ended with status 1; its last words: out of luck"),
        ("import sys\nfor line in sys.stdin: print('no json', flush=True)", "answered b'no json'"),
        ("import sys\nfor line in sys.stdin: print('[1]', flush=True)", "answered b'\\[1\\]'"),
        ("import time; time.sleep(60)", "did not answer in 0.5 s"),
    ],
)
def test_a_program_that_does_not_answer_is_told_with_its_last_words(code: str, told: str) -> None:
    with talk(code) as program, pytest.raises(SetupError, match=told):
        program.ask({"n": 1}, 0.5 if "sleep" in code else 30)


def test_a_program_that_was_killed_is_told_as_such() -> None:
    code = "import os, signal, sys\nfor line in sys.stdin: os.kill(os.getpid(), signal.SIGKILL)"
    with talk(code) as program, pytest.raises(SetupError, match="the program was killed by SIGKILL") as failed:
        program.ask({"n": 1}, 30)
    assert failed.value.action.startswith("find who sent the SIGKILL: the kernel, where memory ran out")


def test_a_stop_is_heard_while_a_program_owes_its_answer() -> None:
    code = "import os, sys, time\nprint(os.getpid(), flush=True)\nfor line in sys.stdin: time.sleep(600)"
    code = code.replace("print(os.getpid(), flush=True)", "print('{\"pid\": %d}' % os.getpid(), flush=True)")

    def stop() -> None:
        raise Stopped(ExitCode.INTERRUPTED, "stopped by SIGINT")

    with talk(code) as program:
        pid = program.ask({}, 30)["pid"]
        with pytest.raises(Stopped):
            program.ask({}, 500, stop)
        with pytest.raises(SetupError, match="was killed by SIGKILL"):  # its late answer is nobody's
            program.ask({}, 500)
    assert not Path(f"/proc/{pid}").exists()


def test_a_program_that_is_not_there_is_told() -> None:
    with pytest.raises(SetupError, match="cannot be started: /no/such: No such file"):
        Dialogue("the program", ("/no/such",), {})
