"""`dynamo-mlperf check`: a submission tree by our own gate, then by the official checker."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynamo_mlperf.benchmark.rounds import CURRENT
from dynamo_mlperf.errors import ConfigError, ExitCode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dynamo_mlperf.submission.finding import Finding
    from dynamo_mlperf.submission.gate import Gate
    from dynamo_mlperf.submission.official import Official

VARIABLE = "DYNAMO_MLPERF_CHECKER"
_SHOWN = 3
"""Files that are named where one finding is about many."""


@click.command("check", short_help="Check a submission tree: our gate, then the official checker.")
@click.argument("tree", type=click.Path(path_type=Path))
@click.option(
    "--checker",
    type=click.Path(path_type=Path),
    envvar=VARIABLE,
    help=f"A checkout of mlcommons/inference; default ${VARIABLE}. Without one, only our gate is asked.",
)
@click.option("--round", "round_name", default=CURRENT, show_default=True, help="Round whose rules apply.")
@click.option("--deadline-s", type=click.FloatRange(1), default=600, help="Seconds that the official checker may take.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(tree: Path, checker: Path | None, round_name: str, deadline_s: float, *, as_json: bool) -> int:
    """Hold TREE (the folder that holds closed/) against our own gate, then against the official checker.

    Our gate is the stricter one: failed requests, errors in a performance log, limits of another scenario, scores of
    every benchmark, evidence changed since it was packaged, and rehearsals do not pass it. The exit code is 0 where
    nothing stands in the way, and 6 where a finding does, or the official checker fails or crashes.
    """
    import json

    from dynamo_mlperf.submission.gate import check_tree
    from dynamo_mlperf.submission.official import run_official

    if not tree.is_dir():
        raise ConfigError(f"there is no folder {tree}", "name the folder that holds closed/")
    gate = check_tree(tree, round_name)
    official = None
    if checker is not None:
        click.echo("asking the official checker", err=True)
        official = run_official(tree, checker, round_name, gate.results, deadline_s)
    passed = not gate.findings and (official is None or official.outcome == "pass")
    if as_json:
        answer = {
            "tree": str(tree),
            "round": round_name,
            "passed": passed,
            "results": list(gate.results),
            "findings": [finding.as_json() for finding in gate.findings],
            "notes": list(gate.notes),
            "official": official.as_json() if official else None,
        }
        click.echo(json.dumps(answer, indent=2))
    else:
        click.echo("\n".join(map(_printable, lines(gate, official))))
    return ExitCode.DONE if passed else ExitCode.CHECK_FAILED


def _printable(line: str) -> str:
    """What files of others hold may steer a terminal."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)


def _alike(findings: Sequence[Finding]) -> Iterator[list[Finding]]:
    """Findings that differ in nothing but the file, together."""
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        groups.setdefault((finding.check, finding.wanted, finding.got, finding.action), []).append(finding)
    yield from groups.values()


def lines(gate: Gate, official: Official | None) -> Iterator[str]:
    """The answer for people: our findings, then the official checker's verdict."""
    for same in _alike(gate.findings):
        yield from (finding.where for finding in same[:_SHOWN])
        if len(same) > _SHOWN:
            yield f"and {len(same) - _SHOWN} more"
        yield f"  {same[0].check}: wanted {same[0].wanted}, got {same[0].got}"
        yield f"    {same[0].action}"
    yield from (f"note: {note}" for note in gate.notes)
    count = len(gate.findings)
    yield f"our gate: {f'{count} findings' if count else 'pass'}, {len(gate.results)} results"
    if official is None:
        yield f"official checker: not asked (--checker DIR, or {VARIABLE})"
        return
    if official.outcome == "pass":
        yield f"official checker: pass, {len(official.rows)} results"
    elif official.outcome == "fail":
        yield f"official checker: fail, {len(official.errors)} errors"
    else:
        yield "official checker: crashed; this is no verdict. Its last lines:"
    yield from (f"  {error}" for error in official.errors)
