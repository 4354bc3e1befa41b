"""Token ids of an accuracy log, and the text that the model's own tokenizer makes of them.

The reference implementations log the ids as little-endian integers of 4 bytes (llama2's early ones of 8), and decode
them with the model's tokenizer (mlcommons/inference b66003e1: `evaluate-accuracy.py` of llama2-70b, `eval_accuracy.py`
of deepseek-r1, `eval_mlperf_accuracy.py` of gpt-oss-120b).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dynamo_mlperf.benchmark.accuracy.answers import Answer
from dynamo_mlperf.errors import ConfigError, MeasureError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_TOKENIZER_FILE = "tokenizer.json"
_MOST_IDS = 1 << 24
"""No vocabulary is larger; text read as ids gives numbers far above. Models can emit ids that their tokenizer lacks."""

_ID_BYTES = 4
_ENOUGH_IDS = 8
"""With so many ids of which every second one is 0, they were 8 bytes long."""


class TextAnswers:
    """Answers logged as UTF-8 text; the client's own count stands for their tokens."""

    def read(self, answer: Answer) -> tuple[str, int]:
        """Text and number of tokens of one answer; bytes that are no UTF-8 become U+FFFD.

        Raises:
            MeasureError: It holds token ids (their highest bytes are all zero), or no count was logged.
        """
        where = f"the answer to sample {answer.index}"
        data = answer.data
        if len(data) >= _ENOUGH_IDS and not len(data) % _ID_BYTES and not any(data[_ID_BYTES - 1 :: _ID_BYTES]):
            raise MeasureError(f"{where} holds token ids, not text", "name the model's tokenizer.json: --tokenizer")
        if answer.token_count is None:
            raise MeasureError(
                f"{where} has no token_count in the log", "measure with token latencies, or log token ids"
            )
        return data.decode("utf-8", "replace"), answer.token_count


class TokenAnswers:
    """Answers logged as token ids.

    Args:
        path: `tokenizer.json`, or a directory that holds it.
        token_bytes: Bytes of an id, 4 or 8.
        special: Whether special tokens stay in the text: channels (harmony) are told by them.

    Raises:
        ConfigError: No such file, or none that the library `tokenizers` reads.
    """

    def __init__(self, path: Path, token_bytes: int, *, special: bool) -> None:
        self._tokenizer = _load(path)
        self._type = np.dtype("<i4" if token_bytes == _ID_BYTES else "<i8")
        self._special = special

    def read(self, answer: Answer) -> tuple[str, int]:
        """Text and number of tokens of one answer.

        Raises:
            MeasureError: Its bytes are no ids of this tokenizer.
        """
        where = f"the answer to sample {answer.index}"
        size = self._type.itemsize
        if len(answer.data) % size:
            raise MeasureError(
                f"{where} has {len(answer.data)} bytes, no multiple of {size}",
                "leave --tokenizer out if the log holds text; --token-bytes says how long an id is",
            )
        ids = np.frombuffer(answer.data, self._type)
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < _MOST_IDS:
            odd = int(ids.max() if ids.max() >= _MOST_IDS else ids.min())
            raise MeasureError(
                f"{where} would have token id {odd}, which no vocabulary holds",
                "leave --tokenizer out if the log holds text; --token-bytes says how long an id is",
            )
        if size == _ID_BYTES and ids.size >= _ENOUGH_IDS and not ids[1::2].any():
            raise MeasureError(f"{where} has id 0 at every second place: its ids are 8 bytes long", "--token-bytes 8")
        return self._tokenizer.decode(ids.tolist(), skip_special_tokens=not self._special), int(ids.size)


def _load(path: Path) -> Tokenizer:
    file = path / _TOKENIZER_FILE if path.is_dir() else path
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ConfigError(
            "token ids need the package tokenizers, which is not installed", "pip install 'dynamo-mlperf[accuracy]'"
        ) from error
    if not file.is_file():
        raise ConfigError(f"{file}: no such file", "name the tokenizer.json of the model that was measured")
    try:
        return Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"{file} is no tokenizer: {error}", "name the model's tokenizer.json") from error
