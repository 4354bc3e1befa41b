"""A simulated system as the program of `search --probe-command`, as fast as it computes, and such a search.

`python -m tests.performance.simulators.program DIR --target-qps X --duration-s S` says what a run tells, line by line. DIR
holds `system.pickle` and keeps `runs.jsonl`: how far each run got before it was told to stop, by the program itself.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.tuning.probes import Answer, NoAnswer
from tests.performance.simulators.searching import OVERHEAD_S, Outcome, final_of, stream

if TYPE_CHECKING:
    from tests.performance.simulators.systems import System

_SYSTEM, _RUNS = "system.pickle", "runs.jsonl"
_SEARCH_S = 900.0


def _costs_s(folder: Path) -> list[float]:
    """Engine seconds of each run so far, with what comes before and after it."""
    runs = folder / _RUNS
    return [json.loads(line)["t_s"] + OVERHEAD_S for line in runs.read_text().splitlines()] if runs.exists() else []


def main() -> None:
    """One run; SIGTERM ends it where it is."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target-qps", type=float, required=True)
    parser.add_argument("--duration-s", type=float, required=True)
    options = parser.parse_args()
    system, seed = pickle.loads((options.folder / _SYSTEM).read_bytes())
    costs_s = _costs_s(options.folder)
    got_to_s = 0.0

    def end(*_: object) -> None:
        with (options.folder / _RUNS).open("a") as runs:
            runs.write(json.dumps({"t_s": got_to_s}) + "\n")
        os._exit(0)

    signal.signal(signal.SIGTERM, end)
    told = stream(system, options.target_qps, options.duration_s, seed=seed * 1000 + len(costs_s), start_s=sum(costs_s))
    for sample in told.samples:
        got_to_s = sample.t_s
        line = {"t_s": sample.t_s, "issued": sample.issued, "completed": sample.completed, "over_limit": sample.over}
        print(json.dumps(line), flush=True)
    final = final_of(told.samples)
    done = {"done": True, "valid": final.valid, "n": final.n, "over_limit": final.over, "seconds": final.seconds}
    print(json.dumps(done), flush=True)
    end()


def search_by_command(system: System, low: float, high: float, tolerance: float, seed: int) -> Outcome:
    """A search as a person makes it; its cost is what the program counted."""
    with tempfile.TemporaryDirectory(prefix="dynamo-mlperf-search-") as name:
        folder = Path(name)
        (folder / _SYSTEM).write_bytes(pickle.dumps((system, seed)))
        probe = f"{sys.executable} -m {__name__} {folder}"
        argv = [sys.executable, "-m", "dynamo_mlperf.cli", "search", "--probe-command", probe, "--json"]
        argv += ["--low", f"{low:.6g}", "--high", f"{high:.6g}", "--tolerance", f"{tolerance:g}"]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=_SEARCH_S)
        if not done.stdout:
            sys.exit(f"{' '.join(argv)}: {done.stderr}")
        found: dict[str, Any] = json.loads(done.stdout)
        return Outcome(_step(found), sum(_costs_s(folder)), len(found["probes"]))


def _step(found: dict[str, Any]) -> Answer | NoAnswer:
    """How a search ended, by what it printed."""
    if found["answer_qps"] is None:
        return NoAnswer(found["kind"], found["reason"], found["action"], found["binding_constraint"])
    return Answer(
        found["answer_qps"],
        found["confirmed_by"],
        located=found["located"],
        binding=found["binding_constraint"],
        pass_probability=found["pass_probability"],
        reason=found["reason"],
        within=found["located_within"],
    )


if __name__ == "__main__":
    main()
