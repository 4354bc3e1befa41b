from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml
from click.testing import CliRunner, Result
from rich.console import Console

from dynamo_mlperf.cli.plan import command
from dynamo_mlperf.cli.plan_picture import show_plan
from dynamo_mlperf.cli.schema import command as schema_command
from dynamo_mlperf.cli.submit import command as submit
from dynamo_mlperf.errors import CapacityError, ConfigError, SetupError
from dynamo_mlperf.topology.batch import batch_differences
from dynamo_mlperf.topology.memory import memory_of
from dynamo_mlperf.topology.picture import PlanFacts
from dynamo_mlperf.topology.plan import make_plan, plan_as_json
from dynamo_mlperf.topology.spec import load_topology, parse_topology
from tests.topology.test_topology_plan import check_plan

PUBLISHED = ("q3vl-gb200x16-interactive-4p8d", "q3vl-gb200x16-interactive-5p6d")
GOLDEN = Path(__file__).resolve().parent.parent / "golden"
SHIPPED = sorted(path.stem for path in (GOLDEN.parent.parent / "topologies").glob("*.yaml"))

PRODUCT = {
    "product_title": "Cup",
    "product_image": "0.png",
    "potential_product_categories": ["Cups"],
    "ground_truth_category": "Cups",
    "ground_truth_is_secondhand": False,
}


@pytest.fixture
def here(tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with the demo's topology and everything that it names."""
    shutil.copy(repository / "topologies" / "demo.yaml", tmp_path)
    (tmp_path / "staging").mkdir()
    shutil.copy(repository / "staging" / "tiny-qwen3-vl-moe.yaml", tmp_path / "staging")
    catalogue = tmp_path / "assets" / "tiny-product-catalogue"
    catalogue.mkdir(parents=True)
    (catalogue / "0.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    (catalogue / "catalogue.jsonl").write_text(f"{json.dumps(PRODUCT)}\n" * 64)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DYNAMO_MLPERF_SITE", raising=False)
    return tmp_path


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments)


