"""Whether the job's time, by its `#SBATCH --time`, holds the measurement: known before it waits for nodes."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.job.expected import expected_settings
from dynamo_mlperf.load.enough import enough_queries
from dynamo_mlperf.report.quantities import duration
from dynamo_mlperf.topology.batch import batch_directives, option_directives

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from dynamo_mlperf.topology.spec import Topology

# sbatch(1), --time: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, and with :seconds.
_TIME = re.compile(r"(?:([0-9]+)-)?([0-9]+)(?::([0-9]+))?(?::([0-9]+))?")


def seconds_of(written: str) -> int | None:
    """Seconds of a time as `sbatch --time` takes it; None for no limit (0, UNLIMITED) and for what is no time."""
    found = _TIME.fullmatch(written)
    if found is None:
        return None
    days, *parts = (None if part is None else int(part) for part in found.groups())
    whole = days is not None or parts[2] is not None
    hours, minutes, seconds = parts if whole else (None, *parts[:2])
    return ((((days or 0) * 24 + (hours or 0)) * 60 + (minutes or 0)) * 60 + (seconds or 0)) or None


def check_time_limit(text: str, topology: Topology, base_dir: Path, options: Sequence[str] = ()) -> str | None:
    """Whether one test of the file, and the longest start that it allows, fit into the job's time.

    Staging and what a search adds come on top, and are not counted.

    Args:
        text: The topology file.
        topology: What it says.
        base_dir: What its paths are relative to.
        options: Options of sbatch's command line, which win.

    Returns:
        A warning with both figures; None where it fits, or no time is asked for.

    Raises:
        ConfigError: A quote of an `#SBATCH` line is not closed.
    """
    given = [each for each in (*batch_directives(text), *option_directives(options)) if each.option == "time"]
    limit_s = seconds_of(given[-1].value or "") if given else None
    if limit_s is None:
        return None
    needed_s, what = _needed(topology, base_dir)
    start_s = 0.0 if topology.engine == "mocker" else topology.timeouts.ready_s  # simulated engines load nothing
    if needed_s + start_s <= limit_s:
        return None
    where = f"line {given[-1].line}" if given[-1].line else "the command line"
    start = f", and the start before it up to {duration(start_s)} (timeouts.ready_s)" if needed_s <= limit_s else ""
    told = f"one test takes {duration(needed_s)} or more ({what}){start}"
    said = f"{told}, but --time={given[-1].value} ({where}) ends the job"
    return f"{said} after {duration(limit_s)}; give --time more than that, with start and warm-up, or raise target_qps"


def refuse_without_time(topology: Topology, base_dir: Path, left_s: float, what: str) -> None:
    """Refuse a measurement of which one test takes longer than is left, before anything of it starts.

    Args:
        topology: The file.
        base_dir: What its paths are relative to.
        left_s: Seconds that are left for it.
        what: Whose time that is, such as `job 17`.

    Raises:
        SetupError: With both figures.
    """
    needed_s, why = _needed(topology, base_dir)
    if needed_s > left_s:
        raise SetupError(
            f"one test takes {duration(needed_s)} or more ({why}), and {what} has {duration(max(0.0, left_s))} left "
            "for it",
            "attach to a job with more time, raise target_qps, or shorten the test by `reduced: {min_duration_s: ...}`",
        )


def _needed(topology: Topology, base_dir: Path) -> tuple[float, str]:
    """Seconds of the longest test whose rate is given, else of the shortest that the rules allow; and why."""
    settings = expected_settings(topology, base_dir)
    rates = topology.sweep.rates if topology.sweep is not None else None
    rate = min(rates) if rates else None if topology.finds_rate else settings.target_qps
    if rate is None:
        needed_s = settings.min_duration_ms / 1000
        return needed_s, f"{needed_s:g} s at least by its settings"
    enough = enough_queries(replace(settings, target_qps=rate), topology.measure.client)
    noun = "samples" if topology.measure.scenario == "Offline" else "queries"
    return max(enough.planned / rate, enough.duration_s), f"{enough.planned} {noun} at {rate:g} per second"
