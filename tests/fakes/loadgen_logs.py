"""LoadGen's summary as it belongs to a detail log that a test made or changed."""

from __future__ import annotations

from pathlib import Path

from dynamo_mlperf.load.loadgen_summary import KEYS
from dynamo_mlperf.load.logs import SUMMARY, read_logs


def write_summary(directory: Path) -> None:
    """Write the summary that LoadGen leaves beside the detail log in `directory`."""
    log = read_logs(directory)
    shown = KEYS if log.validity else {}
    lines = [f"{name} : {log.values[key]}" for name, key in shown.items() if key in log.values]
    count = log.error_count
    end = (
        f"{count} ERROR{'S' * (count > 1)} encountered. See detailed log."
        if count
        else "No errors encountered during test."
    )
    head = ["MLPerf Results Summary", "SUT name : PySUT"] if shown else []
    (directory / SUMMARY).write_text(
        "\n".join([*head, *lines, "", "No warnings encountered during test.", "", end]) + "\n"
    )
