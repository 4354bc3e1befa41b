"""What the nodes of a cluster say, in words: ok, warning, failed, or not checked."""

from __future__ import annotations

from typing import Any

import pytest

from dynamo_mlperf.slurm.checks import Check, node_checks, skew_check, transfer_check, transport, verdict

UCX = (
    "[1795985828.8] [vm:1:0] ucp_worker.c:1991 UCX  INFO    ucp_context_0 intra-node cfg#0 rma(cma/memory)\n"
    "[1795985828.9] [vm:1:0] ucp_worker.c:1991 UCX  INFO    ucp_context_0 self cfg#0 rma_am(tcp/lo)  am(tcp/lo)\n"
    "[1795985829.5] [vm:1:0] ucp_worker.c:1991 UCX  INFO    ucp_context_0 inter-node cfg#1 {lanes}  ka(ud/mlx5_0:1)\n"
)
DOMAIN = {"State": "Completed", "Status": "Success", "CliqueId": "1", "ClusterUUID": "5e0f"}
FAST = {"write_bytes_per_s": 3e9, "read_bytes_per_s": 5e9, "direct": True}


def node(host: str, **changes: Any) -> dict[str, Any]:
    gpu = {"pci": "0008:01:00.0", "name": "NVIDIA GB200", "fabric": DOMAIN, "rdma": "mlx5_0:1"}
    device = {"device": "mlx5_0:1", "state": "ACTIVE", "link": "InfiniBand", "rate": "400 Gb/sec", "path": "/sys"}
    good = {
        "host": host,
        "limits": {"open_files": 1048576, "locked_bytes": -1, "core": 0},
        "gpus": [gpu, gpu],
        "imex_channels": 1,
        "rdma": [device],
        "local": FAST,
        "shared": FAST,
    }
    return {**good, **changes}


def found(*nodes: dict[str, Any], gpus_asked: int = 2) -> dict[str, Check]:
    return {check.name: check for check in node_checks(nodes, gpus_asked=gpus_asked)}


def test_a_good_cluster_is_ok_in_everything() -> None:
    checks = found(node("n1"), node("n2"))
    assert {check.state for check in checks.values()} == {"ok"}
    assert checks["NVLink domain"].found == "1 domain over 2 nodes, IMEX channels on all of them"
    assert checks["RDMA"].found.startswith(
        "n1: 1 active (InfiniBand 400 Gb/sec), nearest: GPU 0 mlx5_0:1, GPU 1 mlx5_0:1; n2"
    )
    assert checks["local disk"].found == "each of 2 nodes at once: written at 3.00 GB/s and read at 5.00 GB/s or more"
    assert verdict(checks.values()) == "ready: 7 ok"


LESS = {"open_files": 1024, "locked_bytes": 65536, "core": 0}
BAD_FABRIC = [{"name": "g", "fabric": {**DOMAIN, "State": "In Progress"}, "rdma": None}] * 2
ALONE = [{"name": "H200", "fabric": {"State": "N/A", "Status": "N/A"}, "rdma": None}] * 2
NO_UUID = [{"name": "H200", "fabric": {**DOMAIN, "ClusterUUID": "00000000-0000"}, "rdma": None}] * 2
DOWN = [{"device": "mlx5_0:1", "state": "DOWN", "link": "InfiniBand", "rate": "10", "path": "/"}]


