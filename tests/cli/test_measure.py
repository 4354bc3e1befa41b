"""`measure` as a person calls it: real LoadGen against an endpoint that is up already."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from dynamo_mlperf.cli.measure import command
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.load.directory import judge_directory
from dynamo_mlperf.process.machine import controller_of
from dynamo_mlperf.slurm.outcome import outcome_of
from dynamo_mlperf.slurm.runs import read_run
from tests.fakes.made_data import write_made_data
from tests.fakes.truth_oracle import Knowledge, TruthOracle

pytestmark = pytest.mark.loadgen

LLAMA = "llama2-70b-99.9"
VALUES = ("--benchmark", LLAMA, "--scenario", "Server", "--target-qps", "60")


class Desk:
    """A directory with a data set and a model's files, and an oracle that is up."""

    def __init__(self, root: Path, oracle: TruthOracle, samples: int) -> None:
        self.root, self.oracle = root, oracle
        lowered = (f"samples={samples}", "min_duration_s=0.5", "percentile=90")
        self.reduced = [word for entry in lowered for word in ("--reduced", entry)]

    def argv(self, *more: str, model: str = "m") -> list[str]:
        fixed = ("--dataset", str(self.root / "data"), "--model", model)
        return [sys.executable, "-m", "dynamo_mlperf.cli", "measure", *fixed, *VALUES, *self.reduced, *more]

    def call(self, *more: str, model: str = "m") -> subprocess.CompletedProcess[str]:
        argv = self.argv(self.oracle.url, *more, model=model)
        return subprocess.run(argv, cwd=self.root, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    root = tmp_path_factory.mktemp("measure")
    write_made_data(LLAMA, root / "data", share=0.002)
    (root / "model").mkdir()
    (root / "model" / "config.json").write_text('{"eos_token_id": 5}')
    samples = len((root / "data" / "prompts.jsonl").read_text().splitlines())
    with TruthOracle(Knowledge(root / "data", LLAMA, right=1.0, ttft_ms=1, decode_ms=2, eos=5)) as oracle:
        yield Desk(root, oracle, samples)


def result_of(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(done.stdout)
    return value


@pytest.fixture(scope="module")
def measured(desk: Desk) -> Path:
    """A run directory with a performance test in it."""
    done = desk.call("--run-dir", "one", "--json")
    verdict = result_of(done)
    assert {reason["check"] for reason in verdict["reasons"]} <= {"client-limited"}, done.stderr
    assert done.returncode == (5 if verdict["reasons"] else 0)
    assert (verdict["class"], verdict["model"]) == ("reduced", "m")
    assert verdict == json.loads((desk.root / "one" / "verdict.json").read_text())
    return desk.root / "one"


def test_status_tells_a_measurement_that_ended_by_its_verdict(desk: Desk, measured: Path) -> None:
    nobody = desk.argv("http://127.0.0.1:1", "--run-dir", "down")
    failed = subprocess.run(nobody, cwd=desk.root, capture_output=True, text=True, timeout=240, check=False)
    assert failed.returncode == 4, failed.stderr
    verdict = json.loads((measured / "verdict.json").read_text())["verdict"]
    for place, word in ((measured, verdict), (desk.root / "down", "FAILED")):
        run = read_run(place)
        assert outcome_of(run, None).word == word
        assert run.began_t > 0
        assert controller_of(run.run_id) is None


def test_a_run_directory_like_a_jobs_says_what_could_not_be_proved(desk: Desk, measured: Path) -> None:
    names = {
        "loadgen",
        "requests.bin",
        "measure.json",
        "endpoint.json",
        "events.jsonl",
        "versions.json",
        "verdict.json",
    }
    assert names <= {path.name for path in measured.iterdir()}
    assert not (measured / "topology.yaml").exists()
    endpoint = json.loads((measured / "endpoint.json").read_text())
    assert (endpoint["urls"], endpoint["model"], endpoint["class"]) == ([desk.oracle.url], "m", "reduced")
    recorded = json.loads((measured / "verdict.json").read_text())
    assert any("whether it is disaggregated, is not proved" in note for note in recorded["notes"])
    again = judge_directory(measured)
    assert json.loads(json.dumps(again.as_json())) == recorded


def test_accuracy_and_compliance_join_the_run_they_belong_to(desk: Desk, measured: Path) -> None:
    before = (measured / "verdict.json").read_bytes()
    accuracy = desk.call("--run-dir", "one", "--mode", "accuracy", "--json")
    assert (result_of(accuracy)["verdict"], accuracy.returncode) == ("VALID", 0), accuracy.stderr
    assert result_of(accuracy)["scores"]["ROUGEL"] == 100.0
    # TEST06 is llama2's only compliance test, so it need not be named.
    compliance = desk.call("--run-dir", "one", "--mode", "compliance", "--tokenizer", "model")
    assert compliance.returncode == 0, compliance.stderr
    assert compliance.stdout.startswith("TEST06 VALID [reduced]")
    assert json.loads((measured / "TEST06" / "result.json").read_text())["targets"] == {"eos_token_ids": [5]}
    assert (measured / "verdict.json").read_bytes() == before
    once_more = desk.call("--run-dir", "one", "--mode", "accuracy")
    assert (once_more.returncode, "results of two tests would mix" in once_more.stderr) == (2, True)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (("--run-dir", "one"), "results of two runs would mix"),
        (("--run-dir", "one", "--mode", "accuracy", "--target-qps", "61"), "settings.target_qps (settings.target_q"),
        (("--run-dir", "one", "--mode", "accuracy", "--rehearsal"), "class (class was reduced, now rehearsal)"),
        (("--mode", "compliance"), "the model's own are not known"),
    ],
)
def test_what_does_not_go_with_a_run_is_refused(desk: Desk, measured: Path, more: tuple[str, ...], text: str) -> None:
    found = sorted(path.name for path in desk.root.iterdir())
    done = desk.call(*more)
    assert (done.returncode, text in " ".join(done.stderr.split())) == (2, True), done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in desk.root.iterdir()) == found


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (("--mode", "compliance", "--test", "TEST07"), "has no compliance test TEST07"),
        (("--test", "TEST06"), "--mode is performance"),
        (("--benchmark", "llama2"), "no benchmark 'llama2'"),
        (("--target-qps", "nan"), "no finite number"),
        (("--target-qps", "1e9"), "1e9|1000000000"),
        (("--reduced", "percentile=x"), "is given twice"),
        (("--reduced", "tokens=1"), "no rule that can be lowered"),
        (("--dataset", "nowhere"), "nowhere/prompts.jsonl"),
        (("https://127.0.0.1:1",), "plain HTTP"),
        (("http://127.0.0.1",), "names no host and port"),
        (("http://user@127.0.0.1:1",), "a URL with a user is recorded"),
        (("--model", " "), "is empty"),
    ],
)
def test_values_that_cannot_be_measured_are_refused(desk: Desk, more: tuple[str, ...], text: str) -> None:
    words = [*desk.argv(desk.oracle.url)[4:], *more]
    with pytest.raises((ConfigError, click.UsageError), match=text):
        command.main(words, standalone_mode=False)


