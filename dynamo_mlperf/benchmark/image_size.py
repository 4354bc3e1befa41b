"""Width and height of an image from the first bytes of its file, without an imaging library.

Formats by their specifications: PNG (IHDR), JPEG (a start-of-frame marker), GIF and BMP (header), WebP (VP8, VP8L
and VP8X chunks).
"""

from __future__ import annotations

import struct

HEAD_BYTES = 1 << 18
"""How much of a file is enough: a JPEG's frame header lies behind its embedded preview and colour profile."""

_STANDALONE = frozenset({0x01, *range(0xD0, 0xDA)})
_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}


def image_size(head: bytes) -> tuple[int, int] | None:
    """Width and height in pixels; None where `head` does not tell.

    Args:
        head: The first HEAD_BYTES of the file, or all of it.
    """
    try:
        return _size(head)
    except (struct.error, IndexError):
        return None


def _size(head: bytes) -> tuple[int, int] | None:
    if head.startswith(b"\x89PNG\r\n\x1a\n"):
        width, height = struct.unpack_from(">II", head, 16)
    elif head.startswith(b"\xff\xd8"):
        return _jpeg(head)
    elif head.startswith(b"GIF8"):
        width, height = struct.unpack_from("<HH", head, 6)
    elif head.startswith(b"BM"):
        width, height = struct.unpack_from("<ii", head, 18)
    elif head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return _webp(head)
    else:
        return None
    return int(width), abs(int(height))


def _jpeg(head: bytes) -> tuple[int, int] | None:
    at = 2
    while True:
        while head[at] == 0xFF:  # noqa: PLR2004 - the byte before every marker, any number of times
            at += 1
        marker = head[at]
        at += 1
        if marker in _FRAMES:
            height, width = struct.unpack_from(">HH", head, at + 3)
            return int(width), int(height)
        if marker not in _STANDALONE:
            at += int(struct.unpack_from(">H", head, at)[0])
        if head[at] != 0xFF:  # noqa: PLR2004
            return None


def _webp(head: bytes) -> tuple[int, int] | None:
    kind = head[12:16]
    if kind == b"VP8X":
        low_w, high_w, low_h, high_h = struct.unpack_from("<HBHB", head, 24)
        return 1 + (high_w << 16 | low_w), 1 + (high_h << 16 | low_h)
    if kind == b"VP8L":
        bits = int(struct.unpack_from("<I", head, 21)[0])
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", head, 26)
        return int(width) & 0x3FFF, int(height) & 0x3FFF
    return None
