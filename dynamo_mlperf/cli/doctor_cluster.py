"""`doctor --site` on a cluster: what Slurm accepts, a short job that looks at its nodes, a serving test."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.files import read_bounded, read_text, write_atomic
from dynamo_mlperf.job.cluster_check import FINDINGS
from dynamo_mlperf.slurm.checks import FAILED, NOT_CHECKED, OK, WARNING, Check
from dynamo_mlperf.slurm.jobs import query_jobs
from dynamo_mlperf.slurm.programs import ask, clean_environment
from dynamo_mlperf.slurm.refusal import refusal, slurm_words
from dynamo_mlperf.slurm.submission import Option, Submission, job_id_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynamo_mlperf.site import Site

JOB_MINUTES = 15
DISK_MIB = 1024
_POLL_S = 1.0
_TRIAL = "#!/bin/sh\ntrue\n"
_SMOKE = "doctor-smoke"


@dataclass(frozen=True)
class Cluster:
    """What is asked for.

    Attributes:
        site: The site's settings.
        site_argument: How the caller named it.
        nodes: Nodes of the job.
        mib: How much is written to each disk.
    """

    site: Site
    site_argument: str
    nodes: int
    mib: int


def slurm_answers() -> str:
    """Slurm's version when its controller answers; else empty."""
    try:
        ping, version = ask(["scontrol", "ping"]), ask(["sbatch", "--version"])
    except SetupError:
        return ""
    return version.stdout.strip() if "is UP" in ping.stdout else ""


def check_from_outside(cluster: Cluster) -> tuple[list[Check], int]:
    """What can be checked without a job: the version, each option; and how many GPUs a node has by Slurm."""
    gpus = _gpus_by_slurm(cluster.site)
    checks = [Check("Slurm", OK, slurm_answers())]
    said = f"{gpus} on each node" if gpus else "none, by sinfo"
    checks.append(Check("GPUs by Slurm", OK if gpus else NOT_CHECKED, said))
    accepted = []
    for option in _options(cluster, gpus):
        refused = _refused(cluster, option, gpus)
        if not refused:
            accepted.append(option.text)
        elif option.origin or option.text.startswith(("--nodes", "--no-requeue")):
            where = f" ({option.origin})" if option.origin else ""
            checks.append(Check(option.text, FAILED, f"{refused}{where}", "correct the site file; see slurm/faq.md"))
        else:
            checks.append(Check(option.text, WARNING, refused, "topology files of this project ask for it"))
    checks.append(Check("options", OK if accepted else FAILED, f"accepted: {' '.join(accepted) or 'none'}"))
    checks += _segments(cluster)
    if cluster.site.container and cluster.site.container.runtime == "pyxis":
        there = "--container-image" in ask(["srun", "--help"]).stdout
        said = "srun has its options" if there else "srun knows no --container-image"
        checks.append(Check("pyxis", OK if there else FAILED, said, "" if there else "use runtime: apptainer, or none"))
    return checks, gpus


def _options(cluster: Cluster, gpus: int) -> Iterator[Option]:
    """Each option that jobs of this site use; the site's own first."""
    site = cluster.site
    for key in ("partition", "account", "qos", "constraint"):
        if getattr(site, key) is not None:
            yield Option(f"--{key}={getattr(site, key)}", f"{key} of site {site.name}")
    yield from (Option(f"--nodes={cluster.nodes}"), Option("--exclusive"), Option("--no-requeue"))
    if gpus and site.gpu_request == "gres":
        yield Option(f"--gres=gpu:{gpus}", f"gpu_request of site {site.name}")
    if gpus and site.gpu_request == "gpus-per-node":
        yield Option(f"--gpus-per-node={gpus}", f"gpu_request of site {site.name}")


def _refused(cluster: Cluster, option: Option, gpus: int) -> str:
    """Slurm's words when it does not take this option beside partition and account; empty when it does."""
    names = ("partition", "account")
    beside = [other for other in _options(cluster, gpus) if other.name in names and other.name != option.name]
    answer = _submission("doctor", _TRIAL, (*beside, option)).send(test_only=True)
    return "" if answer.status == 0 else slurm_words(answer.stderr)


def _segments(cluster: Cluster) -> list[Check]:
    """Whether the site file says the truth about `--segment`."""
    answer = _submission("doctor", _TRIAL, (Option(f"--segment={cluster.nodes}"),)).send(test_only=True)
    knows = "unrecognized option" not in answer.stderr
    if cluster.site.segment and not knows:
        return [Check("--segment", FAILED, slurm_words(answer.stderr), "write segment: false in the site file")]
    if knows and not cluster.site.segment:
        return [Check("--segment", WARNING, "this Slurm has it", "write segment: true where it uses topology/block")]
    return [Check("--segment", OK, "as the site file says: " + ("there" if knows else "not there"))]


