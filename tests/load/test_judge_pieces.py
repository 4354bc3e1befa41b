"""Every piece of evidence removed, emptied, cut at half, or replaced by that of another test: never VALID."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dynamo_mlperf.benchmark.accuracy.answers import ACCURACY_LOG
from dynamo_mlperf.benchmark.accuracy.truncation import truncate_log
from dynamo_mlperf.benchmark.rules import Reduction, benchmark
from dynamo_mlperf.errors import ConfigError, MeasureError
from dynamo_mlperf.load.directory import Wanted, judge_directory
from dynamo_mlperf.load.loadgen_summary import summary_reasons
from dynamo_mlperf.load.logs import DETAIL, SUMMARY, read_logs
from dynamo_mlperf.load.settings import build_settings
from dynamo_mlperf.load.trace import TRACE
from dynamo_mlperf.load.verdict import judge
from dynamo_mlperf.record import TransferEvidence
from tests.fakes.oracle import Script
from tests.fakes.stub_sut import StubPlan
from tests.load.test_judge_directory import _as_if_full, run_to_judge, texts
from tests.submission.made_runs import Made, make_run

pytestmark = pytest.mark.loadgen

GPT_OSS = Wanted("gpt-oss-120b", "Interactive")
R1 = Wanted("deepseek-r1", "Server")
SERVER = "*.Server.target_qps = 1000\n*.Server.min_duration = 100\n*.*.performance_sample_count_override = 66\n"
WAYS = ("removed", "emptied", "cut", "of another")
ALIKE = ("measure.json", "endpoints.json", "topology.yaml", "commands.jsonl", "events.jsonl", "endpoints/config.yaml")
"""Two runs of one file have the same ones."""


def spoil(piece: Path, way: str, another: Path) -> None:
    whole = piece.read_bytes()
    piece.unlink()
    if way == "of another":
        shutil.copy(another, piece)
    elif way != "removed":
        piece.write_bytes(whole[: len(whole) // 2] if way == "cut" else b"")


def judged(directory: Path, wanted: Wanted | None = None) -> str:
    try:
        return judge_directory(directory, wanted).verdict
    except (MeasureError, ConfigError):
        return "no measurement"


# -- any LoadGen's --


def _foreign(root: Path) -> Path:
    plan = StubPlan("gpt-oss-120b-interactive", f"{SERVER}*.Server.min_query_count = 462\n", 66, trace=True)
    return _as_if_full(plan.run(root))


def _foreign_accuracy(root: Path) -> Path:
    return StubPlan("deepseek-r1", "*.Server.target_qps = 100000\n", 4388, accuracy=True).run(root)


Two = tuple[Path, Path]


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Two:
    root = tmp_path_factory.mktemp("foreign")
    return _foreign(root / "one"), _foreign(root / "two")


@pytest.fixture(scope="module")
def foreign_accuracy(tmp_path_factory: pytest.TempPathFactory, foreign: Two) -> Two:
    return _foreign_accuracy(tmp_path_factory.mktemp("accuracy") / "one"), foreign[1]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [DETAIL, SUMMARY, TRACE])
def test_a_foreign_test_without_a_piece_of_its_own(foreign: Two, tmp_path: Path, name: str, way: str) -> None:
    one, two = foreign
    copy = shutil.copytree(one, tmp_path / "copy")
    assert judged(copy, GPT_OSS) == "VALID"
    spoil(copy / name, way, two / name)
    without = name == TRACE and way in ("removed", "emptied")
    assert (judged(copy, GPT_OSS) == "VALID") == without, "a trace is there where one was asked for"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [DETAIL, SUMMARY, ACCURACY_LOG])
def test_a_foreign_accuracy_test_without_one(foreign_accuracy: Two, tmp_path: Path, name: str, way: str) -> None:
    one, performance = foreign_accuracy
    copy = shutil.copytree(one, tmp_path / "copy")
    assert judged(copy, R1) == "VALID"
    spoil(copy / name, way, performance / name)
    assert judged(copy, R1) != "VALID"


def test_answers_may_be_truncated_as_for_a_submission(foreign_accuracy: Two, tmp_path: Path) -> None:
    copy = shutil.copytree(foreign_accuracy[0], tmp_path / "copy")
    (copy / ACCURACY_LOG).unlink()
    truncate_log(foreign_accuracy[0] / ACCURACY_LOG, copy / ACCURACY_LOG)
    assert (copy / ACCURACY_LOG).stat().st_size < (foreign_accuracy[0] / ACCURACY_LOG).stat().st_size
    assert judged(copy, R1) == "VALID"


def test_an_accuracy_log_that_stops_between_lines_did_not_end(foreign_accuracy: Two, tmp_path: Path) -> None:
    copy = shutil.copytree(foreign_accuracy[0], tmp_path / "copy")
    lines = (copy / DETAIL).read_text().splitlines(keepends=True)
    (copy / DETAIL).write_text("".join(lines[:-1]))
    with pytest.raises(MeasureError, match="the test did not end"):
        judge_directory(copy, R1)


@pytest.mark.parametrize("line", ["Scenario", "Mode", "Result is", "Max latency (ns)"])
def test_a_summary_without_its_result_is_none_of_a_performance_test(foreign: Two, tmp_path: Path, line: str) -> None:
    copy = shutil.copytree(foreign[0], tmp_path / "copy")
    kept = [text for text in (copy / SUMMARY).read_text().splitlines() if text.partition(" :")[0].strip() != line]
    (copy / SUMMARY).write_text("\n".join(kept) + "\n")
    assert f"got one without '{line}'" in texts(judge_directory(copy, GPT_OSS))


@pytest.mark.parametrize(
    "plan",
    [
        StubPlan("gpt-oss-120b-interactive", SERVER, 66),
        StubPlan("qwen3-vl-235b-a22b", SERVER.replace("1000", "1234.5678"), 66, slow={5: (1.0, 1.5)}),
        StubPlan("gpt-oss-120b", SERVER.replace("Server", "Offline"), 66, scenario="Offline"),
        StubPlan("qwen3-vl-235b-a22b", SERVER.replace("Server", "Offline"), 66, scenario="Offline"),
        StubPlan("deepseek-r1", SERVER, 66, accuracy=True),
    ],
    ids=lambda plan: f"{plan.model}-{plan.scenario}",
)
def test_loadgens_own_summaries_agree_with_its_logs(tmp_path: Path, plan: StubPlan) -> None:
    assert summary_reasons(read_logs(plan.run(tmp_path))) == []


# -- ours --


def own_run(root: Path, ttft_ms: float) -> Path:
    """A disaggregated run of ours by lowered rules."""
    root.mkdir(parents=True)
    lowered = Reduction(min_duration_s=0.5, samples=64, percentile=90, latency_limit_ms=5000)
    settings = build_settings(benchmark("qwen3-vl-235b-a22b"), "Interactive", 100, 64, lowered)
    run_to_judge(root, settings, Script(ttft_ms=ttft_ms, tpot_ms=1, tokens=3), [f"sample {n}" for n in range(64)])
    proven = TransferEvidence(
        disaggregated=True, proof="kv-counters", requests=64, prefill_requests=64, remote_prefills=64,
        prompt_tokens=640, external_tokens=640, kv_bytes=int(ttft_ms), transfers=64,
    )  # fmt: skip
    (root / "evidence.json").write_text(json.dumps({"transfer": dataclasses.asdict(proven)}))
    (root / "topology.yaml").write_text(
        "roles: {prefill: {workers: 1}, decode: {workers: 1}}\nreduced: {samples: 64}\nengine: vllm\n"
        "measure: {benchmark: qwen3-vl-235b-a22b, scenario: Interactive}\n"
    )
    start = {"process": "decode-0", "argv": ["python", "-m", "dynamo.vllm"]}
    (root / "commands.jsonl").write_text(json.dumps(start) + "\n")
    (root / "events.jsonl").write_text('{"event": "process_started", "process": "decode-0"}\n')
    theirs = judge(root / "loadgen", settings, proven, "reduced", str(root))
    # A machine that other work holds up makes a client late, which is not what these tests are about.
    (root / "verdict.json").write_text(json.dumps({**theirs.as_json(), "verdict": "VALID", "reasons": []}))
    return root


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Two:
    root = tmp_path_factory.mktemp("own")
    return own_run(root / "one", 20), own_run(root / "two", 30)


def _own_pieces(check: Callable[[Path], object], two: Two, place: Path, name: str, way: str) -> None:
    one, another = two
    copy = shutil.copytree(one, place / "copy")
    check(copy)
    spoil(copy / name, way, another / name)
    assert (judged(copy) == "VALID") == (name in ALIKE and way == "of another")


def _valid(directory: Path) -> None:
    assert texts(judge_directory(directory)) == ""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "name",
    [
        *("measure.json", "topology.yaml", "verdict.json", "evidence.json", "commands.jsonl", "events.jsonl"),
        *("loadgen/client.json", "loadgen/queries.csv", f"loadgen/{DETAIL}", f"loadgen/{SUMMARY}"),
    ],
)
def test_a_run_of_ours_without_a_piece_of_its_own(own: Two, tmp_path: Path, name: str, way: str) -> None:
    _own_pieces(_valid, own, tmp_path, name, way)


def test_both_logs_of_another_run_are_seen(own: Two, tmp_path: Path) -> None:
    one, another = own
    copy = shutil.copytree(one, tmp_path / "copy")
    for name in (DETAIL, SUMMARY):
        spoil(copy / "loadgen" / name, "of another", another / "loadgen" / name)
    assert "figures that the run itself recorded: wanted those of its files, got others: completed_qps" in texts(
        judge_directory(copy)
    )


@pytest.fixture(scope="module")
def own_endpoints(tmp_path_factory: pytest.TempPathFactory) -> Two:
    root = tmp_path_factory.mktemp("own-endpoints")
    made = Made(benchmark="qwen3-vl-235b-a22b", scenario="Interactive", client="endpoints")
    one, two = make_run(root / "one", made), make_run(root / "two", made, mean_tokens=60)
    evidence = json.loads((two / "evidence.json").read_text())
    evidence["transfer"]["kv_bytes"] += 1
    (two / "evidence.json").write_text(json.dumps(evidence))
    account = json.loads((two / "endpoints" / "client.json").read_text())
    (two / "endpoints" / "client.json").write_text(json.dumps({"sent": account["sent"] + 1}))
    rows = (two / "endpoints" / "queries.csv").read_text().splitlines()
    order, sample, issued_ms, *rest = rows[5].split(",")
    rows[5] = ",".join([order, sample, f"{float(issued_ms) + 0.3:.3f}", *rest])
    (two / "endpoints" / "queries.csv").write_text("\n".join(rows) + "\n")
    return one, two


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "name",
    [
        *("endpoints.json", "topology.yaml", "verdict.json", "evidence.json", "commands.jsonl", "events.jsonl"),
        *("endpoints/client.json", "endpoints/queries.csv", "endpoints/config.yaml"),
        "endpoints/performance/result_summary.json",
    ],
)
def test_a_run_of_endpoints_without_a_piece_of_its_own(own_endpoints: Two, tmp_path: Path, name: str, way: str) -> None:
    _own_pieces(_valid, own_endpoints, tmp_path, name, way)
