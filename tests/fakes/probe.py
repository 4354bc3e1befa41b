"""A probe program for tests: a system with a sharp or soft knee, in simulated time; it can misbehave on cue.

`python -m tests.fakes.probe --capacity 40 --target-qps 30 --duration-s 600`. Lines come as fast as they are read, but
for `--pace` seconds between two. `--fault` names what goes wrong and `--fault-file` a file whose presence means that it
has gone wrong before, so that only the first probe does.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

LINE_S = 5.0


def main() -> None:
    options = _options()
    t_s = 0.0
    log = Path(options.log) if options.log else None
    if log:
        with log.open("a") as out:
            out.write(json.dumps({"rate": options.target_qps, "seconds": options.duration_s}) + "\n")
        signal.signal(signal.SIGTERM, lambda *_: _terminated(log, t_s))
    fault = options.fault
    if fault == "deaf":  # for a while: it takes its time to end, and says things meanwhile
        signal.signal(signal.SIGTERM, lambda *_: _deaf(options))
    if fault == "sums up":  # as if what there was were a run, of the length that was asked for
        signal.signal(signal.SIGTERM, lambda *_: _sums_up(options))
    if fault and options.fault_file:
        fault = None if Path(options.fault_file).exists() else fault
        Path(options.fault_file).touch()
    _misbehave_at_once(fault)
    if options.serves is not None:
        _offline(options)
        return
    rng = np.random.default_rng([options.seed, round(options.target_qps * 1000)])
    step_s = options.line_s or min(LINE_S, options.duration_s / 20.0)
    issued = over = 0
    lines = round(options.duration_s / step_s)
    for line in range(lines):
        came = int(rng.poisson(options.target_qps * step_s))
        issued, over = issued + came, over + int(rng.binomial(came, _share(options)))
        t_s = (line + 1) * step_s
        counts = {options.constraint: over} if options.ceiling is None else {options.constraint: over, "tpot": 0}
        ended = issued - 30 if fault == "cold" else issued
        print(
            json.dumps({"t_s": t_s, "issued": issued, "completed": ended, "over_limit": counts}),
            flush=not options.forgetful,
        )
        if line == 0:
            _misbehave_later(fault)
        time.sleep(options.pace)
    allowed = issued * (1 - 0.99) - 2.3 * math.sqrt(issued * 0.0099)
    done = {"done": True, "valid": over <= allowed + 1 and not options.refuse, "n": issued, "over_limit": counts}
    if fault == "few":
        done["n"] = 200
    if fault == "settled":
        done |= {"n": int(0.95 * issued), "over_limit": {name: int(0.95 * count) for name, count in counts.items()}}
    if fault == "cold":  # what began cold does not count, and as much is in flight when the last but one is said
        done |= {"n": issued - 30, "over_limit": {name: max(0, count - 30) for name, count in counts.items()}}
    if fault == "forgets":
        done["over_limit"] = dict.fromkeys(counts, 0)
    print(json.dumps({**done, "percentiles": {"p99": 1.0}, "seconds": options.duration_s}), flush=True)
    if fault == "exits" or (fault == "says so" and not done["valid"]):
        sys.exit(3)


def _share(options: argparse.Namespace) -> float:
    """Share of queries over the limit: 1 % at the capacity, growing by a power of the rate."""
    share = 0.01 * (options.target_qps / options.capacity) ** options.slope
    return float(min(1.0, max(options.base, share)))


def _misbehave_at_once(fault: str | None) -> None:
    if fault == "silent":
        time.sleep(600)
    if fault == "crash":
        print("CUDA error: out of memory", file=sys.stderr)
        sys.exit(7)
    if fault == "garbage":
        print("Loading model ...", flush=True)
        time.sleep(600)


def _misbehave_later(fault: str | None) -> None:
    if fault == "detached":  # a server in a session of its own that a probe forgets
        forgotten = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        Path(os.environ["FORGOTTEN"]).write_text(str(forgotten.pid))
    if fault == "more":
        print('{"t_s": 11, "issued": 500, "completed": 501, "over_limit": {"latency": 0}}', flush=True)
    if fault == "over":
        print('{"t_s": 11, "issued": 500, "completed": 400, "over_limit": {"latency": 501}}', flush=True)
    if fault == "takes back":
        claim = '{"t_s": 6, "issued": 500, "completed": 480, "over_limit": {"latency": 0}, "over_in_flight": {"latency": 20}}'
        print(claim, claim.replace('"t_s": 6', '"t_s": 7').replace("20}", "19}"), sep="\n", flush=True)
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "quits":
        sys.exit(0)
    if fault == "hang":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    if fault == "short":
        print('{"done": true, "valid": true, "n": 100, "over_limit": {"latency": 0}, "seconds": 10}', flush=True)
        sys.exit(0)


def _deaf(options: argparse.Namespace) -> None:
    for turn in range(3):
        time.sleep(0.3)
        print(json.dumps({"t_s": options.duration_s + turn, "issued": 0, "completed": 0, "over_limit": {}}), flush=True)
    sys.exit(9)


def _sums_up(options: argparse.Namespace) -> None:
    done = {"done": True, "valid": False, "n": 0, "over_limit": {options.constraint: 0}}
    print(json.dumps({**done, "seconds": options.duration_s if options.forgetful else 0.0}), flush=True)
    os._exit(0)  # the line that was being written stays cut


def _offline(options: argparse.Namespace) -> None:
    """All queries at once, so many ended per second: the run lasts as long as that takes."""
    count = round(options.target_qps * options.duration_s)
    lasts_s = count / options.serves
    for line in range(1, math.ceil(lasts_s / LINE_S)):
        ended = int(options.serves * line * LINE_S)
        print(json.dumps({"t_s": line * LINE_S, "issued": count, "completed": ended, "over_limit": {}}), flush=True)
        time.sleep(options.pace)
    valid = lasts_s >= options.duration_s
    print(json.dumps({"done": True, "valid": valid, "n": count, "over_limit": {}, "seconds": lasts_s}), flush=True)


def _terminated(log: Path, t_s: float) -> None:
    with log.open("a") as out:
        out.write(json.dumps({"terminated": True, "t_s": t_s}) + "\n")
    sys.exit(143)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--target-qps", type=float, required=True)
    parser.add_argument("--duration-s", type=float, required=True)
    parser.add_argument("--capacity", type=float, default=40.0)
    parser.add_argument("--slope", type=float, default=30.0)
    parser.add_argument("--base", type=float, default=0.0)
    parser.add_argument("--constraint", default="latency")
    parser.add_argument("--ceiling", type=float)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=0.01)
    parser.add_argument("--line-s", type=float)
    parser.add_argument("--serves", type=float, help="Offline: queries ended per second")
    parser.add_argument("--refuse", action="store_true")
    parser.add_argument("--forgetful", action="store_true", help="lines are printed and not flushed")
    parser.add_argument("--fault")
    parser.add_argument("--fault-file")
    parser.add_argument("--log")
    return parser.parse_args()


if __name__ == "__main__":
    main()
