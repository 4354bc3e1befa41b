"""How a run stands, in words: what `status`, `submit --wait` and `cancel` say."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from dynamo_mlperf.job.measurement import progress_line
from dynamo_mlperf.report.quantities import printable
from dynamo_mlperf.report.resuming import how_to_resume

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynamo_mlperf.slurm.runs import Run, WorkerFacts
    from dynamo_mlperf.slurm.standing import Standing

_GAP = "  "
_NO_CUT = {"WAITING", "RUNNING", "VALID", "INVALID"}
"""How a run stands whose search or sweep nobody has cut."""
_SHOWN = 120
"""Characters of each remark in a table; a run shown alone has them whole."""


def table(found: Sequence[Standing]) -> str:
    """One line for each run: name, job, how it stands, phase, workers, and what there is to say."""
    head = ("RUN", "JOB", "STANDS", "PHASE", "WORKERS", "REMARKS")
    rows = [head, *(_row(standing) for standing in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(head) - 1)]
    return "\n".join(_GAP.join([*map(str.ljust, row[:-1], widths), row[-1]]).rstrip() for row in rows)


def _row(standing: Standing) -> tuple[str, ...]:
    run = standing.run
    parts = [*said(standing), *(f"warning: {text}" for text in standing.outcome.warnings)]
    parts = [part if len(part) <= _SHOWN else f"{part[:_SHOWN]} ..." for part in parts]
    return (
        run.name,
        run.job_id or "-",
        standing.outcome.word,
        phase(run),
        workers(run.workers, over=run.finished is not None),
        "; ".join(parts),
    )


def phase(run: Run) -> str:
    """The phase that runs and for how long; nothing of a run that has ended."""
    if not run.phase or run.finished is not None:
        return "-"
    return f"{run.phase} {max(0.0, time.time() - run.phase_t):.0f} s"


def workers(found: Sequence[WorkerFacts], *, over: bool = False) -> str:
    """How many workers are ready, and how many have ended; once all are ended, what became of them."""
    if not found:
        return "-"
    states = [worker.state for worker in found]
    if over or "stopped" in states:
        left = "gone" if over else "stopping"
        names = {"planned": "never started", "starting": left, "ready": left}
        counts = Counter(names.get(state, state) for state in sorted(states))
        return ", ".join(f"{number} {state}" for state, number in counts.items())
    ended = states.count("ended")
    if ended == len(found):
        return f"{ended} ended"
    return f"{states.count('ready')} of {len(found)} ready" + (f", {ended} ended" if ended else "")


def said(standing: Standing) -> tuple[str, ...]:
    """What there is to say of the run: why it waits, how far it is, how it ended."""
    run, outcome = standing.run, standing.outcome
    parts = [printable(outcome.text)] if outcome.text else []
    if outcome.word == "RUNNING" and run.phase in {"measure", "search"} and run.progress:
        with suppress(KeyError, TypeError, ValueError):  # figures that are damaged, or another version's: no line
            parts.append(progress_line(dict(run.progress)))
    return tuple(parts)


def _absent(standing: Standing) -> str:
    """Why there are no records."""
    if standing.outcome.word in {"WAITING", "RUNNING"}:
        return "not there yet"
    return "none were made" if standing.job is not None and standing.job.ended else "not seen from here"


def details(standing: Standing) -> str:
    """A run on its own: how it stands, its job, each worker."""
    run, job, outcome = standing.run, standing.job, standing.outcome
    lines = [f"{run.name}  {outcome.word}", *(f"  {text}" for text in said(standing))]
    lines += [f"  warning  {text}" for text in outcome.warnings]
    lines.append(f"  phase    {phase(run)}")
    if job is not None:
        where = f" on {job.nodes}" if job.nodes else ""
        why = f", {job.reason}" if job.reason else ""
        source = f" (by {job.source})" if job.source else ""
        lines.append(f"  job      {job.job_id} {job.state}{why}{where}{source}")
    width = max((len(worker.name) for worker in run.workers), default=0)
    for worker in run.workers:
        ended = f" with {worker.status}" if worker.state == "ended" else ""
        lines.append(f"  worker   {worker.name.ljust(width)}  {worker.state}{ended}  {worker.host}".rstrip())
    if run.present and outcome.word not in _NO_CUT and (how := how_to_resume(run.root)):
        lines.append(f"  go on    {how}")
    lines.append(f"  records  {run.root}" + ("" if run.present else f" ({_absent(standing)})"))
    return "\n".join(printable(line) for line in lines)
