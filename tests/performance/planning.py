"""How long planning takes: `python -m tests.performance.planning`.

Not a test: it asserts nothing. Each case is a whole `dynamo-mlperf plan`, as a user starts it; the best of three is
printed. CPU seconds are the figure to compare on a shared machine. `docs/performance.md` holds figures and method.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.topology.topology_texts import role, topology_text

CASES = {
    "22P28D on 18 x 4": topology_text(nodes=18, domain=18, prefill=role(22, 2), decode=role(28)),
    "10000P20000D on 10000 x 4": topology_text(nodes=10_000, prefill=role(10_000, 2), decode=role(20_000)),
    "80000A on 10000 x 8": topology_text(nodes=10_000, gpus=8, aggregated=role(80_000)),
    "one GPU too many on 10000 x 4": topology_text(nodes=10_000, prefill=role(10_000, 2), decode=role(20_001)),
    "TP3 and TP5 too many on 10000 x 8": topology_text(
        nodes=10_000, gpus=8, prefill=role(12_000, 3), decode=role(9_000, 5)
    ),
}
TIMES = 3


def best_s(*arguments: str) -> tuple[float, float]:
    """Wall and CPU seconds of the cheapest of some calls of `dynamo-mlperf plan`."""
    found = []
    for _ in range(TIMES):
        begin, before = time.perf_counter(), os.times()
        subprocess.run(
            [sys.executable, "-m", "dynamo_mlperf.cli", "plan", *arguments], capture_output=True, check=False
        )
        after = os.times()
        cpu = after.children_user + after.children_system - before.children_user - before.children_system
        found.append((round(time.perf_counter() - begin, 2), round(cpu, 2)))
    return min(found, key=lambda pair: pair[1])


def main() -> None:
    """Print one JSON line per case."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in CASES.items():
            file = Path(folder) / "topology.yaml"
            file.write_text(text)
            for options in ((), ("--json",)):
                wall_s, cpu_s = best_s(str(file), *options)
                print(json.dumps({"case": name, "options": options, "wall_s": wall_s, "cpu_s": cpu_s}), flush=True)


if __name__ == "__main__":
    main()
