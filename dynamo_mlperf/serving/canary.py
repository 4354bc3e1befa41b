"""Requests outside the timed window: one to each worker by name, the KV canary, the warm-up."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ServingError
from dynamo_mlperf.serving.counters import Counts, difference, transfer_evidence
from dynamo_mlperf.serving.http import Request
from dynamo_mlperf.serving.readiness import COUNTERS_SETTLE_S, directed_headers, worker_pairs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dynamo_mlperf.serving.http import Response
    from dynamo_mlperf.serving.readiness import Gate

CANARY_TOKENS = 24
CHAT_PATH = "/v1/chat/completions"


def answer_text(response: Response, who: str) -> str:
    """The text of a streamed answer.

    Raises:
        ServingError: There is no answer, an error in it, or nothing in it.
    """
    if not response.ok:
        told = response.problem or f"HTTP {response.status}: {response.body[:300].decode(errors='replace')}"
        raise ServingError(f"{who} did not answer a request: {told}", "read logs/frontend-0.log and the worker's log")
    text, tokens = "", 0
    for line in response.body.decode(errors="replace").splitlines():
        if not line.startswith("data:") or line.endswith("[DONE]"):
            continue
        event: dict[str, Any] = json.loads(line[5:])
        if "error" in event:
            raise ServingError(f"{who} answered with an error: {event['error']}", "read the worker's log")
        tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
        text += "".join(choice.get("delta", {}).get("content") or "" for choice in event.get("choices", []))
    if not text and not tokens:
        raise ServingError(f"{who} answered without a single token", "read the worker's log")
    return text


def read_all_counters(gate: Gate) -> dict[str, tuple[str, Counts]]:
    """Each worker's metrics page and counters, by worker name."""
    return {worker.name: gate.counters(worker) for worker in gate.workers}


def differences(before: Mapping[str, tuple[str, Counts]], after: Mapping[str, tuple[str, Counts]]) -> dict[str, Counts]:
    """What each worker counted between two readings."""
    return {name: difference(before[name][1], counts) for name, (_, counts) in after.items()}


def per_role(gate: Gate, counts: Mapping[str, Counts]) -> dict[str, Counts]:
    """Sums over the workers of each role."""
    sums: dict[str, Counts] = {}
    for worker in gate.workers:
        sums.setdefault(worker.role, Counter()).update(counts[worker.name])
    return sums


def settled_counters(
    gate: Gate, before: Mapping[str, tuple[str, Counts]], requests: int
) -> dict[str, tuple[str, Counts]]:
    """Read the counters once they include `requests` more requests (engines count a moment after they answer).

    Returns what stands there after COUNTERS_SETTLE_S when they never do; the verdict then speaks.
    """
    deadline = time.monotonic() + COUNTERS_SETTLE_S
    while True:
        after = read_all_counters(gate)
        roles = per_role(gate, differences(before, after))
        counted = sum(counts["served"] for role, counts in roles.items() if role != "prefill")
        finished = sum(counts["finished"] for role, counts in roles.items() if role != "prefill")
        if max(finished, 0) >= requests or (finished == 0 and counted >= requests) or time.monotonic() > deadline:
            return after
        time.sleep(0.1)
        gate.supervisor.tick()


def greedy(body: bytes) -> bytes:
    """The same request with greedy sampling and a short answer, so that answers can be compared."""
    return json.dumps({**json.loads(body), "temperature": 0.0, "max_tokens": CANARY_TOKENS}).encode()


def serve_each(gate: Gate, ids: Mapping[str, int], bodies: Sequence[bytes]) -> dict[str, Any]:
    """Greedy requests to each worker by name, through every frontend, then the counters: who served, and what moved.

    This is the gate's last step and the KV canary in one: each worker must count requests of its own, each answer
    must hold something, and in a disaggregated deployment each prompt must have come over KV transfer.

    Returns:
        The canary's record: each pair's answers in the order of `bodies` (equal models give equal ones where the
        arithmetic is exact enough), seconds, and what the counters say.

    Raises:
        ServingError: A worker did not serve, or KV did not move.
    """
    before = read_all_counters(gate)
    answers: dict[str, list[str]] = {}
    seconds: list[float] = []
    for frontend in gate.endpoints.plan.frontends:
        address = gate.endpoints.frontend(frontend)
        for prefill, decode in worker_pairs(gate.workers):
            who = f"{prefill} to {decode}" if prefill else decode
            gate.say(f"a request of its own for {who}")
            headers = directed_headers(ids, prefill, decode)
            replies = [gate.fetch(address, CHAT_PATH, body=greedy(body), headers=headers) for body in bodies]
            answers[who] = [answer_text(reply, who) for reply in replies]
            seconds += [round(reply.seconds, 3) for reply in replies]
    moved = differences(before, settled_counters(gate, before, len(seconds)))
    _check_canary(gate, moved, len(seconds))
    evidence = transfer_evidence(gate.engine, per_role(gate, moved))
    return {
        "requests": len(seconds),
        "answers": answers,
        "seconds": seconds,
        "remote_prefills": evidence.remote_prefills,
        "kv_bytes": evidence.kv_bytes,
        "failed_transfers": evidence.failed_transfers,
    }


def _check_canary(gate: Gate, moved: Mapping[str, Counts], requests: int) -> None:
    idle = [name for name, counts in moved.items() if counts["served"] < 1]
    if idle:
        raise ServingError(
            f"{len(idle)} of {len(moved)} workers served no request of their own: {', '.join(idle)}",
            f"read logs/{idle[0]}.log",
        )
    evidence = transfer_evidence(gate.engine, per_role(gate, moved))
    if evidence.disaggregated and evidence.remote_prefills < requests:
        raise ServingError(
            f"{evidence.remote_prefills} of {requests} canary prompts prefilled remotely "
            f"({evidence.external_tokens} of {evidence.prompt_tokens} prompt tokens came by KV transfer, "
            f"{evidence.failed_transfers} transfers failed)",
            "read the decode workers' logs; check UCX_TLS, the side-channel ports and the KV transfer settings",
        )


def warm_up(gate: Gate, bodies: Sequence[bytes], in_flight: int) -> dict[str, Any]:
    """Send the bodies through the frontends in turn, `in_flight` at a time, outside the timed window.

    Raises:
        ServingError: One was not answered.
    """
    frontends = gate.endpoints.plan.frontends
    waiting = list(enumerate(bodies))
    running: list[tuple[int, Request]] = []
    seconds: list[float] = []

    def turn() -> bool | None:
        while waiting and len(running) < in_flight:
            number, body = waiting.pop(0)
            address = gate.endpoints.frontend(frontends[number % len(frontends)])
            running.append((number, Request(address, CHAT_PATH, body=body, timeout_s=gate.request_s)))
        for entry in list(running):
            response = entry[1].poll()
            if response is not None:
                running.remove(entry)
                answer_text(response, f"warm-up request {entry[0]}")
                seconds.append(round(response.seconds, 3))
        gate.say(f"{len(seconds)} of {len(bodies)} warm-up requests answered")
        return None if running or waiting else True

    gate.supervisor.wait_for(
        turn, gate.request_s * (len(bodies) + 1), lambda: f"{len(seconds)} of {len(bodies)} warm-up requests answered"
    )
    return {"requests": len(seconds), "seconds": seconds}
