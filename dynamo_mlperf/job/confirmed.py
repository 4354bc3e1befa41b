"""Full runs of an earlier search or sweep that may become the result: whether their records are whole enough for it.

A result is made at the very end. What would spoil it is refused before anything starts, while it costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynamo_mlperf.errors import ConfigError, DynamoMlperfError
from dynamo_mlperf.files import RunPaths, read_json
from dynamo_mlperf.job.split_record import SPLIT_FILE, read_object
from dynamo_mlperf.load.directory import SPEC
from dynamo_mlperf.load.endpoints_run import RECORD, REPORT_DIR, REQUEST, judge_run, read_record
from dynamo_mlperf.load.spec import read_spec
from dynamo_mlperf.load.verdict import judge
from dynamo_mlperf.record import transfer_from_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from dynamo_mlperf.record import Verdict


def damage_of(folder: Path) -> str | None:
    """Why the records of a full run that was VALID make no such result any more; None where they do.

    Args:
        folder: The run's: a probe's, or one at a given rate.
    """
    try:
        verdict = _judged_again(RunPaths(folder))
    except DynamoMlperfError as problem:
        return f"{folder} cannot be judged again: {problem.what}"
    except OSError as problem:
        return f"{problem.filename}: {problem.strerror}"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        return f"{RunPaths(folder).evidence} is not as a run wrote it: {problem!r:.120}"
    if verdict.verdict == "VALID":
        return None
    return f"{folder} was VALID, and its records now make it {verdict.verdict}: {verdict.reasons[0].got}"


def _judged_again(paths: RunPaths) -> Verdict:
    """The verdict by the records alone, for the class that asks for least."""
    evidence = read_json(paths.evidence)
    for factor in evidence["stragglers"].values():
        format(factor, "g")
    moved = evidence.get("transfer")
    transfer = transfer_from_json(moved) if moved else None
    root = paths.root
    if (root / RECORD).exists():
        (root / REQUEST).stat()
        return judge_run(root / REPORT_DIR, read_record(root / RECORD), transfer, "rehearsal", str(root))
    paths.metrics.stat()
    return judge(paths.load, read_spec(root / SPEC).settings, transfer, "rehearsal", str(root))


def check_confirmed_probes(search: Path) -> None:
    """Refuse to go on with a search one of whose confirming probes could not become the result.

    Args:
        search: Its directory, whose `record.json` are known to be whole.

    Raises:
        ConfigError: Names what is damaged.
    """
    for path in sorted(search.glob("probe-*/record.json")):
        final = read_object(path).get("final")
        if final and final["valid"] and (damage := damage_of(path.parent)):
            raise ConfigError(damage, f"remove {path.parent}: the search then goes on without that probe")


def check_finished_split(folder: Path, known: Mapping[str, Any]) -> None:
    """Refuse to take over a split that could not become the result of the sweep.

    Args:
        folder: The split's.
        known: Its `split.json`.

    Raises:
        ConfigError: Names what is damaged.
    """
    if known["rate_qps"] is None:
        return
    again, split = "its split is then measured again", folder / SPLIT_FILE
    for name in ("plan.json", "evidence.json"):
        read_object(folder / name, f"remove {split}; {again}")
    confirmed = folder / str(known["confirmed_in"])
    if damage := damage_of(confirmed):
        raise ConfigError(damage, f"remove {split} and {confirmed}; {again}")
