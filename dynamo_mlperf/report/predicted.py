"""Predictions for people: the table and picture of a rehearsal, and predicted beside measured after a real run."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from textwrap import wrap
from typing import TYPE_CHECKING

from rich.table import Table

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.report import quantities as q
from dynamo_mlperf.report.run_files import is_there
from dynamo_mlperf.tuning.prediction import FILE_NAME, Prediction, SplitPrediction, read_prediction

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CONSTRAINTS = {
    "end_to_end": "end-to-end latency",
    "ttft": "time to first token",
    "tpot": "time per output token",
    "throughput": "throughput",
}
"""By binding constraint: what people call it."""
_SPLITS_SHOWN = 60
_TOLD_APART = 0.07
"""How far apart rates have to be: as far as seeds and the simulated router move one of them (docs/rehearsal.md)."""
_PAIR = 2
_WIDTH, _LEFT, _BAR, _ROW, _TOP = 860, 90, 380, 24, 58
_COLOURS = {"prefill": "#1d6fb8", "decode": "#b8541d", "aggregated": "#1f7a4d", None: "#777777"}
_FONT = "font:12px system-ui,sans-serif;fill:#222"
_LINE, _LETTERS = 17, 120  # px from one line of the basis to the next; letters that fit the width in wide fonts


@dataclass(frozen=True)
class Beside:
    """A prediction of the split that ran, beside what was measured.

    Attributes:
        split: The split.
        rehearsed: The predicted rate, for people.
        measured: The measured rate, for people.
        difference: Of measured against rehearsed, for people; empty where one is missing.
        basis: Method, profiles and calibration, for people.
    """

    split: str
    rehearsed: str
    measured: str
    difference: str
    basis: str


def beside(run_dir: Path, split: str, measured_qps: float | None) -> Beside | None:
    """Predicted beside measured of a run; None where its directory holds no usable prediction of its split."""
    path = run_dir / FILE_NAME
    if not is_there(path):
        return None
    try:
        prediction = read_prediction(path)
    except ConfigError:
        return None
    mine = next((each for each in prediction.splits if each.split == split), None)
    if mine is None:
        return None
    difference = ""
    if mine.rate_qps and measured_qps:
        difference = f"{100 * (measured_qps / mine.rate_qps - 1):+.1f} % against rehearsed"
    return Beside(split, rate_text(mine), q.rate(measured_qps), difference, basis(prediction))


def rate_text(split: SplitPrediction) -> str:
    """`44.26`, or `passes at no rate`."""
    return "passes at no rate" if split.rate_qps is None else q.rate(split.rate_qps)


def basis(prediction: Prediction) -> str:
    """What a prediction rests on, in one line."""
    profiles = dict.fromkeys(
        f"{facts.get('profile')} ({facts.get('origin')})" for facts in prediction.profiles.values()
    )
    found = f"{prediction.method}; profiles {', '.join(profiles) or 'not said'}"
    factors = prediction.calibration.get("factors")
    if not factors:
        return f"{found}; not calibrated"
    return (
        f"{found}; calibrated: prefill x {factors.get('prefill')}, ITL x {factors.get('itl')}, "
        f"{factors.get('overhead_ms')} ms overhead"
    )


def too_close(prediction: Prediction) -> tuple[str, ...]:
    """That the best splits are too close for a rehearsal to tell which is better; empty where one stands out."""
    rated = [each for each in prediction.splits if each.rate_qps is not None]
    most = max((each.rate_qps or 0.0 for each in rated), default=0.0)
    near = [each.split for each in rated if (each.rate_qps or 0.0) >= (1.0 - _TOLD_APART) * most]
    if len(near) < _PAIR:
        return ()
    told = f"{', '.join(near[:-1])} and {near[-1]}"
    apart = f"{100 * _TOLD_APART:.0f} %"
    return (f"{told} are within {apart}, closer than rehearsals tell apart: --seed draws others, a sweep measures",)


def splits_table(prediction: Prediction) -> Table:
    """The table of a rehearsal, the best split first."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, title_justify="left")
    table.add_column("split")
    for title in (f"rehearsed {_unit(prediction)}", "per GPU", "GPUs"):
        table.add_column(title, justify="right")
    table.add_column("binds")
    table.add_column("bottleneck")
    for each in prediction.splits:
        per_gpu = q.NO_VALUE if each.per_gpu_qps is None else f"{each.per_gpu_qps:.3f}"
        table.add_row(
            each.split,
            rate_text(each),
            per_gpu,
            str(each.gpus),
            CONSTRAINTS.get(each.binding or "", each.binding or q.NO_VALUE),
            each.bottleneck or q.NO_VALUE,
        )
    return table


def _unit(prediction: Prediction) -> str:
    return "samples/s" if prediction.scenario == "Offline" else "queries/s"


def as_svg(prediction: Prediction) -> str:
    """The picture: a bar per split, coloured by its bottleneck role; one SVG document that needs nothing else."""
    shown = [each for each in prediction.splits if each.rate_qps is not None][:_SPLITS_SHOWN]
    most = max((each.rate_qps or 0.0 for each in shown), default=1.0)
    title = f"{prediction.name}: {prediction.benchmark} {prediction.scenario}, rehearsed (simulated engines)"
    parts = [f'<text x="12" y="24" style="font:bold 14px system-ui,sans-serif;fill:#222">{escape(title)}</text>']
    parts += _legend([role for role in _COLOURS if any(each.bottleneck == role for each in shown)])
    for row, each in enumerate(shown):
        top = _TOP + row * _ROW
        length = round(_BAR * (each.rate_qps or 0.0) / most, 1)
        fill = _COLOURS.get(each.bottleneck, _COLOURS[None])
        per_gpu = f"{each.per_gpu_qps:.3f} per GPU" if each.per_gpu_qps else ""
        said = f"{rate_text(each)} {_unit(prediction)} ({per_gpu}); {CONSTRAINTS.get(each.binding or '', 'no limit')}"
        parts.append(_text(12, top + 14, each.split))
        parts.append(f'<rect x="{_LEFT}" y="{top}" width="{length}" height="{_ROW - 6}" rx="3" fill="{fill}"/>')
        parts.append(_text(_LEFT + length + 8, top + 14, said))
    below = _TOP + len(shown) * _ROW + 20
    lines = wrap(basis(prediction), _LETTERS, break_on_hyphens=False)
    parts += [_text(12, below + row * _LINE, line) for row, line in enumerate(lines)]
    height = below + len(lines) * _LINE
    size = f'width="{_WIDTH}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {_WIDTH} {height}" role="img">'
    return "\n".join([head, f"<title>{escape(title)}</title>", f'<rect {size} fill="#fff"/>', *parts, "</svg>", ""])


def _legend(roles: Sequence[str | None]) -> list[str]:
    parts, left = [], 12
    for role in roles:
        parts.append(f'<rect x="{left}" y="35" width="12" height="12" rx="3" fill="{_COLOURS[role]}"/>')
        parts.append(_text(left + 18, 45, f"bottleneck: {role}" if role else "no bottleneck role"))
        left += 190
    return parts


def _text(left: float, top: float, content: str) -> str:
    return f'<text x="{left:g}" y="{top:g}" style="{_FONT}">{escape(content)}</text>'
