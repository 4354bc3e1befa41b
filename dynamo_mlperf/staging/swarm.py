"""A job's nodes read disjoint parts of the shared store and pass them on to each other: the store is read once.

Each node runs one stager with the same manifest and the same list of peers. It reads its own chunks from the store,
takes the others from the nodes that read them, and gives to whoever asks; each chunk is verified on arrival against
the digest of the node that read it, each file against the manifest from what was written. A node that dies, damages
or delivers nothing is dropped, a slow one is relieved: see `board`.
"""

from __future__ import annotations

import os
import socket
import time
from threading import Lock, Thread
from typing import TYPE_CHECKING, Self

from blake3 import blake3

from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.staging.blocks import begin_flush, despite_stale, thread_buffer
from dynamo_mlperf.staging.board import Board
from dynamo_mlperf.staging.giver import Giver
from dynamo_mlperf.staging.sources import real_file
from dynamo_mlperf.staging.supply import has_size, source_differs
from dynamo_mlperf.staging.wire import DONE, Secret, WireError, ask, greet_as_taker, receive_head, receive_into, tune

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from threading import Event
    from types import TracebackType

    from dynamo_mlperf.staging.manifest import Manifest, ManifestFile
    from dynamo_mlperf.staging.peers import Peers
    from dynamo_mlperf.staging.supply import Advance

STORE_READERS = 4
SLOWER_THAN_OTHERS = 3.0
"""A node is slow when it needs so many times as long as the fastest other one."""
STORE_FASTER = 2.0
"""In mode `auto` the store is read directly when it has proved so many times as fast as the other nodes together."""
DECIDE_S = 1.0
"""How long all nodes have to have been connected before `auto` decides."""
STUCK = 4
"""How many times our patience a node may be connected, need something still and ask for nothing."""
_TICK_S = 0.05
_RETRY_S = 0.2
_JOIN_S = 10.0


