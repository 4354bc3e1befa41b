"""The model's own end-of-text ids, from the files beside its weights.

`generation_config.json` says where generation ends (one id or several), `config.json` the same in older models (in
`text_config` for those with images), `tokenizer_config.json` names the token, whose id `tokenizer.json` has.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import read_bounded

if TYPE_CHECKING:
    from pathlib import Path


def end_of_text_ids(model: Path) -> frozenset[int]:
    """The ids at which this model's answers end.

    Args:
        model: Directory of the model or its tokenizer, or a file in it.

    Raises:
        ConfigError: No file there names one.
    """
    directory = model if model.is_dir() else model.parent
    ids = [
        *_ids(_read(directory / "generation_config.json").get("eos_token_id")),
        *_ids(_of_config(_read(directory / "config.json"))),
        *_named(directory),
    ]
    if not ids:
        raise ConfigError(
            f"{directory} names no end-of-text token: no eos_token_id in generation_config.json or config.json, no "
            "eos_token in tokenizer_config.json",
            "name the model's own directory (--tokenizer DIR)",
        )
    return frozenset(ids)


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        value = json.loads(read_bounded(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", "copy the model's files again") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} holds a {type(value).__name__}", "copy the model's files again")
    return value


def _of_config(config: dict[str, Any]) -> object:
    inner = config.get("text_config")
    return config.get("eos_token_id", inner.get("eos_token_id") if isinstance(inner, dict) else None)


def _ids(value: object) -> list[int]:
    entries = value if isinstance(value, list) else [value]
    return [entry for entry in entries if isinstance(entry, int) and not isinstance(entry, bool) and entry >= 0]


def _named(directory: Path) -> list[int]:
    """The id of the token that `tokenizer_config.json` calls the end of text."""
    name = _read(directory / "tokenizer_config.json").get("eos_token")
    text = name.get("content") if isinstance(name, dict) else name
    added = _read(directory / "tokenizer.json").get("added_tokens") if text else None
    entries = added if isinstance(added, list) else []
    return _ids([entry.get("id") for entry in entries if isinstance(entry, dict) and entry.get("content") == text])
