"""Whether a partition holds as many nodes as a job asks for: Slurm takes one that asks for more, and lets it wait."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.slurm.programs import ask
from dynamo_mlperf.topology.batch import batch_directives, option_directives

if TYPE_CHECKING:
    from dynamo_mlperf.slurm.submission import Submission


def check_nodes(submission: Submission) -> str | None:
    """Whether a partition of the job gives it its nodes.

    Returns:
        A warning with the numbers; None where one does, or where Slurm does not say.
    """
    options = (option.text for option in submission.options)
    given = {each.option: each.value or "" for each in batch_directives(submission.script)}
    given |= {each.option: each.value or "" for each in option_directives(list(options))}
    asked = re.match(r"[0-9]+", given.get("nodes", ""))
    if asked is None:
        return None
    nodes, limits = int(asked[0]), _limits([name for name in given.get("partition", "").split(",") if name])
    if not limits or any(nodes <= limit for limit, _ in limits.values()):
        return None
    told = "; ".join(f"partition {name} {text}" for name, (_, text) in limits.items())
    waits = "Slurm lets such a job wait without end (PartitionNodeLimit, PartitionConfig)"
    return f"the job asks for {nodes} nodes, and {told}; {waits}: give fewer --nodes, or another partition: -- -p NAME"


def _limits(names: list[str]) -> dict[str, tuple[float, str]]:
    """Most nodes of a job in each of these partitions, else in the default one, and why; empty where Slurm is mute."""
    try:
        answer = ask(["scontrol", "--oneliner", "show", "partition"])
    except SetupError:
        return {}
    found = {}
    for line in answer.stdout.splitlines() if answer.status == 0 else ():
        row = dict(re.findall(r"(\w+)=(\S*)", line))
        name, total, most = (row.get(key, "") for key in ("PartitionName", "TotalNodes", "MaxNodes"))
        if (name in names if names else row.get("Default") == "YES") and total.isdecimal() and int(total) > 0:
            limit = int(most) if most.isdecimal() else math.inf
            text = f"has {total}" + (f" and gives a job {most} at most" if limit < int(total) else "")
            found[name] = (min(int(total), limit), text)
    return found
