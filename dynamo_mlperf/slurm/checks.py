"""What the checks of a cluster found, in words: from what its nodes say to ok, warning, failed, or not checked."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

OK, WARNING, FAILED, NOT_CHECKED = "ok", "warning", "failed", "not checked"
LEAST_OPEN_FILES = 65536
"""A frontend holds a connection for each request, a client one more; 10,000 requests in flight need some times that."""
MOST_SKEW_S = 1.0
SLOW_LOCAL_BYTES_PER_S = 500e6
_UNLIMITED = -1
_UCX_PLACE = re.compile(r"(inter|intra)-node cfg#\d+ (.*)")
_UCX_LANE = re.compile(r"(rma|rma_am|am|am_bw|rma_bw)\(([^)]*)\)")


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        name: What.
        state: `ok`, `warning`, `failed`, or `not checked`.
        found: What was found, or why nothing could be.
        action: What to do; empty where there is nothing to.
    """

    name: str
    state: str
    found: str
    action: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)


def node_checks(nodes: Sequence[Mapping[str, Any]], *, gpus_asked: int) -> list[Check]:
    """What the nodes' probes say, node by node in each check."""
    return [
        _open_files(nodes),
        _locked_memory(nodes),
        _disk(nodes, "local", "local disk"),
        _disk(nodes, "shared", "shared directory"),
        _gpus(nodes, gpus_asked),
        _nvlink(nodes),
        _rdma(nodes),
    ]


def _open_files(nodes: Sequence[Mapping[str, Any]]) -> Check:
    least, host = min((_endless(node["limits"]["open_files"]), node["host"]) for node in nodes)
    if least >= LEAST_OPEN_FILES:
        return Check("open files", OK, f"{_count(least)} and more")
    action = "raise LimitNOFILE of slurmd, or PropagateResourceLimitsExcept=NOFILE in slurm.conf"
    return Check("open files", WARNING, f"{_count(least)} on {host}, {LEAST_OPEN_FILES} are wanted", action)


def _locked_memory(nodes: Sequence[Mapping[str, Any]]) -> Check:
    least, host = min((_endless(node["limits"]["locked_bytes"]), node["host"]) for node in nodes)
    if least == float("inf"):
        return Check("locked memory", OK, "unlimited")
    said = f"{_size(least)} on {host}; RDMA registers memory by locking it"
    needed = any(node["rdma"] for node in nodes)
    action = "set LimitMEMLOCK=infinity for slurmd and PropagateResourceLimitsExcept=MEMLOCK"
    return Check(
        "locked memory",
        WARNING if needed else OK,
        said if needed else f"{_size(least)}; no RDMA here",
        action if needed else "",
    )


def _disk(nodes: Sequence[Mapping[str, Any]], key: str, name: str) -> Check:
    if any(node[key] is None for node in nodes):
        return Check(name, NOT_CHECKED, f"the site names no {key}_path")
    broken = [f"{node['host']}: {node[key]['problem']}" for node in nodes if "problem" in node[key]]
    if broken:
        return Check(
            name, FAILED, "; ".join(broken), f"set {key}_path in the site file to a directory that you can write"
        )
    writes = [node[key]["write_bytes_per_s"] for node in nodes]
    reads = [(node[key]["read_bytes_per_s"], node["host"]) for node in nodes]
    cached = "" if all(node[key]["direct"] for node in nodes) else ", through the page cache"
    rates = f"written at {_rate(min(writes))} and read at {_rate(min(reads)[0])} or more"
    said = f"each of {len(nodes)} nodes at once: {rates}{cached}"
    if key == "local" and min(reads)[0] < SLOW_LOCAL_BYTES_PER_S:
        return Check(name, WARNING, f"{said} (slowest: {min(reads)[1]})", "is local_path on the node's own NVMe?")
    return Check(name, OK, said)


def _gpus(nodes: Sequence[Mapping[str, Any]], asked: int) -> Check:
    counts = {node["host"]: len(node["gpus"]) for node in nodes}
    if not any(counts.values()):
        if not asked:
            return Check("GPUs", NOT_CHECKED, "no GPU is visible on any node, and Slurm counts none")
        said = f"no GPU is visible on any node, though Slurm counts {asked} on each"
        return Check(
            "GPUs", WARNING, said, "right where GPUs are only names (devcluster); elsewhere look at the driver"
        )
    names = sorted({gpu["name"] for node in nodes for gpu in node["gpus"]})
    said = f"{', '.join(f'{count} on {host}' for host, count in counts.items())} ({', '.join(names)})"
    good = len(set(counts.values())) == 1 and (not asked or min(counts.values()) >= asked)
    return Check(
        "GPUs",
        OK if good else FAILED,
        said,
        "" if good else f"{asked} asked for on each node; look at `nvidia-smi` there",
    )


