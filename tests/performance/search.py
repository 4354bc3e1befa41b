"""What the rate search costs and how often it is right: `python -m tests.performance.search [--repeats N] [--set NAME]`.

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
from pathlib import Path

from dynamo_mlperf.tuning.probes import Answer
from tests.performance.simulators.searching import bisect, search, settings_of
from tests.performance.simulators.systems import (
    HELD_OUT,
    HELD_OUT_WITHOUT,
    OTHER,
    PADDED,
    TUNING,
    TUNING_WITHOUT,
    System,
)
from tests.performance.simulators.truth import FULL_S, Truth, find_truth

SETS: dict[str, tuple[tuple[System, ...], tuple[System, ...]]] = {
    "tuning": (TUNING, TUNING_WITHOUT),
    "held-out": (HELD_OUT, HELD_OUT_WITHOUT),
    "other": (OTHER, ()),
    "padded": (PADDED, ()),
}


_NINE_IN_TEN = 1.2816
"""Standard deviations below which nine tenths of a normal distribution lie."""


@dataclass(frozen=True)
class Row:
    """One search beside one bisection, from the same range.

    Attributes:
        name: The system.
        cost: Engine time in full runs, of the length that one has at the true rate.
        plain_cost: The same of plain bisection.
        to_true: Answer over the rate that passes with probability 0.9; None without an answer.
        to_even: Answer over the rate that passes with even odds.
        plain_to_even: The same of plain bisection.
        probes: Number of probes.
        within: How far above the answer it says that the true rate may be, as a share; None where it says nothing.
    """

    name: str
    cost: float
    plain_cost: float
    to_true: float | None
    to_even: float | None
    plain_to_even: float | None
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


def compare(job: tuple[System, Truth, int, float]) -> Row:
    """One search and one bisection, of a system by a seed to a tolerance; bisection always to 1 %."""
    system, truth, seed, tolerance = job
    low, high = search_range(system, truth, seed)
    settings = replace(settings_of(system, low=low, high=high), tolerance=tolerance)
    full_s = settings.run_queries(truth.rate_90) / truth.rate_90 if settings.padded else FULL_S
    found = search(system, settings, seed)
    plain, plain_cost_s = bisect(system, low, high, seed)
    rate = found.step.rate if isinstance(found.step, Answer) else None
    return Row(
        system.name,
        found.cost_s / full_s,
        plain_cost_s / full_s,
        rate / truth.rate_90 if rate else None,
        rate / truth.rate_50 if rate else None,
        plain / truth.rate_50 if plain else None,
        len(found.history),
        found.step.within if isinstance(found.step, Answer) else None,
    )


def table(rows: list[Row]) -> dict[str, object]:
    """The figures of a set."""
    relative = sorted(row.cost / row.plain_cost for row in rows)
    to_even = [row.to_even for row in rows if row.to_even is not None]
    plain = [row.plain_to_even for row in rows if row.plain_to_even is not None]
    claims = [(row.within, 1.0 / row.to_true - 1.0) for row in rows if row.within is not None and row.to_true]
    bad, plain_bad = sum(each > 1.0 for each in to_even), sum(each > 1.0 for each in plain)
    return {
        "searches": len(rows),
        "without_answer": len(rows) - len(to_even),
        "cost_full_runs_median": statistics.median(row.cost for row in rows),
        "plain_full_runs_median": statistics.median(row.plain_cost for row in rows),
        "relative_cost_median": statistics.median(relative),
        "relative_cost_p90": relative[math.ceil(0.9 * len(relative)) - 1],
        "bad_answers": bad,
        "bad_share": bad / len(to_even),
        "bad_interval": wilson(bad, len(to_even)),
        "plain_bad_share": plain_bad / len(plain),
        "answer_to_true_median": statistics.median(row.to_true for row in rows if row.to_true is not None),
        "answer_to_even_median": statistics.median(to_even),
        "within_median": statistics.median(within for within, _ in claims),
        "within_kept": sum(true <= within for within, true in claims) / len(claims),
        "probes_median": statistics.median(row.probes for row in rows),
    }


def main() -> None:
    """Print one JSON line per set; `--details` prints each search too."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--set", choices=SETS, action="append", dest="sets")
    parser.add_argument("--repeats", type=int, default=2, help="searches per system, each with its own seed and range")
    parser.add_argument("--tolerance", type=float, default=0.01, help="of the search, as `search --tolerance` has it")
    parser.add_argument("--truths", type=Path, help="file that keeps the true rates between calls")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--details", action="store_true")
    options = parser.parse_args()
    known = json.loads(options.truths.read_text()) if options.truths and options.truths.exists() else {}
    with Pool(options.processes) as pool:
        for label in options.sets or SETS:
            systems, without = SETS[label]
            missing = [system for system in systems if system.name not in known]
            for system, truth in zip(missing, pool.imap(find_truth, missing), strict=True):
                known[system.name] = (truth.rate_90, truth.rate_50)
                if options.truths:
                    options.truths.write_text(json.dumps(known, indent=1))
            jobs = [
                (system, Truth(*known[system.name]), seed, options.tolerance)
                for seed in range(1, options.repeats + 1)
                for system in systems
            ]
            rows = []
            for row in pool.imap_unordered(compare, jobs):
                rows.append(row)
                if options.details:
                    print(json.dumps(vars(row)), flush=True)
            scatter = statistics.median(run_scatter(Truth(*known[system.name])) for system in systems)
            print(json.dumps({"set": label, "run_scatter_median": scatter, **table(rows)}), flush=True)
            for system in without:
                found = search(system, settings_of(system), 1)
                print(json.dumps({"set": label, "system": system.name, "end": getattr(found.step, "kind", "answer"), "cost_full_runs": found.cost_s / FULL_S}), flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
