"""Is a checkpoint whole? Answered from safetensors headers alone, in milliseconds, before any GPU is booked.

The format, as the safetensors project documents it: 8 bytes little-endian header length, a JSON header with each
tensor's dtype, shape and byte span, then the tensors without gaps.
"""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any

from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.files import read_bounded

if TYPE_CHECKING:
    from pathlib import Path

INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"

_AGAIN = "copy or download this file again"
_LENGTH_BYTES = 8
_MAX_HEADER_BYTES = 100_000_000
_TOKENIZERS = (("tokenizer.json",), ("tokenizer.model",), ("tiktoken.model",), ("vocab.json", "merges.txt"))
_BITS = {
    "BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
    "U16": 16, "I16": 16, "F16": 16, "BF16": 16, "U32": 32, "I32": 32, "F32": 32, "U64": 64, "I64": 64, "F64": 64,
    "C64": 64,
}  # fmt: skip


def verify_checkpoint(directory: Path) -> tuple[str, ...]:
    """Check that a Hugging Face checkpoint is complete; no tensor is read.

    Every shard that the index names is there, has the size that its own header implies and holds the tensors
    that the index promises; configuration and tokenizer are present.

    Returns:
        Warnings: what an engine may load besides, such as a shard that the index does not name.

    Raises:
        SetupError: Something is missing, cut or contradictory; names the file.
    """
    if not directory.is_dir():
        raise SetupError(
            f"no model directory {directory}",
            "correct the path; the tiny model is made by dynamo-mlperf init --assets assets",
        )
    _json_object(_present(directory, "config.json"))
    _present(directory, "tokenizer_config.json")
    if not any(all((directory / part).is_file() for part in parts) for parts in _TOKENIZERS):
        raise SetupError(f"no tokenizer in {directory}: tokenizer.json is missing", _AGAIN)
    for parts in _TOKENIZERS:
        for part in parts:
            if (directory / part).is_file():
                _present(directory, part)
    promised = _promised(directory)
    held = {shard: _tensors(_present(directory, shard)) for shard in sorted(set(promised.values()))}
    for tensor, shard in promised.items():
        if tensor not in held[shard]:
            raise SetupError(f"{directory / shard} lacks tensor {tensor}, which {INDEX_FILE} says it holds", _AGAIN)
    return tuple(_unlisted(directory, promised, held))


def _present(directory: Path, name: str) -> Path:
    path = directory / name
    if not path.is_file():
        raise SetupError(f"{path} is missing", _AGAIN)
    if path.stat().st_size == 0:
        raise SetupError(f"{path} is empty", _AGAIN)
    return path


def _json_object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_bounded(path))
    except ValueError as error:
        raise SetupError(f"{path} is not JSON: {error}", _AGAIN) from error
    if not isinstance(content, dict):
        raise SetupError(f"{path} holds a {type(content).__name__}, not an object", _AGAIN)
    return content


def _promised(directory: Path) -> dict[str, str]:
    """Shard file by tensor name, from the index, or from the single file where there is no index."""
    index = directory / INDEX_FILE
    if not index.is_file():
        single = directory / SINGLE_FILE
        if not single.is_file():
            raise SetupError(f"{directory} holds neither {INDEX_FILE} nor {SINGLE_FILE}", "download the weights")
        return dict.fromkeys(_tensors(single), SINGLE_FILE)
    places = _json_object(index).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise SetupError(f"{index} has no weight_map", _AGAIN)
    for tensor, shard in places.items():
        if not isinstance(shard, str) or "/" in shard or not shard.endswith(".safetensors"):
            raise SetupError(f"{index} places {tensor} in {shard!r}, which is no shard of this directory", _AGAIN)
    return places


def _tensors(path: Path) -> set[str]:
    """Names of the tensors in one safetensors file whose size and spans are as its header says."""
    size_bytes = path.stat().st_size
    with path.open("rb") as shard:
        start = shard.read(_LENGTH_BYTES)
        header_bytes = struct.unpack("<Q", start)[0] if len(start) == _LENGTH_BYTES else size_bytes
        if _LENGTH_BYTES + header_bytes > size_bytes or header_bytes > _MAX_HEADER_BYTES:
            raise SetupError(f"{path} is cut or no safetensors file: {size_bytes} bytes do not hold its header", _AGAIN)
        raw = shard.read(header_bytes)
    try:
        header = json.loads(raw)
        header.pop("__metadata__", None)
        spans = sorted((*entry["data_offsets"], name, _bits(entry)) for name, entry in header.items())
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SetupError(f"{path} has a damaged header: {error!r}", _AGAIN) from error
    end_bytes = _end_bytes(path, spans)
    wanted_bytes = _LENGTH_BYTES + header_bytes + end_bytes
    if size_bytes != wanted_bytes:
        raise SetupError(f"{path} is {size_bytes} bytes where its header implies {wanted_bytes}", _AGAIN)
    return set(header)


def _bits(entry: dict[str, Any]) -> int | None:
    """Bits that a tensor takes by dtype and shape; None for a dtype that is not known here."""
    bits = _BITS.get(entry["dtype"])
    return None if bits is None else bits * math.prod(entry["shape"])


def _end_bytes(path: Path, spans: list[tuple[int, int, str, int | None]]) -> int:
    """Where the last tensor ends, counted from the end of the header."""
    end_bytes = 0
    for begin, end, name, bits in spans:
        if begin != end_bytes or end < begin or (bits is not None and 8 * (end - begin) != bits):
            raise SetupError(
                f"{path}: tensor {name} spans bytes {begin} to {end}, which its neighbours or its shape contradict",
                _AGAIN,
            )
        end_bytes = end
    return end_bytes


def _unlisted(directory: Path, promised: dict[str, str], held: dict[str, set[str]]) -> list[str]:
    extra = sorted({path.name for path in directory.glob("*.safetensors")} - set(held))
    warnings = [f"{directory / name} is a shard that {INDEX_FILE} does not name; engines may load it" for name in extra]
    for shard, tensors in held.items():
        unnamed = sorted(tensors - {tensor for tensor, place in promised.items() if place == shard})
        if unnamed:
            warnings.append(
                f"{directory / shard} holds {len(unnamed)} tensors that {INDEX_FILE} does not place there, "
                f"first {unnamed[0]}"
            )
    return warnings
