"""What a site's container, modules and prologue make of an engine's step: whole argument vectors, and really run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from dynamo_mlperf.process.command import Command, inherited_environment
from dynamo_mlperf.site import Site
from dynamo_mlperf.slurm.allocation import SlurmAllocation, SlurmJob
from dynamo_mlperf.slurm.engine_step import engine_step, mounts

INHERITED = {"PATH": os.environ["PATH"], "HOME": "/home/me"}
TRICKY = {"KV": '{"a": "b,c"}', "NETS": "eth0,eth1", "TEXT": 'it\'s $HOME "and" `more`\n*'}
ENGINE = Command("decode-0", ("python", "-m", "engine", "--text", "a b"), {**INHERITED, "DYN": "x,y"}, Path("x.log"))


def site(**settings: Any) -> Site:
    return Site.model_validate({"local_path": "/nvme", "shared_path": "/nfs", **settings})


def test_pyxis_arguments_are_rendered_whole() -> None:
    container = {"image": "nvcr.io#nvidia/ai-dynamo/vllm-runtime:1.6.1", "mounts": ["/nfs/models:/models:ro"]}
    step = engine_step(site(container=container), ENGINE, INHERITED)
    assert step.options == (
        "--container-image=nvcr.io#nvidia/ai-dynamo/vllm-runtime:1.6.1",
        "--container-mounts=/nfs/models:/models:ro,/nvme:/nvme,/nfs:/nfs",
        "--container-readonly",
        "--no-container-mount-home",
        "--no-container-entrypoint",
    )
    assert step.argv == (
        "bash",
        "--noprofile",
        "--norc",
        "-c",
        'unset "${!SLURM_@}" "${!SLURMD_@}" "${!PMI_@}" "${!PMIX_@}"\nexec "$@"',
        "dynamo-mlperf",
        "env",
        "HOME=/nvme/engine-home",
        "DYN=x,y",
        *ENGINE.argv,
    )


def test_a_home_that_the_site_or_file_sets_stands() -> None:
    command = Command("d", ("x",), {**INHERITED, "HOME": "/big/home"}, Path("x.log"))
    assert engine_step(site(container={"image": "x"}), command, INHERITED).argv[-3:] == ("env", "HOME=/big/home", "x")


def test_pyxis_writable_with_home_and_mpi() -> None:
    container = {"image": "/nfs/images/engine.sqsh", "writable": True, "home": True}
    step = engine_step(site(container=container, mpi="pmix"), ENGINE, INHERITED)
    assert step.options == (
        "--mpi=pmix",
        "--container-image=/nfs/images/engine.sqsh",
        "--container-mounts=/nvme:/nvme,/nfs:/nfs",
        "--container-writable",
        "--container-mount-home",
        "--no-container-entrypoint",
    )
    assert step.argv == ("env", "DYN=x,y", *ENGINE.argv), "what MPI starts up with is not taken away"


def test_apptainer_arguments_are_rendered_whole() -> None:
    container = {"runtime": "apptainer", "image": "/nfs/engine.sif", "devices": "amd", "mounts": ["/nvme:/nvme"]}
    step = engine_step(site(container={**container, "writable": True}, modules=["apptainer"]), ENGINE, INHERITED)
    assert step.options == ()
    assert step.argv[:4] == ("env", "-i", f"PATH={INHERITED['PATH']}", "HOME=/home/me")
    assert step.argv[4:8] == ("bash", "--noprofile", "--norc", "-c")
    assert step.argv[8].endswith(
        "\nmodule load apptainer || { echo 'failed: module load apptainer' >&2; exit 3; }\nexec \"$@\""
    )
    assert step.argv[9:] == (
        "dynamo-mlperf",
        "apptainer",
        "exec",
        "--cleanenv",
        "--no-home",
        "--writable-tmpfs",
        "--rocm",
        "--bind",
        "/nvme:/nvme",
        "--bind",
        "/nfs:/nfs",
        "/nfs/engine.sif",
        "env",
        "HOME=/nvme/engine-home",
        "DYN=x,y",
        *ENGINE.argv,
    )


def test_without_container_and_lines_it_is_the_plain_step() -> None:
    step = engine_step(site(), ENGINE, INHERITED)
    own = [f"{name}={value}" for name, value in INHERITED.items()]
    assert (step.options, step.argv) == ((), ("env", "-i", *own, "env", "DYN=x,y", *ENGINE.argv))


def test_a_directory_that_a_mount_covers_is_not_mounted_again() -> None:
    assert mounts(site(container={"image": "x", "mounts": ["/big:/nfs:rw", "/a:/nvmes"]})) == [
        "/big:/nfs:rw",
        "/a:/nvmes",
        "/nvme:/nvme",
    ]


def run(argv: tuple[str, ...], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, env={**INHERITED, **environment}, text=True, capture_output=True, check=False)


SAY = (sys.executable, "-c", "import os, sys, json; print(json.dumps([dict(os.environ), sys.argv[1:]]))")


def test_prologue_lines_set_what_engines_see_and_values_arrive_byte_for_byte() -> None:
    command = Command("d", (*SAY, "a b", "$x; exit 9"), {**INHERITED, **TRICKY}, Path("x"))
    place = site(prologue=["export LD_LIBRARY_PATH=/opt/rocm/lib", "export PATH=/opt/site:$PATH", "ulimit -c 0"])
    done = run(engine_step(place, command, INHERITED).argv, SLURM_CPU_BIND="x", HF_TOKEN="hf_x", LD_LIBRARY_PATH="/z")
    environment, arguments = json.loads(done.stdout)
    assert {name: environment[name] for name in TRICKY} == TRICKY
    assert arguments == ["a b", "$x; exit 9"]
    assert environment["LD_LIBRARY_PATH"] == "/opt/rocm/lib"
    assert environment["PATH"] == f"/opt/site:{INHERITED['PATH']}"
    assert not {"SLURM_CPU_BIND", "HF_TOKEN"} & set(environment)


def test_in_a_pyxis_step_the_variables_of_slurm_are_gone() -> None:
    place = site(container={"image": "x"}, prologue=["export A=1"])
    command = Command("d", SAY, {**INHERITED, **TRICKY}, Path("x"))
    done = run(engine_step(place, command, INHERITED).argv, SLURM_PROCID="0", PMIX_RANK="0", SLURMD_NODENAME="n1")
    environment, _ = json.loads(done.stdout)
    assert {name: environment[name] for name in TRICKY} == TRICKY
    assert environment["A"] == "1"
    assert not {"SLURM_PROCID", "PMIX_RANK", "SLURMD_NODENAME"} & set(environment)


def test_a_prologue_that_fails_ends_the_step_before_the_engine(tmp_path: Path) -> None:
    place = site(prologue=["cat /no/such/file", f"touch {tmp_path}/went-on"])
    done = run(engine_step(place, Command("d", ("touch", f"{tmp_path}/engine"), {}, Path("x")), INHERITED).argv)
    assert done.returncode == 1
    assert "/no/such/file" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_modules_are_loaded_by_the_sites_own_module_command(tmp_path: Path) -> None:
    init = tmp_path / "init" / "bash"
    init.parent.mkdir()
    init.write_text('module() { [ "$2" = here/1.0 ] && export LOADED="$*"; }\n')
    inherited = {**INHERITED, "MODULESHOME": str(tmp_path)}
    command = Command("d", SAY, inherited, Path("x"))
    environment, _ = json.loads(run(engine_step(site(modules=["here/1.0"]), command, inherited).argv).stdout)
    assert environment["LOADED"] == "load here/1.0"
    refused = run(engine_step(site(modules=["gone"]), command, inherited).argv)
    assert (refused.returncode, refused.stderr) == (3, "failed: module load gone\n")


def test_only_engines_start_as_the_site_says() -> None:
    job = SlurmJob("42", ("n1", "n2"), "/home/me")
    boxed = SlurmAllocation(job, site(container={"image": "x.sqsh"}))
    plain = SlurmAllocation(job, site())
    engine = replace(ENGINE, engine=True)
    argv = boxed.step_argv(engine)
    step = engine_step(site(container={"image": "x.sqsh"}), engine, inherited_environment())
    assert argv[0] == "srun"
    assert argv[argv.index("--container-image=x.sqsh") :] == [*step.options, *step.argv]
    environment = [f"{name}={value}" for name, value in ENGINE.env.items()]
    for other in (boxed.step_argv(ENGINE), plain.step_argv(engine), plain.step_argv(ENGINE)):
        assert other[other.index("env") :] == ["env", "-i", *environment, *ENGINE.argv]
