"""Two runs compared: what counts as a difference, what is noise, and what is not on record."""

from __future__ import annotations

import io
import json
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dynamo_mlperf.files import write_json
from dynamo_mlperf.report.diff import Comparison, diff_runs
from dynamo_mlperf.report.diff_commands import flags_of
from dynamo_mlperf.report.diff_noise import is_noise
from dynamo_mlperf.report.diff_page import render_diff
from dynamo_mlperf.report.diff_text import print_diff
from dynamo_mlperf.report.diff_values import Row, compared, flattened
from dynamo_mlperf.report.run_data import Command, RunData, read_run
from tests.report.run_builder import build_run

NAMESPACE = "q3vl-gb200x16-interactive-4p8d"


def command(process: str, nonce: str, port: int, address: str, root: Path, *more: str) -> Command:
    """A worker's command with everything in it that no two runs share."""
    argv: tuple[str, ...] = (
        "taskset",
        "--cpu-list",
        "0-17",
        "python",
        "-m",
        "dynamo.vllm",
        "--model",
        "/nvme/q3vl-020b1ede",
    )
    argv += ("--served-model-name", f"q3vl-{nonce}", "--master-port", str(port), *more)
    env = {
        "DYN_NAMESPACE": f"{NAMESPACE}-{nonce}",
        "DYNAMO_MLPERF_RUN": f"run-{nonce}@{port}",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port),
        "VLLM_NIXL_SIDE_CHANNEL_HOST": address,
        "ETCD_ENDPOINTS": f"http://{address}:{port}",
        "TMPDIR": f"/dev/shm/dynamo-mlperf-{nonce}/tmp",
        "CUDA_VISIBLE_DEVICES": str(port % 4),
        "SLURM_STEP_ID": str(port),
        "TRACE_INTO": f"{root}/logs/trace",
        "VLLM_LOGGING_LEVEL": "INFO",
    }
    return Command(process, "0", "", argv, env, str(root / "logs" / f"{process}.log"))


def moved(root: Path, run: RunData, nonce: str, port: int, subnet: str, *more: str) -> RunData:
    """The run with commands of its own, on nodes of its own."""
    assert run.layout is not None
    nodes = tuple(replace(node, address=f"{subnet}.{node.position + 1}") for node in run.layout.nodes)
    commands = (
        command("prefill-0", nonce, port, f"{subnet}.1", root),
        command("decode-0", nonce, port + 1, f"{subnet}.2", root, *more),
        command("decode-1", nonce, port + 2, f"{subnet}.3", root, *more),
    )
    return replace(run, layout=replace(run.layout, nodes=nodes), commands=commands)


def section(comparison: Comparison, name: str) -> dict[str, tuple[Any, Any]]:
    (found,) = [one for one in comparison.sections if one.name == name]
    return {row.key: (row.a, row.b) for row in found.rows}


def shown(comparison: Comparison) -> str:
    out = io.StringIO()
    print_diff(comparison, Console(file=out, width=80, highlight=False))
    return out.getvalue()


@pytest.fixture
def two(tmp_path: Path) -> tuple[RunData, RunData]:
    """The same run twice, under two names."""
    build_run(tmp_path / "a", queries=800)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    return read_run(tmp_path / "a"), read_run(tmp_path / "b")


def test_a_run_and_its_copy_are_equal_in_every_section(two: tuple[RunData, RunData]) -> None:
    comparison = diff_runs(*two)
    assert comparison.as_json()["equal"] is True
    assert [one.rows for one in comparison.sections if one.rows] == []
    text = " ".join(shown(comparison).split())
    assert "Equal: Result; Latency, ms; Topology file; Plan: splits and placement; Flags and environment" in text
    assert "On record in neither: MLPerf settings as asked for" in text


def test_what_no_two_runs_share_is_noise_and_shown_on_request(tmp_path: Path, two: tuple[RunData, RunData]) -> None:
    a = moved(tmp_path / "a", two[0], "06ee8f", 24250, "10.0.0")
    b = moved(tmp_path / "b", two[1], "4ca167", 29811, "10.9.8")
    assert section(diff_runs(a, b), "commands") == {}
    everything = section(diff_runs(a, b, noise=True), "commands")
    assert {
        "prefill --served-model-name", "prefill --master-port", "decode $TMPDIR", "decode $ETCD_ENDPOINTS",
        "decode $CUDA_VISIBLE_DEVICES", "decode $TRACE_INTO", "decode $DYNAMO_MLPERF_RUN", "decode $SLURM_STEP_ID",
        "decode $VLLM_NIXL_SIDE_CHANNEL_HOST", "decode $DYN_NAMESPACE",
    } <= everything.keys()  # fmt: skip
    assert not {"decode --model", "decode program", "decode launcher", "decode $VLLM_LOGGING_LEVEL"} & everything.keys()


