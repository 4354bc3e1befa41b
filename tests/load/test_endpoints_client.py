"""The real endpoints against the oracle: what our configuration makes it send, and what its results are judged to be."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from dynamo_mlperf.benchmark.catalogue import load_catalogue
from dynamo_mlperf.benchmark.rules import Reduction, benchmark
from dynamo_mlperf.benchmark.tiny_catalogue import write_tiny_catalogue
from dynamo_mlperf.load.endpoints_accuracy import judge_accuracy
from dynamo_mlperf.load.endpoints_config import EndpointsTest, config, config_text, sample_count
from dynamo_mlperf.load.endpoints_data import PARQUET_PROGRAM, data_of, write_rows
from dynamo_mlperf.load.endpoints_events import EVENTS, NO_END, NO_TEXT, read_events
from dynamo_mlperf.load.endpoints_program import MODULE, installed_version, program_environment
from dynamo_mlperf.load.endpoints_run import ACCOUNT, QUERIES, EndpointsRecord, judge_run
from dynamo_mlperf.load.settings import LoadSettings, build_settings
from dynamo_mlperf.record import Verdict
from tests.fakes.oracle import Oracle, Script

pytestmark = pytest.mark.endpoints

SAMPLES = 24
LIMIT_MS = 60_000.0
"""So long that endpoints may be late by as much as a busy machine makes it: a hundredth of this."""
END_S = 300.0


@dataclass(frozen=True)
class Ended:
    """A run that endpoints made."""

    directory: Path
    record: EndpointsRecord
    sent: int

    def judged(self, settings: LoadSettings | None = None) -> Verdict:
        record = self.record if settings is None else replace(self.record, settings=settings)
        return judge_run(self.directory, record, None, "reduced", str(self.directory))


def _run(root: Path, scenario: str, script: Script, qps: float, *, accuracy: bool = False) -> Ended:
    python = os.environ["ENDPOINTS_PYTHON"]
    write_tiny_catalogue(root / "catalogue", SAMPLES)
    samples = load_catalogue(root / "catalogue")
    limit = {} if scenario == "Offline" else {"percentile": 90.0, "latency_limit_ms": LIMIT_MS}
    reduction = Reduction(samples=SAMPLES, min_duration_s=1, **limit)
    settings = build_settings(benchmark("qwen3-vl-235b-a22b"), scenario, qps, SAMPLES, reduction, request_timeout_s=20)
    data = data_of(samples, settings)
    rows = root / "rows.jsonl"
    write_rows(samples, SAMPLES, rows)
    (root / data.file).parent.mkdir(parents=True)
    subprocess.run([python, PARQUET_PROGRAM, rows, root / data.file], check=True, timeout=END_S)
    with Oracle(script) as oracle:
        test = EndpointsTest(
            settings, (("127.0.0.1", oracle.port),), "m", None, data, 3, 1, 64,
            accuracy=accuracy, pin_cores=False, report_dir="endpoints",
        )  # fmt: skip
        (root / "endpoints.yaml").write_text(config_text(test))
        argv = [python, "-m", MODULE, "benchmark", "from-config", "--config", str(root / "endpoints.yaml")]
        argv += ["--mode", "both" if accuracy else "perf"]
        done = subprocess.run(argv, cwd=root, env=program_environment(), capture_output=True, text=True, timeout=END_S, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        sent = oracle.stats().requests
    version = installed_version(python, "v6.1")
    directory = root / "endpoints"
    record = EndpointsRecord(settings, config(test), version.version, version.commit, "", accuracy)
    book = read_events(directory / EVENTS, settings.limits_ms)
    index = json.loads((directory / "sample_idx_map.json").read_text())["performance"]
    (directory / QUERIES).write_text(book.queries_csv(index))
    (directory / ACCOUNT).write_text(json.dumps({"sent": book.sent}))
    assert book.sent == sent, "every request of the client is in its event log"
    return Ended(directory, record, sent)


def _texts(verdict: Verdict) -> str:
    return "\n".join(reason.text() for reason in verdict.reasons)


def test_a_server_run_is_valid_and_each_lowered_word_of_it_is_not(tmp_path: Path) -> None:
    ended = _run(tmp_path, "Interactive", Script(tokens=4), 100.0, accuracy=True)
    settings = ended.record.settings
    assert sample_count(settings) == 120
    assert ended.sent == 3 + 120 + SAMPLES, "warm-up, performance, accuracy"
    verdict = ended.judged()
    assert (verdict.verdict, _texts(verdict)) == ("VALID", "")
    latency = verdict.latency_p99_ms["end_to_end"]
    assert (verdict.requests, latency.over_limit, latency.limit, latency.percentile) == (120, 0, LIMIT_MS, 0.9)
    assert latency.early_stopping is not None
    # The same files, held to other settings: each is named.
    slower = ended.judged(replace(settings, target_latency_ms=1.0))
    assert "end_to_end within 1 ms: wanted early-stopping p90 within it" in _texts(slower)
    longer = _texts(ended.judged(replace(settings, min_duration_ms=60_000)))
    assert "setting min_duration_ms: wanted 60000 or more, got 1000" in longer
    assert "samples that endpoints issued: wanted 6600, got 120 in result_summary.json, 120 in the event log" in longer
    assert "official" in _texts(judge_run(ended.directory, ended.record, None, "official", ""))
    other = replace(ended.record, version="0.0.9", config={**ended.record.config, "enable_cpu_affinity": True})
    told = _texts(judge_run(ended.directory, other, None, "reduced", ""))
    assert "setting enable_cpu_affinity: wanted True, got False" in told
    assert "release of endpoints: wanted 0.0.9" in told
    _accuracy(ended)


def _accuracy(ended: Ended) -> None:
    """Its own scorer ran on our data set: the oracle names no category, and every answer was scored."""
    settings = ended.record.settings
    result = judge_accuracy(ended.directory, settings, "reduced")
    assert (result.verdict, result.scores) == ("VALID", {"F1_HIERARCHICAL": 0.0})
    short = judge_accuracy(ended.directory, replace(settings, accuracy_sample_count=48_289), "official")
    assert [reason.text() for reason in short.reasons] == [
        f"samples: wanted 48289, got {SAMPLES}. give the scenario's own data set",
        (
            "F1_HIERARCHICAL: wanted 0.779922 or more, got 0.000000. "
            "compare weights, chat template and quantization with the reference's"
        ),
    ]
    assert json.loads((ended.directory / "accuracy" / "result.json").read_text())["verdict"] == "INVALID"


def test_what_endpoints_takes_for_an_answer_is_not_always_one(tmp_path: Path) -> None:
    faults = {"20": "500", "30": "error", "40": "close", "50": "zero"}
    ended = _run(tmp_path, "Server", Script(tokens=4, faults=faults), 100.0)
    summary = json.loads((ended.directory / "performance" / "result_summary.json").read_text())
    assert summary["n_samples_failed"] == 2, "it misses those that broke off or held no word"
    verdict = ended.judged()
    assert (verdict.verdict, verdict.failed_requests) == ("INVALID", 4)
    assert verdict.reasons[0].check == "failed requests"
    for said in (NO_END, NO_TEXT, "HTTP 500", "ConnectionResetError"):
        assert said in verdict.reasons[0].got


def test_an_offline_run_issues_whole_data_sets_at_once(tmp_path: Path) -> None:
    ended = _run(tmp_path, "Offline", Script(ttft_ms=500, tokens=4), 100.0)
    verdict = ended.judged()
    assert verdict.requests == sample_count(ended.record.settings) == 120
    assert {reason.check for reason in verdict.reasons} <= {"duration"}
    assert verdict.latency_p99_ms == {}
    assert _images(tmp_path) == {"image/png"}


def _images(root: Path) -> set[Any]:
    """The data set that endpoints loaded holds the exact bytes of every image."""
    script = (
        "import base64, hashlib, json, sys, pandas as p\n"
        "rows = p.read_parquet(sys.argv[1])\n"
        "sums = [hashlib.sha256(base64.b64decode(each)).hexdigest() for each in rows.product_image_base64]\n"
        "print(json.dumps([sums, ['image/' + each.lower() for each in rows.product_image_format]]))"
    )
    file = next((root / "dataset_cache").rglob("*.parquet"))
    done = subprocess.run(
        [os.environ["ENDPOINTS_PYTHON"], "-c", script, file], capture_output=True, check=True, timeout=END_S
    )
    sums, kinds = json.loads(done.stdout)
    catalogue = load_catalogue(root / "catalogue")
    assert sums == [hashlib.sha256(sample.image_bytes).hexdigest() for sample in catalogue]
    return set(kinds)
