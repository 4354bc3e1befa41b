"""The state of one node's part in a swarm: which chunks it has, from where it wants the others, who has dropped out.

Chunk number n belongs to node n modulo nodes: that node reads it from the store, the others take it from there. A node
that drops out leaves its share to the next in the round, for every node the same next; so the store is asked once more
for that share, not once by each node. All methods may be called from any thread.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from threading import Condition
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_TURN_S = 0.1


@dataclass(frozen=True)
class Chunk:
    """A piece of a file: which file (its place in the manifest), from which byte on, how many bytes."""

    file: int
    at_bytes: int
    length: int


@dataclass
class Source:
    """One place to take chunks from: another node, or for a node's own rank the store.

    Attributes:
        queue: Chunks to take, in order.
        flying: Chunks that are being taken.
        began_s: When it last began to have something to give, by the monotonic clock: when the node was connected, or
            when it got something to do while it had nothing; None before.
        bytes_given: What has come since then.
        heard_s: When it last gave something, or began.
        ended_s: When it last gave something.
        out: Why it is asked no more; empty while it is.
        slow: Whether a part of its share has been taken elsewhere; it gets nothing new.
    """

    queue: deque[int] = field(default_factory=deque)
    flying: set[int] = field(default_factory=set)
    began_s: float | None = None
    bytes_given: int = 0
    heard_s: float = 0.0
    ended_s: float = 0.0
    out: str = ""
    slow: bool = False

    @property
    def busy(self) -> bool:
        """Whether something is still to come from here."""
        return bool(self.queue or self.flying)


def cut(sizes: Sequence[int], chunk_bytes: int) -> tuple[Chunk, ...]:
    """All chunks of files with these sizes in bytes; an empty file has none."""
    return tuple(
        Chunk(file, at_bytes, min(chunk_bytes, size_bytes - at_bytes))
        for file, size_bytes in enumerate(sizes)
        for at_bytes in range(0, size_bytes, chunk_bytes)
    )


class Board:
    """One node's view."""

    def __init__(self, sizes: Sequence[int], chunk_bytes: int, ranks: int, me: int) -> None:
        self.chunks = cut(sizes, chunk_bytes)
        self.me = me
        self.sources = [Source() for _ in range(ranks)]
        self.turn = Condition()
        self.failure: BaseException | None = None
        self.closed = False
        self._have = bytearray(len(self.chunks))
        self._writing: set[int] = set()
        self._wanted: set[int] = set()
        self._digests: dict[int, bytes] = {}
        self._origins: dict[int, int] = {}
        self._right: set[int] = set()
        self._missing = len(self.chunks)
        self._of_file: list[list[int]] = [[] for _ in sizes]
        for number, chunk in enumerate(self.chunks):
            self._of_file[chunk.file].append(number)

    @property
    def complete(self) -> bool:
        """Whether every chunk is here."""
        return self._missing == 0

    def chunks_of(self, file: int) -> list[int]:
        """The chunks of one file."""
        return self._of_file[file]

    def is_wanted(self, file: int) -> bool:
        """Whether chunks of the file have been asked for."""
        with self.turn:
            return any(number in self._wanted for number in self._of_file[file])

    def want(self, file: int) -> None:
        """Ask for the chunks of a file."""
        with self.turn:
            for number in self._of_file[file]:
                if not self._have[number] and number not in self._wanted:
                    self._wanted.add(number)
                    self._queue(number, self._next_after(number, set()))
            self.turn.notify_all()

    def set_right(self, file: int) -> None:
        """All of a file is here, and what the manifest says."""
        with self.turn:
            self._right.add(file)
            for number in self._of_file[file]:
                self._set(number)
            self.turn.notify_all()

    def connected(self, rank: int) -> None:
        """A node can give from now on."""
        with self.turn:
            self.sources[rank].began_s = self.sources[rank].heard_s = time.monotonic()

    def take(self, rank: int) -> int | None:
        """The next chunk to take from `rank`, once there is one; None when there will be none any more."""
        source = self.sources[rank]
        with self.turn:
            while True:
                if self.closed or source.out or self.complete:
                    return None
                while source.queue:
                    number = source.queue.popleft()
                    if not self._have[number]:
                        source.flying.add(number)
                        return number
                self.turn.wait(_TURN_S)

    def may_write(self, number: int) -> bool:
        """Whether the caller shall write the chunk: it is not here, and nobody else writes it just now."""
        with self.turn:
            if self._have[number] or number in self._writing or self.closed:
                return False
            self._writing.add(number)
            return True

    def arrived(self, rank: int, number: int, digest: bytes) -> None:
        """The chunk has been written."""
        with self.turn:
            source = self.sources[rank]
            source.bytes_given += self.chunks[number].length
            source.ended_s = source.heard_s = time.monotonic()
            self._digests[number] = digest
            self._origins[number] = rank
            self._writing.discard(number)
            self._set(number)
            self.turn.notify_all()

    def landed(self, rank: int, number: int) -> None:
        """The chunk is not on its way from `rank` any more, whether it has arrived or not."""
        with self.turn:
            self.sources[rank].flying.discard(number)

    def _set(self, number: int) -> None:
        if not self._have[number]:
            self._have[number] = 1
            self._missing -= 1

    def note(self, number: int, digest: bytes, origin: int) -> tuple[bytes | None, int]:
        """Put down what a chunk really is; returns what was taken for it before, and from whom."""
        with self.turn:
            before = self._digests.get(number), self._origins.get(number, self.me)
            self._digests[number], self._origins[number] = digest, origin
            return before

    def known_of(self, number: int) -> tuple[bytes | None, bool]:
        """The chunk's digest, where it came in through the swarm; and whether it may be given as it is.

        It may if we have read it from the store ourselves or its file is right. What another node gave is passed on
        under that node's word only, and we would be blamed for it.
        """
        with self.turn:
            own = self._origins.get(number) == self.me
            return self._digests.get(number), own or self.chunks[number].file in self._right

    def wait_for_file(self, file: int, stopped: Callable[[], bool]) -> bool:
        """Wait until all of a file is here; False if told to stop.

        Raises:
            BaseException: What has befallen a thread that reads or writes.
        """
        numbers = self._of_file[file]
        with self.turn:
            while not all(self._have[number] for number in numbers):
                if self.failure is not None:
                    raise self.failure
                if self.closed or stopped():
                    return False
                self.turn.wait(_TURN_S)
        return True

    def wait_for_chunk(self, number: int) -> bool:
        """Wait until a chunk that another node asks for is here; False if it never will be.

        That node asks because the chunk is ours to read, or because the one whose it was has dropped out: then it is
        ours from now on.
        """
        with self.turn:
            while not self._have[number]:
                if self.closed:
                    return False
                if number in self._wanted:
                    self._adopt(number)
                self.turn.wait(_TURN_S)
        return True

    def _adopt(self, number: int) -> None:
        """Read a chunk from the store that was to come from another node."""
        own = self.sources[self.me]
        if number in own.flying or number in own.queue:
            return
        for source in self.sources:
            if number in source.queue:
                source.queue.remove(number)
        self._queue(number, self.me, first=True)
        self.turn.notify_all()

    def drop(self, rank: int, why: str) -> bool:
        """Ask a node for nothing more; its share goes to the next in the round. False if it was out already."""
        with self.turn:
            source = self.sources[rank]
            if source.out or self.complete or self.closed:
                return False
            source.out = why
            self._move(rank, sorted({*source.queue, *source.flying}))
            source.flying.clear()
            return True

    def shed(self, rank: int) -> int:
        """Take the later half of a slow node's share elsewhere; returns how many chunks."""
        with self.turn:
            source = self.sources[rank]
            source.slow = True
            tail = list(source.queue)[len(source.queue) // 2 :]
            self._move(rank, tail)
            return len(tail)

    def turn_to_store(self) -> None:
        """Take everything that is still to come from the store."""
        with self.turn:
            for rank, source in enumerate(self.sources):
                if rank != self.me:
                    moved = list(source.queue)
                    source.queue.clear()
                    for number in moved:
                        self._queue(number, self.me)
            self.turn.notify_all()

    def _move(self, rank: int, numbers: Iterable[int]) -> None:
        moving = [number for number in numbers if not self._have[number]]
        left = [number for number in self.sources[rank].queue if number not in set(moving)]
        self.sources[rank].queue = deque(left)
        for number in moving:
            self._queue(number, self._next_after(number, {rank}))
        self.turn.notify_all()

    def _next_after(self, number: int, without: set[int]) -> int:
        """Whose turn a chunk is, beginning with its own node; our own rank where nobody else is left."""
        ranks = len(self.sources)
        for step in range(ranks):
            rank = (number + step) % ranks
            source = self.sources[rank]
            if rank == self.me or not (source.out or source.slow or rank in without):
                return rank
        return self.me

    def _queue(self, number: int, rank: int, *, first: bool = False) -> None:
        source, now_s = self.sources[rank], time.monotonic()
        if not source.busy:
            source.heard_s = now_s
            if rank == self.me or source.began_s is not None:
                source.began_s, source.bytes_given = now_s, 0
        if first:
            source.queue.appendleft(number)
        else:
            source.queue.append(number)

    def left_bytes(self, rank: int) -> int:
        """What is still to come from a source, in bytes."""
        source = self.sources[rank]
        return sum(self.chunks[number].length for number in (*source.queue, *source.flying))

    def fail(self, problem: BaseException) -> None:
        """A thread cannot go on; who waits for a file is told."""
        with self.turn:
            self.failure = self.failure or problem
            self.turn.notify_all()

    def close(self) -> None:
        """Nobody waits any more."""
        with self.turn:
            self.closed = True
            self.turn.notify_all()
