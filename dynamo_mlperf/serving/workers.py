"""Engine processes of a deployment: which builder makes their command lines, and what cannot be launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.process.command import Command
from dynamo_mlperf.serving.engines.facts import Builder, NodeFacts, WorkerFacts, flags
from dynamo_mlperf.serving.engines.mocker import mocker
from dynamo_mlperf.serving.engines.sglang import sglang
from dynamo_mlperf.serving.engines.trtllm import dynamo_trtllm, trtllm_serve
from dynamo_mlperf.serving.engines.vllm import CPU_STARTUP, vllm
from dynamo_mlperf.topology.engines import degree_problem, degrees_problem
from dynamo_mlperf.topology.numa import core_list

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from dynamo_mlperf.topology.plan import Plan, Worker
    from dynamo_mlperf.topology.spec import Topology

__all__ = ["CPU_STARTUP", "Launch", "NodeFacts", "WorkerFacts", "check_launchable", "flags", "launch", "nodes_of"]

_BUILDERS: Mapping[tuple[str, str], Builder] = {
    ("vllm", "dynamo"): vllm,
    ("mocker", "dynamo"): mocker,
    ("sglang", "dynamo"): sglang,
    ("trtllm", "dynamo"): dynamo_trtllm,
    ("trtllm", "trtllm-serve"): trtllm_serve,
}
"""By engine and server."""


@dataclass(frozen=True)
class Launch:
    """How an engine process starts.

    Attributes:
        commands: One per node of the worker, that of rank 0 first; the end of any is the worker's end.
        files: Text of files that must be there before, by path.
    """

    commands: tuple[Command, ...]
    files: Mapping[Path, str]


def check_launchable(topology: Topology, plan: Plan) -> None:
    """Refuse, before anything starts, what can be planned but not launched.

    Raises:
        ConfigError: The engine does not do that with these degrees, on this device, or over several nodes.
    """
    if topology.device == "cpu" and topology.engine not in {"vllm", "mocker"}:
        raise ConfigError(
            f"engine: {topology.engine} runs on GPUs alone; the file says device: cpu",
            "write engine: vllm or mocker for a machine without GPUs, or device: cuda",
        )
    for name, role in topology.roles.present():
        problem = degree_problem(topology.engine, role)
        if problem is not None:
            what, _, action = problem.partition("; ")
            raise ConfigError(f"roles.{name}: {what}", action)
        if topology.server != "dynamo" and role.on_worker_loss != "fail":
            raise ConfigError(
                f"roles.{name}.on_worker_loss: {role.on_worker_loss} needs a frontend that sends requests elsewhere",
                "write on_worker_loss: fail, or server: dynamo",
            )
        if topology.server != "dynamo" and role.drop_stragglers:
            raise ConfigError(
                f"roles.{name}.drop_stragglers needs the counters of Dynamo's workers",
                "leave drop_stragglers out, or write server: dynamo",
            )
    apart = degrees_problem(topology)
    if apart is not None:
        raise ConfigError(apart, "give prefill and decode degrees of which one divides the other")
    _check_width(topology, plan)


def _check_width(topology: Topology, plan: Plan) -> None:
    wide = [worker for worker in plan.workers if len(worker.nodes) > 1]
    if wide and topology.engine == "trtllm":
        raise ConfigError(
            f"{wide[0].name} takes {len(wide[0].nodes)} nodes; trtllm spreads a worker over nodes as one MPI world "
            "(srun --mpi, one task per GPU), and this version starts one process per node",
            "lower tensor_parallel to the GPUs of a node, or use engine: vllm or sglang",
        )
    uneven = [worker for worker in wide if _uneven(topology, worker)]
    if uneven:
        raise ConfigError(
            f"{uneven[0].name}: ranks of {_role_degrees(topology, uneven[0])} do not end where nodes do",
            "choose tensor_parallel so that it divides the GPUs of a node, or is a multiple of them",
        )


def _role_degrees(topology: Topology, worker: Worker) -> str:
    role = dict(topology.roles.present())[worker.role]
    return f"tensor_parallel {role.tensor_parallel}, data_parallel {role.data_parallel}"


def _uneven(topology: Topology, worker: Worker) -> bool:
    """Whether a data-parallel rank would begin on one node and end on another without filling them."""
    role = dict(topology.roles.present())[worker.role]
    here, group = topology.nodes.gpus, role.tensor_parallel
    return topology.engine == "vllm" and role.data_parallel > 1 and bool(here % group and group % here)


def nodes_of(topology: Topology, worker: Worker) -> tuple[int, ...]:
    """Positions of the nodes on which a process of the worker starts, that of rank 0 first."""
    return (worker.node,) if topology.engine == "mocker" else tuple(dict.fromkeys(slot.node for slot in worker.ranks))


def launch(facts: WorkerFacts) -> Launch:
    """How the engine process of a topology that `check_launchable` lets pass starts."""
    builder = _BUILDERS[facts.topology.engine, facts.topology.server]
    commands: list[Command] = []
    files: dict[Path, str] = {}
    for node_rank, node in enumerate(facts.nodes):
        start = builder(facts, node_rank)
        name = facts.process.name if node_rank == 0 else f"{facts.process.name}.{node_rank}"
        commands.append(
            Command(
                name,
                (*_bound(node.cores), *start.argv),
                {**node.environment, **start.env, **facts.role.env},
                facts.logs / f"{name}.log",
                node=node.position,
                engine=True,
            )
        )
        files |= start.files
    return Launch(tuple(commands), files)


def _bound(cores: tuple[int, ...]) -> tuple[str, ...]:
    """What binds a worker to its cores; memory then comes from their NUMA nodes, as Linux takes the nearest."""
    return ("taskset", "--cpu-list", core_list(sorted(cores))) if cores else ()
