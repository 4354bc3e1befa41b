"""Answers in code: run as LiveCodeBench runs them, and kept from doing harm."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dynamo_mlperf.benchmark.accuracy.code_runner import as_function, same_output
from dynamo_mlperf.benchmark.accuracy.code_tests import CodeJudge
from dynamo_mlperf.errors import ConfigError
from tests.benchmark.accuracy_logs import write_code_tests

SUM = "print(sum(map(int, {}.split())))"


def judging(root: Path, timeout_s: int) -> Iterator[CodeJudge]:
    write_code_tests(root, "sum", inputs=["3 4\n", "10 20\n"], outputs=["7\n", "30"])
    write_code_tests(root, "same", fn_name="same", inputs=["[1, 2]"], outputs=["[1, 2]"])
    made = CodeJudge(root, 2, timeout_s=timeout_s)
    yield made
    made.close()


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[CodeJudge]:
    """More time for an answer than a busy machine needs."""
    yield from judging(tmp_path, 60)


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[CodeJudge]:
    """For answers that never end."""
    yield from judging(tmp_path, 1)


@pytest.mark.parametrize(
    "code",
    [
        SUM.format("input()"),
        "import sys\nfor line in sys.stdin.readlines()[:1]:\n    " + SUM.format("line"),
        "from sys import stdin\n" + SUM.format("stdin.readline()"),
        "def main():\n    " + SUM.format("input()") + "\nif __name__ == '__main__':\n    main()",
        "print(str(sum(map(int, input().split()))) + '.0')\nexit()",
    ],
)
def test_programs_read_standard_input(judge: CodeJudge, code: str) -> None:
    assert judge.verdict(code, "sum").passed


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("print(7)", "test 1: wrong answer"),
        ("print(1 / 0)", "ZeroDivisionError"),
        ("def f(:", "SyntaxError"),
        ("import os\nos._exit(0)", "no verdict: it ended with status 0"),
        ("import os\nfor fd in range(3, 9):\n    os.write(fd, b'[' * 200_000)", "no verdict"),
        ("n = 0\ndef f():\n    global n\n    n += 1\nf()", "NameError"),
    ],
)
def test_answers_that_do_not_pass_say_why(judge: CodeJudge, code: str, why: str) -> None:
    verdict = judge.verdict(code, "sum")
    assert not verdict.passed
    assert verdict.why.startswith(why)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("while True:\n    pass", "TimeoutException"),
        (
            "try:\n    while True:\n        pass\nexcept Exception:\n    " + SUM.format("input()"),
            "test 0: wrong answer",
        ),
    ],
)
def test_answers_without_an_end_are_ended(hasty: CodeJudge, code: str, why: str) -> None:
    verdict = hasty.verdict(code, "sum")
    assert not verdict.passed
    assert verdict.why.startswith(why)


def test_functions_are_called_and_tuples_count_as_lists(judge: CodeJudge) -> None:
    assert judge.verdict("class Solution:\n    def same(self, a: List[int]):\n        return tuple(a)", "same").passed
    assert judge.verdict("def same(a):\n    return a[::-1]", "same").why == "test 0: wrong answer"


@pytest.mark.parametrize(
    "harm",
    [
        "import pathlib; pathlib.Path({victim!r}).write_text('x')",
        "open({victim!r}, 'a').write('x')",
        "import posix; posix.remove({victim!r})",
        "import posix; posix.fork()",
        "import posix; posix.mkfifo({victim!r} + '2')",
        "import posix; posix.mknod({victim!r} + '3')",
        "import os; os.utime({victim!r}, (0, 0))",
        "import os, io; io.open('/proc/%d/environ' % os.getppid()).read()",
        "import os; os.open('self/environ', os.O_RDONLY, dir_fd=os.open('/proc', os.O_RDONLY))",
        "import posix; posix.posix_spawn('/bin/true', ['true'], {{}})",
        "import subprocess; subprocess.run(['true'])",
        "import socket; socket.socket()",
        "import ctypes; ctypes.CDLL(None).system(b'true')",
        "bytearray(8 << 30)",
        "open('big', 'w').write('x' * (4 << 20))",
    ],
)
def test_code_cannot_do_harm(judge: CodeJudge, tmp_path: Path, harm: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("whole")
    code = f"def same(a):\n    {harm.format(victim=str(victim))}\n    return a"
    verdict = judge.verdict(code, "same")
    assert not verdict.passed
    assert verdict.why.startswith(("PermissionError", "TypeError", "MemoryError", "OSError"))
    assert victim.read_text() == "whole"
    assert {path.name for path in tmp_path.glob("victim*")} == {"victim"}
    kind = "def same(a):\n    open('own', 'w').write('x')\n    return a"
    assert judge.verdict(kind, "same").passed


def test_code_sees_nothing_of_the_callers_environment(judge: CodeJudge, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "x")
    assert judge.verdict(
        "import os\ndef same(a):\n    return a if 'SECRET_TOKEN' not in os.environ else 0", "same"
    ).passed


@pytest.mark.parametrize(
    ("printed", "wanted", "same"),
    [
        ("7.0", "7", True),
        ("1.50  2", "1.5 2.0", True),
        (" a \n", "a", True),
        ("0.30000000000000004", "0.3", False),
        ("YES", "Yes", False),
        ("7\n8", "7", False),
        ("a  b", "a b", False),
    ],
)
def test_outputs_agree_as_text_or_as_decimal_numbers(printed: str, wanted: str, *, same: bool) -> None:
    assert same_output(printed, wanted) is same


def test_a_main_guard_is_opened_and_imports_stay_outside() -> None:
    source = as_function("import os\nx = 1\nif __name__ == '__main__':\n    print(x)")
    assert source.endswith("import os\ndef wrapped_function():\n    x = 1\n    print(x)")


def test_tests_that_cannot_be_read_are_told(judge: CodeJudge, tmp_path: Path) -> None:
    (tmp_path / "code_tests" / "bad.json").write_text(json.dumps({"inputs": 3}))
    for question in ("bad", "none", "../sum"):
        with pytest.raises(ConfigError, match="livecodebench DIR"):
            judge.verdict("print(1)", question)
    assert not judge.has_tests("../code_tests/sum")
