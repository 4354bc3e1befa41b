"""Tests of LiveCodeBench questions, from the published files to `code_tests/`.

Published as `livecodebench/code_generation_lite`: JSON lines (`test.jsonl`, `test2.jsonl`, ... of the releases) with
`question_id`, `public_test_cases` (a JSON list), `private_test_cases` (the same, or base64 of a zlib-compressed pickle
of its text) and `metadata` (`func_name`). As LiveCodeBench's `lcb_runner/benchmarks/code_generation.py` (28fef95)
reads them: public tests first.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from dynamo_mlperf.benchmark.accuracy.answers import Progress
from dynamo_mlperf.benchmark.accuracy.code_tests import CODE_TESTS, tests_path
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import write_atomic

_NO_QUESTION = (
    ValueError,  # binascii.Error is one
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    RecursionError,
    EOFError,
    zlib.error,
    pickle.UnpicklingError,
)


class _TextOnly(pickle.Unpickler):
    """Reads a pickled text and refuses every name."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - never returns
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, and should be a text")


def _cases(value: str) -> list[dict[str, str]]:
    try:
        cases = json.loads(value)
    except ValueError:
        packed = zlib.decompress(base64.b64decode(value))
        cases = json.loads(_TextOnly(io.BytesIO(packed)).load())
    return list(cases)


def _tests(problem: dict[str, Any]) -> dict[str, Any]:
    cases = _cases(problem["public_test_cases"]) + _cases(problem["private_test_cases"])
    return {
        "fn_name": json.loads(problem["metadata"]).get("func_name"),
        "inputs": [case["input"] for case in cases],
        "outputs": [case["output"] for case in cases],
    }


def write_code_tests(source: Path, questions: Collection[str], data_set: Path, progress: Progress) -> int:
    """Write the tests of `questions` below `data_set`.

    Args:
        source: Directory with LiveCodeBench's JSON lines.
        questions: Ids of the questions.
        data_set: Directory of the data set.
        progress: Told questions found and questions in all.

    Returns:
        How many questions were found.

    Raises:
        ConfigError: There are no such files, or a line cannot be read; names file and line.
        OSError: The tests cannot be written.
    """
    files = sorted(source.glob("*.jsonl"))
    if not files:
        raise ConfigError(f"{source}: no *.jsonl", "name the downloaded livecodebench/code_generation_lite")
    (data_set / CODE_TESTS).mkdir(parents=True, exist_ok=True)
    left = set(questions)
    for file in files:
        with file.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                _take(line, f"{file}:{number}", left, data_set)
                progress(len(set(questions)) - len(left), len(set(questions)))
    return len(set(questions)) - len(left)


def _take(line: str, where: str, left: set[str], data_set: Path) -> None:
    try:
        problem = json.loads(line)
        question = str(problem["question_id"])
        if question not in left:
            return
        tests = _tests(problem)
    except _NO_QUESTION as error:
        raise ConfigError(
            f"{where}: no LiveCodeBench question: {type(error).__name__} {error}", "download it again"
        ) from error
    path = tests_path(data_set, question)
    if path is None:
        raise ConfigError(f"{where}: question id {question!r} is no file name", "name the published files")
    write_atomic(path, json.dumps(tests), durable=False)
    left.discard(question)
