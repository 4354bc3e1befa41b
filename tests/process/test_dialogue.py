from __future__ import annotations

import sys

import pytest

from dynamo_mlperf.errors import SetupError
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
        ("import sys; sys.exit('out of luck')", "ended; its last words: out of luck"),
        ("import sys\nfor line in sys.stdin: print('no json', flush=True)", "answered b'no json'"),
        ("import sys\nfor line in sys.stdin: print('[1]', flush=True)", "answered b'\\[1\\]'"),
        ("import time; time.sleep(60)", "did not answer in 0.5 s"),
    ],
)
def test_a_program_that_does_not_answer_is_told_with_its_last_words(code: str, told: str) -> None:
    with talk(code) as program, pytest.raises(SetupError, match=told):
        program.ask({"n": 1}, 0.5 if "sleep" in code else 30)


def test_a_program_that_is_not_there_is_told() -> None:
    with pytest.raises(SetupError, match="cannot be started: /no/such: No such file"):
        Dialogue("the program", ("/no/such",), {})
