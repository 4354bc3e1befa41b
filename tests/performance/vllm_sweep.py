"""A searched sweep with real engines in Slurm jobs, cut and resumed: `make sweep-vllm` (root, Slurm; 20 minutes and more).

`topologies/devcluster-sweep-1p2d.yaml` on three real Slurm nodes of this machine: vLLM on the CPU, KV cache over NIXL,
1P1D and 1P2D, each searched for its highest rate. The job is cancelled once the second split is being probed; a second
one goes on with its records. Prints what was found as one JSON object; exits 1 unless the second job ended with 0, the
finished split was not measured again, the winner's full-length run is the VALID result, and by the engines' counters
each prompt of each probe, aborted ones too, was prefilled remotely.

SWEEP_DIR is the working directory, kept then; else one in the checkout, removed where all is well. CLUSTER=up: a
devcluster that DEVCLUSTER_DIR names is used as it is.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.files import RunPaths
from dynamo_mlperf.record import read_events
from tests.performance.scale import REPOSITORY, Cluster, prepare

if TYPE_CHECKING:
    from collections.abc import Callable

NAME = "devcluster-sweep-1p2d"
END_S = 3600.0
BUSY = {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"}
BY_SOURCE = "vllm:prompt_tokens_by_source_total{"


def job_fields(cluster: Cluster, job_id: str) -> dict[str, str]:
    """What Slurm says of a job."""
    words = cluster.call("exec", "scontrol", "-o", "show", "job", job_id).split()
    return dict(word.split("=", 1) for word in words if "=" in word)


def has_ended(cluster: Cluster, job_id: str) -> bool:
    """Whether the job is over."""
    return job_fields(cluster, job_id)["JobState"] not in BUSY


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll once a second."""
    deadline = time.monotonic() + END_S
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"{what}: not after {END_S:g} s")
        time.sleep(1.0)


def second_split_is_probed(run_dir: Path) -> bool:
    """Whether a probe of the second split has told something, while the first one's result stands."""
    done = [path.parent.name for path in run_dir.glob("sweep/*/split.json")]
    begun = [path.parents[1].name for path in run_dir.glob("sweep/*/probe-*/stream.jsonl")]
    return len(done) == 1 and bool(set(begun) - set(done))


def prompt_tokens(run_dir: Path) -> dict[str, float]:
    """By source, what decode workers had counted at the last look at each, over all probes of the run."""
    last: dict[str, Path] = {}
    for page in sorted(run_dir.glob("sweep/*/probe-*/metrics/*/decode-*.prom"), key=lambda path: path.stat().st_mtime):
        last[page.name] = page
    found: dict[str, float] = {}
    for page in last.values():
        for line in page.read_text().splitlines():
            if line.startswith(BY_SOURCE):
                source = line.split('source="')[1].split('"')[0]
                found[source] = found.get(source, 0.0) + float(line.rsplit(" ", 1)[1])
    return found


def whole_probes(run_dir: Path) -> list[dict[str, Any]]:
    """What the counters prove of each probe that ran to its end."""
    found = []
    for path in sorted(run_dir.glob("sweep/*/probe-*/evidence.json")):
        value = json.loads(path.read_text()).get("transfer")
        if value is not None:
            told = {key: value[key] for key in ("requests", "remote_prefills", "local_tokens", "failed_transfers")}
            found.append({"probe": f"{path.parents[1].name}/{path.parent.name}", **told})
    return found


def probes_of(run_dir: Path) -> list[dict[str, Any]]:
    """How each probe ended and how the engines came to rest before it."""
    found = []
    for path in sorted(run_dir.glob("sweep/*/probe-*/record.json")):
        record, rest = json.loads(path.read_text()), path.with_name("rest.json")
        rest_s = json.loads(rest.read_text())["seconds"] if rest.exists() else None
        name = f"{path.parents[1].name}/{path.parent.name}"
        found.append({"probe": name, "qps": record["rate"], "ended": record["ended"], "rest_s": rest_s})
    return found


