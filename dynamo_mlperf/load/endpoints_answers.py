"""The answers of endpoints' accuracy phase, from the event log that it keeps: what its scorer read, for a second one.

A `sample.complete` holds the text as `[kind, output, reasoning, tool calls]`, each a text or a list of pieces, empty
ones at the end left out; `sample_idx_map.json` says by phase which sample an id stands for (`core/types.py` and
`commands/benchmark/execute.py` of mlcommons/endpoints ea332753).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dynamo_mlperf.benchmark.accuracy.answers import Answer
from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.files import MOST_LOG_BYTES, open_regular, read_json, strict_json
from dynamo_mlperf.load.endpoints_events import EVENTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

SAMPLES = "sample_idx_map.json"
_PERFORMANCE = "performance"
_COMPLETE = b'"sample.complete"'
_AGAIN = "put back what endpoints wrote, or run the measurement again"


def accuracy_answers(report_dir: Path) -> Iterator[Answer]:
    """Each answer of the accuracy phase, in the order of their ends.

    Raises:
        MeasureError: The event log or the samples of that phase cannot be read.
    """
    sample_of = _samples(report_dir / SAMPLES)
    path = report_dir / EVENTS
    try:
        with open_regular(path) as log:
            for line in log:
                if _COMPLETE not in line:
                    continue
                event: dict[str, Any] = strict_json(line)
                index = sample_of.get(event["sample_uuid"])
                if index is not None and event["event_type"] == "sample.complete":
                    yield Answer(index, _text(event.get("data")).encode(), None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MeasureError(f"{path} cannot be read: {error}", _AGAIN) from error


def _samples(path: Path) -> Mapping[str, int]:
    """Index in the data set by the sample's id, of every phase but the performance phase."""
    found: dict[str, int] = {}
    try:
        for name, ids in read_json(path, MOST_LOG_BYTES).items():
            if name != _PERFORMANCE:
                found |= {sample: _index(sample, value) for sample, value in ids.items()}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise MeasureError(f"{path} cannot be read: {error}", _AGAIN) from error
    if not found:
        raise MeasureError(f"{path} names no sample of an accuracy phase", _AGAIN)
    return found


def _index(sample: str, value: object) -> int:
    """A sample's place in the data set; `true` and 1.0 are none, though Python counts with both."""
    if type(value) is not int or value < 0:
        raise ValueError(f"sample {sample} has index {value!r:.40}")
    return value


def _text(data: Any) -> str:  # noqa: ANN401 - whatever the line holds
    """The whole text of an answer: what was reasoned, then what was said; empty where there is none."""
    if not isinstance(data, list):
        return ""
    said, reasoned = (data[place] if len(data) > place and data[place] else "" for place in (1, 2))
    return "".join(part if isinstance(part, str) else "".join(part) for part in (reasoned, said))
