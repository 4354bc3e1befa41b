"""An OpenAI-compatible endpoint that is up already: its addresses, what it serves, and how it gives token ids."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args
from urllib.parse import urlsplit

from dynamo_mlperf.errors import ConfigError, MeasureError
from dynamo_mlperf.load.bodies import IdsFrom, chat_body
from dynamo_mlperf.serving.errands import CHAT_PATH
from dynamo_mlperf.serving.http import Request

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from dynamo_mlperf.serving.http import Response
    from dynamo_mlperf.serving.supervisor import Supervisor

_MODELS_PATH = "/v1/models"
_MODELS_S = 30.0
_TOKENS = 4
_SHOWN_BYTES = 200
_ID_KEYS: dict[IdsFrom, bytes] = {"dynamo": b'"completion_token_ids"', "vllm": b'"token_ids"'}


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
    if parts.username or parts.query or parts.path.rstrip("/") not in {"", "/v1", CHAT_PATH}:
        raise ConfigError(f"{url}: only {CHAT_PATH} is measured, without user or query", action)
    return parts.hostname, port


def check_model(endpoint: Endpoint, supervisor: Supervisor) -> None:
    """Every address answers and lists the model.

    Raises:
        ConfigError: One lists other models.
        MeasureError: One does not answer.
    """
    for url, address in zip(endpoint.urls, endpoint.entrances, strict=True):
        answer = _answer(supervisor, Request(address, _MODELS_PATH, timeout_s=_MODELS_S))
        if not answer.ok:
            said = answer.problem or f"HTTP {answer.status}"
            raise MeasureError(f"{url}{_MODELS_PATH}: {said}", "start the server, or name the one that is up")
        served = _models(answer)
        if endpoint.model not in served:
            listed = ", ".join(served) or "none"
            raise ConfigError(f"{url} serves no model {endpoint.model!r}; it lists {listed}", "name one with --model")


def _models(answer: Response) -> list[str]:
    try:
        value: Any = answer.json()
        return [str(entry["id"]) for entry in value["data"]]
    except (ValueError, TypeError, KeyError):
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


def _answer(supervisor: Supervisor, request: Request) -> Response:
    return supervisor.wait_for(request.poll, float("inf"), lambda: "no answer")
