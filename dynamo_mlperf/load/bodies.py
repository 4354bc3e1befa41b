"""Bodies of OpenAI chat completion requests."""

from __future__ import annotations

import json
from typing import Any


def chat_body(model: str, messages: list[dict[str, Any]], max_tokens: int, *, token_ids: bool = False) -> bytes:
    """One streaming chat completion with usage at its end, as UTF-8 JSON.

    It carries no sampling parameter: the model's `generation_config.json` decides, as in the benchmark's reference.

    Args:
        model: The served model name.
        messages: Chat messages; content parts (images) go in as they are.
        max_tokens: Cap on output tokens.
        token_ids: Ask for the ids of the generated tokens (TEST06 compares those). Dynamo 1.6.1 sends them with each
            chunk as `nvext.completion_token_ids`; seen with its mocker.
    """
    body: dict[str, Any] = {
        "model": model,
        "messages": messages,
        "max_tokens": max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if token_ids:
        body["nvext"] = {"extra_fields": ["completion_token_ids"]}
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
