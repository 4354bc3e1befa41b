"""Command lines of engines, whole: what a worker is really started with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.process.allocation import Node
from dynamo_mlperf.process.command import Command
from dynamo_mlperf.serving.dynamo import etcd_command, frontend_command, shared_environment
from dynamo_mlperf.serving.endpoints import Endpoints
from dynamo_mlperf.serving.workers import WorkerFacts, check_launchable, flags, worker_command
from dynamo_mlperf.topology.plan import make_plan
from dynamo_mlperf.topology.spec import Topology, parse_topology

TEXT = """
schema: 1
name: two
nodes: {count: 2, gpus: 4}
model: {name: tiny, weights: {path: /models/tiny}}
engine: ENGINE
device: DEVICE
roles:
  prefill: {workers: 1, tensor_parallel: 4, args: {max-num-batched-tokens: 17920}}
  decode: {workers: 1, args: {max-num-seqs: 16}, env: {UCX_RNDV_SCHEME: "get_zcopy,put_zcopy"}}
frontends: {router: kv}
measure: {benchmark: qwen3-vl-235b-a22b, scenario: Interactive, target_qps: 1}
"""
NODES = (Node(0, "a", "10.0.0.1", "ib0", "a"), Node(1, "b", "10.0.0.2", "ib1", "b"))


def deployment(engine: str = "vllm", device: str = "cuda") -> tuple[Topology, Endpoints]:
    topology = parse_topology(TEXT.replace("ENGINE", engine).replace("DEVICE", device))
    return topology, Endpoints(make_plan(topology), NODES, 25000, "two-abc123", "tiny-abc123")


def command(role: str, engine: str = "vllm", device: str = "cuda", *, shares_memory: bool = False) -> Command:
    topology, endpoints = deployment(engine, device)
    worker = next(worker for worker in endpoints.plan.workers if worker.role == role)
    facts = WorkerFacts(
        topology,
        endpoints,
        worker,
        Path("/nvme/tiny"),
        "python",
        {"PATH": "/bin"},
        Path("x.log"),
        threads=3,
        shares_memory=shares_memory,
    )
    return worker_command(facts)


def test_a_prefill_worker_on_gpus() -> None:
    made = command("prefill")
    assert made.argv == (
        "python",
        "-m",
        "dynamo.vllm",
        "--model",
        "/nvme/tiny",
        "--served-model-name",
        "tiny-abc123",
        "--disaggregation-mode",
        "prefill",
        "--tensor-parallel-size",
        "4",
        "--no-enable-prefix-caching",
        "--mm-processor-cache-gb",
        "0",
        "--kv-transfer-config",
        '{"kv_connector": "NixlConnector", "kv_role": "kv_producer"}',
        "--max-num-batched-tokens",
        "17920",
    )
    assert made.env == {
        "PATH": "/bin",
        "VLLM_HOST_IP": "10.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "DYN_SYSTEM_PORT": "25004",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": "25012",
        "GLOO_SOCKET_IFNAME": "ib0",
        "CUDA_VISIBLE_DEVICES": "0,1,2,3",
    }
    assert (made.name, made.node) == ("prefill-0", 0)


def test_a_decode_worker_keeps_the_files_values_as_they_are() -> None:
    made = command("decode")
    assert made.argv[-2:] == ("--max-num-seqs", "16")
    assert made.env["UCX_RNDV_SCHEME"] == "get_zcopy,put_zcopy"
    assert '"kv_role": "kv_consumer"' in made.argv[made.argv.index("--kv-transfer-config") + 1]
    assert made.env["CUDA_VISIBLE_DEVICES"] == "0"
    assert made.node == 1


def test_cpu_adjustments_never_reach_a_gpu_worker() -> None:
    gpu, cpu = command("decode"), command("decode", device="cpu")
    assert "PYTHONPATH" not in gpu.env
    assert (Path(cpu.env["PYTHONPATH"]) / "sitecustomize.py").exists()
    assert cpu.env["OMP_NUM_THREADS"] == "3"
    assert cpu.argv[:4] == ("nice", "-n", "10", "python")
    assert gpu.argv[0] == "python"
    assert "CUDA_VISIBLE_DEVICES" not in cpu.env
    assert cpu.env["UCX_TLS"] == "tcp,self"
    assert "posix" in command("decode", device="cpu", shares_memory=True).env["UCX_TLS"]


def test_a_mocker_worker() -> None:
    made = command("prefill", engine="mocker")
    assert made.argv == (
        "python",
        "-m",
        "dynamo.mocker",
        "--model-path",
        "/nvme/tiny",
        "--model-name",
        "tiny-abc123",
        "--disaggregation-mode",
        "prefill",
        "--no-enable-prefix-caching",
        "--max-num-batched-tokens",
        "17920",
    )
    assert made.env == {"PATH": "/bin", "DYN_SYSTEM_PORT": "25004"}


def test_ports_of_a_deployment_never_meet() -> None:
    topology, endpoints = deployment()
    used = [
        port
        for worker in endpoints.plan.workers
        for port in (
            endpoints.system(worker)[1],
            *range(endpoints.side_channel_port(worker), endpoints.side_channel_port(worker) + len(worker.ranks)),
        )
    ]
    used += [endpoints.frontend(frontend)[1] for frontend in endpoints.plan.frontends]
    used += [int(url.rsplit(":", 1)[1]) for url in (endpoints.etcd_url, endpoints.etcd_peer_url)]
    assert len(set(used)) == len(used)
    assert all(25000 <= port < 25000 + endpoints.plan.ports_needed for port in used)
    assert topology.name == "two"


def test_the_frontend_binds_its_own_address_and_watches_its_own_namespace() -> None:
    topology, endpoints = deployment()
    made = frontend_command(
        topology, endpoints, endpoints.plan.frontends[0], environment={}, python="python", log=Path("f")
    )
    assert made.argv == (
        "python",
        "-m",
        "dynamo.frontend",
        "--http-host",
        "10.0.0.1",
        "--http-port",
        "25002",
        "--router-mode",
        "kv",
        "--namespace",
        "two-abc123",
        "--no-router-kv-events",
    )


def test_every_process_is_told_its_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    topology, endpoints = deployment()
    environment = shared_environment(topology, endpoints, "10.0.0.2", "mark", Path("/run/discovery"))
    hosts = {name: value for name, value in environment.items() if name.endswith("_HOST")}
    assert set(hosts.values()) == {"10.0.0.2"}
    assert len(hosts) == 4
    assert environment["ETCD_ENDPOINTS"] == "http://10.0.0.1:25000"
    assert environment["DYN_NAMESPACE"] == "two-abc123"
    assert "HF_TOKEN" not in environment


def test_etcd_listens_on_one_address_and_gets_little() -> None:
    _, endpoints = deployment()
    made = etcd_command(endpoints, Path("/dev/shm/x"), {"PATH": "/bin", "DYN_LOG": "warn"}, Path("e"))
    assert made.env == {"PATH": "/bin"}
    urls = [made.argv[at + 1] for at, word in enumerate(made.argv) if word.startswith("--listen")]
    assert urls == ["http://10.0.0.1:25000", "http://10.0.0.1:25001"]


def test_flags() -> None:
    args = {"a": True, "b": False, "c": None, "d": [1, 2], "e": {"image": 1}, "f": 0.5, "g": "x y"}
    assert flags(args) == ["--a", "--no-b", "--d", "1", "2", "--e", '{"image":1}', "--f", "0.5", "--g", "x y"]
    assert json.loads(flags(args)[6]) == {"image": 1}


def test_what_is_planned_but_not_launched_is_refused_before_anything_starts() -> None:
    topology, endpoints = deployment(engine="sglang")
    with pytest.raises(ConfigError, match="engine: sglang"):
        check_launchable(topology, endpoints.plan)
    wide = parse_topology(
        TEXT.replace("ENGINE", "vllm")
        .replace("DEVICE", "cuda")
        .replace("nodes: {count: 2, gpus: 4}", "nodes: {count: 3, gpus: 2, nvlink_domain: 3}")
    )
    with pytest.raises(ConfigError, match="prefill-0 takes 2 nodes"):
        check_launchable(wide, make_plan(wide))
