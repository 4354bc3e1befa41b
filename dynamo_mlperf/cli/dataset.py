"""`dynamo-mlperf dataset`: a published data set, as downloaded, into the form that runs and scores read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynamo_mlperf.errors import SetupError

if TYPE_CHECKING:
    from dynamo_mlperf.benchmark.accuracy.convert import Made


@click.command("dataset", short_help="Turn a published data set, as downloaded, into the form that runs read.")
@click.argument("source", type=click.Path(path_type=Path))
@click.option("--benchmark", required=True, help="Benchmark, as `schema rules` names it.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Directory to make.")
@click.option(
    "--part",
    type=click.Choice(["performance", "accuracy", "compliance"]),
    help="gpt-oss-120b: which of its three tables SOURCE is; left out, told by the published names.",
)
@click.option(
    "--livecodebench",
    type=click.Path(path_type=Path),
    help="Directory of LiveCodeBench's *.jsonl, for the tests of answers in code.",
)
@click.option(
    "--reference",
    type=click.Path(path_type=Path),
    help="qwen3-vl-235b-a22b: checkout of mlcommons/inference, for the wording of its prompts.",
)
@click.option("--any-size", is_flag=True, help="Take other numbers of samples than the rules ask for, for a trial.")
@click.option("--json", "as_json", is_flag=True, help="Print what was made as JSON.")
def command(
    source: Path,
    *,
    benchmark: str,
    out: Path,
    part: str | None,
    livecodebench: Path | None,
    reference: Path | None,
    any_size: bool,
    as_json: bool,
) -> None:
    """Make a data set of SOURCE, a file or directory as downloaded: prompts or catalogue, and what is right.

    Parquet files and pickled data frames are read; a pickle is never run. Prompts and images are taken over unchanged
    and in order, counts are held against the rules, and digests go into dataset.json.
    """
    from dynamo_mlperf.benchmark.accuracy.convert import Request, make_data_set
    from dynamo_mlperf.benchmark.rules import benchmark as rules_of
    from dynamo_mlperf.cli.bar import bar

    request = Request(rules_of(benchmark), source, out, part or "", any_size, livecodebench, reference)
    try:
        with bar("dataset") as report:
            made = make_data_set(request, report)
    except OSError as problem:
        raise SetupError(f"{problem.filename or out}: {problem.strerror}", "name another place: --out") from problem
    _tell(made, out, as_json=as_json)


def _tell(made: list[Made], out: Path, *, as_json: bool) -> None:
    if as_json:
        import json

        parts = {
            part.part: {
                "samples": part.samples,
                "subsets": dict(part.subsets),
                "code_questions": len(part.questions),
                "code_questions_with_tests": part.with_tests,
            }
            for part in made
        }
        click.echo(json.dumps({"path": str(out), "parts": parts}, indent=2))
        return
    for part in made:
        subsets = ", ".join(f"{count} {subset}" for subset, count in sorted(part.subsets.items()))
        click.echo(f"{part.part}: {part.samples} samples{f' ({subsets})' if subsets else ''}", err=True)
        without = len(part.questions) - part.with_tests
        if without:
            click.echo(
                f"notice: {without} of {len(part.questions)} questions have no tests, so that answers in code will not "
                "be scored: --livecodebench DIR",
                err=True,
            )
    click.echo(str(out))
