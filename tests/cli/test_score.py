"""`score` and `dataset`: answers, floors and exit codes as a person sees them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.benchmark.accuracy_logs import write_texts, write_truth

FRAMES = Path(__file__).parents[1] / "benchmark" / "frames"


def verb(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "dynamo_mlperf.cli", *arguments], cwd=cwd, capture_output=True, text=True, check=False
    )


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run of deepseek-r1 whose topology names its data set, two of three answers right."""
    data_set = tmp_path / "data"
    data_set.mkdir()
    write_truth(data_set, [("gpqa", "A"), ("aime1983", "7"), ("mmlu_pro", "J")])
    accuracy = tmp_path / "runs" / "one" / "accuracy"
    accuracy.mkdir(parents=True)
    (accuracy.parent / "topology.yaml").write_text("measure: {dataset: data}\n")
    write_texts(accuracy, ["Answer: A", r"\boxed{7}", "Answer: I"], tokens=4000)
    return accuracy.parent


def test_scores_are_held_against_the_floors(run: Path, tmp_path: Path) -> None:
    out = verb("score", "one", "--benchmark", "deepseek-r1", "-o", "accuracy.txt", cwd=tmp_path)
    assert out.returncode == 5, out.stderr
    assert out.stdout.splitlines()[:3] == [
        "INVALID: deepseek-r1 Offline, 3 answers",
        "  exact_match: 66.66666666666667, wanted >= 80.544618: not met",
        "  TOKENS_PER_SAMPLE: 4000.0, wanted >= 3497.60466 and <= 4274.85014",
    ]
    assert "'exact_match': 66.66666666666667" in (tmp_path / "accuracy.txt").read_text()
    write_texts(run / "accuracy", ["Answer: A", r"\boxed{7}", "Answer: J"], tokens=4000)
    met = verb("score", str(run), "--benchmark", "deepseek-r1", "--scenario", "Server", "--json", cwd=tmp_path)
    answer = json.loads(met.stdout)
    assert (met.returncode, answer["verdict"], answer["scores"]["exact_match"]) == (0, "VALID", 100.0)
    assert (answer["shortfalls"], answer["targets"]["TOKENS_PER_SAMPLE"]) == ([], [3497.60466, 4274.85014])


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["one"], 2, "name it: --benchmark"),
        (["runs/none"], 2, "there is no mlperf_log_accuracy.json in runs/none"),
        (["one", "--benchmark", "qwen3-vl-235b-a22b"], 2, "name it: --scenario"),
        (["one", "--benchmark", "deepseek-r1", "--data-set", "runs"], 2, "dynamo-mlperf dataset SOURCE"),
        (["one", "--benchmark", "deepseek-r1", "--token-bytes", "5"], 2, "write 4 or 8"),
        (["one", "--benchmark", "deepseek-r1", "--tokenizer", "nowhere"], 2, "nowhere: no such file"),
    ],
)
def test_what_is_missing_is_told(run: Path, tmp_path: Path, arguments: list[str], code: int, told: str) -> None:
    out = verb("score", *arguments, cwd=tmp_path)
    assert (out.returncode, out.stdout) == (code, "")
    assert told in out.stderr
    assert "Traceback" not in out.stderr


def test_answers_are_scored_in_several_processes(tmp_path: Path) -> None:
    write_truth(tmp_path, [("open_orca", f"the answer is {number}") for number in range(300)])
    write_texts(tmp_path, [f"the answer is {number}" for number in range(300)], tokens=300)
    arguments = ("--benchmark", "llama2-70b-99.9", "--data-set", ".", "--workers", "2", "--json")
    out = verb("score", "./mlperf_log_accuracy.json", *arguments, cwd=tmp_path)
    assert out.returncode == 0, out.stderr
    wanted = {"ROUGE1": 100.0, "ROUGE2": 100.0, "ROUGEL": 100.0, "TOKENS_PER_SAMPLE": 300.0}
    assert json.loads(out.stdout)["scores"] == wanted


def test_a_log_with_too_few_answers_was_not_measured(run: Path, tmp_path: Path) -> None:
    write_texts(run / "accuracy", ["Answer: A"])
    out = verb("score", "one", "--benchmark", "deepseek-r1", cwd=tmp_path)
    assert out.returncode == 4
    assert "1 answers to 3 samples; 2 have none, the first is sample 1" in out.stderr


def test_a_published_data_set_is_made_ours(tmp_path: Path) -> None:
    source = str(FRAMES / "deepseek-pandas-2.2.pkl")
    out = verb("dataset", source, "--benchmark", "deepseek-r1", "--out", "ours", "--any-size", cwd=tmp_path)
    assert (out.returncode, out.stdout) == (0, "ours\n"), out.stderr
    assert "6 samples (1 aime1983, 2 gpqa, 1 livecodebench, 1 math500, 1 mmlu_pro)" in out.stderr
    assert "1 of 1 questions have no tests" in out.stderr
    assert sorted(path.name for path in (tmp_path / "ours").iterdir()) == [
        "dataset.json",
        "prompts.jsonl",
        "truth.jsonl",
    ]
    refused = verb("dataset", source, "--benchmark", "deepseek-r1", "--out", "other", cwd=tmp_path)
    assert refused.returncode == 2
    assert "6 samples, and deepseek-r1 (performance) has 4388" in refused.stderr
    unwritable = verb("dataset", source, "--benchmark", "deepseek-r1", "--out", "/proc/x/y", "--any-size", cwd=tmp_path)
    assert (unwritable.returncode, "Traceback" in unwritable.stderr) == (3, False)
