"""Programs that run what nobody has read: in a directory of their own, without network where that can be had."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Sequence

MOST_ANSWER_BYTES = 1 << 20
"""What is read of an answer."""

_PROBE_S = 10.0
_NEW_NETWORK = (("unshare", "--net"), ("unshare", "--user", "--map-root-user", "--net"))


@dataclass(frozen=True)
class Confined:
    """How a confined program ended.

    Attributes:
        status: Exit status, negative for a signal; None where its time was up.
        answer: What it wrote to its standard output, at most `MOST_ANSWER_BYTES`.
    """

    status: int | None
    answer: str


@cache
def network_away() -> tuple[str, ...]:
    """What to put before a program so that it sees no network; empty where this machine does not allow it."""
    for prefix in _NEW_NETWORK:
        try:
            tried = subprocess.run([*prefix, "true"], capture_output=True, timeout=_PROBE_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if tried.returncode == 0:
            return prefix
    return ()


def run_confined(argv: Sequence[str], given: str, *, timeout_s: float) -> Confined:
    """Run a program with an empty directory as its working directory and home, then remove the directory.

    `{}` in an argument stands for that directory. The program's session is killed when it ends or its time is up.

    Args:
        argv: Program and arguments; the environment holds nothing of the caller's but PATH.
        given: What it reads from standard input.
        timeout_s: Wall-clock time that it may take.

    Raises:
        SetupError: It cannot be started.
    """
    if shutil.which(argv[0]) is None:  # what takes the network away would tell of it in a status of its own
        raise SetupError(f"{argv[0]} cannot be started: no such program", "run make setup")
    with tempfile.TemporaryDirectory(prefix="confined-", ignore_cleanup_errors=True) as name:
        directory = Path(name)
        question, answer = directory / ".given", directory / ".answer"
        question.write_text(given, encoding="utf-8")
        env = {"PATH": os.environ.get("PATH", os.defpath), "HOME": name, "OMP_NUM_THREADS": "1", "LANG": "C.UTF-8"}
        with question.open("rb") as source, answer.open("wb") as target:
            try:
                process = subprocess.Popen(
                    [*network_away(), *(part.replace("{}", name) for part in argv)],
                    stdin=source,
                    stdout=target,
                    stderr=subprocess.DEVNULL,
                    cwd=name,
                    env=env,
                    start_new_session=True,
                )
            except OSError as problem:
                raise SetupError(f"{argv[0]} cannot be started: {problem.strerror}", "run make setup") from problem
        status = _wait(process, timeout_s)
        with answer.open("rb") as written:
            return Confined(status, written.read(MOST_ANSWER_BYTES).decode("utf-8", "replace"))


def _wait(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            process.kill()
        process.wait()
