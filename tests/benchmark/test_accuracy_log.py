"""Accuracy logs: read as a stream, refused with the number where answers are missing or too many, truncated for the tree."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_mlperf.benchmark.accuracy import answers as answers_module
from dynamo_mlperf.benchmark.accuracy.answers import AnswerLog
from dynamo_mlperf.benchmark.accuracy.scoring import score_accuracy_log
from dynamo_mlperf.benchmark.accuracy.truncation import MAX_BYTES, truncate_log
from dynamo_mlperf.errors import ConfigError, MeasureError
from tests.benchmark.accuracy_logs import write_log, write_texts, write_truth


def score(log: Path) -> float:
    return score_accuracy_log("deepseek-r1", log, log.parent).metrics["exact_match"]


@given(
    texts=st.lists(st.binary(max_size=40), min_size=1, max_size=30), block=st.integers(1, 90), one_line=st.booleans()
)
def test_a_log_reads_the_same_in_blocks_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, texts: list[bytes], block: int, *, one_line: bool
) -> None:
    log = write_log(tmp_path_factory.mktemp("log"), [(index, text, index) for index, text in enumerate(texts)])
    if one_line:
        log.write_text(json.dumps(json.loads(log.read_text())))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(answers_module, "_BLOCK_BYTES", block)
        read = AnswerLog(log)
        assert [(answer.index, answer.data, answer.token_count) for answer in read] == [
            (index, text, index) for index, text in enumerate(texts)
        ]
    assert read.sha256 == hashlib.sha256(log.read_bytes()).hexdigest()


def test_one_answer_to_each_sample_is_accepted(tmp_path: Path) -> None:
    write_truth(tmp_path, [("gpqa", "A"), ("gpqa", "B")])
    assert score(write_texts(tmp_path, ["Answer: A", "Answer: C"])) == 50.0


@pytest.mark.parametrize(
    ("answers", "told"),
    [
        ([], "0 answers"),
        ([(0, b"Answer: A", 1)], "1 answers to 2 samples; 1 have none, the first is sample 1"),
        ([(0, b"x", 1), (1, b"x", 1), (0, b"x", 1)], "sample 0 is answered twice"),
        ([(0, b"x", 1), (1, b"x", 1), (2, b"x", 1)], "an answer to sample 2, and the data set has 2"),
        ([(0, b"x", None), (1, b"x", None)], "sample 0 has no token_count"),
        ([(0, bytes([7, 0, 0, 0, 8, 1, 0, 0]), 2), (1, b"x", 1)], "holds token ids, not text"),
    ],
)
def test_other_answers_are_refused_with_the_number(
    tmp_path: Path, answers: list[tuple[int, bytes, int | None]], told: str
) -> None:
    write_truth(tmp_path, [("gpqa", "A"), ("gpqa", "B")])
    with pytest.raises(MeasureError, match=told):
        score(write_log(tmp_path, answers))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"qsl_idx": 0}',
        '{"qsl_idx": -1, "data": ""}',
        '{"qsl_idx": 0, "data": "zz", "token_count": 1}',
        '{"qsl_idx": true, "data": "00", "token_count": 1}',
        "[" * 50,
        "\x00\x01",
        '[{"qsl_idx": 0, "data": "41"',
    ],
)
def test_what_is_no_log_is_refused_without_a_traceback(tmp_path: Path, text: str) -> None:
    write_truth(tmp_path, [("gpqa", "A")])
    log = tmp_path / "log.json"
    log.write_text(text)
    with pytest.raises(MeasureError):
        score(log)


def test_a_log_that_is_not_there_is_refused(tmp_path: Path) -> None:
    write_truth(tmp_path, [("gpqa", "A")])
    with pytest.raises(MeasureError, match="No such file"):
        score(tmp_path / "none.json")


def test_a_truncated_copy_is_not_scored_and_the_original_stays(tmp_path: Path) -> None:
    write_truth(tmp_path, [("gpqa", "A")] * 300)
    log = write_texts(tmp_path, [f"Answer: A {index:040d}" for index in range(300)])
    whole = log.read_bytes()
    small = tmp_path / "small.json"
    truncate_log(log, small)
    kept = small.read_bytes()
    assert (kept[:4096], kept[4096:-4096], kept[-4096:]) == (whole[:4096], b"\n\n...\n\n", whole[-4096:])
    assert len(kept) <= MAX_BYTES < len(whole) == len(log.read_bytes())
    with pytest.raises(MeasureError, match="not a truncated copy"):
        score(small)
    with pytest.raises(ConfigError, match="the original has to be kept"):
        truncate_log(log, log)
    assert score(log) == 100.0


def test_a_short_log_goes_in_whole(tmp_path: Path) -> None:
    log = write_texts(tmp_path, ["A"])
    truncate_log(log, tmp_path / "small.json")
    assert (tmp_path / "small.json").read_bytes() == log.read_bytes()
