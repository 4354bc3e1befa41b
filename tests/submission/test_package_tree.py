"""The tree that `package` makes: what is in it, that it stays the same, and that it is whole or not there."""

from __future__ import annotations

import hashlib
import json
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.submission.description import KEYS
from dynamo_mlperf.submission.finding import RefusedError
from dynamo_mlperf.submission.package import PackageRequest, package
from tests.submission.conftest import request_of
from tests.submission.made_runs import Made, description, make_run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

SCENARIO = "closed/ACME/results/two-nodes/deepseek-r1/Server"


def digests(place: Path) -> dict[str, str]:
    files = sorted(path for path in place.rglob("*") if path.is_file())
    return {str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_logs_go_in_byte_for_byte_and_the_accuracy_log_truncated_with_its_hash(base: Path) -> None:
    run, before = base / "Server", digests(base)
    tree = package(request_of(base)).tree
    assert {name: digest for name, digest in digests(base).items() if not name.startswith("tree/")} == before
    place = tree / SCENARIO
    for theirs, ours in (
        ("performance/run_1/mlperf_log_detail.txt", "loadgen/mlperf_log_detail.txt"),
        ("performance/run_1/mlperf_log_summary.txt", "loadgen/mlperf_log_summary.txt"),
        ("user.conf", "loadgen/user.conf"),
        ("accuracy/mlperf_log_detail.txt", "accuracy/mlperf_log_detail.txt"),
        ("accuracy/accuracy.txt", "accuracy/accuracy.txt"),
        ("TEST06/verify_accuracy.txt", "TEST06/verify_accuracy.txt"),
        ("TEST06/performance/run_1/mlperf_log_detail.txt", "TEST06/mlperf_log_detail.txt"),
        ("TEST06/audit.config", "TEST06/audit.config.used"),
        ("record/topology.yaml", "topology.yaml"),
    ):
        assert (place / theirs).read_bytes() == (run / ours).read_bytes(), theirs
    whole, cut = run / "accuracy/mlperf_log_accuracy.json", place / "accuracy/mlperf_log_accuracy.json"
    assert cut.stat().st_size <= 10_240 < whole.stat().st_size
    last = (place / "accuracy/accuracy.txt").read_text().splitlines()[-1]
    assert last == f"hash={hashlib.sha256(whole.read_bytes()).hexdigest()}"


def test_an_accuracy_text_without_a_hash_gets_one(base: Path) -> None:
    path = base / "Server" / "accuracy" / "accuracy.txt"
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if "hash=" not in line))
    tree = package(request_of(base)).tree
    assert "hash=" not in path.read_text()
    log = base / "Server" / "accuracy" / "mlperf_log_accuracy.json"
    wanted = f"hash={hashlib.sha256(log.read_bytes()).hexdigest()}"
    assert (tree / SCENARIO / "accuracy" / "accuracy.txt").read_text().splitlines()[-1] == wanted


def test_documents_say_how_to_reproduce_and_what_it_ran_on(packaged: Path) -> None:
    text = (packaged / SCENARIO / "README.md").read_text()
    for said in (
        "dynamo-mlperf plan record/topology.yaml",
        "sbatch record/topology.yaml",
        "target_qps: 6.549",
        "DYN_LOG=warn python -m dynamo.vllm --model 'a b'",
        "| commit | 0123456789abcdef0123456789abcdef01234567 |",
        "| requests | 4388, 0 failed |",
        "| exact_match | 81 |",
    ):
        assert said in text
    assert "HF_TOKEN" not in text
    system = json.loads((packaged / "closed/ACME/systems/two-nodes.json").read_text())
    assert tuple(system) == KEYS
    known = (
        "division",
        "submitter",
        "number_of_nodes",
        "accelerators_per_node",
        "host_processor_model_name",
        "framework",
    )
    assert [system[key] for key in known] == ["closed", "ACME", 2, 4, "Neoverse-V2", "vLLM 0.31.0, NVIDIA Dynamo 1.6.1"]
    measured = json.loads((packaged / SCENARIO / "measurements.json").read_text())
    assert measured["weight_data_types"] == "fp4"
    assert len(measured) == 5
    assert "calibrated to FP4" in (packaged / "closed/ACME/documentation/calibration.md").read_text()
    assert (packaged / "closed/ACME/src/dynamo_mlperf/__init__.py").is_file()
    assert "commit 0123456789abcdef" in (packaged / "closed/ACME/src/deepseek-r1/README.md").read_text()
    record = (packaged / SCENARIO / "record/record.json").read_text()
    assert "10.0.0.1" not in record, "records name no host of the site"


