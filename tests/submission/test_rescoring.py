"""Scores are made again from the recorded answers where the truth is at hand; where not, the tree says so."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dynamo_mlperf.benchmark.accuracy.scores import Scores
from dynamo_mlperf.benchmark.accuracy.scoring import score_accuracy_log
from dynamo_mlperf.benchmark.catalogue import CATALOGUE_FILE
from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.errors import ConfigError, MeasureError
from dynamo_mlperf.files import digest_file
from dynamo_mlperf.load.endpoints_answers import accuracy_answers
from dynamo_mlperf.submission.finding import RefusedError
from dynamo_mlperf.submission.gate import check_tree
from dynamo_mlperf.submission.package import PackageRequest, package
from dynamo_mlperf.submission.records import tests_of as records_of
from dynamo_mlperf.submission.rescoring import Again, score_again
from dynamo_mlperf.submission.truth_at_hand import Rescoring
from tests.fakes.made_data import write_made_data
from tests.fakes.truth_oracle import Answers, Knowledge
from tests.submission.conftest import request_of
from tests.submission.made_runs import Made, make_run

DEEPSEEK, GPT, QWEN = "deepseek-r1", "gpt-oss-120b", "qwen3-vl-235b-a22b"
PLACE = "closed/ACME/results/two-nodes/deepseek-r1/Server"


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def answer_log(directory: Path, data: Path, name: str, set_name: str) -> None:
    """Put an oracle's answers in place of those in a test's log; their numbers of tokens stay."""
    known, log = Answers(Knowledge(data, name, right=0.9)), directory / "mlperf_log_accuracy.json"
    entries = json.loads(log.read_text())
    for entry in entries:
        entry["data"] = known.text(set_name, entry["qsl_idx"]).encode().hex().upper()
    log.write_text("[\n" + ",\n".join(json.dumps(entry) for entry in entries) + "\n]\n")


def claim(directory: Path, scores: dict[str, float]) -> None:
    """Write scores of the log that lies there into both places that hold them."""
    digest = hashlib.sha256((directory / "mlperf_log_accuracy.json").read_bytes()).hexdigest()
    (directory / "accuracy.txt").write_text(Scores(DEEPSEEK, 4388, scores, digest).text())
    edit(directory / "result.json", scores=scores)


def name_data_set(run: Path, data: Path) -> None:
    topology = run / "topology.yaml"
    value = yaml.safe_load(topology.read_text())
    value["measure"]["dataset"] = str(data)
    topology.write_text(yaml.safe_dump(value, sort_keys=False))


def again(run: Path, test: str, how: Rescoring | None = None) -> Again:
    record = next(record for record in records_of(run) if record.name == test)
    return score_again(record, benchmark(record.benchmark), how or Rescoring())


def test_a_score_that_the_answers_do_not_have_is_refused(base: Path, tmp_path: Path) -> None:
    """Changed in every place that holds it, with the right hash; the same runs pass once it is mended."""
    data, run = tmp_path / "data", base / "Server"
    write_made_data(DEEPSEEK, data)
    for name in ("Offline", "Server"):  # one deployment: the tests of both name the same data set
        name_data_set(base / name, data)
    answer_log(run / "accuracy", data, DEEPSEEK, "performance")
    answer_log(base / "Offline" / "accuracy", data, DEEPSEEK, "performance")
    found = score_accuracy_log(DEEPSEEK, run / "accuracy" / "mlperf_log_accuracy.json", data, run_code=False)
    assert (dict(found.not_scored), "exact_match" in found.metrics) == ({"livecodebench": 30}, False)
    least = 100 * sum(subset["right"] for subset in found.details["subsets"].values()) / 4388
    tokens = {"TOKENS_PER_SAMPLE": found.metrics["TOKENS_PER_SAMPLE"]}
    claim(base / "Offline" / "accuracy", {"exact_match": least + 0.1, **tokens})
    claim(run / "accuracy", {"exact_match": least + 2, **tokens})
    with pytest.raises(RefusedError, match=r"exact_match of deepseek-r1 Server accuracy: wanted .* from the answers"):
        package(request_of(base))
    claim(run / "accuracy", {"exact_match": least + 0.5, **tokens})
    tree = package(request_of(base)).tree
    said = "scored again from 4388 answers, 30 in code not run: the recorded score is possible"
    place = tree / PLACE
    assert json.loads((place / "record/record.json").read_text())["scored_again"] == {"accuracy": said}
    assert f"| scores of accuracy | {said} |" in (place / "README.md").read_text()
    assert f"ACME/two-nodes/deepseek-r1/Server: scores of accuracy: {said}" in check_tree(tree, "v6.1").notes


def test_without_the_data_set_the_tree_says_that_scores_are_as_recorded(base: Path, tmp_path: Path) -> None:
    told: list[str] = []
    tree = package(request_of(base), told.append).tree
    said = "not scored again: the data set is not at hand (--data-set deepseek-r1=DIR)"
    assert f"deepseek-r1 Server accuracy: {said}" in told
    gate = check_tree(tree, "v6.1")
    assert gate.findings == ()
    assert gate.notes == tuple(
        f"ACME/two-nodes/deepseek-r1/{name}: scores of accuracy: {said}" for name in ("Offline", "Server")
    )
    request = request_of(base)
    unasked = Rescoring({DEEPSEEK: tmp_path}, wanted=False)
    other = PackageRequest(request.runs, request.description, "ACME", base / "other", rescoring=unasked)
    assert "scores of accuracy: not scored again: as was asked for" in check_tree(package(other).tree, "v6.1").notes[0]
    wrong = PackageRequest(
        request.runs, request.description, "ACME", base / "third", rescoring=Rescoring({DEEPSEEK: tmp_path})
    )
    with pytest.raises(ConfigError, match="--data-set deepseek-r1="):
        package(wrong)


def test_test07_is_scored_again_by_its_own_part_of_the_data_set(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_made_data(GPT, data)
    run = make_run(tmp_path / "run", Made(GPT, "Server", tests=("compliance",)))
    answer_log(run / "TEST07", data, GPT, "compliance")
    how = Rescoring({GPT: data})
    right = score_accuracy_log(GPT, run / "TEST07" / "mlperf_log_accuracy.json", data / "compliance")
    (wrong,) = again(run, "TEST07", how).findings
    assert wrong.wanted == f"{right.metrics['exact_match']}, scored again from the answers"
    assert wrong.got == "62.5"
    edit(run / "TEST07" / "result.json", scores={"exact_match": right.metrics["exact_match"]})
    assert again(run, "TEST07", how) == Again("scored again from 990 answers")


def write_events(run: Path, data: Path, samples: int) -> None:
    """The event log and the map of samples, as endpoints leaves them, of an oracle's answers."""
    known, directory = Answers(Knowledge(data, QWEN, right=0.9)), run / "endpoints"
    ids = {f"a{number:031x}": number for number in range(samples)}
    phases = {"performance": {"0" * 32: 3}, "shopify_product_catalogue_8k::q3vl": ids}
    (directory / "sample_idx_map.json").write_text(json.dumps(phases))
    rows: list[dict[str, Any]] = [{"sample_uuid": "0" * 32, "event_type": "sample.complete", "data": ["t", "not this"]}]
    for sample, number in ids.items():
        text = known.text("performance", number)
        rows += [
            {"sample_uuid": sample, "event_type": "sample.issued", "data": None},
            {"sample_uuid": sample, "event_type": "sample.complete", "data": ["t", [text[:9], text[9:]]]},
        ]
    (directory / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_scores_of_endpoints_are_made_again_from_its_event_log(tmp_path: Path) -> None:
    data = tmp_path / "data"
    write_made_data(QWEN, data, interactive=True)
    run = make_run(tmp_path / "run", Made(QWEN, "Interactive", client="endpoints"))
    edit(run / "endpoints.json", data_digest=digest_file(data / CATALOGUE_FILE))
    write_events(run, data, 8000)
    how = Rescoring({QWEN: data})
    (wrong,) = again(run, "accuracy", how).findings
    assert wrong.check == f"F1_HIERARCHICAL of {QWEN} Interactive accuracy"
    value = float(wrong.wanted.partition(",")[0])
    assert 0.85 < value < 0.95, "an oracle that is right nine times in ten"
    path = run / "endpoints" / "accuracy" / "accuracy_results.json"
    entry = {**json.loads(path.read_text())["accuracy_scores"][0], "score": value}
    path.write_text(json.dumps({"accuracy_scores": [entry]}))
    assert again(run, "accuracy", how) == Again("scored again from 8000 answers")
    write_events(run, data, 7999)
    (missing,) = again(run, "accuracy", how).findings
    assert "7999 answers to 8000 samples" in missing.got
    edit(run / "endpoints.json", data_digest="0" * 64)
    with pytest.raises(ConfigError, match="not the one that ran, by its digest"):
        again(run, "accuracy", how)
    name_data_set(run, data)
    said = again(run, "accuracy")
    assert said == Again(f"not scored again: the data set {data}: not the one that ran, by its digest")
    (tmp_path / "truth.jsonl").write_text('{"subset": "gpqa", "answer": "B"}\n')
    with pytest.raises(ConfigError, match=r"no catalogue\.jsonl there"):
        again(run, "accuracy", Rescoring({QWEN: tmp_path}))


@pytest.mark.parametrize("index", ['"0"', "1.5", "[1]", "NaN", "-1", "true", "null"])
def test_an_index_of_endpoints_that_is_no_place_in_the_data_set_is_told(tmp_path: Path, index: str) -> None:
    path = tmp_path / "sample_idx_map.json"
    path.write_text(f'{{"performance": {{"p": "any"}}, "accuracy": {{"a": {index}}}}}')
    (tmp_path / "events.jsonl").write_text(
        '{"sample_uuid": "a", "event_type": "sample.complete", "data": ["t", "x"]}\n'
    )
    with pytest.raises(MeasureError, match=r"sample_idx_map.json cannot be read: sample a has index"):
        list(accuracy_answers(tmp_path))


def test_a_data_set_that_cannot_be_looked_into_is_told_with_the_reason(base: Path) -> None:
    long = "x" * 5000
    for name in ("Offline", "Server"):
        name_data_set(base / name, Path(f"/{long}"))
    said = json.loads((package(request_of(base)).tree / f"{PLACE}/record/record.json").read_text())["scored_again"]
    assert said["accuracy"] == f"not scored again: the data set /{long[:199]}: File name too long"
    with pytest.raises(ConfigError, match=r"--data-set deepseek-r1=.*: File name too long"):
        again(base / "Server", "accuracy", Rescoring({DEEPSEEK: Path(long)}))


def test_a_data_set_that_was_named_and_is_of_no_use_is_refused(base: Path, tmp_path: Path) -> None:
    asked = request_of(base)

    def refused(data_sets: dict[str, Path]) -> str:
        how = Rescoring(data_sets)
        with pytest.raises(ConfigError) as error:
            package(PackageRequest(asked.runs, asked.description, "ACME", base / "tree", rescoring=how))
        return str(error.value)

    (tmp_path / "catalogue.jsonl").write_text("{}\n")
    assert "no truth.jsonl there" in refused({DEEPSEEK: tmp_path})
    assert "hold no test of gpt-oss-120b that is scored by it; what is scored: deepseek-r1" in refused({GPT: tmp_path})
    (tmp_path / "truth.jsonl").write_text('{"subset": 1}\n')
    assert f"--data-set deepseek-r1={tmp_path}: {tmp_path}/truth.jsonl:1: subset and answer" in refused(
        {DEEPSEEK: tmp_path}
    )
    assert not (base / "tree").exists()


@pytest.mark.parametrize("measure", [["dataset"], "text", {"dataset": 5}])
def test_a_recorded_topology_that_names_its_data_set_in_no_known_form_is_told(base: Path, measure: object) -> None:
    path = base / "Server" / "topology.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "measure": measure}))
    (found,) = again(base / "Server", "accuracy").findings
    assert "topology.yaml: " in found.got
    assert "has to be a" in found.got


@pytest.mark.parametrize("score", ["99", None, True, [1], 10**400], ids=lambda score: f"{score}"[:9])
def test_a_recorded_score_that_is_no_number_is_told(tmp_path: Path, score: object) -> None:
    data = tmp_path / "data"
    write_made_data(GPT, data)
    run = make_run(tmp_path / "run", Made(GPT, "Server", tests=("compliance",)))
    answer_log(run / "TEST07", data, GPT, "compliance")
    edit(run / "TEST07" / "result.json", scores={"exact_match": score})
    (found,) = again(run, "TEST07", Rescoring({GPT: data})).findings
    assert found.where == str(run / "TEST07")
    assert "have to be numbers" in found.got or "OverflowError" in found.got
