"""Command lines of engines, whole: what a worker is really started with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.process.allocation import Node
from dynamo_mlperf.process.command import Command
from dynamo_mlperf.serving.dynamo import TIDY, etcd_command, frontend_command, shared_environment
from dynamo_mlperf.serving.endpoints import Endpoints
from dynamo_mlperf.serving.engines.mocker import PORTS_VARIABLE
from dynamo_mlperf.serving.workers import NodeFacts, WorkerFacts, check_launchable, flags, launch, nodes_of
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


def facts_of(topology: Topology, endpoints: Endpoints, role: str, *, shares_memory: bool = False) -> WorkerFacts:
    process = next(process for process in endpoints.processes if process.role == role)
    nodes = tuple(
        NodeFacts(position, Path("/nvme/tiny"), {"PATH": "/bin"}, threads=3)
        for position in nodes_of(topology, process.first)
    )
    return WorkerFacts(
        topology, endpoints, process, nodes, "python", Path("logs"), Path("files"), shares_memory=shares_memory
    )


def command(role: str, engine: str = "vllm", device: str = "cuda", *, shares_memory: bool = False) -> Command:
    topology, endpoints = deployment(engine, device)
    (made,) = launch(facts_of(topology, endpoints, role, shares_memory=shares_memory)).commands
    return made


def vllm_words(mode: str, tensor_parallel: int) -> tuple[str, ...]:
    """What the command line of each vLLM worker begins with."""
    served = ("python", "-m", "dynamo.vllm", "--model", "/nvme/tiny", "--served-model-name", "tiny-abc123")
    degrees = ("--disaggregation-mode", mode, "--tensor-parallel-size", str(tensor_parallel))
    return (*served, *degrees, "--no-enable-prefix-caching", "--mm-processor-cache-gb", "0")


def test_a_prefill_worker_on_gpus() -> None:
    made = command("prefill")
    assert made.argv == (
        *vllm_words("prefill", 4),
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
    assert environment.items() >= {**TIDY, "SPT_NOENV": "1"}.items()
    served = topology.model_copy(update={"engine": "sglang"})
    own = shared_environment(served, endpoints, "10.0.0.2", "mark", Path("/run/discovery"))
    assert not TIDY.keys() & own.keys(), "it logs by those settings"


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


def alone(engine: str, role: str, nodes: str, more: str = "") -> tuple[Topology, Endpoints]:
    topology = parse_topology(
        f"""
