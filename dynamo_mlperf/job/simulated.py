"""Whether an endpoint's answers come from Dynamo's simulated engines, which nothing else at a URL tells.

Dynamo 1.6.1's frontend lists a mocker as it lists an engine: `owned_by: nvidia`, the same component, ready, with the
cache size that was configured. Its answers give it away: token ids drawn at random from 1000 to 1999, others at each
call though the sampling is greedy. No model answers so: two greedy answers of 24 tokens, all from that range, and
different ones.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.serving.errands import CHAT_PATH
from dynamo_mlperf.serving.http import Request

if TYPE_CHECKING:
    from dynamo_mlperf.job.endpoint import Endpoint, Waits
    from dynamo_mlperf.serving.http import Response

TOKENS = 24
MOCKED_IDS = range(1000, 2000)
"""What the mocker draws from (seen with ai-dynamo 1.6.1)."""
_ASKED = 2
_ANSWER_S = 120.0


def refuse_simulated(endpoint: Endpoint, supervisor: Waits) -> None:
    """Ask each address twice, before anything is timed.

    A server that answers otherwise, or not at all, is not judged here: the measurement will tell.

    Raises:
        ConfigError: The answers are a simulated engine's; the result could not be official.
    """
    body = json.dumps(_request(endpoint.model)).encode()
    for url, address in zip(endpoint.urls, endpoint.entrances, strict=True):
        answers = []
        for _ in range(_ASKED):
            request = Request(address, CHAT_PATH, body=body, timeout_s=_ANSWER_S)
            answers.append(_ids(supervisor.wait_for(request.poll, float("inf"), lambda: "no answer")))
        if are_mocked(answers):
            raise ConfigError(
                f"{url} is served by simulated engines (dynamo.mocker): {_ASKED} greedy answers to one question have "
                f"nothing in common but token ids drawn from {MOCKED_IDS.start} to {MOCKED_IDS.stop - 1}",
                "add --rehearsal, or serve the model itself",
            )


def are_mocked(answers: list[list[int]]) -> bool:
    """Whether greedy answers to one question, as token ids, are those of a mocker."""
    drawn = all(len(ids) == TOKENS and all(token in MOCKED_IDS for token in ids) for ids in answers)
    return drawn and len({tuple(ids) for ids in answers}) == len(answers)


def _request(model: str) -> dict[str, Any]:
    """One greedy request whose answer names its token ids."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": "Count from one to one hundred in words."}],
        "max_tokens": TOKENS,
        "temperature": 0.0,
        "nvext": {"extra_fields": ["completion_token_ids"]},
    }


def _ids(answer: Response) -> list[int]:
    """The token ids of an answer; none where it names none."""
    try:
        found = answer.json()["nvext"]["completion_token_ids"] if answer.ok else []
        return [int(token) for token in found]
    except (ValueError, TypeError, KeyError, RecursionError):
        return []
