"""The head of an HTTP/1.1 response: what it says of the message that follows."""

from __future__ import annotations

import re
from enum import Enum
from typing import NamedTuple

_KNOWN_HEADS = 64
_STATUS = re.compile(rb"[0-9]{3}")
_LENGTH = re.compile(rb"[0-9]{1,18}")


class Part(Enum):
    """Where in a message its reader is."""

    HEAD = "head"
    CHUNK_SIZE = "chunk size"
    CHUNK = "chunk"
    CHUNK_END = "chunk end"
    TRAILER = "trailer"
    LENGTH = "body of known length"
    UNTIL_CLOSE = "body until the connection closes"
    ENDED = "end"


class Head(NamedTuple):
    """What the head of a response says of the message that follows."""

    status: int
    keep_alive: bool
    part: Part
    left: int


_heads: dict[bytes, Head] = {}
"""Heads as they came: those of one second are mostly equal to the byte."""


def read_head(raw: bytes) -> Head | None:
    """The head in `raw`, without the empty line that ends it; None where it is none."""
    if (known := _heads.get(raw)) is not None:
        return known
    head = _read(raw)
    if head is not None:
        if len(_heads) >= _KNOWN_HEADS:
            _heads.clear()
        _heads[raw] = head
    return head


def _read(raw: bytes) -> Head | None:
    first, *lines = raw.split(b"\r\n")
    version, status_code, *_ = (*first.split(None, 2), b"", b"")
    if not version.startswith(b"HTTP/1.") or not _STATUS.fullmatch(status_code):
        return None
    headers = {}
    for line in lines:
        name, _, value = line.partition(b":")
        headers[name.strip().lower()] = value.strip().lower()
    status, keep_alive = int(status_code), version != b"HTTP/1.0" and headers.get(b"connection") != b"close"
    length = headers.get(b"content-length", b"")
    if headers.get(b"transfer-encoding", b"").endswith(b"chunked"):
        return Head(status, keep_alive, Part.CHUNK_SIZE, 0)
    if _LENGTH.fullmatch(length):
        return Head(status, keep_alive, Part.LENGTH, int(length))
    return Head(status, False, Part.UNTIL_CLOSE, 0)  # noqa: FBT003
