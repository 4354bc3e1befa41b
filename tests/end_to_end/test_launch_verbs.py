"""The verbs that start and end jobs, on a real four-node Slurm: submit, status, logs, cancel."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from tests.end_to_end.bench import PROGRAM, Cluster, Place
from tests.end_to_end.test_cluster import ended, mocker_2p2d, wait_until
from tests.fakes.slurm_programs import FakeSlurm

if TYPE_CHECKING:
    from pathlib import Path

ENGINE = "^[^ ]*python[^ ]* -m dynamo.mocker"
CONTROLLER = "^[^ ]*python[^ ]* [^ ]*dynamo-mlperf job"
SITE = """partition: {partition}
local_path: ${{DEVCLUSTER_DIR}}/nvme
shared_path: ${{DEVCLUSTER_DIR}}/shared
interface: eth0
prologue: ["export SEEN_BY_ENGINES='a,b $HOME'"]
"""


BOX = """#!/bin/bash
# Apptainer as far as a step sees it: mounts are there, nothing of the host's environment is.
shift
while [[ $1 == --* ]]; do [[ $1 == --bind ]] && shift; shift; done
image=$1; shift
exec env -i PATH=/usr/bin:/bin IMAGE="$image" "$@"
"""
BOXED = """container: {{runtime: apptainer, image: /images/x.sif, devices: none}}
prologue: ["export PATH={bin}:$PATH"]
"""


@pytest.fixture
def twin(repository: Path, place: Place) -> Path:
    """A short run on all four nodes, and a site of its own."""
    (place.root / "main.yaml").write_text(SITE.format(partition="main"))
    programs = place.root / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "apptainer").write_text(BOX)
    (programs / "apptainer").chmod(0o755)
    boxed = SITE.format(partition="main").rsplit("prologue", 1)[0] + BOXED.format(bin=programs)
    (place.root / "boxed.yaml").write_text(boxed)
    return mocker_2p2d(repository, place, "twin", min_duration_s=3)


def in_place(place: Place, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DEVCLUSTER_DIR": str(place.root), **variables}
    return subprocess.run(
        (*PROGRAM, *words), cwd=place.root, env=environment, text=True, capture_output=True, check=False
    )


def test_a_dry_run_prints_what_submit_sends_and_sends_nothing(place: Place, twin: Path, tmp_path: Path) -> None:
    fake = FakeSlurm(tmp_path)
    fake.sbatch("4711", stderr="sbatch: a word from the site")
    words = ("submit", "twin.yaml", "--site", "./main.yaml", "--json", "--", "--time=5")
    shown = in_place(place, *words[:-2], "--dry-run", *words[-2:], PATH=fake.path)
    assert shown.returncode == 0, shown.stderr
    assert not (tmp_path / "sbatch.json").exists()
    sent = in_place(place, *words, PATH=fake.path, HF_TOKEN="hf_secret")
    assert sent.returncode == 0, sent.stderr
    assert "a word from the site" in sent.stderr
    answer, dry = json.loads(sent.stdout), json.loads(shown.stdout)
    assert (answer["job_id"], answer["run_dir"]) == ("4711", str(place.root / "runs" / "twin-4711"))
    assert [fake.sent()["argv"], fake.sent()["script"]] == [dry["argv"][1:], dry["script"]]
    assert dry["argv"][-3:] == ["/dev/stdin", "--site", dry["site"]["place"]]
    site = (place.root / "main.yaml").read_text()
    assert (place.root / dry["site"]["place"]).read_text() == dry["site"]["text"] == site
    assert "hf_secret" not in json.dumps(fake.sent()) + sent.stdout + sent.stderr
    kept = place.root / "runs" / ".submitted" / "4711"
    assert (kept / "twin.yaml").read_bytes() == twin.read_bytes()


def test_what_the_job_would_refuse_is_refused_before_it(place: Place, twin: Path, tmp_path: Path) -> None:
    fake = FakeSlurm(tmp_path)
    fake.sbatch("1")
    text = twin.read_text()
    twin.write_text(text.replace("--nodes=4", "--nodes=3"))
    refused = in_place(place, "submit", "twin.yaml", PATH=fake.path)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "line 2: --nodes=3, the plan wants --nodes=4" in refused.stderr
    assert "dynamo-mlperf plan --fix-batch twin.yaml" in refused.stderr
    here = in_place(place, "run", "twin.yaml", "--site", "./main.yaml")
    assert (here.returncode, here.stdout) == (2, "")
    assert "site main has a container, modules, prologue or mpi" in here.stderr
    whole = place.root / "assets" / "tiny-qwen3-vl-moe"
    broken = place.root / "broken"
    broken.mkdir()
    for path in whole.iterdir():
        (broken / path.name).symlink_to(path)
    next(broken.glob("*.safetensors")).unlink()
    twin.write_text(text.replace("stage: staging/tiny-qwen3-vl-moe.yaml", "path: broken"))
    refused = in_place(place, "submit", "twin.yaml", PATH=fake.path)
    assert refused.returncode == 3, refused.stderr
    assert ".safetensors" in refused.stderr
    assert not (tmp_path / "sbatch.json").exists()


@pytest.mark.slurm
def test_slurms_refusal_names_the_line(place: Place, twin: Path, cluster: Cluster) -> None:
    (place.root / "wrong.yaml").write_text(SITE.format(partition="nope"))
    cases = (
        (("--site", "./wrong.yaml"), "invalid partition specified: nope", "partition of site wrong: --partition=nope"),
        (("--site", "./main.yaml", "--", "--mem=99999999"), "Memory specification can not be satisfied", "--mem=99999999"),
        (("--site", "./main.yaml", "--", "--gres=gpu:99"), "Requested node configuration is not available", "--gres=gpu:99"),
        (("--site", "./main.yaml", "--", "--segment=4"), "unrecognized option '--segment=4'", "--segment=4"),
    )  # fmt: skip
    for words, said, line in cases:
        refused = cluster.call("exec", "dynamo-mlperf", "submit", "twin.yaml", *words, check=False)
        assert (refused.returncode, refused.stdout) == (3, "")
        assert said in refused.stderr
        assert f"{line}\n  Try: change that line" in refused.stderr


def seen_by(cluster: Cluster, node: str, pattern: str) -> dict[str, str]:
    """The environment of a process on a node whose command line matches, and `cores`, where it may run."""
    script = (
        f"pid=$(pgrep -f '{pattern}' | head -n 1); [ -z \"$pid\" ] || {{ tr '\\0' '\\n' < /proc/$pid/environ; "
        "sed -n 's/^Cpus_allowed_list:\\s*/cores=/p' /proc/$pid/status; }"
    )
    lines = cluster.on_node(node, "sh", "-c", script).splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)


def standing(cluster: Cluster, *words: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(cluster.login("dynamo-mlperf", "status", *words, "--json"))
    return found


@pytest.mark.slurm
@pytest.mark.dynamo
@pytest.mark.loadgen
def test_two_runs_of_one_name_submitted_from_inside_a_job(
    repository: Path, place: Place, cluster: Cluster, twin: Path
) -> None:
    leaking = (
        *("SLURM_CPU_BIND=quiet,mask_cpu:0x1", "SLURM_CPUS_PER_TASK=1", "SLURM_MEM_PER_CPU=1", "SBATCH_PARTITION=nope"),
        *("HF_TOKEN=hf_secret", "LD_LIBRARY_PATH=/host/toolchain"),
    )
    submit = (
        "taskset",
        "-c",
        "0",
        "env",
        *leaking,
        "dynamo-mlperf",
        "submit",
        "twin.yaml",
        "--site",
        "./main.yaml",
        "--json",
    )
    twice = f"{' '.join(submit)} && {' '.join(submit)}".replace("./main.yaml", "./boxed.yaml", 2)
    twice = twice.replace("./boxed.yaml", "./main.yaml", 1)
    said = cluster.login("srun", "--nodes=1", "--ntasks=1", "sh", "-c", twice)
    first, second = (json.loads(line)["job_id"] for line in said.splitlines())
    twin.write_text("a later edit")
    assert first != second

    reasons = {"Resources", "Priority"}  # none before Slurm has looked at it for the first time
    wait_until(lambda: standing(cluster, second)[0]["job"]["reason"] in reasons, 60, "why the second run waits")
    (waiting,) = standing(cluster, second)
    assert (waiting["outcome"]["word"], waiting["run"]) == ("WAITING", f"twin-{second}")
    refused = cluster.call("exec", "dynamo-mlperf", "cancel", "twin", check=False)
    assert refused.returncode == 2
    assert all(f"twin-{job_id}" in refused.stderr for job_id in (first, second))

    engine: dict[str, str] = {}
    wait_until(lambda: bool(engine.update(seen_by(cluster, "n1", ENGINE)) or engine), 180, "an engine of the first run")
    job, node = seen_by(cluster, "n1", CONTROLLER), seen_by(cluster, "n1", "slurmd -D")
    assert job["SLURM_CONF"] == str(cluster.root / "etc" / "slurm.conf")
    assert [f"{name}={value}" for name, value in job.items() if f"{name}={value}" in leaking] == []
    assert engine["SEEN_BY_ENGINES"] == "a,b $HOME"
    assert not {word.split("=")[0] for word in leaking} & set(engine)
    assert engine["cores"] == job["cores"] == node["cores"], "the caller's one core became the job's"

    cancelled = json.loads(cluster.login("dynamo-mlperf", "cancel", first, "--json"))
    assert [(end["run"], end["state"], end["left"]) for end in cancelled] == [(f"twin-{first}", "CANCELLED", [])]
    again = json.loads(cluster.login("dynamo-mlperf", "cancel", first, "--json"))
    assert again[0]["state"] == "had ended already: CANCELLED"

    followed = cluster.login("dynamo-mlperf", "logs", second, "job", "-f", timeout_s=400)
    assert "VALID [rehearsal]" in followed
    wait_until(lambda: ended(cluster, second), 180, "the second job's end")
    one, two = standing(cluster, first, second)
    assert (one["outcome"]["word"], one["outcome"]["success"]) == ("CANCELLED", False)
    assert (two["outcome"]["word"], two["outcome"]["success"]) == ("VALID", True)
    assert {worker["state"] for worker in two["workers"]} == {"stopped"}
    refused = cluster.call("exec", "dynamo-mlperf", "logs", second, "../verdict", check=False)
    assert refused.returncode == 2
    evidence = b"".join(path.read_bytes() for path in (place.root / "runs").rglob(f"*{second}*/**/*") if path.is_file())
    assert b"hf_secret" not in evidence


@pytest.mark.slurm
@pytest.mark.dynamo
@pytest.mark.vllm
def test_doctor_looks_at_a_cluster(place: Place, cluster: Cluster) -> None:
    (place.root / "main.yaml").write_text(SITE.format(partition="main"))
    words = ("doctor", "--site", "./main.yaml", "--nodes", "3", "--mib", "4", "--json")
    done = cluster.call("exec", "dynamo-mlperf", *words, check=False, timeout_s=400)
    assert done.returncode == 0, done.stdout + done.stderr
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert {check["state"] for check in checks.values()} <= {"ok", "warning", "not checked"}
    said = {name: check["found"] for name, check in checks.items()}
    assert said["Slurm"].startswith("slurm-wlm")
    assert "--partition=main --nodes=3 --exclusive --no-requeue --gres=gpu:2" in said["options"]
    assert said["addresses"] == "n1 10.77.0.11 (eth0), n2 10.77.0.12 (eth0), n3 10.77.0.13 (eth0)"
    assert said["connections"].startswith("all 6, from each node to each other")
    assert said["NIXL transfer"].startswith("64 MiB at ")
    assert said["NIXL transfer"].endswith("by tcp/eth0")
    assert checks["RDMA"]["state"] == checks["NVLink domain"]["state"] == "not checked"
    assert "through" in said["local disk"] or "written at" in said["local disk"]
    assert list((place.root / "runs" / ".doctor").glob("*/.doctor-*")) == []


@pytest.mark.slurm
def test_doctor_says_what_a_wrong_site_breaks(place: Place, cluster: Cluster) -> None:
    wrong = (
        SITE.format(partition="main")
        + "qos: fast\nsegment: true\ncontainer: {runtime: apptainer, image: /no/such.sif}\n"
    )
    (place.root / "wrong.yaml").write_text(wrong.replace("interface: eth0", "interface: ib0"))
    words = ("doctor", "--site", "./wrong.yaml", "--nodes", "2", "--mib", "4")
    done = cluster.call("exec", "dynamo-mlperf", *words, check=False, timeout_s=400)
    assert done.returncode == 3, done.stdout + done.stderr
    lines = {line[13:29].strip(): line for line in done.stdout.splitlines()}
    assert lines["--segment"].startswith("failed       --segment         unrecognized option '--segment=2'")
    assert "has no address on interface ib0, it has lo, eth0  -> set interface in the site file" in lines["addresses"]
    assert lines["engine start"].startswith("failed       engine start")
    assert "apptainer" in lines["engine start"]
    assert lines["NIXL transfer"].startswith("not checked  NIXL transfer     the nodes do not reach each other")
    assert done.stdout.splitlines()[-1].startswith("not ready: ")
