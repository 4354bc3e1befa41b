"""A submission: the sbatch command line and the script that are sent, as one frozen value that can be printed.

The script is the topology file, byte for byte, handed to sbatch on its standard input: what is shown is what is sent,
and a later edit of the file changes nothing. What the site adds stands on the command line, where sbatch lets it
override; an option that the file itself gives stays the file's.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.files import read_bounded, write_atomic, write_json
from dynamo_mlperf.process.programs import Finished, UnansweredError, run_program
from dynamo_mlperf.process.secret_words import is_secret_name
from dynamo_mlperf.slurm.programs import ASK_S, answered, clean_environment
from dynamo_mlperf.topology.batch import batch_directives, option_directives

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from dynamo_mlperf.site import Site
    from dynamo_mlperf.topology.batch import Directive

RECORDS = ".submitted"
"""Below `runs/`: what was submitted, one directory per job."""
RECORD = "submission.json"
COMMAND_LINE = "the command line"
SITES = "sites"
"""Below `RECORDS`: site files as they were when a job was submitted, by digest."""
_END = "END OF SCRIPT"
_END_OF_SITE = "END OF SITE"
_DIGEST_LETTERS = 12
_SITE_KEYS = ("partition", "account", "qos", "constraint")
_OTHER_JOBS = ("array", "wrap", "hetjob", "packjob")
_OURS = ("wait", "test-only")
"""With them sbatch does not come back at once, or sends nothing."""
_WITHOUT_REQUEUE = "--no-requeue"


@dataclass(frozen=True)
class Option:
    """One option of the sbatch command line and where it comes from.

    Attributes:
        text: As it stands on the command line.
        origin: For messages: the site's key, or `the command line`; empty where we give it ourselves.
    """

    text: str
    origin: str = ""

    @property
    def name(self) -> str:
        """Its long name without dashes."""
        return self.text.lstrip("-").partition("=")[0]


@dataclass(frozen=True)
class SiteCopy:
    """A site file as it is now, for a job that reads it when it starts.

    Attributes:
        place: Where the copy lies, below the directory of submission: `runs/.submitted/sites/DIGEST/NAME.yaml`.
        text: Its content.
    """

    place: str
    text: str

    @staticmethod
    def of(file: Path) -> SiteCopy:
        """The copy of a site file; its name stays, as a site may be called by it.

        Raises:
            SetupError: It cannot be read.
        """
        try:
            text = file.read_bytes().decode()
        except (OSError, UnicodeDecodeError) as problem:
            raise SetupError(f"{file}: {problem}", "name a site file that can be read") from problem
        digest = hashlib.sha256(text.encode()).hexdigest()[:_DIGEST_LETTERS]
        return SiteCopy(f"runs/{RECORDS}/{SITES}/{digest}/{file.stem}.yaml", text)

    def write(self, base: Path) -> None:
        """Write it, unless it is there.

        Raises:
            SetupError: It cannot be written.
        """
        path = base / self.place
        try:
            if not path.is_file():
                path.parent.mkdir(parents=True, exist_ok=True)
                write_atomic(path, self.text)
        except OSError as problem:
            raise SetupError(f"{path}: {problem.strerror}", "submit from a directory of your own") from problem

    def as_lines(self) -> str:
        """Lines of shell that write it."""
        folder, path = shlex.quote(self.place.rpartition("/")[0]), shlex.quote(self.place)
        return f"mkdir -p {folder} && cat >{path} {_here(self.text, _END_OF_SITE)}"


def _here(text: str, mark: str) -> str:
    """A here-document of exactly this text."""
    while mark in text.split("\n"):  # what follows such a line would be run as commands
        mark += " ."
    end = "" if text.endswith("\n") else "\n"
    return f"<<'{mark}'\n{text}{end}{mark}\n"


@dataclass(frozen=True)
class Submission:
    """What is sent to Slurm.

    Attributes:
        file: The topology file, for messages.
        name: The topology's name; names the run.
        script: The text that sbatch reads.
        options: Options of the command line.
        arguments: What the script gets as its own arguments.
        environment: What sbatch, and by it the job, gets.
        left_out: Names of the caller's variables that it does not get.
        notes: What the person who submits should know.
        site: The copy of the site file that the job reads; None for the built-in site.
        typed: The words of the `submit` that sends the same.
    """

    file: Path
    name: str
    script: str
    options: tuple[Option, ...]
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    left_out: tuple[str, ...]
    notes: tuple[str, ...] = ()
    site: SiteCopy | None = None
    typed: tuple[str, ...] = ()

    @property
    def argv(self) -> tuple[str, ...]:
        """The whole command line; the script comes on standard input."""
        return ("sbatch", *(option.text for option in self.options), "/dev/stdin", *self.arguments)

    def as_text(self) -> str:
        """A shell script that sends the same."""
        site = f"# The site file as it is now; the job reads this copy.\n{self.site.as_lines()}" if self.site else ""
        typed = shlex.join(self.typed).replace("\n", " ")  # it stands in a comment, which a line end would end
        return (
            "#!/usr/bin/env bash\n"
            f"# What `{typed}` sends: this command line, and this script on standard input.\n"
            f"{site}{shlex.join(self.argv)} {_here(self.script, _END)}"
        )

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values; of the environment only the names that were left out."""
        return {
            "argv": list(self.argv),
            "script": self.script,
            "variables_left_out": list(self.left_out),
            "notes": list(self.notes),
            "site": None if self.site is None else dict(vars(self.site)),
        }

    def send(self, *, test_only: bool = False) -> Finished:
        """Have sbatch take it.

        Raises:
            SetupError: sbatch is not installed, or does not answer.
        """
        argv = (self.argv[0], *(("--test-only",) if test_only else ()), *self.argv[1:])
        try:
            return answered(run_program(argv, timeout_s=ASK_S, env=self.environment, given=self.script))
        except UnansweredError as problem:
            action = "Slurm may have it all the same: look with squeue --me before you send it again"
            raise SetupError(problem.what, action) from problem


