"""`dynamo-mlperf diff`: what differs between two runs."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("diff", short_help="Compare two runs: topology, flags, versions, settings, results.")
@click.argument("run_a")
@click.argument("run_b")
@click.option("--all", "noise", is_flag=True, help="Show ports, nonces, paths and times too, which differ in any case.")
@click.option("--html", type=click.Path(path_type=Path), help="Also write it as a page into this file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(run_a: str, run_b: str, html: Path | None, *, noise: bool, as_json: bool) -> None:
    """Show what differs between RUN_A and RUN_B, changes counted from RUN_A.

    Each is a run directory, the name of a run below runs/ or the beginning of just one, or the id of a job. Searches
    and sweeps are compared by their answers, split by split; a run that failed, or has not ended, as far as it came.
    The exit code is 0 whenever the two could be compared, whether or not they differ, and 2 where one is no run.
    """
    from dynamo_mlperf.cli.output import json_text, refuse_evidence, write_output
    from dynamo_mlperf.cli.run_directory import run_directory
    from dynamo_mlperf.report.diff import diff_runs
    from dynamo_mlperf.report.diff_page import DIFF_MARK, render_diff
    from dynamo_mlperf.report.diff_text import print_diff
    from dynamo_mlperf.report.run_data import read_run

    a, b = (read_run(run_directory(word)) for word in (run_a, run_b))
    comparison = diff_runs(a, b, noise=noise)
    if html is not None:
        refuse_evidence("--html", html, (a.paths.root, b.paths.root), DIFF_MARK, "diff.html")
        write_output("--html", html, render_diff(comparison), "diff.html")
        click.echo(f"{html}: written", err=True)
    if as_json:
        click.echo(json_text(comparison.as_json(), indent=2))
        return
    from rich.console import Console

    print_diff(comparison, Console(highlight=False))
