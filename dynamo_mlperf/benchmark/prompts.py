"""Text prompts: the data set of the language model benchmarks, from disk to chat messages.

On disk: `prompts.jsonl`, one sample a line in the order of its sample index, either `{"prompt": "..."}` (one message
of the user's) or `{"messages": [{"role": "...", "content": "..."}, ...]}`. The model's chat template is the engine's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from dynamo_mlperf.benchmark.json_lines import json_lines
from dynamo_mlperf.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

PROMPTS_FILE = "prompts.jsonl"
_ROLES = ("system", "user", "assistant")
_SHOWN_LETTERS = 80


@dataclass(frozen=True)
class PromptSample:
    """One prompt.

    Attributes:
        turns: Role and text of each message.
        where: File and line that it comes from, for messages.
    """

    turns: tuple[tuple[str, str], ...]
    where: str

    @property
    def messages(self) -> list[dict[str, Any]]:
        """Chat messages in the OpenAI form."""
        return [{"role": role, "content": content} for role, content in self.turns]


class Prompts(Sequence[PromptSample]):
    """The prompts of a data set, in the order of the file: a sample's index is its place here."""

    def __init__(self, samples: Sequence[PromptSample]) -> None:
        self._samples = tuple(samples)

    def __len__(self) -> int:
        return len(self._samples)

    @overload
    def __getitem__(self, index: int) -> PromptSample: ...
    @overload
    def __getitem__(self, index: slice) -> Prompts: ...
    def __getitem__(self, index: int | slice) -> PromptSample | Prompts:
        return Prompts(self._samples[index]) if isinstance(index, slice) else self._samples[index]


def load_prompts(directory: Path) -> Prompts:
    """Read `prompts.jsonl` of `directory`.

    Raises:
        ConfigError: No such file, no prompt in it, or a line that is none; names file and line.
    """
    path = directory / PROMPTS_FILE
    samples = [_sample(value, where) for where, value in json_lines(path, _way_out())]
    if not samples:
        raise ConfigError(f"measure.dataset: {path}: 0 prompts", _way_out())
    return Prompts(samples)


def _way_out() -> str:
    return (
        f"name a directory that holds a {PROMPTS_FILE}; `dynamo-mlperf init --assets assets` makes a small one, "
        "assets/tiny-prompts"
    )


def _sample(value: dict[str, Any], where: str) -> PromptSample:
    if value.keys() & {"prompt", "messages"} == {"prompt"}:
        return PromptSample((("user", _text(value["prompt"], f"{where}: prompt")),), where)
    if value.keys() & {"prompt", "messages"} == {"messages"}:
        return PromptSample(_turns(value["messages"], where), where)
    raise ConfigError(f"{where}: {_shown(value)}", 'write {"prompt": "..."} or {"messages": [...]}')


def _turns(value: Any, where: str) -> tuple[tuple[str, str], ...]:  # noqa: ANN401 - whatever the line holds
    if not isinstance(value, list) or not value:
        raise ConfigError(f"{where}: messages is {_shown(value)}", "give it as a list of messages")
    turns = []
    for message in value:
        if not isinstance(message, dict) or message.get("role") not in _ROLES:
            raise ConfigError(f"{where}: message {_shown(message)}", f"give it a role: {', '.join(_ROLES)}")
        turns.append((message["role"], _text(message.get("content"), f"{where}: content")))
    return tuple(turns)


def _text(value: Any, where: str) -> str:  # noqa: ANN401 - whatever the line holds
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{where} is {_shown(value)}", "give it as a text that is not empty")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{where} holds half of a surrogate pair at {error.start}", "write the character") from error
    return value


def _shown(value: Any) -> str:  # noqa: ANN401 - whatever the line holds
    shown = json.dumps(value)
    return shown if len(shown) <= _SHOWN_LETTERS else f"{shown[:_SHOWN_LETTERS]}..."
