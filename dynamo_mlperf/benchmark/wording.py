"""The wording of a catalogue's prompts, where the data set brings one along: `prompt.json` beside `catalogue.jsonl`.

The benchmark's own wording stands in its reference implementation. `dynamo-mlperf dataset --reference DIR` takes it
from a checkout, so that it is that one to the letter; a catalogue without `prompt.json` is asked in this project's
words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import read_bounded

WORDING_FILE = "prompt.json"
FIELDS = ("product_title", "product_description", "potential_product_categories")


@dataclass(frozen=True)
class Wording:
    """The two texts of a prompt.

    Attributes:
        system: What to answer.
        user: Pieces of the text about the product; those that are names of fields stand for their values.
    """

    system: str
    user: tuple[str, ...]

    def user_text(self, values: Mapping[str, object]) -> str:
        """The text about one product, values printed as Python prints them (as the reference does)."""
        return "".join(str(values[piece]) if piece in FIELDS else piece for piece in self.user)

    def to_json(self) -> dict[str, object]:
        """Plain JSON values."""
        return {"system": self.system, "user": list(self.user)}


def load_wording(directory: Path) -> Wording | None:
    """The wording of the catalogue in `directory`; None where it brings none along.

    Raises:
        ConfigError: The file cannot be read, or is of another form.
    """
    path = directory / WORDING_FILE
    if not path.exists():
        return None
    try:
        value = json.loads(read_bounded(path))
        system, user = value["system"], value["user"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f"{path}: no wording of prompts: {type(error).__name__} {error}", _way_out()) from error
    texts = isinstance(user, list) and all(isinstance(piece, str) for piece in user)
    if not isinstance(system, str) or not texts or not set(FIELDS) <= set(user):
        raise ConfigError(f"{path}: no wording with {', '.join(FIELDS)} in its user text", _way_out())
    return Wording(system, tuple(user))


def _way_out() -> str:
    return "make it with `dynamo-mlperf dataset ... --reference DIR`, or remove it to be asked in this project's words"
