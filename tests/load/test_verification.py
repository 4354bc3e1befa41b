"""Verification of compliance answers from the accuracy log alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dynamo_mlperf.benchmark.accuracy.scores import Scores
from dynamo_mlperf.errors import MeasureError
from dynamo_mlperf.load.audit import COMPLIANCE_TESTS
from dynamo_mlperf.load.verification import verify_length, verify_score, verify_tokens

EOS = {7}
TEST07, TEST09 = COMPLIANCE_TESTS["TEST07"], COMPLIANCE_TESTS["TEST09"]


def entry(sample: int, ids: list[int], **more: Any) -> dict[str, Any]:
    """One answer as LoadGen logs it; `first` and `count` may lie."""
    data = np.array(ids, "<i4").tobytes().hex().upper()
    first = more.pop("first", ids[:1])
    told = {} if first is None else {"token_data": np.array(first, "<i4").tobytes().hex().upper()}
    return {"seq_id": sample, "qsl_idx": sample, "data": data, **told, "token_count": more.pop("count", len(ids))}


def log_of(directory: Path, *entries: dict[str, Any]) -> Path:
    path = directory / "mlperf_log_accuracy.json"
    path.write_text(json.dumps(entries))
    return path


@pytest.mark.parametrize(
    ("bad", "line", "reason"),
    [
        (entry(3, [4, 5, 7, 7]), "EOS check pass: False", "end-of-text tokens (7)"),
        (entry(3, [7, 7]), "EOS check pass: False", "end-of-text tokens (7)"),
        (entry(3, [4, 5, 7], first=[5]), "First token check pass: False", "TEST06 first token"),
        (entry(3, [4, 5, 7], first=None), "First token check pass: False", "TEST06 first token"),
        (entry(3, [4, 5, 7], count=4), "Sample length check pass: False", "length of the answer"),
    ],
)
def test_one_bad_answer_is_named(tmp_path: Path, bad: dict[str, Any], line: str, reason: str) -> None:
    good = [entry(0, [4, 5, 7]), entry(1, [4, 5, 6]), entry(2, [7])]
    assert verify_tokens(log_of(tmp_path, *good), EOS, offline=False).reasons == ()
    found = verify_tokens(log_of(tmp_path, *good, bad), EOS, offline=False)
    assert line in found.text.splitlines()
    assert found.text.endswith("TEST06 verification failed\n")
    (only,) = found.reasons
    assert reason in only.check
    assert only.got == "not in 1 of 4: sample 3"


def test_two_end_of_text_tokens_of_two_kinds_are_two(tmp_path: Path) -> None:
    log = log_of(tmp_path, entry(0, [4, 7, 9]))
    assert verify_tokens(log, {7, 9}, offline=True).reasons
    assert not verify_tokens(log, {9}, offline=True).reasons


@pytest.mark.parametrize(("mean", "passes"), [(900, False), (1150, False), (1278, True), (1407, False)])
def test_mean_length_of_a_hundred_answers(tmp_path: Path, mean: int, passes: bool) -> None:  # noqa: FBT001 - a value
    log = log_of(tmp_path, *(entry(n, [5] * (mean + (n % 2) * 10 - 5)) for n in range(100)))
    found = verify_length(TEST09, log)
    assert found.scores["mean_output_tokens"] == mean
    assert ("TEST PASS" in found.text.splitlines()) == passes
    assert bool(found.reasons) != passes
    if not passes:
        assert "wanted 1150.38 to 1406.02" in found.reasons[0].text()


def test_characters_are_no_tokens(tmp_path: Path) -> None:
    """1278 letters would be in the band, and so would be a quarter of 5112 of them."""
    for letters, count in ((1278, 300), (5112, 1100)):
        value = {"seq_id": 0, "qsl_idx": 0, "data": (b"a" * letters).hex(), "token_count": count}
        with pytest.raises(MeasureError, match="no token ids"):
            verify_length(TEST09, log_of(tmp_path, value))


@pytest.mark.parametrize("text", ["", "[", "{}", "[1]", '[{"qsl_idx": 0}]', '[{"qsl_idx": 0, "data": "0102"}]', "[]"])
def test_what_is_no_log_is_said_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mlperf_log_accuracy.json"
    path.write_text(text)
    with pytest.raises(MeasureError):
        verify_tokens(path, EOS, offline=False)
    if '"0102"' not in text:
        with pytest.raises(MeasureError):
            verify_length(TEST09, path)


@pytest.mark.parametrize(
    ("metrics", "passes"), [({"exact_match": 60.698}, True), ({"exact_match": 60.697}, False), ({}, False)]
)
def test_score_at_the_threshold(metrics: dict[str, float], passes: bool) -> None:  # noqa: FBT001 - a value
    found = verify_score(TEST07, Scores("gpt-oss-120b", 990, metrics, "0" * 64))
    assert ("TEST PASS" in found.text, bool(found.reasons)) == (passes, not passes)
