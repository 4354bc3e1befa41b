"""Runs one answer of a LiveCodeBench question against its tests; a program of its own, for code nobody has read.

`python -I code_runner.py DIRECTORY` reads one JSON object from standard input (`code`, `fn_name`, `inputs`, `outputs`,
`timeout_s`, `limits`) and writes one: `{"passed": true}`, or `false` and `why`. It ends at the first test that
fails. What counts as passing is what LiveCodeBench's own evaluation counts (LiveCodeBench/LiveCodeBench 28fef95,
`lcb_runner/evaluation/testing_util.py`), with its ways of feeding standard input: top-level statements become a
function that is called once a test, in one process.

Before the code starts, limits are set (memory, CPU, processes, file size, open files), and an audit hook refuses what a
solution has no use for: starting programs, sockets, libraries, and changing any file outside DIRECTORY. That stops
accidents, not an attacker: it is no jail.
"""

from __future__ import annotations

import ast
import ctypes
import importlib.util
import io
import json
import os
import resource
import signal
import sys
from decimal import Decimal, InvalidOperation
from types import FrameType, ModuleType
from typing import Any
from unittest import mock

_MODULES = (
    "string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics",
    "itertools", "functools", "operator", "io", "sys", "json",
)  # fmt: skip
_PRELUDE = "".join(
    [f"from {name} import *\n" for name in (*_MODULES, "builtins", "typing")]
    + [f"import {name}\n" for name in _MODULES]
    + ["sys.setrecursionlimit(50000)\n"]
)
"""The names that answers may use without an import."""

_MAIN_GUARD = "__name__ == '__main__'"
_WRAPPED = "wrapped_function"
_INTEGER_DIGITS = 50_000
_FILE_BYTES = 1 << 20
_OPEN_FILES = 64
_CLOSED_MODULES = ("ipdb", "joblib", "resource", "psutil", "tkinter")
_REFUSED = (
    "subprocess.", "socket.", "shutil.", "pty.", "os.fork", "os.exec", "os.spawn", "os.posix_spawn", "os.system",
    "os.kill", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.chmod", "os.chown", "os.link", "os.symlink",
    "os.mkdir", "os.chdir", "os.utime", "os.setxattr", "os.removexattr", "os.chflags",
    "signal.pthread_kill", "ctypes.dlsym", "ctypes.string_at",
)  # fmt: skip
"""Beginnings of audit events (Python's table of them) that a solution has no business with."""

_TAKEN_AWAY = {
    "os": "kill system putenv remove removedirs rmdir fchdir setuid fork forkpty killpg rename renames truncate replace"
    " unlink fchmod fchown chmod chown chroot lchflags lchmod lchown getcwd chdir mkfifo mknod",
    "posix": "mkfifo mknod",
    "shutil": "rmtree move chown",
    "subprocess": "Popen",
    "builtins": "quit help",
}
"""What LiveCodeBench sets to None: an answer that calls it fails there; and what no audit event tells of."""

_PR_SET_PDEATHSIG = 1


class TimeoutException(Exception):
    """A test took too long."""


def _on_alarm(_number: int, _frame: FrameType | None) -> None:
    """End the test; what is printed here makes its output wrong where the answer catches every exception."""
    sys.stdout.write("out of time\n")
    raise TimeoutException


class _Bytes:
    """`sys.stdin.buffer`: every line is the first one, as in LiveCodeBench."""

    def __init__(self, text: str) -> None:
        self._bytes = text.encode()

    def read(self, *_size: int) -> bytes:
        return self._bytes

    def readline(self, *_size: int) -> bytes:
        return self._bytes.split(b"\n")[0] + b"\n"


class _Input:
    """`sys.stdin` of a test; it cannot be iterated, as in LiveCodeBench."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._lines = io.StringIO(text)
        self.buffer = _Bytes(text)

    def read(self, *_size: int) -> str:
        return self._text

    def readline(self, *size: int) -> str:
        return self._lines.readline(*size)

    def readlines(self, *_size: int) -> list[str]:
        return self._text.split("\n")

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever a text stream has
        return getattr(self._lines, name)


def as_function(code: str) -> str:
    """The code with its top-level statements, imports apart, in one function; a main guard at its end is opened."""
    body = ast.parse(code).body
    last = body[-1]
    if isinstance(last, ast.If) and ast.unparse(last.test).strip() == _MAIN_GUARD:
        body = [*body[:-1], *last.body]
    imports: list[ast.stmt] = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    others = [node for node in body if not isinstance(node, ast.Import | ast.ImportFrom)]
    nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
    function = ast.FunctionDef(name=_WRAPPED, args=nothing, body=others, decorator_list=[], lineno=1)
    return f"{_PRELUDE}\n{ast.unparse(ast.Module(imports, []))}\n{ast.unparse(function)}"


def _loaded(source: str, timeout_s: int) -> Any:  # noqa: ANN401 - whatever the answer defines
    """The answer's own namespace: an instance of its class `Solution`, else its module."""
    module = ModuleType("tmp_sol", "")
    signal.alarm(timeout_s)
    try:
        exec(source, module.__dict__)  # noqa: S102 - running it is what this program is for
        return module.Solution() if "class Solution" in source else module
    finally:
        signal.alarm(0)


