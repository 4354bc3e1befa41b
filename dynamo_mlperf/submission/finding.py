"""What stands in the way of a submission: where, what was wanted, what was found, what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import DynamoMlperfError, ExitCode
from dynamo_mlperf.process.secret_words import redacted, without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from dynamo_mlperf.record import Reason


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it has to be.

    Attributes:
        where: The run, or the file of a tree.
        check: What was looked at.
        wanted: What the rules ask for.
        got: What is there.
        action: What to do about it.
    """

    where: str
    check: str
    wanted: str
    got: str
    action: str

    def text(self) -> str:
        """One line for people, secrets out."""
        wanted, got = redacted(self.wanted), redacted(self.got)
        return f"{self.where}: {self.check}: wanted {wanted}, got {got}. {self.action}"

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values, the line for people among them."""
        return {**without_secrets(asdict(self)), "text": self.text()}


def from_reasons(where: object, reasons: Iterable[Reason]) -> list[Finding]:
    """A verdict's reasons as findings about `where`."""
    return [Finding(str(where), reason.check, reason.wanted, reason.got, reason.action) for reason in reasons]


class RefusedError(DynamoMlperfError):
    """Runs or a tree that cannot be submitted (exit 6), with every finding."""

    exit_code = ExitCode.CHECK_FAILED

    def __init__(self, what: str, findings: Sequence[Finding]) -> None:
        lines = "\n".join(f"  {finding.text()}" for finding in findings)
        super().__init__(f"{what}\n{lines}" if lines else what)
        self.findings = tuple(findings)
