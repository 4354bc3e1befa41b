"""What `init --model` means: a published model, however its name is written, another one, or a directory."""

from __future__ import annotations

import os
import re
from pathlib import Path

from dynamo_mlperf.benchmark.model_shapes import PUBLISHED
from dynamo_mlperf.errors import ConfigError

_KINDS = r"(chat|instruct|thinking|hf|[0-9]{4})+"
"""What stands behind a model's name in the names of its repositories: `Llama-2-70b-chat-hf`, `DeepSeek-R1-0528`."""
_FAMILY = 6
"""Letters and digits of a name that tell a family of models: `llama2`, `qwen3v`."""
_SHOWN = 80


def _folded(model: str) -> str:
    """`meta-llama/Llama-2-70b` as `llama270b`: what names of one model have in common."""
    return re.sub(r"[^a-z0-9]", "", model.rpartition("/")[2].lower())


_NAMES = {_folded(name): name for name in PUBLISHED}
"""The published models by their folded names."""


def model_given(word: str) -> tuple[str, Path | None]:
    """The model's name, and its directory where that is what was given.

    Raises:
        ConfigError: It is a path, and no model lies there.
    """
    place = Path(word)
    if os.path.isfile(place / "config.json"):  # noqa: PTH113 - Path.is_file raises where a name is too long
        return known_model(place.resolve().name), place.resolve()
    if word.startswith(("/", "./", "../", "~")):
        what = f"--model {word[:_SHOWN]}: there is no config.json"
        raise ConfigError(what, "name the directory of the model's files, or the model: --model qwen3-vl-235b-a22b")
    return known_model(word), None


def known_model(model: str) -> str:
    """The published model that a name means, in whatever way it is written; any other name as it is."""
    given = _folded(model)
    return next((name for own, name in _NAMES.items() if re.fullmatch(f"{own}({_KINDS})?", given)), model)


def published_name(model: str) -> str:
    """The same where nothing stands behind the model's own name: a name that may be a benchmark's."""
    return _NAMES.get(_folded(model), model)


def near_model(model: str) -> str | None:
    """A published model whose name begins as this one does: of another size, precision or training."""
    folded = _folded(model)
    if len(folded) < _FAMILY:
        return None
    return next((name for own, name in _NAMES.items() if own.startswith(folded[:_FAMILY])), None)
