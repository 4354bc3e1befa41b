"""Flags and variables of a run's processes, by role: what the recorded commands say, without what is noise."""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from dynamo_mlperf.report.diff_noise import Noise, is_noise
from dynamo_mlperf.report.diff_values import flattened
from dynamo_mlperf.report.run_files import parsed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dynamo_mlperf.report.diff_values import Value
    from dynamo_mlperf.report.run_data import Command

_PROCESS = re.compile(
    r"(?:.*-)?(?P<role>prefill|decode|aggregated|frontend|etcd|loadgen|endpoints)(-\d+)?(\.again-\d+)?"
)
"""As the job names its processes; in a sweep the split comes first."""
_FLAG = re.compile(r"-{1,2}[A-Za-z]")
_NUMBER = re.compile(r"-?(0|[1-9]\d{0,14})(\.\d{1,9})?")
_VARIABLE = "$"
_SEARCH_PATH = "$PATH"


def facts_by_role(commands: Sequence[Command], noise: Noise | None) -> dict[str, Value]:
    """`decode --max-num-seqs` and `decode $NAME`, each with its value over all workers of the role.

    Args:
        commands: Processes as started.
        noise: What to leave out; None leaves everything in.
    """
    found: dict[tuple[str, str], dict[str, None]] = {}
    for command in commands:
        if (match := _PROCESS.fullmatch(command.process)) is None:
            continue
        named = flags_of(command.argv) | {f"{_VARIABLE}{name}": value for name, value in command.env.items()}
        for name, value in named.items():
            if noise is not None and is_noise(name.removeprefix(_VARIABLE).partition(".")[0]):
                continue
            text = value if noise is None else noise.masked(value)
            found.setdefault((match["role"], name), {})[text] = None
    return {f"{role} {name}": _value(values) for (role, name), values in _grouped(found).items()}


def _value(values: dict[str, None]) -> Value:
    """One value of all workers, as a number where it is one; several side by side."""
    text = " | ".join(sorted(values))
    if not _NUMBER.fullmatch(text):
        return text
    return float(text) if "." in text else int(text)


def _grouped(found: dict[tuple[str, str], dict[str, None]]) -> dict[tuple[str, str], dict[str, None]]:
    """Flags before variables, as they were started; the search path, which says little and is long, last of all."""
    return dict(sorted(found.items(), key=lambda item: (item[0][1].startswith(_VARIABLE), item[0][1] == _SEARCH_PATH)))


def words_of(text: str) -> list[str]:
    """A command line's words, as a shell splits them; by blanks where its quotes do not close."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def flags_of(argv: Sequence[str]) -> dict[str, str]:
    """An argument vector by flag: `--max-num-seqs` -> `64`; a JSON object by its keys; `set` for a flag alone.

    `program` is what runs, `launcher` what starts it (`taskset --cpu-list 0-17`); neither where there is none.
    """
    start = argv.index("-m") if "-m" in argv else 0
    found = {"launcher": " ".join(argv[: start - 1])} if start > 1 else {}
    words, name, values = list(argv[start + 1 :] if start else argv), "program", list[str]()
    for word in [*words, "--end-of-words"]:
        if not _FLAG.match(word):
            values.append(word)
            continue
        found |= _told(name, values, found.get(name))
        name, equals, value = word.partition("=")
        values = [value] if equals else []
    return found


def _told(name: str, values: list[str], before: str | None) -> dict[str, str]:
    text = " ".join(values) or "set"
    if len(values) == 1 and values[0].startswith("{"):
        try:
            return {key: str(value) for key, value in flattened(parsed(values[0].encode()), name).items()}
        except ValueError:
            pass
    return {name: text if before is None else f"{before} {text}"}