def test_a_second_call_changes_nothing_and_other_content_is_refused_or_replaced_whole(base: Path) -> None:
    request = request_of(base)
    first = package(request)
    before, node = digests(first.tree), first.tree.stat().st_ino
    again = package(request)
    assert (first.changed, again.changed, again.files) == (True, False, first.files)
    assert (digests(first.tree), first.tree.stat().st_ino) == (before, node)
    description(base, cooling="air")
    with pytest.raises(ConfigError, match=r"holds another tree: 1 files differ, the first systems/two-nodes\.json"):
        package(request)
    assert digests(first.tree) == before
    assert package(request_of(base, replace=True)).changed
    system = first.tree / "closed/ACME/systems/two-nodes.json"
    assert json.loads(system.read_text())["cooling"] == "air"
    (first.tree / SCENARIO / "README.md").write_text("by hand")
    with pytest.raises(ConfigError, match=r"1 files differ, the first results/.*README\.md"):
        package(request)
    assert (first.tree / SCENARIO / "README.md").read_text() == "by hand"
    assert [path.name for path in base.iterdir() if path.name.startswith(".")] == []


def test_what_package_did_not_make_is_never_replaced(base: Path) -> None:
    out = base / "tree"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with pytest.raises(ConfigError, match="is no tree of this submitter's that package made"):
        package(request_of(base, replace=True))
    assert (out / "mine.txt").read_text() == "mine"
    shutil.rmtree(out)
    tree = package(request_of(base)).tree
    (tree / "closed" / "OTHER").mkdir()
    with pytest.raises(ConfigError, match="is no tree of this submitter's"):
        package(request_of(base, replace=True))


def test_a_full_disk_leaves_nothing(base: Path, mount_small: Callable[[str], Path]) -> None:
    small = mount_small("256k")
    request = request_of(base)
    with pytest.raises(SetupError, match="No space left on device") as caught:
        package(PackageRequest(request.runs, request.description, "ACME", small / "tree"))
    assert "make room" in caught.value.action
    assert list(small.iterdir()) == []


@pytest.mark.parametrize("name", ["", "a/b", "..", "x\ny", "-rf"])
def test_names_that_are_no_folder_are_refused(base: Path, name: str) -> None:
    request = request_of(base)
    with pytest.raises(ConfigError, match="--submitter: wanted a folder's name"):
        package(PackageRequest(request.runs, request.description, name, base / "tree"))
    with pytest.raises(ConfigError, match="name: wanted a folder's name"):
        package(PackageRequest(request.runs, description(base, name=name), "ACME", base / "tree"))


def test_a_description_that_is_still_an_example_is_refused(base: Path, repository: Path) -> None:
    example = repository / "slurm" / "systems" / "example.yaml"
    request = request_of(base)
    with pytest.raises(ConfigError, match=r"system\.system_name: still FILL-IN"):
        package(PackageRequest(request.runs, example, "ACME", base / "tree"))


