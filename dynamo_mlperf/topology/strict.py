"""Strict models: unknown keys are refused with the nearest legal one, and every problem of a file is told at once."""

from __future__ import annotations

import difflib
import re
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.process.secret_words import redacted
from dynamo_mlperf.topology.document import Document, Place, Problem, dotted
from dynamo_mlperf.topology.no_secrets import WAY_OUT, is_about_a_secret, secret_problems

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Model = TypeVar("Model", bound=BaseModel)

_SHOWN_CHARACTERS = 60
_WANTED = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "true or false",
    "model_type": "keys and values",
    "dict_type": "keys and values",
    "mapping_type": "keys and values",
    "is_instance_of": "keys and values",
    "list_type": "a list",
    "tuple_type": "a list",
}
_LENGTHS = {"too_short": ("at least", "min_length"), "too_long": ("at most", "max_length")}
_KEY = "[key]"  # pydantic's last part of the place of an error in a mapping's key, not in its value
_BOUNDS = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("more than", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("less than", "lt"),
}


class StrictModel(BaseModel):
    """A part of a file that a person writes: frozen, typed strictly, no key that we do not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    elsewhere: ClassVar[Mapping[str, str]] = {}
    """Keys that belong to another block of the file, with how to write them there."""


def check(model: type[Model], document: Document, context: Mapping[str, Any] | None = None) -> Model:
    """The document as a `model`.

    Args:
        model: What its root mapping has to be.
        document: The file.
        context: Handed to the validators of `model`.

    Raises:
        ConfigError: With all problems, each at its line.
    """
    problems = [*document.problems, *secret_problems(document)]
    try:
        value = model.model_validate(document.value, context=dict(context or {}))
    except ValidationError as error:
        raise refusal(model, document, [*problems, *_explain(model, error)]) from None
    if problems:
        raise refusal(model, document, problems)
    return value


def refusal(model: type[BaseModel], document: Document, problems: Sequence[Problem]) -> ConfigError:
    """One error that lists all problems of a document, in the order of its lines.

    Each place is told once, and what an anchor brings to several places is told at the first.
    """
    by_place: dict[Place, Problem] = {}
    for problem in problems:
        by_place.setdefault(problem.place, problem)
    by_line: dict[tuple[object, ...], Problem] = {}
    for problem in sorted(by_place.values(), key=lambda problem: document.line_of(problem.place) or 0):
        by_line.setdefault((document.line_of(problem.place), problem.place[-1:], problem.text), problem)
    ordered = list(by_line.values())
    rows = [f"{_position(document, problem)}: {_told(problem)}" for problem in ordered]
    what = (
        rows[0]
        if len(rows) == 1
        else f"{document.path}: {len(rows)} problems\n" + "\n".join(f"  {row}" for row in rows)
    )
    schema = f"`dynamo-mlperf schema {model.__name__.lower()}` lists every key with its type and default"
    return ConfigError(what, WAY_OUT if any(map(is_about_a_secret, ordered)) else schema)


def _position(document: Document, problem: Problem) -> str:
    line = document.line_of(problem.place)
    return f"{document.path}:{line}" if line else str(document.path)


def _told(problem: Problem) -> str:
    text = redacted(problem.text)
    return f"{problem.name}: {text}" if problem.place else text


def _explain(model: type[BaseModel], error: ValidationError) -> Iterator[Problem]:
    details = error.errors(include_url=False)
    for detail in details:
        detail["loc"] = tuple(part for part in detail["loc"] if part != _KEY)
    suggested = {
        (*detail["loc"][:-1], near)
        for detail in details
        if detail["type"] == "extra_forbidden" and (near := _near_key(model, detail["loc"]))
    }
    for detail in details:
        if detail["type"] == "missing" and detail["loc"] in suggested:
            continue  # the mistyped key beside it says so already
        yield Problem(detail["loc"], _sentence(model, detail))


def _sentence(model: type[BaseModel], detail: ErrorDetails) -> str:
    kind, place, context = detail["type"], detail["loc"], detail.get("ctx", {})
    got = _shown(detail["input"])
    if kind == "extra_forbidden":
        return _unknown_key(model, place)
    if kind == "literal_error":
        return _unknown_word(context["expected"], detail["input"])
    if kind in _BOUNDS:
        return f"wanted {_bound(kind, context)}, got {got}"
    if kind in _LENGTHS:
        word, key = _LENGTHS[kind]
        return f"wanted {word} {context[key]} entries, got {context['actual_length']}"
    plain = {"missing": "missing", "value_error": str(context.get("error"))}
    wanted = f"wanted {_WANTED[kind]}" if kind in _WANTED else detail["msg"]
    return plain.get(kind) or f"{wanted}, got {got}{_unquoted(kind, detail['input'])}"


def _unquoted(kind: str, got: object) -> str:
    """What to do about a number or a truth value that stands in quotes; empty for anything else."""
    forms = {"int_type": r"[+-]?[0-9]+", "float_type": r"[+-]?[0-9]*\.?[0-9]+", "bool_type": "true|false"}
    form = forms.get(kind)
    quoted = form is not None and isinstance(got, str) and re.fullmatch(form, got)
    return "; write it without quotes" if quoted else ""


def _bound(kind: str, context: Mapping[str, Any]) -> str:
    word, key = _BOUNDS[kind]
    return f"{word} {context[key]:g}"


def _shown(value: object) -> str:
    words = {None: "nothing", True: "true", False: "false"}
    text = words[value] if isinstance(value, bool | None) else repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def _unknown_word(expected: str, got: object) -> str:
    legal = [word.strip("'") for word in expected.replace(" or ", ", ").split(", ")]
    near = nearest(str(got), legal)
    hint = f"; did you mean {near}?" if near else ""
    return f"wanted {' or '.join(legal)}, got {_shown(got)}{hint}"


def _unknown_key(model: type[BaseModel], place: Place) -> str:
    parent = _model_at(model, place[:-1])
    key = str(place[-1])
    if parent is not None and key in getattr(parent, "elsewhere", {}):
        return f"not a key of this block; {parent.elsewhere[key]}"  # type: ignore[attr-defined]
    legal = legal_keys(parent) if parent else {}
    if near := nearest(key, legal):
        return f"no such key; did you mean {near}?"
    elsewhere = [dotted(other) for other in _all_places(model) if other[-1] == key]
    if elsewhere:
        return f"no such key here; did you mean {elsewhere[0]}?"
    return f"no such key; there are {', '.join(legal)}"


def _near_key(model: type[BaseModel], place: Place) -> str | None:
    parent = _model_at(model, place[:-1])
    return nearest(str(place[-1]), legal_keys(parent)) if parent else None


def nearest(word: str, legal: Sequence[str] | Mapping[str, Any]) -> str | None:
    """The legal word that `word` most likely meant, or None when nothing comes close."""
    folded = {option.lower().replace("-", "_"): option for option in legal}
    found = difflib.get_close_matches(word.lower().replace("-", "_"), folded, n=1, cutoff=0.6)
    return folded[found[0]] if found else None


def legal_keys(model: type[BaseModel]) -> dict[str, Any]:
    """The keys of a model as they stand in the file, each with pydantic's description of it."""
    return {field.alias or name: field for name, field in model.model_fields.items()}


def inner_model(annotation: object) -> type[BaseModel] | None:
    """The model inside `Model`, `Model | None` or a list of such, else None."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in {Union, types.UnionType, list}:
        return next((found for part in get_args(annotation) if (found := inner_model(part))), None)
    return None


def _model_at(model: type[BaseModel], place: Place) -> type[BaseModel] | None:
    found: type[BaseModel] | None = model
    for part in place:
        if isinstance(part, int):  # an entry of a list of such models
            continue
        field = legal_keys(found).get(str(part)) if found else None
        found = inner_model(field.annotation) if field else None
    return found


def _all_places(model: type[BaseModel], before: Place = ()) -> Iterator[Place]:
    for key, field in legal_keys(model).items():
        yield (*before, key)
        below = inner_model(field.annotation)
        if below:
            yield from _all_places(below, (*before, key))
