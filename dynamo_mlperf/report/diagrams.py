"""Pictures of the job: its timeline, and the way of the KV cache from prefill to decode."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynamo_mlperf.report import quantities as q
from dynamo_mlperf.report.svg import WIDTH, Plot, line, picture, rect, text, x_axis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynamo_mlperf.report.figures import Proof
    from dynamo_mlperf.report.timeline import Phase, Process, Timeline

_LABELS = 190.0
_ROW, _BAR = 20.0, 14.0
_GROUP_GAP = 14.0
_TEXT_ROOM = 90.0
_MOST_PROCESSES = 60
_BOX_WIDTH, _BOX_HEIGHT = 236.0, 112.0


@dataclass(frozen=True)
class Row:
    """One line of the timeline: `bars` are (begin, end, CSS class) in seconds; `end` is where its note stands."""

    label: str
    bars: tuple[tuple[float, float, str], ...]
    note: str
    end_s: float
    died: bool = False


def timeline_chart(name: str, timeline: Timeline, node_names: dict[str, str]) -> str:
    """Phases and processes of a job as bars over time.

    Args:
        name: Unique within the page.
        timeline: What happened.
        node_names: Names of node positions, by the position as text.
    """
    shown = shown_processes(timeline.processes)
    length_s = timeline.length_s or 1.0
    phases = [_phase_row(phase, length_s) for phase in timeline.phases]
    processes = [_process_row(process, length_s, node_names) for process in shown]
    split = 8 + _ROW * len(phases) + _GROUP_GAP
    bottom = split + _ROW * len(processes) + 6
    plot = Plot(_LABELS, WIDTH - 24.0, 8, bottom, (0.0, length_s), (0.0, 1.0))
    parts = [_band(plot, phase, length_s) for phase in timeline.phases if phase.name == "measure"]
    parts += [part for place, row in enumerate(phases) for part in _row(plot, row, 8 + _ROW * place)]
    parts += [part for place, row in enumerate(processes) for part in _row(plot, row, split + _ROW * place)]
    parts += x_axis(plot, "seconds after the job began")
    left_out = len(timeline.processes) - len(shown)
    hidden = f" {left_out} processes that came up sooner are left out." if left_out else ""
    counted = f"{q.many(len(phases), 'phase')} and {q.many(len(processes), 'process', 'processes')}"
    about = f"{counted} over {q.duration(length_s)}.{hidden}"
    return picture(name, bottom + 44, "Timeline of the job", about, parts)


def shown_processes(processes: Sequence[Process]) -> list[Process]:
    """At most 60 processes in the order of their start: what died, then what took longest to be ready."""
    if len(processes) <= _MOST_PROCESSES:
        return list(processes)

    def weight(process: Process) -> tuple[bool, float]:
        return process.died, float("inf") if process.ready_s is None else process.ready_s - process.started_s

    chosen = sorted(processes, key=weight, reverse=True)[:_MOST_PROCESSES]
    return sorted(chosen, key=lambda process: process.started_s)


def _phase_row(phase: Phase, length_s: float) -> Row:
    end_s = length_s if phase.end_s is None else phase.end_s
    css = "phase measure" if phase.name == "measure" else "phase"
    if phase.seconds is None:
        return Row(phase.name, ((phase.begin_s, end_s, f"{css} open"),), "did not end", end_s)
    return Row(phase.name, ((phase.begin_s, end_s, css),), q.duration(phase.seconds), end_s)


def _process_row(process: Process, length_s: float, node_names: dict[str, str]) -> Row:
    end_s = length_s if process.exited_s is None else process.exited_s
    ready_s = end_s if process.ready_s is None else min(process.ready_s, end_s)
    bars = ((process.started_s, ready_s, "starting"), (ready_s, end_s, "serving"))
    node = node_names.get(process.node, process.node)
    label = f"{process.name} · {node}" if node else process.name
    note = f"ready after {q.duration(ready_s - process.started_s)}" if process.ready_s is not None else ""
    if process.died:
        note = f"ended by itself, status {process.status}"
    return Row(label, bars, note, end_s, died=process.died)


def _band(plot: Plot, phase: Phase, length_s: float) -> str:
    """A tint behind all rows while the measurement lasts."""
    left = plot.x(phase.begin_s)
    return rect(left, plot.top - 4, plot.x(phase.end_s or length_s) - left, plot.bottom - plot.top + 4, "band")


def _row(plot: Plot, row: Row, top: float) -> list[str]:
    middle = top + _ROW / 2
    parts = [text(plot.left - 10, middle + 4, _shortened(row.label), "row-label", "end")]
    for begin_s, end_s, css in row.bars:
        if end_s > begin_s or css != "serving":
            width = max(plot.x(end_s) - plot.x(begin_s), 1.5)
            parts.append(rect(plot.x(begin_s), middle - _BAR / 2, width, _BAR, css))
    begin, end = plot.x(row.bars[0][0]), plot.x(row.end_s)
    if row.died:
        parts.append(f'<path class="cross" d="M{end - 5:.1f} {middle - 5:.1f}l10 10m0-10l-10 10"/>')
    if not row.note:
        return parts
    room = _TEXT_ROOM * (2 if row.died else 1)
    if end + room < plot.right:
        parts.append(text(end + 8, middle + 4, row.note, "row-note"))
    elif begin - room > plot.left:
        parts.append(text(begin - 6, middle + 4, row.note, "row-note", "end"))
    else:
        parts.append(text(plot.x(row.bars[-1][0]) + 6, middle + 4, row.note, "row-note on-bar"))
    return parts


def _shortened(label: str, most: int = 30) -> str:
    return label if len(label) <= most else f"{label[: most - 1]}…"


def flow(name: str, proof: Proof, prefill: str, decode: str) -> str:
    """The way of a request's KV cache with the counted numbers.

    Args:
        name: Unique within the page.
        proof: The counted numbers.
        prefill: The prefill workers in words, `4 workers, 8 GPUs`.
        decode: The decode workers in words.
    """
    counted = proof.kind == "kv-counters"
    left, right, middle = 8.0, WIDTH - 8.0 - _BOX_WIDTH, 66.0
    parts = _box(left, "prefill", "Prefill", prefill, _requests(proof.prefill_requests))
    parts += _box(right, "decode", "Decode", decode, _requests(proof.requests))
    start, end = left + _BOX_WIDTH + 14, right - 14
    parts += [
        line(start, middle, end - 8, middle, "arrow" if counted else "arrow guessed"),
        f'<path class="arrow-head" d="M{end} {middle}l-13-6.5v13z"/>',
    ]
    over = f"{q.size(proof.kv_bytes)} of KV cache over NIXL" if counted else f"KV cache: {q.NOT_MEASURED}"
    under = (
        f"{q.count(proof.transfers)} transfers, {q.count(proof.failed_transfers)} failed"
        if counted
        else f"proof: {proof.kind}"
    )
    prefills = f"{q.count(proof.remote_prefills)} of {q.count(proof.requests)} prefilled remotely"
    centre = (start + end) / 2
    parts += [
        text(centre, middle - 34, prefills, "flow-main", "middle"),
        text(centre, middle - 12, over, "flow-note", "middle"),
        text(centre, middle + 24, under, "flow-note", "middle"),
    ]
    about = f"From prefill ({prefill}) to decode ({decode}): {prefills}; {over}; {under}."
    return picture(name, _BOX_HEIGHT + 20, "From prefill to decode", about, parts)


def _requests(number: int | None) -> str:
    return f"requests: {q.NOT_MEASURED}" if number is None else f"{q.many(number, 'request')} finished"


def _box(left: float, css: str, title: str, workers: str, requests: str) -> list[str]:
    return [
        rect(left, 10, _BOX_WIDTH, _BOX_HEIGHT, f"box {css}", radius=8),
        text(left + _BOX_WIDTH / 2, 46, title, "flow-title", "middle"),
        text(left + _BOX_WIDTH / 2, 74, workers, "flow-note", "middle"),
        text(left + _BOX_WIDTH / 2, 98, requests, "flow-note", "middle"),
    ]