def test_every_scenario_and_client_has_its_form(tmp_path: Path) -> None:
    """R03: Interactive is a folder to the tree and a model name to LoadGen, with limits of its own."""
    loadgen = make_run(tmp_path / "i", Made("gpt-oss-120b", "Interactive"))
    endpoints = make_run(tmp_path / "o", Made("gpt-oss-120b", "Offline", client="endpoints"))
    tree = package(PackageRequest((loadgen, endpoints), description(tmp_path), "ACME", tmp_path / "tree")).tree
    place = tree / "closed/ACME/results/two-nodes/gpt-oss-120b"
    detail = (place / "Interactive/performance/run_1/mlperf_log_detail.txt").read_text()
    assert '"key": "effective_scenario", "value": "Server"' in detail
    assert '"key": "requested_server_ttft_latency", "value": 2000000000' in detail
    assert '"key": "requested_server_tpot_latency", "value": 15000000' in detail
    assert (place / "Interactive/user.conf").read_text().startswith("gpt-oss-120b-interactive.Server.target_qps")
    assert sorted(path.name for path in (place / "Interactive").iterdir()) == [
        "README.md", "TEST07", "TEST09", "accuracy", "measurements.json", "performance", "record", "user.conf",
    ]  # fmt: skip
    assert sorted(str(path.relative_to(place / "Offline")) for path in (place / "Offline").rglob("*.*")) == [
        "README.md", "accuracy/accuracy_results.json", "config.yaml", "measurements.json",
        "performance/result_summary.json", "record/record.json", "record/topology.yaml",
    ]  # fmt: skip


def test_a_run_at_an_endpoint_wants_it_said_how_that_was_served(tmp_path: Path) -> None:
    made = Made(endpoint=True)
    runs = tuple(make_run(tmp_path / name, made, scenario=name) for name in ("Offline", "Server"))
    facts: dict[str, Any] = {
        "number_of_nodes": 1, "accelerators_per_node": 8, "host_processor_model_name": "x", "host_processors_per_node": 2,
        "host_processor_core_count": 72, "host_memory_capacity": "1 TB", "host_storage_capacity": "8 TB",
        "host_storage_type": "NVMe SSD", "host_network_card_count": "1x 100GbE", "accelerator_model_name": "y",
        "framework": "z", "operating_system": "Linux",
    }  # fmt: skip
    with pytest.raises(RefusedError) as caught:
        package(PackageRequest(runs, description(tmp_path, **facts), "ACME", tmp_path / "tree"))
    assert {finding.check for finding in caught.value.findings} == {f"serving ({run})" for run in runs}
    system = description(tmp_path, **facts, serving="vllm serve on eight GPUs of one node")
    tree = package(PackageRequest(runs, system, "ACME", tmp_path / "tree")).tree
    text = (tree / SCENARIO / "README.md").read_text()
    assert "Served as deepseek-r1 at http://10.0.0.1:8000: vllm serve on eight GPUs of one node" in text
    asked = "--scenario Server --dataset prompts --target-qps 6.549 --mode"
    assert (
        f"dynamo-mlperf measure http://10.0.0.1:8000 --model deepseek-r1 --benchmark deepseek-r1 {asked} performance"
        in text
    )
    assert f"{asked} compliance --test TEST06" in text


def test_a_run_of_endpoints_at_an_endpoint_is_one_command(tmp_path: Path) -> None:
    made = Made("qwen3-vl-235b-a22b", client="endpoints", endpoint=True, engine="mocker")
    runs = tuple(make_run(tmp_path / name, made, scenario=name) for name in ("Offline", "Interactive"))
    facts = dict.fromkeys(
        ("host_processor_model_name", "host_memory_capacity", "host_storage_capacity", "host_storage_type",
         "host_network_card_count", "accelerator_model_name", "framework", "operating_system"), "N/A",
    )  # fmt: skip
    counts = dict.fromkeys(
        ("number_of_nodes", "accelerators_per_node", "host_processors_per_node", "host_processor_core_count"), 1
    )
    system = description(tmp_path, **facts, **counts, serving="an oracle")
    tree = package(PackageRequest(runs, system, "REHEARSAL", tmp_path / "tree", rehearsal=True)).tree
    text = (tree / "closed/REHEARSAL/results/two-nodes/qwen3-vl-235b-a22b/Interactive/README.md").read_text()
    assert text.count("dynamo-mlperf measure") == 1
    assert "--mode performance --client endpoints --with-accuracy --rehearsal" in text
