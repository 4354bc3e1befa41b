"""Where each file of a tree lies (v6.x: no `measurements/` and no `compliance/` folder).

Source: `submission_structure.md` and the path constants of mlcommons/inference b66003e1,
`tools/submission/submission_checker/constants.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DIVISION = "closed"
LOGS = ("mlperf_log_summary.txt", "mlperf_log_detail.txt")
PERFORMANCE_LOGS = "performance/run_1"
ACCURACY_FOLDER = "accuracy"
MEASUREMENTS, README, USER_CONF = "measurements.json", "README.md", "user.conf"
RECORD = "record/record.json"
MANIFEST = "documentation/package.json"
CALIBRATION = "documentation/calibration.md"
SOURCES = "src"
MAX_ACCURACY_LOG_BYTES = 10_240


@dataclass(frozen=True)
class Submitter:
    """One submitter's part of a tree."""

    root: Path

    @property
    def name(self) -> str:
        """As the folder is called."""
        return self.root.name

    def system(self, name: str) -> Path:
        """The JSON file of a system."""
        return self.root / "systems" / f"{name}.json"

    def scenario(self, system: str, benchmark: str, scenario: str) -> Path:
        """The folder of one result."""
        return self.root / "results" / system / benchmark / scenario

    @property
    def manifest(self) -> Path:
        """Digests of all files as they were packaged."""
        return self.root / MANIFEST


def submitter_of(tree: Path, name: str) -> Submitter:
    """The part of `tree` that is the submitter's."""
    return Submitter(tree / DIVISION / name)
