"""The tests of LiveCodeBench questions on disk, and the judging of answers to them.

On disk: `code_tests/ID.json` in the data set's directory, one a question, with `fn_name` (null for programs that read
standard input), `inputs` and `outputs`: what LiveCodeBench calls an evaluation sample.
"""

from __future__ import annotations

import json
import os
import re
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any

import psutil

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import MOST_LOG_BYTES, read_bounded
from dynamo_mlperf.process.confined import run_confined

CODE_TESTS = "code_tests"
"""Directory of the tests, in the data set's own."""

TEST_TIMEOUT_S = 60
"""What one test may take, as the reference scorers of gpt-oss-120b and deepseek-r1 set it."""

_QUESTION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_RUNNER = Path(__file__).with_name("code_runner.py")
_MEMORY_BYTES = 4 << 30
_MORE_PROCESSES = 256
_START_S = 5
_KEYS = {"fn_name", "inputs", "outputs"}


def tests_path(data_set: Path, question: str) -> Path | None:
    """Where the tests of a question lie; None where its id is no file name."""
    return data_set / CODE_TESTS / f"{question}.json" if _QUESTION_ID.fullmatch(question) else None


@dataclass(frozen=True)
class CodeVerdict:
    """Whether an answer passes all tests of its question, and why not."""

    passed: bool
    why: str


class CodeJudge:
    """Runs answers side by side, each in a confined process of its own.

    Args:
        data_set: Directory of the data set.
        workers: Answers that run at the same time.
        timeout_s: What one test may take.
    """

    def __init__(self, data_set: Path, workers: int, timeout_s: int = TEST_TIMEOUT_S) -> None:
        self._data_set = data_set
        self._timeout_s = timeout_s
        self._pool = ThreadPoolExecutor(workers)
        self._room = BoundedSemaphore(2 * workers)
        self._processes = _own_threads() + _MORE_PROCESSES

    def has_tests(self, question: str) -> bool:
        """Whether the tests of a question are on disk."""
        path = tests_path(self._data_set, question)
        return path is not None and path.is_file()

    def submit(self, code: str, question: str) -> Future[CodeVerdict]:
        """Run `code` in a thread's charge; waits while enough are under way."""
        self._room.acquire()
        future = self._pool.submit(self.verdict, code, question)
        future.add_done_callback(lambda _done: self._room.release())
        return future

    def close(self) -> None:
        """Drop what has not begun, and wait for the rest."""
        self._pool.shutdown(cancel_futures=True)

    def verdict(self, code: str, question: str) -> CodeVerdict:
        """Run `code` against the tests of `question`.

        Raises:
            ConfigError: Its tests are not on disk, or no tests.
        """
        tests = read_tests(tests_path(self._data_set, question), question)
        wall_s = (self._timeout_s + 1) * len(tests["inputs"]) + _START_S
        limits = {"memory_bytes": _MEMORY_BYTES, "cpu_s": wall_s, "processes": self._processes}
        task = {"code": code, **tests, "timeout_s": self._timeout_s, "limits": limits}
        done = run_confined([sys.executable, "-I", str(_RUNNER), "{}"], json.dumps(task), timeout_s=wall_s)
        try:
            answer = json.loads(done.answer)
            return CodeVerdict(answer["passed"] is True, str(answer["why"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            ended = "its time was up" if done.status is None else f"it ended with status {done.status}"
            return CodeVerdict(passed=False, why=f"no verdict: {ended}")


def read_tests(path: Path | None, question: str) -> dict[str, Any]:
    """The tests of a question.

    Raises:
        ConfigError: They cannot be read, or are of another form.
    """
    way_out = "make the data set anew with `dynamo-mlperf dataset ... --livecodebench DIR`"
    if path is None:
        raise ConfigError(f"no tests of question {question!r}: its id is no file name", way_out)
    try:
        tests = json.loads(read_bounded(path, MOST_LOG_BYTES))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: {error}", way_out) from error
    if not isinstance(tests, dict) or set(tests) != _KEYS or not isinstance(tests["inputs"], list):
        raise ConfigError(f"{path}: no tests with {', '.join(sorted(_KEYS))}", way_out)
    return tests


def _own_threads() -> int:
    """Threads of this user: what a limit of processes is counted against."""
    me = os.getuid()
    return sum(
        info["num_threads"] or 1
        for process in psutil.process_iter(["uids", "num_threads"])
        if (info := process.info)["uids"] is not None and info["uids"].real == me
    )
