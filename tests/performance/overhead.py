"""What the controller costs, from the events of runs: `python -m tests.performance.overhead RUN_DIR...`.

Not a test: it asserts nothing. `docs/performance.md` holds figures and method.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from dynamo_mlperf.files import RunPaths
from dynamo_mlperf.record import read_events


def overhead(run_dir: Path) -> dict[str, float | str]:
    """Seconds that the controller adds before and after what the engines take, and its memory.

    `start_s`: from the call of the program to the first process of the run. `gap_s`: from the last worker's readiness
    to the first query, canary and warm-up taken out. `stop_s`: the stop phase. `memory_mb`: the controller's peak.
    """
    paths = RunPaths(run_dir)
    events = read_events(paths)
    at = {(event["event"], event.get("phase") or event.get("process")): event["t"] for event in reversed(events)}
    begin = next(event for event in events if event["event"] == "job_begin")
    end = next(event for event in events if event["event"] == "job_end")
    first_process = min(event["t"] for event in events if event["event"] == "process_started")
    last_ready = max(event["t"] for event in events if event["event"] == "process_ready")
    first_query = json.loads((paths.load / "client.json").read_text())["first_issue_t"]
    proving = sum(at["phase_end", name] - at["phase_begin", name] for name in ("canary", "warmup"))
    return {
        "run": run_dir.name,
        "start_s": round(first_process - begin["called_t"], 2),
        "gap_s": round(first_query - last_ready - proving, 2),
        "stop_s": round(at["phase_end", "stop"] - at["phase_begin", "stop"], 2),
        "memory_mb": round(end["peak_memory_bytes"] / 1e6, 1),
    }


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(json.dumps(overhead(Path(name))))
