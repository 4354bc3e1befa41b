"""`dynamo-mlperf report`: what a run measured, on the terminal and as one HTML page."""

from __future__ import annotations

from pathlib import Path

import click

from dynamo_mlperf.errors import ConfigError


@click.command("report", short_help="Show what a run measured; write its HTML page.")
@click.argument("run")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), help="Where to write the page.")
@click.option("--no-html", is_flag=True, help="Write no page.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: verdict, percentiles, phases.")
def command(run: str, html: Path | None, *, no_html: bool, as_json: bool) -> None:
    """Show what RUN measured, and write one self-contained HTML page.

    RUN is a run directory, the name of one under runs/ or the beginning of just one, or the id of a job. The page
    goes to report.html in the run directory unless --html names another place. A run that failed, or is still
    running, is reported as far as it came. The exit code is 0 whenever a report could be made; the verdict's own
    code is that of the run.
    """
    from rich.console import Console

    from dynamo_mlperf.cli.output import json_text, refuse_evidence
    from dynamo_mlperf.cli.run_directory import run_directory
    from dynamo_mlperf.report.facts import facts_of
    from dynamo_mlperf.report.page import write_page
    from dynamo_mlperf.report.run_data import read_run
    from dynamo_mlperf.report.summary import print_run

    if html is not None and no_html:
        raise ConfigError("--html and --no-html exclude each other", "leave one of them out")
    data = read_run(run_directory(run))
    if html is not None:
        refuse_evidence("--html", html, (data.paths.root,), "", "report.html")
        if html.exists() and not html.is_file():
            raise ConfigError(f"--html {html} is a device or pipe, not a file", "--html report.html")
    if as_json:
        click.echo(json_text(facts_of(data), indent=2))
    else:
        print_run(data, Console())
    if not no_html:
        page = write_page(data, html or data.paths.report)
        click.echo(f"Report: {page}", err=True)
