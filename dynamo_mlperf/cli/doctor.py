"""`doctor`: is this machine ready, and what to do where it is not."""

from __future__ import annotations

import json
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
    from dynamo_mlperf.process.machine import end_leftovers as end_them
    from dynamo_mlperf.process.machine import read_machine

    if local_path is None:
        from dynamo_mlperf.site import load_site

        local_path = Path(load_site(site).local_path)
    facts = read_machine(local_path)
    if end_leftovers:
        end_them(facts)
    if here:
        click.echo(json.dumps(facts.as_json()) if as_json else _facts_text(facts))
        return 0
    return _full_check(facts, as_json=as_json)


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


def _full_check(facts: MachineFacts, *, as_json: bool) -> int:
    from dynamo_mlperf.job.health import check_machine

    findings = check_machine(facts)
    good = all(finding.good or not finding.needed for finding in findings)
    if as_json:
        click.echo(json.dumps({"ready": good, "facts": facts.as_json(), "checks": [vars(entry) for entry in findings]}))
        return 0 if good else 3
    for finding in findings:
        mark = "ok     " if finding.good else ("MISSING" if finding.needed else "absent ")
        click.echo(f"{mark} {finding.name:<12} {finding.found}" + ("" if finding.good else f"  -> {finding.action}"))
    return 0 if good else 3
