"""What a controller runs on: nodes by position, and a way to start a process on one of them."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from dynamo_mlperf.process.child import Child, adopt_orphans, kill_descendants

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynamo_mlperf.errors import SetupError
    from dynamo_mlperf.process.command import Command

SETTLE_S = 1.5
"""How long processes that an ended one left behind may take to end by themselves."""
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Node:
    """A node of the allocation.

    Attributes:
        position: 0-based place in the allocation.
        host: Its name.
        address: The address that its services bind to and advertise; empty until it is known.
        interface: The network interface that carries the address.
        disk: Names the local disk: nodes that share one (virtual nodes of a laptop) are staged once.
    """

    position: int
    host: str
    address: str
    interface: str
    disk: str


class Allocation(Protocol):
    """Nodes, and processes on them. One implementation per kind of place; the controller knows only this."""

    kind: str
    nodes: tuple[Node, ...]
    shares_memory: bool
    """Whether all nodes are one machine, where KV cache may move through shared memory."""

    start_s: float
    """How long a start may take beside what the program itself needs; a deadline for an answer of it adds this."""

    def bind(self, nodes: Sequence[Node]) -> None:
        """Take in the nodes with the addresses that were found on them."""
        ...

    def start(self, command: Command) -> Child:
        """Start the command on its node."""
        ...

    def refusal(self, child: Child) -> SetupError | None:
        """Why the place did not start the program of one that has ended; None where it did."""
        ...

    def send(self, children: Sequence[Child], number: signal.Signals) -> None:
        """Send a signal to all of them at once."""
        ...

    def sweep(self) -> list[str]:
        """Kill whatever of ours still runs; returns what was found."""
        ...

    def describe(self) -> str:
        """For people: what and where."""
        ...


class LocalAllocation:
    """This machine alone: each service a child process, nodes virtual, all on the loopback address."""

    kind = "local"
    shares_memory = True
    start_s = 0.0

    def __init__(self, nodes: int) -> None:
        adopt_orphans()
        self.nodes = tuple(Node(position, "localhost", LOOPBACK, "lo", "local") for position in range(nodes))

    def bind(self, nodes: Sequence[Node]) -> None:
        """Take in the nodes; their addresses do not change here."""
        self.nodes = tuple(nodes)

    def start(self, command: Command) -> Child:
        """Start the command as a child of this process, whichever virtual node it belongs to."""
        return Child(command, command.argv, dict(command.env))

    def refusal(self, child: Child) -> SetupError | None:  # noqa: ARG002 - of the protocol
        """None: what cannot be started here is said by `start`."""
        return None

    def send(self, children: Sequence[Child], number: signal.Signals) -> None:
        """Signal each child; SIGKILL goes to its whole process group, once those that it left have had a moment.

        What an engine leaves behind when it ends is Python's resource tracker: it frees shared memory, then ends.
        """
        until = time.monotonic() + SETTLE_S
        while number is signal.SIGKILL and time.monotonic() < until:
            if not any(child.poll() is not None and child.left_behind() for child in children):
                break
            time.sleep(0.05)
        for child in children:
            if number is signal.SIGKILL:
                child.kill_session()
            else:
                child.send(number)

    def sweep(self) -> list[str]:
        """Kill all descendants that are left, orphans included."""
        return kill_descendants()

    def describe(self) -> str:
        """For people: what and where."""
        return f"this machine, {len(self.nodes)} virtual node{'s' if len(self.nodes) != 1 else ''}"