def test_the_search_path_of_every_role_comes_after_all_that_may_matter(
    tmp_path: Path, two: tuple[RunData, RunData]
) -> None:
    runs = []
    for name, run in zip("ab", two, strict=True):
        with_path = moved(tmp_path / name, run, "06ee8f", 24250, "10.0.0").commands
        own = {"PATH": f"/{name}/bin", "HOME": f"/{name}", "UCX_TLS": name}
        runs.append(replace(run, commands=tuple(replace(one, env={**own, **one.env}) for one in with_path)))
    rows = list(section(diff_runs(*runs), "commands"))
    assert rows[-2:] == ["prefill $PATH", "decode $PATH"]
    assert {"prefill $UCX_TLS", "decode $UCX_TLS"} <= {*rows[:-2]}
    assert not [row for row in rows if row.endswith("$HOME")]


def test_a_flag_of_one_role_is_told_with_its_change_and_json_by_its_keys(
    tmp_path: Path, two: tuple[RunData, RunData]
) -> None:
    config = json.dumps({"kv_connector": "NixlConnector", "kv_buffer_size": 5000})
    other = json.dumps({"kv_connector": "NixlConnector", "kv_buffer_size": 7500})
    a = moved(tmp_path / "a", two[0], "06ee8f", 24250, "10.0.0", "--max-num-seqs", "64", "--kv", config, "--eager")
    b = moved(tmp_path / "b", two[1], "4ca167", 29811, "10.9.8", "--max-num-seqs=48", "--kv", other)
    comparison = diff_runs(a, b)
    assert section(comparison, "commands") == {
        "decode --max-num-seqs": (64, 48),
        "decode --kv.kv_buffer_size": (5000, 7500),
        "decode --eager": ("set", None),
    }
    text = shown(comparison)
    assert [line.split() for line in text.splitlines() if "--max-num-seqs" in line] == [
        ["decode", "--max-num-seqs", "64", "48", "-25.0", "%"]
    ]


def test_topology_versions_plan_and_result_each_say_what_changed(tmp_path: Path, two: tuple[RunData, RunData]) -> None:
    root = tmp_path / "b"
    text = (root / "topology.yaml").read_text()
    (root / "topology.yaml").write_text(text.replace("target_qps: 40", "target_qps: 44").replace("04:00", "02:00"))
    write_json(root / "versions.json", {**two[0].versions, "vllm": "0.32.0"})
    plan = json.loads((root / "plan.json").read_text())
    plan["workers"][4]["ranks"] = [{"node": 3, "gpu": 3}]
    write_json(root / "plan.json", plan)
    (root / "logs").mkdir(exist_ok=True)
    for side, driver in ((tmp_path / "a", "570.86"), (root, "580.12")):
        write_json(side / "logs" / "check-0.json", {"hardware": {"cpu": "Grace", "driver": driver}})
    comparison = diff_runs(read_run(tmp_path / "a"), read_run(root))
    assert section(comparison, "topology") == {
        "measure.target_qps": (40, 44),
        "#SBATCH --time": ("04:00:00", "02:00:00"),
    }
    assert section(comparison, "versions") == {"vllm": ("0.31.0", "0.32.0"), "nodes: driver": ("570.86", "580.12")}
    assert section(comparison, "plan") == {"decode-0": ("node 0 GPU 2", "node 3 GPU 3"), "idle GPUs": (0, 1)}
    assert section(comparison, "result") == {}


def test_what_the_command_line_laid_over_a_file_counts_as_the_file(two: tuple[RunData, RunData]) -> None:
    laid = replace(two[1], laid_over={"measure": {"target_qps": 50}, "nodes": 8})
    assert section(diff_runs(two[0], laid), "topology") == {"measure.target_qps": (40, 50), "--nodes": (None, 8)}


def test_an_invalid_run_beside_a_valid_one_says_why_and_by_how_much(
    tmp_path: Path, two: tuple[RunData, RunData]
) -> None:
    comparison = diff_runs(two[0], read_run(build_run(tmp_path / "invalid", "invalid", queries=800).root))
    result = section(comparison, "result")
    assert result["verdict"] == ("VALID", "INVALID")
    assert result["class"] == ("official", "reduced")
    assert result["reason: failed requests"] == (None, "3")
    assert any(key.startswith("reason: end-to-end latency") for key in result), "in words"
    latency = section(comparison, "latency")
    assert latency["end-to-end judged at"] == ("p99", "p97")
    assert latency["TPOT p50"][1] == pytest.approx(latency["TPOT p50"][0] * 1.3 / 0.97, rel=0.01)
    assert section(comparison, "client") == {"failed": (0, 3)}
    assert "requests" in section(comparison, "disaggregation")


