"""Scores are made again from the recorded answers where the truth is at hand; where not, the tree says so."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from dynamo_mlperf.benchmark.accuracy.scores import Scores
from dynamo_mlperf.benchmark.accuracy.scoring import score_accuracy_log
from dynamo_mlperf.benchmark.catalogue import CATALOGUE_FILE
from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import digest_file
from dynamo_mlperf.submission.finding import RefusedError
from dynamo_mlperf.submission.gate import check_tree
from dynamo_mlperf.submission.package import PackageRequest, package
from dynamo_mlperf.submission.records import tests_of as records_of
from dynamo_mlperf.submission.rescoring import Again, Rescoring, score_again
from tests.fakes.made_data import write_made_data
from tests.fakes.truth_oracle import Answers, Knowledge
from tests.submission.conftest import request_of
from tests.submission.made_runs import Made, make_run

if TYPE_CHECKING:
    from pathlib import Path

DEEPSEEK, GPT, QWEN = "deepseek-r1", "gpt-oss-120b", "qwen3-vl-235b-a22b"


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
    place = tree / "closed/ACME/results/two-nodes/deepseek-r1/Server"
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
    with pytest.raises(RefusedError, match="--data-set deepseek-r1="):
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
    assert again(run, "accuracy", how) == Again(
        "not scored again: the data set at hand is not the one that ran, by its digest"
    )
    with pytest.raises(ConfigError, match=r"no truth\.jsonl or catalogue\.jsonl there"):
        again(run, "accuracy", Rescoring({QWEN: tmp_path}))