def run_program(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The program as a process of its own, in the current directory."""
    return subprocess.run(
        [sys.executable, "-m", "dynamo_mlperf.cli", *arguments],
        env={"PYTHONPATH": str(GOLDEN.parent.parent), "HOME": str(Path.cwd())},
        capture_output=True,
        text=True,
        check=False,
    )


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


@pytest.mark.parametrize("name", SHIPPED)
def test_the_picture_of_a_shipped_topology(repository: Path, tmp_path: Path, name: str) -> None:
    topology = load_topology(repository / "topologies" / f"{name}.yaml")
    made = make_plan(topology)
    check_plan(topology, made)
    out = io.StringIO()
    show_plan(Console(file=out, width=100, highlight=False), topology, made, PlanFacts(memory_of(topology, tmp_path)))
    assert out.getvalue() == (GOLDEN / f"plan-{name}.txt").read_text()


def test_every_golden_plan_has_its_topology(repository: Path) -> None:
    goldens = {path.stem.removeprefix("plan-") for path in GOLDEN.glob("plan-*")}
    assert goldens == set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_topology_can_be_submitted_as_it_stands(repository: Path, name: str) -> None:
    path = repository / "topologies" / f"{name}.yaml"
    assert path.stat().st_mode & 0o111 == 0o111
    assert load_topology(path).name == name
    result = plan(str(path), "--json")
    assert result.exception is None
    told = [
        warning for warning in json.loads(result.stdout)["warnings"] if "is not there (seen from here)" not in warning
    ]
    assert told == []


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_json_of_a_published_topology(repository: Path, name: str) -> None:
    text = json.dumps(plan_as_json(make_plan(load_topology(repository / "topologies" / f"{name}.yaml"))), indent=2)
    assert text + "\n" == (GOLDEN / f"plan-{name}.json").read_text()


def test_stdout_holds_the_json_and_nothing_else(here: Path) -> None:
    result = plan("demo.yaml", "--json")
    assert result.exception is None
    assert result.stderr == ""
    value = json.loads(result.stdout)
    assert list(value)[:5] == ["name", "nodes", "workers", "idle_gpus", "split"]
    assert value["workers"][1] == {"role": "decode", "index": 0, "ranks": [{"node": 1, "gpu": 0}], "port_offset": 14}
    assert value["split"] == {"prefill_gpus": 1, "decode_gpus": 1, "workers": "1P1D"}
    assert value["warnings"] == []


def test_the_table_names_both_splits(here: Path) -> None:
    result = plan("demo.yaml")
    assert "1 prefill, 1 decode (50:50)" in result.stdout
    assert "by workers  1P1D" in result.stdout
    assert "warning" not in result.stdout


def test_another_node_count_scales_the_workers(here: Path) -> None:
    value = json.loads(plan("demo.yaml", "--nodes", "6", "--json").stdout)
    assert (len(value["nodes"]), value["split"]["workers"]) == (6, "3P3D")
    assert value["warnings"] == [
        "line 2: --nodes=2, the plan wants --nodes=6; submit with sbatch --nodes=6 demo.yaml --nodes 6"
    ]
    refused = plan("demo.yaml", "--nodes", "3")
    assert isinstance(refused.exception, ConfigError)
    assert refused.exception.action == "--nodes 2, 4, 6"
    for nodes in ("0", "10001"):
        beyond = plan("demo.yaml", "--nodes", nodes)
        assert str(beyond.exception).startswith(f"demo: wanted 1 to 10000 nodes, got {nodes}")


def test_what_does_not_fit_is_refused_before_anything_is_printed(here: Path) -> None:
    edit(here / "demo.yaml", "  decode:\n    workers: 1", "  decode:\n    workers: 2")
    result = plan("demo.yaml", "--json")
    assert isinstance(result.exception, CapacityError)
    assert result.exception.what == "demo: 3 GPU slots asked for, 2 in 2 nodes x 1"
    assert result.exception.action == "a plan that fits: 1P1D on 2 nodes, 1P2D on 3 nodes"
    assert result.stdout == ""


def test_one_gpu_too_many_ends_with_exit_code_2_and_both_numbers(here: Path, repository: Path) -> None:
    name = "q3vl-gb200x16-interactive-5p6d.yaml"
    shutil.copy(repository / "topologies" / name, here)
    edit(here / name, "workers: 6", "workers: 7")
    run = run_program("plan", name)
    assert run.returncode == 2
    assert run.stdout == ""
    assert run.stderr == (
        "error: q3vl-gb200x16-interactive-5p6d: 17 GPUs asked for, 16 in 4 nodes x 4\n"
        "  Try: a plan that fits: 5P6D on 4 nodes, 4P7D on 4 nodes, 4P8D on 4 nodes, 5P7D on 5 nodes\n"
    )


def test_batch_lines_that_disagree_are_told_and_fixed_on_request(here: Path) -> None:
    path = here / "demo.yaml"
    good = path.read_text()
    edit(path, "--nodes=2 --gres=gpu:1", "--nodes=3 --gres=gpu:1")
    edit(path, "measure:\n", "#SBATCH --mem=0\nmeasure:\n")
    late = path.read_text().split("\n").index("#SBATCH --mem=0") + 1
    assert json.loads(plan("demo.yaml", "--json").stdout)["warnings"] == [
        "line 2: --nodes=3, the plan wants --nodes=2; `dynamo-mlperf plan --fix-batch demo.yaml` corrects it",
        f"line {late}: Slurm ignores #SBATCH after the first YAML line",
    ]
    fixed = plan("demo.yaml", "--fix-batch", "--json")
    assert fixed.stderr == "demo.yaml: line 2: --nodes=3 is now --nodes=2\n"
    assert path.read_text() == good.replace("measure:\n", "#SBATCH --mem=0\nmeasure:\n")
    assert path.stat().st_mode & 0o777 == 0o755
    again = plan("demo.yaml", "--fix-batch")
    assert again.stderr == "demo.yaml: the #SBATCH lines agree with the plan\n"
    assert isinstance(plan("demo.yaml", "--fix-batch", "--nodes", "4").exception, ConfigError)


@pytest.mark.parametrize(
    ("blocks", "told"),
    [
        ("search: {high: 40, time_budget_s: 1}", "does not fit into 1 s"),
        ("search: {}\nsweep: {splits: [1P1D], time_budget_s: 2}", "does not fit into 2 s"),
        ("search: {high: 40, time_budget_s: 900}", None),
        ("sweep: {splits: [1P1D], rates: [2]}", None),
    ],
)
def test_a_budget_without_room_for_a_full_run_is_told_before_engines_start(
    here: Path, blocks: str, told: str | None
) -> None:
    path = here / "demo.yaml"
    value = yaml.safe_load(path.read_text())
    del value["measure"]["target_qps"]
    value |= yaml.safe_load(blocks)
    path.write_text(path.read_text().partition("schema:")[0] + yaml.safe_dump(value, sort_keys=False))
    found = [warning for warning in warnings_of() if "can end with an answer" in warning]
    assert len(found) == (told is not None)
    assert told is None or told in found[0]


def warnings_of(*arguments: str) -> list[str]:
    value: list[str] = json.loads(plan("demo.yaml", *arguments, "--json").stdout)["warnings"]
    return value


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("engine: vllm", "engine: sglang", "engine: sglang runs on GPUs alone"),
        ("  dataset: assets/tiny-product-catalogue\n", "", "the topology names no data set (measure.dataset)"),
        ("samples: 64,", "samples: 65,", "the data set has 64 samples, and qwen3-vl-235b-a22b Interactive needs 65"),
        ("max-model-len: 4096", "max-model-len: hello", "max-model-len: wanted a whole number from 1 on"),
        ("enforce-eager: true", "enforce-eage: true", "write the flag in full: it abbreviates enforce-eager"),
        ("count: 2, gpus: 1}", "count: 2, gpus: 1}\nsite: ./small.yaml", "24 ports needed, site small has 10"),
        ("count: 2, gpus: 1}", "count: 2, gpus: 1}\nsite: ./new.yaml", "new.yaml:1: partition is still FILL-IN"),
        ("{stage: staging/tiny", "{stage: small", "small-qwen3-vl-moe.yaml: schema: Field required"),
    ],
)
def test_plan_refuses_what_run_would(here: Path, old: str, new: str, said: str) -> None:
    (here / "small.yaml").write_text("port_range: [20000, 20009]\n")
    (here / "small-qwen3-vl-moe.yaml").write_text("kind: model\n")
    (here / "new.yaml").write_text("partition: FILL-IN\naccount: me\ncontainer:\n  image: /FILL-IN/a.sqsh\n")
    edit(here / "demo.yaml", old, new)
    result = plan("demo.yaml", "--json")
    assert isinstance(result.exception, ConfigError)
    assert said in str(result.exception)
    assert result.exception.action
    assert result.stdout == ""
    done = run_program("run", "demo.yaml")
    assert (done.returncode, said in done.stderr, (here / "runs").exists()) == (2, True, False)


def test_a_client_that_is_not_there_is_refused_though_the_data_set_is_not_there_either(here: Path) -> None:
    """As `submit` does, which sees neither."""
    shutil.rmtree(here / "assets")
    assert plan("demo.yaml").exception is None
    edit(here / "demo.yaml", "measure:\n", "measure:\n  client: endpoints\n")
    said = "the site file names no environment that has it (endpoints_python)"
    for refused in (plan("demo.yaml", "--json").exception, CliRunner().invoke(submit, ["demo.yaml"]).exception):
        assert isinstance(refused, ConfigError), refused
        assert said in refused.what
    (here / "apart.yaml").write_text("endpoints_python: /not/seen/python\n")
    warnings = json.loads(plan("demo.yaml", "--json", "--site", "./apart.yaml").stdout)["warnings"]
    assert "not checked: endpoints_python: /not/seen/python is not seen from here; the job checks it" in warnings


def test_lines_of_the_site_that_nobody_completed_are_told(here: Path) -> None:
    (here / "mine.yaml").write_text("port_range: [20000, 32000]\n# partition: batch   # FILL IN: sinfo -s\n")
    (warning,) = warnings_of("--site", "./mine.yaml")
    assert warning.startswith(f"{here / 'mine.yaml'}: FILL IN still stands in line 2: ")


@pytest.mark.parametrize(
    ("given", "doubted"), [("500", True), ("80", True), ("150", False), ("173.2", False), ("192", False)]
)
def test_memory_that_is_not_that_of_the_gpu_is_told(here: Path, repository: Path, given: str, *, doubted: bool) -> None:
    name = "q3vl-gb200x16-interactive-4p8d.yaml"
    shutil.copy(repository / "topologies" / name, here)
    edit(here / name, "gpu: gb200", f"gpu: gb200, gpu_memory_gib: {given}")
    said = f"nodes.gpu_memory_gib: {given}, but gb200 has about 173.2 GiB: correct one of the two"
    result = plan(name, "--json")
    found = str(result.exception) if result.exception else " ".join(json.loads(result.stdout)["warnings"])
    assert (said in found) == doubted
    if given == "80":
        assert "gb200 has 80.0 GiB (gpu_memory_gib), of which" in found


def test_a_misspelt_flag_that_memory_hangs_on_is_named_first(here: Path, repository: Path) -> None:
    name = "q3vl-gb200x16-interactive-4p8d.yaml"
    path = Path(shutil.copy(repository / "topologies" / name, here))
    path.write_text(path.read_text().replace("max-model-len:", "max-model-length:"))
    (here / "away.yaml").write_text(f"local_path: {here / 'disk'}\nengine_python: /no/python\n")
    refused = plan(name, "--site", "./away.yaml").exception
    assert isinstance(refused, CapacityError)
    assert "roles.decode: max-model-length is not max-model-len, and does not count; beside" in refused.what
    assert refused.action.startswith("max-model-len instead of max-model-length under roles.decode.args, or roles.")


def test_a_plan_that_cannot_load_is_refused_before_others_like_it_are_proposed(here: Path, repository: Path) -> None:
    name = "q3vl-gb200x16-interactive-4p8d.yaml"
    shutil.copy(repository / "topologies" / name, here)
    edit(here / name, "    tensor_parallel: 2\n", "    tensor_parallel: 3\n")  # four of them leave no room for decode
    refused = plan(name).exception
    assert isinstance(refused, CapacityError)
    assert refused.what.endswith("roles.prefill: tensor_parallel 3: 64 attention heads are not divisible by 3")
    assert refused.action == "write tensor_parallel: 2 or 4"


def test_a_data_set_that_is_too_small_hides_neither_the_picture_nor_the_batch_lines(here: Path) -> None:
    edit(here / "demo.yaml", "samples: 64,", "samples: 65,")
    edit(here / "demo.yaml", "--nodes=2 --gres=gpu:1", "--nodes=3 --gres=gpu:1")
    fixed = run_program("plan", "demo.yaml", "--fix-batch")
    assert (fixed.returncode, "#SBATCH --nodes=2 " in (here / "demo.yaml").read_text()) == (2, True)
    assert fixed.stderr.startswith("demo.yaml: line 2: --nodes=3 is now --nodes=2\n")
    small = "the data set has 64 samples, and qwen3-vl-235b-a22b Interactive needs 65"
    assert f"\nerror: measure.dataset assets/tiny-product-catalogue: {small}\n" in fixed.stderr
    assert "prefill-0" in fixed.stdout
    assert "by workers  1P1D" in fixed.stdout


def test_no_line_ends_in_blanks(here: Path) -> None:
    lines = plan("demo.yaml").stdout.splitlines()
    assert len(lines) > 10
    assert [line for line in lines if line != line.rstrip()] == []


def test_what_is_not_there_is_told(here: Path) -> None:
    shutil.rmtree(here / "assets")
    (here / "apart.yaml").write_text("shared_path: /nowhere\n")
    warnings = json.loads(plan("demo.yaml", "--json", "--site", "./apart.yaml").stdout)["warnings"]
    lacks = f"measure.dataset: {here / 'assets/tiny-product-catalogue'} is not there (seen from here)"
    assert warnings[0] == f"{lacks}; `dynamo-mlperf init --assets assets` makes it"
    assert "outside the site's shared_path" in warnings[1]
    assert isinstance(plan("demo.yaml", "--site", "nowhere").exception, ConfigError)


def test_domains_are_asked_for_where_the_site_can_and_told_where_not(here: Path) -> None:
    edit(here / "demo.yaml", "nodes: {count: 2,", "nodes: {count: 2, nvlink_domain: 18,")
    (here / "rack.yaml").write_text("segment: true\n")
    (note,) = json.loads(plan("demo.yaml", "--json").stdout)["notes"]
    assert note.startswith("the plan counts on NVLink domains of 18 nodes, and domain placement is not asked for")
    assert note.endswith("; name your cluster's site with --site NAME")
    assert f"note: {note}\n" in plan("demo.yaml").stdout
    asked = json.loads(plan("demo.yaml", "--site", "./rack.yaml", "--json").stdout)
    assert asked["notes"] == []
    assert asked["warnings"] == [
        (
            "no #SBATCH line asks for --segment; the plan wants --segment=2; "
            "`dynamo-mlperf plan --fix-batch demo.yaml` corrects it"
        )
    ]
    fixed = plan("demo.yaml", "--site", "./rack.yaml", "--fix-batch")
    assert fixed.stderr == "demo.yaml: added #SBATCH --segment=2\n"
    assert "\n#SBATCH --segment=2\n" in (here / "demo.yaml").read_text()
    assert warnings_of("--site", "./rack.yaml") == []
    edit(here / "demo.yaml", "nvlink_domain: 18", "nvlink_domain: 2")
    (uneven,) = json.loads(plan("demo.yaml", "--nodes", "6", "--json", "--site", "laptop").stdout)["notes"]
    assert "domain placement is not asked for: site laptop" in uneven
    assert uneven.endswith("whether its Slurm has topology/block, then write `segment: true` in the site file")
    edit(here / "demo.yaml", "nvlink_domain: 2", "nvlink_domain: 4")
    (never,) = json.loads(plan("demo.yaml", "--nodes", "6", "--json", "--site", "./rack.yaml").stdout)["notes"]
    assert never.endswith("--segment has to divide the 6 nodes of the job")


def test_cores_are_divided_where_the_site_says_how_they_lie(here: Path) -> None:
    text = (here / "demo.yaml").read_text().replace("nodes: {count: 2, gpus: 1}", "nodes: {count: 1, gpus: 2}")
    (here / "demo.yaml").write_text(text.replace("--nodes=2 --gres=gpu:1", "--nodes=1 --gres=gpu:2"))
    layout = "numa: [{cores: 0-35, gpus: [0, 1], memory_gib: 100}]\n"
    (here / "numa.yaml").write_text(layout + "head_cores: 0\n")
    without = json.loads(plan("demo.yaml", "--site", "./numa.yaml", "--json").stdout)
    assert without["cores"] == [
        {"worker": "prefill-0", "node": 0, "cores": "0-17", "memory_gib": 50.0},
        {"worker": "decode-0", "node": 0, "cores": "18-35", "memory_gib": 50.0},
    ]
    assert without["notes"] == []
    assert " +14 to +23   18-35\n" in plan("demo.yaml", "--site", "./numa.yaml").stdout
    (here / "numa.yaml").write_text(layout)
    kept = json.loads(plan("demo.yaml", "--site", "./numa.yaml", "--json").stdout)
    assert [share["cores"] for share in kept["cores"]] == ["0-14", "15-30"]
    assert kept["notes"] == [
        "cores 31-35 of node 0 are kept back for frontends, load client and controller (head_cores of site numa)"
    ]
    assert json.loads(plan("demo.yaml", "--json").stdout)["cores"] == []
    (here / "numa.yaml").write_text("numa: [{cores: 0-35, gpus: [0], memory_gib: 100}]\n")
    assert "decode-0: GPU 1" in str(plan("demo.yaml", "--site", "./numa.yaml").exception)


def test_the_picture_is_drawn_into_a_file_as_a_whole(here: Path) -> None:
    result = plan("demo.yaml", "--svg", "plan.svg", "--json")
    assert (result.exit_code, result.stderr) == (0, "plan.svg: written\n")
    assert json.loads(result.stdout)["split"]["workers"] == "1P1D"
    root = ET.fromstring((here / "plan.svg").read_text())
    texts = ["".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert texts[0] == "demo: 1P1D on 2 x 1 GPU slots"
    assert {"node 0", "P0", "head", "node 1", "D0", "prefill", "decode", "no worker"} <= set(texts)
    assert [path.name for path in here.iterdir() if "svg" in path.name] == ["plan.svg"]


def test_the_picture_has_memory_notes_and_warnings(repository: Path, here: Path) -> None:
    shutil.copy(repository / "topologies" / "q3vl-gb300x72-interactive-22p28d.yaml", here / "rack.yaml")
    value = json.loads(plan("rack.yaml", "--svg", "plan.svg", "--json").stdout)
    root = ET.fromstring((here / "plan.svg").read_text())
    texts = list(root.iter("{http://www.w3.org/2000/svg}text"))
    below = "".join(element.text or "" for element in texts).replace(" ", "")
    assert "memory:decode126.0GiBofweightsoneachGPU" in below
    assert len(value["warnings"]) == 2
    pages = [warning.partition("; ")[2] for warning in value["warnings"]]
    assert all(page.startswith(f"{repository}/benchmarks/qwen3-vl-235b-a22b/README.md says ") for page in pages)
    assert len(value["notes"]) == 2
    said = [*(f"note: {note}" for note in value["notes"]), *(f"warning: {warning}" for warning in value["warnings"])]
    assert [line for line in said if line.replace(" ", "") not in below] == []
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert all(float(e.attrib["x"]) + 7 * len(e.text or "") <= width for e in texts if "+" not in (e.text or ""))
    assert all(float(element.attrib["y"]) < height for element in texts)


@pytest.mark.parametrize(
    ("target", "said"), [("assets", "is a directory"), ("nowhere/plan.svg", "there is no directory nowhere")]
)
def test_a_picture_that_cannot_be_written_is_refused(here: Path, target: str, said: str) -> None:
    result = plan("demo.yaml", "--svg", target)
    assert isinstance(result.exception, ConfigError)
    assert said in result.exception.what


def test_weights_that_cannot_load_are_refused_with_the_numbers_and_a_degree_that_loads(
    here: Path, repository: Path
) -> None:
    name = "q3vl-gb200x16-interactive-4p8d.yaml"
    shutil.copy(repository / "topologies" / name, here)
    assert json.loads(plan(name, "--json").stdout)["memory"][1] == {
        "role": "decode",
        "gpu_gib": 173.23,
        "usable_gib": 159.37,
        "weights_per_gpu_gib": 125.96,
        "sequence_tokens": 65536,
        "kv_per_sequence_gib": 11.75,
        "sequences_per_worker": 2,
    }
    edit(here / name, "precision: nvfp4", "precision: bf16")
    result = plan(name)
    assert isinstance(result.exception, CapacityError)
    assert str(result.exception) == (
        "q3vl-gb200x16-interactive-4p8d: roles.prefill: 219.5 GiB of weights on each GPU (bf16, tensor_parallel 2); "
        "gb200 has 173.2 GiB, of which vllm uses 159.4 GiB (gpu-memory-utilization)\n"
        "  Try: roles.prefill: {workers: 2, tensor_parallel: 4}, or weights in fp8"
    )
    assert result.stdout == ""


def test_problems_of_the_file_end_with_exit_code_2(here: Path) -> None:
    edit(here / "demo.yaml", "  prefill:", "  prefil:")
    run = run_program("plan", "demo.yaml")
    assert run.returncode == 2
    assert "demo.yaml:16: roles.prefil: no such key; did you mean prefill?" in run.stderr
    assert run.stdout == ""


@pytest.mark.parametrize("kind", ["topology", "site"])
def test_every_key_has_a_meaning(kind: str) -> None:
    result = CliRunner().invoke(schema_command, [kind])
    assert result.exception is None
    lines = result.stdout.splitlines()
    keys, meanings = lines[::2], lines[1::2]
    assert all(": " in key and not key.startswith(" ") for key in keys)
    assert all(meaning.startswith("    ") and meaning.strip() not in {"", "None"} for meaning in meanings)


def test_the_schema_names_types_bounds_and_defaults() -> None:
    text = CliRunner().invoke(schema_command, []).stdout
    for line in (
        "schema: 1; required",
        "nodes.count: whole number, at least 1, at most 10000; required",
        "roles.decode.args: mapping",
        "frontends.discovery: etcd | file; default etcd",
        "reduced.percentile: number, more than 0, less than 100",
        "measure.target_qps: number, more than 0, at most 1e+06",
        "measure.round: v6.1 | v6.0 | v5.1; default v6.1",
        "measure.benchmark: qwen3-vl-235b-a22b | gpt-oss-120b | deepseek-r1 | llama2-70b-99.9; required",
        "measure.scenario: Offline | Server | Interactive; required",
    ):
        assert f"{line}\n" in text


def test_the_json_schema_forbids_unknown_keys() -> None:
    schema = json.loads(CliRunner().invoke(schema_command, ["topology", "--json"]).stdout)
    assert schema["additionalProperties"] is False
    assert "schema" in schema["required"]
    assert schema["$defs"]["Role"]["properties"]["workers"]["minimum"] == 1


def test_a_picture_that_the_system_refuses_is_no_bug(here: Path) -> None:
    assert here.is_dir()
    result = plan("demo.yaml", "--svg", "/proc/plan.svg")
    assert isinstance(result.exception, SetupError), result.exception


def test_numbers_and_letters_that_no_file_can_hold_are_refused(here: Path, repository: Path) -> None:
    name = "q3vl-gb200x16-interactive-4p8d.yaml"
    shutil.copy(repository / "topologies" / name, here)
    edit(here / name, "gpu: gb200", "gpu_memory_gib: 1e308")
    edit(here / name, "assets/shopify-product-catalogue-8k", '"\\ud800"')
    result = plan(name)
    assert isinstance(result.exception, ConfigError), result.exception
    assert "gpu_memory_gib" in result.exception.what
    assert "surrogate" in result.exception.what
    shutil.copy(repository / "topologies" / name, here)
    (here / name).write_text((here / name).read_text().replace("max-model-len: 65536", f"max-model-len: {10**29}"))
    assert isinstance((refused := plan(name).exception), ConfigError), refused
    assert f"max-model-len: wanted a whole number from 1 on, such as 8192 or 8k, or auto, got {10**29}" in refused.what


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("q3vl-gb200x16-interactive-4p8d", True),
        ("q3vl-gb200x16-server-4p8d", False),
        ("demo", False),  # reduced
        ("rehearse-22p28d", False),
    ],
)
def test_what_cannot_be_submitted_for_its_client_is_told_before_gpus_are_booked(
    repository: Path, name: str, *, told: bool
) -> None:
    notes = json.loads(plan(str(repository / "topologies" / f"{name}.yaml"), "--json").stdout)["notes"]
    assert any("measured by LoadGen is for tuning and cannot be submitted" in note for note in notes) == told


def test_the_measurement_its_class_and_why_are_told_before_gpus_are_booked(here: Path, repository: Path) -> None:
    value = json.loads(plan("demo.yaml", "--json").stdout)
    assert value["measure"] == {
        "benchmark": "qwen3-vl-235b-a22b", "scenario": "Interactive", "round": "v6.1", "client": "loadgen",
        "target_qps": 1.5, "percentile": 0.9, "limits_ms": {"end_to_end": 10000.0}, "min_duration_s": 40.0,
        "planned_queries": 64, "needed_queries": 44, "accuracy": False, "compliance": False,
    }  # fmt: skip
    assert value["class"]["name"] == "reduced"
    assert "min_duration_s 40, samples 64, percentile 90, latency_limit_ms 10000" in value["class"]["why"]
    assert not {"search", "sweep"} & value.keys()
    name = "q3vl-gb200x16-interactive-4p8d.yaml"
    shutil.copy(repository / "topologies" / name, here)
    edit(here / name, "target_qps: 40", "target_qps: 40\n  accuracy: true")
    full = json.loads(plan(name, "--json").stdout)
    assert (full["class"]["name"], full["measure"]["min_duration_s"]) == ("official", 600.0)
    assert "afterwards  accuracy tests on the same deployment\n" in plan(name).stdout


def test_what_is_searched_is_told(here: Path, repository: Path) -> None:
    shutil.copy(repository / "topologies" / "rehearse-sweep.yaml", here)
    value = json.loads(plan("rehearse-sweep.yaml", "--json").stdout)
    assert value["class"]["name"] == "rehearsal"
    assert (value["measure"]["target_qps"], value["measure"]["planned_queries"]) == (None, None)
    assert value["sweep"]["splits"] == ["6P4D", "5P6D", "4P8D"]
    assert (value["search"]["low"], value["search"]["high"]) == (2.0, 20.0)


def test_of_a_sweep_over_given_rates_each_rate_is_told_and_no_search(here: Path) -> None:
    edit(
        here / "demo.yaml", "measure:", "sweep: {splits: [1P1D], rates: [1.5, 40]}\nsearch: {tolerance: 0.02}\nmeasure:"
    )
    value = json.loads(plan("demo.yaml", "--json").stdout)
    assert (value["measure"]["target_qps"], value["measure"]["planned_queries"]) == (None, None)
    assert value["measure"]["at_rates"] == [
        {"target_qps": 1.5, "planned_queries": 64},
        {"target_qps": 40.0, "planned_queries": 1600},
    ]
    assert value["sweep"]["rates"] == [1.5, 40.0]
    assert "search" not in value
    text = plan("demo.yaml").stdout
    assert "each by halving over 1.5 queries/s (about 64 queries), 40 queries/s (about 1600 queries)" in text
    assert "\nsearch " not in text


def test_where_the_rate_is_searched_none_is_told(here: Path) -> None:
    edit(here / "demo.yaml", "measure:", "search: {tolerance: 0.02}\nmeasure:")
    measure = json.loads(plan("demo.yaml", "--json").stdout)["measure"]
    assert (measure["target_qps"], measure["planned_queries"]) == (None, None)


def test_a_run_that_cannot_hold_enough_queries_is_told_before_it_starts(here: Path) -> None:
    edit(here / "demo.yaml", "target_qps: 1.5", "target_qps: 0.5")
    edit(here / "demo.yaml", "samples: 64,", "samples: 20,")
    (warning,) = warnings_of()
    assert "20 queries in about 40 s by these settings, and the early-stopping rule at p90 needs 44" in warning
    assert "a target_qps of 1.025 or more" in warning
    edit(here / "demo.yaml", "target_qps: 0.5", "target_qps: 1.025")
    assert warnings_of() == []


def test_an_official_run_that_cannot_hold_enough_queries_is_refused(here: Path, repository: Path) -> None:
    name = "q3vl-gb200x16-interactive-4p8d.yaml"
    shutil.copy(repository / "topologies" / name, here)
    edit(here / name, "target_qps: 40", "target_qps: 4\n  user_conf: sharp.conf")
    (here / "sharp.conf").write_text("*.Server.target_latency_percentile = 99.99\n")
    result = plan(name)
    assert isinstance(result.exception, ConfigError), result.exception
    assert (
        "8000 queries in about 2000 s by these settings, and the early-stopping rule at p99.99 needs 46050"
        in result.exception.what
    )
    assert result.exception.action.startswith("give a target_qps of ")


def test_a_plan_loads_nothing_that_takes_long(here: Path, repository: Path) -> None:
    shutil.copy(repository / "topologies" / "q3vl-gb300x72-interactive-22p28d.yaml", here / "rack.yaml")
    program = (
        "import sys; from dynamo_mlperf.cli import main\ntry: main(['plan', 'rack.yaml', '--json'])\n"
        "except SystemExit as end: print(end.code)\n"
        "print(sorted({'numpy', 'jinja2', 'plotly', 'concurrent.futures'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=here, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["0", "[]"], done.stderr


def test_the_readme_shows_a_shipped_file(repository: Path) -> None:
    """What is read first can be copied: the same deployment, with batch lines that agree with it."""
    text = (repository / "README.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    shown = parse_topology(text, Path("readme.yaml"))
    assert shown == load_topology(repository / "topologies" / f"{shown.name}.yaml")
    assert batch_differences(text, shown, make_plan(shown)) == ()
    assert len(memory_of(shown, repository)) == 2


def test_memory_that_was_not_checked_is_told(repository: Path, here: Path) -> None:
    name = "q3vl-gb200x16-interactive-4p8d.yaml"
    shutil.copy(repository / "topologies" / name, here)

    def told() -> list[str]:
        return [note for note in json.loads(plan(name, "--json").stdout)["notes"] if note.startswith("GPU memory of ")]

    assert told() == []
    edit(here / name, "max-num-batched-tokens: 2048,", "max-num-batched-tokens: 2048, cpu-offload-gb: 10,")
    (flags,) = told()
    assert flags.startswith("GPU memory of decode workers is not checked: flags of theirs change")
    edit(here / name, "  name: qwen3-vl-235b-a22b\n", "  name: mine\n")
    (shape,) = told()
    assert shape.startswith("GPU memory of prefill and decode workers is not checked: the shape of mine is not known")
    edit(here / name, ", gpu: gb200", "")
    (gpu,) = told()
    assert gpu.endswith(": the file does not say what the GPUs are; write nodes: {gpu: NAME}, or gpu_memory_gib")
    assert f"note: {gpu}\n" in plan(name).stdout


def test_workers_that_would_refuse_images_are_told(here: Path) -> None:
    assert [warning for warning in warnings_of() if "images" in warning] == []
    edit(here / "demo.yaml", "      enable-multimodal: true\n", "")
    (warning,) = [warning for warning in warnings_of() if "images" in warning]
    assert warning.startswith("prefill and decode workers refuse requests with images; write args: {enable-multimodal")


def test_the_router_is_told(repository: Path, here: Path) -> None:
    assert json.loads(plan("demo.yaml", "--json").stdout)["router"] == "round-robin"
    assert json.loads(plan(str(repository / "topologies" / f"{PUBLISHED[0]}.yaml"), "--json").stdout)["router"] == "kv"
