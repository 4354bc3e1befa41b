"""Dynamo's offline replay (`dynamo.replay.api` of ai-dynamo 1.6.1) as a program: a JSON line in, a JSON line out.

A question names a file of requests, how much faster than written they arrive, the engines of each role and how many
there are. The answer holds one list per column asked for, in the order of the requests; null where a request did not
end. What cannot be simulated is answered with `error`.
"""

import json
import os
import sys

answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what the runtime itself prints must not come between the answers
os.environ.setdefault("DYN_LOG", "error")

from dynamo.replay.api import run_trace_replay  # noqa: E402 - it reads DYN_LOG when it is loaded


def replay(question):
    """One simulation."""
    workers = question["workers"]
    if "aggregated" in workers:
        engines = {"extra_engine_args": question["engines"]["aggregated"], "num_workers": workers["aggregated"]}
    else:
        engines = {f"{role}_engine_args": question["engines"][role] for role in ("prefill", "decode")}
        engines |= {f"num_{role}_workers": workers[role] for role in ("prefill", "decode")}
    report = run_trace_replay(
        question["requests"],
        arrival_speedup_ratio=question["speedup"],
        trace_block_size=question["block_size"],
        router_mode=question["router_mode"],
        capture_per_request=True,
        **engines,
    )
    found = {column: [each[column] for each in report.per_request] for column in question["columns"]}
    return {"columns": found, "simulated_ms": report.summary["duration_ms"]}


for line in sys.stdin:
    try:
        answer = replay(json.loads(line))
    except Exception as problem:  # noqa: BLE001 - whatever it is, the asker has to hear of it
        answer = {"error": f"{type(problem).__name__}: {problem}"[:400]}
    answers.write(json.dumps(answer) + "\n")
    answers.flush()
