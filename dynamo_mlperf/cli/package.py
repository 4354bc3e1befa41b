"""`dynamo-mlperf package`: recorded runs to the tree of a submission."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynamo_mlperf.errors import ConfigError, ExitCode
from dynamo_mlperf.files import shell_word

if TYPE_CHECKING:
    from types import FrameType

    from dynamo_mlperf.submission.package import Packaged

_REHEARSAL = "REHEARSAL"


@click.command("package", short_help="Make the tree of a submission from recorded runs.")
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--system", "description", required=True, type=click.Path(path_type=Path), help="The system's YAML file.")
@click.option("--submitter", help="The organisation, as its folder is called; with --rehearsal it is REHEARSAL.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The tree; it appears whole or not at all.")
@click.option("--rehearsal", is_flag=True, help="Make a tree of rehearsed runs, which says so and cannot be submitted.")
@click.option("--replace", is_flag=True, help="Replace a tree of other content that package made, as a whole.")
@click.option(
    "--data-set",
    "data_sets",
    multiple=True,
    metavar="BENCHMARK=DIR",
    help="Where a benchmark's data set with its truth lies, to score the answers again; default: as the run names it.",
)
@click.option("--run-code", is_flag=True, help="Run the code that a model wrote, too, to score the answers again.")
@click.option("--no-rescore", is_flag=True, help="Score no answers again; the tree says so.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: the tree, or every finding.")
def command(
    runs: tuple[str, ...],
    description: Path,
    submitter: str | None,
    out: Path,
    *,
    rehearsal: bool,
    replace: bool,
    data_sets: tuple[str, ...],
    run_code: bool,
    no_rescore: bool,
    as_json: bool,
) -> int:
    """Make the tree of a submission from RUN...: one run for each benchmark and scenario.

    A result's accuracy and compliance tests lie in the same run, or in others named too. Every test is judged again
    from its evidence, and its answers are scored again where the data set is at hand; what cannot be submitted is
    refused with the run and the remedy (exit 6). The runs stay as they are, and a second call with the same runs
    changes nothing.
    """
    import json

    from dynamo_mlperf.cli.run_directory import run_directory
    from dynamo_mlperf.submission.finding import RefusedError
    from dynamo_mlperf.submission.package import PackageRequest, package
    from dynamo_mlperf.submission.truth_at_hand import Rescoring

    if submitter is None and not rehearsal:
        raise ConfigError("no submitter", "--submitter NAME, as the organisation's folder is called")
    signal.signal(signal.SIGTERM, _end)
    roots = tuple(Path(word) if "/" in word else run_directory(word) for word in runs)
    for root in roots:
        if not root.is_dir():
            raise ConfigError(f"there is no run directory {root}", "dynamo-mlperf status lists the runs")
    how = Rescoring(_named(data_sets), run_code, not no_rescore)
    if no_rescore and (data_sets or run_code):
        raise ConfigError("--no-rescore scores nothing", "leave --data-set and --run-code out, or --no-rescore")
    request = PackageRequest(roots, description, submitter or _REHEARSAL, out, rehearsal, replace, how)
    try:
        made = package(request, lambda text: click.echo(text, err=True))
    except RefusedError as refused:
        if not as_json:
            raise
        findings = [finding.as_json() for finding in refused.findings]
        click.echo(json.dumps({"tree": None, "findings": findings}, indent=2))
        return ExitCode.CHECK_FAILED
    click.echo(json.dumps(as_object(made, rehearsal=rehearsal), indent=2) if as_json else as_text(made))
    return ExitCode.DONE


def _named(texts: tuple[str, ...]) -> dict[str, Path]:
    """Directory by benchmark of every `--data-set`."""
    from dynamo_mlperf.benchmark.rules import benchmark

    found: dict[str, Path] = {}
    for text in texts:
        name, equals, place = text.partition("=")
        if not equals or not place:
            raise ConfigError(f"--data-set {text}", "write BENCHMARK=DIR, such as deepseek-r1=data/deepseek-r1")
        known = benchmark(name).name
        if known in found:
            raise ConfigError(f"--data-set {known} is there twice", "leave one")
        found[known] = Path(place)
    return found


def _end(_number: int, _frame: FrameType | None) -> None:
    """End as an exception does, so that nothing half-made stays beside the tree."""
    raise SystemExit(ExitCode.TERMINATED)


def as_object(made: Packaged, *, rehearsal: bool) -> dict[str, object]:
    """The answer for programs."""
    return {
        "tree": str(made.tree),
        "changed": made.changed,
        "class": "rehearsal" if rehearsal else "official",
        "results": list(made.results),
        "files": made.files,
        "bytes": made.size_bytes,
        "total_accelerators": made.accelerators,
        "findings": [],
    }


def as_text(made: Packaged) -> str:
    """The answer for people: each result, then the tree and what to do with it."""
    rows = [
        f"{row['benchmark']} {row['scenario']}: {row['completed_qps']:g} per second by {row['client']}, "
        + ", ".join(f"{name} {value:g}" for name, value in row["scores"].items())
        for row in made.results
    ]
    state = "made" if made.changed else "there already, unchanged"
    size = f"{made.files} files, {made.size_bytes / 1e6:.1f} MB, {made.accelerators} accelerators in all"
    following = f"Next: dynamo-mlperf check {shell_word(made.tree)} --checker DIR"
    return "\n".join([*rows, f"{state}: {made.tree} ({size})", following])