def make_submission(
    file: Path,
    name: str,
    site: Site,
    *,
    gpus: int,
    nodes: int | None = None,
    segment: int | None = None,
    more: Sequence[str] = (),
    site_argument: str | None = None,
    site_copy: SiteCopy | None = None,
    resume: str | None = None,
    redo: bool = False,
    caller: Mapping[str, str] | None = None,
) -> Submission:
    """What `submit` sends.

    Args:
        file: The topology file.
        name: The topology's name; names the job, where the file does not.
        site: The site's settings.
        gpus: GPUs of each node.
        nodes: Node count, where it is another than the file's.
        segment: Nodes of one NVLink domain, where Slurm is to be asked for it; see `segment_of`.
        more: Further options of sbatch, from the command line; they come last and win.
        site_argument: The site that the job is to use, as a person names it, where it is not the file's own.
        site_copy: The site file as it is now; the job then reads this copy.
        resume: The run directory that the job is to go on with.
        redo: Whether it looks again for answers found with other settings.
        caller: The caller's environment; default the process's own.

    Raises:
        ConfigError: An option makes something else than one job of it, or holds a secret.
    """
    script = file.read_bytes().decode()  # read_text would mend line ends, and Slurm is to see the file as it is
    given = batch_directives(script)
    _refuse_options(given, more)
    own = [Option("--parsable"), Option(_WITHOUT_REQUEUE)]
    if not any(directive.option == "job-name" for directive in given):
        own.append(Option(f"--job-name={name}"))
    if nodes is not None:
        own.append(Option(f"--nodes={nodes}"))
    added, notes = [], []
    for option in (*_site_options(site, given, gpus), *_segment_options(site, segment)):
        kept = next((directive for directive in reversed(given) if directive.option == option.name), None)
        if kept is None or option.name in {"gres", "gpus-per-node"}:
            added.append(option)
        elif kept.value != option.text.partition("=")[2]:
            notes.append(f"{file}:{kept.line}: --{kept.option}={kept.value} stands, {option.origin} is not used")
    typed = _arguments(site_argument, nodes, resume, redo=redo)
    environment = clean_environment(caller)
    seen = _environment_names(caller)
    return Submission(
        file,
        name,
        script,
        (*own, *added, *(Option(text, COMMAND_LINE) for text in more)),
        _arguments(site_argument if site_copy is None else site_copy.place, nodes, resume, redo=redo),
        environment,
        tuple(sorted(seen - set(environment))),
        tuple(notes),
        site_copy,
        ("dynamo-mlperf", "submit", str(file), *typed, *(("--", *more) if more else ())),
    )


def _arguments(site: str | None, nodes: int | None, resume: str | None, *, redo: bool) -> tuple[str, ...]:
    """What the script gets as its own arguments."""
    given = (("--site", site), ("--nodes", str(nodes) if nodes else None), ("--resume", resume))
    return (*(word for name, value in given if value for word in (name, value)), *(("--redo",) if redo else ()))


def _environment_names(caller: Mapping[str, str] | None) -> set[str]:
    return set(os.environ if caller is None else caller)


def _site_options(site: Site, given: Sequence[Directive], gpus: int) -> Iterator[Option]:
    for key in _SITE_KEYS:
        value = getattr(site, key)
        if value is not None:
            yield Option(f"--{key}={value}", f"{key} of site {site.name}")
    yield from _gpu_options(site, given, gpus)


