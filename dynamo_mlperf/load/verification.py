"""What a compliance test's answers prove: our own reading of `mlperf_log_accuracy.json`, and the file that says so.

The submission checker reads nothing but lines of that file: for TEST06 `First token check pass: True` (or `Skipped`,
in Offline), `EOS check pass: True` and `Sample length check pass: True`, for TEST07 and TEST09 `TEST PASS`
(mlcommons/inference b66003e1, `tools/submission/submission_checker/checks/compliance_check.py`). Token ids lie in the
log as 32-bit integers, little-endian, which is what `compliance/TEST06` and `compliance/TEST09` there read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dynamo_mlperf.benchmark.accuracy.answers import AnswerLog
from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.files import read_json
from dynamo_mlperf.load.audit import ComplianceTest
from dynamo_mlperf.record import Reason

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from dynamo_mlperf.benchmark.accuracy.scores import Scores

TOKEN_ID = np.dtype("<i4")
"""Of the ids in LoadGen's accuracy log."""

_NAMED = 10
_PASS, _FAIL = "TEST PASS", "TEST FAIL"


@dataclass(frozen=True)
class Verification:
    """What was found.

    Attributes:
        text: The whole of the file that a submission carries.
        scores: Figures by name.
        targets: What they are held to, by the same names.
        reasons: Why the test has not passed; empty where it has.
        bounds_only: Whether every reason is a bound on what the model answers, which says nothing of a rehearsal.
    """

    text: str
    scores: Mapping[str, float]
    targets: Mapping[str, Any] = field(default_factory=dict)
    reasons: tuple[Reason, ...] = ()
    bounds_only: bool = True


@dataclass(frozen=True)
class _TokenAnswer:
    """One answer as token ids."""

    sample: int
    ids: npt.NDArray[np.int32]
    first: npt.NDArray[np.int32] | None
    count: int | None


def _token_answers(path: Path) -> list[_TokenAnswer]:
    """The answers of a log of token ids; TEST06 logs a hundred.

    Raises:
        MeasureError: The log is missing, cut, or no such log.
    """
    try:
        entries = read_json(path)
        return [_token_answer(entry) for entry in entries]
    except OSError as error:
        raise MeasureError(f"{path}: {error.strerror}", "run the compliance test again") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise MeasureError(
            f"{path} is no log of token ids: {type(error).__name__} {error}", "run the compliance test again"
        ) from error


def _token_answer(entry: Mapping[str, Any]) -> _TokenAnswer:
    first, count = entry.get("token_data"), entry.get("token_count")
    return _TokenAnswer(
        sample=int(entry["qsl_idx"]),
        ids=np.frombuffer(bytes.fromhex(entry["data"]), TOKEN_ID),
        first=None if first is None else np.frombuffer(bytes.fromhex(first), TOKEN_ID),
        count=None if count is None else int(count),
    )


def _named(samples: list[int]) -> str:
    more = f" and {len(samples) - _NAMED} more" if len(samples) > _NAMED else ""
    return f"sample{'' if len(samples) == 1 else 's'} {', '.join(map(str, samples[:_NAMED]))}{more}"


def trailing_eos(ids: npt.NDArray[np.int32], eos: Collection[int]) -> int:
    """How many end-of-text tokens an answer ends with."""
    count = 0
    for token in reversed(ids.tolist()):
        if token not in eos:
            break
        count += 1
    return count


