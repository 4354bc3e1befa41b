"""YAML that a person wrote, read so that every complaint can name its file and line.

Numbers, booleans and null are those of YAML 1.2's core schema. Words that YAML 1.1 readers (PyYAML among them) turn
into something else without a word (`no` into false, `010` into 8, `1:30` into 90) are refused: quote or rewrite them.
"""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.files import MOST_TOPOLOGY_BYTES, read_bounded

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Place = tuple[str | int, ...]
"""Keys and list positions from the root of a document to a value."""

_BY_HAND = "name a YAML file written by hand"
_BEGIN = "dynamo-mlperf init DIR copies examples to begin with; with --nodes ... it writes files for your own cluster"
_NAMED = 8
"""Files beside one that is missing that are named."""
_MAX_VALUES = 20_000
_MAX_DEPTH = 32

_TAG = "tag:yaml.org,2002:"
_AMBIGUOUS = re.compile(
    r"""(?xi) yes|no|on|off                       # booleans to YAML 1.1
    | [-+]?0[0-9_]+ | [-+]?0[xob][0-9a-f_]+       # octal, hexadecimal, binary
    | [-+]?[0-9][0-9_]*_[0-9_]*(\.[0-9_]*)?       # digits with underscores
    | [-+]?[0-9]+(:[0-5]?[0-9])+(\.[0-9]*)?       # base 60
    | [0-9]{4}-[0-9]{1,2}-[0-9]{1,2}([Tt ].*)?    # dates
    """
)


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a document: where, and what, with a way out where there is one."""

    place: Place
    text: str

    @property
    def name(self) -> str:
        """The place as people write it: `roles.decode.args.foo`, `ports[0]`."""
        return dotted(self.place)


@dataclass
class Document:
    """One parsed YAML file.

    Attributes:
        path: Where it was read from.
        text: Its text, byte for byte.
        value: The mapping at its root.
        lines: 1-based line of each place.
        problems: What is wrong with it before anyone asks what its keys mean.
    """

    path: Path
    text: str
    value: dict[str, Any]
    lines: dict[Place, int]
    problems: list[Problem] = field(default_factory=list)

    def line_of(self, place: Place) -> int | None:
        """Line of the place, or of the nearest place around it that the file does mention."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place)


def dotted(place: Place) -> str:
    """`("a", "b", 0)` as `a.b[0]`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with the scalar types of YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own class-level registry
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """PyYAML recurses into every node: too many levels are refused where they begin."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, f"nested more than {_MAX_DEPTH} deep", mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node


