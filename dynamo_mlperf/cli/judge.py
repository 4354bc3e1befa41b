"""`dynamo-mlperf judge`: the verdict of a test from its directory alone, ours or not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynamo_mlperf.errors import MeasureError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynamo_mlperf.record import TransferEvidence, Verdict


@click.command("judge", short_help="Judge a test from its directory alone: ours, any LoadGen's, endpoints'.")
@click.argument("directory")
@click.option("--benchmark", help="Benchmark, as `schema rules` names it; left out, found from path or settings.")
@click.option("--scenario", help="Offline, Server or Interactive; left out, found from path or settings.")
@click.option(
    "--round", "round_name", help="Round whose rules and seeds apply, such as v6.0; left out, the current one."
)
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON, with the keys of verdict.json.")
def command(
    directory: str, benchmark: str | None, scenario: str | None, round_name: str | None, *, as_json: bool
) -> int:
    """Judge the test in DIRECTORY offline: a run directory, or what any LoadGen or endpoints wrote.

    A run below runs/ can also be named as `status` names it: by its name, the beginning of just one, or its job's id.
    A run of ours is judged by the settings that it was made with; anything else by the full rules of a round. The
    exit code is 0 for VALID, 5 for INVALID, and 4 where there is no measurement to judge.
    """
    from dynamo_mlperf.cli.output import json_text
    from dynamo_mlperf.cli.run_directory import run_directory
    from dynamo_mlperf.load.directory import (
        RecordedFailureError,
        UnendedRunError,
        Wanted,
        failed_verdict,
        judge_directory,
    )
    from dynamo_mlperf.report.resuming import action_of, how_to_resume

    place = Path(directory) if "/" in directory else run_directory(directory)
    try:
        verdict = judge_directory(place, Wanted(benchmark, scenario, round_name))
    except MeasureError as error:
        if isinstance(error, RecordedFailureError):
            error.action = action_of(error.reason, error.root)
        elif isinstance(error, UnendedRunError) and (how := how_to_resume(error.root)):
            error.action = f"wait for its end, or: {how}"
        if not as_json:
            raise
        verdict = failed_verdict(place, error)
    click.echo(json_text(verdict.as_json(), indent=2) if as_json else "\n".join(map(_printable, lines(verdict))))
    return verdict.exit_code


def _printable(line: str) -> str:
    """What files of others hold may steer a terminal, or be no text at all."""
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in line)


def _proof(moved: TransferEvidence) -> str:
    from dynamo_mlperf.report import quantities as q

    prefilled = f"{q.count(moved.remote_prefills)} of {q.count(moved.requests)} prefilled remotely"
    if moved.proof != "kv-counters":
        return f"{prefilled} (proof: {moved.proof})"
    failed = f"{q.count(moved.failed_transfers)} failed"
    return f"{prefilled}, {q.size(moved.kv_bytes)} of KV in {q.many(moved.transfers, 'transfer')}, {failed}"


def lines(verdict: Verdict) -> Iterator[str]:
    """The verdict for people: what it is of, each reason, the figures, then the notes."""
    from dynamo_mlperf.report import quantities as q
    from dynamo_mlperf.report.words import in_words

    model = f"model {verdict.model}, " if verdict.model not in ("", verdict.benchmark) else ""
    what = f"{verdict.benchmark} {verdict.scenario}, {model}{verdict.run_dir}"
    yield f"{verdict.verdict} [{verdict.result_class}]: {what}"
    for reason in verdict.reasons:
        yield in_words(f"  {reason.check}: wanted {reason.wanted}, got {reason.got}")
        yield f"    {reason.action}"
    unit = "samples/s" if verdict.scenario == "Offline" else "queries/s"
    figures = [f"{verdict.requests} requests"]
    if verdict.duration_s is not None:
        figures.append(f"{verdict.duration_s:.1f} s")
    if verdict.completed_qps is not None:
        figures.append(f"{q.rate(verdict.completed_qps)} {unit}")
    if verdict.tokens_per_second is not None:
        figures.append(f"{q.rate(verdict.tokens_per_second)} tokens/s")
    yield f"  {', '.join(figures)}"
    if verdict.transfer is not None and verdict.transfer.disaggregated and verdict.transfer.proof != "none":
        yield f"  disaggregation: {_proof(verdict.transfer)}"
    for name, latency in verdict.latency_p99_ms.items():
        stopped = "" if latency.early_stopping is None else f", early stopping {latency.early_stopping:.1f} ms"
        allowed = max(0, latency.over_limit_allowed)
        yield (
            f"  {in_words(name)}: p{latency.percentile * 100:g} {latency.at_percentile:.1f} ms{stopped}, "
            f"limit {latency.limit:g} ms, {latency.over_limit} over it, {allowed} allowed"
        )
    for test, passed in verdict.tests.items():
        why = "" if passed == "VALID" else ": its result.json says why; the exit code is that of all tests"
        yield f"  {test} test {passed}{why}"
    for note in verdict.notes:
        yield in_words(f"  note: {note}")