class Swarm:
    """This node's part; a `Supply`, to be left by `with`.

    Raises:
        ConfigError: There is no such rank.
    """

    def __init__(
        self, peers: Peers, rank: int, manifest: Manifest, source: Path, notice: Callable[[str], None]
    ) -> None:
        if not 0 <= rank < len(peers.nodes):
            raise ConfigError(
                f"rank {rank} among {len(peers.nodes)} nodes", f"give one from 0 to {len(peers.nodes) - 1}"
            )
        self._peers = peers
        self._rank = rank
        self._manifest = manifest
        self._source = source
        self._notice = notice
        self._places = {file.path: place for place, file in enumerate(manifest.files)}
        self._secret = Secret(peers.token, manifest.digest)
        self._board = Board([file.bytes for file in manifest.files], peers.chunk_bytes, len(peers.nodes), rank)
        self._giver = Giver(self._board, manifest, self._secret, peers.nodes[rank], self._read_chunk)
        if not self._giver.listening:
            notice(f"node {rank}: no port of {list(peers.nodes[rank].ports)} is free; it gives nothing to the others")
        self._began_s = time.monotonic()
        self._lock = Lock()
        self._decided = peers.mode != "auto"
        self._takers = [
            Thread(target=self._take_from, args=(other,), daemon=True, name=f"stage-taker-{other}")
            for other in range(len(peers.nodes))
            if other != rank
        ]
        self._liars: frozenset[int] = frozenset()
        self.store_bytes = 0
        self.peer_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Without a problem: give to the others until they have everything; then hang up."""
        if problem is None:
            self._linger()
        self._board.close()
        self._giver.close()

    def begin(self, partial: Path, advance: Advance, stopping: Event) -> None:
        """Start to read and to take what is not there from before."""
        self._folder, self._advance, self._stopping = partial, advance, stopping
        for place, file in enumerate(self._manifest.files):
            path = partial / file.path
            if path.is_symlink() or (path.exists() and not has_size(file, path)):
                path.unlink()
            if not path.exists():
                with path.open("xb") as made:
                    made.truncate(file.bytes)
                self._board.want(place)
        self._giver.serve_from(partial)
        self._start_takers()
        for number in range(STORE_READERS):
            Thread(target=self._read_store, daemon=True, name=f"stage-reader-{number}").start()
        Thread(target=self._watch, daemon=True, name="stage-watch").start()

    def may_keep(self, file: ManifestFile, path: Path) -> bool:
        """Whether an earlier copy may have finished the file: it is there, and not of our making."""
        place = self._places[file.path]
        return not self._board.is_wanted(place) and has_size(file, path)

    def confirm(self, file: ManifestFile) -> None:
        """The others may have all of it."""
        self._board.set_right(self._places[file.path])

    def fill(self, file: ManifestFile, path: Path) -> None:  # noqa: ARG002 - a Supply's
        """Wait for the file's chunks.

        Raises:
            OSError: Reading the store or writing here failed.
        """
        place = self._places[file.path]
        self._board.want(place)
        self._board.wait_for_file(place, self._stopping.is_set)

    def fill_again(self, file: ManifestFile, path: Path) -> None:  # noqa: ARG002 - a Supply's
        """Read the file from the store, and drop the nodes whose chunks were others.

        Raises:
            SetupError: The store has another file than the manifest says.
        """
        whole = blake3()
        for number in self._board.chunks_of(self._places[file.path]):
            block = self._read_chunk(number)
            whole.update(block)
            digest = blake3(block).digest()
            before, origin = self._board.note(number, digest, self._rank)
            if before not in (None, digest) and origin != self._rank:
                self._accuse(origin, file)
            self._write(number, block)
        if whole.hexdigest() != file.blake3:
            raise source_differs(self._manifest, self._source, file, whole.hexdigest())

    def settle(self, final: Path) -> None:
        """Everything is here: give from `final`."""
        self._giver.serve_from(final)
        for place in range(len(self._manifest.files)):
            self._board.set_right(place)
        self._start_takers()

    def _start_takers(self) -> None:
        for taker in self._takers:
            if taker.ident is None:
                taker.start()

    # The store

    def _read_store(self) -> None:
        while (number := self._board.take(self._rank)) is not None:
            try:
                block = self._read_chunk(number)
                if self._board.may_write(number):
                    self._write(number, block)
                    self._board.arrived(self._rank, number, blake3(block).digest())
                    self._advance(len(block))
            except BaseException as problem:  # noqa: BLE001 - whoever waits for the file raises it
                self._board.fail(problem)
                return
            self._board.landed(self._rank, number)

    def _read_chunk(self, number: int) -> memoryview:
        """One chunk from the store, in this thread's buffer.

        Raises:
            OSError: It cannot be read.
            SetupError: The file is gone or has become shorter.
        """
        chunk = self._board.chunks[number]
        name = self._manifest.files[chunk.file].path
        block = thread_buffer(self._peers.chunk_bytes)[: chunk.length]

        def read() -> None:
            with real_file(self._source, name).open("rb", buffering=0) as origin:
                got = 0
                while got < chunk.length:
                    more = os.preadv(origin.fileno(), [block[got:]], chunk.at_bytes + got)
                    if not more:
                        raise SetupError(
                            f"{self._source / name} has become shorter: it ends after {chunk.at_bytes + got} bytes",
                            "leave the source alone while it is staged, and stage again",
                        )
                    got += more

        despite_stale(read)
        with self._lock:
            self.store_bytes += chunk.length
        return block

    def _write(self, number: int, block: memoryview) -> None:
        chunk = self._board.chunks[number]
        fd = os.open(self._folder / self._manifest.files[chunk.file].path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            done = 0
            while done < chunk.length:
                done += os.pwrite(fd, block[done : chunk.length], chunk.at_bytes + done)
            begin_flush(fd, chunk.at_bytes, chunk.length)
        finally:
            os.close(fd)

    # The other nodes

    def _take_from(self, rank: int) -> None:
        """Take from one node until nothing more is to come from there."""
        try:
            with self._connect(rank) as sock:
                self._board.connected(rank)
                while (number := self._board.take(rank)) is not None:
                    self._take(sock, rank, number)  # what fails is still on its way from here when we drop the node
                    self._board.landed(rank, number)
                ask(sock, DONE)
        except (WireError, TimeoutError) as problem:
            self._drop(rank, str(problem) or "did not answer")
        except OSError as problem:
            self._drop(rank, problem.strerror or str(problem))

    def _connect(self, rank: int) -> socket.socket:
        """A connection to a node that has proved who it is; tried until our patience ends.

        Raises:
            OSError: It could not be reached.
            WireError: Somebody else listens there.
        """
        until_s = time.monotonic() + self._peers.patience_s
        turn = 0
        while True:
            peer = self._peers.nodes[rank]
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                sock.settimeout(self._peers.patience_s)
                sock.connect((peer.address, peer.ports[turn % len(peer.ports)]))
                tune(sock)
                greet_as_taker(sock, self._secret, self._rank, rank)
                sock.settimeout(self._peers.patience_s)
            except (OSError, WireError):
                sock.close()
                if time.monotonic() > until_s or self._board.closed or self._board.sources[rank].out:
                    raise
                turn += 1
                time.sleep(_RETRY_S / len(peer.ports))
            else:
                return sock

    def _take(self, sock: socket.socket, rank: int, number: int) -> None:
        chunk = self._board.chunks[number]
        ask(sock, number)
        length, digest = receive_head(sock)
        if length != chunk.length:
            raise WireError(f"sent {length} bytes where {chunk.length} were asked for")
        block = thread_buffer(self._peers.chunk_bytes)[:length]
        receive_into(sock, block)
        if blake3(block).digest() != digest:
            raise WireError("sent a damaged chunk")
        if self._board.sources[rank].out or not self._board.may_write(number):
            return
        try:
            self._write(number, block)
        except OSError as problem:  # our disk, not the other node
            self._board.fail(problem)
            return
        self._board.arrived(rank, number, digest)
        with self._lock:
            self.peer_bytes += length
        self._advance(length)

    def _accuse(self, rank: int, file: ManifestFile) -> None:
        """A node gave what is not in the store; nothing more is taken from it, and people are told once."""
        with self._lock:
            known, self._liars = rank in self._liars, self._liars | {rank}
        self._board.drop(rank, "liar")
        if not known:
            self._notice(f"node {rank} gave another content of {file.path} than the store has; read there instead")

    def _drop(self, rank: int, why: str) -> None:
        if self._board.drop(rank, why):
            self._notice(f"node {rank} {why}; its share comes from elsewhere")

    # Watching

    def _watch(self) -> None:
        """See that nobody is waited for too long."""
        others = [rank for rank in range(len(self._peers.nodes)) if rank != self._rank]
        while not (self._board.complete or self._board.closed):
            time.sleep(_TICK_S)
            now_s = time.monotonic()
            for rank in others:
                source = self._board.sources[rank]
                if not source.out and source.busy and now_s - source.heard_s > self._peers.patience_s:
                    self._drop(rank, f"has delivered nothing for {self._peers.patience_s:g} s")
            if not self._board.sources[self._rank].busy:
                self._decide(now_s, others)
                self._relieve(now_s, others)

    def _decide(self, now_s: float, others: list[int]) -> None:
        """Once our own share is read, turn to the store if it has proved much faster than the other nodes."""
        own = self._board.sources[self._rank]
        living = [source for rank in others if not (source := self._board.sources[rank]).out]
        paces = [source.bytes_given / (now_s - began_s) for source in living if (began_s := source.began_s) is not None]
        youngest_s = min((now_s - (source.began_s or now_s) for source in living), default=0.0)
        if self._decided or own.began_s is None or youngest_s < DECIDE_S:
            return
        self._decided = True
        store_rate = own.bytes_given / max(own.ended_s - own.began_s, 1e-3)
        peer_rate = sum(paces)
        left_bytes = sum(self._board.left_bytes(rank) for rank in others)
        if left_bytes > peer_rate and store_rate > STORE_FASTER * peer_rate:
            self._board.turn_to_store()
            self._notice(
                f"the store gave {store_rate / 1e6:.0f} MB/s, the other nodes {peer_rate / 1e6:.0f}; "
                f"the last {left_bytes / 1e6:.0f} MB come from the store"
            )

    def _relieve(self, now_s: float, others: list[int]) -> None:
        """Take half of a node's share elsewhere if all wait for it and others have been much faster."""
        living = [rank for rank in others if not self._board.sources[rank].out]
        needed = {rank: seconds for rank in living if (seconds := self._needs_s(rank, now_s)) is not None}
        own = self._board.sources[self._rank]
        for rank, seconds in needed.items():
            source = self._board.sources[rank]
            if not source.queue or seconds < self._peers.slow_s:
                continue
            rest = [each for other, each in needed.items() if other != rank]
            if not rest and own.bytes_given and own.began_s is not None:
                rest = [self._board.left_bytes(rank) * (own.ended_s - own.began_s) / own.bytes_given]
            if rest and seconds > SLOWER_THAN_OTHERS * min(rest):
                known = source.slow
                moved = self._board.shed(rank)
                told = f"node {rank} would take {seconds:.0f} s more; {moved} of its chunks come from elsewhere"
                if not known:
                    self._notice(told)

    def _needs_s(self, rank: int, now_s: float) -> float | None:
        """How long a node's share will take, by its pace so far; None while it is too early to say."""
        source = self._board.sources[rank]
        if not source.busy:
            return 0.0
        if source.began_s is None or now_s - source.began_s < self._peers.slow_s:
            return None
        return self._board.left_bytes(rank) * (now_s - source.began_s) / max(source.bytes_given, 1)

    def _linger(self) -> None:
        """Wait until the others need nothing more of us; those that never came are waited for as long as any."""
        others = {rank: source for rank, source in enumerate(self._board.sources) if rank != self._rank}
        for rank, taker in zip(others, self._takers, strict=True):
            if taker.ident is not None and not others[rank].out:
                taker.join(_JOIN_S)
        while self._giver.listening and (left := others.keys() - self._giver.finished):
            silent_s = time.monotonic() - max(self._began_s, self._giver.heard_s)
            never_came = not (left & self._giver.greeted)
            if silent_s > self._peers.patience_s * (1 if never_came else STUCK):
                self._notice(f"nodes {sorted(left)} {'never came' if never_came else 'are stuck'}; not waited for")
                return
            time.sleep(_TICK_S)
