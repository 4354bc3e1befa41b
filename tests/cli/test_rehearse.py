from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from click.testing import CliRunner, Result

from dynamo_mlperf.benchmark.catalogue import load_catalogue
from dynamo_mlperf.benchmark.prompt_length import PromptMeter
from dynamo_mlperf.cli.rehearse import command
from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.report.predicted import as_svg
from dynamo_mlperf.topology.plan import make_plan
from dynamo_mlperf.topology.spec import load_topology
from dynamo_mlperf.tuning.calibration import MOST_TRIES, read_calibration
from dynamo_mlperf.tuning.prediction import read_prediction
from dynamo_mlperf.tuning.profiles import read_profile

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "topologies" / "q3vl-gb200x16-interactive-4p8d.yaml"
SMALL = """\
#!/usr/bin/env -S dynamo-mlperf job
#SBATCH --nodes=1 --gres=gpu:4 --exclusive --no-requeue
schema: 1
name: small
nodes: {count: 1, gpus: 4, gpu: gb200}
model: {name: qwen3-vl-235b-a22b, precision: nvfp4, weights: {path: /no/weights}}
engine: vllm
roles:
  prefill: {workers: 1, tensor_parallel: 2, args: {max-num-batched-tokens: 17920, max-model-len: 65536}}
  decode: {workers: 2, tensor_parallel: 1, args: {max-num-batched-tokens: 2048, max-model-len: 65536}}
measure: {benchmark: qwen3-vl-235b-a22b, scenario: Interactive, target_qps: 4}
reduced: {percentile: 90, latency_limit_ms: 10000}
"""


