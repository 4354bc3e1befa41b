"""Request bodies, prepared before the timed window: one file of bodies and one of their offsets.

The client processes map the file and send slices of it; nothing is built or encoded while the clock runs. What is
mapped is the kernel's page cache, once for all processes of a node, and no process's own memory. A file of up to
`RESIDENT_BYTES` is read in whole before the clock starts; of a larger one the pages that have been sent are let go.
Layout of `NAME`: the bodies end to end. Layout of `NAME.offsets`: little-endian u64, one more than there are bodies.
"""

from __future__ import annotations

import mmap
from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import write_atomic

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

RESIDENT_BYTES = 4 << 30
"""Budget for request bodies in memory."""


def _offsets_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.offsets")


def write_requests(path: Path, bodies: Iterable[bytes]) -> int:
    """Write all bodies to `path` and their offsets beside it; return how many there are.

    The offsets are written last and at once, so a file without them is one that was not finished.

    Raises:
        ConfigError: There are no bodies.
    """
    _offsets_path(path).unlink(missing_ok=True)
    offsets = array("Q", [0])
    with path.open("wb") as out:
        for body in bodies:
            out.write(body)
            offsets.append(offsets[-1] + len(body))
    if len(offsets) == 1:
        raise ConfigError("no requests to send: the data set is empty", "check the data set's path and filter")
    write_atomic(_offsets_path(path), offsets.tobytes())
    return len(offsets) - 1


class RequestsFile:
    """The bodies of a data set, mapped into memory; `[i]` is the i-th as a view without a copy.

    Raises:
        ConfigError: The file or its offsets are missing, or do not belong together.
    """

    def __init__(self, path: Path) -> None:
        offsets = array("Q")
        try:
            offsets.frombytes(_offsets_path(path).read_bytes())
            with path.open("rb") as source:
                self._map = mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as error:
            raise ConfigError(f"requests file {path} cannot be read: {error}", "prepare the requests again") from error
        self._view = memoryview(self._map)
        self._offsets = offsets
        if not offsets or offsets[-1] != len(self._view):
            raise ConfigError(
                f"requests file {path} holds {len(self._view)} bytes, its offsets say {offsets[-1] if offsets else 0}",
                "prepare the requests again",
            )

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, index: int) -> memoryview:
        if not 0 <= index < len(self):
            raise IndexError(f"request {index} of {len(self)}")
        return self._view[self._offsets[index] : self._offsets[index + 1]]

    @property
    def fits(self) -> bool:
        """Whether all bodies are within the budget."""
        return len(self._view) <= RESIDENT_BYTES

    def prefetch(self) -> None:
        """Have the kernel read everything in, where it is within the budget."""
        if self.fits:
            self._map.madvise(mmap.MADV_WILLNEED)

    def release(self, index: int) -> None:
        """Let the pages of a body go that has been sent, where not all are within the budget."""
        if self.fits:
            return
        start = self._offsets[index] // mmap.PAGESIZE * mmap.PAGESIZE
        self._map.madvise(mmap.MADV_DONTNEED, start, self._offsets[index + 1] - start)

    def close(self) -> None:
        """Give the mapping back."""
        self._view.release()
        self._map.close()


class StoredBodies(Sequence[bytes]):
    """The bodies of a requests file as a sequence of bytes, each read when it is asked for."""

    def __init__(self, path: Path) -> None:
        self._file = RequestsFile(path)

    def __len__(self) -> int:
        return len(self._file)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...
    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [bytes(self._file[number]) for number in range(*index.indices(len(self)))]
        return bytes(self._file[index if index >= 0 else index + len(self)])