@pytest.mark.parametrize(
    ("changes", "name", "state", "said"),
    [
        ({"limits": LESS}, "open files", "warning", "1024 on n2, 65536 are wanted"),
        ({"limits": LESS}, "locked memory", "warning", "0 MiB on n2; RDMA registers memory by locking it"),
        ({"local": {"problem": "/nvme: Read-only file system"}}, "local disk", "failed", "n2: /nvme: Read-only"),
        ({"local": {**FAST, "read_bytes_per_s": 1e8}}, "local disk", "warning", "(slowest: n2)"),
        ({"shared": None}, "shared directory", "not checked", "the site names no shared_path"),
        ({"shared": {**FAST, "direct": False}}, "shared directory", "ok", "through the page cache"),
        ({"gpus": []}, "GPUs", "failed", "2 on n1, 0 on n2"),
        ({"gpus": BAD_FABRIC}, "NVLink domain", "failed", "2 of 4 GPUs: State In Progress"),
        ({"imex_channels": None}, "NVLink domain", "warning", "no IMEX channel on n2"),
        ({"rdma": DOWN}, "RDMA", "failed", "not active: n2 mlx5_0:1"),
    ],
)
def test_what_one_node_lacks_is_named(changes: dict[str, Any], name: str, state: str, said: str) -> None:
    check = found(node("n1"), node("n2", **changes))[name]
    assert check.state == state
    assert said in check.found
    assert bool(check.action) == (state in {"warning", "failed"})


def test_what_is_not_there_is_not_checked() -> None:
    bare: dict[str, Any] = {"gpus": [], "rdma": [], "imex_channels": None, "limits": {**LESS, "open_files": 65536}}
    checks = found(node("n1", **bare), node("n2", **bare), gpus_asked=0)
    assert {name: check.state for name, check in checks.items() if check.state != "ok"} == dict.fromkeys(
        ("GPUs", "NVLink domain", "RDMA"), "not checked"
    )
    assert checks["locked memory"].state == "ok", "without RDMA nobody locks much"
    assert found(node("n1", gpus=[]), gpus_asked=4)["GPUs"].state == "warning"
    for gpus in (ALONE, NO_UUID):
        assert found(node("n1", gpus=gpus))["NVLink domain"].state == "not checked"


def test_clocks_must_lie_between_question_and_answer() -> None:
    assert (
        skew_check([("n1", 10.0, 10.1, 10.4), ("n2", 10.0, 10.4, 10.4)]).found == "all nodes within 0.4 s of the first"
    )
    late = skew_check([("n1", 10.0, 10.1, 10.4), ("n2", 10.0, 55.0, 10.4)])
    assert (late.state, late.found) == ("failed", "n2 is 44.6 s or more away from the first node")
    assert skew_check([("n1", 10.0, 5.0, 10.4)]).state == "failed"


@pytest.mark.parametrize(
    ("lanes", "by"),
    [
        ("rma(rc_mlx5/mlx5_0:1)  am(rc_mlx5/mlx5_0:1)", "rc_mlx5/mlx5_0:1"),
        ("rma_am(tcp/eth0)  amo_am(tcp/eth0)  am(tcp/eth0 tcp/eth1)", "tcp/eth0"),
        ("am(tcp/eth0)", "tcp/eth0"),
        ("tag(x)", ""),
    ],
)
def test_the_transport_is_what_ucx_connects_nodes_by(lanes: str, by: str) -> None:
    assert transport(UCX.format(lanes=lanes)) == by


def test_a_transfer_in_words() -> None:
    result = {"bytes": 64 * 2**20, "seconds": [0.1, 0.01, 0.02], "whole": True}
    good = transfer_check(result, UCX.format(lanes="rma(rc_mlx5/mlx5_0:1)"), rdma=True)
    assert (good.state, good.found) == ("ok", "64 MiB at 6.71 GB/s by rc_mlx5/mlx5_0:1")
    slow = transfer_check(result, UCX.format(lanes="rma_am(tcp/eth0)"), rdma=True)
    assert (slow.state, "though there is RDMA" in slow.found) == ("warning", True)
    assert transfer_check(result, UCX.format(lanes="rma_am(tcp/eth0)"), rdma=False).state == "ok"
    assert transfer_check({**result, "whole": False}, "", rdma=False).state == "failed"
    failed = transfer_check(None, "Traceback\nModuleNotFoundError: No module named 'nixl'\n\n", rdma=False)
    assert (failed.state, failed.found) == ("failed", "ModuleNotFoundError: No module named 'nixl'")
    assert transfer_check(None, "", rdma=False).found == "it said nothing"
