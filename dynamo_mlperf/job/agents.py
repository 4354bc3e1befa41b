"""The run's agents, one on each node of a Slurm job, and what they are asked; a local run needs none."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.process.command import RUN_VARIABLE, Command, inherited_environment
from dynamo_mlperf.process.machine import MachineFacts, facts_from_json, run_mark
from dynamo_mlperf.serving.supervisor import Layer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from dynamo_mlperf.files import RunPaths
    from dynamo_mlperf.process.allocation import Node
    from dynamo_mlperf.process.child import Child
    from dynamo_mlperf.record import EventLog
    from dynamo_mlperf.serving.supervisor import Supervisor

ANSWER_S = 60.0
SHOWN_PAIRS = 5


class NodeAgents:
    """Starts them, asks all of them at once, and reads their answers."""

    def __init__(self, supervisor: Supervisor, paths: RunPaths, events: EventLog, run_id: str) -> None:
        self._supervisor = supervisor
        self._paths = paths
        self._events = events
        self._run_id = run_id
        self._agents: dict[int, _Agent] = {}
        self._hosts: dict[int, str] = {}
        self.scratch: dict[int, str] = {}
        """By node position: a directory there that goes away with the run; empty where there is none."""

    def start(self, nodes: Sequence[Node], local_path: Path) -> None:
        """Start one on each node; what it says first is read by `facts`."""
        for node in nodes:
            name = f"node-{node.position}"
            command = Command(
                name,
                (sys.executable, "-m", "dynamo_mlperf.process.node_agent", str(local_path)),
                {**inherited_environment(), RUN_VARIABLE: run_mark(self._run_id)},
                self._paths.log_of(name),
                node=node.position,
                output=self._paths.logs / f"{name}.jsonl",
                agent=True,
            )
            self._hosts[node.position] = node.host
            self._agents[node.position] = _Agent(self._supervisor.start(command, Layer.AGENT, may_end=True))

    def facts(self, say: Callable[[str], None]) -> dict[int, MachineFacts]:
        """The nodes' facts by position, once all have spoken.

        Raises:
            SetupError: One ended, or did not speak in time.
        """
        answers = self._answers("the node check", say)
        self.scratch = {position: str(answer["scratch"]) for position, answer in answers.items()}
        return {position: facts_from_json(answer["facts"]) for position, answer in answers.items()}

    def claim(self, ports: range, nodes: Sequence[Node]) -> dict[int, str]:
        """Hold the ports on every node; returns why not, by position, where they are taken: then none are held."""
        for node in nodes:
            self._agents[node.position].say(
                {"do": "claim", "first": ports.start, "end": ports.stop, "address": node.address}
            )
        answers = self._answers("claiming ports")
        return {position: f"{a['taken']} ({a['by']})" for position, a in answers.items() if "taken" in a}

    def check_connections(self, port: int, nodes: Sequence[Node]) -> None:
        """Connect from each node to each other, all at once, at the last claimed port; then leave it to the job.

        Raises:
            SetupError: Names the pairs between which there is no way.
        """
        for node in nodes:
            others = [(other.address, port) for other in nodes if other.position != node.position]
            self._agents[node.position].say({"do": "connect", "to": others})
        answers = self._answers("connecting each node to each other")
        by_place = {f"{node.address}:{port}": node for node in nodes}
        failed = [
            f"{nodes[position].host} ({nodes[position].address}) to {by_place[place].host} ({place}): {why}"
            for position, answer in answers.items()
            for place, why in answer["failed"].items()
        ]
        if failed:
            more = f"; and {len(failed) - SHOWN_PAIRS} more" if len(failed) > SHOWN_PAIRS else ""
            raise SetupError(
                f"{len(failed)} of {len(nodes) * (len(nodes) - 1)} connections between nodes fail: "
                + "; ".join(failed[:SHOWN_PAIRS])
                + more,
                "set interface in the site file to the network that joins the nodes, or leave a node out (--exclude)",
            )
        for node in nodes:
            self._agents[node.position].say({"do": "quiet"})
        self._answers("freeing the port of the connection check")

    def watch_head(self, nodes: Sequence[Node]) -> None:
        """Have each end what runs there when the first node, where the controller is, loses its power."""
        if len(nodes) < 2:  # noqa: PLR2004 - nobody else would notice
            return
        head, *others = nodes
        self._agents[head.position].say({"do": "open", "address": head.address})
        port = self._answers("watching the first node", only=(head.position,))[head.position]["port"]
        for node in others:
            self._agents[node.position].say({"do": "watch", "address": head.address, "port": port})
        answers = self._answers("watching the first node", only=[node.position for node in others])
        blind = [str(position) for position, answer in answers.items() if not answer["watching"]]
        if blind:
            told = f"node {', '.join(blind)} cannot watch the first one: if that loses power, only Slurm's timeout"
            self._events.add("warning", what=f"{told} ends the engines there")

    def tidy(self) -> dict[int, list[str]]:
        """Have them note what the engines map, and remove what ended ones left; returns those paths by position."""
        if not self._agents:
            return {}
        for agent in self._agents.values():
            agent.say({"do": "tidy"})
        answers = self._answers("removing what ended engines left in /dev/shm")
        return {position: list(answer["removed"]) for position, answer in answers.items()}

    def look(self) -> None:
        """Have them note what the engines map before those are stopped; nobody waits for it."""
        for agent in self._agents.values():
            agent.say({"do": "look"})

    def record_end(self) -> None:
        """Put on record what they removed at their end."""
        for position, agent in self._agents.items():
            last = agent.last()
            if last.get("removed"):
                self._events.add("shared_memory_removed", node=position, paths=last["removed"])
            if last.get("left"):
                self._events.add("left_running", node=position, pids=last["left"])

    def _answers(
        self, what: str, say: Callable[[str], None] | None = None, only: Collection[int] | None = None
    ) -> dict[int, Mapping[str, Any]]:
        """The next answer of each, or of some."""
        found: dict[int, Mapping[str, Any]] = {}
        asked = {at: agent for at, agent in self._agents.items() if only is None or at in only}

        def turn() -> bool | None:
            for position, agent in asked.items():
                if position not in found:
                    answer = agent.next_answer()
                    if answer is not None:
                        found[position] = answer
                    elif agent.child.poll() is not None:
                        cause = self._supervisor.cause_of(agent.child)
                        raise SetupError(f"{what} failed: {cause.what}", cause.action)
            if say is not None:
                say(f"{len(found)} of {len(asked)} nodes looked at")
            return True if len(found) == len(asked) else None

        def late() -> SetupError:
            missing = [position for position in asked if position not in found]
            named = ", ".join(f"node {position} ({self._hosts[position]})" for position in missing[:SHOWN_PAIRS])
            more = f" and {len(missing) - SHOWN_PAIRS} more" if len(missing) > SHOWN_PAIRS else ""
            return SetupError(
                f"{what}: no answer of {named}{more} after {patience_s:g} s",
                f"see whether that node and Slurm are well: scontrol show node {self._hosts[missing[0]]}; or leave it "
                f"out: sbatch --exclude={self._hosts[missing[0]]}",
            )

        patience_s = ANSWER_S + self._supervisor.start_s
        self._supervisor.wait_for(turn, patience_s, late)
        return dict(sorted(found.items()))


class _Agent:
    """One agent: the child that it is to us, and how far its answers are read."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self._read = 0

    def say(self, asked: Mapping[str, Any]) -> None:
        self.child.say(json.dumps(asked) + "\n")

    def next_answer(self) -> Mapping[str, Any] | None:
        if self.child.command.output is None:
            return None
        with self.child.command.output.open("rb") as source:
            source.seek(self._read)
            line = source.readline()
        if not line.endswith(b"\n"):
            return None
        self._read += len(line)
        answer: Mapping[str, Any] = json.loads(line)
        return answer

    def last(self) -> Mapping[str, Any]:
        """The last whole line that was not read yet; empty where there is none."""
        found: Mapping[str, Any] = {}
        while (answer := self.next_answer()) is not None:
            found = answer
        return found
