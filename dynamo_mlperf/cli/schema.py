"""`schema`: every key of a topology, site or system file, and the rules of a round."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dynamo_mlperf.errors import ConfigError

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
@click.argument("kind", type=click.Choice(["topology", "site", "system", "rules"]), default="topology")
@click.option("--round", "round_name", help="With rules: of which round; left out, the current one.")
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON Schema, for editors; rules as plain JSON.")
def command(kind: str, round_name: str | None, *, as_json: bool) -> None:
    """Show every key of a topology file (or a site or system file), or the rules of an MLPerf round."""
    import json

    if kind == "rules":
        _print_rules(round_name, as_json=as_json)
        return
    if round_name is not None:
        raise ConfigError(f"--round goes with rules, and this is {kind}", "write: schema rules --round ROUND")
    from dynamo_mlperf.site import Site
    from dynamo_mlperf.submission.description import System
    from dynamo_mlperf.topology.spec import Topology

    models: dict[str, type[BaseModel]] = {"topology": Topology, "site": Site, "system": System}
    model = models[kind]
    if as_json:
        click.echo(json.dumps(model.model_json_schema(), indent=2))
        return
    for line in describe(model):
        click.echo(line)


def _print_rules(round_name: str | None, *, as_json: bool) -> None:
    import json

    from dynamo_mlperf.benchmark.rounds import CURRENT, round_of
    from dynamo_mlperf.cli.rules_table import facts, lines

    rules = round_of(CURRENT if round_name is None else round_name)
    click.echo(json.dumps(facts(rules), indent=2) if as_json else "\n".join(lines(rules)))


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
    default = str(field.default).lower() if isinstance(field.default, bool) else field.default  # as YAML has it
    return f"; default {default}"
