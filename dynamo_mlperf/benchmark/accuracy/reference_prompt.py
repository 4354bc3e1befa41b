"""The prompt of the reference implementation of qwen3-vl-235b-a22b, read from a checkout of mlcommons/inference.

`multimodal/qwen3-vl/src/mlperf_inf_mm_q3vl` is parsed, not run: `task.py` holds the texts (two f-strings of
`formulate_loaded_sample`), and `schema.py` the JSON schema that the first of them shows (the model `ProductMetadata`,
whose descriptions are its docstrings).
"""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from dynamo_mlperf.benchmark.wording import FIELDS, Wording
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import read_text

_PACKAGE = Path("multimodal/qwen3-vl/src/mlperf_inf_mm_q3vl")
_MODEL = "ProductMetadata"
_TYPES = {"str": str, "bool": bool}


def reference_wording(checkout: Path) -> Wording:
    """The wording of the reference in a checkout.

    Raises:
        ConfigError: There is no such checkout, or its texts are not where they were at b66003e1.
    """
    package = checkout / _PACKAGE
    try:
        task = ast.parse(read_text(package / "task.py"))
        schema = ast.parse(read_text(package / "schema.py"))
        shown = json.dumps(_model(schema).model_json_schema(), indent=2)
        texts = [_pieces(node) for node in _f_strings(task)]
        system = next(pieces for pieces in texts if any(_MODEL in piece for piece in pieces[1::2]))
        user = next(pieces for pieces in texts if _field(pieces[1]) == FIELDS[0])
        return Wording(_filled(system, shown), tuple(_field(piece) or piece for piece in user))
    except (OSError, SyntaxError, ValueError, KeyError, TypeError, StopIteration, IndexError) as error:
        raise ConfigError(
            f"{package}: the prompt is not where it was at b66003e1: {type(error).__name__} {error}",
            "name a checkout of mlcommons/inference: git checkout b66003e1",
        ) from error


def _f_strings(module: ast.Module) -> Iterator[ast.JoinedStr]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name == "formulate_loaded_sample":
            yield from (inner for inner in ast.walk(node) if isinstance(inner, ast.JoinedStr))


def _pieces(node: ast.JoinedStr) -> list[str]:
    """Text, expression, text, expression, ...: it begins with a text, which may be empty."""
    pieces: list[str] = []
    for part in node.values:
        is_text = isinstance(part, ast.Constant)
        if is_text != (len(pieces) % 2 == 0):
            pieces.append("")
        if isinstance(part, ast.Constant):
            pieces.append(str(part.value))
        elif isinstance(part, ast.FormattedValue):
            pieces.append(ast.unparse(part.value))
    return pieces


def _field(expression: str) -> str:
    """The field that `sample['NAME']` names; empty for anything else."""
    return next((name for name in FIELDS if expression == f"sample['{name}']"), "")


def _filled(pieces: list[str], shown: str) -> str:
    return "".join(shown if number % 2 else piece for number, piece in enumerate(pieces))


def _model(module: ast.Module) -> type[BaseModel]:
    """The reference's model of an answer, made of its source."""
    found = next(node for node in module.body if isinstance(node, ast.ClassDef) and node.name == _MODEL)
    fields: dict[str, Any] = {}
    name = ""
    for node in found.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
            fields[name] = (_TYPES[ast.unparse(node.annotation)], ...)
        elif name and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            fields[name] = (fields[name][0], Field(description=inspect.cleandoc(str(node.value.value))))
    model: type[BaseModel] = create_model(_MODEL, __config__=ConfigDict(extra="forbid"), **fields)
    model.__doc__ = ast.get_docstring(found)
    model.model_rebuild(force=True)
    return model
