"""The giving half of a stager: chunks of this manifest to the other nodes of this job, and nothing to anybody else."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from threading import Lock, Thread
from typing import TYPE_CHECKING

from blake3 import blake3

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.process.ports import claimed
from dynamo_mlperf.staging.blocks import thread_buffer
from dynamo_mlperf.staging.wire import DONE, WireError, answer_head, asked, greet_as_giver, tune

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from dynamo_mlperf.staging.board import Board
    from dynamo_mlperf.staging.manifest import Manifest
    from dynamo_mlperf.staging.peers import Peer
    from dynamo_mlperf.staging.wire import Secret

_SEND_S = 120.0
_BACKLOG = 128
_STRANGERS = 16
"""Connections that may be open beyond one per node: those of port scanners, or of a node that tries again."""


class Giver:
    """Listens on the job's address; one thread per connection."""

    def __init__(
        self, board: Board, manifest: Manifest, secret: Secret, peer: Peer, read_store: Callable[[int], memoryview]
    ) -> None:
        self._board = board
        self._read_store = read_store
        self._manifest = manifest
        self._secret = secret
        self._lock = Lock()
        self._folder: int | None = None
        self._folders: list[int] = []
        self._open: set[socket.socket] = set()
        self.finished: set[int] = set()
        """Ranks that need nothing more of us."""
        self.greeted: set[int] = set()
        """Ranks that have shown themselves."""
        self.heard_s = time.monotonic()
        self._listener = _listen(peer)
        if self._listener is not None:
            Thread(target=self._accept, args=(self._listener,), daemon=True, name="stage-giver").start()

    @property
    def listening(self) -> bool:
        """Whether one of our ports was free."""
        return self._listener is not None

    def serve_from(self, folder: Path) -> None:
        """Chunks lie below `folder` from now on; files that are open stay so through a rename."""
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with self._lock:
            self._folder = opened
            self._folders.append(opened)

    def close(self) -> None:
        """Hang up on everybody."""
        if self._listener is not None:
            with suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
        with self._lock:
            connections, self._folder = list(self._open), None
        for sock in connections:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        with self._lock:
            for folder in self._folders:
                os.close(folder)
            self._folders.clear()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:
                return
            with self._lock:
                full = len(self._open) >= len(self._board.sources) + _STRANGERS
                if not full:
                    self._open.add(sock)
            if full:
                sock.close()
                continue
            Thread(target=self._serve, args=(sock,), daemon=True, name="stage-giving").start()

    def _serve(self, sock: socket.socket) -> None:
        rank = None
        try:
            tune(sock)
            rank = greet_as_giver(sock, self._secret, self._board.me, len(self._board.sources))
            self.greeted.add(rank)
            sock.settimeout(None)
            while (number := asked(sock)) != DONE:
                self.heard_s = time.monotonic()
                if number >= len(self._board.chunks) or not self._board.wait_for_chunk(number):
                    return
                sock.settimeout(_SEND_S)
                self._give(sock, number)
                sock.settimeout(None)
        except (WireError, OSError, SetupError):
            return
        finally:
            if rank is not None:
                self.finished.add(rank)
            with self._lock:
                self._open.discard(sock)
            sock.close()

    def _give(self, sock: socket.socket, number: int) -> None:
        """Send one chunk; its name comes from the manifest, never from the wire."""
        chunk = self._board.chunks[number]
        digest, fit = self._board.known_of(number)
        if not fit:
            block = self._read_store(number)
            found = blake3(block).digest()
            if found == digest:
                self._board.note(number, found, self._board.me)
            sock.sendall(answer_head(chunk.length, found))
            sock.sendall(block)
            return
        with self._lock:
            if self._folder is None:
                raise WireError("is closing")
            fd = os.open(
                self._manifest.files[chunk.file].path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._folder
            )
        with os.fdopen(fd, "rb", buffering=0) as file:
            if digest is None:
                block = thread_buffer(chunk.length)[: chunk.length]
                os.preadv(fd, [block], chunk.at_bytes)
                digest = blake3(block).digest()
                self._board.note(number, digest, self._board.me)
            sock.sendall(answer_head(chunk.length, digest))
            sock.sendfile(file, chunk.at_bytes, chunk.length)


def _listen(peer: Peer) -> socket.socket | None:
    """Listen on the first of the node's ports that is free; None if none is."""
    others = [ports for ports, pid in claimed() if pid != os.getpid()]
    for port in peer.ports:
        if any(port in ports for ports in others):  # another run will want it
            continue
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((peer.address, port))
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            continue
        return listener
    return None
