"""`doctor`: is this machine ready, and what to do where it is not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dynamo_mlperf.process.machine import MachineFacts


@click.command(name="doctor")
@click.option("--here", is_flag=True, help="Only the facts of this node: what a job reads on each of its nodes.")
@click.option("--local-path", type=click.Path(path_type=Path), help="Where weights are staged. [default: the site's]")
@click.option("--end-leftovers", is_flag=True, help="End processes of earlier runs whose controller is gone.")
@click.option("--site", help="Site file or name. [default: $DYNAMO_MLPERF_SITE]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(local_path: Path | None, site: str | None, *, here: bool, end_leftovers: bool, as_json: bool) -> int:
    """Check this machine: engines, load client, store, Slurm, memory, disk.

    Ends with 3 when something needed is missing.
    """
    if here and local_path is not None:  # as a job asks: once per node, so without reading site files
        return _say_facts(local_path, end_leftovers=end_leftovers, as_json=as_json)
    from dynamo_mlperf.site import load_site

    chosen = load_site(site)
    place = local_path or Path(chosen.local_path)
    if here:
        return _say_facts(place, end_leftovers=end_leftovers, as_json=as_json)
    facts, _ = _facts(place, end_leftovers=end_leftovers)
    return _full_check(facts, chosen.engine_python, as_json=as_json)


def _facts(place: Path, *, end_leftovers: bool) -> tuple[MachineFacts, dict[int, str]]:
    """This machine's facts, with `end_leftovers` as they are afterwards; and the processes that were ended."""
    from dynamo_mlperf.process.machine import end_leftovers as end_them
    from dynamo_mlperf.process.machine import read_machine

    facts = read_machine(place)
    if not end_leftovers or not (facts.leftovers or facts.abandoned):
        return facts, {}
    removed = end_them(facts)
    counts = f"{len(facts.leftovers)} processes, removed {len(facts.abandoned)} directories"
    click.echo(f"ended {counts} and {len(removed)} segments of shared memory of earlier runs", err=True)
    return read_machine(place), facts.leftovers


def _say_facts(place: Path, *, end_leftovers: bool, as_json: bool) -> int:
    facts, ended = _facts(place, end_leftovers=end_leftovers)
    facts = replace(facts, leftovers={**facts.leftovers, **ended})  # what was ended is what the job puts on record
    click.echo(json.dumps(facts.as_json()) if as_json else _facts_text(facts))
    return 0


def _facts_text(facts: MachineFacts) -> str:
    addresses = ", ".join(f"{name} {address}" for name, address in facts.addresses.items())
    return "\n".join(
        (
            f"host       {facts.host} ({addresses})",
            f"cores      {facts.cores}",
            f"memory     {facts.memory_available_bytes / 2**30:.1f} GiB available",
            f"disk       {facts.disk_free_bytes / 2**30:.1f} GiB free for weights",
            f"GPUs       {facts.gpus}",
            f"leftovers  {len(facts.leftovers)} processes, {len(facts.abandoned)} directories",
        )
    )


def _full_check(facts: MachineFacts, engine_python: str, *, as_json: bool) -> int:
    from dynamo_mlperf.job.health import check_machine

    click.echo("trying the engines; this takes some seconds ...", err=True)
    findings = check_machine(facts, engine_python)
    good = all(finding.good or not finding.needed for finding in findings)
    if as_json:
        click.echo(json.dumps({"ready": good, "facts": facts.as_json(), "checks": [vars(entry) for entry in findings]}))
        return 0 if good else 3
    for finding in findings:
        mark = "ok     " if finding.good else ("MISSING" if finding.needed else "absent ")
        click.echo(f"{mark} {finding.name:<12} {finding.found}" + ("" if finding.good else f"  -> {finding.action}"))
    click.echo("ready" if good else "not ready: mend what is MISSING above")
    return 0 if good else 3
