"""`submit`: a topology file as a Slurm job, with what the site needs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dynamo_mlperf.cli.call import check_redo

if TYPE_CHECKING:
    from dynamo_mlperf.site import Site
    from dynamo_mlperf.slurm.standing import Standing
    from dynamo_mlperf.slurm.submission import Submission, Submitted
    from dynamo_mlperf.topology.plan import Plan
    from dynamo_mlperf.topology.spec import Topology

WATCH_S = 1.0
_OPTIONAL_DIFFERENCES = ("no-requeue",)
"""What `submit` sets right by itself."""


@click.command(name="submit")
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.argument("sbatch_options", nargs=-1, type=click.UNPROCESSED, metavar="[-- SBATCH_OPTIONS...]")
@click.option("--nodes", type=int, help="Another node count than the file's; workers scale in proportion.")
@click.option("--site", help="Site file or name. [default: the file's, else $DYNAMO_MLPERF_SITE]")
@click.option("--resume", metavar="RUN", help="Go on with the search or sweep of an interrupted run.")
@click.option("--redo", is_flag=True, help="With --resume: answers found with other settings are looked for again.")
@click.option(
    "--dry-run", is_flag=True, help="Print what would be sent, as a shell script that sends it; send nothing."
)
@click.option("--wait", is_flag=True, help="Follow the job to its end, and end with its exit code.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    file: Path,
    sbatch_options: tuple[str, ...],
    site: str | None,
    *,
    nodes: int | None,
    resume: str | None,
    redo: bool,
    dry_run: bool,
    wait: bool,
    as_json: bool,
) -> int:
    """Submit FILE: the same job as `sbatch FILE`, with the site's partition, account, QOS and constraint.

    What is sent is the file as it is now; a later edit changes nothing. Options behind -- go to sbatch as they are, and
    win. The job gets none of the caller's SLURM_*, SBATCH_*, LD_LIBRARY_PATH or secrets. Ends with 3 when Slurm
    refuses, with Slurm's words and the line that they are about.
    """
    check_redo(resume, redo=redo)
    submission = _prepare(file, site, sbatch_options, nodes, dry_run=dry_run, resume=resume, redo=redo)
    for note in submission.notes:
        click.echo(f"note: {note}", err=True)
    if dry_run:
        if submission.left_out:
            click.echo(f"note: not in the job's environment: {', '.join(submission.left_out)}", err=True)
        click.echo(json.dumps(submission.as_json()) if as_json else submission.as_text(), nl=as_json)
        return 0
    job = _send(submission)
    if not wait:
        click.echo(json.dumps(job.as_json()) if as_json else f"job {job.job_id}  {_near(job.run_dir)}")
        return 0
    click.echo(f"job {job.job_id}  {_near(job.run_dir)}", err=True)
    return _follow(job, as_json=as_json)


def _prepare(
    file: Path,
    site: str | None,
    sbatch_options: tuple[str, ...],
    nodes: int | None = None,
    *,
    dry_run: bool = False,
    resume: str | None = None,
    redo: bool = False,
) -> Submission:
    """Everything that can be refused is refused here, before Slurm sees anything."""
    from dynamo_mlperf.cli.launch import prepare, resumable
    from dynamo_mlperf.job.time_limit import check_time_limit
    from dynamo_mlperf.site import SITE_VARIABLE, site_file
    from dynamo_mlperf.slurm.submission import SiteCopy, make_submission, segment_of
    from dynamo_mlperf.topology.memory import memory_doubt

    topology, plan, place = prepare(file, site, Path.cwd(), nodes, from_afar=True)
    _check_flags(topology, place)
    _check_site(site or topology.site, dry_run=dry_run)
    _check_batch_lines(file, topology, plan, (*sbatch_options, *(("--nodes",) if nodes else ())))
    short = check_time_limit(file.read_text(), topology, Path.cwd(), sbatch_options)
    for warning in filter(None, (memory_doubt(topology), short)):
        click.echo(f"warning: {warning}", err=True)
    _check_weights(topology)
    segment = segment_of(len(plan.nodes), topology.nodes.nvlink_domain)
    if segment is not None and not place.segment:
        said = f"site {place.name} has no segment: true, so Slurm may take nodes of several NVLink domains"
        click.echo(f"note: {said}", err=True)
    return make_submission(
        file,
        topology.name,
        place,
        gpus=topology.nodes.gpus,
        nodes=nodes,
        segment=segment,
        more=sbatch_options,
        site_argument=site or (None if topology.site else os.environ.get(SITE_VARIABLE)),
        site_copy=None if (chosen := site_file(site or topology.site)) is None else SiteCopy.of(chosen),
        resume=None if resume is None else str(resumable(resume, topology, Path.cwd(), redo=redo)),
        redo=redo,
    )


def _check_flags(topology: Topology, place: Site) -> None:
    """Refuse engine flags that only the job would find out about; an engine that is here is asked for its flags.

    Raises:
        ConfigError: Names those that the engine does not know.
    """
    from dynamo_mlperf.job.known_flags import check_from_here

    unseen = check_from_here(topology, place, ask=lambda line: click.echo(line, err=True), every=False)
    if unseen is not None:
        click.echo(f"note: not checked: {unseen}", err=True)


def _check_site(site: str | None, *, dry_run: bool) -> None:
    """Refuse an example site that nobody has filled in; a dry run shows what it makes, and warns.

    Raises:
        ConfigError: Names every such value.
    """
    from dynamo_mlperf.site import refuse_unfilled, unfilled

    if not dry_run:
        refuse_unfilled(site)
    elif text := unfilled(site):
        click.echo(f"warning: {text}; without --dry-run submit refuses it", err=True)


def _check_batch_lines(file: Path, topology: Topology, plan: Plan, sbatch_options: tuple[str, ...]) -> None:
    """Refuse `#SBATCH` lines that ask for something else than the plan needs.

    Raises:
        ConfigError: Names the first of them.
    """
    from dynamo_mlperf.errors import ConfigError
    from dynamo_mlperf.files import shell_word
    from dynamo_mlperf.topology.batch import batch_differences

    given = {option.lstrip("-").partition("=")[0] for option in sbatch_options}
    ignored = {*_OPTIONAL_DIFFERENCES, *given}
    found = [d for d in batch_differences(file.read_text(), topology, plan) if d.option not in ignored]
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise ConfigError(f"{file}: {found[0].text}{more}", f"dynamo-mlperf plan --fix-batch {shell_word(file)}")


def _check_weights(topology: Topology) -> None:
    """The checkpoint by its headers, where it is seen from here; a job that would find it broken need not wait.

    Raises:
        SetupError: It is not whole.
    """
    from dynamo_mlperf.job.weights import read_manifest
    from dynamo_mlperf.staging.checkpoint import verify_checkpoint

    written = topology.resolve(Path.cwd()).manifest
    if written is not None and not written.exists():
        click.echo(f"note: {written} is not seen from here; the job checks it", err=True)
        return
    manifest = read_manifest(topology, Path.cwd())
    source = topology.resolve(Path.cwd()).weights if manifest is None else Path.cwd() / manifest.source
    if source is None or not source.is_dir():
        click.echo(f"note: {source} is not seen from here; the job checks it", err=True)
        return
    for warning in verify_checkpoint(source):
        click.echo(f"warning: {warning}", err=True)


def _send(submission: Submission) -> Submitted:
    from dynamo_mlperf.slurm.partition import check_nodes
    from dynamo_mlperf.slurm.refusal import refusal, slurm_words
    from dynamo_mlperf.slurm.submission import Submitted, job_id_of, record_submission

    runs = Path.cwd() / "runs"
    if (many := check_nodes(submission)) is not None:
        click.echo(f"warning: {many}", err=True)
    if submission.site is not None:
        submission.site.write(Path.cwd())
    answer = submission.send()
    if answer.status != 0:
        raise refusal(submission, answer)
    if words := slurm_words(answer.stderr):
        click.echo(f"Slurm says: {words}", err=True)
    job_id = job_id_of(answer.stdout)
    run_dir = runs / f"{submission.name}-{job_id}"
    job = Submitted(job_id, submission.name, str(run_dir), str(submission.file.resolve()), round(time.time(), 3))
    try:
        record_submission(runs, submission, job)
    except OSError as problem:  # the job is there all the same, and its id must be said
        click.echo(f"warning: no record of the submission: {problem.filename}: {problem.strerror}", err=True)
    return job


def _follow(job: Submitted, *, as_json: bool) -> int:
    """Show how the job stands until it has ended; its exit code."""
    from dynamo_mlperf.errors import ExitCode

    try:
        standing = _watch(job)
    except KeyboardInterrupt:
        click.echo(f"the job goes on; end it with: dynamo-mlperf cancel {job.job_id}", err=True)
        if as_json:
            click.echo(json.dumps(job.as_json()))
        return int(ExitCode.INTERRUPTED)
    from dynamo_mlperf.cli.output import json_text

    click.echo(json_text({**job.as_json(), **standing.as_json()}) if as_json else _last_line(standing))
    code = standing.outcome.exit_code
    return int(ExitCode.FAILED) if code is None else int(code)


def _watch(job: Submitted) -> Standing:
    """How the job stands when it has ended; each change until then goes to stderr."""
    from dynamo_mlperf.slurm.runs import find_run
    from dynamo_mlperf.slurm.standing import standings

    told = ""
    while True:
        (standing,), problem = standings([find_run(job.run_dir, Path(job.run_dir).parent)])
        line = problem or _line(standing)
        if line != told:
            click.echo(line, err=True)
            told = line
        if not problem and standing.outcome.word not in {"WAITING", "RUNNING"}:
            return standing
        time.sleep(WATCH_S)


def submit_and_follow(file: Path, site: str | None) -> Standing:
    """Submit a file from the current directory and wait for its end.

    Raises:
        ConfigError: It is refused before Slurm sees it.
        SetupError: Slurm refuses it.
    """
    job = _send(_prepare(file, site, ()))
    click.echo(f"job {job.job_id}  {job.run_dir}", err=True)
    return _watch(job)


def _line(standing: Standing) -> str:
    """How the job stands, without what changes every second."""
    from dynamo_mlperf.cli.standing import workers

    run, outcome = standing.run, standing.outcome
    where = f"  {run.phase}  {workers(run.workers)}" if run.phase and outcome.word == "RUNNING" else ""
    return f"{outcome.word}{where}" + (f"  {outcome.text}" if outcome.text else "")


def _last_line(standing: Standing) -> str:
    from dynamo_mlperf.cli.standing import said

    parts = (*said(standing), *(f"warning: {text}" for text in standing.outcome.warnings))
    return "  ".join((standing.outcome.word, "; ".join(parts), _near(str(standing.run.root))))


def _near(path: str) -> str:
    from dynamo_mlperf.report.terminal import near

    return near(path)
