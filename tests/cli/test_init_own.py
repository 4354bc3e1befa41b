"""`init` for a cluster of one's own: files that `plan` takes as they are, and refuses before it writes what cannot be."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from dynamo_mlperf.benchmark.model_shapes import PUBLISHED
from dynamo_mlperf.cli import main
from dynamo_mlperf.site import load_site
from dynamo_mlperf.topology.batch import batch_differences, ignored_batch_lines
from dynamo_mlperf.topology.memory import GIB, memory_of
from dynamo_mlperf.topology.plan import make_plan
from dynamo_mlperf.topology.spec import load_topology

if TYPE_CHECKING:
    from collections.abc import Mapping

OF = ("--nodes", "4", "--gpus-per-node", "8", "--gpu-memory-gb", "141", "--model")
QWEN = "qwen3-vl-235b-a22b"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DYNAMO_MLPERF_SITE", raising=False)
    return tmp_path


def init(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["init", *words])
    return int(ended.value.code or 0)


@pytest.mark.parametrize("model", PUBLISHED)
@pytest.mark.parametrize("nodes", ["1", "4"])
@pytest.mark.parametrize(("gpus", "memory_gb"), [("8", "141"), ("4", "186"), ("3", "288"), ("8", "192")])
@pytest.mark.parametrize("scenario", ["Server", "Offline"])
def test_what_is_made_is_planned_without_a_change(  # noqa: PLR0917 - the shapes of clusters
    here: Path, model: str, nodes: str, gpus: str, memory_gb: str, scenario: str
) -> None:
    """In BF16 Qwen3-VL and in FP8 DeepSeek-R1 do not load on few GPUs: refused, and nothing is written."""
    of = ("--nodes", nodes, "--gpus-per-node", gpus, "--gpu-memory-gb", memory_gb, "--model", model)
    code = init(*of, "--scenario", scenario)
    written = sorted(path.relative_to(here).as_posix() for path in here.rglob("*") if path.is_file())
    if code == 2:
        assert written == []
        assert model in {QWEN, "deepseek-r1"}
        return
    file = here / "topologies" / f"{model}-{nodes}x{gpus}.yaml"
    topology = load_topology(file)
    page = f"benchmarks/{topology.measure.benchmark}/README.md"
    assert written == [page, "slurm/sites/my-cluster.yaml", file.relative_to(here).as_posix()]
    if topology.measure.benchmark != QWEN:
        assert f"--out {topology.measure.dataset}" in (here / page).read_text(), "where its data set is made"
    plan = make_plan(topology)
    assert [role.sequences >= 1 for role in memory_of(topology, here)] == [True] * len(topology.roles.present())
    assert not [worker for worker in plan.workers if len(worker.ranks) > int(gpus)], "TP within a node"
    assert not batch_differences(file.read_text(), topology, plan)
    assert ignored_batch_lines(file.read_text()) == ()
    assert os.access(file, os.X_OK)
    assert topology.measure.scenario == scenario


def test_the_program_plans_it_with_its_site(here: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        program = [sys.executable, "-m", "dynamo_mlperf.cli", *words]
        return subprocess.run(program, text=True, capture_output=True, check=False)

    made = run("init", "mine", *OF, QWEN, "--split", "2P4x6D4")
    assert made.returncode == 0, made.stderr
    assert made.stdout.splitlines() == [
        f"mine/topologies/{QWEN}-4x8-2p4x6d4.yaml",
        "mine/slurm/sites/my-cluster.yaml",
        f"mine/benchmarks/{QWEN}/README.md",
    ]
    assert f"\n  cd mine\n  dynamo-mlperf plan topologies/{QWEN}-4x8-2p4x6d4.yaml\n" in made.stderr
    os.chdir("mine")
    planned = run("plan", f"topologies/{QWEN}-4x8-2p4x6d4.yaml", "--site", "slurm/sites/my-cluster.yaml", "--json")
    assert planned.returncode == 0, planned.stderr
    value = json.loads(planned.stdout)
    assert value["split"]["workers"] == "2P6D"
    assert value["class"]["name"] == "official"
    warnings = {warning.partition(":")[0]: warning for warning in value["warnings"]}
    unfilled = warnings.pop(next(name for name in warnings if name.startswith("FILL IN still stands in lines 9, 11, ")))
    assert unfilled.endswith("complete what is meant, then take the mark out")
    site = warnings.pop(next(name for name in warnings if name.endswith("slurm/sites/my-cluster.yaml")))
    assert site.partition(": ")[2].startswith("FILL IN still stands in lines 6, 7, "), "the site's lines too"
    assert set(warnings) == {"model.weights", "measure.dataset"}
    assert f"; benchmarks/{QWEN}/README.md says" in warnings["measure.dataset"]
    assert Path("benchmarks", QWEN, "README.md").is_file(), "what the plan names is there"


def test_every_commented_line_is_a_key_of_its_file(here: Path) -> None:
    """Whoever takes the # away has a file that is read."""
    assert init(*OF, QWEN) == 0
    site = here / "slurm" / "sites" / "my-cluster.yaml"
    lines = site.read_text().splitlines()
    assert [line for line in lines if "FILL IN" in line and not line.startswith("#")] == []
    begin = next(number for number, line in enumerate(lines) if line.startswith("gpu_request"))
    full = [line.removeprefix("# ") if line.startswith("# ") else line for line in lines[begin:]]
    site.write_text("\n".join(full) + "\n")
    found = load_site(str(site))
    assert (found.partition, found.interface, found.local_path) == ("batch", "ib0", "/raid/dynamo-mlperf")
    assert found.container is not None
    assert set(yaml.safe_load(site.read_text())) <= set(type(found).model_fields)
    topology = here / "topologies" / f"{QWEN}-4x8.yaml"
    text = topology.read_text().replace("# site: my-cluster", "site: my-cluster")
    text = text.replace("gpu_memory_gib: 131.3}", "gpu_memory_gib: 131.3, nvlink_domain: 18}")
    topology.write_text(text.replace("search: {}", "").replace("  # FILL IN instead of", "  target_qps: 10 #"))
    read = load_topology(topology)
    assert (read.site, read.nodes.nvlink_domain, read.measure.target_qps) == ("my-cluster", 18, 10)


