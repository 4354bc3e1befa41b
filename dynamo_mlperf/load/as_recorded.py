"""A run's verdict from its files against the one that the run itself recorded in `verdict.json`.

Its figures are made of these very files, so that others show a file that was changed, or came from another run.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.files import read_json
from dynamo_mlperf.load.audit import COMPLIANCE_TESTS
from dynamo_mlperf.load.endpoints_run import REPORT_DIR
from dynamo_mlperf.load.side_results import ACCURACY, RESULT_FILE
from dynamo_mlperf.record import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from dynamo_mlperf.record import Verdict, VerdictName

_CLASS = "class of the result"
_AGAIN = "copy the whole run directory again"
_TESTS = {f"{REPORT_DIR}/{ACCURACY}": ACCURACY, **{name: name for name in (ACCURACY, *COMPLIANCE_TESTS)}}
"""Accuracy and compliance tests by their folder in a run."""
_FIGURES = (
    *("benchmark", "scenario", "target_qps", "requests", "failed_requests", "duration_s", "completed_qps"),
    *("tokens_per_second", "remote_prefills", "kv_bytes", "failed_transfers", "disaggregation", "client"),
)
"""What every release makes alike, whatever the rules are by now: a figure of `client` whose rule changes needs another
name, or runs of before would seem to be changed."""
_ONE = 1e-9
"""Sums of floats may differ in their last digit."""


def with_what_it_recorded(verdict: Verdict, recorded: Mapping[str, Any], root: Path) -> Verdict:
    """The verdict with what the run itself saw and these files do not show: a worker that was lost, for example.

    Args:
        verdict: From the files as they are.
        recorded: The content of `verdict.json`.
        root: The run directory.

    Raises:
        ValueError: `recorded` is no verdict. What else such a record may raise is not foreseen.
        OSError: The record of another test cannot be read.
    """
    if verdict.verdict == "FAILED":
        return verdict
    known = {reason.check for reason in verdict.reasons}
    more = [entry for entry in recorded["reasons"] if entry["check"] not in known]
    tests = _side_tests(root)
    reasons = (
        *verdict.reasons,
        *map(Reason.from_json, more),
        *_other_figures(verdict, recorded),
        *_other_tests(tests, recorded),
    )
    was = recorded.get("class", verdict.result_class)
    if was != verdict.result_class and _CLASS not in {reason.check for reason in reasons}:
        action = f"{_AGAIN}: its topology.yaml is not the one that ran"
        reasons = (*reasons, Reason(_CLASS, f"{was}, as the run itself recorded", verdict.result_class, action))
    if recorded["verdict"] not in ("VALID", "INVALID"):
        raise ValueError(f"verdict {recorded['verdict']!r}")
    if recorded["verdict"] == "INVALID" and not recorded["reasons"]:
        action = "copy the directory again: its verdict.json has lost its reasons"
        reasons = (*reasons, Reason("verdict of the run itself", "VALID", "INVALID", action))
    notes = (*verdict.notes, *(note for note in recorded.get("notes", ()) if note not in verdict.notes))
    name: VerdictName = "INVALID" if reasons else "VALID"
    if recorded["verdict"] != name:
        note = f"the run itself recorded {recorded['verdict']}: the directory was changed, or the rules here were"
        notes = (*notes, note)
    model = str(recorded.get("model") or "")
    tests = {**(recorded.get("tests") or {}), **tests}
    return dataclasses.replace(verdict, verdict=name, reasons=reasons, notes=notes, model=model, tests=tests)


def _side_tests(root: Path) -> dict[str, VerdictName]:
    """The verdict of each accuracy and compliance test that lies in the run."""
    paths = {folder: root / folder / RESULT_FILE for folder in _TESTS}
    return {_TESTS[folder]: read_json(path)["verdict"] for folder, path in paths.items() if path.exists()}


def _other_tests(tests: Mapping[str, VerdictName], recorded: Mapping[str, Any]) -> Iterator[Reason]:
    """Tests that passed by `verdict.json`, and did not by their own record, or have none."""
    for name, was in (recorded.get("tests") or {}).items():
        now = tests.get(name, "none")
        if was == "VALID" != now:
            yield Reason(f"{name} test", "VALID, as the run itself recorded", f"{now} in its {RESULT_FILE}", _AGAIN)


def _other_figures(verdict: Verdict, recorded: Mapping[str, Any]) -> list[Reason]:
    """Why the files are not those that the run judged; a figure that it did not record is passed over."""
    again = verdict.as_json()
    names = [name for key in _FIGURES for name in _different(key, recorded.get(key), again[key])]
    if not names:
        return []
    action = f"{_AGAIN}: a file of it is of another run, or was changed after its verdict"
    return [Reason("figures that the run itself recorded", "those of its files", f"others: {', '.join(names)}", action)]


def _different(name: str, was: Any, now: Any) -> Iterator[str]:  # noqa: ANN401 - whatever the file holds
    if isinstance(was, dict) and isinstance(now, dict):
        for key in was.keys() & now.keys():
            yield from _different(f"{name} {key}", was[key], now[key])
    elif isinstance(was, int | float) and isinstance(now, int | float):
        if not math.isclose(was, now, rel_tol=_ONE):
            yield name
    elif was is not None and was != now:
        yield name
