"""Why Slurm did not start a step of ours: srun's own words, and what the node lacks.

srun waits for a busy node without end, unless `--immediate` says for how long (srun(1)); then its last line says why.
"Requested nodes are busy" does not say which resource that is: what the job's other steps hold does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.slurm.attach import gpus_in, is_ours
from dynamo_mlperf.slurm.hostlist import expand
from dynamo_mlperf.topology.site_values import core_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

_HEAD_BYTES = 16384
"""Of a step that never started, the log holds srun's few lines alone."""
_REFUSED = re.compile(
    r"^srun: (?:error|fatal): (?:(?:Unable to create (?:job )?step(?: for job \S+)?"
    r"|Unable to confirm allocation for job \S+|Task launch for \S+ failed on node \S+): (?P<why>.+)"
    r"|(?P<late>timeout waiting for task launch.*))$",
    re.MULTILINE,
)
_BUSY = re.compile(r"busy|presently disabled", re.IGNORECASE)
_LACKS = (
    (r"memory", "memory", "ask for all that the nodes have: #SBATCH --exclusive --mem=0"),
    (r"processors|cpu", "CPUs", "ask for all that the nodes have: #SBATCH --exclusive"),
    (r"gres|tres|gpu", "GPUs", "ask for as many as nodes: {gpus: N} says: #SBATCH --gres=gpu:N"),
    (r"prolog", "a node whose prolog has ended", "raise step_start_s in the site file above the prolog's time"),
    (
        r"time(d )?out|contact|connect|communication|respon",
        "an answer of Slurm",
        "see whether NODE and Slurm are up: scontrol ping; scontrol show node NODE",
    ),
    (r"node", "the node", "see what it has: scontrol show node NODE; leave it out: sbatch --exclude=NODE"),
)
"""What Slurm's words speak of, the resource, and one action; the first that fits."""
_OTHERWISE = "look for these words in slurm/faq.md"
_UNITS = ("CPUs", "MiB of memory", "GPUs")
_MIB = {"K": 1 / 1024, "M": 1.0, "G": 1024.0, "T": 1024.0 * 1024.0}

Amounts = tuple[int, int, int]
"""As in `_UNITS`."""


@dataclass(frozen=True)
class Held:
    """What other steps hold on a node of which nothing is left there.

    Attributes:
        texts: For people, one for each resource: `32 of 32 CPUs of n2 held by step 17.4 (hog)`.
        steps: Ids of those steps.
    """

    texts: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()


def refused_words(log: Path) -> str:
    """Why srun could not start the step whose log this is; empty where it could."""
    try:
        with log.open("rb") as source:
            text = source.read(_HEAD_BYTES).decode(errors="replace")
    except OSError:
        return ""
    found = _REFUSED.search(text)
    return (found["why"] or found["late"]).strip() if found else ""


def is_busy(words: str) -> bool:
    """Whether the step waited for what others hold."""
    return _BUSY.search(words) is not None


def step_refusal(step: str, host: str, words: str, waited_s: float, held: Held) -> SetupError:
    """The error to raise.

    Args:
        step: The process and its node, for people.
        host: The node.
        words: What srun said.
        waited_s: How long the step waited.
        held: What other steps hold there.
    """
    missing, action = _missing(words, host, held)
    told = f"; missing: {missing}" if missing else ""
    return SetupError(f"Slurm did not start {step} in {waited_s:.0f} s: {words}{told}", action)


def _missing(words: str, host: str, held: Held) -> tuple[str, str]:
    if is_busy(words) and held.steps:
        return ", ".join(held.texts), f"end what holds it: scancel {' '.join(held.steps)}; or start that with --overlap"
    if is_busy(words):
        return f"CPUs, memory or GPUs of {host}", "see what holds them while the job runs: scontrol show step JOBID"
    for pattern, what, action in _LACKS:
        if re.search(pattern, words, re.IGNORECASE):
            return what, action.replace("NODE", host)
    return "", _OTHERWISE


def held_by_others(job: str, steps: str, host: str) -> Held:
    """What steps that are not ours hold on a node, as far as they leave nothing of it.

    Args:
        job: What `scontrol --details --oneliner show job ID` says.
        steps: What `scontrol --oneliner show step ID` says.
        host: The node.
    """
    given = _given(job, host)
    rows = [row for line in steps.splitlines() if (row := _row(line, host)) is not None]
    texts: list[str] = []
    ids: dict[str, None] = {}
    for at, unit in enumerate(_UNITS):
        holders = [(step, name) for step, name, amounts in rows if amounts[at]]
        total = sum(amounts[at] for _step, _name, amounts in rows)
        if total and total >= given[at]:
            who = ", ".join(f"step {step} ({name})" for step, name in holders)
            texts.append(f"{total} of {given[at]} {unit} of {host} held by {who}")
            ids |= dict.fromkeys(step for step, _name in holders)
    return Held(tuple(texts), tuple(ids))


def _given(job: str, host: str) -> Amounts:
    """What the job has on the node."""
    for names, cores, memory, gres in re.findall(r"\bNodes=(\S+) CPU_IDs=(\S*) Mem=(\d+) GRES=(\S*)", job):
        if host in _hosts(names):
            return len(core_numbers(cores)) if cores else 0, int(memory), gpus_in(gres)
    return 0, 0, 0


def _row(line: str, host: str) -> tuple[str, str, Amounts] | None:
    """Id, name and amounts of a step that runs there and is not ours; its nodes hold equal shares."""
    values = dict(word.split("=", 1) for word in line.split() if "=" in word)
    step, name, nodes = values.get("StepId", ""), values.get("Name", ""), _hosts(values.get("NodeList", ""))
    # Ours overlap and hold nothing that others wait for; nor does the batch script's, which has no number.
    holds = re.fullmatch(r"\d+\.\d+", step) and values.get("State") == "RUNNING" and not is_ours(name)
    if not holds or host not in nodes:
        return None
    held = dict(part.split("=", 1) for part in values.get("TRES", "").split(",") if "=" in part)
    memory = re.fullmatch(r"([\d.]+)([KMGT]?)", held.get("mem", ""))
    mib = float(memory[1]) * _MIB[memory[2] or "M"] if memory else 0.0
    cpus, gpus = int(held.get("cpu", 0)), gpus_in(values.get("TresPerNode", ""))
    return step, name, (round(cpus / len(nodes)), round(mib / len(nodes)), gpus)


def _hosts(text: str) -> Sequence[str]:
    try:
        return expand(text)
    except ConfigError:
        return ()
