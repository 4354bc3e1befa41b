"""Files: atomic writes, digests, and the paths of one run directory.

Nothing half-written may look finished: every file that others read is written beside its place,
flushed to disk, then renamed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shlex
import stat
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from blake3 import blake3

if TYPE_CHECKING:
    from collections.abc import Iterable

_BLOCK_BYTES = 4 * 1024 * 1024
_SHOWN = 80
"""Characters of a key that is complained of."""
MOST_RECORD_BYTES = 64_000_000
"""More than the records of the largest runs: whoever wrote a longer file was no run of ours."""
MOST_TOPOLOGY_BYTES = 1_000_000
"""Of a file that a person writes: of more, YAML alone would take minutes."""
MOST_LOG_BYTES = 1_000_000_000
"""More than what the load client of the largest runs writes into one file: ten million queries."""


def open_regular(path: Path) -> BinaryIO:
    """Open a file that may be anybody's for reading: a pipe is not waited for, a device not read without end.

    Raises:
        OSError: It is no regular file, or cannot be opened.
    """
    source = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 - the caller closes it; Path.open has no opener
    mode = os.fstat(source.fileno()).st_mode
    if stat.S_ISREG(mode):
        return source
    source.close()
    code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
    raise OSError(code, "a device or pipe, not a file" if code == errno.EINVAL else os.strerror(code), str(path))


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def read_bounded(path: Path, most_bytes: int = MOST_RECORD_BYTES) -> bytes:
    """The content of a file that may be anybody's.

    Raises:
        ValueError: It is longer than `most_bytes`.
        OSError: It is no regular file, or cannot be read.
    """
    with open_regular(path) as source:
        raw = source.read(most_bytes + 1) if os.fstat(source.fileno()).st_size <= most_bytes else None
    if raw is None or len(raw) > most_bytes:
        raise ValueError(f"is longer than {most_bytes // 1_000_000} MB")
    return raw


def read_text(path: Path, most_bytes: int = MOST_RECORD_BYTES, *, errors: str = "strict") -> str:
    """The same as text, its line ends as `Path.read_text` gives them; `errors` as for `bytes.decode`.

    Raises:
        ValueError: It is longer than `most_bytes`, or no UTF-8.
        OSError: It is no regular file, or cannot be read.
    """
    text = read_bounded(path, most_bytes).decode(errors=errors)
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def write_atomic(path: Path, data: str | bytes, *, durable: bool = True) -> None:
    """Write `data` to `path` so that a reader sees the old file or the whole new one.

    Args:
        path: The file.
        data: All of it.
        durable: Wait until the disk has it; False for what is written anew every second.

    Raises:
        OSError: The disk is full or the place cannot be written; it names `path`, which is then as it was.
    """
    raw = data.encode() if isinstance(data, str) else data
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with beside.open("wb") as out:
            out.write(raw)
            out.flush()
            if durable:
                os.fsync(out.fileno())
        beside.replace(path)
    except BaseException as problem:
        with contextlib.suppress(OSError):
            beside.unlink()
        if not isinstance(problem, OSError):
            raise
        # A full disk names no file, and nobody knows the one beside.
        raise OSError(problem.errno, problem.strerror, str(path)) from problem


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:  # noqa: ANN401 - anything that JSON can carry
    """Write `value` as indented JSON, atomically; `durable` as in `write_atomic`."""
    write_atomic(path, json.dumps(value, indent=2, sort_keys=False) + "\n", durable=durable)


def append_json_line(path: Path, value: Any) -> None:  # noqa: ANN401 - anything that JSON can carry
    """Append one JSON line in a single write, so that concurrent readers never see half of one.

    Raises:
        OSError: The line does not fit on the disk; none of it stays.
    """
    line = (json.dumps(value) + "\n").encode()
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        end = os.lseek(fd, 0, os.SEEK_END)
        if os.write(fd, line) < len(line):
            os.ftruncate(fd, end)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(fd)


class RepeatedKeyError(ValueError):
    """An object of a JSON text holds one key twice.

    Attributes:
        key: The key, quoted.
    """

    def __init__(self, key: str, what: str) -> None:
        super().__init__(what)
        self.key = key


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(key for key, _value in pairs)
        key = json.dumps(next(key for key, count in counts.items() if count > 1))[:_SHOWN]
        raise RepeatedKeyError(key, f"the key {key} stands there twice")
    return found


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number")


_DECODER = json.JSONDecoder(object_pairs_hook=_object)
_DECODER_OF_NUMBERS = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_number)


def strict_json(raw: str | bytes, *, finite: bool = False) -> Any:  # noqa: ANN401 - anything that JSON can carry
    """The value of a JSON text that is evidence: what holds a key twice says two things, and readers take either.

    Args:
        raw: The text.
        finite: Refuse NaN and Infinity: as false as NaN compares with every limit, it would be within it.

    Raises:
        ValueError: It is no JSON, or an object holds a key twice (RepeatedKeyError).
        RecursionError: It is nested too deeply.
    """
    text = raw if isinstance(raw, str) else raw.decode(json.detect_encoding(raw), "surrogatepass")
    return (_DECODER_OF_NUMBERS if finite else _DECODER).decode(text)


def read_json(path: Path, most_bytes: int = MOST_RECORD_BYTES, *, finite: bool = False) -> Any:  # noqa: ANN401 - anything that JSON can carry
    """The value in a JSON file that is evidence and may be anybody's; see `strict_json`.

    Raises:
        ValueError: It is no such JSON, or longer than `most_bytes`.
        OSError: It is no regular file, or cannot be read.
        RecursionError: It is nested too deeply.
    """
    try:
        return strict_json(read_bounded(path, most_bytes), finite=finite)
    except RepeatedKeyError as error:
        raise RepeatedKeyError(error.key, f"{path.name} holds the key {error.key} twice") from None


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a JSON-lines file; a last line cut by a crash is left out, a missing file is empty."""
    if not path.exists():
        return []
    return [strict_json(line) for line in read_text(path, MOST_LOG_BYTES).split("\n")[:-1]]


