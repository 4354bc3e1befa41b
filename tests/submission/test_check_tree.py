"""Our gate: each fault of a tree is found with its file, and the gaps of the official checker are closed."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.load.logs import DETAIL, SUMMARY
from dynamo_mlperf.submission.gate import check_tree
from dynamo_mlperf.submission.layout import submitter_of
from dynamo_mlperf.submission.manifest import write_manifest
from tests.submission.made_runs import log_line, set_values
from tests.submission.test_package_refusals import edit, replace_in

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SERVER = "closed/ACME/results/two-nodes/deepseek-r1/Server"
SYSTEM = "closed/ACME/systems/two-nodes.json"


def said(tree: Path, *, resealed: bool = True) -> str:
    """All findings; `resealed` makes the digests those of now, so that only what was spoiled is told."""
    part = next(submitter_of(tree, path.name) for path in (tree / "closed").iterdir())
    if resealed and part.manifest.is_file():
        value = json.loads(part.manifest.read_text())
        write_manifest(part, {key: value[key] for key in ("class", "round", "submitter", "system")}, rehearsal=False)
    return "\n".join(finding.text() for finding in check_tree(tree, "v6.1").findings)


def _error(place: Path) -> None:
    with (place / "performance/run_1/mlperf_log_detail.txt").open("a") as log:
        log.write(log_line("error_runtime", "lost", error=True) + "\n")


FAULTS: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "an error in the performance log": (
        _error,
        "run_1/mlperf_log_detail.txt",
        "error entries in LoadGen's log: wanted 0, got 1",
    ),
    "wrong seeds": (
        lambda place: set_values(place / "performance/run_1", effective_qsl_rng_seed=2465351861681999779),
        "run_1/mlperf_log_detail.txt",
        "effective_qsl_rng_seed: wanted 2085463073848966840",
    ),
    "a short run": (
        lambda place: set_values(place / "performance/run_1", effective_min_duration_ms=60_000),
        "run_1/mlperf_log_detail.txt",
        "effective_min_duration_ms: wanted 600000 or more, got 60000",
    ),
    "an accuracy log for performance": (
        lambda place: shutil.copy(place / "accuracy/mlperf_log_detail.txt", place / "performance/run_1"),
        "run_1/mlperf_log_detail.txt",
        "effective_test_mode: wanted PerformanceOnly, got AccuracyOnly",
    ),
    "no detail log": (
        lambda place: (place / "performance/run_1/mlperf_log_detail.txt").unlink(),
        "run_1/mlperf_log_detail.txt",
        "got missing",
    ),
    "a summary that says otherwise": (
        lambda place: replace_in(place / f"performance/run_1/{SUMMARY}", " : 100000000", " : 100000001"),
        "run_1/mlperf_log_detail.txt",
        f"LoadGen's {SUMMARY}: wanted that of the test in {DETAIL}, got 'Min First Token",
    ),
    "no summary of a compliance test": (
        lambda place: (place / f"TEST06/performance/run_1/{SUMMARY}").unlink(),
        "TEST06/performance/run_1/mlperf_log_detail.txt",
        "got none, or an empty one",
    ),
    "no user.conf": (lambda place: (place / "user.conf").write_text(""), "user.conf", "there, with content, got empty"),
    "a low score": (
        lambda place: replace_in(place / "accuracy/accuracy.txt", "81.0", "80.0"),
        "accuracy/accuracy.txt",
        "exact_match: wanted >= 80.544618, got 80.0",
    ),
    "no hash": (
        lambda place: replace_in(place / "accuracy/accuracy.txt", "hash=", "sum="),
        "accuracy/accuracy.txt",
        "hash of the accuracy log: wanted a line hash=...",
    ),
    "a whole accuracy log": (
        lambda place: (place / "accuracy/mlperf_log_accuracy.json").write_text("x" * 10_241),
        "accuracy/mlperf_log_accuracy.json",
        "10240 bytes or fewer, got 10241 bytes",
    ),
    "part of the data set": (
        lambda place: set_values(place / "accuracy", effective_accuracy_sample_count=4387),
        "accuracy/mlperf_log_detail.txt",
        "effective_accuracy_sample_count: wanted 4388, got 4387",
    ),
    "no verification": (lambda place: shutil.rmtree(place / "TEST06"), "TEST06/verify_accuracy.txt", "got missing"),
    "a failed verification": (
        lambda place: replace_in(
            place / "TEST06/verify_accuracy.txt", "length check pass: True", "length check pass: False"
        ),
        "TEST06/verify_accuracy.txt",
        "the line 'Sample length check pass: True'",
    ),
    "empty measurements": (
        lambda place: edit(place / "measurements.json", weight_data_types=" "),
        "measurements.json",
        "weight_data_types: wanted a value, got nothing",
    ),
    "no README": (lambda place: (place / "README.md").unlink(), "README.md", "got missing"),
    "no record": (
        lambda place: (place / "record/record.json").unlink(),
        "record/record.json",
        "record of the runs: wanted the record, got none",
    ),
    "failed requests on record": (
        lambda place: edit(place / "record/record.json", failed_requests=2),
        "record/record.json",
        "failed requests: wanted 0, got 2",
    ),
    "another scenario's result": (
        lambda place: place.rename(place.parent / "Interactive"),
        "Interactive/record/record.json",
        "scenario: wanted Interactive, got Server",
    ),
    "a token": (
        lambda place: (place / "README.md").write_text("export HF_TOKEN=hf_" + "abcdEFGH" * 4),
        "README.md",
        "secrets: wanted none, got a Hugging Face token",
    ),
    "a cut log": (
        lambda place: replace_in(place / "performance/run_1/mlperf_log_detail.txt", '"num_errors", ', '"num_err'),
        str(SERVER),
        "is cut or garbled",
    ),
    "records of the wrong kind": (
        lambda place: (place / "record/record.json").write_text('{"tests": [1], "failed_requests": 0}'),
        "Server",
        "files: wanted whole ones",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found_with_its_file(packaged: Path, name: str) -> None:
    spoil, where, text = FAULTS[name]
    assert said(packaged) == ""
    spoil(packaged / SERVER)
    found = said(packaged)
    assert text in found
    assert any(where in line.split(": ")[0] for line in found.splitlines() if text in line), found


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"cooling": ""}, "cooling: wanted a value, got nothing"),
        ({"cooling": None}, "cooling: wanted the key, got missing"),
        ({"submitter": "OTHER"}, "submitter: wanted ACME, as the folder is called, got OTHER"),
        ({"division": "open"}, "division: wanted closed"),
        ({"status": "soon"}, "status: wanted available or preview or rdi, got soon"),
        ({"system_type": "edge"}, "system_type: wanted datacenter, got edge"),
        ({"accelerators_per_node": "4 + 8"}, "accelerators_per_node: wanted a whole number, got 4 + 8"),
    ],
)
def test_system_descriptions_are_whole(packaged: Path, changes: dict[str, Any], text: str) -> None:
    edit(packaged / SYSTEM, **changes)
    assert text in said(packaged)


def test_what_lies_beside_the_results_is_wanted(packaged: Path) -> None:
    (packaged / "closed/ACME/documentation/calibration.md").unlink()
    (packaged / SYSTEM).rename(packaged / "closed/ACME/systems/other.json")
    (packaged / SERVER).parent.joinpath("server").mkdir()
    found = said(packaged)
    assert "documentation/calibration.md: file: wanted there, got missing" in found
    assert "systems/two-nodes.json: system: wanted its description" in found
    assert "systems/other.json: system: wanted results of it, got none" in found
    assert "deepseek-r1/server: scenario: wanted Offline, Server, Interactive, got server" in found


def test_missing_scenarios_and_unknown_benchmarks_are_found(packaged: Path) -> None:
    (packaged / SERVER).parent.joinpath("Offline").rename(packaged / "away")
    shutil.copytree(packaged / SERVER, packaged / "closed/ACME/results/two-nodes/llama3-8b/Server")
    found = said(packaged)
    assert "deepseek-r1: scenarios: wanted Offline, got Server" in found
    assert "two-nodes/llama3-8b: benchmark: wanted one of the round, got llama3-8b" in found


def test_evidence_that_was_changed_since_is_found_and_documents_may_be(packaged: Path) -> None:
    (packaged / SERVER / "README.md").write_text("# Better words\n")
    assert said(packaged, resealed=False) == ""
    with (packaged / SERVER / "performance/run_1/mlperf_log_summary.txt").open("a") as log:
        log.write("\n")
    assert "mlperf_log_summary.txt: evidence: wanted as packaged, got changed since" in said(packaged, resealed=False)
    (packaged / SERVER / "extra.txt").write_text("x")
    assert "extra.txt: evidence: wanted as packaged, got not packaged" in said(packaged, resealed=False)


def test_a_tree_of_others_is_judged_by_its_files_alone(packaged: Path) -> None:
    """Without any sign of `package` nobody can say what class it is; its files are held to the rules all the same."""
    root = packaged / "closed/ACME"
    for place in (root / "src/dynamo_mlperf", root / "src/deepseek-r1", *root.glob("results/*/*/*/record")):
        shutil.rmtree(place)
    (root / "documentation/package.json").unlink()
    for path in root.glob("results/*/*/*/README.md"):
        path.write_text("# Ours\n")
    assert check_tree(packaged, "v6.1").findings == ()
    _error(packaged / SERVER)
    assert "error entries in LoadGen's log" in said(packaged)


def test_gaps_of_the_official_checker_in_endpoints_form_are_closed(tree_of: Callable[..., Path]) -> None:
    tree = tree_of("Offline", "Interactive", benchmark="gpt-oss-120b", client="endpoints")
    place = tree / "closed/ACME/results/two-nodes/gpt-oss-120b/Interactive"
    assert said(tree) == ""
    edit(place / "performance/result_summary.json", n_samples_failed=3)
    assert "failed requests: wanted 0, got 3 of 6396" in said(tree)
    edit(place / "performance/result_summary.json", n_samples_failed=0)
    scores = json.loads((place / "accuracy/accuracy_results.json").read_text())
    scores["accuracy_scores"][2]["score"] = 0.5
    (place / "accuracy/accuracy_results.json").write_text(json.dumps(scores))
    assert "accuracy_results.json: exact_match: wanted >= 82.2987, got 55.8" in said(tree)
    del scores["accuracy_scores"][0]
    scores["accuracy_scores"][1]["score"] = 0.9
    (place / "accuracy/accuracy_results.json").write_text(json.dumps(scores))
    assert "accuracy samples: wanted 4395, got 4155" in said(tree)


def test_an_interactive_run_under_server_limits_does_not_pass(tree_of: Callable[..., Path]) -> None:
    tree = tree_of("Offline", "Interactive")
    logs = tree / "closed/ACME/results/two-nodes/deepseek-r1/Interactive/performance/run_1"
    set_values(logs, requested_server_tpot_latency=80_000_000)
    set_values(
        logs, **{f"result_time_per_output_token_{share}_percentile_ns": 40_000_000 for share in ("99__00", "99__90")}
    )
    set_values(logs, result_time_to_output_token_max=40_000_000)
    found = said(tree)
    assert "requested_server_tpot_latency: wanted 15000000 or less, got 80000000" in found
    assert "tpot within 15 ms" in found


def test_what_is_no_tree_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no submission: no folder below"):
        check_tree(tmp_path, "v6.1")
    with pytest.raises(ConfigError, match="no rules of round"):
        check_tree(tmp_path, "v9.9")
    with pytest.raises(ConfigError, match=r"trees of v5\.1 have folders of another kind"):
        check_tree(tmp_path, "v5.1")
    (tmp_path / "closed/ACME").mkdir(parents=True)
    assert "results: wanted one system or more, got none" in said(tmp_path)


@pytest.mark.parametrize("raw", [b"", b"\x00\xff", b"[]", b"{" * 5000])
@pytest.mark.parametrize(
    "name",
    [SYSTEM, f"{SERVER}/measurements.json", f"{SERVER}/record/record.json", f"{SERVER}/accuracy/accuracy.txt",
     f"{SERVER}/performance/run_1/mlperf_log_detail.txt", "closed/ACME/documentation/package.json"],
)  # fmt: skip
def test_garbage_is_a_finding_never_a_traceback(packaged: Path, name: str, raw: bytes) -> None:
    (packaged / name).write_bytes(raw)
    assert said(packaged, resealed=False)