def _output_of(function: Any, text: str, timeout_s: int) -> str:  # noqa: ANN401 - a function of the answer's
    """What `function` prints when `text` is its standard input."""
    first_stdin, first_stdout = sys.stdin, sys.stdout
    lines = iter(text.split("\n"))
    captured = io.StringIO()
    captured.close = lambda _unused: 1  # type: ignore[misc,assignment]

    def read(*_size: int) -> str:
        return text

    def readlines(*_size: int) -> list[str]:
        return text.split("\n")

    def readline(*_size: int) -> str:
        return next(lines)

    with (
        mock.patch.object(first_stdin, "read", read),  # what `from sys import stdin` has bound
        mock.patch.object(first_stdin, "readlines", readlines),
        mock.patch.object(first_stdin, "readline", readline),
        mock.patch("builtins.open", mock.mock_open(read_data=text)),
    ):
        sys.stdin, sys.stdout = _Input(text), captured
        signal.alarm(timeout_s)
        try:
            function()
        except SystemExit:
            pass
        finally:
            signal.alarm(0)
            sys.stdin, sys.stdout = first_stdin, first_stdout
    return captured.getvalue()


def _numbers(line: str) -> list[Decimal] | None:
    try:
        return [Decimal(word) for word in line.split()]
    except InvalidOperation:
        return None


def same_output(printed: str, wanted: str) -> bool:
    """Whether two outputs agree line by line, blanks at the ends apart, as text or as decimal numbers."""
    mine = [line.strip() for line in printed.strip().split("\n")]
    right = [line.strip() for line in wanted.strip().split("\n")]
    if len(mine) != len(right):
        return False
    for line, other in zip(mine, right, strict=True):
        if line != other:
            numbers, others = _numbers(line), _numbers(other)
            if numbers is None or others is None or numbers != others:
                return False
    return True


def _failure_of_program(task: dict[str, Any]) -> str:
    """Why a program that reads standard input fails; empty where it passes."""
    loaded = _loaded(as_function(task["code"]), task["timeout_s"])
    function = getattr(loaded, _WRAPPED)
    for number, (text, wanted) in enumerate(zip(task["inputs"], task["outputs"], strict=False)):
        if not same_output(_output_of(function, text, task["timeout_s"]), wanted):
            return f"test {number}: wrong answer"
    return ""


def _failure_of_function(task: dict[str, Any]) -> str:
    """Why a function that is called with arguments fails; empty where it passes."""
    loaded = _loaded(f"{_PRELUDE}\n\n{task['code']}", task["timeout_s"])
    function = getattr(loaded, task["fn_name"])
    calls = [[json.loads(line) for line in text.split("\n")] for text in task["inputs"]]
    wanted = [json.loads(text) for text in task["outputs"]]
    for number, (arguments, right) in enumerate(zip(calls, wanted, strict=False)):
        signal.alarm(task["timeout_s"])
        try:
            given = function(*arguments)
        finally:
            signal.alarm(0)
        agrees = (list(given) if isinstance(given, tuple) else given) == right
        if not agrees:
            return f"test {number}: wrong answer"
    return ""


def _confine(directory: str, limits: dict[str, int]) -> None:
    """Limits and the audit hook; neither can be taken back."""
    for kind, most in (
        (resource.RLIMIT_AS, limits["memory_bytes"]),
        (resource.RLIMIT_CPU, limits["cpu_s"]),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_FSIZE, _FILE_BYTES),
        (resource.RLIMIT_NOFILE, _OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (bound, bound))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    realpath, join = os.path.realpath, os.path.join
    inside = realpath(directory) + os.sep
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

    def refuse(event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith(_REFUSED) or (event == "ctypes.dlopen" and arguments[0]):
            raise PermissionError(event)
        if event == "open":
            place = arguments[0]
            path = realpath(join(directory, os.fsdecode(place))) if isinstance(place, str | bytes) else ""
            changes = arguments[2] & writing and path != os.devnull and not path.startswith(inside)
            if changes or f"{path}/".startswith("/proc/"):  # there the environment of whoever scores can be read
                raise PermissionError(event)

    for module, names in _TAKEN_AWAY.items():
        for name in names.split():
            setattr(importlib.import_module(module), name, None)
    for name in _CLOSED_MODULES:
        sys.modules[name] = None  # type: ignore[assignment]
    sys.addaudithook(refuse)


def main() -> None:
    """Run the one answer that standard input holds."""
    task = json.load(sys.stdin)
    answer_fd = os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(nowhere, fd)
    sys.stdin = open(os.devnull)  # noqa: SIM115, PTH123 - stays open for the process
    sys.set_int_max_str_digits(_INTEGER_DIGITS)
    signal.signal(signal.SIGALRM, _on_alarm)
    if "numpy" in task["code"] and importlib.util.find_spec("numpy"):
        importlib.import_module("numpy")  # it cannot be imported once things have been taken away
    _confine(sys.argv[1], task["limits"])
    try:
        why = (_failure_of_program if task["fn_name"] is None else _failure_of_function)(task)
    except Exception as error:  # noqa: BLE001 - whatever the answer raises
        why = f"{type(error).__name__}: {str(error)[:200]}"
    os.write(answer_fd, json.dumps({"passed": not why, "why": why}).encode())
    os._exit(0)


if __name__ == "__main__":
    main()
