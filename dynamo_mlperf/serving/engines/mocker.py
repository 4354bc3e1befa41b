"""Dynamo's mocker, `python -m dynamo.mocker`: real Dynamo, simulated GPU timing.

Flags: `dynamo/mocker/args.py` of ai-dynamo 1.6.1.
"""

from __future__ import annotations

from pathlib import Path

from dynamo_mlperf.serving.engines.facts import DYNAMO_MODES, Start, WorkerFacts, flags

MANY_MOCKERS = Path(__file__).parent.parent / "cpu_startup" / "many_mockers.py"
"""Runs in the engines' Python and gives each of several workers in one process a port of its own."""
PORTS_VARIABLE = "DYNAMO_MLPERF_SYSTEM_PORTS"


def mocker(facts: WorkerFacts, node_rank: int) -> Start:
    """One mocker process; a simulated worker of several nodes is one process on its first."""
    worker, endpoints = facts.worker, facts.endpoints
    several = len(facts.process.workers) > 1
    argv = [
        facts.python,
        *((str(MANY_MOCKERS),) if several else ("-m", "dynamo.mocker")),
        "--model-path",
        str(facts.nodes[node_rank].model_dir),
        "--model-name",
        endpoints.model,
        "--disaggregation-mode",
        DYNAMO_MODES[worker.role],
        "--no-enable-prefix-caching",
    ]
    env = {"DYN_SYSTEM_PORT": str(endpoints.system(worker)[1])}
    if several:
        argv += ["--num-workers", str(len(facts.process.workers))]
        env[PORTS_VARIABLE] = ",".join(str(endpoints.system(one)[1]) for one in facts.process.workers)
    return Start((*argv, *flags(facts.role.args)), env)