@pytest.mark.parametrize("kind", ["failed", "running"])
def test_a_run_that_did_not_measure_is_compared_as_far_as_it_came(
    tmp_path: Path, two: tuple[RunData, RunData], kind: Any
) -> None:
    comparison = diff_runs(two[0], read_run(build_run(tmp_path / "other", kind).root))
    assert section(comparison, "result")["completed_qps"] == (39.853, None)
    by_name = {one["name"]: one for one in comparison.as_json()["sections"]}
    assert by_name["latency"]["not_on_record"] == ["b"]
    assert not by_name["latency"]["equal"]
    assert by_name["topology"]["equal"]
    text = " ".join(shown(comparison).split())
    assert "Only A has on record: Latency, ms; Proof of disaggregation; The load client's own health." in text
    assert "loadgen/client.json, loadgen/queries.csv" in text.partition("not there:")[2]


def test_searches_and_sweeps_are_compared_by_their_answers(tmp_path: Path, two: tuple[RunData, RunData]) -> None:
    for name, rate, binding, winner in (("a", 20.0, "ttft", "1P2D"), ("b", 25.0, "end_to_end", "2P1D")):
        (tmp_path / name / "search").mkdir()
        answer = {"answer_qps": rate, "binding_constraint": binding, "reason": "r", "probes": [{}] * int(rate / 5)}
        write_json(tmp_path / name / "search" / "answer.json", answer)
        (tmp_path / name / "sweep" / "1P2D" / "rate-001").mkdir(parents=True)
        verdict = {
            "verdict": "VALID" if rate > 20 else "INVALID",
            "target_qps": 7.0,
            "reasons": [{"check": "duration"}],
        }
        verdict |= {"reasons": []} if rate > 20 else {}
        write_json(tmp_path / name / "sweep" / "1P2D" / "rate-001" / "verdict.json", verdict)
        split = {"split": "1P2D", "rate_qps": rate, "binding_constraint": binding, "bottleneck": {"role": "decode"}}
        pruned = [{"split": "2P1D", "reason": "bounded"}] if name == "a" else []
        summary = {"winner": winner, "state": "finished", "splits": [split], "pruned": pruned}
        write_json(tmp_path / name / "sweep" / "summary.json", summary)
    comparison = diff_runs(*two)
    assert section(comparison, "search") == {
        "answer_qps": (20.0, 25.0), "binding_constraint": ("TTFT", "end-to-end"), "probes": (4, 5),
    }  # fmt: skip
    assert section(comparison, "sweep") == {
        "winner": ("1P2D", "2P1D"),
        "1P2D queries/s": (20.0, 25.0),
        "1P2D breaks first": ("TTFT", "end-to-end"),
        "1P2D at 7.0 queries/s": ("INVALID (duration)", "VALID"),
        "2P1D skipped": ("bounded", None),
    }
    assert ["answer,", "queries/s", "20", "25", "+25.0", "%"] in [
        line.split() for line in shown(comparison).splitlines()
    ]


@pytest.mark.parametrize("text", ["", "[", "[]", '{"winner": 3, "splits": [1, {}]}', '{"probes": 3}', "[" * 5000])
def test_files_that_are_damaged_end_no_comparison(tmp_path: Path, two: tuple[RunData, RunData], text: str) -> None:
    for name in ("search/answer.json", "sweep/summary.json", "measure.json", "logs/check-0.json", "topology.yaml"):
        path = tmp_path / "b" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (tmp_path / "b" / "loadgen" / "mlperf_log_detail.txt").write_text(text)
    comparison = diff_runs(two[0], read_run(tmp_path / "b"))
    assert section(comparison, "versions") == {}
    assert shown(comparison)
    assert render_diff(comparison).rstrip().endswith("</html>")


def test_an_argument_vector_by_flag() -> None:
    argv = ["nice", "python", "-m", "mod", "sub", "--a", "1", "--b=x=y", "--c", "-0.5", "--d", "--a", "2", "-tp", "8"]
    assert flags_of(argv) == {
        "launcher": "nice", "program": "mod sub", "--a": "1 2", "--b": "x=y", "--c": "-0.5", "--d": "set", "-tp": "8",
    }  # fmt: skip
    assert flags_of(["etcd", "--name", "job"]) == {"program": "etcd", "--name": "job"}
    assert flags_of([]) == {"program": "set"}