GB200 = ("--nodes", "4", "--gpus-per-node", "4", "--gpu", "gb200", "--model", QWEN)


@pytest.mark.parametrize(
    ("words", "frontends"),
    [
        (GB200, (1, "kv")),
        (("--nodes", "18", "--gpus-per-node", "4", "--gpu", "gb300", "--model", QWEN), (2, "kv")),
        (("--nodes", "512", "--gpus-per-node", "8", "--gpu", "h200", "--model", QWEN), (8, "kv")),
        ((*GB200, "--split", "4A4"), (1, "round-robin")),
        ((*GB200[:-1], "llama2-70b"), (1, "round-robin")),
    ],
)
def test_the_router_is_that_of_the_shipped_files_of_its_kind(
    here: Path, words: tuple[str, ...], frontends: tuple[int, str]
) -> None:
    assert init(*words) == 0
    (file,) = (here / "topologies").iterdir()
    made = load_topology(file).frontends
    assert (made.count, made.router) == frontends


def test_a_split_that_is_too_wide_says_where_its_tp_comes_from_and_what_fits(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(*GB200, "--split", "4P8D") == 2
    said = capsys.readouterr().err
    assert f"48 GPUs asked for, 16 in 4 nodes x 4; {QWEN} in bf16 loads at tensor_parallel 4 or more\n" in said
    assert "Try: --precision nvfp4, in which this split fits, or a plan that fits: " in said
    assert init(*GB200, "--split", "4P8D", "--precision", "nvfp4") == 0
    assert init(*GB200, "--split", "9P99D", "--precision", "nvfp4") == 2
    assert "loads at" not in capsys.readouterr().err, "at a TP of 1 it is the split alone that is too large"


def test_shipped_files_for_just_these_nodes_are_named(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(*GB200, "--scenario", "Interactive") == 0
    told = capsys.readouterr().err
    names = re.findall(r"topologies/(q3vl-[a-z0-9-]+)\.yaml", told)
    assert names[:4] == [f"q3vl-gb200x16-interactive-{split}" for split in ("4p6d", "4p8d", "5p6d", "6p4d")]
    assert set(names[4:]) == {"q3vl-gb200x16-offline-4p8d", "q3vl-gb200x16-server-4p8d"}
    assert init("--nodes", "5", *GB200[2:]) == 0
    assert "shipped for" not in capsys.readouterr().err


def test_what_comes_next_uses_the_site_and_files_that_are_there(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(*OF, QWEN) == 0
    file, site = f"topologies/{QWEN}-4x8.yaml", "slurm/sites/my-cluster.yaml"
    assert capsys.readouterr().err.endswith(f"  dynamo-mlperf submit {file} --site {site}\n")
    named = re.findall(r"[\w./-]+\.md", (here / file).read_text())
    assert [name for name in named if not (here / name).is_file()] == []
    assert named


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*OF, "Llama-2-13b"), "Try: did you mean --model llama2-70b? If not, --benchmark NAME"),
        ((*OF, "Qwen3-VL"), "Try: did you mean --model qwen3-vl-235b-a22b?"),
        (
            (*OF, QWEN, "--gpu", "h1000"),
            "--gpu 'h1000' is not known\n  Try: did you mean --gpu h100? If not, --gpu with one of h100,",
        ),
        ((*OF, QWEN, "--gpu", "GB200"), "Try: did you mean --gpu gb200?"),
        ((*OF, QWEN, "--gpu", "quadro"), "Try: --gpu with one of h100, h200, b200,"),
        (("--nodes", "2"), "needs --gpus-per-node M --gpu NAME (or --gpu-memory-gb GB) --model MODEL too\n  Try: for"),
        (("--split", "1P1D"), "needs --nodes N --gpus-per-node M"),
        ((*OF, "/no/model"), "--model /no/model: there is no config.json"),
        ((*OF, "some-model"), "which benchmark --model some-model is for is not known; that of qwen3-vl-235b-a22b,"),
        ((*OF, QWEN, "--split", "9P99D"), "loads at tensor_parallel 4 or more\n  Try: a plan that fits:"),
        ((*OF, QWEN, "--split", "4P"), "--split 4P is none"),
        ((*OF, QWEN, "--split", "4P4x4D1"), "roles.decode: 439.0 GiB of weights on each GPU (bf16, tensor_parallel 1)"),
        ((*OF, QWEN, "--scenario", "Interactiv"), "no scenario 'Interactiv'"),
        ((*OF, "m x", "--benchmark", QWEN), "model.name: wanted letters, digits, dots, dashes"),
        ((*OF, QWEN, "--list"), "--list and --assets do not go with a cluster of your own"),
        (("--nodes", "0"), "0 is not in the range"),
        ((*OF[:-2], "nan", "--model", QWEN), "nan"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    here: Path, words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init(*words) == 2
    assert said in capsys.readouterr().err
    assert list(here.iterdir()) == []


def directory(here: Path, name: str, config: Mapping[str, Any], gib: int = 0) -> Path:
    """A model's directory as it is downloaded, its weights so many GiB of nothing."""
    place = here / name
    place.mkdir()
    (place / "config.json").write_text(json.dumps(config))
    with (place / "model-00001-of-00001.safetensors").open("wb") as file:
        file.truncate(gib * GIB)
    return place


def test_a_directory_of_ones_own_is_judged_by_its_config_and_its_files(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The shape of Llama 2 70B, 128.5 GiB in BF16: on GPUs of 80 GB at a TP of 2 or 4, by how large its files are."""
    words = ("--nodes", "1", "--gpus-per-node", "8", "--gpu", "h100", "--benchmark", "llama2-70b-99.9", "--model")
    for name, gib, degree in (("as-written", 0, 2), ("smaller", 60, 1), ("larger", 250, 4)):
        place = directory(here, name, PUBLISHED["llama2-70b"], gib)
        assert init("made", *words, str(place)) == 0
        said = capsys.readouterr().err
        assert "not checked" not in said
        text = (here / "made" / "topologies" / f"{name}-1x8.yaml").read_text()
        assert f"tensor_parallel: {degree}," in text
        assert f"`dynamo-mlperf stage manifest {place} -o staging/{name}.yaml` writes it" in text
    place = directory(here, "Llama-2-70b-chat-hf", PUBLISHED["llama2-70b"])
    assert init("made", *words[:-3], "--model", str(place)) == 0
    assert f"model {place}: taken as llama2-70b," in capsys.readouterr().err
    place = directory(here, "huge", PUBLISHED["llama2-70b"], 4000)
    assert init("made", *words, "./huge") == 2
    refusal = capsys.readouterr().err
    assert "500.0 GiB of weights on each GPU (bf16, tensor_parallel 8)" in refusal
    assert "lower precision" not in refusal


@pytest.mark.parametrize("local", [True, False])
def test_what_is_not_known_of_a_model_is_said_plainly(
    here: Path,
    local: bool,  # noqa: FBT001
    capsys: pytest.CaptureFixture[str],
) -> None:
    word = str(directory(here, "state-space", {"model_type": "mamba"})) if local else "me/state-space"
    assert init("made", *OF, word, "--benchmark", "llama2-70b-99.9") == 0
    said = capsys.readouterr().err
    assert "note: GPU memory is not checked, and tensor_parallel is yours to choose: " in said
    assert (f"{word}/config.json does not tell the model's shape" in said) == local
    assert ("the shape of me/state-space is not known here; --model DIRECTORY reads it" in said) != local


def test_gpus_that_hold_it_in_no_precision_are_called_too_small(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--force", "--nodes", "1", "--gpus-per-node", "2", "--model", QWEN)
    assert init(*words, "--gpu-memory-gb", "16") == 2
    refusal = capsys.readouterr().err
    assert "precision" not in refusal
    least_gib = float(re.findall(r"Try: GPUs of ([0-9.]+) GiB or more$", refusal, re.MULTILINE)[0])
    assert init(*words, "--gpu-memory-gb", f"{least_gib * GIB / 1e9 + 0.2:.1f}") == 0, "a step of 0.1 in each unit"
    assert init(*words, "--gpu-memory-gb", f"{least_gib * GIB / 1e9 - 0.3:.1f}") == 2
    capsys.readouterr()
    assert init(*words, "--gpu-memory-gb", f"{least_gib / 2 * GIB / 1e9:.1f}") == 2
    precision = re.findall(r"Try: --precision (\w+)", capsys.readouterr().err)[0]
    assert init(*words, "--gpu-memory-gb", f"{least_gib / 2 * GIB / 1e9:.1f}", "--precision", precision) == 0


def test_another_model_is_taken_with_the_benchmark_that_it_serves(here: Path) -> None:
    assert init(*OF, "me/My-Model", "--benchmark", "llama2-70b-99.9", "--split", "16A2") == 0
    topology = load_topology(here / "topologies" / "me-my-model-4x8-16a2.yaml")
    assert (topology.model.name, topology.measure.benchmark) == ("me/My-Model", "llama2-70b-99.9")
    assert topology.roles.aggregated is not None
    assert (topology.roles.aggregated.workers, topology.roles.aggregated.tensor_parallel) == (16, 2)


@pytest.mark.parametrize(
    ("model", "known", "benchmark"),
    [
        ("Llama-2-70B", "llama2-70b", "llama2-70b-99.9"),
        ("meta-llama/Llama-2-70b-chat-hf", "llama2-70b", "llama2-70b-99.9"),
        ("Qwen/Qwen3-VL-235B-A22B-Instruct", QWEN, QWEN),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek-r1", "deepseek-r1"),
    ],
)
def test_a_published_model_is_known_however_its_name_is_written(
    here: Path, model: str, known: str, benchmark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert init("--nodes", "4", "--gpus-per-node", "8", "--gpu", "h200", "--model", model) == 0
    assert f"model {model}: taken as {known}," in capsys.readouterr().err
    topology = load_topology(here / "topologies" / f"{known}-4x8.yaml")
    assert (topology.model.name, topology.measure.benchmark) == (known, benchmark)
    assert (topology.nodes.gpu, topology.nodes.gpu_memory_gib) == ("h200", 131.3), "141 GB"
    assert init(*OF, model, "--benchmark", known, "--force") == 0, "a model's name stands for its benchmark"


def test_files_of_yours_stay(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert init(*OF, QWEN) == 0
    assert init(*OF, QWEN) == 0, "the same again"
    topology, site = here / "topologies" / f"{QWEN}-4x8.yaml", here / "slurm" / "sites" / "my-cluster.yaml"
    topology.write_text("mine")
    site.write_text("name: mine")
    capsys.readouterr()
    assert init(*OF, QWEN) == 2
    assert f"topologies/{QWEN}-4x8.yaml exists and differs" in capsys.readouterr().err
    assert init(*OF, QWEN, "--force") == 0
    assert topology.read_text() != "mine"
    assert site.read_text() == "name: mine", "one site serves all topologies, and is yours once it is there"


def test_a_directory_is_no_site_of_yours(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "slurm" / "sites" / "my-cluster.yaml").mkdir(parents=True)
    assert init(*OF, QWEN) == 2
    assert "slurm/sites/my-cluster.yaml exists and differs" in capsys.readouterr().err
    assert not (here / "topologies").exists()
