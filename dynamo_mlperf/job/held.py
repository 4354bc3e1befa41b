"""Held engines and those who measure through them: what they say to each other, as files in the holder's run directory.

`held/` there is open to its owner alone. Who wants a measurement puts a directory of its own into it, whole at once:
`request.json` and the topology file. The holder answers in it: `progress.jsonl` as the measurement goes on, and last
`answer.json`. A file `stop` there asks for an early end. Files are all that a login node and a node of a job share.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from dynamo_mlperf.errors import ConfigError, DynamoMlperfError, ExitCode, ServingError, SetupError
from dynamo_mlperf.files import append_json_line, read_bounded, read_text, write_atomic, write_json
from dynamo_mlperf.topology.document import Document
from dynamo_mlperf.topology.measuring import PathText
from dynamo_mlperf.topology.strict import StrictModel, check

HELD_DIR = "held"
"""In the run directory of a run that holds its engines."""
REQUEST, TOPOLOGY, PROGRESS, ANSWER, STOP = "request.json", "topology.yaml", "progress.jsonl", "answer.json", "stop"
_ID = re.compile(r"[a-z0-9][a-z0-9.-]{0,120}")
_ASK = "ask by `dynamo-mlperf run FILE --attach RUN`"
_STOPS = {"SIGINT": signal.SIGINT, "SIGTERM": signal.SIGTERM}


def _run_id(text: str) -> str:
    if not _ID.fullmatch(text):
        raise ValueError(f"wanted lower-case letters, digits, dots and dashes, got {text[:40]!r}")
    return text


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError(f"wanted an absolute path, got {path[:40]!r}")
    return path


class HeldRequest(StrictModel):
    """One measurement that is asked for."""

    run_id: Annotated[str, AfterValidator(_run_id)] = Field(description="Name of the new run")
    file: Annotated[PathText, AfterValidator(_absolute)] = Field(description="The topology file, for the record")
    base_dir: Annotated[PathText, AfterValidator(_absolute)] = Field(description="What its paths resolve against")
    run_dir: Annotated[PathText, AfterValidator(_absolute)] = Field(description="The new run directory")
    site: str | None = Field(default=None, min_length=1, description="The site that was named; None = the holder's")
    nodes: int | None = Field(default=None, description="Another node count than the file's")
    resume: Annotated[PathText, AfterValidator(_absolute)] | None = Field(
        default=None, description="The run whose search goes on"
    )
    blocks: dict[str, dict[str, Any]] = Field(default_factory=dict, description="What is laid over the file")


@dataclass(frozen=True)
class Answer:
    """The last word on a request.

    Attributes:
        exit_code: Of the measurement, or of its refusal.
        what: Why none began, or has a verdict; None where one has.
        action: What to do about that.
    """

    exit_code: ExitCode
    what: str | None = None
    action: str = ""

    def refusal(self) -> DynamoMlperfError | None:
        """The error that the holder met; None where there was none."""
        if self.what is None:
            return None
        kinds = {ExitCode.USAGE: ConfigError, ExitCode.SETUP: SetupError}
        return kinds.get(self.exit_code, DynamoMlperfError)(self.what, self.action)


@dataclass(frozen=True)
class Spooled:
    """A request in the holder's directory.

    Attributes:
        root: Its own directory.
    """

    root: Path

    @property
    def topology(self) -> Path:
        """The topology file as it was when the measurement was asked for."""
        return self.root / TOPOLOGY

    def read(self) -> HeldRequest:
        """What is asked for.

        Raises:
            ConfigError: It is no request.
        """
        path = self.root / REQUEST
        text = _text(path)
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as problem:
            raise ConfigError(f"{path} is no JSON: {problem}", _ASK) from None
        if not isinstance(value, dict):
            raise ConfigError(f"{path} holds no object", _ASK)
        found = check(HeldRequest, Document(path, text, value, {}))
        if found.run_id != self.root.name:
            raise ConfigError(f"{path} asks for a run {found.run_id}, and lies in {self.root.name}", _ASK)
        return found

    def tell(self, **said: object) -> None:
        """A line of progress."""
        append_json_line(self.root / PROGRESS, said)

    def told(self, known: int) -> list[dict[str, str]]:
        """The lines of progress after the first `known`; the last may be in the making, and one that is none is {}."""
        raw = _text(self.root / PROGRESS)
        return [_said(line) for line in raw.split("\n")[:-1][known:]]

    def answer(self, exit_code: int, problem: DynamoMlperfError | None = None) -> None:
        """The last word; a `problem` means that nothing began, or that nothing of it is on record."""
        refused = {} if problem is None else {"what": problem.what, "action": problem.action}
        write_json(self.root / ANSWER, {"exit_code": int(exit_code), **refused})

    def answered(self) -> Answer | None:
        """The last word; None before it is spoken.

        Raises:
            ServingError: What stands in its place is none.
        """
        if ANSWER not in _names(self.root):
            return None
        path = self.root / ANSWER
        try:
            value = json.loads(read_bounded(path))
            code = ExitCode(value["exit_code"])
            return Answer(code, str(value["what"]) if "what" in value else None, str(value.get("action", "")))
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as problem:
            raise ServingError(
                f"{path} is no answer: {problem!r:.80}", f"`dynamo-mlperf status {self.root.name}` says how it ended"
            ) from None

    def stop(self, number: signal.Signals) -> None:
        """Ask for an early end of the measurement; the engines stay."""
        write_atomic(self.root / STOP, number.name)

    def asked_to_stop(self) -> signal.Signals | None:
        """The signal that it is to end by; None while nobody asks."""
        return _STOPS.get(_text(self.root / STOP).strip()) if STOP in _names(self.root) else None


def called(run_dir: Path) -> str:
    """What a person calls the run by, as `--attach` and `cancel` take it."""
    return run_dir.name if run_dir.parent.name == "runs" else str(run_dir)


def open_spool(run_dir: Path) -> Path:
    """Make the directory for requests, open to this user alone.

    Raises:
        OSError: It is there already, or cannot be made.
    """
    spool = run_dir / HELD_DIR
    spool.mkdir(mode=0o700)
    return spool


def request_of(run_dir: Path, run_id: str) -> Spooled:
    """The request by which the run called `run_id` measures through the engines of the run in `run_dir`."""
    return Spooled(run_dir / HELD_DIR / run_id)


def spooled(spool: Path) -> list[Spooled]:
    """The requests that nobody has answered, in the order of their names; each is whole."""
    open_ones = (Spooled(spool / name) for name in sorted(_names(spool)) if _ID.fullmatch(name))
    return [one for one in open_ones if ANSWER not in _names(one.root)]


def is_gone(spool: Path) -> bool:
    """Whether the directory for requests has vanished, with the run directory or alone; other errors do not say so."""
    try:
        spool.stat()
    except OSError as problem:
        return isinstance(problem, FileNotFoundError | NotADirectoryError)
    return False


def post(run_dir: Path, request: HeldRequest, file: Path) -> Spooled:
    """Ask the run in `run_dir` for a measurement.

    Raises:
        SetupError: Its directory for requests cannot be written: another user's, or a full disk.
    """
    spool = run_dir / HELD_DIR
    beside, place = spool / f".{request.run_id}.{os.getpid()}", spool / request.run_id
    try:
        beside.mkdir(mode=0o700)
        shutil.copyfile(file, beside / TOPOLOGY)
        write_json(beside / REQUEST, request.model_dump(mode="json"))
        beside.rename(place)
    except OSError as problem:
        shutil.rmtree(beside, ignore_errors=True)
        raise SetupError(
            f"{spool} cannot be written: {problem.strerror}", "measure through a run of your own, on a disk with room"
        ) from problem
    return Spooled(place)


def _names(directory: Path) -> list[str]:
    """Names in a directory, looked up anew: an NFS client looks anew at what it opens (nfs(5))."""
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries]
    except OSError:
        return []


def _said(line: str) -> dict[str, str]:
    """A line of progress; empty for what is none."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return {str(kind): str(text) for kind, text in value.items()} if isinstance(value, dict) else {}


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, ValueError):
        return ""
