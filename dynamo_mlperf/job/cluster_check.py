"""`doctor` inside a job of its own: what the nodes are, whether they reach each other, how engines start there."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import DynamoMlperfError, SetupError, Stopped
from dynamo_mlperf.files import RunPaths, write_json
from dynamo_mlperf.job.agents import NodeAgents
from dynamo_mlperf.job.nodes import bind_node
from dynamo_mlperf.process.command import RUN_VARIABLE, Command, inherited_environment
from dynamo_mlperf.process.machine import run_mark
from dynamo_mlperf.process.signals import StopFlag
from dynamo_mlperf.record import EventLog
from dynamo_mlperf.serving.supervisor import Layer, Supervisor
from dynamo_mlperf.serving.workers import CPU_STARTUP
from dynamo_mlperf.slurm.allocation import SlurmAllocation
from dynamo_mlperf.slurm.checks import (
    FAILED,
    NOT_CHECKED,
    OK,
    Check,
    node_checks,
    skew_check,
    transfer_check,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from dynamo_mlperf.process.machine import MachineFacts
    from dynamo_mlperf.site import Site
    from dynamo_mlperf.slurm.allocation import SlurmJob

FINDINGS = "findings.json"
PROBE_S = 120.0
ENGINE_S = 600.0
"""How long a container may take to start: the first start of an image on a node may unpack it."""
TRANSFER_S = 180.0
TRANSFER_MIB = 64
BLOCKS_TRIED = 20


@dataclass
class ClusterCheck:
    """The checks of one job; each that cannot be made says why, and the next is made all the same.

    Attributes:
        job: The job that we run in.
        site: The site's settings.
        out: Directory for logs and findings; every node sees it.
        mib: How much is written to each disk.
        gpus: GPUs that were asked for on each node.
        checks: What was found so far.
    """

    job: SlurmJob
    site: Site
    out: Path
    mib: int
    gpus: int
    checks: list[Check] = field(default_factory=list)

    def run(self) -> list[Check]:
        """Make all checks, and write them to `findings.json`, whatever happens."""
        stop = StopFlag()
        stop.install()
        self.paths = RunPaths(self.out)
        self.paths.logs.mkdir(parents=True, exist_ok=True)
        self.run_id = f"doctor-{self.job.job_id}"
        self.allocation = SlurmAllocation(self.job, self.site)
        events = EventLog(self.paths)
        self.supervisor = Supervisor(self.allocation, self.paths, events, stop)
        self.agents = NodeAgents(self.supervisor, self.paths, events, self.run_id)
        try:
            self._all()
        finally:
            self.supervisor.stop_all()
            write_json(self.out / FINDINGS, {"checks": [check.as_json() for check in self.checks]})
        return self.checks

    def _all(self) -> None:
        facts: dict[int, MachineFacts] = {}
        self._try("nodes", lambda: facts.update(self._start_agents()))
        if not facts:
            return
        self._try("addresses", lambda: self._bind(facts))
        port = self._try("connections", self._connect)
        self._try("clocks", self._clocks)
        probes = self._try("node probe", self._probe) or []
        self._try("engine start", self._engine)
        rdma = any(node["rdma"] for node in probes)
        gpus = any(node["gpus"] for node in probes)
        self._try("NIXL transfer", lambda: self._transfer(port, rdma=rdma, plain=not rdma and not gpus))

    def _try(self, name: str, make: Callable[[], Any]) -> Any:  # noqa: ANN401 - what the check hands on
        """Make a check; what stops it becomes what it found."""
        try:
            return make()
        except Stopped:
            raise
        except (DynamoMlperfError, OSError) as problem:
            action = problem.action if isinstance(problem, DynamoMlperfError) else ""
            what = problem.what if isinstance(problem, DynamoMlperfError) else str(problem)
            self.checks.append(Check(name, FAILED, " ".join(what.split()), action))
            return None

    def _start_agents(self) -> dict[int, MachineFacts]:
        self.agents.start(self.allocation.nodes, Path(self.site.local_path))
        facts = self.agents.facts(lambda _text: None)
        cores = sorted({found.cores for found in facts.values()})
        hosts = ", ".join(found.host for found in facts.values())
        said = f"{len(facts)} answer ({hosts}), {' or '.join(map(str, cores))} cores each"
        self.checks.append(Check("nodes", OK, said))
        return facts

    def _bind(self, facts: Mapping[int, MachineFacts]) -> None:
        nodes = [bind_node(node, facts[node.position], self.site.interface) for node in self.allocation.nodes]
        self.allocation.bind(nodes)
        said = ", ".join(f"{node.host} {node.address} ({node.interface})" for node in nodes)
        self.checks.append(Check("addresses", OK, said))

    def _connect(self) -> int:
        """Each node connects to each other; returns a port that is ours on all of them."""
        nodes = self.allocation.nodes
        if not all(node.address for node in nodes):
            raise SetupError("the nodes' addresses are not known", "see the check of addresses")
        port = self._claim()
        count = len(nodes) * (len(nodes) - 1)
        if not count:
            self.checks.append(Check("connections", NOT_CHECKED, "one node has no other; use --nodes 2 or more"))
            return port
        self.agents.check_connections(port, nodes)
        self.checks.append(Check("connections", OK, f"all {count}, from each node to each other, at port {port}"))
        return port

    def _claim(self) -> int:
        ports = self.site.ports
        first = int(self.job.job_id) * 7 % max(1, len(ports) - BLOCKS_TRIED)
        refused: dict[int, str] = {}
        for port in ports[first : first + BLOCKS_TRIED]:
            refused = self.agents.claim(range(port, port + 1), self.allocation.nodes)
            if not refused:
                return port
        held = "; ".join(f"node {position}: {why}" for position, why in refused.items())
        raise SetupError(f"no port of {BLOCKS_TRIED} tried is free on every node ({held})", "widen port_range")

    def _clocks(self) -> None:
        before = time.time()
        answers = self._on_each("clock", ("date", "+%s.%N"), PROBE_S, "asking for the time")
        after = time.time()
        clocks = [
            (node.host, before, float(text), after) for node, text in zip(self.allocation.nodes, answers, strict=True)
        ]
        self.checks.append(skew_check(clocks))

    def _probe(self) -> list[dict[str, Any]]:
        words = (self.site.local_path, self.site.shared_path or "", str(self.mib))
        argv = (sys.executable, "-m", "dynamo_mlperf.process.node_probe", *words)
        found = [json.loads(text) for text in self._on_each("probe", argv, PROBE_S, "the probe of the nodes")]
        self.checks += node_checks(found, gpus_asked=self.gpus)
        return found

    def _engine(self) -> None:
        """Whether the engines' Python starts as an engine would: in the container, behind modules and prologue."""
        code = "import sys; sys.stdout.write(sys.version.split()[0])"
        argv = (self.site.engine_python, "-c", code)
        began = time.monotonic()
        versions = self._on_each("engine", argv, ENGINE_S, "starting the engines' Python", engine=True)
        took = time.monotonic() - began
        container = self.site.container
        where = f"in {container.runtime} {container.image}" if container else "on the host"
        said = f"Python {' or '.join(sorted(set(versions)))} {where}, on all nodes after {took:.1f} s"
        self.checks.append(Check("engine start", OK, said))
        if container is None:
            self.checks.append(Check("container", NOT_CHECKED, "the site names none"))

    def _on_each(
        self, name: str, argv: tuple[str, ...], timeout_s: float, what: str, *, engine: bool = False
    ) -> list[str]:
        """What a program prints on each node.

        Raises:
            SetupError: It failed on one, or took too long.
        """
        commands = [
            self._command(f"{name}-{node.position}", argv, node.position, engine=engine)
            for node in self.allocation.nodes
        ]
        tasks = [self.supervisor.start(command, Layer.TASK, may_end=True) for command in commands]
        self.supervisor.wait_tasks(tasks, timeout_s, what, lambda _left: None)
        return [command.output.read_text().strip() if command.output else "" for command in commands]

    def _command(self, name: str, argv: tuple[str, ...], position: int, *, engine: bool, **environment: str) -> Command:
        own = {RUN_VARIABLE: run_mark(self.run_id), "PYTHONUNBUFFERED": "1"}
        return Command(
            name,
            argv,
            {**inherited_environment(), **own, **environment, **(self.site.environment if engine else {})},
            self.paths.log_of(name),
            node=position,
            output=self.paths.logs / f"{name}.out",
            engine=engine,
        )

    def _transfer(self, port: int | None, *, rdma: bool, plain: bool) -> None:
        """One node reads the memory of another by NIXL, started as engines are.

        Raises:
            ServingError: No end in time.
        """
        nodes = self.allocation.nodes
        if port is None or len(nodes) < 2:  # noqa: PLR2004 - one to give, one to take
            why = "it needs two nodes" if len(nodes) < 2 else "the nodes do not reach each other"  # noqa: PLR2004
            self.checks.append(Check("NIXL transfer", NOT_CHECKED, why))
            return
        program = (CPU_STARTUP / "nixl_transfer.py").read_text()
        ucx = {"UCX_LOG_LEVEL": "info"}
        if plain:  # as engines on the CPU move it: they, too, share no memory between nodes
            ucx |= {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": nodes[0].interface}
        place = (nodes[1].address, str(port), str(TRANSFER_MIB))
        give, take = (
            self._command(
                f"nixl-{role}", (self.site.engine_python, "-c", program, role, *place), at, engine=True, **ucx
            )
            for role, at in (("give", 1), ("take", 0))
        )
        children = [self.supervisor.start(command, Layer.TASK, may_end=True) for command in (give, take)]
        self.supervisor.wait_for(
            lambda: (
                True if any(child.poll() not in (None, 0) for child in children) or children[1].poll() == 0 else None
            ),
            TRANSFER_S,
            lambda: f"no end of a NIXL transfer after {TRANSFER_S:g} s",
        )
        text = take.output.read_text() if take.output else ""
        logs = "\n".join(path.read_text(errors="replace") for path in (give.log, take.log))
        result = next((json.loads(line) for line in text.splitlines() if line.startswith("{")), None)
        self.checks.append(transfer_check(result, f"{logs}\n{text}", rdma=rdma))