@pytest.mark.parametrize(
    ("name", "noise"),
    [
        ("DYN_SYSTEM_PORT", True), ("--http-port", True), ("--port", True), ("SLURM_JOB_ID", True),
        ("CUDA_VISIBLE_DEVICES", True), ("--support", False), ("SLURMED", False), ("--transport", False), ("UCX_TRANSPORT", False), ("PATH", False),
        ("HOME", True), ("TMPDIR", True), ("LC_ALL", True), ("HF_HOME", False), ("UCX_TLS", False),
        ("--export", False),
    ],
)  # fmt: skip
def test_noise_goes_by_whole_names(name: str, *, noise: bool) -> None:
    assert is_noise(name) is noise


@pytest.mark.parametrize(
    ("a", "b", "change"),
    [(40, 44, 10.0), (44.0, 40.0, -9.0909), (0, 5, None), (True, False, None), ("1", "2", None), (None, 3, None), (-2, -1, 50)],
)  # fmt: skip
def test_changes_are_counted_from_the_first(a: Any, b: Any, change: float | None) -> None:
    assert Row("x", a, b).change_percent == (None if change is None else pytest.approx(change, abs=1e-3))


def test_equal_numbers_of_another_kind_are_equal_but_yes_is_not_one() -> None:
    assert compared("n", "N", {"x": 1, "y": True}, {"x": 1.0, "y": 1}).rows == (Row("y", a=True, b=1),)
    assert flattened({"a": [{"name": "p", "v": 1}, {"v": 2}], "b": [1, 2], "c": []}) == {
        "a.p.name": "p", "a.p.v": 1, "a.1.v": 2, "b": "1, 2", "c": "none",
    }  # fmt: skip


def test_of_long_values_the_difference_is_shown(two: tuple[RunData, RunData]) -> None:
    long = {"x": "/a" * 100 + "/old" + "/b" * 100}
    other = replace(two[1], versions={"x": long["x"].replace("old", "new")})
    text = shown(diff_runs(replace(two[0], versions=long), other))
    assert "/old" in text
    assert "/new" in text
    assert "…" in text
    assert max(map(len, text.splitlines())) <= 80


LAUNCHED = (
    "srun --overlap --nodes=1 --container-image=/lustre/me/images/vllm-{0}.sqsh --container-mounts=/a:/a,/b:/b "
    "--cpu-bind=none bash -c 'set -e\nexport UCX_LOG_LEVEL=warn\nexec \"$@\"'"
)


@pytest.mark.parametrize("width", [80, 60])
def test_nothing_breaks_in_a_narrow_terminal_and_of_command_lines_the_differing_flags_are_told(
    two: tuple[RunData, RunData], width: int
) -> None:
    key = "nodes: devices.of.a.very.long.name.that.leaves.no.room"
    old = {
        "launcher": LAUNCHED.format(1),
        key: "mlx5_0:1,mlx5_1:1,mlx5_3:1",
        "short": "1",
        "kernel": "6.1.0-test-amd64",
    }
    new = {"launcher": LAUNCHED.format(2), key: "mlx5_0:1", "short": "2", "kernel": "6.5.0-test-amd64"}
    new["launcher"] = new["launcher"].replace("--overlap ", "--mpi pmix ")
    out = io.StringIO()
    print_diff(
        diff_runs(replace(two[0], versions=old), replace(two[1], versions=new)),
        Console(file=out, width=width, highlight=False),
    )
    lines = out.getvalue().partition("Versions and hardware")[2].partition("Equal:")[0].splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join("\n".join(lines).split())
    assert "launcher --overlap: set in A, not there in B" in text
    assert "--mpi: not there in A, pmix in B" in text
    assert "--container-image: /lustre/me/images/vllm-1.sqsh in A, /lustre/me/images/vllm-2.sqsh in B" in text
    assert "--container-mounts" not in text, "what is the same is not told"
    assert f"{key} A mlx5_0:1,mlx5_1:1,mlx5_3:1 B mlx5_0:1" in text
    assert "short 1 2" in text
    assert "kernel 6.1.0-test-amd64 6.5.0-test-amd64" in text


class _Texts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def handle_data(self, data: str) -> None:
        self.texts.append(data.strip())


def test_the_page_escapes_what_the_runs_say(two: tuple[RunData, RunData]) -> None:
    other = replace(two[1], versions={**two[1].versions, "vllm": "<script>x</script>\x1b[31m"})
    page = render_diff(diff_runs(two[0], other))
    assert "<script>" not in page
    assert "\x1b" not in page
    parser = _Texts()
    parser.feed(page)
    assert "Versions and hardware" in parser.texts
    assert "0.31.0" in parser.texts