def call(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture
def with_assets(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkout as the working directory, with the tiny model made."""
    monkeypatch.chdir(ROOT)
    return ROOT


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "wanted either a topology FILE or --calibrate POINTS"),
        ([str(FILE), "--calibrate", "x.yaml"], "wanted either"),
        ([str(FILE), "--all", "--splits", "4P8D"], "--splits does not go with --all"),
        ([str(FILE), "--live", "--all"], "--all does not go with --live"),
        ([str(FILE), "--live", "--seed", "3"], "--seed does not go with --live"),
        ([str(FILE), "--live", "--out", "x.json"], "--out does not go with --live"),
        ([str(FILE), "--out", "no/such/x.json"], "there is no directory no/such"),
        ([str(FILE), "--svg", "/dev/full"], "/dev/full is a device or pipe"),
        (["--calibrate", "no.yaml", "--out", "/dev/full"], "/dev/full is a device or pipe"),
        ([str(FILE), "--qps", "3"], "--qps does not go with a rehearsal"),
        (["--calibrate", "x.yaml", "--live"], "--live does not go with --calibrate"),
        ([str(FILE), "--splits", "4A"], "the file's roles are prefill and decode"),
        ([str(FILE), "--splits", "9P9D"], "27 GPUs asked for, 16 in 4 nodes"),
        ([str(FILE), "--profile", "no-such.npz"], "no-such.npz: No such file"),
        ([str(FILE), "--profile", "router=x.npz"], "no role 'router'"),
        ([str(FILE), "--profile", "decode=x", "--profile", "y"], "its role has a profile already"),
        ([str(FILE), "--calibration", "no.json"], "no.json: No such file"),
        (["--calibrate", "no.yaml"], "no.yaml: No such file"),
        (["no.yaml"], "no.yaml: No such file"),
        ([str(FILE.with_name("rehearse-1p1d.yaml"))], "nodes.gpu is not in the file and model tiny-qwen3-vl-moe has"),
    ],
)
def test_what_cannot_be_rehearsed_is_refused_with_a_way_out(arguments: list[str], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert refused.value.action


@pytest.mark.dynamo
def test_a_rehearsal_is_shown_written_and_drawn_as_rehearsed(small: Path, tmp_path: Path) -> None:
    out, svg = tmp_path / "prediction.json", tmp_path / "rates.svg"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "dynamo_mlperf.cli",
            "rehearse",
            small,
            "--splits",
            "1P2D,1P1D",
            "--out",
            out,
            "--svg",
            svg,
        ],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "100"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert "rehearsed (simulated engines)" in done.stdout
    assert "rehearsed queries/s" in done.stdout
    assert "\nnote: router: round-robin\n" in done.stdout, "the file names none"
    prediction = read_prediction(out)
    assert json.loads(out.read_text())["class"] == "rehearsal"
    assert prediction.granted_gpus == 4
    assert prediction.order == ("1P2D", "1P1D")
    assert (prediction.rate_of("1P2D") or 0.0) > 1.0
    drawn = ET.fromstring(svg.read_text())
    texts = [element.text or "" for element in drawn.iter() if element.tag.endswith("text")]
    assert any("rehearsed" in text for text in texts)
    assert {"1P2D", "1P1D"} <= set(texts)
    assert as_svg(prediction) == svg.read_text()


POINTS = """\
schema: 1
benchmark: qwen3-vl-235b-a22b
origin: made up
points:
  - {name: known, topology: small.yaml, split: 1P2D, qps: 7, fit: true, latencies: [{target_qps: 7, judged_ms: 2000}]}
  - {name: floor, topology: small.yaml, split: 1P1D, qps: 0.5, at_least: true}
  - {name: far, topology: small.yaml, split: 1P1D, qps: 100}
"""


@pytest.mark.dynamo
def test_factors_are_fitted_to_known_points_and_all_are_shown_beside_what_they_predict(
    small: Path, tmp_path: Path
) -> None:
    points = small.with_name("points.yaml")
    points.write_text(POINTS)
    out = tmp_path / "fitted.json"
    done = call("--calibrate", str(points), "--json", "--out", str(out))
    assert done.exit_code == 0, done.output
    first, *later = [line for line in done.stderr.splitlines() if line.startswith("fitting")]
    assert first.startswith(f"fitting, try 1 of at most {MOST_TRIES}: prefill x 0.600, ITL x 1.300, ")
    assert len(later) < MOST_TRIES
    for number, line in enumerate(later, 2):
        assert re.match(rf"fitting, try {number} of at most {MOST_TRIES} \([0-9]+\.[0-9] s each so far\): ", line)
    assert f"fitted after {1 + len(later)} tries; now each of 3 points is predicted\npredicted 1 of 3: " in done.stderr
    assert all(f"of 3: {name}\n" in done.stderr for name in ("known", "floor", "far"))
    value = json.loads(done.stdout)
    assert (value["fitted_to"], value["class"]) == (["known"], "rehearsal")
    assert value["rms_percent"] < 2.0, "three factors meet one latency"
    assert value["factors"] != {"prefill": 1.0, "itl": 1.0, "overhead_ms": 0.0}
    known, floor, far = value["points"]
    assert (known["fitted"], floor["fitted"], far["fitted"]) == (True, False, False)
    assert floor["rehearsed_qps"] > 0.5
    assert floor["error_percent"] is None, "a floor that is kept is no error"
    assert far["error_percent"] == pytest.approx(100 * (far["rehearsed_qps"] / 100 - 1), abs=0.1)
    assert read_calibration(out).factors.as_json() == value["factors"]
    assert known["latency_percent_of_limit"] == pytest.approx(20.0, rel=0.02), "2,000 of 10,000 ms"
    assert far["latency_percent_of_limit"] > 100
    # Used for a rehearsal, they meet what they were fitted to: a latency of 2,000 ms at 7 queries/s.
    small.write_text(SMALL.replace("latency_limit_ms: 10000", "latency_limit_ms: 2000"))
    again = call(str(small), "--calibration", str(out), "--json")
    assert json.loads(again.stdout)["splits"][0]["rehearsed_qps"] == pytest.approx(7.0, rel=0.2)


@pytest.mark.dynamo
def test_a_rehearsal_that_is_stopped_says_so_and_leaves_nothing(tmp_path: Path) -> None:
    started = subprocess.Popen(
        [sys.executable, "-m", "dynamo_mlperf.cli", "rehearse", FILE, "--all"],
        cwd=tmp_path,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stderr is not None
    assert "rehearsed 1 of 7" in started.stderr.readline()
    started.send_signal(signal.SIGTERM)
    _out, told = started.communicate(timeout=120)
    assert started.returncode == 143
    assert told.endswith("error: stopped by SIGTERM\n")
    assert list(tmp_path.iterdir()) == []


def test_a_model_without_a_shape_is_told_apart_from_a_gpu_that_is_not_named(tmp_path: Path) -> None:
    text = FILE.with_name("rehearse-1p1d.yaml").read_text()
    named = tmp_path / "named.yaml"
    named.write_text(text.replace("nodes: {count: 2, gpus: 1}", "nodes: {count: 2, gpus: 1, gpu: h100}"))
    with pytest.raises(ConfigError, match=r"rehearse-1p1d: model tiny-qwen3-vl-moe has no known shape\n") as refused:
        CliRunner().invoke(command, [str(named)], catch_exceptions=False)
    assert "nodes: {gpu" not in refused.value.action
    assert "one of qwen3-vl-235b-a22b, gpt-oss-120b, deepseek-r1, llama2-70b, as topologies/" in refused.value.action
    example = refused.value.action.split(", as ")[1].split(" has it")[0]
    assert load_topology(ROOT / example).nodes.gpu == "gb200"
    named.write_text(FILE.read_text().replace(", gpu: gb200", ""))
    with pytest.raises(ConfigError, match=r"nodes\.gpu is not in the file\n") as refused:
        CliRunner().invoke(command, [str(named)], catch_exceptions=False)
    assert "nodes: {gpu: NAME} with one of h100, h200, b200," in refused.value.action


@pytest.mark.assets
def test_a_live_rehearsal_hides_nothing(small: Path, tmp_path: Path, with_assets: Path) -> None:
    """What would run stands in a directory of its own, as a topology file that any verb takes."""
    directory = tmp_path / "rehearsal"
    done = call(str(small), "--live", "--only-write", "--run-dir", str(directory), "--qps", "3", "--seconds", "20")
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{directory / 'topology.yaml'}\n"
    assert str(directory) not in done.stderr
    assert "256 queries will be sent, in about 85 s\n" in done.stderr, "at 3 queries/s, though 20 s were asked for"
    assert "the calibration's 607 ms of each request outside the engines are not simulated" in done.stderr
    assert (directory / "original.yaml").read_text() == SMALL
    derived = load_topology(directory / "topology.yaml")
    plan = make_plan(derived)
    assert (derived.engine, plan.split.workers, len(plan.workers)) == ("mocker", "1P2D", 3)
    assert sum(len(worker.ranks) for worker in plan.workers) == 4  # a slot for each GPU
    assert derived.measure.target_qps == 3
    assert derived.reduced is not None
    assert (derived.reduced.min_duration_s, derived.reduced.percentile) == (20, 90)
    roles = dict(derived.roles.present())
    for name, role in roles.items():
        profile = read_profile(Path(str(role.args["planner-profile-data"])))
        assert profile.facts["origin"] == "aiconfigurator"
        assert role.args["kv-bytes-per-token"] == 192_512, name
    assert roles["decode"].args["num-gpu-blocks-override"] < roles["prefill"].args["num-gpu-blocks-override"]
    assert roles["decode"].args["decode-speedup-ratio"] == pytest.approx(150 / 42.9, rel=0.03)
    meter = PromptMeter(with_assets / "assets" / "tiny-qwen3-vl-moe")
    counted = sorted(meter.count(sample) for sample in list(load_catalogue(directory / "dataset"))[::8])
    assert counted[len(counted) // 2] == pytest.approx(3_700, rel=0.15)
    with pytest.raises(ConfigError, match="two rehearsals would mix"):
        CliRunner().invoke(command, [str(small), "--live", "--run-dir", str(directory)], catch_exceptions=False)


@pytest.mark.assets
def test_a_live_rehearsal_without_a_rate_leaves_no_directory_in_the_way(
    small: Path, tmp_path: Path, with_assets: Path
) -> None:
    assert (with_assets / "assets").is_dir()
    small.write_text(SMALL.replace(", target_qps: 4", "") + "search: {}\n")
    directory = tmp_path / "rehearsal"
    words = [str(small), "--live", "--only-write", "--run-dir", str(directory)]
    with pytest.raises(ConfigError, match=r"small names no measure\.target_qps") as refused:
        CliRunner().invoke(command, words, catch_exceptions=False)
    assert refused.value.action == "give --qps"
    assert call(*words, "--qps", "4").exit_code == 0


@pytest.mark.dynamo
@pytest.mark.skipif(os.geteuid() != 0, reason="a place that only root is let try")
def test_an_answer_that_cannot_be_written_is_shown(small: Path) -> None:
    done = call(str(small), "--out", "/proc/prediction.json")
    assert isinstance(done.exception, SetupError)
    assert "1P2D" in done.stdout, "what took minutes is not lost with it"


@pytest.mark.assets
@pytest.mark.dynamo
@pytest.mark.loadgen
def test_a_live_rehearsal_runs_the_whole_chain(small: Path, tmp_path: Path, with_assets: Path) -> None:
    directory = tmp_path / "rehearsal"
    done = subprocess.run(
        [sys.executable, "-m", "dynamo_mlperf.cli", "rehearse", small, "--live", "--run-dir", directory, "--qps", "6",
         "--seconds", "10", "--json"],
        cwd=with_assets,
        check=False,
        capture_output=True,
        text=True,
    )  # fmt: skip
    verdict = json.loads(done.stdout)
    assert verdict["class"] == "rehearsal"
    assert verdict["verdict"] in {"VALID", "INVALID"}, done.stderr
    assert verdict["failed_requests"] == 0
    assert verdict["disaggregation"]["remote_prefills"] == verdict["requests"]
    assert (directory / "run" / "topology.yaml").read_text() == (directory / "topology.yaml").read_text()
