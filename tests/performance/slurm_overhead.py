"""What the controller adds to a Slurm job, against a script by hand: `make bench-slurm`.

4 prefill workers of TP2 and 8 decode workers of TP1, simulated, on the four nodes of slurm/devcluster. The script starts
etcd, the same workers and a frontend by `srun` in parallel, asks until all twelve are listed and one request is
answered, and ends; Slurm then ends its steps. Both are run in turn; prints one JSON object per run and the medians.

first_s: from sbatch to the first answered request. end_s: from the last answered request to the end of the job.
The controller has by then checked nodes and ports, tried every connection and verified the checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from dynamo_mlperf.files import RunPaths
from dynamo_mlperf.record import read_events
from dynamo_mlperf.serving.dynamo import etcd_program
from tests.performance.scale import REPOSITORY, Cluster, prepare
from tests.topology.topology_texts import measure_block, simulated

RUNS = 3
BUSY = {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"}
TOPOLOGY = simulated(
    name="overhead",
    nodes={"count": 4, "gpus": 4},
    model={"name": "tiny", "weights": {"path": "assets/tiny-qwen3-vl-moe"}},
    roles={
        "prefill": {"workers": 4, "tensor_parallel": 2, "args": {"max-num-seqs": 64, "speedup-ratio": 10}},
        "decode": {"workers": 8, "args": {"max-num-seqs": 64, "speedup-ratio": 10}},
    },
    measure=measure_block(target_qps=20, dataset="assets/tiny-product-catalogue"),
    reduced={"min_duration_s": 2, "samples": 44, "percentile": 90, "latency_limit_ms": 20000},
    timeouts={"warmup_requests": 8},
)
HEAD = "#SBATCH --nodes=4 --gres=gpu:4 --exclusive --no-requeue\n"
SCRIPT = """#!/bin/bash
{head}
here=$(getent ahostsv4 $SLURMD_NODENAME | head -1 | cut -d" " -f1)
url=http://$here:21000
on() {{ node=$1; shift; srun --overlap --mem=0 -N1 -n1 -w $node --input=none "$@" & }}
nodes=($(scontrol show hostnames $SLURM_JOB_NODELIST))
export DYN_DISCOVERY_BACKEND=etcd ETCD_ENDPOINTS=$url DYN_REQUEST_PLANE=tcp DYN_EVENT_PLANE=zmq DYN_NAMESPACE=by-hand
export HF_HUB_OFFLINE=1 DYN_LOG=warn
data=$(mktemp -d /dev/shm/by-hand-XXXX)
on ${{nodes[0]}} {etcd} --name job --data-dir $data --log-level warn --listen-client-urls $url \\
  --advertise-client-urls $url --listen-peer-urls http://$here:21001 \\
  --initial-advertise-peer-urls http://$here:21001 --initial-cluster job=http://$here:21001
until curl --noproxy "*" -sf $url/health >/dev/null; do sleep 0.1; done
port=21100
for node in ${{nodes[@]}}; do
  address=$(getent ahostsv4 $node | head -1 | cut -d" " -f1)
  for mode in prefill decode decode; do
    on $node env DYN_SYSTEM_PORT=$port DYN_SYSTEM_HOST=$address DYN_TCP_RPC_HOST=$address DYN_EVENT_PLANE_HOST=$address \\
      DYN_TCP_RESPONSE_STREAM_HOST=$address {python} -m dynamo.mocker --model-path {model} --model-name tiny \\
      --disaggregation-mode $mode --no-enable-prefix-caching --max-num-seqs 64 --speedup-ratio 10
    port=$((port + 1))
  done
done
on ${{nodes[0]}} env DYN_TCP_RPC_HOST=$here DYN_TCP_RESPONSE_STREAM_HOST=$here {python} -m dynamo.frontend \\
  --http-host $here --http-port 21050 --router-mode round-robin --namespace by-hand
front=http://$here:21050
until [ "$(curl --noproxy "*" -s $front/health | grep -o '"endpoint":"generate"' | wc -l)" = 12 ]; do sleep 0.1; done
until curl --noproxy "*" -sf $front/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{{"model":"tiny","messages":[{{"role":"user","content":"hello"}}],"max_tokens":8}}' >/dev/null; do sleep 0.1; done
date +%s.%N > first-$SLURM_JOB_ID
rm -rf $data
"""


def follow(cluster: Cluster, file: Path) -> tuple[str, float, float]:
    """Submit, wait; returns the job id and when it was submitted and had ended."""
    began = time.time()
    job_id = cluster.call("exec", "sbatch", "--parsable", file.name).strip()
    while True:
        shown = cluster.call("exec", "scontrol", "-o", "show", "job", job_id)
        if next(word for word in shown.split() if word.startswith("JobState=")).partition("=")[2] not in BUSY:
            return job_id, began, time.time()
        time.sleep(0.05)


def by_hand(cluster: Cluster, work: Path) -> dict[str, Any]:
    """One run of the script."""
    job_id, began, ended = follow(cluster, work / "by-hand.sh")
    first = float((work / f"first-{job_id}").read_text())
    return {"who": "script", "first_s": first - began, "end_s": ended - first}


def by_controller(cluster: Cluster, work: Path) -> dict[str, Any]:
    """One run of the same topology by the controller."""
    job_id, began, ended = follow(cluster, work / "overhead.yaml")
    paths = RunPaths(work / "runs" / f"overhead-{job_id}")
    events = read_events(paths)
    at = {(event["event"], event.get("phase")): event["t"] for event in events}
    if not paths.verdict.exists() or json.loads(paths.verdict.read_text())["verdict"] != "VALID":
        sys.exit(f"not VALID: {paths.root}")
    seconds = json.loads(paths.evidence.read_text())["canary"]["seconds"]
    measured = json.loads((paths.load / "client.json").read_text())
    return {
        "who": "controller",
        "first_s": at["phase_begin", "canary"] + min(seconds) - began,
        "end_s": ended - at["phase_end", "measure"],
        "first_measured_s": measured["first_issue_t"] - began,
        "phases_s": {
            name: round(at["phase_end", name] - at["phase_begin", name], 2)
            for event, name in at
            if event == "phase_end"
        },
    }


def main() -> int:
    """Run both in turn; 0 always: it is a measurement."""
    work = Path(os.environ.get("SCALE_DIR", REPOSITORY / f".overhead-{os.getpid()}"))
    prepare(work)
    cluster = Cluster(work / "cluster", work, 4, 4)
    script = SCRIPT.format(
        head=HEAD, etcd=etcd_program(), python=sys.executable, model=work / "assets" / "tiny-qwen3-vl-moe"
    )
    for name, text in (
        ("by-hand.sh", script),
        ("overhead.yaml", f"#!/usr/bin/env -S dynamo-mlperf job\n{HEAD}{yaml.safe_dump(TOPOLOGY)}"),
    ):
        (work / name).write_text(text)
        (work / name).chmod(0o755)
    cluster.call("up")
    found: list[dict[str, Any]] = []
    try:
        for _ in range(RUNS):
            for run in (by_hand, by_controller):
                found.append(run(cluster, work))
                print(json.dumps({name: round(v, 2) if isinstance(v, float) else v for name, v in found[-1].items()}))
    finally:
        cluster.call("down")
    for name in ("first_s", "end_s"):
        medians = {
            who: statistics.median(run[name] for run in found if run["who"] == who) for who in ("script", "controller")
        }
        added = medians["controller"] - medians["script"]
        print(f"{name}: script {medians['script']:.2f}, controller {medians['controller']:.2f}, added {added:+.2f}")
    if "SCALE_DIR" not in os.environ:
        shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
