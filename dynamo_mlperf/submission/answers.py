"""Whether the answers of an accuracy log are those of the test that it lies beside.

The client counted every answer's tokens by itself (`queries.csv`), and LoadGen wrote sample and count of each answer
into its log. A log of another run, of another model, or a part of one does not agree with that.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from dynamo_mlperf.benchmark.accuracy.answers import ACCURACY_LOG, AnswerLog
from dynamo_mlperf.benchmark.accuracy.scores import TOKENS_PER_SAMPLE
from dynamo_mlperf.load.queries import read_queries
from dynamo_mlperf.submission.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from dynamo_mlperf.submission.records import TestRecord

_PARTIAL = ("TEST06",)
"""Tests whose LoadGen may log some of the answers."""

_ROUNDED_TOKENS = 0.1
"""By how much a mean may differ from that of the log: the scorer of llama2-70b prints one decimal."""


def answer_findings(record: TestRecord, scores: Mapping[str, float]) -> list[Finding]:
    """Where a test's accuracy log and its queries disagree, and tokens per sample that are not those of the log.

    Args:
        record: An accuracy or compliance test by LoadGen, with its log.
        scores: What is claimed of that log.

    Raises:
        MeasureError: The log or `queries.csv` cannot be read.
    """
    log, queries = record.directory / ACCURACY_LOG, read_queries(record.directory / "queries.csv")
    asked = Counter(zip(queries.samples.tolist(), queries.output_tokens.tolist(), strict=True))
    samples = Counter(queries.samples.tolist())
    others: list[tuple[int, int | None]] = []
    answers = tokens = counted = 0
    for answer in AnswerLog(log):
        answers += 1
        if answer.token_count is None:
            known, key = samples, answer.index
        else:
            known, key = asked, (answer.index, answer.token_count)  # type: ignore[assignment]
            tokens, counted = tokens + answer.token_count, counted + 1
        known[key] -= 1
        if known[key] < 0:
            others.append((answer.index, answer.token_count))
    action = f"put the log of this test back, or run {record.name} again"
    findings = []
    if others:
        sample, count = others[0]
        got = f"{len(others)} others, the first to sample {sample}" + ("" if count is None else f" of {count} tokens")
        findings.append(Finding(str(log), "answers", "those that queries.csv counted", got, action))
    elif answers != len(queries) and record.name not in _PARTIAL:
        findings.append(Finding(str(log), "answers", f"{len(queries)}, as queries.csv has", str(answers), action))
    said = scores.get(TOKENS_PER_SAMPLE)
    if said is not None and counted and abs(said - tokens / counted) > _ROUNDED_TOKENS:
        wanted = f"{tokens / counted:g}, the mean of the log"
        findings.append(Finding(str(log), TOKENS_PER_SAMPLE, wanted, f"{said:g}", "score the log again"))
    return findings


def length_findings(record: TestRecord, found: Mapping[str, float]) -> list[Finding]:
    """Where the number of TEST09's answers, or the mean of their lengths, is not what the client counted.

    Raises:
        MeasureError: `queries.csv` cannot be read.
    """
    tokens = read_queries(record.directory / "queries.csv").output_tokens
    wanted = {"answers": float(len(tokens)), "mean_output_tokens": float(tokens.mean())}
    action = f"put the log of this test back, or run {record.name} again"
    return [
        Finding(str(record.directory / ACCURACY_LOG), name, f"{value:.10g}, as queries.csv has", f"{got:.10g}", action)
        for name, value in wanted.items()
        if abs((got := found[name]) - value) > _ROUNDED_TOKENS
    ]
