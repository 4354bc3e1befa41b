"""What stagers say to each other over TCP: who they are, and one chunk after another.

Both ends prove that they know the job's secret, for this connection and this manifest, before anything else is said;
the secret itself never travels. A request is a chunk's number, never a path. An answer is the chunk's length and
BLAKE3, then its bytes.

    giver -> taker   magic, 16 random bytes
    taker -> giver   magic, 16 random bytes, own rank, proof
    giver -> taker   proof
    taker -> giver   chunk number, again and again, or DONE
    giver -> taker   length, digest, bytes
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
from dataclasses import dataclass

from blake3 import blake3

MAGIC = b"dmstage1"
DONE = 0xFFFFFFFF
DIGEST_BYTES = 32
GREET_S = 5.0
"""How long either end waits for the other's proof."""

_RANDOM_BYTES = 16
_REQUEST = struct.Struct("!I")
_ANSWER = struct.Struct(f"!Q{DIGEST_BYTES}s")
_HELLO = struct.Struct(f"!8s{_RANDOM_BYTES}sI{DIGEST_BYTES}s")
_KEEPALIVE_S = 10
_UNHEARD_MS = 30_000


class WireError(Exception):
    """The other end is not who it should be, or does not keep to the protocol."""


@dataclass(frozen=True)
class Secret:
    """What both ends know: the job's token and what is being staged."""

    token: bytes
    manifest_digest: str

    def proof(self, role: bytes, first: bytes, second: bytes, rank: int) -> bytes:
        """What only somebody with the secret can say, for this role, these random bytes and this rank."""
        text = b"|".join((MAGIC, role, first, second, str(rank).encode(), self.manifest_digest.encode()))
        return blake3(text, key=self.token).digest()


def tune(sock: socket.socket) -> None:
    """Send at once, and notice a node that has gone without a word (tcp(7))."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNHEARD_MS)


def receive_into(sock: socket.socket, view: memoryview) -> None:
    """Fill `view`.

    Raises:
        WireError: The other end closed the connection.
        OSError: It broke.
    """
    while view:
        got = sock.recv_into(view)
        if not got:
            raise WireError("closed the connection")
        view = view[got:]


def receive(sock: socket.socket, count: int) -> bytes:
    """Exactly `count` bytes."""
    raw = bytearray(count)
    receive_into(sock, memoryview(raw))
    return bytes(raw)


def greet_as_giver(sock: socket.socket, secret: Secret, rank: int, ranks: int) -> int:
    """Learn and check who asks; returns its rank.

    Raises:
        WireError: It does not know the secret, stages something else or claims an impossible rank.
    """
    sock.settimeout(GREET_S)
    own = os.urandom(_RANDOM_BYTES)
    sock.sendall(MAGIC + own)
    magic, theirs, their_rank, proof = _HELLO.unpack(receive(sock, _HELLO.size))
    if magic != MAGIC or not hmac.compare_digest(proof, secret.proof(b"take", own, theirs, their_rank)):
        raise WireError("does not know this job's secret")
    if their_rank >= ranks or their_rank == rank:
        raise WireError(f"claims rank {their_rank}")
    sock.sendall(secret.proof(b"give", theirs, own, rank))
    return int(their_rank)


def greet_as_taker(sock: socket.socket, secret: Secret, rank: int, giver_rank: int) -> None:
    """Prove who we are and check who gives.

    Raises:
        WireError: It does not know the secret or is another rank.
    """
    sock.settimeout(GREET_S)
    hello = receive(sock, len(MAGIC) + _RANDOM_BYTES)
    if not hello.startswith(MAGIC):
        raise WireError("is no stager")
    theirs, own = hello[len(MAGIC) :], os.urandom(_RANDOM_BYTES)
    sock.sendall(_HELLO.pack(MAGIC, own, rank, secret.proof(b"take", theirs, own, rank)))
    if not hmac.compare_digest(receive(sock, DIGEST_BYTES), secret.proof(b"give", own, theirs, giver_rank)):
        raise WireError("does not know this job's secret")


def ask(sock: socket.socket, chunk: int) -> None:
    """Ask for a chunk, or say DONE."""
    sock.sendall(_REQUEST.pack(chunk))


def asked(sock: socket.socket) -> int:
    """The next request."""
    return int(_REQUEST.unpack(receive(sock, _REQUEST.size))[0])


def answer_head(length: int, digest: bytes) -> bytes:
    """What goes before a chunk's bytes."""
    return _ANSWER.pack(length, digest)


def receive_head(sock: socket.socket) -> tuple[int, bytes]:
    """Length in bytes and digest of the chunk that follows."""
    length, digest = _ANSWER.unpack(receive(sock, _ANSWER.size))
    return int(length), bytes(digest)