_Loader.add_implicit_resolver(f"{_TAG}bool", re.compile(r"^(true|True|TRUE|false|False|FALSE)$"), list("tTfF"))
_Loader.add_implicit_resolver(f"{_TAG}null", re.compile(r"^(~|null|Null|NULL|)$"), ["~", "n", "N", ""])
_Loader.add_implicit_resolver(f"{_TAG}int", re.compile(r"^[-+]?[0-9]+$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    f"{_TAG}float",
    re.compile(
        r"^([-+]?(\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
    list("-+.0123456789"),
)
_Loader.add_implicit_resolver(f"{_TAG}merge", re.compile(r"^<<$"), ["<"])
_Loader.add_constructor(
    f"{_TAG}float", lambda _loader, node: float(node.value.lower().replace(".inf", "inf").replace(".nan", "nan"))
)


def read_document(path: Path) -> Document:
    """Read one YAML file whose root is a mapping.

    Raises:
        ConfigError: It cannot be read, is no UTF-8, no YAML or no mapping.
    """
    return parse_document(_read_text(path), path)


def _read_text(path: Path) -> str:
    try:
        if path.stat().st_size > MOST_TOPOLOGY_BYTES:
            raise ConfigError(f"{path}: {path.stat().st_size} bytes, over {MOST_TOPOLOGY_BYTES}", _BY_HAND)
        raw = read_bounded(path, MOST_TOPOLOGY_BYTES)
    except OSError as error:
        special = error.errno == errno.EINVAL  # a device or pipe
        raise ConfigError(f"{path}: {error.strerror}", _BY_HAND if special else _other_file(path)) from error
    except ValueError as error:  # what has no size, such as a file of /proc
        raise ConfigError(f"{path}: {error}", _BY_HAND) from error
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}:{line}: byte {raw[error.start]:#04x} is not UTF-8", "save the file as UTF-8"
        ) from error
    if text.startswith("\ufeff"):
        raise ConfigError(f"{path}:1: starts with a byte order mark", "save the file as UTF-8 without one")
    if "\r" in text:
        line = text.count("\n", 0, text.index("\r")) + 1
        raise ConfigError(f"{path}:{line}: DOS line break; sbatch and the shebang refuse it", f"dos2unix {path}")
    return text


def _other_file(path: Path) -> str:
    """The file that was most likely meant: the same name with its suffix, or the nearest one beside it; else some."""
    beside = sorted(each.name for each in path.parent.glob("*.yaml") if each.name != path.name)
    whole = f"{path.name}.yaml"
    near = [whole] if whole in beside else difflib.get_close_matches(path.name, beside, n=1, cutoff=0.8)
    if near:
        return f"did you mean {path.with_name(near[0])}?"
    more = f" and {len(beside) - _NAMED} more" if len(beside) > _NAMED else ""
    named = f"there are {', '.join(beside[:_NAMED])}{more}" if beside else "there is no .yaml file at all"
    return f"name a file that this user can read; in {path.parent} {named}"


def parse_document(text: str, path: Path) -> Document:
    """Parse `text` as one YAML mapping; `path` only names it in messages.

    Raises:
        ConfigError: It is no YAML, several documents, no mapping, or its anchors do not end.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            way = "write `key: value` lines" if node is not None else _BEGIN
            raise ConfigError(f"{path}: {_kind(node)} where keys were expected", way)
        walk = _Walk(path)
        walk.visit(node, ())
        value = _value_of(loader, node)
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{path}{_at(error)}: {_sentence(error)}", "correct the YAML on that line") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {error}", "save the file as plain text") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}", "write plain values") from error
    return Document(path=path, text=text, value=value, lines=walk.lines, problems=walk.problems)


def _value_of(loader: _Loader, node: yaml.Node) -> dict[str, Any]:
    """The value of a document; PyYAML's own constructors trip over words that their explicit tag does not fit.

    Raises:
        ValueError: One does not.
    """
    try:
        value: dict[str, Any] = loader.construct_document(node)
    except (AttributeError, LookupError, TypeError) as error:
        raise ValueError("a value does not fit its explicit tag (such as !!timestamp)") from error
    return value


def _kind(node: yaml.Node | None) -> str:
    if node is None:
        return "an empty file"
    return "a list" if isinstance(node, yaml.SequenceNode) else "a single value"


def _at(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    return f":{mark.line + 1}" if mark else ""


def _sentence(error: yaml.MarkedYAMLError) -> str:
    return " ".join(filter(None, (error.context, error.problem)))


class _Walk:
    """Notes the line of every place; finds duplicate keys, ambiguous words and anchors without an end."""

    def __init__(self, path: Path) -> None:
        self.lines: dict[Place, int] = {}
        self.problems: list[Problem] = []
        self._path = path
        self._around: set[int] = set()
        self._visited = 0

    def visit(self, node: yaml.Node, place: Place) -> None:
        """Visit a value and all below it."""
        self._visited += 1
        if id(node) in self._around or self._visited > _MAX_VALUES:
            raise ConfigError(
                f"{self._path}:{node.start_mark.line + 1}: {dotted(place)}: its anchors unfold without end",
                "write the values out",
            )
        self._around.add(id(node))
        if isinstance(node, yaml.MappingNode):
            self._visit_mapping(node, place)
        elif isinstance(node, yaml.SequenceNode):
            for position, item in enumerate(node.value):
                self.lines.setdefault((*place, position), item.start_mark.line + 1)
                self.visit(item, (*place, position))
        else:
            self._visit_scalar(node, place)
        self._around.remove(id(node))

    def _visit_mapping(self, node: yaml.MappingNode, place: Place) -> None:
        own: dict[Hashable, int] = {}
        merged = []
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag == f"{_TAG}merge":
                merged.append(value)
                continue
            if not isinstance(key, yaml.ScalarNode) or key.tag != f"{_TAG}str" or self._is_ambiguous(key):
                raise ConfigError(f"{self._path}:{line}: a key that is not text", "quote it")
            below = (*place, key.value)
            if key.value in own:
                self.lines[below] = line
                self.problems.append(Problem(below, f"given twice, first on line {own[key.value]}"))
                continue
            own[key.value] = line
            self.lines[below] = line
            self.visit(value, below)
        for value in merged:
            self._visit_merged(value, place)

    def _visit_merged(self, value: yaml.Node, place: Place) -> None:
        """What `<<` brings in stands where its anchor stands, unless the mapping says it itself."""
        for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
            if not isinstance(source, yaml.MappingNode):
                line = source.start_mark.line + 1
                raise ConfigError(f"{self._path}:{line}: `<<` takes mappings only", "point it at an anchored mapping")
            beside = _Walk(self._path)
            beside._around, beside._visited = self._around, self._visited
            beside.visit(source, place)
            self._visited = beside._visited
            for below, line in beside.lines.items():
                self.lines.setdefault(below, line)

    def _visit_scalar(self, node: yaml.Node, place: Place) -> None:
        if not node.tag.startswith(_TAG):
            raise ConfigError(f"{self._path}:{node.start_mark.line + 1}: tag {node.tag}", "write a plain value")
        if any("\ud800" <= letter <= "\udfff" for letter in node.value):
            self.problems.append(Problem(place, "holds half a character (a surrogate), which no file can"))
        if self._is_ambiguous(node):
            self.problems.append(
                Problem(
                    place,
                    f"YAML readers differ about {node.value}; quote it, or write true, false or a decimal",
                )
            )

    @staticmethod
    def _is_ambiguous(node: yaml.Node) -> bool:
        plain = isinstance(node, yaml.ScalarNode) and node.style is None
        return plain and _AMBIGUOUS.fullmatch(node.value) is not None


def flat(name: str, value: object) -> Iterator[tuple[str, Any]]:
    """The value as flat names, `roles.decode.workers`, each with what stands there."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from flat(f"{name}.{key}" if name else str(key), item)
    else:
        yield name, value
