"""An OpenAI-compatible endpoint that is up already: its addresses, what it serves, and how it gives token ids."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar, get_args
from urllib.parse import urlsplit

from dynamo_mlperf.errors import ConfigError, MeasureError, ServingError
from dynamo_mlperf.load.bodies import IdsFrom, chat_body
from dynamo_mlperf.process.secret_words import redacted
from dynamo_mlperf.serving.errands import CHAT_PATH
from dynamo_mlperf.serving.http import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from dynamo_mlperf.process.signals import StopFlag
    from dynamo_mlperf.serving.http import Response
    from dynamo_mlperf.serving.supervisor import Supervisor

ORACLE = "dynamo-mlperf-oracle"
"""`owned_by` in the model list of this project's servers that know the answers (tests/fakes)."""

_MODELS_PATH = "/v1/models"
_LIMITS = ("max_model_len", "context_window")
"""Of an entry of the model list: with vLLM and SGLang, with Dynamo (1.6.1; 0 where its engine says nothing)."""
_MODELS_S = 30.0
_TOKENS = 4
_POLL_S = 0.01
_SHOWN_BYTES = 200
_ID_KEYS: dict[IdsFrom, bytes] = {"dynamo": b'"completion_token_ids"', "vllm": b'"token_ids"'}


T = TypeVar("T")


class Waits(Protocol):
    """What can wait for an answer: the supervisor of a run, or `BareWait` where there is no run yet."""

    def wait_for(self, probe: Callable[[], T | None], timeout_s: float, late: Callable[[], str]) -> T:
        """Turn until `probe` gives something."""


@dataclass(frozen=True)
class BareWait:
    """Waits without a run to supervise, so that nothing has to be recorded.

    Attributes:
        stop: What a signal sets.
    """

    stop: StopFlag

    def wait_for(self, probe: Callable[[], T | None], timeout_s: float, late: Callable[[], str]) -> T:
        """Turn until `probe` gives something.

        Raises:
            Stopped: A signal asked for it.
            ServingError: `timeout_s` went by.
        """
        deadline = time.monotonic() + timeout_s
        while (found := probe()) is None:
            self.stop.check()
            if time.monotonic() > deadline:
                raise ServingError(late(), "ask a server that answers")
            time.sleep(_POLL_S)
        return found


@dataclass(frozen=True)
class Endpoint:
    """Where requests go.

    Attributes:
        urls: As they were given.
        entrances: Host and port of each.
        model: The served model name.
    """

    urls: tuple[str, ...]
    entrances: tuple[tuple[str, int], ...]
    model: str


def endpoint_of(urls: Sequence[str], model: str) -> Endpoint:
    """The endpoint at these URLs.

    Raises:
        ConfigError: One is none that the client can use, or the model has no name.
    """
    if not model.strip():
        raise ConfigError("--model is empty", "give the name that the endpoint serves it under (GET /v1/models)")
    return Endpoint(tuple(urls), tuple(_entrance(url) for url in urls), model)


def _entrance(url: str) -> tuple[str, int]:
    action = "write http://HOST:PORT"
    if "@" in url:
        raise ConfigError(f"{redacted(url)}: a URL with a user is recorded with the run", action)
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{url!r} is no URL: {error}", action) from error
    if parts.scheme != "http":
        raise ConfigError(
            f"{url}: the client speaks plain HTTP, not {parts.scheme}", "name the server behind the proxy that encrypts"
        )
    if not parts.hostname or port is None or port == 0:
        raise ConfigError(f"{url} names no host and port", action)
    if parts.query or parts.path.rstrip("/") not in {"", "/v1", CHAT_PATH}:
        raise ConfigError(f"{url}: only {CHAT_PATH} is measured, without query", action)
    return parts.hostname, port


def check_model(endpoint: Endpoint, supervisor: Waits, *, official: bool) -> int | None:
    """Every address answers and lists the model.

    Args:
        endpoint: What to ask.
        supervisor: Waits for the answers.
        official: Whether the result could be submitted, so that a server that only looks like a model will not do.

    Returns:
        The lowest limit of prompt and answer together that they list for it, in tokens; None where none does.

    Raises:
        ConfigError: One lists other models, or says that it is an oracle and the result would be official.
        MeasureError: One does not answer.
    """
    limits: list[int] = []
    for url, address in zip(endpoint.urls, endpoint.entrances, strict=True):
        try:
            answer = _answer(supervisor, Request(address, _MODELS_PATH, timeout_s=_MODELS_S))
        except OSError as problem:  # the name of the host has no address
            raise MeasureError(f"{url}: {problem.strerror}", "name the host so that it is found from here") from problem
        if not answer.ok:
            said = answer.problem or f"HTTP {answer.status}"
            raise MeasureError(f"{url}{_MODELS_PATH}: {said}", "start the server, or name the one that is up")
        listed = _listed(answer)
        served = [str(entry["id"]) for entry in listed]
        if endpoint.model not in served:
            shown = ", ".join(served) or "none"
            raise ConfigError(f"{url} serves no model {endpoint.model!r}; it lists {shown}", "name one with --model")
        if official and any(entry.get("owned_by") == ORACLE for entry in listed):
            raise ConfigError(f"{url} is an oracle: it knows the answers and is no model", "add --rehearsal")
        found = (entry.get(key) for entry in listed if entry["id"] == endpoint.model for key in _LIMITS)
        limits += [limit for limit in found if isinstance(limit, int) and limit > 0]
    return min(limits, default=None)


def _listed(answer: Response) -> list[dict[str, Any]]:
    """The entries of a model list; none where it is no such list."""
    try:
        value: Any = answer.json()
        return [entry for entry in value["data"] if "id" in entry and isinstance(entry, dict)]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []


def ids_from(endpoint: Endpoint, body: bytes, supervisor: Supervisor, timeout_s: float) -> IdsFrom:
    """How this server is asked for token ids: tried with one short request each.

    Raises:
        MeasureError: It gives none either way.
    """
    wanted = json.loads(body)
    said = b""
    for way in get_args(IdsFrom):
        asked = chat_body(endpoint.model, wanted["messages"], _TOKENS, token_ids=True, ids_from=way)
        request = Request(endpoint.entrances[0], CHAT_PATH, body=asked, timeout_s=timeout_s)
        answer = _answer(supervisor, request)
        if answer.ok and _ID_KEYS[way] in answer.body:
            found: IdsFrom = way
            return found
        said = answer.body or answer.problem.encode()
    raise MeasureError(
        f"{endpoint.urls[0]} gives no token ids, by nvext.extra_fields (Dynamo) or return_token_ids (vLLM); it said "
        f"{said[:_SHOWN_BYTES].decode('utf-8', 'replace')!r}",
        "serve the model with Dynamo or vLLM: TEST06 and TEST09 compare token ids",
    )


def _answer(supervisor: Waits, request: Request) -> Response:
    return supervisor.wait_for(request.poll, float("inf"), lambda: "no answer")
