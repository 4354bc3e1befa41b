"""Requests to an endpoint that is up already, before anything is timed: a canary to each address, then the warm-up."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import MeasureError, ServingError
from dynamo_mlperf.job.workload import WARM_UP_TOKENS
from dynamo_mlperf.serving.canary import CANARY_TOKENS, WARM_UP_REQUEST, send_through
from dynamo_mlperf.serving.errands import answer_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from dynamo_mlperf.job.endpoint import Endpoint
    from dynamo_mlperf.serving.supervisor import Supervisor

NO_WARM_UP = "no warm-up was sent before the test (--warmup-requests 0)"

_IN_FLIGHT = 8


def capped(bodies: Iterable[bytes], tokens: int) -> list[bytes]:
    """The bodies with their answers cut short: a reasoning model's whole answers take minutes."""
    read = (json.loads(body) for body in bodies)
    return [json.dumps({**body, "max_tokens": min(body["max_tokens"], tokens)}).encode() for body in read]


def send_canary(
    endpoint: Endpoint, body: bytes, supervisor: Supervisor, request_s: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """One short request to each address; each answer must hold something.

    Returns:
        `requests`, `answers` (text by URL) and `seconds`, for `evidence.json`.

    Raises:
        MeasureError: One is not answered, or the answer holds nothing; says whose.
    """
    (short,) = capped([body], CANARY_TOKENS)
    answers, seconds = {}, []
    for url, address in zip(endpoint.urls, endpoint.entrances, strict=True):
        try:
            (reply,) = send_through(supervisor, (address,), [short], 1, request_s, say, f"{url}, canary request")
        except ServingError as problem:
            raise _refused(problem) from problem
        answers[url] = answer_text(reply, url)
        seconds.append(round(reply.seconds, 3))
    return {"requests": len(seconds), "answers": answers, "seconds": seconds}


def send_warm_up(
    endpoint: Endpoint, bodies: Sequence[bytes], supervisor: Supervisor, request_s: float, say: Callable[[str], None]
) -> dict[str, Any]:
    """The bodies to the addresses in turn; their answers are cut short, and must hold something.

    Returns:
        `requests` and `seconds`, for `evidence.json`.

    Raises:
        MeasureError: One is not answered.
    """
    short = capped(bodies, WARM_UP_TOKENS)
    try:
        replies = send_through(supervisor, endpoint.entrances, short, _IN_FLIGHT, request_s, say, WARM_UP_REQUEST)
    except ServingError as problem:
        raise _refused(problem) from problem
    return {"requests": len(replies), "seconds": [round(reply.seconds, 3) for reply in replies]}


def _refused(problem: ServingError) -> MeasureError:
    return MeasureError(f"before the test: {problem.what}", "look at the server's log, then run again")
