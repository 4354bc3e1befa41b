"""Names of constraints, counters and figures as people read them; records keep their own names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

CONSTRAINTS = {"end_to_end": "end-to-end", "ttft": "TTFT", "tpot": "TPOT"}
"""The constraints that follow from the record of single queries, and what people call them."""

COUNTERS: Mapping[str, str] = {
    "served": "requests served",
    "served_ms": "time in requests, ms",
    "finished": "requests that ended with an answer",
    "prompt_tokens": "prompt tokens",
    "generation_tokens": "output tokens",
    "external_tokens": "prompt tokens that came by KV transfer",
    "local_tokens": "prompt tokens computed here",
    "cached_tokens": "prompt tokens from the prefix cache",
    "kv_bytes": "KV moved, bytes",
    "transfers": "NIXL transfers",
    "failed_transfers": "failed NIXL transfers",
    "failed_notifications": "failed NIXL notifications",
    "expired_transfers": "KV caches that expired before they were fetched",
}
"""By our name of an engine's counter; an engine's own name (`vllm:...`) stays."""

_CONSTRAINT = re.compile(rf"(?<![\w./-])({'|'.join(CONSTRAINTS)})(?![\w./=-])")
_UNITS = {"ms": "ms", "s": "s", "mb": "MB", "bytes": "bytes", "qps": "queries/s", "percent": "%", "ns": "ns"}
_SPELLED = {"cpu": "CPU", "kv": "KV", "ttft": "TTFT", "tpot": "TPOT", "http": "HTTP", "id": "id"}
_NAMED = {
    "somaxconn": "longest queue of new connections (somaxconn)",
    "tokens_per_second": "output, tokens/s",
    "processes": "",
    "rested": "times that connections were left to rest",
}


def in_words(text: str) -> str:
    """`text` with constraints called as people do: `end_to_end within 900 ms` is `end-to-end within 900 ms`."""
    return _CONSTRAINT.sub(lambda found: CONSTRAINTS[found[1]], text)


def counter(name: str) -> str:
    """A counter of ours in words; an engine's own as it is."""
    return COUNTERS.get(name, name)


def spoken(name: str) -> str:
    """A record's dotted name in words, its unit last: `issue_delay_ms.p99` is `issue delay p99, ms`."""
    unit, parts = "", []
    for part in name.split("."):
        if part in _NAMED or part in CONSTRAINTS:
            parts.append(_NAMED[part] if part in _NAMED else CONSTRAINTS[part])
            continue
        words = part.split("_")
        if len(words) > 1 and words[-1] in _UNITS:
            unit = f", {_UNITS[words.pop()]}"
        parts.append(" ".join(_SPELLED.get(word, word) for word in words))
    return f"{' '.join(part for part in parts if part)}{unit}"
