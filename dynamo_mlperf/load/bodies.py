"""Bodies of OpenAI chat completion requests."""

from __future__ import annotations

import json
from typing import Any, Literal

IdsFrom = Literal["dynamo", "vllm"]
"""Whose way to ask for the ids of the generated tokens."""

_ASK_FOR_IDS: dict[IdsFrom, dict[str, Any]] = {
    "dynamo": {"nvext": {"extra_fields": ["completion_token_ids"]}},
    "vllm": {"return_token_ids": True},
}
"""Dynamo 1.6.1 sends them with each chunk as `nvext.completion_token_ids` (seen with its mocker); vLLM's own server
with each choice as `token_ids` (`ChatCompletionRequest.return_token_ids` of vLLM 0.31)."""


def chat_body(
    model: str,
    messages: list[dict[str, Any]],
    max_tokens: int,
    *,
    token_ids: bool = False,
    ids_from: IdsFrom = "dynamo",
    effort: str | None = None,
) -> bytes:
    """One streaming chat completion with usage at its end, as UTF-8 JSON.

    It carries no sampling parameter: the model's `generation_config.json` decides, as in the benchmark's reference.

    Args:
        model: The served model name.
        messages: Chat messages; content parts (images) go in as they are.
        max_tokens: Cap on output tokens.
        token_ids: Ask for the ids of the generated tokens (TEST06 compares those).
        ids_from: The server's way to be asked.
        effort: How much the model is told to reason, for the chat template (Dynamo, vLLM, SGLang and TensorRT-LLM take
            it by the same key); None where the template does not ask.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if effort is not None:
        body["chat_template_kwargs"] = {"reasoning_effort": effort}
    if token_ids:
        body.update(_ASK_FOR_IDS[ids_from])
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
