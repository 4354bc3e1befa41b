"""What in a run's record is noise: it differs between any two runs of one file and says nothing about either.

The rules: paths of the run itself, the job's nonce and namespace, ports, addresses of its nodes, what Slurm sets for
each step, which GPUs a worker was given (the plan tells those), and whose account, language and scratch space it was.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dynamo_mlperf.report.run_data import RunData

_NOISE_NAME = re.compile(
    r"DYNAMO_MLPERF_RUN|(SLURM|SRUN|PMIX?)_[A-Z0-9_]*|[A-Z]+_VISIBLE_DEVICES|([A-Z0-9_]*_)?PORT|--([a-z-]*-)?port"
    r"|HOME|USER|LOGNAME|LANG|LC_[A-Z]+|TZ|TMPDIR|XDG_CACHE_HOME"
)
"""Names of variables and flags whose values are noise as a whole."""
_NONCE = re.compile(r"^(?P<name>.+)-(?P<nonce>[0-9a-f]{6})$")
_PORT = re.compile(r"((?:NODE|localhost|\*|\]|\b\d{1,3}(?:\.\d{1,3}){3}|//[^\s/:]+)):\d{2,5}\b")
_NAMESPACE = "DYN_NAMESPACE"


@dataclass(frozen=True)
class Noise:
    """The noise of one run.

    Attributes:
        words: Texts to replace, each with what stands for it, in this order.
    """

    words: tuple[tuple[str, str], ...] = ()

    def masked(self, text: str) -> str:
        """`text` with the run's own words replaced, so that two runs of one file read alike."""
        for word, instead in self.words:
            text = text.replace(word, instead)
        return _PORT.sub(r"\1:PORT", text)


def is_noise(name: str) -> bool:
    """Whether a variable or flag of this name is noise whatever its value."""
    return _NOISE_NAME.fullmatch(name) is not None


def noise_of(run: RunData) -> Noise:
    """The words of a run that any other run has otherwise."""
    roots = {str(run.paths.root), str(run.paths.root.resolve()), str((run.verdict or {}).get("run_dir") or "")}
    roots |= {str(Path(command.log).parent.parent) for command in run.commands if command.log.startswith("/")}
    words = [(root, "RUN") for root in sorted(roots - {"", "/", "."}, key=len, reverse=True)]
    namespaces = {command.env.get(_NAMESPACE, "") for command in run.commands}
    for found in filter(None, map(_NONCE.match, sorted(namespaces))):
        words += [(found[0], "NAMESPACE"), (found["nonce"], "NONCE")]
    nodes = run.layout.nodes if run.layout else ()
    places = {place for node in nodes for place in (node.address, node.host) if place and place != "localhost"}
    words += [(place, "NODE") for place in sorted(places, key=len, reverse=True)]
    return Noise(tuple(words))
