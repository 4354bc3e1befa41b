"""Accuracy and compliance tests by real LoadGen against an oracle that knows the truth."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dynamo_mlperf.benchmark.rules import Reduction, benchmark
from dynamo_mlperf.errors import ConfigError, MeasureError
from dynamo_mlperf.job.side_phase import AUDIT_USED, SideRun, run_side_test
from dynamo_mlperf.job.side_tests import SideTest, plan_side_test
from dynamo_mlperf.load.audit import AUDIT_CONFIG, COMPLIANCE_TESTS
from dynamo_mlperf.load.end_of_text import end_of_text_ids
from dynamo_mlperf.load.logs import DETAIL, read_logs
from dynamo_mlperf.load.settings import LoadSettings, build_settings
from dynamo_mlperf.load.side_results import Measured, SideResult, compliance_result
from dynamo_mlperf.load.spec import MeasureSpec
from dynamo_mlperf.load.verification import verify_tokens
from tests.fakes.made_data import write_made_data
from tests.fakes.truth_oracle import Knowledge, TruthOracle

LLAMA, GPT = "llama2-70b-99.9", "gpt-oss-120b"
EOS = 7
"""The made model's own: not 2, which the reference's script takes where nobody says otherwise."""


class Bench:
    """One oracle, one run directory, side tests in it."""

    def __init__(self, root: Path, name: str, share: float) -> None:
        self.root, self.name = root, name
        self.data = root / "data"
        write_made_data(name, self.data, share=share)
        self.model = root / "model"
        self.model.mkdir(parents=True)
        (self.model / "generation_config.json").write_text(json.dumps({"eos_token_id": [EOS, 9]}))
        self.samples = len((self.data / "prompts.jsonl").read_text().splitlines())

    def settings(self, scenario: str = "Server", **more: Any) -> LoadSettings:
        percentile = None if scenario == "Offline" else 90
        reduction = Reduction(min_duration_s=0.5, samples=self.samples, percentile=percentile)
        built = build_settings(benchmark(self.name), scenario, 150, self.samples, reduction, request_timeout_s=20)
        return replace(built, **more)

    def knowledge(self, **more: Any) -> Knowledge:
        return Knowledge(self.data, self.name, ttft_ms=1, decode_ms=2, eos=EOS, **more)

    def run(self, name: str, known: Knowledge | None = None, scenario: str = "Server", where: str = "") -> SideResult:
        """Run one side test in a run directory of its own."""
        root = self.root / f"run{where}"
        root.mkdir(exist_ok=True)
        test = plan_side_test(name, self.settings(scenario), self.data, "reduced")
        with TruthOracle(known or self.knowledge()) as oracle:

            def load(side: SideTest) -> None:
                run_loadgen(side, root, oracle.port)

            return run_side_test(SideRun(root, "reduced", "m", "dynamo", self.model, load), test)


def run_loadgen(side: SideTest, root: Path, port: int, *, cwd: Path | None = None) -> None:
    """LoadGen's process for one side test, as a job starts it."""
    test = side.load_test(root)
    spec = MeasureSpec(
        settings=test.settings,
        requests=test.requests,
        out_dir=test.load_dir,
        frontends=(("127.0.0.1", port),),
        keep_text=test.keep_text,
        keep_token_ids=test.keep_token_ids,
        audit_config=test.audit_config,
    )
    path = test.directory / "measure.json"
    path.write_text(json.dumps(spec.to_json()))
    argv = [sys.executable, "-m", "dynamo_mlperf.load.loadgen_process", str(path)]
    done = subprocess.run(argv, cwd=cwd or test.load_dir, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode:
        raise MeasureError(f"status {done.returncode}: {done.stderr}")


def texts(result: SideResult) -> str:
    return "\n".join(reason.text() for reason in result.reasons)


@pytest.fixture
def llama(tmp_path: Path) -> Bench:
    return Bench(tmp_path / LLAMA, LLAMA, 0.002)


@pytest.fixture
def gpt(tmp_path: Path) -> Bench:
    return Bench(tmp_path / GPT, GPT, 0.012)


@pytest.mark.loadgen
@pytest.mark.parametrize(
    ("name", "scenario", "ttft_ms", "tpot_ms"),
    [(GPT, "Interactive", 2000, 15), (GPT, "Server", 3000, 80)],
)
def test_interactive_is_a_scenario_here_and_a_model_name_to_loadgen(
    tmp_path: Path, name: str, scenario: str, ttft_ms: int, tpot_ms: int
) -> None:
    bench = Bench(tmp_path, name, 0.002)
    bench.run("accuracy", scenario=scenario)
    log = read_logs(tmp_path / "run" / "accuracy").values
    assert log["effective_scenario"] == "Server"
    assert log["requested_server_ttft_latency"] == ttft_ms * 1_000_000
    assert log["requested_server_tpot_latency"] == tpot_ms * 1_000_000


@pytest.mark.loadgen
def test_accuracy_is_scored_and_says_what_it_is(llama: Bench) -> None:
    result = llama.run("accuracy", llama.knowledge(right=1.0))
    assert (result.verdict, texts(result)) == ("VALID", "")
    assert (result.scores["ROUGE1"], round(result.scores["TOKENS_PER_SAMPLE"], -1)) == (100.0, 290)
    assert result.targets["ROUGE1"] == 44.3867688
    folder = llama.root / "run" / "accuracy"
    lines = (folder / "accuracy.txt").read_text().splitlines()
    assert lines[-1].startswith("hash=")
    assert len(lines[-1]) == len("hash=") + 64
    recorded = json.loads((folder / "result.json").read_text())
    assert {key: recorded[key] for key in ("test", "verdict", "class", "wanted_audit")} == {
        "test": "accuracy",
        "verdict": "VALID",
        "class": "reduced",
        "wanted_audit": False,
    }
    assert any("no floor is applied" in note for note in recorded["notes"])
    assert recorded["settings"]["mode"] == "accuracy"


@pytest.mark.loadgen
@pytest.mark.parametrize("many", ["one", "all"])
def test_failed_requests_of_an_accuracy_test_are_named_and_do_not_end_loadgen(llama: Bench, many: str) -> None:
    """LoadGen by itself crashes where no query that it logs had a first token."""
    prompts = [json.loads(line) for line in (llama.data / "prompts.jsonl").read_text().splitlines()]
    for number in (3,) if many == "one" else range(llama.samples):
        prompts[number]["prompt"] += " fault=close"
    (llama.data / "prompts.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in prompts))
    result = llama.run("accuracy")
    assert result.verdict == "INVALID"
    failed = 1 if many == "one" else llama.samples
    assert f"failed requests: wanted 0, got {failed} of {llama.samples}" in texts(result)
    assert "sample 3: " in texts(result) or many == "all"


@pytest.mark.loadgen
@pytest.mark.parametrize("scenario", ["Server", "Offline"])
def test_test06_with_the_models_own_end_of_text(llama: Bench, scenario: str) -> None:
    result = llama.run("TEST06", scenario=scenario)
    assert (result.verdict, texts(result)) == ("VALID", "")
    folder = llama.root / "run" / "TEST06"
    first = "Skipped" if scenario == "Offline" else "True"
    assert (folder / "verify_accuracy.txt").read_text().splitlines() == [
        f"First token check pass: {first}",
        "EOS check pass: True",
        "Sample length check pass: True",
        "TEST06 verification complete",
    ]
    assert not (folder / AUDIT_CONFIG).exists()
    assert (folder / AUDIT_USED).read_text() == COMPLIANCE_TESTS["TEST06"].lowered(llama.samples).audit_config()
    assert result.scores["answers"] == llama.samples

    twice = llama.run("TEST06", llama.knowledge(repeats_eos=frozenset(range(5))), scenario, where="-twice")
    assert twice.verdict == "INVALID"
    assert "TEST06 end-of-text tokens (7, 9) at the end of an answer" in texts(twice)
    named = texts(twice).partition("samples ")[2] or texts(twice).partition("sample ")[2]
    assert {int(word) for word in named.partition(".")[0].replace(",", " ").split() if word.isdigit()} <= set(range(5))
    log = llama.root / "run-twice" / "TEST06" / "mlperf_log_accuracy.json"
    assert "EOS check pass: False\n" in (log.parent / "verify_accuracy.txt").read_text()
    assert "EOS check pass: True\n" in verify_tokens(log, {2}, offline=scenario == "Offline").text


@pytest.mark.loadgen
def test_test09_counts_tokens_and_shows_the_band(gpt: Bench) -> None:
    for mean, passes in ((900, False), (1278, True)):
        known = gpt.knowledge(tokens={"performance": mean})
        result = gpt.run("TEST09", known, where=f"-{mean}")
        folder = gpt.root / f"run-{mean}" / "TEST09"
        text = (folder / "verify_output_len.txt").read_text()
        assert ("TEST PASS" in text, "TEST FAIL" in text) == (passes, not passes)
        assert "1150.38 to 1406.02" in text
        assert result.scores["mean_output_tokens"] == pytest.approx(mean, rel=0.02)
        # A reduced test is not held to the band, an official one of the same answers is.
        assert result.verdict == "VALID"
        assert any("1150.38 to 1406.02" in note for note in result.notes) != passes
        official = compliance_result(
            COMPLIANCE_TESTS["TEST09"].lowered(gpt.samples),
            Measured(folder, replace(gpt.settings(), reduced=False), "official", None, gpt.data),
            frozenset(),
        )
        assert ("TEST09 mean output tokens: wanted 1150.38 to 1406.02" in texts(official)) != passes


@pytest.mark.loadgen
def test_test07_is_scored_on_a_data_set_of_its_own(gpt: Bench) -> None:
    for share, passes in ((0.95, True), (0.2, False)):
        gpt.run("TEST07", gpt.knowledge(right=share), where=f"-{share}")
        text = (gpt.root / f"run-{share}" / "TEST07" / "verify_accuracy.txt").read_text()
        assert ("TEST PASS" in text, "TEST FAIL" in text) == (passes, not passes)
        assert "60.698" in text


@pytest.mark.loadgen
@pytest.mark.parametrize("placed", ["elsewhere", "as a directory"])
def test_an_audit_file_that_is_not_picked_up_ends_the_test_at_once(llama: Bench, placed: str) -> None:
    root = llama.root / "run"
    test = plan_side_test("TEST06", llama.settings(target_qps=0.5), llama.data, "reduced")
    with TruthOracle(llama.knowledge()) as oracle:

        def load(side: SideTest) -> None:
            config = root / "TEST06" / AUDIT_CONFIG
            config.rename(root / AUDIT_CONFIG)
            if placed == "as a directory":
                config.mkdir()
            try:
                run_loadgen(side, root, oracle.port)
            finally:
                if config.exists():
                    config.rmdir()
                (root / AUDIT_CONFIG).rename(config)

        root.mkdir()
        result = run_side_test(SideRun(root, "reduced", "m", "dynamo", llama.model, load), test)
        assert result.verdict == "FAILED"
        assert "audit file not picked up" in texts(result)
        assert oracle.stats().requests < 10  # of 49 at one in two seconds
    assert json.loads((root / "TEST06" / "result.json").read_text())["verdict"] == "FAILED"
    assert not (root / "TEST06" / AUDIT_CONFIG).exists()


def test_what_a_side_test_needs_is_refused_before_anything_runs(llama: Bench, gpt: Bench, tmp_path: Path) -> None:
    official = replace(llama.settings(), reduced=False)
    (llama.data / "truth.jsonl").unlink()
    with pytest.raises(ConfigError, match=r"has no truth.jsonl"):
        plan_side_test("accuracy", official, llama.data, "official")
    assert plan_side_test("accuracy", official, llama.data, "rehearsal").name == "accuracy"
    with pytest.raises(ConfigError, match="no compliance test TEST07"):
        plan_side_test("TEST07", official, llama.data, "official")
    with pytest.raises(ConfigError, match=r"compliance has \d+ samples, and the TEST07 test needs 990"):
        plan_side_test("TEST07", gpt.settings(), gpt.data, "official")
    with pytest.raises(ConfigError, match="has a data set of its own"):
        plan_side_test("accuracy", gpt.settings(), tmp_path, "rehearsal")


def test_accuracy_of_gpt_oss_differs_from_performance_only_where_the_rules_say_so(gpt: Bench) -> None:
    settings = gpt.settings()
    planned = plan_side_test("accuracy", settings, gpt.data, "rehearsal")
    assert (planned.max_tokens, planned.data_set) == (32_768, gpt.data / "accuracy")
    changed = {key for key, value in vars(settings).items() if getattr(planned.settings, key) != value}
    assert changed <= {"mode", "dataset_samples", "accuracy_sample_count"}


@pytest.mark.parametrize(
    ("files", "ids"),
    [
        ({"generation_config.json": {"eos_token_id": [1, 5]}, "config.json": {"eos_token_id": 5}}, {1, 5}),
        ({"config.json": {"text_config": {"eos_token_id": 3}}}, {3}),
        (
            {
                "tokenizer_config.json": {"eos_token": {"content": "</s>"}},
                "tokenizer.json": {"added_tokens": [{"content": "<s>", "id": 1}, {"content": "</s>", "id": 2}]},
            },
            {2},
        ),
    ],
)
def test_end_of_text_comes_from_the_models_files(tmp_path: Path, files: dict[str, Any], ids: set[int]) -> None:
    for name, value in files.items():
        (tmp_path / name).write_text(json.dumps(value))
    assert end_of_text_ids(tmp_path) == ids
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(ConfigError, match="names no end-of-text token"):
        end_of_text_ids(tmp_path)


@pytest.mark.loadgen
def test_the_notice_in_the_log_is_what_proves_the_pick_up(llama: Bench) -> None:
    """Only where LoadGen's own log says so was the file applied."""
    llama.run("TEST06")
    detail = llama.root / "run" / "TEST06" / DETAIL
    detail.write_text(detail.read_text().replace("Found Audit Config file", "Found nothing"))
    measured = Measured(detail.parent, llama.settings(), "reduced", None, llama.data)
    again = compliance_result(COMPLIANCE_TESTS["TEST06"], measured, {EOS})
    assert again.verdict == "INVALID"
    assert "audit.config: wanted picked up by LoadGen, got not picked up" in texts(again)
