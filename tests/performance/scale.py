"""Large deployments of simulated workers on a real Slurm: `make scale`, or `python -m tests.performance.scale 22p28d`.

22 prefill and 28 decode workers over 18 nodes, then 512 aggregated ones over 64 nodes: all registered, each answers
requests of its own, then 10,000 requests, none lost. Prints one JSON object per deployment with how long registration
took and what controller, frontend, store and engines held at most. Exits 1 when a request was lost or a run failed.

SCALE_QPS (30) is the rate: above what the one frontend of two shared cores carries, about 37 on a busy machine, Dynamo
answers 504. Needs root and Slurm (slurm/devcluster). Everything runs on one machine, so its times are upper bounds: on a cluster
each node has processors of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import yaml

from dynamo_mlperf.files import RunPaths
from dynamo_mlperf.process.command import RUN_VARIABLE
from dynamo_mlperf.record import read_events

REPOSITORY = Path(__file__).resolve().parents[2]
CLUSTER = REPOSITORY / "slurm" / "devcluster"
REQUESTS = 10_000
END_S = 1500.0
SAMPLE_S = 1.0
KINDS = {
    "dynamo.frontend": "frontend",
    "many_mockers": "engine",
    "dynamo.mocker": "engine",
    "loadgen_process": "load client",
    "http_worker": "load client",
    "cli job": "controller",
    "dynamo-mlperf job": "controller",
    "etcd": "store",
}
"""What a process's command line holds, and what it is called here."""
SIZES: dict[str, dict[str, Any]] = {
    "22p28d": {
        "nodes": {"count": 18, "gpus": 4},
        "roles": {"prefill": {"workers": 22}, "decode": {"workers": 28}},
    },
    "512a": {"nodes": {"count": 64, "gpus": 8}, "roles": {"aggregated": {"workers": 512}}},
}


def topology(size: str, qps: float, requests: int) -> dict[str, Any]:
    """The topology of a size, so that LoadGen issues at least `requests` queries."""
    shape = SIZES[size]
    args = {"max-num-seqs": 256, "speedup-ratio": 10}
    return {
        "schema": 1,
        "name": f"scale-{size}",
        "nodes": shape["nodes"],
        "model": {"name": "tiny-qwen3-vl-moe", "weights": {"path": "assets/tiny-qwen3-vl-moe"}},
        "engine": "mocker",
        "device": "cpu",
        "roles": {name: {**role, "args": args} for name, role in shape["roles"].items()},
        "measure": {
            "benchmark": "qwen3-vl-235b-a22b",
            "scenario": "Interactive",
            "target_qps": qps,
            "dataset": "assets/tiny-product-catalogue",
        },
        "reduced": {
            "min_duration_s": requests / qps,
            "samples": 44,
            "percentile": 90,
            "latency_limit_ms": 60000,
        },
        "timeouts": {"ready_s": 900, "request_s": 300},
    }


@dataclass
class Peak:
    """The most that processes of one kind held at once."""

    processes: int = 0
    memory_mb: float = 0.0
    descriptors: int = 0
    cpu_s: float = 0.0


@dataclass
class Watch:
    """Samples the processes of a run from outside."""

    run: str
    peaks: dict[str, Peak] = field(default_factory=lambda: defaultdict(Peak))

    def look(self) -> None:
        """One sample."""
        seen: dict[str, Peak] = defaultdict(Peak)
        for process in psutil.process_iter(["cmdline"]):
            kind = _kind(process.info["cmdline"] or [])
            if kind is None:
                continue
            try:
                if kind != "controller" and not process.environ().get(RUN_VARIABLE, "").startswith(self.run):
                    continue
                used = process.cpu_times()
                descriptors = list(Path(f"/proc/{process.pid}/fd").iterdir())
                seen[kind].memory_mb += process.memory_info().rss / 1e6
                seen[kind].cpu_s += used.user + used.system
            except (psutil.Error, OSError):
                continue
            seen[kind].processes += 1
            seen[kind].descriptors = max(seen[kind].descriptors, len(descriptors))
        for kind, now in seen.items():
            peak = self.peaks[kind]
            for name, value in vars(now).items():
                setattr(peak, name, max(getattr(peak, name), value))


def _kind(argv: list[str]) -> str | None:
    if not argv or argv[0].endswith(("srun", "slurmstepd:")):
        return None
    line = " ".join(argv)
    return next((kind for words, kind in KINDS.items() if words in line), None)


