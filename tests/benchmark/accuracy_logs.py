"""Accuracy logs and truths as tests make them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

LOG = "mlperf_log_accuracy.json"


def write_log(directory: Path, answers: Iterable[tuple[int, bytes, int | None]]) -> Path:
    """A log as LoadGen writes it: index, data and token count of each answer."""
    lines = []
    for number, (index, data, count) in enumerate(answers):
        tokens = "" if count is None else f', "token_count" : {count}'
        lines.append(f'{{ "seq_id" : {number}, "qsl_idx" : {index}, "data" : "{data.hex().upper()}"{tokens} }}')
    path = directory / LOG
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    return path


def write_texts(directory: Path, texts: Iterable[str], tokens: int = 10) -> Path:
    """A log of one text a sample, in order."""
    return write_log(directory, [(index, text.encode(), tokens) for index, text in enumerate(texts)])


def write_truth(directory: Path, rows: Iterable[tuple[str, str]]) -> None:
    """`truth.jsonl` of subset and answer."""
    lines = [json.dumps({"subset": subset, "answer": answer}) for subset, answer in rows]
    (directory / "truth.jsonl").write_text("\n".join(lines) + "\n")


def write_code_tests(directory: Path, question: str, **tests: Any) -> None:
    """Tests of one LiveCodeBench question."""
    (directory / "code_tests").mkdir(exist_ok=True)
    (directory / "code_tests" / f"{question}.json").write_text(json.dumps({"fn_name": None, **tests}))
