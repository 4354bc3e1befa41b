"""Texts and numbers of a site file, checked as they are read: paths, mounts, images, lines of bash, cores, ports."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, ValidationInfo, WithJsonSchema

from dynamo_mlperf.topology.reserved import check_variable

UNSET = "is not set in the environment"
"""What is said of a `${VAR}` without a value, behind its name."""
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_ASSIGNED = re.compile(r"(?:^|[;&|\s])([A-Za-z_][A-Za-z0-9_]*)=")
_LOWEST_PORT, _HIGHEST_PORT = 1024, 65535


def _filled_in(written: str, info: ValidationInfo) -> str:
    """`written` with `${VAR}` replaced from the environment."""
    environment: Mapping[str, str] = (info.context or {}).get("environment", os.environ)

    def value_of(match: re.Match[str]) -> str:
        value = environment.get(match[1], "")
        if not value:
            raise ValueError(f"${{{match[1]}}} {UNSET}")
        return value

    if "$" in _VARIABLE.sub("", written) or "\0" in written:
        raise ValueError(f"wanted ${{NAME}} for variables; got {written!r}")
    return _VARIABLE.sub(value_of, written)


def _expanded(written: str, info: ValidationInfo) -> str:
    """`written` with `${VAR}` replaced from the environment; the result must be an absolute path."""
    if "$" in _VARIABLE.sub("", written) or "\0" in written or not (path := _filled_in(written, info)).startswith("/"):
        raise ValueError(f"wanted an absolute path, with ${{NAME}} for variables; got {written!r}")
    return path


def _mount(written: str, info: ValidationInfo) -> str:
    """`HOST:PLACE[:FLAGS]` with variables filled in; a comma would begin another mount."""
    mount = _filled_in(written, info)
    if not re.fullmatch(r"/[^:,\s]*:/[^:,\s]*(:[a-z][a-z0-9+=]*)?", mount):
        raise ValueError(f"wanted HOST:PLACE or HOST:PLACE:FLAGS with absolute paths, got {written!r}")
    return mount


def _image(written: str, info: ValidationInfo) -> str:
    image = _filled_in(written, info)
    if not re.fullmatch(r"[A-Za-z0-9/._@:#+~=-]+", image) or image.startswith("-"):
        raise ValueError(f"wanted a path or the name of an image, got {written!r}")
    return image


def _module(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+/-]*", name):
        raise ValueError(f"wanted the name of a module, such as cuda/13.0; got {name!r}")
    return name


def _line(line: str) -> str:
    if "\0" in line or "\n" in line:
        raise ValueError("wanted one line of bash for each entry")
    for name in _ASSIGNED.findall(line):
        check_variable(name)
    return line


def _cores(written: str) -> str:
    """A core list as Linux writes it: `0-35` or `0-3,8-11`."""
    for part in written.split(","):
        ends = re.fullmatch(r"([0-9]{1,5})(?:-([0-9]{1,5}))?", part)
        if not ends or int(ends[2] or ends[1]) < int(ends[1]):
            raise ValueError(f"wanted cores such as 0-35 or 0-3,8-11; got {written!r}")
    return written


def _word(text: str) -> str:
    if not re.fullmatch(r"[^\s\0'\"]+", text):
        raise ValueError(f"wanted one word, got {text!r}")
    return text


def _range(ports: list[int]) -> list[int]:
    if len(ports) != 2 or not _LOWEST_PORT <= ports[0] < ports[1] <= _HIGHEST_PORT:  # noqa: PLR2004 - first and last
        raise ValueError(f"wanted [first, last] with {_LOWEST_PORT} <= first < last <= {_HIGHEST_PORT}, got {ports}")
    return ports


Word = Annotated[str, AfterValidator(_word)]
ExpandedPath = Annotated[str, AfterValidator(_expanded), WithJsonSchema({"type": "string"})]
Image = Annotated[str, AfterValidator(_image), WithJsonSchema({"type": "string"})]
Mount = Annotated[str, AfterValidator(_mount), WithJsonSchema({"type": "string"})]
ModuleName = Annotated[str, AfterValidator(_module)]
Line = Annotated[str, AfterValidator(_line)]
Cores = Annotated[str, AfterValidator(_cores)]
PortRange = Annotated[list[int], AfterValidator(_range)]


def core_numbers(cores: str) -> list[int]:
    """The cores of a list such as `0-3,8`, in its order."""
    ends = (part.partition("-") for part in cores.split(","))
    return [core for first, _dash, last in ends for core in range(int(first), int(last or first) + 1)]