def _gpu_options(site: Site, given: Sequence[Directive], gpus: int) -> Iterator[Option]:
    """The site's way to ask for GPUs, where the file's `--gres` is another."""
    gres = next((directive.value or "" for directive in reversed(given) if directive.option == "gres"), "")
    entries = [entry for entry in gres.split(",") if entry]
    others = [entry for entry in entries if not re.match(r"(gres[:/])?gpu\b", entry)]
    if site.gpu_request == "gres" or len(others) == len(entries):
        return
    origin = f"gpu_request of site {site.name}"
    yield Option(f"--gres={','.join(others) or 'none'}", origin)
    if site.gpu_request == "gpus-per-node":
        yield Option(f"--gpus-per-node={gpus}", origin)


def segment_of(nodes: int, domain: int | None) -> int | None:
    """How many nodes of one NVLink domain a job needs at a time; None where it needs none, or no number does it.

    Slurm fills a job with whole segments (sbatch, --segment, with topology/block), so they have to divide the job.

    Args:
        nodes: Nodes of the job.
        domain: Nodes that share one NVLink domain; None when each is a domain of its own.
    """
    if domain is None or domain < 2 or nodes < 2:  # noqa: PLR2004 - one node is always in one domain
        return None
    if nodes <= domain:
        return nodes
    return domain if nodes % domain == 0 else None


def _segment_options(site: Site, segment: int | None) -> Iterator[Option]:
    if site.segment and segment is not None:
        yield Option(f"--segment={segment}", f"segment of site {site.name}")


def _refuse_options(given: Sequence[Directive], more: Sequence[str]) -> None:
    named = [(_meant(directive.option), directive.value or "", f"line {directive.line}") for directive in given]
    for directive in option_directives(more):
        if directive.value is None and directive.option in more:
            what = f"{COMMAND_LINE}: {directive.option!r} is no option; sbatch would take it for the script"
            raise ConfigError(what, "leave it out, or join it to its option: --time=5")
        named.append((_meant(directive.option), directive.value or "", COMMAND_LINE))
    for name, value, where in named:
        if name in _OTHER_JOBS:
            raise ConfigError(f"{where}: --{name} makes something else than one job of the file", "leave it out")
        if name in _OURS or (name == "requeue" and where == COMMAND_LINE):
            raise ConfigError(f"{where}: --{name} is not for sbatch here", "use submit's own --wait or --dry-run")
        secret = [word for word in re.findall(r"([A-Za-z_]\w*)=", value) if is_secret_name(word)]
        if name == "export" and secret:
            raise ConfigError(f"{where}: --export shows {secret[0]} to everybody who can list jobs", "leave it out")


def _meant(name: str) -> str:
    """The option that a name means, where it is one that matters here: sbatch takes unique beginnings of names."""
    if len(name) == 1:
        return {"a": "array", "W": "wait"}.get(name, name)
    return next((full for full in (*_OTHER_JOBS, *_OURS, "requeue") if full.startswith(name)), name)


def job_id_of(answer: str) -> str:
    """The job's id in what `sbatch --parsable` answers: `ID` or `ID;CLUSTER`.

    Raises:
        SetupError: There is none.
    """
    ids = [found[1] for line in answer.splitlines() if (found := re.fullmatch(r"([0-9]+)(;\S+)?", line.strip()))]
    if not ids:
        raise SetupError(
            f"sbatch accepted the job but named no id; it said: {answer.strip()!r}", "look for it: squeue --me"
        )
    return ids[-1]


@dataclass(frozen=True)
class Submitted:
    """A job that was submitted from here.

    Attributes:
        job_id: Its id.
        name: The topology's name.
        run_dir: Where the job records its run.
        file: The topology file.
        submitted_t: When, in seconds since the epoch.
    """

    job_id: str
    name: str
    run_dir: str
    file: str
    submitted_t: float

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return dict(vars(self))


def record_submission(runs: Path, submission: Submission, job: Submitted) -> Path:
    """Keep what was sent, beside the runs: `runs/.submitted/ID/`.

    Raises:
        OSError: It cannot be written.
    """
    directory = runs / RECORDS / job.job_id
    directory.mkdir(parents=True, exist_ok=True)
    write_atomic(directory / submission.file.name, submission.script)
    write_json(directory / RECORD, {**job.as_json(), **submission.as_json()})
    return directory


def read_submissions(runs: Path) -> dict[str, Submitted]:
    """All jobs that were submitted from here, by id; records that cannot be read are left out."""
    found = {}
    for path in sorted((runs / RECORDS).glob(f"*/{RECORD}")):
        try:
            value = json.loads(read_bounded(path))
            job = Submitted(**{name: value[name] for name in Submitted.__dataclass_fields__})
            if not (re.fullmatch(r"[0-9]+", job.job_id) and _is_place(job.run_dir) and job.submitted_t >= 0):
                continue
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        found[job.job_id] = job
    return found


def _is_place(text: object) -> bool:
    """Whether it can be the path of a directory."""
    return isinstance(text, str) and text.startswith("/") and "\0" not in text
