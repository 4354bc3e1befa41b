"""Which reads of an answer under way say nothing that a verdict needs."""

from __future__ import annotations

_NEWLINE = 10
_SIZES = {spelled: size for size in range(1, 2048) for spelled in (b"%x" % size, b"%X" % size)}


def chunk_size(spelled: bytes) -> int | None:
    """A chunk's size as sizes are usually spelled, which is quicker than a conversion and strict; else None."""
    return _SIZES.get(spelled)


def finishes(data: bytes) -> bool:
    """Whether there is a `finish_reason` in it that is anything but null as it is usually spelled."""
    count = data.count
    reasons = count(b"finish_reason")
    if not reasons or reasons == (compact := count(b'finish_reason":null')):
        return False
    return reasons != compact + count(b'finish_reason": null')


def plain(data: bytes) -> bool:
    """Whether a read is of whole chunks that end with a line, without the end, an error or usage in any.

    Of use only between chunks of an answer whose first token is there, where no text is kept.
    """
    find = data.find  # `in` on bytes first tries, and fails, to read what is sought as a number
    if find(b"[DONE]") >= 0 or find(b"completion_tokens") >= 0 or find(b'"error"') >= 0 or find(b"event:") >= 0:
        return False
    if finishes(data):
        return False
    at, end = 0, len(data)
    while at < end:
        line = find(b"\r\n", at)
        size = _SIZES.get(data[at:line]) if line > 0 else None
        if size is None:
            return False
        at = line + size + 4
        if at > end or data[at - 3] != _NEWLINE:
            return False
    return True
