"""What the rate search costs and how often it is right: `python -m tests.performance.search [--set NAME] [--fresh SEED]`.

Simulated systems (`simulators/systems.py`); truth by many repeats; plain bisection with full-length runs beside it.
Cost is engine time, with 15 s for each probe's warm-up and coming to rest. Not a test: it asserts nothing.
`docs/performance.md` and `docs/search.md` hold figures.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from dataclasses import dataclass, replace
from multiprocessing import Pool
from multiprocessing.pool import Pool as PoolType
from pathlib import Path

import numpy as np

from dynamo_mlperf.tuning.probes import Answer
from tests.performance.simulators.program import search_by_command
from tests.performance.simulators.searching import bisect, search, settings_of
from tests.performance.simulators.systems import (
    HELD_OUT,
    HELD_OUT_WITHOUT,
    OTHER,
    PADDED,
    TUNING,
    TUNING_WITHOUT,
    System,
    fresh,
)
from tests.performance.simulators.truth import FULL_S, Truth, find_truth, pass_shares

SETS: dict[str, tuple[tuple[System, ...], tuple[System, ...]]] = {
    "tuning": (TUNING, TUNING_WITHOUT),
    "held-out": (HELD_OUT, HELD_OUT_WITHOUT),
    "other": (OTHER, ()),
    "padded": (PADDED, ()),
}


_NINE_IN_TEN = 1.2816
"""Standard deviations below which nine tenths of a normal distribution lie."""
_REPEATS = 200
_EVEN_ODDS = 0.5
_CLOSE = 0.01
"""How far from the true rate an answer to 1 % may be."""


@dataclass(frozen=True)
class Row:
    """One search beside one bisection, from the same range.

    Attributes:
        name: The system.
        cost: Engine time in full runs, of the length that one has at the true rate.
        plain_cost: The same of plain bisection.
        to_true: Answer over the rate that passes with probability 0.9; None without an answer, or where no such rate
            is known because all of them pass, or none.
        told: Probability with which a repeat passes, as the answer tells it; None without an answer.
        repeat: Share of 200 more runs at the answer that pass, of the system as old as when the search ended; None
            without an answer.
        plain_to_true: As `to_true`, of plain bisection.
        plain_repeat: As `repeat`, of plain bisection.
        probes: Number of probes.
        within: How far above the answer it says that the true rate may be, as a share; None where it says nothing.
    """

    name: str
    cost: float
    plain_cost: float
    to_true: float | None
    told: float | None
    repeat: float | None
    plain_to_true: float | None
    plain_repeat: float | None
    probes: int
    within: float | None


def wilson(count: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """95 % interval of a share."""
    share, spread = count / total, z * z / total
    centre, half = share + spread / 2, z * math.sqrt(share * (1 - share) / total + spread / (4 * total))
    return (centre - half) / (1 + spread), (centre + half) / (1 + spread)


def run_scatter(truth: Truth) -> float:
    """Standard deviation, in log rate, of what one full run at the edge tells of it: passing fades out over as much."""
    return math.log(truth.rate_50 / truth.rate_90) / _NINE_IN_TEN


def search_range(system: System, truth: Truth, seed: int) -> tuple[float, float]:
    """The range that both start from: about a sixth of the capacity wide open below, half as much above it."""
    chance = random.Random(f"{system.name}-{seed}")
    low = min(0.25 * system.capacity, 0.5 * truth.rate_90) * chance.uniform(0.8, 1.2)
    return low, 1.5 * system.capacity * chance.uniform(0.8, 1.2)


def _judged(system: System, truth: Truth, rate: float | None, age_s: float) -> tuple[float | None, float | None]:
    """An answer over the true rate, and the share of repeats at it that pass."""
    if not rate:
        return None, None
    repeat = float(pass_shares(system, np.array([rate]), _REPEATS, seed=91, start_s=age_s)[0])
    return (rate / truth.rate_90 if truth.known else None), repeat


@dataclass(frozen=True)
class Job:
    """One search to make.

    Attributes:
        system: What is searched.
        truth: Its true rates.
        seed: Of the search and its range.
        tolerance: Of the search; bisection is always to 1 %.
        by_command: Whether the system is a program and the search a command, instead of functions.
    """

    system: System
    truth: Truth
    seed: int
    tolerance: float
    by_command: bool


def compare(job: Job) -> Row:
    """One search and one bisection."""
    system, truth, seed = job.system, job.truth, job.seed
    low, high = search_range(system, truth, seed)
    settings = replace(settings_of(system, low=low, high=high), tolerance=job.tolerance)
    full_s = settings.run_queries(truth.rate_90) / truth.rate_90 if settings.padded else FULL_S
    if job.by_command:
        found = search_by_command(system, low, high, job.tolerance, seed)
    else:
        found = search(system, settings, seed)
    answer = found.step if isinstance(found.step, Answer) else None
    plain, plain_cost_s = bisect(system, low, high, seed)
    to_true, repeat = _judged(system, truth, answer.rate if answer else None, found.cost_s)
    plain_to_true, plain_repeat = _judged(system, truth, plain, plain_cost_s)
    return Row(
        system.name,
        found.cost_s / full_s,
        plain_cost_s / full_s,
        to_true,
        answer.pass_probability if answer else None,
        repeat,
        plain_to_true,
        plain_repeat,
        found.probes,
        answer.within if answer else None,
    )


def table(rows: list[Row]) -> dict[str, object]:
    """The figures of a set."""
    relative = sorted(row.cost / row.plain_cost for row in rows)
    repeats = [row.repeat for row in rows if row.repeat is not None]
    plain = [row.plain_repeat for row in rows if row.plain_repeat is not None]
    to_true = [row.to_true for row in rows if row.to_true is not None]
    plain_to_true = [row.plain_to_true for row in rows if row.plain_to_true is not None]
    claims = [(row.within, 1.0 / row.to_true - 1.0) for row in rows if row.within is not None and row.to_true]
    bad, plain_bad = sum(each < _EVEN_ODDS for each in repeats), sum(each < _EVEN_ODDS for each in plain)
    return {
        "searches": len(rows),
        "without_answer": len(rows) - len(repeats),
        "cost_full_runs_median": statistics.median(row.cost for row in rows),
        "plain_full_runs_median": statistics.median(row.plain_cost for row in rows),
        "relative_cost_median": statistics.median(relative),
        "relative_cost_p90": relative[math.ceil(0.9 * len(relative)) - 1],
        "bad_answers": bad,
        "bad_share": bad / len(repeats),
        "bad_interval": wilson(bad, len(repeats)),
        "plain_bad_share": plain_bad / len(plain),
        "repeats_pass_mean": statistics.mean(repeats),
        "told_pass_mean": statistics.mean(row.told for row in rows if row.told is not None),
        "plain_repeats_pass_mean": statistics.mean(plain),
        "answer_to_true_median": statistics.median(to_true),
        "plain_to_true_median": statistics.median(plain_to_true),
        "within_1_percent": sum(abs(each - 1.0) <= _CLOSE for each in to_true) / len(to_true),
        "plain_within_1_percent": sum(abs(each - 1.0) <= _CLOSE for each in plain_to_true) / len(plain_to_true),
        "located_within_median": statistics.median(within for within, _ in claims),
        "located_within_kept": sum(true <= within for within, true in claims) / len(claims),
        "probes_median": statistics.median(row.probes for row in rows),
    }


def _truths(systems: tuple[System, ...], pool: PoolType, kept: Path | None) -> dict[str, Truth]:
    """The true rates of these systems; a file keeps what was found for the next call."""
    known = json.loads(kept.read_text()) if kept and kept.exists() else {}
    missing = [system for system in systems if system.name not in known]
    for system, truth in zip(missing, pool.imap(find_truth, missing), strict=True):
        known[system.name] = (truth.rate_90, truth.rate_50)
        if kept:
            kept.write_text(json.dumps(known, indent=1))
    return {system.name: Truth(*known[system.name]) for system in systems}


def main() -> None:
    """Print one JSON line per set, and one of all where there are several; `--details` prints each search too."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--set", choices=SETS, action="append", default=[], dest="sets", help="default: all of them")
    fresh_help = "draw 62 new systems, which nothing was chosen on, from this seed; in place of the sets"
    parser.add_argument("--fresh", type=int, action="append", default=[], metavar="SEED", help=fresh_help)
    parser.add_argument("--repeats", type=int, default=2, help="searches per system, each with its own seed and range")
    parser.add_argument("--tolerance", type=float, default=0.01, help="of the search, as `search --tolerance` has it")
    command_help = "searches are real ones of real programs that say a run as fast as they compute; none of padded runs"
    parser.add_argument("--by-command", action="store_true", help=command_help)
    parser.add_argument("--truths", type=Path, help="file that keeps the true rates between calls")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--details", action="store_true")
    options = parser.parse_args()
    sets = options.sets or [
        label for label in SETS if not (options.fresh or (options.by_command and label == "padded"))
    ]
    chosen = {label: SETS[label] for label in sets}
    chosen |= {f"fresh-{seed}": (fresh(seed), ()) for seed in options.fresh}
    if options.by_command and options.sets == ["padded"]:
        parser.error("--by-command makes no padded runs: name another --set")
    everything: list[Row] = []
    with Pool(options.processes) as pool:
        for label, (every, without) in chosen.items():
            systems = tuple(each for each in every if not (options.by_command and each.data_set > 1))
            truths = _truths(systems, pool, options.truths)
            seeds = range(1, options.repeats + 1)
            jobs = [
                Job(system, truths[system.name], seed, options.tolerance, options.by_command)
                for seed in seeds
                for system in systems
            ]
            rows = []
            for row in pool.imap_unordered(compare, jobs):
                rows.append(row)
                if options.details:
                    print(json.dumps(vars(row)), flush=True)
            scatter = statistics.median(run_scatter(truth) for truth in truths.values() if truth.known)
            print(json.dumps({"set": label, "run_scatter_median": scatter, **table(rows)}), flush=True)
            everything += rows
            for system in without:
                found = search(system, settings_of(system), 1)
                print(json.dumps({"set": label, "system": system.name, "end": getattr(found.step, "kind", "answer"), "cost_full_runs": found.cost_s / FULL_S}), flush=True)  # fmt: skip
    if len(chosen) > 1:
        print(json.dumps({"set": "all", **table(everything)}), flush=True)


if __name__ == "__main__":
    main()
