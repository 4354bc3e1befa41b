"""Requests of their own for workers, many workers side by side, and what an answer says."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ServingError
from dynamo_mlperf.serving.http import Request
from dynamo_mlperf.serving.readiness import AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from dynamo_mlperf.serving.http import Response
    from dynamo_mlperf.serving.readiness import Gate

CHAT_PATH = "/v1/chat/completions"
ROUTABLE_S = 60.0
"""How long a frontend may refuse (HTTP 400) to send requests to a worker that it lists.

It takes in model cards one after the other, behind the listing: seconds behind, with hundreds of workers.
"""
RETRY_S = 0.5


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


@dataclass
class Errand:
    """Requests for one pair of workers (or one worker) through one frontend, one after the other.

    Attributes:
        who: For messages: `prefill-0 to decode-1`.
        workers: The workers' names.
        address: The frontend's.
        headers: What directs a request to the workers.
        bodies: The requests.
        replies: The answers so far, each of them one that says something.
    """

    who: str
    workers: tuple[str, ...]
    address: tuple[str, int]
    headers: Mapping[str, str]
    bodies: list[bytes]
    replies: list[Response] = field(default_factory=list)
    _request: Request | None = None
    _not_before: float = 0.0

    @property
    def done(self) -> bool:
        """Whether every request is answered."""
        return len(self.replies) == len(self.bodies)

    def look(self, request_s: float, routable_by: float) -> None:
        """Take in an answer, send the next request.

        Raises:
            ServingError: The answer is none; until `routable_by` (monotonic) a refusal is asked again instead.
        """
        reply = self._request.poll() if self._request else None
        if reply is not None:
            self._request = None
            if reply.status == HTTPStatus.BAD_REQUEST and time.monotonic() < routable_by:
                self._not_before = time.monotonic() + RETRY_S
            else:
                answer_text(reply, self.who)
                self.replies.append(reply)
        if self._request is None and not self.done and time.monotonic() >= self._not_before:
            body = self.bodies[len(self.replies)]
            self._request = Request(self.address, CHAT_PATH, body=body, headers=self.headers, timeout_s=request_s)


def run_errands(gate: Gate, errands: Sequence[Errand]) -> None:
    """Send all requests; no worker has two at once, so that an answer does not depend on what shares its batch.

    Raises:
        ServingError: A worker did not answer one.
    """
    waiting, running = list(errands), list[Errand]()
    total = len({name for errand in errands for name in errand.workers})
    routable_by = time.monotonic() + ROUTABLE_S

    def turn() -> bool | None:
        for errand in running:
            errand.look(gate.request_s, routable_by)
        running[:] = [errand for errand in running if not errand.done]
        busy = {name for errand in running for name in errand.workers}
        for errand in list(waiting):
            if len(running) >= AT_ONCE:
                break
            if busy.isdisjoint(errand.workers):
                waiting.remove(errand)
                running.append(errand)
                busy.update(errand.workers)
        still = {name for errand in (*waiting, *running) for name in errand.workers}
        gate.say(f"{total - len(still)} of {total} workers have served requests of their own")
        return None if running or waiting else True

    requests = sum(len(errand.bodies) for errand in errands)
    latest_s = ROUTABLE_S + (gate.request_s + 5) * requests
    gate.supervisor.wait_for(turn, latest_s, lambda: "requests of their own for the workers hang")
