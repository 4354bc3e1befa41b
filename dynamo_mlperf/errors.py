"""Exit codes and error classes: what every verb ends with, and why.

An error says what happened, with the number, and names one action that works.
"""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit codes of every verb; the batch job ends with the same one, so `sacct` tells the truth."""

    DONE = 0
    BUG = 1
    USAGE = 2
    SETUP = 3
    FAILED = 4
    INVALID = 5
    CHECK_FAILED = 6
    INTERRUPTED = 130
    TERMINATED = 143


class DynamoMlperfError(Exception):
    """Base of all errors that a user can act on.

    Args:
        what: What happened, with the number.
        action: One action that works; empty only where `what` already says it.
    """

    exit_code: ExitCode = ExitCode.BUG

    def __init__(self, what: str, action: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.action = action

    def __str__(self) -> str:
        return f"{self.what}\n  Try: {self.action}" if self.action else self.what


class ConfigError(DynamoMlperfError):
    """A file, flag or value that cannot be used as it is (exit 2)."""

    exit_code = ExitCode.USAGE


class CapacityError(ConfigError):
    """More asked for than the nodes hold (exit 2)."""


class SetupError(DynamoMlperfError):
    """Staging, Slurm or the environment is not as it has to be (exit 3)."""

    exit_code = ExitCode.SETUP


class ServingError(DynamoMlperfError):
    """The deployment did not come up, or a part of it died (exit 4)."""

    exit_code = ExitCode.FAILED


class MeasureError(DynamoMlperfError):
    """The load client did not measure (exit 4)."""

    exit_code = ExitCode.FAILED


class Stopped(DynamoMlperfError):
    """A signal asked us to stop (exit 130 for SIGINT, 143 for SIGTERM)."""

    def __init__(self, exit_code: ExitCode, what: str) -> None:
        super().__init__(what)
        self.exit_code = exit_code
