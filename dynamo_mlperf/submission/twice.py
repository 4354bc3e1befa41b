"""Evidence that stands for two results: no test is both, whatever its settings say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dynamo_mlperf.submission.finding import Finding
from dynamo_mlperf.submission.proofs import sha256_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


def used_twice(files: Iterable[Path]) -> list[Finding]:
    """Every file that is the same, byte for byte, as one before it.

    Args:
        files: One of each test that no two tests have in common: LoadGen's detail log, or endpoints' summary. Both
            hold times.

    Raises:
        OSError: One cannot be read.
    """
    first: dict[str, Path] = {}
    findings = []
    for path in files:
        other = first.setdefault(sha256_of(path), path)
        if other != path:
            action = "one test is one result: run the other too"
            findings.append(Finding(str(path), "evidence", "a test of its own", f"the same as {other}", action))
    return findings
