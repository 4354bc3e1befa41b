"""Command lines of engine workers. One builder per engine; each gets the same facts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.process.command import Command

if TYPE_CHECKING:
    from collections.abc import Callable

    from dynamo_mlperf.serving.endpoints import Endpoints
    from dynamo_mlperf.topology.plan import Plan, Worker
    from dynamo_mlperf.topology.spec import Role, Topology

_POLITE = ("nice", "-n", "10")
"""CPU engines take every core there is: the load client and the router, which share them, come first."""
CPU_STARTUP = Path(__file__).parent / "cpu_startup"
"""On PYTHONPATH, it adjusts the start-up of a CPU engine."""
_KV_ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}
_DYNAMO_MODES = {"prefill": "prefill", "decode": "decode", "aggregated": "agg"}


@dataclass(frozen=True)
class WorkerFacts:
    """What a worker's command line is made from.

    Attributes:
        topology: The topology.
        endpoints: Addresses and ports.
        worker: The planned worker.
        model_dir: Where the weights lie on its node.
        python: The engines' Python.
        environment: What every process of its node gets.
        log: Its log.
        threads: CPU threads for each rank; only CPU engines use it.
        shares_memory: Whether KV cache may move through shared memory.
    """

    topology: Topology
    endpoints: Endpoints
    worker: Worker
    model_dir: Path
    python: str
    environment: Mapping[str, str]
    log: Path
    threads: int
    shares_memory: bool

    @property
    def role(self) -> Role:
        """The worker's role in the topology file."""
        return dict(self.topology.roles.present())[self.worker.role]


def check_launchable(topology: Topology, plan: Plan) -> None:
    """Refuse, before anything starts, what this version plans but cannot launch.

    Raises:
        ConfigError: The engine, or a worker over several nodes.
    """
    if topology.engine not in _BUILDERS:
        raise ConfigError(
            f"engine: {topology.engine} is planned but cannot be launched by this version",
            f"use engine: {' or '.join(_BUILDERS)}",
        )
    wide = [worker for worker in plan.workers if len(worker.nodes) > 1]
    if wide:
        raise ConfigError(
            f"{wide[0].name} takes {len(wide[0].nodes)} nodes; this version launches workers of one node",
            "lower tensor_parallel to the GPUs of a node",
        )


def worker_command(facts: WorkerFacts) -> Command:
    """The command that starts a worker of a topology that `check_launchable` lets pass."""
    argv, env = _BUILDERS[facts.topology.engine](facts)
    argv += flags(facts.role.args)
    environment = {**facts.environment, **env, **facts.role.env}
    return Command(facts.worker.name, tuple(argv), environment, facts.log, node=facts.worker.node)


def flags(args: Mapping[str, object]) -> list[str]:
    """Engine arguments from a topology file as a flat list.

    True is a bare flag, false its `--no-` form, null is left out, a list is several values, a mapping is JSON.
    """
    out: list[str] = []
    for name, value in args.items():
        if value is None:
            continue
        if isinstance(value, bool):
            out.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, Mapping):
            out += [f"--{name}", json.dumps(value, separators=(",", ":"))]
        elif isinstance(value, list | tuple):
            out += [f"--{name}", *(str(item) for item in value)]
        else:
            out += [f"--{name}", str(value)]
    return out


def _vllm(facts: WorkerFacts) -> tuple[list[str], dict[str, str]]:
    worker, endpoints = facts.worker, facts.endpoints
    host, system_port = endpoints.system(worker)
    role = facts.role
    argv = [
        *(_POLITE if facts.topology.device == "cpu" else ()),
        facts.python,
        "-m",
        "dynamo.vllm",
        "--model",
        str(facts.model_dir),
        "--served-model-name",
        endpoints.model,
        "--disaggregation-mode",
        _DYNAMO_MODES[worker.role],
        "--tensor-parallel-size",
        str(role.tensor_parallel),
        # MLPerf: nothing is cached across queries, neither KV blocks nor processed images.
        "--no-enable-prefix-caching",
        "--mm-processor-cache-gb",
        "0",
    ]
    if role.data_parallel > 1:
        argv += ["--data-parallel-size", str(role.data_parallel)]
    if role.expert_parallel:
        argv += ["--enable-expert-parallel"]
    env = {
        "VLLM_HOST_IP": host,
        "VLLM_NO_USAGE_STATS": "1",
        "DYN_SYSTEM_PORT": str(system_port),
        "VLLM_NIXL_SIDE_CHANNEL_HOST": host,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(endpoints.side_channel_port(worker)),
        "GLOO_SOCKET_IFNAME": endpoints.node_of(worker).interface,
    }
    kv_role = _KV_ROLES.get(worker.role)
    transfer: dict[str, str] = {"kv_connector": "NixlConnector", "kv_role": kv_role} if kv_role else {}
    if facts.topology.device == "cpu":
        transfer = {**transfer, "kv_buffer_device": "cpu"} if transfer else {}
        env |= _cpu_environment(facts)
    else:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(str(slot.gpu) for slot in worker.ranks if slot.node == worker.node)
    if transfer:
        argv += ["--kv-transfer-config", json.dumps(transfer)]
    return argv, env


def _cpu_environment(facts: WorkerFacts) -> dict[str, str]:
    """What vLLM needs on a CPU with more processes than cores: few threads, none pinned; KV over memory or TCP."""
    # Eager means eager: otherwise the first sampled request waits for a C++ compiler, which may not even be there.
    eager = {"TORCHDYNAMO_DISABLE": "1"} if facts.role.args.get("enforce-eager") is True else {}
    return {
        **eager,
        "PYTHONPATH": str(CPU_STARTUP),
        "OMP_NUM_THREADS": str(facts.threads),
        "OMP_WAIT_POLICY": "passive",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "UCX_TLS": "posix,cma,self,tcp" if facts.shares_memory else "tcp,self",
        "UCX_NET_DEVICES": facts.endpoints.node_of(facts.worker).interface,
    }


def _mocker(facts: WorkerFacts) -> tuple[list[str], dict[str, str]]:
    worker = facts.worker
    _, system_port = facts.endpoints.system(worker)
    argv = [
        facts.python,
        "-m",
        "dynamo.mocker",
        "--model-path",
        str(facts.model_dir),
        "--model-name",
        facts.endpoints.model,
        "--disaggregation-mode",
        _DYNAMO_MODES[worker.role],
        "--no-enable-prefix-caching",
    ]
    return argv, {"DYN_SYSTEM_PORT": str(system_port)}


_BUILDERS: dict[str, Callable[[WorkerFacts], tuple[list[str], dict[str, str]]]] = {"vllm": _vllm, "mocker": _mocker}
