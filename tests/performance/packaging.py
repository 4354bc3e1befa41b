"""`package` on 12 runs with 1 GB of logs: `python -m tests.performance.packaging DIRECTORY`.

Makes rehearsed runs of all benchmarks in all scenarios (tests/submission/made_runs.py), grows their accuracy and detail
logs to the size, and runs the verb in a process of its own: wall time, processor time and its largest resident set.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.submission.made_runs import Made, answers, description, log_line, make_run, score

RUNS = (
    ("qwen3-vl-235b-a22b", "endpoints"),
    ("gpt-oss-120b", "loadgen"),
    ("deepseek-r1", "loadgen"),
    ("llama2-70b-99.9", "loadgen"),
)
SCENARIOS = ("Offline", "Server", "Interactive")
TARGET_BYTES = 800_000_000
"""Of accuracy and detail logs; the compliance tests' logs make it 1 GB."""
DETAIL_SHARE = 0.1
"""Of the logs' size; the rest are answers."""


def grow(run: Path, made: Made, size_bytes: int) -> None:
    """Let the answers be longer, and the detail logs hold more entries, until the run has its share."""
    log = run / "accuracy" / "mlperf_log_accuracy.json"
    counted = len((run / "accuracy" / "queries.csv").read_text().splitlines()) - 1
    words = max(1, round(size_bytes * (1 - DETAIL_SHARE) / counted / len("4F4B")))
    log.write_text(answers(counted, made.tokens, as_text=True, words=words))
    score(run / "accuracy", made)
    line = log_line("logger_sample", "x" * 4000) + "\n"
    for detail in (run / "loadgen" / "mlperf_log_detail.txt", run / "accuracy" / "mlperf_log_detail.txt"):
        with detail.open("a") as out:
            out.writelines([line] * round(size_bytes * DETAIL_SHARE / 2 / len(line)))


def main(directory: Path, target_bytes: int) -> int:
    """Make the runs, package them once, and print what it took."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    cases = [Made(name, scenario, client=client, engine="mocker") for name, client in RUNS for scenario in SCENARIOS]
    runs = [make_run(directory / "runs" / f"{made.benchmark}-{made.scenario}", made) for made in cases]
    with_logs = [(run, made) for run, made in zip(runs, cases, strict=True) if made.client == "loadgen"]
    for run, made in with_logs:
        grow(run, made, target_bytes // len(with_logs))
    held = sum(path.stat().st_size for path in (directory / "runs").rglob("*") if path.is_file())
    system = description(directory)
    argv = [sys.executable, "-m", "dynamo_mlperf.cli", "package", *map(str, runs), "--system", str(system)]
    argv += ["--rehearsal", "--out", str(directory / "tree"), "--json"]
    began = time.monotonic()
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    wall_s = time.monotonic() - began
    if done.returncode:
        sys.stderr.write(done.stdout)
        return done.returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    answer = json.loads(done.stdout)
    figures = {
        "runs": len(runs),
        "runs_mb": round(held / 1e6),
        "tree_mb": round(answer["bytes"] / 1e6, 1),
        "wall_s": round(wall_s, 2),
        "cpu_s": round(used.ru_utime + used.ru_stime, 2),
        "memory_mb": round(used.ru_maxrss * 1024 / 1e6),
        "load": round(os.getloadavg()[0], 1),
    }
    sys.stdout.write(json.dumps(figures) + "\n")
    return 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--bytes", type=int, default=TARGET_BYTES, help="Size of accuracy and detail logs together.")
    given = parser.parse_args()
    raise SystemExit(main(given.directory, given.bytes))
