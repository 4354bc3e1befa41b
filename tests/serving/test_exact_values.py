"""Values of a topology file reach a worker byte for byte (R42): commas, quotes, blanks, `$`, line breaks, JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dynamo_mlperf.process.allocation import Allocation, LocalAllocation, Node
from dynamo_mlperf.process.child import Child
from dynamo_mlperf.serving.endpoints import Endpoints
from dynamo_mlperf.serving.workers import NodeFacts, WorkerFacts, launch
from dynamo_mlperf.slurm.allocation import SlurmAllocation, SlurmJob
from dynamo_mlperf.topology.plan import make_plan
from dynamo_mlperf.topology.spec import parse_topology

ENGINE = """#!/bin/sh
cat /proc/$$/cmdline >"$HERE/argv.part"
cat /proc/$$/environ >"$HERE/env.part"
mv "$HERE/argv.part" "$HERE/argv"
mv "$HERE/env.part" "$HERE/env"
"""
SRUN = """#!/bin/sh
while [ "$1" != env ]; do shift; done
exec "$@"
"""
END_S = 120.0
NASTY = 'a,b "c" \'d\' $HOME `id` \\ {"x": [1, 2]}\n\ttwo=3;#%&*!'
TEXTS = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")) | st.sampled_from("\n\t,'\"$\\ ={}"), max_size=40
)
JSONS = st.dictionaries(TEXTS, TEXTS | st.integers(-9, 9) | st.booleans() | st.lists(TEXTS, max_size=2), max_size=3)


def worker(env: Mapping[str, str], args: Mapping[str, Any], engine: Path, here: Path) -> WorkerFacts:
    topology = parse_topology(
        yaml.safe_dump(
            {
                "schema": 1,
                "name": "one",
                "nodes": {"count": 1, "gpus": 1},
                "model": {"name": "tiny", "weights": {"path": "/models/tiny"}},
                "engine": "vllm",
                "roles": {"aggregated": {"workers": 1, "args": dict(args), "env": dict(env)}},
                "measure": {"benchmark": "qwen3-vl-235b-a22b", "scenario": "Interactive", "target_qps": 1},
            }
        )
    )
    endpoints = Endpoints(make_plan(topology), [Node(0, "n1", "10.0.0.1", "eth0", "n1")], 25000, "one-x", "tiny-x")
    node = NodeFacts(0, Path("/nvme/tiny"), {"PATH": "/usr/bin:/bin", "HERE": str(here)}, threads=1)
    (process,) = endpoints.processes
    return WorkerFacts(topology, endpoints, process, (node,), str(engine), here, here, shares_memory=False)


def arrived(child: Child, here: Path) -> tuple[list[str], dict[str, str]]:
    """What the engine saw: its arguments after its own path, and its environment."""
    deadline = time.monotonic() + END_S
    while child.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    argv = (here / "argv").read_bytes().decode().split("\0")[2:-1]
    entries = (entry.split("=", 1) for entry in (here / "env").read_bytes().decode().split("\0") if entry)
    return argv, dict(entries)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An engine that writes down how it was started, and an srun that starts what it is given right here."""
    directory = tmp_path_factory.mktemp("programs")
    for name, text in (("engine", ENGINE), ("srun", SRUN)):
        (directory / name).write_text(text)
        (directory / name).chmod(0o755)
    return directory


@pytest.fixture(scope="module")
def allocations(programs: Path) -> dict[str, Allocation]:
    """Both kinds. The one of Slurm finds our srun, and inherits what a caller's shell may hold."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{programs}:/usr/bin:/bin")
        job = SlurmJob("42", ("n1",), "/")
        return {"local": LocalAllocation(1), "slurm": SlurmAllocation(job)}


@pytest.mark.parametrize("kind", ["local", "slurm"])
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@example(value=NASTY, flag=NASTY, options={NASTY: [NASTY, 1]})
@given(value=TEXTS, flag=TEXTS, options=JSONS)
def test_values_arrive_byte_for_byte_and_nothing_else_does(
    kind: str,
    *,
    value: str,
    flag: str,
    options: dict[str, Any],
    programs: Path,
    allocations: dict[str, Allocation],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    for name, leak in (("HF_TOKEN", "hf_secret"), ("LD_LIBRARY_PATH", "/host"), ("SLURM_CPU_BIND", "mask_cpu:0x1")):
        monkeypatch.setenv(name, leak)
    facts = worker(
        {"UCX_NET_DEVICES": value}, {"some-flag": flag, "some-options": options}, programs / "engine", tmp_path
    )
    (command,) = launch(facts).commands
    argv, env = arrived(allocations[kind].start(command), tmp_path)
    assert argv == list(command.argv[1:])
    assert argv[argv.index("--some-flag") + 1] == flag
    assert json.loads(argv[argv.index("--some-options") + 1]) == options
    assert env["UCX_NET_DEVICES"] == value
    assert {name: env[name] for name in command.env} == dict(command.env)
    assert env.keys() - command.env.keys() <= {"PWD", "OLDPWD", "SHLVL", "_"}