def _submission(name: str, script: str, options: tuple[Option, ...]) -> Submission:
    return Submission(Path(name), name, script, options, (), clean_environment(), ())


def _gpus_by_slurm(site: Site) -> int:
    """GPUs that Slurm counts on a node of the site's partition; 0 where it counts none."""
    where = [f"--partition={site.partition}"] if site.partition else []
    counts = re.findall(r"gpu(?::[A-Za-z][\w-]*)?:([0-9]+)", ask(["sinfo", "--noheader", "--format=%G", *where]).stdout)
    return min(map(int, counts), default=0)


def check_by_job(cluster: Cluster, gpus: int) -> list[Check]:
    """Submit a short job, wait for it, and read what it found.

    Raises:
        SetupError: Slurm refuses it.
    """
    out = Path.cwd() / "runs" / ".doctor" / time.strftime("%Y%m%d-%H%M%S")
    out.mkdir(parents=True)
    own = (sys.executable, "-m", "dynamo_mlperf.cli", "doctor", "--site", cluster.site_argument)
    inside = ("--in-job", str(out), "--gpus", str(gpus), "--mib", str(cluster.mib))
    script = f"#!/bin/bash\nexec {shlex.join([*own, *inside])}\n"
    ours = (f"--time={JOB_MINUTES}", f"--output={out}/job.out", "--job-name=dynamo-mlperf-doctor", "--parsable")
    options = (*(option for option in _options(cluster, gpus)), *map(Option, ours))
    submission = _submission("doctor", script, options)
    answer = submission.send()
    if answer.status != 0:
        raise refusal(submission, answer)
    job_id = job_id_of(answer.stdout)
    click.echo(f"job {job_id} looks at {cluster.nodes} nodes; its logs: {out}", err=True)
    try:
        _wait(job_id)
    except BaseException:
        with contextlib.suppress(SetupError):
            ask(["scancel", job_id])
        raise
    return _read(out, job_id)


def _wait(job_id: str) -> None:
    told = ""
    while True:
        info = query_jobs([job_id])[job_id]
        if info.meaning.stage not in {"waiting", "running"}:
            return
        line = f"job {job_id}: {info.meaning.meaning}" + (f" ({info.reason})" if info.reason else "")
        if line != told:
            click.echo(line, err=True)
            told = line
        time.sleep(_POLL_S)


def _read(out: Path, job_id: str) -> list[Check]:
    try:
        found: dict[str, Any] = json.loads(read_bounded(out / FINDINGS))
    except (OSError, ValueError):
        info = query_jobs([job_id])[job_id]
        said = read_text(out / "job.out", errors="replace").strip() if (out / "job.out").is_file() else ""
        last = said.splitlines()[-1] if said else "it printed nothing"
        return [
            Check(
                "job", FAILED, f"job {job_id} left no findings: {info.meaning.meaning}; {last}", f"read {out}/job.out"
            )
        ]
    return [Check(**check) for check in found["checks"]]


def smoke(cluster: Cluster) -> Check:
    """A one-minute serving test over two nodes: real Dynamo and LoadGen, simulated engines, a tiny model.

    Raises:
        SetupError: Slurm refuses the job.
    """
    from dynamo_mlperf.cli.init import TINY_CATALOGUE, TINY_MODEL, shipped_file
    from dynamo_mlperf.cli.submit import submit_and_follow

    work = Path.cwd() / "runs" / ".doctor" / f"{time.strftime('%Y%m%d-%H%M%S')}-smoke"
    _prepare_smoke(work, TINY_MODEL, TINY_CATALOGUE, shipped_file("topologies/rehearse-1p1d.yaml").read_text())
    site = cluster.site_argument
    site = str((Path.cwd() / site).resolve()) if "/" in site or site.endswith((".yaml", ".yml")) else site
    with contextlib.chdir(work):
        standing = submit_and_follow(Path(f"{_SMOKE}.yaml"), site)
    said = f"{standing.outcome.word}: {standing.outcome.text}".rstrip(": ")
    good = standing.outcome.success is True
    return Check("serving test", OK if good else FAILED, said, "" if good else f"read {standing.run.root}")


def _prepare_smoke(work: Path, model: str, catalogue: str, topology: str) -> None:
    from dynamo_mlperf.benchmark.tiny_catalogue import write_tiny_catalogue
    from dynamo_mlperf.benchmark.tiny_model import write_tiny_model
    from dynamo_mlperf.cli.init import shipped_file

    (work / "staging").mkdir(parents=True)
    write_tiny_model(work / "assets" / model)
    write_tiny_catalogue(work / "assets" / catalogue)
    write_atomic(work / "staging" / f"{model}.yaml", shipped_file(f"staging/{model}.yaml").read_text())
    text = topology.replace("name: rehearse-1p1d", f"name: {_SMOKE}").replace(
        "min_duration_s: 20", "min_duration_s: 60"
    )
    write_atomic(work / f"{_SMOKE}.yaml", text)
