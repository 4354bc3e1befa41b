"""Flags that an engine does not know: found by its own help text before it starts, else in its log when it dies."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.topology.strict import nearest

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from dynamo_mlperf.topology.spec import Topology

PROGRAMS: Mapping[tuple[str, str], tuple[str, ...]] = {
    ("vllm", "dynamo"): ("dynamo.vllm",),
    ("mocker", "dynamo"): ("dynamo.mocker",),
    ("sglang", "dynamo"): ("dynamo.sglang",),
    ("trtllm", "dynamo"): ("dynamo.trtllm",),
    ("trtllm", "trtllm-serve"): ("tensorrt_llm.commands.serve", "serve"),
}
"""The engine's module and first words, by engine and server; with `--help` each lists its flags."""

_ASK = """
import argparse, runpy, sys
shown = argparse.ArgumentParser.format_help
def whole(parser):
    actions = [action for group in parser._action_groups for action in group._group_actions]
    return shown(parser) + "\\n" + "\\n".join(name for action in actions for name in action.option_strings) + "\\n"
argparse.ArgumentParser.format_help = whole
module, *words = sys.argv[1:]
sys.argv = [module, *words, "--help"]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""
"""Runs in the engines' Python: the engine's help text, and behind it all flags, those too that it does not show."""

_FLAG = re.compile(r"--[A-Za-z0-9][A-Za-z0-9_.-]*[A-Za-z0-9]|--[A-Za-z0-9]\b")
_FEWEST = 10
"""No engine has fewer flags: a text with fewer is no help text."""
_REFUSALS = (
    re.compile(r"error: unrecognized arguments: (?P<flag>--[^\s=]+)"),  # argparse
    re.compile(r"Unrecognized argument: (?P<flag>--[^\s=]+)"),  # dynamo/trtllm/dynamic_flags.py
    re.compile(r"No such option:? '?(?P<flag>--[^\s=']+)"),  # click
)
_BAD_VALUE = re.compile(r"error: (?P<told>argument .*?(?P<flag>--[A-Za-z0-9_.-]+)[^:]*: .+)")
_OWN_FILE = "change it under roles: in the topology file"


@dataclass(frozen=True)
class UnknownFlag:
    """A flag of the file that the engine does not know.

    Attributes:
        role: Whose it is.
        flag: As the file has it, without dashes.
        likely: What was most likely meant.
    """

    role: str
    flag: str
    likely: str | None


def question(topology: Topology) -> tuple[str, ...]:
    """What the engines' Python is given to make the engine list its flags."""
    return ("-c", _ASK, *PROGRAMS[topology.engine, topology.server])


def flags_in_help(text: str) -> frozenset[str]:
    """The flags that a help text mentions, without dashes, `_` as `-`; empty where it is no help text."""
    found = frozenset(match[0].removeprefix("--").replace("_", "-") for match in _FLAG.finditer(text))
    return found if len(found) >= _FEWEST else frozenset()


def unknown_flags(topology: Topology, legal: Collection[str]) -> list[UnknownFlag]:
    """Flags of the file's roles that are none of `legal`; beginnings of flags are none, though parsers take them.

    A dotted flag is legal where what stands before its first dot is: vLLM takes `--compilation-config.level 3`.
    """
    found = []
    for name, role in topology.roles.present():
        for flag, value in role.args.items():
            spelled = f"no-{flag}" if value is False else flag
            if value is not None and not _is_known(spelled, legal):
                found.append(UnknownFlag(name, flag, nearest(flag, sorted(legal))))
    return found


def _is_known(flag: str, legal: Collection[str]) -> bool:
    head = flag.split(".", 1)[0]
    return flag in legal or head in legal


def refuse_unknown(topology: Topology, legal: Collection[str]) -> None:
    """Refuse a file with flags that its engine does not know.

    Raises:
        ConfigError: Names each, and the nearest one that the engine knows.
    """
    unknown = unknown_flags(topology, legal)
    if not unknown:
        return
    told = ", ".join(f"roles.{one.role}.args.{one.flag}" for one in unknown)
    likely = [f"{one.likely} instead of {one.flag}" for one in unknown if one.likely]
    raise ConfigError(
        f"{topology.engine} has no such flag: {told}",
        f"write {', '.join(dict.fromkeys(likely))}" if likely else f"see {_program(topology)} --help",
    )


def _program(topology: Topology) -> str:
    return " ".join(("python", "-m", *PROGRAMS[topology.engine, topology.server]))


def refusal_in_log(name: str, log: str) -> ConfigError | None:
    """What an engine that died says of its own arguments; None where it says nothing of them.

    Args:
        name: The process.
        log: The end of its log; argparse puts its usage, with every legal flag, before the error.
    """
    for pattern in _REFUSALS:
        found = pattern.search(log)
        if found:
            flag = found["flag"].removeprefix("--")
            likely = nearest(flag, sorted(flags_in_help(log[: found.start()])))
            return ConfigError(
                f"{name} does not know the flag --{flag}",
                f"write {likely} instead, or {_OWN_FILE}" if likely else _OWN_FILE,
            )
    found = _BAD_VALUE.search(log)
    return ConfigError(f"{name}: {found['told']}", _OWN_FILE) if found else None
