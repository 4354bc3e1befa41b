"""LoadGen's trace, `mlperf_log_trace.json`: the latency of every query, where LoadGen was told to write one.

Seen with LoadGen 6.0.17 in Server: one `Token_Latency` entry per first token and one `Latency` entry per end, each
with `issue_delay` (scheduled to issued) and `issue_to_done`, in nanoseconds. Their sum is what LoadGen judges. The
file is no valid JSON where log entries are traced (keys quoted twice), so it is read line by line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from dynamo_mlperf.files import open_regular

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.load.queries import Times

TRACE = "mlperf_log_trace.json"
_ENTRY = re.compile(rb'\{"name":"(Token_Latency|Latency)".*"issue_delay":(-?\d+),"issue_to_done":(-?\d+)')
_MOST_LINE_BYTES = 1_000_000
_CONSTRAINTS = {b"Latency": "end_to_end", b"Token_Latency": "ttft"}


def traced_latencies_ms(path: Path) -> dict[str, Times]:
    """Ascending latencies in milliseconds from the scheduled time: `end_to_end` and, where traced, `ttft`.

    Empty where there is no trace, or it holds no latencies.

    Raises:
        ValueError: A latency is below 0, or the file is no trace.
        OSError: It cannot be read.
    """
    if not path.is_file():
        return {}
    found: dict[str, list[int]] = {}
    with open_regular(path) as source:
        while line := source.readline(_MOST_LINE_BYTES):
            if len(line) == _MOST_LINE_BYTES:
                raise ValueError(f"{path} has a line of {_MOST_LINE_BYTES // 1_000_000} MB and more")
            if entry := _ENTRY.match(line):
                name, delay_ns, done_ns = entry.groups()
                found.setdefault(_CONSTRAINTS[name], []).append(int(delay_ns) + int(done_ns))
    if any(min(values) < 0 for values in found.values()):
        raise ValueError(f"{path} shows a latency below 0")
    return {name: np.sort(np.array(values, dtype=np.float64)) / 1e6 for name, values in found.items()}
