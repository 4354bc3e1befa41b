"""`mlperf_log_accuracy.json`: what LoadGen wrote down of every answer, read as a stream and hashed on the way.

LoadGen writes one JSON array of flat objects: `seq_id`, `qsl_idx` (the sample's index), `data` (the bytes that were
given to `QuerySamplesComplete`, as hex digits) and, with token latencies, `token_count` and, but in Offline,
`token_data` (the first token's bytes); seen with LoadGen 6.0.17. A log can be 1 GB, so no more than one block and one
entry are held.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.files import open_regular, strict_json

ACCURACY_LOG = "mlperf_log_accuracy.json"

Progress = Callable[[int, int], None]
"""Told bytes (or answers) done and in all."""

_BLOCK_BYTES = 1 << 20
_LONGEST_ENTRY_BYTES = 64 << 20
"""No answer is longer: 32,768 tokens of 8 bytes are 512 KiB of hex digits."""

_ENTRY = re.compile(rb"\{[^{}]*\}")
_BETWEEN = re.compile(rb"[\s,\[\]]*")
_SHOWN_BYTES = 60
_WAY_OUT = "score the whole log as LoadGen wrote it, not a truncated copy"


@dataclass(frozen=True)
class Answer:
    """One entry.

    Attributes:
        index: The sample's index in the data set.
        data: What the client handed to LoadGen: token ids or UTF-8 text.
        token_count: Output tokens as the client reported them; None where LoadGen did not log it.
    """

    index: int
    data: bytes
    token_count: int | None


class AnswerLog:
    """The answers of one accuracy log, in the order of the log; iterate once.

    Attributes:
        path: The log.
        entries: Entries read so far.
        sha256: SHA-256 of the whole file as hex digits; empty until the last entry has been read.
    """

    def __init__(self, path: Path, progress: Progress = lambda _done, _total: None) -> None:
        self.path = path
        self.entries = 0
        self.sha256 = ""
        self._progress = progress

    def __iter__(self) -> Iterator[Answer]:
        """Read the entries.

        Raises:
            MeasureError: The log is missing, empty, truncated, or holds what is no entry; names the place.
        """
        for raw in self._raw_entries():
            self.entries += 1
            yield self._answer(raw)
        if not self.entries:
            raise MeasureError(
                f"{self.path}: 0 answers, as a performance test leaves it",
                "run an accuracy test (measure: {accuracy: true}, or `measure --mode accuracy`); if this was one, see "
                "its mlperf_log_detail.txt",
            )

    def _raw_entries(self) -> Iterator[bytes]:
        digest = hashlib.sha256()
        done_bytes, rest = 0, b""
        try:
            total_bytes = self.path.stat().st_size
            with open_regular(self.path) as source:
                while block := source.read(_BLOCK_BYTES):
                    digest.update(block)
                    start_bytes = done_bytes - len(rest)
                    done_bytes += len(block)
                    entries, rest = self._split(rest + block, start_bytes)
                    yield from entries
                    self._progress(done_bytes, total_bytes)
        except OSError as error:
            raise MeasureError(f"{self.path}: {error.strerror}", "name an accuracy log that can be read") from error
        if not _BETWEEN.fullmatch(rest):
            raise self._not_an_entry(rest, done_bytes - len(rest))
        self.sha256 = digest.hexdigest()

    def _split(self, text: bytes, start_bytes: int) -> tuple[list[bytes], bytes]:
        """The whole entries of `text` and what follows the last one; `start_bytes` is where it begins in the file."""
        entries, at = [], 0
        for found in _ENTRY.finditer(text):
            if not _BETWEEN.fullmatch(text, at, found.start()):
                raise self._not_an_entry(text[at:], start_bytes + at)
            entries.append(found.group())
            at = found.end()
        rest = text[at:]
        blanks = _BETWEEN.match(rest)
        begun = rest[blanks.end() :] if blanks else rest
        if begun and (begun[:1] != b"{" or len(begun) > _LONGEST_ENTRY_BYTES):
            raise self._not_an_entry(begun, start_bytes + at)
        return entries, rest

    def _not_an_entry(self, text: bytes, at_bytes: int) -> MeasureError:
        shown = text.strip()[:_SHOWN_BYTES].decode("ascii", "backslashreplace")
        return MeasureError(
            f"{self.path}: no entry at byte {at_bytes}, after {self.entries} answers: {shown!r}",
            _WAY_OUT,
        )

    def _answer(self, raw: bytes) -> Answer:
        try:
            entry = strict_json(raw)
            index, count = entry["qsl_idx"], entry.get("token_count")
            data = bytes.fromhex(entry["data"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise MeasureError(
                f"{self.path}: entry {self.entries} is none that LoadGen writes: {type(error).__name__} {error}",
                _WAY_OUT,
            ) from error
        if type(index) is not int or index < 0 or not (count is None or (type(count) is int and count >= 0)):
            raise MeasureError(
                f"{self.path}: entry {self.entries} has qsl_idx {index!r} and token_count {count!r}",
                _WAY_OUT,
            )
        return Answer(index, data, count)


class Coverage:
    """Sees that every sample is answered exactly once.

    Args:
        path: The log, for messages.
        samples: Samples of the data set.
    """

    def __init__(self, path: Path, samples: int) -> None:
        self._path = path
        self._seen = bytearray(samples)
        self._count = 0

    def note(self, index: int) -> None:
        """An answer to sample `index`.

        Raises:
            MeasureError: The data set has no such sample, or it was answered already.
        """
        if index >= len(self._seen):
            raise MeasureError(
                f"{self._path}: an answer to sample {index}, and the data set has {len(self._seen)}",
                "name the data set that the accuracy test was run with",
            )
        if self._seen[index]:
            raise MeasureError(
                f"{self._path}: sample {index} is answered twice (answers {self._count + 1} and before)",
                "run the accuracy test again: LoadGen asks for each sample once",
            )
        self._seen[index] = 1
        self._count += 1

    def check(self) -> None:
        """All answers are there.

        Raises:
            MeasureError: Samples without an answer; says how many and which is the first.
        """
        missing = len(self._seen) - self._count
        if missing:
            raise MeasureError(
                f"{self._path}: {self._count} answers to {len(self._seen)} samples; {missing} have none, "
                f"the first is sample {self._seen.index(0)}",
                "run the accuracy test over the whole data set, or name the data set that it was run with",
            )