def judged(cut: Path, run_dir: Path, ended: dict[str, str]) -> tuple[dict[str, Any], list[str]]:
    """What was found, and what is not as it should be."""
    before, after = (json.loads((path / "sweep" / "summary.json").read_text()) for path in (cut, run_dir))
    verdict = json.loads((run_dir / "verdict.json").read_text())
    rates = {one["split"]: one["rate_qps"] for one in after["splits"]}
    known = {one["split"]: one["rate_qps"] for one in before["splits"]}
    sources = [prompt_tokens(path) for path in (cut, run_dir)]
    remote = [one for path in (cut, run_dir) for one in whole_probes(path)]
    resumed = [one["split"] for one in after["splits"] if one["resumed"]]
    started = {event["process"] for event in read_events(RunPaths(run_dir)) if event["event"] == "process_started"}
    checks = {
        "the second job ended with 0": (ended["JobState"], ended["ExitCode"]) == ("COMPLETED", "0:0"),
        "the first one was told as interrupted": before["state"] == "stopped",
        "both splits were searched": after["state"] == "finished" and rates.keys() == {"1P1D", "1P2D"},
        "what was finished was taken over": resumed == list(known) and all(rates[key] == known[key] for key in known),
        "and not measured again": not [name for name in started if name.startswith(tuple(f"{key}-" for key in known))],
        "the winner is the result": verdict["verdict"] == "VALID" and after["winner"] in rates,
        "the page has the table": "Sweep over splits" in (run_dir / "report.html").read_text(),
        "whole probes were prefilled remotely": bool(remote)
        and all(one["remote_prefills"] == one["requests"] > one["local_tokens"] == 0 for one in remote),
        "so was every prompt of every probe": all(
            source.get("external_kv_transfer", 0.0) > 0 == source.get("local_compute", 0.0) for source in sources
        ),
    }
    told = {
        "rates_qps": rates,
        "winner": after["winner"],
        "verdict": verdict["verdict"],
        "bottleneck": {one["split"]: (one["bottleneck"] or {}).get("role") for one in after["splits"]},
        "prompt_tokens": sources,
        "whole_probes": remote,
        "probes": [probes_of(path) for path in (cut, run_dir)],
    }
    return told, [what for what, true in checks.items() if not true]


def main() -> int:
    """The two jobs; 0 where all is as it should be."""
    work = Path(os.environ.get("SWEEP_DIR", REPOSITORY / f".sweep-vllm-{os.getpid()}"))
    prepare(work)
    own = os.environ.get("CLUSTER") != "up"
    root = work / "cluster" if own else Path(os.environ["DEVCLUSTER_DIR"])
    cluster, file = Cluster(root, work, 3, 1), work / f"{NAME}.yaml"
    shutil.copy(REPOSITORY / "topologies" / file.name, file)
    if own:
        cluster.call("up")
    try:
        first = cluster.call("exec", "sbatch", "--parsable", file.name).strip()
        cut = work / "runs" / f"{NAME}-{first}"
        wait_until(lambda: second_split_is_probed(cut) or has_ended(cluster, first), "a probe of the second split")
        if has_ended(cluster, first):
            sys.exit(f"job {first} ended before a probe of the second split: read {work / f'slurm-{first}.out'}")
        cluster.call("exec", "scancel", first)
        wait_until(lambda: has_ended(cluster, first), "the end of the first job")
        words = ("sbatch", "--parsable", file.name, "--resume", f"runs/{cut.name}")
        second = cluster.call("exec", *words).strip()
        wait_until(lambda: has_ended(cluster, second), "the end of the second job")
        told, wrong = judged(cut, work / "runs" / f"{NAME}-{second}", job_fields(cluster, second))
    finally:
        if own:
            cluster.call("down")
    print(json.dumps({**told, "wrong": wrong}, indent=2))
    if "SWEEP_DIR" not in os.environ and not wrong:
        shutil.rmtree(work)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
