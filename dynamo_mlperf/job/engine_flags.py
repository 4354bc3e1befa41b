"""Asks the engine which flags it knows, once per version, beside everything else that a job does at its start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynamo_mlperf.job.known_flags import engine_environment, keep, kept_answer, read_kept
from dynamo_mlperf.job.nodes import temporary_of
from dynamo_mlperf.process.command import RUN_VARIABLE, Command
from dynamo_mlperf.process.machine import run_mark
from dynamo_mlperf.serving.engine_flags import flags_in_help, question, refuse_unknown
from dynamo_mlperf.serving.supervisor import Layer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dynamo_mlperf.job.context import Job
    from dynamo_mlperf.process.child import Child
_POLITE = ("nice", "-n", "19")
"""Nobody waits for the answer, and engines start beside it."""


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
    cached = kept_answer(job.site, job.topology, versions)
    if legal := read_kept(cached):
        refuse_unknown(job.topology, legal)
        return
    output = job.paths.logs / "engine-flags.txt"
    command = Command(
        "engine-flags",
        (*_POLITE, job.site.engine_python, *question(job.topology)),
        {
            **engine_environment(job.topology),
            **temporary_of(job, job.plan.head_node),
            RUN_VARIABLE: run_mark(job.run_id),
        },
        job.paths.log_of("engine-flags"),
        node=job.plan.head_node,
        output=output,
        engine=True,
    )
    child = job.supervisor.start(command, Layer.TASK, may_end=True)
    job.supervisor.watch(_Answer(job, child, output, cached).look)


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
        keep(self._cached, legal)
        refuse_unknown(self._job.topology, legal)