schema: 1
name: one
nodes: {{{nodes}}}
model: {{name: tiny, weights: {{path: /models/tiny}}}}
engine: {engine}
roles: {{aggregated: {{workers: 1, {role}}}}}
measure: {{benchmark: qwen3-vl-235b-a22b, scenario: Interactive, target_qps: 1}}
{more}"""
    )
    return topology, Endpoints(make_plan(topology), NODES, 25000, "one-abc123", "tiny-abc123")


def test_workers_that_share_a_process_are_a_number_on_its_command_line() -> None:
    topology = parse_topology(
        TEXT.replace("ENGINE", "mocker").replace("DEVICE", "cpu").replace("decode: {workers: 1", "decode: {workers: 3")
    )
    endpoints = Endpoints(make_plan(topology), NODES, 25000, "two-abc123", "tiny-abc123", shared_processes=True)
    (made,) = launch(facts_of(topology, endpoints, "decode")).commands
    assert (made.name, made.log) == ("decode-0-to-2", Path("logs/decode-0-to-2.log"))
    assert made.argv[made.argv.index("--num-workers") + 1] == "3"
    ports = [str(endpoints.system(worker)[1]) for worker in endpoints.plan.workers if worker.role == "decode"]
    assert made.env[PORTS_VARIABLE] == ",".join(ports)
    assert len(set(ports)) == 3


def test_a_vllm_worker_of_two_nodes_is_one_engine_with_a_leader() -> None:
    topology, endpoints = alone("vllm", "tensor_parallel: 4", "count: 2, gpus: 2, nvlink_domain: 2")
    first, second = launch(facts_of(topology, endpoints, "aggregated")).commands
    common = (*vllm_words("agg", 4), "--nnodes", "2")
    meeting = ("--master-addr", "10.0.0.1", "--master-port", "25005")
    assert first.argv == (*common, "--node-rank", "0", *meeting)
    assert second.argv == (*common, "--node-rank", "1", *meeting, "--headless")
    assert first.env == {
        "PATH": "/bin",
        "VLLM_HOST_IP": "10.0.0.1",
        "VLLM_NO_USAGE_STATS": "1",
        "DYN_SYSTEM_PORT": "25004",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.1",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": "25012",
        "GLOO_SOCKET_IFNAME": "ib0",
        "NCCL_SOCKET_IFNAME": "ib0",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
    assert second.env == {
        "PATH": "/bin",
        "VLLM_HOST_IP": "10.0.0.2",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_NIXL_SIDE_CHANNEL_HOST": "10.0.0.2",
        "VLLM_NIXL_SIDE_CHANNEL_PORT": "25012",
        "GLOO_SOCKET_IFNAME": "ib1",
        "NCCL_SOCKET_IFNAME": "ib1",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
    assert [(one.name, one.node, one.log.name) for one in (first, second)] == [
        ("aggregated-0", 0, "aggregated-0.log"),
        ("aggregated-0.1", 1, "aggregated-0.1.log"),
    ]


def test_data_parallel_ranks_on_two_nodes_meet_at_ports_of_the_workers_own() -> None:
    topology, endpoints = alone("vllm", "data_parallel: 4, expert_parallel: 4", "count: 2, gpus: 2, nvlink_domain: 2")
    first, second = launch(facts_of(topology, endpoints, "aggregated")).commands
    assert first.argv[14:] == (
        "--data-parallel-size",
        "4",
        "--enable-expert-parallel",
        "--nnodes",
        "2",
        "--node-rank",
        "0",
        "--master-addr",
        "10.0.0.1",
        "--master-port",
        "25005",
        "--data-parallel-rpc-port",
        "25006",
    )
    assert second.argv[-1] == "--headless"
    topology, endpoints = alone("vllm", "data_parallel: 2", "count: 2, gpus: 1, nvlink_domain: 2")
    first, _ = launch(facts_of(topology, endpoints, "aggregated")).commands
    assert first.argv[-2] == "--data-parallel-rpc-port"


def test_an_sglang_worker_with_shared_attention() -> None:
    topology, endpoints = alone(
        "sglang",
        "tensor_parallel: 8, data_parallel: 8, expert_parallel: 8, args: {mem-fraction-static: 0.85}",
        "count: 1, gpus: 8",
    )
    check_launchable(topology, endpoints.plan)
    (made,) = launch(facts_of(topology, endpoints, "aggregated")).commands
    assert made.argv == (
        "python",
        "-m",
        "dynamo.sglang",
        "--model-path",
        "/nvme/tiny",
        "--served-model-name",
        "tiny-abc123",
        "--host",
        "10.0.0.1",
        "--port",
        "25007",
        "--nccl-port",
        "25006",
        "--tp-size",
        "8",
        "--dp-size",
        "8",
        "--enable-dp-attention",
        "--ep-size",
        "8",
        "--disable-radix-cache",
        "--enable-metrics",
        "--dist-init-addr",
        "10.0.0.1:25008",
        "--mem-fraction-static",
        "0.85",
    )
    assert made.env == {
        "PATH": "/bin",
        "SGLANG_HOST_IP": "10.0.0.1",
        "SGLANG_VLM_CACHE_SIZE_MB": "0",
        "GLOO_SOCKET_IFNAME": "ib0",
        "CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7",
        "DYN_SYSTEM_PORT": "25004",
    }


def test_sglang_workers_of_a_disaggregated_deployment() -> None:
    prefill, decode = command("prefill", engine="sglang"), command("decode", engine="sglang")
    assert prefill.argv[13:] == (
        "--tp-size",
        "4",
        "--disable-radix-cache",
        "--enable-metrics",
        "--disaggregation-mode",
        "prefill",
        "--disaggregation-transfer-backend",
        "nixl",
        "--disaggregation-bootstrap-port",
        "25005",
        "--max-num-batched-tokens",
        "17920",
    )
    assert decode.argv[13:] == (
        "--tp-size",
        "1",
        "--disable-radix-cache",
        "--enable-metrics",
        "--disaggregation-mode",
        "decode",
        "--disaggregation-transfer-backend",
        "nixl",
        "--max-num-seqs",
        "16",
    )
    assert decode.env["SGLANG_HOST_IP"] == "10.0.0.2"


def test_an_sglang_worker_of_two_nodes() -> None:
    topology, endpoints = alone("sglang", "tensor_parallel: 4", "count: 2, gpus: 2, nvlink_domain: 2")
    first, second = launch(facts_of(topology, endpoints, "aggregated")).commands
    for number, made in enumerate((first, second)):
        assert made.argv[-6:] == ("--nnodes", "2", "--node-rank", str(number), "--dist-init-addr", "10.0.0.1:25008")
        assert (made.node, made.argv[8]) == (number, NODES[number].address)
    assert first.env["DYN_SYSTEM_PORT"] == "25004"
    assert "DYN_SYSTEM_PORT" not in second.env
    assert second.env["NCCL_SOCKET_IFNAME"] == "ib1"


def test_ports_of_an_sglang_worker_are_its_own() -> None:
    """SGLang takes the port of --dist-init-addr and six more: the smallest worker that gets one has room for them."""
    _, endpoints = alone("sglang", "tensor_parallel: 2", "count: 2, gpus: 1, nvlink_domain: 2")
    assert endpoints.plan.workers[0].ports >= 4 + 7


def test_trtllm_workers_of_dynamo() -> None:
    prefill, decode = command("prefill", engine="trtllm"), command("decode", engine="trtllm")
    assert prefill.argv == (
        "python",
        "-m",
        "dynamo.trtllm",
        "--model",
        "/nvme/tiny",
        "--served-model-name",
        "tiny-abc123",
        "--disaggregation-mode",
        "prefill",
        "--tensor-parallel-size",
        "4",
        "--override-engine-args",
        (
            '{"kv_cache_config":{"enable_block_reuse":false},"cache_transceiver_config":{"backend":"NIXL"},'
            '"disable_overlap_scheduler":true}'
        ),
        "--max-num-batched-tokens",
        "17920",
    )
    assert decode.argv[11:13] == (
        "--override-engine-args",
        '{"kv_cache_config":{"enable_block_reuse":false},"cache_transceiver_config":{"backend":"NIXL"}}',
    )
    assert prefill.env == {
        "PATH": "/bin",
        "DYN_SYSTEM_PORT": "25004",
        "TRTLLM_NIXL_INTERFACE": "ib0",
        "CUDA_VISIBLE_DEVICES": "0,1,2,3",
    }


def test_trtllm_options_of_the_file_stay_and_the_memory_flag_moves_to_where_it_counts() -> None:
    topology, endpoints = alone(
        "trtllm",
        "tensor_parallel: 4, data_parallel: 4, expert_parallel: 4, args: {free-gpu-memory-fraction: 0.8, max-batch-size: 64}, "
        "engine_config: {moe_config: {backend: TRTLLM}, kv_cache_config: {dtype: fp8}}",
        "count: 1, gpus: 4",
    )
    check_launchable(topology, endpoints.plan)
    (made,) = launch(facts_of(topology, endpoints, "aggregated")).commands
    assert made.argv[7:] == (
        "--disaggregation-mode",
        "agg",
        "--tensor-parallel-size",
        "4",
        "--expert-parallel-size",
        "4",
        "--enable-attention-dp",
        "--override-engine-args",
        (
            '{"moe_config":{"backend":"TRTLLM"},"kv_cache_config":{"free_gpu_memory_fraction":0.8,"dtype":"fp8",'
            '"enable_block_reuse":false}}'
        ),
        "--max-batch-size",
        "64",
    )


def test_a_plain_trtllm_serve_worker_reads_its_options_from_a_file() -> None:
    topology, endpoints = alone(
        "trtllm",
        "tensor_parallel: 1, args: {max-batch-size: 512}, engine_config: {stream_interval: 20}",
        "count: 1, gpus: 4",
        "server: trtllm-serve\n",
    )
    started = launch(facts_of(topology, endpoints, "aggregated"))
    (made,) = started.commands
    address, port = endpoints.system(endpoints.plan.workers[0])
    assert made.argv == (
        "python",
        "-m",
        "tensorrt_llm.commands.serve",
        "serve",
        "/nvme/tiny",
        "--served_model_name",
        "tiny-abc123",
        "--host",
        address,
        "--port",
        str(port),
        "--backend",
        "pytorch",
        "--tp_size",
        "1",
        "--config",
        "files/aggregated-0.yaml",
        "--max_batch_size",
        "512",
    )
    assert made.env == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "0"}
    assert started.files == {
        Path("files/aggregated-0.yaml"): '{"stream_interval":20,"kv_cache_config":{"enable_block_reuse":false}}\n'
    }


def test_a_worker_is_bound_to_its_cores_and_sees_the_gpus_that_it_was_given() -> None:
    topology, endpoints = deployment()
    facts = facts_of(topology, endpoints, "prefill")
    (node,) = facts.nodes
    given = replace(node, cores=(8, 0, 1, 2), devices=("4", "5", "6", "7"))
    (made,) = launch(replace(facts, nodes=(given,))).commands
    assert made.argv[:4] == ("taskset", "--cpu-list", "0-2,8", "python")
    assert made.env["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"


def test_the_files_environment_is_laid_over_the_engines() -> None:
    topology, endpoints = alone("vllm", "env: {GLOO_SOCKET_IFNAME: eth7}", "count: 1, gpus: 1")
    (made,) = launch(facts_of(topology, endpoints, "aggregated")).commands
    assert made.env["GLOO_SOCKET_IFNAME"] == "eth7"


@pytest.mark.parametrize(
    ("engine", "role", "nodes", "more", "said"),
    [
        ("sglang", "tensor_parallel: 1", "count: 1, gpus: 1", "device: cpu\n", "engine: sglang runs on GPUs alone"),
        ("trtllm", "tensor_parallel: 4", "count: 2, gpus: 2, nvlink_domain: 2", "", "one MPI world"),
        (
            "vllm",
            "tensor_parallel: 8, data_parallel: 8, expert_parallel: 8",
            "count: 1, gpus: 8",
            "",
            "roles.aggregated: vllm starts tensor_parallel x data_parallel ranks",
        ),
        (
            "vllm",
            "tensor_parallel: 3, data_parallel: 4",
            "count: 2, gpus: 6, nvlink_domain: 2",
            "",
            "",
        ),
        (
            "vllm",
            "tensor_parallel: 4, data_parallel: 3",
            "count: 2, gpus: 6, nvlink_domain: 2",
            "",
            "ranks of tensor_parallel 4, data_parallel 3 do not end where nodes do",
        ),
        ("vllm", "tensor_parallel: 4", "count: 2, gpus: 2, nvlink_domain: 2", "", ""),
        ("vllm", "tensor_parallel: 4, data_parallel: 2", "count: 4, gpus: 2, nvlink_domain: 4", "", ""),
    ],
)
def test_what_is_planned_but_cannot_be_launched_is_refused_with_the_reason(
    engine: str, role: str, nodes: str, more: str, said: str
) -> None:
    topology, endpoints = alone(engine, role, nodes, more)
    if not said:
        check_launchable(topology, endpoints.plan)
        return
    with pytest.raises(ConfigError) as refusal:
        check_launchable(topology, endpoints.plan)
    assert said in refusal.value.what
    assert refusal.value.action


def test_degrees_that_move_no_kv_are_refused_before_the_job() -> None:
    text = TEXT.replace("ENGINE", "vllm").replace("DEVICE", "cuda")
    topology = parse_topology(
        text.replace("tensor_parallel: 4", "tensor_parallel: 3").replace(
            "decode: {workers: 1", "decode: {workers: 1, tensor_parallel: 2"
        )
    )
    with pytest.raises(ConfigError, match=r"tensor_parallel 3 \(prefill\) and 2 \(decode\)"):
        check_launchable(topology, make_plan(topology))
