"""Why sbatch refused a job: Slurm's own words, and the line that they are about.

Words that name an option point to it. Where they do not ("Requested node configuration is not available"), the job is
tried again without each option in turn, by `sbatch --test-only`, which submits nothing: the option without which Slurm
no longer says so is the cause.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.topology.batch import batch_directives

if TYPE_CHECKING:
    from collections.abc import Iterator

    from dynamo_mlperf.process.programs import Finished
    from dynamo_mlperf.slurm.submission import Submission

_ABOUT = (
    (r"partition", ("partition",)),
    (r"account", ("account", "partition")),
    (r"\bqos\b", ("qos",)),
    (r"feature", ("constraint",)),
    (r"node name|nodelist", ("nodelist", "exclude")),
    (r"gres|generic resource", ("gres",)),
    (r"trackable resource|tres specification", ("gpus-per-node", "gres", "gpus")),
    (r"reservation", ("reservation",)),
    (r"license", ("licenses",)),
    (r"memory specification", ("mem", "mem-per-cpu", "mem-per-gpu")),
    (r"time limit", ("time", "partition")),
    (r"dependency", ("dependency",)),
)
_NAMED = (r"unrecognized option '--([a-z-]+)", r"[Ii]nvalid --([a-z-]+) specification", r"option '--([a-z-]+)'")
_PREFIX = re.compile(r"^(sbatch|slurm\w*): ((error|fatal): )?|^Batch job submission failed: |^allocation failure: ")


def refusal(submission: Submission, answer: Finished) -> SetupError:
    """The error to raise when sbatch ended with a status that is not 0."""
    words = slurm_words(answer.stderr or answer.stdout) or f"sbatch ended with status {answer.status}"
    causes = list(_by_words(submission, words)) or list(_by_trial(submission, words))
    about = "".join(f"\n  {cause}" for cause in causes)
    action = (
        f"change {'that line' if len(causes) == 1 else 'one of those lines'}"
        if causes
        else "try by hand what `submit --dry-run` prints"
    )
    return SetupError(f"Slurm refused the job: {words}{about}", f"{action}; slurm/faq.md explains what Slurm says")


def slurm_words(text: str) -> str:
    """What Slurm says without the names of its programs before it, each sentence once."""
    lines: list[str] = []
    for line in text.splitlines():
        plain = line.strip()
        while (stripped := _PREFIX.sub("", plain)) != plain:
            plain = stripped
        if plain and plain not in lines and not plain.startswith('Try "sbatch --help"'):
            lines.append(plain)
    return "; ".join(lines)


def _places(submission: Submission) -> Iterator[tuple[str, str, Submission]]:
    """Each option that is not ours: its name, where it stands, and the submission without it; those that win first."""
    for at, option in reversed(list(enumerate(submission.options))):
        if option.origin:
            rest = (*submission.options[:at], *submission.options[at + 1 :])
            yield option.name, f"{option.origin}: {option.text}", replace(submission, options=rest)
    lines = submission.script.split("\n")
    for directive in batch_directives(submission.script):
        line = lines[directive.line - 1]
        shorter = f"{line[: directive.start]}{line[directive.end :]}"
        script = "\n".join((*lines[: directive.line - 1], shorter, *lines[directive.line :]))
        where = f"{submission.file}:{directive.line}: {line[directive.start : directive.end]}"
        yield directive.option, where, replace(submission, script=script)


def _by_words(submission: Submission, words: str) -> Iterator[str]:
    named = {found[1] for pattern in _NAMED if (found := re.search(pattern, words))}
    about = [names for pattern, names in _ABOUT if re.search(pattern, words, re.IGNORECASE)]
    wanted = named or (set(about[0]) if about else set())
    overridden: set[str] = set()
    for name, where, _ in _places(submission):
        if name in wanted and name not in overridden:
            overridden.add(name)
            yield where


def _by_trial(submission: Submission, words: str) -> Iterator[str]:
    for _, where, without in _places(submission):
        try:
            tried = without.send(test_only=True)
        except SetupError:
            return
        if tried.status == 0 or slurm_words(tried.stderr) != words:
            yield where
