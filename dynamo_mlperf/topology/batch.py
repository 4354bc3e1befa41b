"""The `#SBATCH` lines of a topology file: read as Slurm reads them, compared with the plan, corrected on request.

Slurm reads only lines that begin with `#SBATCH`, and stops at the first line that is neither a comment nor blank
(sbatch's manual page, section on the batch script); of an option that is given twice, the last one counts.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dynamo_mlperf.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from dynamo_mlperf.topology.plan import Plan
    from dynamo_mlperf.topology.spec import Topology

SHEBANG = "#!/usr/bin/env -S dynamo-mlperf job"
_MAGIC = "#SBATCH"
_UNFILLED = "# FILL IN"
_TOKEN = re.compile(r"""(?:[^\s'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+""")
_LONG = {
    "-A": "account",
    "-C": "constraint",
    "-D": "chdir",
    "-F": "nodefile",
    "-G": "gpus",
    "-J": "job-name",
    "-L": "licenses",
    "-M": "clusters",
    "-N": "nodes",
    "-S": "core-spec",
    "-a": "array",
    "-b": "begin",
    "-c": "cpus-per-task",
    "-d": "dependency",
    "-e": "error",
    "-i": "input",
    "-m": "distribution",
    "-n": "ntasks",
    "-o": "output",
    "-p": "partition",
    "-q": "qos",
    "-t": "time",
    "-w": "nodelist",
    "-x": "exclude",
}
_NO_VALUE = re.compile(
    "exclusive|no-requeue|requeue|hold|overcommit|oversubscribe|contiguous|parsable|quiet|verbose|wait|spread-job|"
    "use-min-nodes|reboot|test-only|get-user-env|no-kill|ignore-pbs|[HOQWhksv]"
)
"""Options that take no value from the next word."""
_SITE_OPTIONS = ("partition", "account", "nodelist")
_CURRENT, _PER_NODE, _GRES = "nodes", "gpus-per-node", "gres"


@dataclass(frozen=True)
class Directive:
    """One option of one `#SBATCH` line.

    Attributes:
        line: 1-based line in the file.
        start: First character of the option in its line.
        end: Character behind it.
        option: Its long name without dashes.
        value: Its value; None where it has none.
    """

    line: int
    start: int
    end: int
    option: str
    value: str | None


@dataclass(frozen=True)
class Difference:
    """Where the batch lines and the plan disagree.

    Attributes:
        option: The sbatch option, or `shebang`.
        line: 1-based line to correct; 0 where a line is to be added.
        wanted: What the plan needs, as an option; empty where the option has to go.
        got: What stands there.
        corrected: The corrected line as a whole; empty where nothing of it is left.
    """

    option: str
    line: int
    wanted: str
    got: str
    corrected: str

    @property
    def text(self) -> str:
        """One line for people."""
        if not self.line and self.option == "shebang":
            return f"no first line that runs it; the plan wants {self.wanted}"
        if not self.line:
            return f"no #SBATCH line asks for --{self.option}; the plan wants {self.wanted}"
        wanted = self.wanted or f"no --{self.option} (sbatch -p, -A, -w or the site file say it)"
        return f"line {self.line}: {self.got or 'nothing'}, the plan wants {wanted}"

    @property
    def change(self) -> str:
        """What correcting it does, in one line for people."""
        if not self.line:
            return f"added {self.corrected}"
        return f"line {self.line}: {self.got} " + (f"is now {self.wanted}" if self.wanted else "is left out")


@dataclass(frozen=True)
class _Change:
    """A directive's new text; without a directive, a new line's option."""

    option: str
    directive: Directive | None
    wanted: str


def batch_directives(text: str) -> tuple[Directive, ...]:
    """All options of the lines that Slurm reads, in order.

    Raises:
        ConfigError: A quote is not closed.
    """
    return tuple(found for number, line in _batch_lines(text) for found in _directives(number, line))


def option_directives(words: Sequence[str]) -> tuple[Directive, ...]:
    """The options of a command line, read as those of an `#SBATCH` line; a word that is no option has no dash."""
    return tuple(_directives(0, f"{_MAGIC} {shlex.join(words)}"))


def ignored_batch_lines(text: str) -> tuple[int, ...]:
    """1-based numbers of `#SBATCH` lines that Slurm does not read, as they follow the first line that is no comment."""
    read = {number for number, _line in _batch_lines(text)}
    lines = enumerate(text.split("\n"), start=1)
    return tuple(number for number, line in lines if line.startswith(_MAGIC) and number not in read)


def unfilled(text: str, file: str = "") -> tuple[str, ...]:
    """A warning where lines of a text are marked as still to be completed; none where there are none.

    Args:
        text: The text of a topology or site file.
        file: What the warning names; empty where it is plain which file is meant.
    """
    lines = [str(number) for number, line in enumerate(text.split("\n"), start=1) if _UNFILLED in line]
    if not lines:
        return ()
    noun = "lines" if len(lines) > 1 else "line"
    found = f"FILL IN still stands in {noun} {', '.join(lines)}: complete what is meant, then take the mark out"
    return (f"{file}: {found}" if file else found,)


def _batch_lines(text: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip() and not line.lstrip().startswith("#"):
            return
        if line.startswith(_MAGIC):
            yield number, line


def _directives(number: int, line: str) -> Iterator[Directive]:
    tokens = list(_tokens(number, line))
    while tokens:
        start, end, word = tokens.pop(0)
        option, value = _split_option(word)
        dashed = word.startswith("-")
        if dashed and value is None and not _NO_VALUE.fullmatch(option) and tokens and not tokens[0][2].startswith("-"):
            _start, end, value = tokens.pop(0)
        yield Directive(number, start, end, option, value)


def _split_option(word: str) -> tuple[str, str | None]:
    if word.startswith("--"):
        name, equals, value = word[2:].partition("=")
        return name, value if equals else None
    if not word.startswith("-"):
        return word, None
    return _LONG.get(word[:2], word.lstrip("-")), word[2:] or None


def _tokens(number: int, line: str) -> Iterator[tuple[int, int, str]]:
    at = len(_MAGIC)
    while match := re.compile(r"\s*(?=\S)").match(line, at):
        if line[match.end()] == "#":
            return
        token = _TOKEN.match(line, match.end())
        if token is None:
            raise ConfigError(f"line {number}: a quote is not closed: {line}", "close it; sbatch refuses the file")
        yield token.start(), token.end(), "".join(shlex.split(token.group()))
        at = token.end()


def batch_differences(
    text: str, topology: Topology, plan: Plan, *, shipped: bool = False, segment: int | None = None
) -> tuple[Difference, ...]:
    """Where the `#SBATCH` lines and the plan disagree.

    Args:
        text: The topology file.
        topology: What it says.
        plan: Its plan.
        shipped: Whether the file is one that others copy: it then names no partition, account or node.
        segment: Nodes of one NVLink domain to ask Slurm for; None where it is not to be asked.

    Raises:
        ConfigError: A quote is not closed.
    """
    lines = text.split("\n")
    found = []
    if not (lines[0].startswith("#!") and "dynamo-mlperf" in lines[0]):
        adds = not lines[0].startswith("#!")
        found.append(Difference("shebang", 0 if adds else 1, SHEBANG, "" if adds else lines[0], SHEBANG))
    for change in _changes(batch_directives(text), topology, plan, shipped=shipped, segment=segment):
        at = change.directive
        if at is None:
            found.append(Difference(change.option, 0, change.wanted, "", f"{_MAGIC} {change.wanted}"))
            continue
        line = lines[at.line - 1]
        got = line[at.start : at.end]
        found.append(Difference(change.option, at.line, change.wanted, got, _rewritten(line, change)))
    return tuple(found)


def fix_batch_lines(
    text: str, topology: Topology, plan: Plan, *, shipped: bool = False, segment: int | None = None
) -> str:
    """The file with batch lines that agree with the plan; every other line stays as it is.

    Raises:
        ConfigError: A quote is not closed.
    """
    changes = _changes(batch_directives(text), topology, plan, shipped=shipped, segment=segment)
    lines: list[str | None] = list(text.split("\n"))
    replaced = [change for change in changes if change.directive is not None]
    for change in sorted(replaced, key=lambda change: -change.directive.start if change.directive else 0):
        index = change.directive.line - 1 if change.directive else 0
        lines[index] = _rewritten(lines[index] or "", change) or None
    added = [f"{_MAGIC} {change.wanted}" for change in changes if change.directive is None]
    last = max((number for number, _line in _batch_lines(text)), default=1 if text.startswith("#!") else 0)
    lines[last:last] = added
    if not text.startswith("#!"):
        lines.insert(0, SHEBANG)
    elif "dynamo-mlperf" not in (lines[0] or ""):
        lines[0] = SHEBANG
    return "\n".join(line for line in lines if line is not None)


def _rewritten(line: str, change: _Change) -> str:
    """The line with one option replaced or dropped; empty when no option is left."""
    at = change.directive
    if at is None:
        return line
    new = f"{line[: at.start]}{change.wanted}{line[at.end :]}"
    if change.wanted:
        return new
    new = f"{line[: at.start].rstrip()} {line[at.end :].lstrip()}".rstrip()
    return "" if new == _MAGIC else new


def _changes(
    directives: Sequence[Directive], topology: Topology, plan: Plan, *, shipped: bool, segment: int | None
) -> list[_Change]:
    last = {directive.option: directive for directive in directives}
    changes = [
        *_nodes(last, len(plan.nodes)),
        *_gpus(last, topology.nodes.gpus),
        *_requeue(last),
        *_segment(last, segment),
    ]
    if shipped:
        changes += [
            _Change(directive.option, directive, "") for directive in directives if directive.option in _SITE_OPTIONS
        ]
    return changes


def _nodes(last: dict[str, Directive], nodes: int) -> Iterator[_Change]:
    given = last.get(_CURRENT)
    if given is None or given.value not in {str(nodes), f"{nodes}-{nodes}"}:
        yield _Change(_CURRENT, given, f"--nodes={nodes}")


def _gpus(last: dict[str, Directive], gpus: int) -> Iterator[_Change]:
    gres, per_node = last.get(_GRES), last.get(_PER_NODE)
    entries = (gres.value or "").split(",") if gres else []
    in_gres = [entry for entry in entries if re.match(r"(gres[:/])?gpu\b", entry)]
    if (in_gres and _count(in_gres[0]) != gpus) or len(in_gres) > 1:
        others = [entry for entry in entries if entry not in in_gres]
        yield _Change(_GRES, gres, f"--gres={','.join([_recounted(in_gres[0], gpus), *others])}")
    if per_node and _count(per_node.value or "") != gpus:
        yield _Change(_PER_NODE, per_node, f"--gpus-per-node={_recounted(per_node.value or '', gpus)}")
    if not in_gres and per_node is None:
        wanted = f"--gres={','.join([f'gpu:{gpus}', *filter(None, entries)])}"
        yield _Change(_GRES, gres, wanted)


def _count(entry: str) -> int:
    """GPUs of `gpu:4`, `gpu:h200:4`, `h200:4`, `4`; 1 where none is written, as Slurm counts."""
    last = entry.rpartition(":")[2]
    return int(last) if re.fullmatch(r"[0-9]+", last) else 1


def _recounted(entry: str, gpus: int) -> str:
    """The entry with another count and its GPU type kept."""
    head, _colon, last = entry.rpartition(":")
    kind = head if re.fullmatch(r"[0-9]+", last) else entry
    return f"{kind}:{gpus}" if kind else str(gpus)


def _requeue(last: dict[str, Directive]) -> Iterator[_Change]:
    """A job that Slurm restarts after a node failure would mix two runs' evidence."""
    if "requeue" in last and ("no-requeue" not in last or _position(last["requeue"]) > _position(last["no-requeue"])):
        yield _Change("no-requeue", last["requeue"], "--no-requeue")
    elif "no-requeue" not in last:
        yield _Change("no-requeue", None, "--no-requeue")


def _segment(last: dict[str, Directive], segment: int | None) -> Iterator[_Change]:
    given = last.get("segment")
    if segment is not None and (given is None or given.value != str(segment)):
        yield _Change("segment", given, f"--segment={segment}")


def _position(directive: Directive) -> tuple[int, int]:
    return directive.line, directive.start
