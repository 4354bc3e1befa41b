"""Who takes part in a swarm: each node's rank, address and ports, and the secret that they share.

The controller writes the file, readable by its user alone, before it starts a stager on each node. A rank is a node's
place in this file.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from dynamo_mlperf.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

Mode = Literal["auto", "peers"]

CHUNK_BYTES = 8 * 1024 * 1024
PATIENCE_S = 30.0
SLOW_S = 5.0
TOKEN_BYTES = 32
_MAX_FILE_BYTES = 4 * 1024 * 1024
_HIGHEST_PORT = 65535


@dataclass(frozen=True)
class Peer:
    """One node: the address that its stager binds to, and the ports that it tries in turn."""

    address: str
    ports: tuple[int, ...]


@dataclass(frozen=True)
class Peers:
    """A swarm.

    Attributes:
        nodes: By rank.
        token: Shared secret, 32 bytes.
        mode: `peers` takes every byte from the store once; `auto` turns to the store where it has proved faster.
        chunk_bytes: Largest piece that one node asks another for.
        patience_s: How long a node may deliver nothing before its share is taken elsewhere.
        slow_s: How long a node that all others wait for may still need before half of its share is taken elsewhere.
    """

    nodes: tuple[Peer, ...]
    token: bytes
    mode: Mode = "auto"
    chunk_bytes: int = CHUNK_BYTES
    patience_s: float = PATIENCE_S
    slow_s: float = SLOW_S

    def write(self, path: Path) -> None:
        """Write the file, which only its owner can read.

        Raises:
            OSError: It cannot be written, or is there already.
        """
        content = {**asdict(self), "token": self.token.hex()}
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as out:
            json.dump(content, out)
            out.flush()
            os.fsync(fd)


def new_token() -> bytes:
    """A secret that nobody guesses."""
    return secrets.token_bytes(TOKEN_BYTES)


def read_peers(path: Path) -> Peers:
    """Read the file.

    Raises:
        ConfigError: It cannot be read, or is no such file.
    """
    try:
        with path.open("rb") as source:
            content = json.loads(source.read(_MAX_FILE_BYTES))
        return _peers(content)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "name the file that the job wrote") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{path}: no list of peers: {error!r}", "name the file that the job wrote") from error


def _peers(content: dict[str, Any]) -> Peers:
    nodes = tuple(Peer(str(each["address"]), tuple(int(port) for port in each["ports"])) for each in content["nodes"])
    found = Peers(
        nodes,
        bytes.fromhex(content["token"]),
        content["mode"],
        int(content["chunk_bytes"]),
        float(content["patience_s"]),
        float(content["slow_s"]),
    )
    ports = [port for node in nodes for port in node.ports]
    if found.mode not in ("auto", "peers") or len(found.token) != TOKEN_BYTES or found.chunk_bytes < 1:
        raise ValueError("mode, token or chunk_bytes is wrong")
    if not all(node.ports for node in nodes) or not all(0 < port <= _HIGHEST_PORT for port in ports):
        raise ValueError("each node needs ports from 1 to 65535")
    return found