def verify_tokens(log: Path, eos: Collection[int], *, offline: bool) -> Verification:
    """TEST06: first tokens agree with the answers, none ends with more than one end-of-text, lengths agree.

    Args:
        log: The accuracy log of the test.
        eos: The model's own end-of-text ids.
        offline: Whether this is Offline, where no first token is reported by itself.

    Raises:
        MeasureError: The log holds no such answers.
    """
    answers = _token_answers(log)
    if not answers:
        raise MeasureError(f"{log}: 0 answers", "see mlperf_log_detail.txt; run the compliance test again")
    first = [] if offline else [one.sample for one in answers if not _first_agrees(one)]
    repeated = [one.sample for one in answers if trailing_eos(one.ids, eos) > 1]
    lengths = [one.sample for one in answers if len(one.ids) != one.count]
    lines = [
        f"First token check pass: {'Skipped' if offline else not first}",
        f"EOS check pass: {not repeated}",
        f"Sample length check pass: {not lengths}",
        f"TEST06 verification {'failed' if first or repeated or lengths else 'complete'}",
    ]
    shown = ", ".join(map(str, sorted(eos)))
    found = (
        ("first token", "the first of the answer's own", first, "the engine's first chunk and its answer differ"),
        (
            f"end-of-text tokens ({shown}) at the end of an answer",
            "one at most",
            repeated,
            "stop at the first end-of-text token; ignore_eos and a wrong chat template do this",
        ),
        ("length of the answer", "as many token ids as usage counts", lengths, "look at the engine's usage"),
    )
    reasons = [
        Reason(f"TEST06 {what}", wanted, f"not in {len(samples)} of {len(answers)}: {_named(samples)}", action)
        for what, wanted, samples, action in found
        if samples
    ]
    scores = {
        "answers": len(answers),
        "first_token_mismatches": len(first),
        "answers_with_repeated_eos": len(repeated),
        "length_mismatches": len(lengths),
    }
    targets = {"eos_token_ids": sorted(eos)}
    return Verification("\n".join(lines) + "\n", scores, targets, tuple(reasons), bounds_only=False)


def _first_agrees(answer: _TokenAnswer) -> bool:
    told = answer.first
    return told is not None and 0 < len(told) <= len(answer.ids) and np.array_equal(told, answer.ids[: len(told)])


def verify_score(test: ComplianceTest, scores: Scores) -> Verification:
    """TEST07: what was answered in performance mode is worth as much as it has to be.

    Args:
        test: TEST07.
        scores: Of its accuracy log.
    """
    floor = test.thresholds["test07_accuracy_threshold"]
    score = scores.metrics.get("exact_match")
    passed = score is not None and score >= floor
    shown = "none: not every answer was scored" if score is None else f"{score:g}"
    lines = [
        f"Accuracy score: {shown}",
        f"Accuracy threshold: {floor:g}",
        f"Accuracy check pass: {passed}",
        _PASS if passed else _FAIL,
    ]
    action = "the model answers worse in performance mode: same weights, template and sampling as in the accuracy run"
    reasons = () if passed else (Reason("TEST07 exact_match", f">= {floor:g}", shown, action),)
    return Verification("\n".join(lines) + "\n", dict(scores.metrics), {"exact_match": floor}, reasons)


def verify_length(test: ComplianceTest, log: Path) -> Verification:
    """TEST09: the mean number of output tokens, counted by their ids, is that of the reference within a tenth.

    Args:
        test: TEST09.
        log: The accuracy log of the test, which holds token ids.

    Raises:
        MeasureError: The log holds no token ids: characters are no tokens.
    """
    low, high = (test.thresholds[f"test09_{bound}_output_tokens"] for bound in ("min", "max"))
    counts: list[int] = []
    for answer in AnswerLog(log):
        tokens, rest = divmod(len(answer.data), TOKEN_ID.itemsize)
        if rest or (answer.token_count is not None and answer.token_count != tokens):
            raise MeasureError(
                f"{log}: sample {answer.index} has {len(answer.data)} bytes for {answer.token_count} tokens, which are "
                "no token ids",
                "run TEST09 again with token ids asked from the engine",
            )
        counts.append(tokens)
    mean = sum(counts) / len(counts)
    passed = low <= mean <= high
    lines = [
        f"Samples: {len(counts)}",
        f"Mean output tokens: {mean:.2f} (fewest {min(counts)}, most {max(counts)})",
        f"Allowed: {low:g} to {high:g}",
        f"Output length check pass: {passed}",
        _PASS if passed else _FAIL,
    ]
    action = "check the chat template, the reasoning effort, the end-of-text token and the cap on output tokens"
    reason = Reason(
        "TEST09 mean output tokens", f"{low:g} to {high:g}", f"{mean:.2f} over {len(counts)} answers", action
    )
    scores = {"mean_output_tokens": mean, "answers": float(len(counts))}
    targets = {"mean_output_tokens": [low, high]}
    return Verification("\n".join(lines) + "\n", scores, targets, () if passed else (reason,))