def _nvlink(nodes: Sequence[Mapping[str, Any]]) -> Check:
    fabrics = [gpu["fabric"] for node in nodes for gpu in node["gpus"] if gpu["fabric"]]
    if not fabrics:
        return Check("NVLink domain", NOT_CHECKED, "no NVIDIA GPU says anything of an NVLink fabric")
    unready = [fabric for fabric in fabrics if fabric.get("State") != "Completed" or fabric.get("Status") != "Success"]
    alone = unready and all(fabric.get("State") in {"N/A", "Not Supported"} for fabric in fabrics)
    if alone or all(not fabric.get("ClusterUUID", "").strip("0-") for fabric in fabrics):
        return Check("NVLink domain", NOT_CHECKED, "these GPUs join no fabric beyond their node")
    if unready:
        said = (
            f"{len(unready)} of {len(fabrics)} GPUs: State {unready[0].get('State')}, Status {unready[0].get('Status')}"
        )
        return Check(
            "NVLink domain", FAILED, said, "ask an administrator to look at nvidia-fabricmanager and the subnet manager"
        )
    domains = {(fabric.get("ClusterUUID"), fabric.get("CliqueId")) for fabric in fabrics}
    channels = [node["host"] for node in nodes if not node["imex_channels"]]
    said = f"{len(domains)} domain{'s' if len(domains) > 1 else ''} over {len(nodes)} nodes"
    if channels and len(nodes) > 1:
        return Check(
            "NVLink domain",
            WARNING,
            f"{said}; no IMEX channel on {', '.join(channels)}",
            "nodes then share no memory over NVLink: start nvidia-imex, and create its channels",
        )
    return Check("NVLink domain", OK, f"{said}, IMEX channels on all of them")


def _rdma(nodes: Sequence[Mapping[str, Any]]) -> Check:
    if not any(node["rdma"] for node in nodes):
        return Check("RDMA", NOT_CHECKED, "no InfiniBand or RoCE device on any node")
    lines, idle = [], []
    for node in nodes:
        active = [device for device in node["rdma"] if device["state"] == "ACTIVE"]
        idle += [f"{node['host']} {device['device']}" for device in node["rdma"] if device["state"] != "ACTIVE"]
        pairs = [f"GPU {index} {gpu['rdma']}" for index, gpu in enumerate(node["gpus"])]
        kinds = ", ".join(sorted({f"{device['link']} {device['rate']}" for device in active}))
        lines.append(
            f"{node['host']}: {len(active)} active ({kinds})" + (f", nearest: {', '.join(pairs)}" if pairs else "")
        )
    without = [node["host"] for node in nodes if not any(device["state"] == "ACTIVE" for device in node["rdma"])]
    state = FAILED if without else WARNING if idle else OK
    said = "; ".join(lines) + (f"; not active: {', '.join(idle)}" if idle else "")
    return Check("RDMA", state, said, "look at `ibstat` on those nodes" if idle else "")


def skew_check(clocks: Sequence[tuple[str, float, float, float]]) -> Check:
    """Whether clocks agree: each node's time must lie between when we asked it and when it had answered.

    Args:
        clocks: Host, our time before, its time, our time after, in seconds since the epoch.
    """
    off = [(max(before - there, there - after, 0.0), host) for host, before, there, after in clocks]
    worst, host = max(off)
    slack = max(after - before for _, before, _, after in clocks)
    if worst > MOST_SKEW_S:
        return Check(
            "clocks",
            FAILED,
            f"{host} is {worst:.1f} s or more away from the first node",
            "let chrony set the clocks: munge and records rely on them",
        )
    return Check("clocks", OK, f"all nodes within {worst + slack:.1f} s of the first")


def transfer_check(result: Mapping[str, Any] | None, log: str, *, rdma: bool) -> Check:
    """What one NIXL transfer between two nodes showed: its rate, and the transport that UCX chose.

    Args:
        result: What the reading side printed; None when it failed.
        log: Its log, in which UCX tells at level info what it connects by.
        rdma: Whether the nodes have RDMA devices.
    """
    if result is None:
        last = next((line.strip() for line in reversed(log.splitlines()) if line.strip()), "it said nothing")
        return Check(
            "NIXL transfer", FAILED, last, "try another UCX_TLS or UCX_NET_DEVICES under environment in the site file"
        )
    if not result["whole"]:
        return Check(
            "NIXL transfer", FAILED, "what arrived is not what was sent", "report it: no measurement can be trusted"
        )
    by = transport(log)
    rate = _rate(result["bytes"] / min(result["seconds"]))
    said = f"{result['bytes'] / 2**20:.0f} MiB at {rate} by {by or 'a transport that UCX did not name'}"
    if rdma and by and "tcp" in by:
        return Check(
            "NIXL transfer",
            WARNING,
            f"{said}, though there is RDMA",
            "set UCX_TLS and UCX_NET_DEVICES under environment in the site file",
        )
    return Check("NIXL transfer", OK, said)


def transport(log: str) -> str:
    """The transport and device of the last connection between agents that UCX told of; empty where it told of none."""
    places = [found[2] for line in log.splitlines() if (found := _UCX_PLACE.search(line))]
    lanes = dict(_UCX_LANE.findall(places[-1])) if places else {}
    return next((lanes[name] for name in ("rma_bw", "rma", "rma_am", "am_bw", "am") if name in lanes), "")


def verdict(checks: Iterable[Check]) -> str:
    """One line: how many of each, and whether something failed."""
    states = [check.state for check in checks]
    counts = ", ".join(
        f"{states.count(state)} {state}" for state in (OK, WARNING, FAILED, NOT_CHECKED) if state in states
    )
    return f"{'not ready' if FAILED in states else 'ready'}: {counts}"


def _endless(value: int) -> float:
    return float("inf") if value in {_UNLIMITED, 2**64 - 1, 2**63 - 1} else float(value)


def _count(value: float) -> str:
    return "unlimited" if value == float("inf") else f"{value:.0f}"


def _size(value: float) -> str:
    return f"{value / 2**20:.0f} MiB"


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.2f} GB/s"
