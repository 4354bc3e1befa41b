"""Which tests make one result: a benchmark's performance, accuracy and compliance tests in one scenario."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dynamo_mlperf.submission.finding import Finding
from dynamo_mlperf.submission.records import ACCURACY, PERFORMANCE, TestRecord, tests_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from dynamo_mlperf.submission.records import Run


@dataclass(frozen=True)
class Result:
    """All tests of one benchmark in one scenario, by name."""

    benchmark: str
    scenario: str
    tests: dict[str, TestRecord] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What people call it."""
        return f"{self.benchmark} {self.scenario}"

    @property
    def performance(self) -> TestRecord | None:
        """Its performance test."""
        return self.tests.get(PERFORMANCE)

    @property
    def accuracy(self) -> TestRecord | None:
        """Its accuracy test."""
        return self.tests.get(ACCURACY)

    @property
    def runs(self) -> list[Run]:
        """The runs that its tests lie in, each once, the performance test's first."""
        first = [PERFORMANCE] if PERFORMANCE in self.tests else []
        ordered = [self.tests[name].run for name in (*first, *sorted(self.tests))]
        return list({run.root: run for run in ordered}.values())

    @property
    def where(self) -> str:
        """The run to name where the whole result is meant."""
        return self.runs[0].name


def collect(roots: Sequence[Path]) -> tuple[list[Result], list[Finding]]:
    """The results in these run directories, in order of name; and each test that is there twice.

    Raises:
        ConfigError: One holds no test, or records that cannot be read.
    """
    results: dict[tuple[str, str], Result] = {}
    findings = []
    for record in _each(roots):
        result = results.setdefault((record.benchmark, record.scenario), Result(record.benchmark, record.scenario))
        other = result.tests.setdefault(record.name, record)
        if other is not record:
            got = f"{other.directory} and {record.directory}"
            findings.append(Finding(record.run.name, record.what, "one test", got, "leave one of the two runs out"))
    return [results[key] for key in sorted(results)], findings


def _each(roots: Sequence[Path]) -> Iterable[TestRecord]:
    for root in dict.fromkeys(path.resolve() for path in roots):
        yield from tests_of(root)