def digest_file(path: Path) -> str:
    """BLAKE3 of the file's content as 64 hex digits (the hash that staging manifests carry)."""
    hasher = blake3()
    with open_regular(path) as source:
        while block := source.read(_BLOCK_BYTES):
            hasher.update(block)
    return hasher.hexdigest()


def shell_word(path: Path | str) -> str:
    """A path as it stands in a command for people to copy: quoted where a shell needs it, and never an option."""
    return shlex.quote(f"./{path}" if str(path).startswith("-") else str(path))


def fsync_directory(path: Path) -> None:
    """Make renames in `path` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def total_bytes(paths: Iterable[Path]) -> int:
    """Sum of the files' sizes in bytes."""
    return sum(path.stat().st_size for path in paths)


@dataclass(frozen=True)
class RunPaths:
    """Where each piece of one run's evidence lies. One object knows every path."""

    root: Path

    @property
    def topology(self) -> Path:
        """The topology file as submitted, byte for byte."""
        return self.root / "topology.yaml"

    @property
    def endpoint(self) -> Path:
        """Where a run of the verb `measure` was made, in place of a topology file."""
        return self.root / "endpoint.json"

    @property
    def plan(self) -> Path:
        """The plan, with the hostnames that the job bound to its node positions."""
        return self.root / "plan.json"

    @property
    def versions(self) -> Path:
        """Versions of everything that took part."""
        return self.root / "versions.json"

    @property
    def events(self) -> Path:
        """What happened when, one JSON object a line."""
        return self.root / "events.jsonl"

    @property
    def commands(self) -> Path:
        """Every process as started: argument vector and environment, secrets out; one JSON object a line."""
        return self.root / "commands.jsonl"

    @property
    def logs(self) -> Path:
        """One log per process."""
        return self.root / "logs"

    @property
    def metrics(self) -> Path:
        """The engines' own counters before and after the measurement."""
        return self.root / "metrics"

    @property
    def load(self) -> Path:
        """LoadGen's logs, user.conf, and our client's own account of the run."""
        return self.root / "loadgen"

    @property
    def evidence(self) -> Path:
        """Counter differences that prove (or disprove) disaggregation, and the canary."""
        return self.root / "evidence.json"

    @property
    def verdict(self) -> Path:
        """The verdict; written last, so its presence means that the run has ended."""
        return self.root / "verdict.json"

    @property
    def report(self) -> Path:
        """The self-contained HTML page."""
        return self.root / "report.html"

    def log_of(self, process: str) -> Path:
        """The log of the named process."""
        return self.logs / f"{process}.log"
