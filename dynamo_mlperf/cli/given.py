"""Texts on the command line hold something: `--resume "$RUN"` without a RUN is not the current directory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from click import Context, Parameter


class Given(click.ParamType[Any]):
    """Another type, for values that are not empty.

    Args:
        kind: The type that a value is of.
    """

    def __init__(self, kind: click.ParamType[Any]) -> None:
        self._kind = kind
        self.name = kind.name

    def convert(self, value: Any, param: Parameter | None, ctx: Context | None) -> Any:  # noqa: ANN401 - click's own
        """The value as the other type has it; a usage error where it is empty."""
        if isinstance(value, str) and not value.strip():
            what = "give one" if isinstance(param, click.Argument) else "give one, or leave the option out"
            self.fail(f"it is empty; {what}", param, ctx)
        return self._kind.convert(value, param, ctx)

    def get_metavar(self, param: Parameter, ctx: Context) -> str | None:
        """As the other type has it."""
        return self._kind.get_metavar(param, ctx)


def refuse_empty(command: click.Command) -> click.Command:
    """The command, with every path and text of it refused where it is empty; what goes on to sbatch is not ours."""
    for param in command.params:
        if isinstance(param.type, click.Path | click.types.StringParamType):
            param.type = Given(param.type)
    if isinstance(command, click.Group):
        for one in command.commands.values():
            refuse_empty(one)
    return command