def test_too_few_samples_are_told_in_the_form_of_this_verb(desk: Desk) -> None:
    fixed = ("--dataset", str(desk.root / "data"), "--model", "m")
    samples = len((desk.root / "data" / "prompts.jsonl").read_text().splitlines())
    with pytest.raises(ConfigError, match=f"has {samples} samples.*\n.* or add --reduced samples={samples} "):
        command.main([desk.oracle.url, *fixed, *VALUES], standalone_mode=False)


def test_all_that_was_not_given_is_listed() -> None:
    words = ["http://127.0.0.1:1", "--model", "m", "--scenario", "Server"]
    with pytest.raises(ConfigError, match=r"^not given: --benchmark, --target-qps, --dataset\n"):
        command.main(words, standalone_mode=False)


def test_an_endpoint_that_serves_another_model_or_none_is_no_result(desk: Desk) -> None:
    other = desk.call("--run-dir", "other", model="qwen")
    assert (other.returncode, "serves no model 'qwen'; it lists m" in other.stderr) == (2, True)
    assert not (desk.root / "other").exists(), "the run directory is not used up"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = desk.argv(f"http://127.0.0.1:{port}", "--run-dir", "none")
    down = subprocess.run(argv, cwd=desk.root, capture_output=True, text=True, timeout=240, check=False)
    assert (down.returncode, "Connection refused" in down.stderr) == (4, True)


def test_an_interrupt_leaves_no_result_behind_and_nothing_running(desk: Desk) -> None:
    argv = desk.argv(desk.oracle.url, "--run-dir", "cut", "--target-qps", "0.5")
    with subprocess.Popen(argv, cwd=desk.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        progress = desk.root / "cut" / "loadgen" / "progress.json"
        deadline = time.monotonic() + 240
        while not progress.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=240)
    assert process.returncode == 130, err
    assert out.startswith("FAILED (interrupted)")
    assert json.loads((desk.root / "cut" / "verdict.json").read_text())["verdict"] == "FAILED"
    events = [json.loads(line) for line in (desk.root / "cut" / "events.jsonl").read_text().splitlines()]
    assert any(entry["event"] == "process_exited" for entry in events)