class Cluster:
    """A devcluster in a directory of its own."""

    def __init__(self, root: Path, work: Path, nodes: int, gpus: int) -> None:
        settings = {"DEVCLUSTER_DIR": str(root), "DEVCLUSTER_NODES": str(nodes), "DEVCLUSTER_GPUS": str(gpus)}
        kept = {name: value for name, value in os.environ.items() if name != "DYNAMO_MLPERF_SITE"}
        self.environment = {**kept, **settings}
        self.work = work

    def call(self, *argv: str) -> str:
        """Run a devcluster verb."""
        done = subprocess.run(
            (str(CLUSTER), *argv), cwd=self.work, env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            sys.exit(f"devcluster {' '.join(argv)}: {done.stderr}")
        return done.stdout


def measure(size: str, cluster: Cluster, file: Path) -> dict[str, Any]:
    """Submit the file, follow the job to its end, and gather what it took."""
    began = time.time()
    job_id = cluster.call("exec", "sbatch", "--parsable", file.name).strip()
    run = f"{file.stem}-{job_id}"
    watch, deadline = Watch(run), time.monotonic() + END_S
    while _state(cluster, job_id) in {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"}:
        if time.monotonic() > deadline:
            cluster.call("exec", "scancel", job_id)
            sys.exit(f"{run} has not ended after {END_S:g} s; see {cluster.work}/slurm-{job_id}.out")
        watch.look()
        time.sleep(SAMPLE_S)
    return {"size": size, "run": run, **summary(RunPaths(cluster.work / "runs" / run), began), "peaks": _shown(watch)}


def _state(cluster: Cluster, job_id: str) -> str:
    shown = cluster.call("exec", "scontrol", "-o", "show", "job", job_id)
    return next(word.split("=", 1)[1] for word in shown.split() if word.startswith("JobState="))


def _shown(watch: Watch) -> dict[str, Any]:
    return {kind: {name: round(value, 1) for name, value in vars(peak).items()} for kind, peak in watch.peaks.items()}


def summary(paths: RunPaths, began: float) -> dict[str, Any]:
    """Seconds of each phase, how long registration took, and the verdict."""
    events = read_events(paths)
    begun = {event["phase"]: event["t"] for event in events if event["event"] == "phase_begin"}
    ended = {event["phase"]: event["t"] for event in events if event["event"] == "phase_end"}
    listed: dict[str, Any] = next((event for event in events if event["event"] == "workers_listed"), {})
    last = events[-1]
    verdict = json.loads(paths.verdict.read_text()) if paths.verdict.exists() else {}
    return {
        "verdict": verdict.get("verdict"),
        "reasons": [reason["text"] for reason in verdict.get("reasons", [])],
        "workers_listed": listed.get("workers"),
        "engine_processes": listed.get("processes"),
        "registration_s": round(listed["t"] - begun["start"], 1) if listed else None,
        "requests": verdict.get("requests"),
        "failed_requests": verdict.get("failed_requests"),
        "phases_s": {name: round(ended[name] - begun[name], 1) for name in begun if name in ended},
        "queued_s": round(events[0]["t"] - began, 1),
        "controller_memory_mb": round(last.get("peak_memory_bytes", 0) / 1e6, 1),
        "controller_cpu_s": last.get("cpu_s"),
    }


def prepare(work: Path) -> None:
    """A place to submit from."""
    shutil.rmtree(work / "runs", ignore_errors=True)
    (work / "staging").mkdir(parents=True, exist_ok=True)
    shutil.copy(REPOSITORY / "staging" / "tiny-qwen3-vl-moe.yaml", work / "staging")
    argv = (sys.executable, "-m", "dynamo_mlperf.cli", "init", "--assets", "assets")
    subprocess.run(argv, cwd=work, check=True, capture_output=True)


def run_size(size: str, work: Path, qps: float, requests: int) -> dict[str, Any]:
    """Bring a cluster up, run the size on it, take it down."""
    content = topology(size, qps, requests)
    nodes = content["nodes"]
    cluster = Cluster(work / "cluster", work, nodes["count"], nodes["gpus"])
    file = work / f"{content['name']}.yaml"
    lines = ("#!/usr/bin/env -S dynamo-mlperf job", f"#SBATCH --nodes={nodes['count']} --gres=gpu:{nodes['gpus']}")
    file.write_text("\n".join((*lines, "#SBATCH --exclusive --no-requeue", yaml.safe_dump(content))))
    file.chmod(0o755)
    cluster.call("up")
    try:
        return measure(size, cluster, file)
    finally:
        cluster.call("down")


def main(sizes: list[str]) -> int:
    """Run the sizes; 0 when every request of each was answered."""
    work = Path(os.environ.get("SCALE_DIR", REPOSITORY / f".scale-{os.getpid()}"))
    qps, requests = float(os.environ.get("SCALE_QPS", "30")), int(os.environ.get("SCALE_REQUESTS", str(REQUESTS)))
    prepare(work)
    lost = 0
    for size in sizes:
        found = run_size(size, work, qps, requests)
        print(json.dumps(found, indent=2))
        lost += found["verdict"] not in {"VALID", "INVALID"} or found["failed_requests"] != 0
    if "SCALE_DIR" not in os.environ and not lost:
        shutil.rmtree(work)
    return 1 if lost else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:] or list(SIZES)))
