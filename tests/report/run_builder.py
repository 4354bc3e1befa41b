"""Makes realistic run directories by the contract of `record.py` and `files.py`, always the same for the same kind."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dynamo_mlperf.files import RunPaths, append_json_line, write_json
from dynamo_mlperf.record import ConstraintLatency, Reason, TransferEvidence, Verdict, write_verdict

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

Kind = Literal["valid", "invalid", "failed", "running"]

BEGAN_AT = 1795953600.0
LIMIT_MS = 1500.0
HOSTS = ("gb200-001", "gb200-002", "gb200-003", "gb200-004")
_ALLOWED = {24000: 204, 50000: 448}
_PHASE_SECONDS = {
    "check": 3.1, "stage": 92.4, "start": 0.8, "ready": 171.6, "canary": 2.2, "warmup": 21.0, "measure": 602.3,
    "judge": 1.4, "record": 0.6, "stop": 4.3,
}  # fmt: skip
TOPOLOGY = """\
#!/usr/bin/env -S dynamo-mlperf job
#SBATCH --nodes=4 --gres=gpu:4 --exclusive --time=04:00:00 --no-requeue
schema: 1
name: q3vl-gb200x16-interactive-4p8d
nodes: {count: 4, gpus: 4, nvlink_domain: 18}
model: {name: qwen3-vl-235b-a22b, weights: {stage: staging/qwen3-vl-235b-a22b-nvfp4.yaml}}
engine: vllm
roles:
  prefill: {workers: 4, tensor_parallel: 2, args: {max-num-batched-tokens: 17920}}
  decode:  {workers: 8, tensor_parallel: 1, args: {max-num-batched-tokens: 2048}}
