"""Requests outside the timed window: one to each worker by name, the KV canary, the warm-up."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ServingError
from dynamo_mlperf.serving.counters import Counts, difference, parse_counters, transfer_evidence
from dynamo_mlperf.serving.errands import CHAT_PATH, Errand, answer_text, run_errands
from dynamo_mlperf.serving.http import Request
from dynamo_mlperf.serving.loading import shortened
from dynamo_mlperf.serving.readiness import COUNTERS_SETTLE_S, directed_headers, worker_pairs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from dynamo_mlperf.serving.http import Response
    from dynamo_mlperf.serving.readiness import Gate
    from dynamo_mlperf.serving.supervisor import Supervisor

CANARY_TOKENS = 24
WARM_UP_REQUEST = "warm-up request"


def read_all_counters(gate: Gate) -> dict[str, tuple[str, Counts]]:
    """Each worker's metrics page and counters, by its name."""
    return {name: (text, parse_counters(text)) for name, text in gate.metrics().items()}


def differences(before: Mapping[str, tuple[str, Counts]], after: Mapping[str, tuple[str, Counts]]) -> dict[str, Counts]:
    """What each worker counted between two readings; one that started in between began at nought."""
    return {
        name: difference(before[name][1] if name in before else Counter(), counts)
        for name, (_, counts) in after.items()
    }


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
    must hold something, and in a disaggregated deployment each prompt must have come over KV transfer. Pairs without a
    common worker are asked side by side, AT_ONCE at most.

    Returns:
        The canary's record: each pair's answers in the order of `bodies` (equal models give equal ones where the
        arithmetic is exact enough), seconds, and what the counters say.

    Raises:
        ServingError: A worker did not serve, or KV did not move.
    """
    before = read_all_counters(gate)
    errands = [
        Errand(
            f"{prefill} to {decode}" if prefill else decode,
            (prefill, decode) if prefill else (decode,),
            gate.endpoints.frontend(frontend),
            directed_headers(ids, prefill, decode),
            [greedy(body) for body in bodies],
        )
        for frontend in gate.endpoints.plan.frontends
        for prefill, decode in worker_pairs(gate.workers)
    ]
    run_errands(gate, errands)
    answers = {one.who: [answer_text(reply, one.who) for reply in one.replies] for one in errands}
    seconds = [round(reply.seconds, 3) for one in errands for reply in one.replies]
    moved = differences(before, settled_counters(gate, before, len(seconds)))
    _check_canary(gate, moved, errands)
    evidence = transfer_evidence(gate.engine, per_role(gate, moved))
    return {
        "requests": len(seconds),
        "answers": answers,
        "seconds": seconds,
        "remote_prefills": evidence.remote_prefills,
        "kv_bytes": evidence.kv_bytes,
        "failed_transfers": evidence.failed_transfers,
    }


def _check_canary(gate: Gate, moved: Mapping[str, Counts], errands: Sequence[Errand]) -> None:
    asked = Counter(name for errand in errands for name in errand.workers for _ in errand.bodies)
    requests = sum(len(errand.bodies) for errand in errands)
    idle = [name for name, counts in moved.items() if counts["served"] < asked[name]]
    if idle:
        first = idle[0]
        raise ServingError(
            f"{len(idle)} of {len(moved)} workers did not serve the requests of their own: {shortened(idle)} "
            f"({first}: {moved[first]['served']} of {asked[first]})",
            f"read {gate.log_of(first)}",
        )
    evidence = transfer_evidence(gate.engine, per_role(gate, moved))
    # An engine without counters of its own proves nothing here: the verdict is then INVALID for want of proof.
    counted = evidence.proof != "none" or gate.engine == "vllm"
    if evidence.disaggregated and counted and evidence.remote_prefills < requests:
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
    entrances = gate.endpoints.entrances
    replies = send_through(gate.supervisor, entrances, bodies, in_flight, gate.request_s, gate.say, WARM_UP_REQUEST)
    return {"requests": len(replies), "seconds": [round(reply.seconds, 3) for reply in replies]}


def send_through(  # noqa: PLR0917 - one argument per independent decision
    supervisor: Supervisor,
    entrances: Sequence[tuple[str, int]],
    bodies: Sequence[bytes],
    in_flight: int,
    request_s: float,
    say: Callable[[str], None],
    who: str,
) -> list[Response]:
    """Send bodies to the entrances in turn, `in_flight` at a time; every answer says something.

    Args:
        supervisor: Waits for the answers.
        entrances: Host and port of each.
        bodies: Streamed chat completions.
        in_flight: How many at a time.
        request_s: Seconds until one counts as not answered.
        say: Is told how far it is.
        who: For messages: what each request is.

    Returns:
        The answers in the order in which they came.

    Raises:
        ServingError: One was not answered, or its answer holds nothing.
    """
    waiting = list(enumerate(bodies))
    running: list[tuple[int, Request]] = []
    replies: list[Response] = []

    def told() -> str:
        return f"{len(replies)} of {len(bodies)} {who}s answered"

    def turn() -> bool | None:
        while waiting and len(running) < in_flight:
            number, body = waiting.pop(0)
            address = entrances[number % len(entrances)]
            running.append((number, Request(address, CHAT_PATH, body=body, timeout_s=request_s)))
        for entry in list(running):
            response = entry[1].poll()
            if response is not None:
                running.remove(entry)
                answer_text(response, f"{who} {entry[0]}")
                replies.append(response)
        say(told())
        return None if running or waiting else True

    supervisor.wait_for(turn, request_s * (len(bodies) + 1), told)
    return replies
