"""`schema`: every key of a topology or site file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from pydantic import BaseModel
    from pydantic.fields import FieldInfo

_TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "object": "mapping",
    "array": "list",
}
_BOUNDS = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}


@click.command(name="schema")
@click.argument("kind", type=click.Choice(["topology", "site"]), default="topology")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON Schema, for editors.")
def command(kind: str, *, as_json: bool) -> None:
    """Show every key of a topology file (or a site file): type, default, meaning."""
    import json

    from dynamo_mlperf.site import Site
    from dynamo_mlperf.topology.spec import Topology

    model: type[BaseModel] = Topology if kind == "topology" else Site
    if as_json:
        click.echo(json.dumps(model.model_json_schema(), indent=2))
        return
    for line in describe(model):
        click.echo(line)


def describe(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Lines for people: each key with its type and default, its meaning below, then the keys inside it."""
    from dynamo_mlperf.topology.strict import inner_model, legal_keys

    properties = model.model_json_schema()["properties"]
    for key, field in legal_keys(model).items():
        below = inner_model(field.annotation)
        kind = "keys and values" if below else _type(properties[key])
        yield f"{prefix}{key}: {kind}{_default(field)}"
        yield f"    {field.description}"
        if below:
            yield from describe(below, f"{prefix}{key}.")


def _type(schema: Mapping[str, Any]) -> str:
    """A JSON Schema type in words."""
    if "anyOf" in schema:
        return next(_type(part) for part in schema["anyOf"] if part.get("type") != "null")
    if "const" in schema:
        return str(schema["const"])
    if "enum" in schema:
        return " | ".join(schema["enum"])
    bounds = [f"{word} {schema[key]:g}" for key, word in _BOUNDS.items() if key in schema]
    return ", ".join([_TYPES[schema["type"]], *bounds])


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "; required"
    if field.default_factory is not None or field.default is None:
        return ""
    return f"; default {field.default}"
