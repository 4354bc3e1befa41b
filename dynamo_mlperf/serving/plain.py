"""Workers that answer OpenAI requests by themselves, without Dynamo: readiness, and requests of their own.

`trtllm-serve`: GET /health is HTTP 200 once the engine is up, GET /v1/models names the served model
(`tensorrt_llm/serve/openai_server.py` of NVIDIA/TensorRT-LLM). It has no counters that we know, so each worker is
proved by its own answers.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ServingError
from dynamo_mlperf.serving.canary import greedy
from dynamo_mlperf.serving.errands import CHAT_PATH, answer_text
from dynamo_mlperf.serving.http import Request
from dynamo_mlperf.serving.loading import Loading, shortened
from dynamo_mlperf.serving.readiness import AT_ONCE, HEALTH_EVERY_S

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynamo_mlperf.serving.http import Response
    from dynamo_mlperf.serving.readiness import Gate
    from dynamo_mlperf.topology.plan import Worker


def wait_until_answering(gate: Gate) -> None:
    """Until every worker says that it is healthy and serves this job's model.

    Raises:
        ServingError: The deadline went by, or a worker's port is served by something else.
    """
    started = time.monotonic()
    missing = {worker.name: worker for worker in gate.workers}
    total, next_look = len(missing), 0.0
    loading = Loading(gate)

    def look() -> bool | None:
        nonlocal next_look
        if time.monotonic() < next_look:
            return None
        places = {name: gate.endpoints.system(worker) for name, worker in missing.items()}
        healthy = [name for name, answer in gate.fetch_each(places, "/health", "workers").items() if answer.ok]
        models = gate.fetch_each({name: places[name] for name in healthy}, "/v1/models", "workers")
        for name, answer in models.items():
            _check_model(gate, missing.pop(name), answer)
            gate.events.add("process_ready", process=name, seconds=round(time.monotonic() - started, 3))
        next_look = time.monotonic() + HEALTH_EVERY_S
        hint = loading.hint(list(missing), time.monotonic())
        gate.say(f"{total - len(missing)} of {total} workers answer{hint}")
        return None if missing else True

    def late() -> str:
        named = "; ".join(f"{name} on node {one.node} (log {gate.log_of(name)})" for name, one in missing.items())
        return f"{len(missing)} of {total} workers not ready after {gate.ready_s:g} s: {named}"

    gate.supervisor.wait_for(look, gate.ready_s, late)


def _check_model(gate: Gate, worker: Worker, answer: Response) -> None:
    if not answer.ok or gate.endpoints.model.encode() not in answer.body:
        host, port = gate.endpoints.system(worker)
        raise ServingError(
            f"{host}:{port} is healthy but does not serve {gate.endpoints.model}, so it is not {worker.name}",
            f"read {gate.log_of(worker.name)}; look for another server on that port",
        )


def serve_each_itself(gate: Gate, bodies: Sequence[bytes]) -> dict[str, Any]:
    """Greedy requests to each worker at its own address, AT_ONCE workers side by side.

    Returns:
        The canary's record: each worker's answers in the order of `bodies`, and seconds.

    Raises:
        ServingError: A worker did not answer, or with nothing.
    """
    waiting = [(worker.name, gate.endpoints.system(worker)) for worker in gate.workers]
    total = len(waiting)
    running: dict[str, tuple[tuple[str, int], Request]] = {}
    replies: dict[str, list[Response]] = {name: [] for name, _place in waiting}

    def ask(name: str, place: tuple[str, int]) -> None:
        body = greedy(bodies[len(replies[name])])
        running[name] = (place, Request(place, CHAT_PATH, body=body, timeout_s=gate.request_s))

    def turn() -> bool | None:
        for name, (place, request) in list(running.items()):
            reply = request.poll()
            if reply is None:
                continue
            answer_text(reply, name)
            replies[name].append(reply)
            del running[name]
            if len(replies[name]) < len(bodies):
                ask(name, place)
        while waiting and len(running) < AT_ONCE:
            ask(*waiting.pop(0))
        gate.say(f"{total - len(waiting) - len(running)} of {total} workers have served requests of their own")
        return None if running or waiting else True

    patience_s = (gate.request_s + 5) * len(bodies) * (1 + total / AT_ONCE)
    try:
        gate.supervisor.wait_for(turn, patience_s, lambda: f"{shortened(list(running))}: requests of their own hang")
    finally:
        for _place, request in running.values():
            request.cancel()
    return {
        "requests": sum(map(len, replies.values())),
        "answers": {name: [answer_text(reply, name) for reply in own] for name, own in replies.items()},
        "seconds": [round(reply.seconds, 3) for own in replies.values() for reply in own],
    }
