"""`doctor`: is this machine ready, and what to do where it is not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynamo_mlperf.errors import ConfigError, SetupError

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo_mlperf.process.machine import MachineFacts
    from dynamo_mlperf.site import Site


@click.command(name="doctor")
@click.option("--here", is_flag=True, help="Only the facts of this node: what a job reads on each of its nodes.")
@click.option("--local-path", type=click.Path(path_type=Path), help="Where weights are staged. [default: the site's]")
@click.option("--end-leftovers", is_flag=True, help="End processes of earlier runs whose controller is gone.")
@click.option("--site", help="Check this site's cluster, where Slurm answers. [default: this machine alone]")
@click.option(
    "--nodes", type=click.IntRange(min=1), default=2, show_default=True, help="With --site: nodes to look at."
)
@click.option("--smoke", is_flag=True, help="With --site: end with a one-minute serving test over two nodes.")
@click.option(
    "--mib", type=click.IntRange(min=1), default=1024, show_default=True, help="With --site: MiB to each disk."
)
@click.option("--gpus", type=int, default=0, hidden=True)
@click.option("--in-job", type=click.Path(path_type=Path), hidden=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    local_path: Path | None,
    site: str | None,
    *,
    nodes: int,
    mib: int,
    gpus: int,
    in_job: Path | None,
    here: bool,
    end_leftovers: bool,
    smoke: bool,
    as_json: bool,
) -> int:
    """Check this machine: engines, load client, store, Slurm, memory, disk; with --site, a cluster.

    On a cluster it says what Slurm accepts, then looks at some nodes from a short job of its own: start of containers,
    connections of every pair, clocks, limits, disks, GPUs, NVLink domain, RDMA, a NIXL transfer between two nodes. What
    cannot be looked at there is `not checked`, with the reason. Ends with 3 when something needed is missing, and with
    2 when the site file still has a value FILL-IN; a comment FILL IN is only warned of, as `submit` does.
    """
    if in_job is not None:
        return _inside(site, in_job, mib=mib, gpus=gpus)
    if here and local_path is not None:  # as a job asks: once per node, so without reading site files
        return _say_facts(local_path, end_leftovers=end_leftovers, as_json=as_json)
    from dynamo_mlperf.site import load_site, refuse_unfilled, unfilled_lines

    refuse_unfilled(site)
    chosen = load_site(site)
    still = unfilled_lines(site)
    for warning in still:
        click.echo(f"warning: {warning}", err=True)
    if site is not None and not here and _on_a_cluster(needed=smoke):
        code = _check_cluster(chosen, site, nodes=nodes, mib=mib, smoke=smoke, as_json=as_json)
        return _reminded(code, still, as_json=as_json)
    if smoke:
        raise ConfigError("--smoke needs a site", "dynamo-mlperf doctor --site NAME --smoke")
    place = local_path or Path(chosen.local_path)
    if here:
        return _say_facts(place, end_leftovers=end_leftovers, as_json=as_json)
    facts, _ = _facts(place, end_leftovers=end_leftovers)
    alone = site is None or chosen.interface == "lo"  # what serves on the loopback interface alone has no cluster
    of_a_cluster = None if alone else (place, chosen.interface)
    code = _full_check(facts, None if chosen.container else chosen.engine_python, of_a_cluster, as_json=as_json)
    return _reminded(code, still, as_json=as_json)


def _reminded(code: int, still: tuple[str, ...], *, as_json: bool) -> int:
    """The exit code; what was told before a long check is not forgotten behind its `ready`."""
    if still and not as_json and code == 0:
        click.echo("with defaults in the lines of the site file that still say FILL IN: see the warning at the top")
    return code


def _inside(site: str | None, out: Path, *, mib: int, gpus: int) -> int:
    """The part of a cluster's check that runs in its job."""
    import os

    from dynamo_mlperf.job.cluster_check import ClusterCheck
    from dynamo_mlperf.site import load_site
    from dynamo_mlperf.slurm.allocation import SlurmJob

    ClusterCheck(SlurmJob.current(os.environ), load_site(site), out, mib, gpus).run()
    return 0


def _on_a_cluster(*, needed: bool) -> bool:
    """Whether Slurm answers here.

    Raises:
        SetupError: It does not, and is needed.
    """
    from dynamo_mlperf.cli.doctor_cluster import slurm_answers
    from dynamo_mlperf.slurm.programs import where_slurm_answers

    if slurm_answers():
        return True
    if needed:
        raise SetupError("Slurm does not answer here", f"run it {where_slurm_answers()}")
    click.echo("note: Slurm does not answer here, so this machine alone is checked", err=True)
    return False


def _check_cluster(site: Site, site_argument: str, *, nodes: int, mib: int, smoke: bool, as_json: bool) -> int:
    from dynamo_mlperf.cli.doctor_cluster import Cluster, check_by_job, check_from_outside
    from dynamo_mlperf.cli.doctor_cluster import smoke as serve
    from dynamo_mlperf.slurm.checks import FAILED, Check, verdict

    cluster = Cluster(site, site_argument, nodes, mib)
    checks, gpus = check_from_outside(cluster)
    looks: dict[str, Callable[[], list[Check]]] = {"job": lambda: check_by_job(cluster, gpus)}
    if smoke:
        looks["serving test"] = lambda: [serve(cluster)]
    for name, look in looks.items():
        try:
            checks += look()
        except SetupError as problem:
            checks.append(Check(name, FAILED, " ".join(problem.what.split()), problem.action))
    failed = any(check.state == FAILED for check in checks)
    if as_json:
        click.echo(json.dumps({"ready": not failed, "checks": [check.as_json() for check in checks]}))
    else:
        for check in checks:
            action = f"  -> {check.action}" if check.action else ""
            click.echo(f"{check.state:<11}  {check.name:<16}  {check.found}{action}")
        click.echo(verdict(checks))
    return 3 if failed else 0


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


def _full_check(
    facts: MachineFacts, engine_python: str | None, of_a_cluster: tuple[Path, str | None] | None, *, as_json: bool
) -> int:
    """Look at this machine; `of_a_cluster`: local path and interface of the site whose cluster is not looked at."""
    from dynamo_mlperf.job.health import check_machine, check_site_here

    if engine_python is not None:
        click.echo("trying the engines: seconds each, some minutes on a busy machine", err=True)
    findings = check_machine(facts, engine_python, lambda line: click.echo(line, err=True))
    if of_a_cluster is not None:
        findings += check_site_here(facts, *of_a_cluster)
    good = all(finding.good or not finding.needed for finding in findings)
    if as_json:
        looked = {} if of_a_cluster is None else {"cluster": "not looked at"}
        checks = [vars(entry) for entry in findings]
        click.echo(json.dumps({"ready": good, **looked, "facts": facts.as_json(), "checks": checks}))
        return 0 if good else 3
    for finding in findings:
        bad = "MISSING" if finding.needed else "absent "
        mark = "ok     " if finding.good else (bad if finding.checked else "skipped")
        click.echo(f"{mark} {finding.name:<12} {finding.found}" + ("" if finding.good else f"  -> {finding.action}"))
    ready = "ready" if of_a_cluster is None else "this machine is ready; the cluster was not looked at"
    click.echo(ready if good else "not ready: mend what is MISSING above")
    return 0 if good else 3