frontends: {count: 1, router: kv, discovery: etcd}
measure: {benchmark: qwen3-vl-235b-a22b, scenario: Interactive, client: loadgen, target_qps: 40}
"""


def build_run(root: Path, kind: Kind = "valid", *, queries: int = 24000) -> RunPaths:
    """A run directory at `root` as a run of this kind leaves it."""
    paths = RunPaths(root)
    for folder in (paths.logs, paths.load, paths.metrics / "before", paths.metrics / "after"):
        folder.mkdir(parents=True)
    paths.topology.write_text(TOPOLOGY)
    write_json(paths.plan, plan())
    write_json(paths.versions, {"dynamo_mlperf": "0.1.0", "vllm": "0.31.0", "ai-dynamo": "1.6.1", "nixl": "1.4.1"})
    _write_events(paths, kind)
    _write_commands(paths)
    if kind == "failed":
        _leave_failure(paths)
    elif kind != "running":
        _leave_measurement(paths, kind, queries)
    return paths


def plan() -> dict[str, Any]:
    workers: list[dict[str, Any]] = [
        {"role": "prefill", "index": i, "ranks": [{"node": i, "gpu": 0}, {"node": i, "gpu": 1}], "port_offset": 8 * i}
        for i in range(4)
    ]
    workers += [
        {"role": "decode", "index": i, "ranks": [{"node": i // 2, "gpu": 2 + i % 2}], "port_offset": 32 + 8 * i}
        for i in range(8)
    ]
    return {
        "name": "q3vl-gb200x16-interactive-4p8d",
        "nodes": [{"position": i, "gpus": 4} for i in range(4)],
        "workers": workers,
        "idle_gpus": [],
        "split": {"prefill_gpus": 8, "decode_gpus": 8, "workers": "4P8D"},
        "binding": [{"position": i, "host": host, "address": f"10.0.0.{i + 1}"} for i, host in enumerate(HOSTS)],
    }


def worker_names() -> list[str]:
    return [f"{worker['role']}-{worker['index']}" for worker in plan()["workers"]]


def write_queries(
    paths: RunPaths, count: int, *, failed: tuple[int, ...] = (), scale: float = 1.0
) -> NDArray[np.float64]:
    """`queries.csv` of `count` Poisson arrivals at 40 per second; returns their latencies in ms."""
    random = np.random.default_rng(20260)
    issued = np.cumsum(random.exponential(25.0, count))
    issued -= issued[0]
    latency = (620.0 + 190.0 * random.lognormal(0.0, 0.62, count)) * scale
    latency = np.where(latency > 1900.0, 1400.0 + latency % 90.0, latency)
    first = latency * random.uniform(0.25, 0.35, count)
    tokens = random.integers(29, 63, count)
    lines = ["order,sample,issued_ms,first_token_ms,completed_ms,output_tokens,prompt_tokens,error"]
    for i in range(count):
        if i in failed:
            lines.append(f"{i},{i % 8000},{issued[i]:.3f},,,0,0,HTTP 500: no worker for this request")
        else:
            first_ms, done_ms = issued[i] + first[i], issued[i] + latency[i]
            lines.append(f"{i},{i % 8000},{issued[i]:.3f},{first_ms:.3f},{done_ms:.3f},{tokens[i]},3700,")
    (paths.load / "queries.csv").write_text("\n".join(lines) + "\n")
    return latency


def constraint_of(latency: NDArray[np.float64], allowed: int, percentile: float) -> ConstraintLatency:
    ascending = np.sort(latency)
    return ConstraintLatency(
        plain=float(ascending[int(len(ascending) * 0.99)]),
        at_percentile=float(ascending[int(len(ascending) * percentile)]),
        early_stopping=float(ascending[len(ascending) - allowed]),
        limit=LIMIT_MS,
        percentile=percentile,
        over_limit=int((ascending > LIMIT_MS).sum()),
        over_limit_allowed=allowed,
    )


def _leave_measurement(paths: RunPaths, kind: Kind, count: int) -> None:
    failed = (100, 101, 650) if kind == "invalid" else ()
    latency = write_queries(paths, count, failed=failed, scale=1.3 if kind == "invalid" else 0.97)
    kept = np.delete(latency, failed) if failed else latency
    allowed, percentile = (658, 0.97) if kind == "invalid" else (_ALLOWED.get(count, 204), 0.99)
    constraint = constraint_of(kept, allowed, percentile)
    moved = kv_evidence(count - len(failed), prompt_tokens=3700, kv_bytes=3700 * 96256)
    client = _client(count, failed)
    write_json(paths.load / "client.json", client)
    (paths.load / "mlperf_log_summary.txt").write_text("Result is : VALID\n")
    canary = {"prompt_tokens": 812, "answer_tokens": 16, "external_tokens": 812, "passed": True}
    write_json(paths.evidence, {"canary": canary, "transfer": asdict(moved), "workers": _counters(count)})
    verdict = Verdict(
        verdict="VALID",
        result_class="official",
        benchmark="qwen3-vl-235b-a22b",
        scenario="Interactive",
        run_dir=str(paths.root),
        target_qps=40.0,
        completed_qps=39.853,
        tokens_per_second=1811.4,
        requests=count,
        failed_requests=len(failed),
        duration_s=602.3,
        latency_p99_ms={"end_to_end": constraint},
        transfer=moved,
        client=client,
        model="qwen3-vl-235b-a22b-nvfp4",
    )
    if kind == "invalid":
        verdict = replace(verdict, verdict="INVALID", result_class="reduced", reasons=_invalid_reasons(constraint))
    write_verdict(paths, verdict)


def _client(count: int, failed: tuple[int, ...]) -> dict[str, Any]:
    cause = "HTTP 500: no worker for this request"
    return {
        "requests": count,
        "failed": [{"sample": order % 8000, "order": order, "cause": cause} for order in failed],
        "issue_delay_ms": {"p50": 0.021, "p99": 0.184, "max": 2.31},
        "processes": [
            {"name": "loadgen", "role": "loadgen", "cpu_s": 34.2},
            {"name": "http-0", "role": "http", "cpu_s": 211.6},
        ],
        "max_in_flight": 71,
        "in_flight_bound": None,
        "wall_s": 602.9,
        "client_limited": "",
    }


def _invalid_reasons(constraint: ConstraintLatency) -> tuple[Reason, ...]:
    return (
        Reason("failed requests", "0 of 24000", "3", "Read the three errors below; a lost worker is the usual cause."),
        Reason(
            "end_to_end latency, early stopping",
            f"at most {constraint.over_limit_allowed} of 24000 over 1500 ms",
            f"{constraint.over_limit}",
            "Lower target_qps, or search for the highest rate that passes.",
        ),
    )


def kv_evidence(requests: int, *, prompt_tokens: int, kv_bytes: int) -> TransferEvidence:
    """What engines count when the prompt of each request comes by one KV transfer.

    Args:
        requests: How many.
        prompt_tokens: Of each.
        kv_bytes: Of each.
    """
    return TransferEvidence(
        disaggregated=True,
        proof="kv-counters",
        requests=requests,
        prefill_requests=requests,
        remote_prefills=requests,
        prompt_tokens=requests * prompt_tokens,
        external_tokens=requests * prompt_tokens,
        kv_bytes=requests * kv_bytes,
        transfers=requests,
    )


def _counters(requests: int) -> dict[str, dict[str, float]]:
    prefill = {f"prefill-{i}": {"vllm:request_success_total": requests / 4} for i in range(4)}
    decode = {
        f"decode-{i}": {
            "vllm:request_success_total": requests / 8,
            'vllm:prompt_tokens_by_source_total{source="external_kv_transfer"}': requests / 8 * 3700,
            "vllm:nixl_num_failed_transfers_total": 0.0,
        }
        for i in range(8)
    }
    return {**prefill, **decode}


def _leave_failure(paths: RunPaths) -> None:
    """A decode worker was killed while the deployment came up: nothing was measured."""
    (paths.logs / "decode-3.log").write_text("loading weights\nCUDA error: out of memory\n")
    (paths.logs / "decode-4.log").write_text("waiting for the other workers\n")
    verdict = Verdict(
        verdict="FAILED",
        result_class="official",
        benchmark="qwen3-vl-235b-a22b",
        scenario="Interactive",
        run_dir=str(paths.root),
        target_qps=40.0,
        reasons=(
            Reason(
                "serving",
                "12 workers ready",
                "decode-3 on gb200-002 exited with status -9",
                "Read logs/decode-3.log; on a node short of memory, stage fewer workers or free it.",
            ),
        ),
    )
    write_verdict(paths, verdict)


def _write_events(paths: RunPaths, kind: Kind) -> None:
    last = {"failed": "ready", "running": "measure"}.get(kind, "stop")
    at = BEGAN_AT
    _event(paths, at, "progress", what="job 4711 began")
    starts: dict[str, float] = {}
    for phase, seconds in _PHASE_SECONDS.items():
        _event(paths, at, "phase_begin", phase=phase)
        if phase == "stage":
            for node in range(4):
                details = {"node": node, "bytes_copied": 118_000_000_000, "bytes_reused": 0, "seconds": 90.1 + node}
                _event(paths, at + 90.1 + node, "staged", **details)
        elif phase == "start":
            starts = _start_all(paths, at)
        elif phase == "ready":
            _ready_all(paths, at, starts, kind)
        elif phase == "stop":
            for name in reversed(starts):
                _event(paths, at + 2.0, "process_exited", process=name, status=0 if name == "etcd-0" else -15)
        if phase == last and kind == "running":
            _event(paths, at + 75.0, "progress", what="3000 of 24000 queries")
            return
        if phase == last and kind == "failed":
            at += 60.0
            _event(paths, at, "error", what="decode-3 died before it was ready")
            break
        at += seconds
        _event(paths, at, "phase_end", phase=phase)
    if kind == "failed":
        _event(paths, at, "phase_begin", phase="stop")
        for name in reversed(starts):
            if name != "decode-3":
                _event(paths, at + 2.0, "process_exited", process=name, status=-15)
        _event(paths, at + 2.1, "phase_end", phase="stop")


def _start_all(paths: RunPaths, at: float) -> dict[str, float]:
    nodes = {f"{worker['role']}-{worker['index']}": worker["ranks"][0]["node"] for worker in plan()["workers"]}
    starts = {}
    for order, name in enumerate(("etcd-0", *worker_names(), "frontend-0")):
        starts[name] = at + 0.05 * order
        _event(paths, starts[name], "process_started", process=name, node=nodes.get(name, 0), pid=9000 + order)
    return starts


def _ready_all(paths: RunPaths, at: float, starts: dict[str, float], kind: Kind) -> None:
    for order, name in enumerate(starts):
        seconds = 1.2 if name.startswith("etcd") else 118.0 + 4.2 * order
        if kind != "failed" or name.startswith("etcd"):
            _event(paths, starts[name] + seconds, "process_ready", process=name, seconds=seconds)
        elif name == "decode-3":
            _event(paths, at + 58.5, "process_exited", process=name, status=-9)


def _event(paths: RunPaths, at: float, event: str, **details: object) -> None:
    append_json_line(paths.events, {"t": round(at, 6), "event": event, **details})


def _write_commands(paths: RunPaths) -> None:
    everywhere = {"DYN_DISCOVERY_BACKEND": "etcd", "DYN_LOG": "warn", "HF_HUB_OFFLINE": "1"}
    for order, worker in enumerate(plan()["workers"]):
        name, node = f"{worker['role']}-{worker['index']}", worker["ranks"][0]["node"]
        config = json.dumps({"kv_connector": "NixlConnector", "kv_role": "kv_both"})
        command = {
            "t": BEGAN_AT + 96.0 + 0.05 * order,
            "process": name,
            "node": node,
            "host": HOSTS[node],
            "argv": ["python", "-m", "dynamo.vllm", "--model", "/nvme/q3vl", "--kv-transfer-config", config],
            "env": {**everywhere, "DYN_SYSTEM_PORT": str(21000 + order)},
            "log": f"logs/{name}.log",
        }
        append_json_line(paths.commands, command)
