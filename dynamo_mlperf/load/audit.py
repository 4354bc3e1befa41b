"""The compliance tests: what each one's `audit.config` tells LoadGen, and what LoadGen's log must then show.

An `audit.config` in LoadGen's working directory is applied after `user.conf`, without a word but a warning in the
detail log; one that lies elsewhere is not missed by anybody. So the file is placed for one test, its pick-up is read
from the log, and it is taken away again.

Source of the settings: `compliance/TEST06/audit.config`, `compliance/TEST07/gpt-oss-120b/audit.config` and
`compliance/TEST09/gpt-oss-120b/audit.config` of mlcommons/inference at b66003e1; of the thresholds, the same files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from dynamo_mlperf.load.settings import LoadSettings

AUDIT_CONFIG = "audit.config"
"""Its name in LoadGen's working directory."""

_PERFORMANCE_MODE = 2
_LOG_SEED = 720381539243781796


@dataclass(frozen=True)
class ComplianceTest:
    """One compliance test.

    Attributes:
        name: TEST06, TEST07 or TEST09.
        sampling_target: Answers that LoadGen logs: at least so many, where there are as many.
        min_query_count: Fewest queries (samples in Offline).
        issue_unique: Whether each loaded sample is issued once.
        samples: Samples of the test's data set; None = those of the performance test.
        thresholds: What its verification reads, by the key in `audit.config`.
        verified_by: The file that its verification writes.
    """

    name: str
    sampling_target: int
    min_query_count: int
    issue_unique: bool
    samples: int | None
    thresholds: Mapping[str, float]
    verified_by: str

    def audit_config(self) -> str:
        """The text of its `audit.config`: every line has an effect on LoadGen or on the verification."""
        values: dict[str, float] = {
            "mode": _PERFORMANCE_MODE,
            "accuracy_log_rng_seed": _LOG_SEED,
            "accuracy_log_sampling_target": self.sampling_target,
            "min_query_count": self.min_query_count,
            "min_duration": 0,
            "sample_concatenate_permutation": 0,
        }
        if self.issue_unique:
            values["performance_issue_unique"] = 1
        return "".join(f"*.*.{key} = {value}\n" for key, value in {**values, **self.thresholds}.items())

    def lowered(self, samples: int) -> ComplianceTest:
        """The same where the data set has fewer samples than the rules ask for: never of an official result."""
        return replace(self, min_query_count=min(self.min_query_count, samples))

    def settings(self, performance: LoadSettings) -> LoadSettings:
        """What is in force in this test where `performance` is what `user.conf` was written from."""
        return replace(
            performance,
            min_duration_ms=0,
            min_query_count=self.min_query_count,
            sample_concatenate_permutation=False,
            mode="performance",
        )

    def expected_effective(self) -> dict[str, Any]:
        """What the detail log shows of the file beyond the settings."""
        return {
            "effective_accuracy_log_rng_seed": _LOG_SEED,
            "effective_accuracy_log_sampling_target": self.sampling_target,
            "effective_performance_issue_unique": self.issue_unique,
        }


COMPLIANCE_TESTS: Mapping[str, ComplianceTest] = MappingProxyType(
    {
        "TEST06": ComplianceTest("TEST06", 100, 100, False, None, MappingProxyType({}), "verify_accuracy.txt"),  # noqa: FBT003 - named above
        "TEST07": ComplianceTest(
            name="TEST07",
            sampling_target=990,
            min_query_count=990,
            issue_unique=True,
            samples=990,
            thresholds=MappingProxyType({"test07_accuracy_threshold": 60.698}),
            verified_by="verify_accuracy.txt",
        ),
        "TEST09": ComplianceTest(
            name="TEST09",
            sampling_target=10_000,
            min_query_count=6_396,
            issue_unique=True,
            samples=None,
            thresholds=MappingProxyType({"test09_min_output_tokens": 1150.38, "test09_max_output_tokens": 1406.02}),
            verified_by="verify_output_len.txt",
        ),
    }
)
"""By name; which of them a benchmark needs, its rules say (`compliance_tests`)."""


def compliance_test(name: str) -> ComplianceTest:
    """The compliance test called `name`.

    Raises:
        ConfigError: There is none here.
    """
    if name not in COMPLIANCE_TESTS:
        raise ConfigError(f"no compliance test {name!r}", f"there are {', '.join(COMPLIANCE_TESTS)}")
    return COMPLIANCE_TESTS[name]


def place_audit_config(test: ComplianceTest, working_directory: Path) -> Path:
    """Put the test's `audit.config` where LoadGen looks for it; returns its path.

    Raises:
        ConfigError: One lies there already: of another test, or left behind.
    """
    path = working_directory / AUDIT_CONFIG
    if path.exists():
        raise ConfigError(f"{path} lies there already: it would change the test", "remove it and run again")
    path.write_text(test.audit_config())
    return path
