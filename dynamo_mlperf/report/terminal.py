"""Plain lines for terminals and pipes: words wrap, paths never break, and nothing ends in blanks."""

from __future__ import annotations

import re
import textwrap
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from dynamo_mlperf.report import quantities as q

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console

_LEAST_WIDTH = 20


def near(text: str) -> str:
    """`text` with every path below the current directory written relative to it."""
    here = Path.cwd()
    if here == here.parent:
        return text
    below = re.compile(rf"(?<![\w./-]){re.escape(str(here))}/(?=[^/\s])")
    return below.sub("", text)


def say(console: Console, content: str, indent: str = "  ", hanging: str | None = None, style: str = "") -> None:
    """Print `content` wrapped between words; a word wider than the console, such as a path, stands whole.

    Args:
        console: Where to.
        content: What; its line ends count as blanks.
        indent: Before the first line.
        hanging: Before every further line; `indent` by default.
        style: Of the text.
    """
    lines = textwrap.wrap(
        q.printable(content),
        max(console.width, _LEAST_WIDTH),
        initial_indent=indent,
        subsequent_indent=indent if hanging is None else hanging,
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in lines:
        console.print(Text(line, style=style), soft_wrap=True)


@contextmanager
def trimmed(console: Console) -> Iterator[None]:
    """What is printed to `console` meanwhile comes out at the end, without blanks at the ends of lines."""
    with console.capture() as captured:
        yield
    console.file.write(re.sub(r"[ \t]+$", "", captured.get(), flags=re.MULTILINE))
    console.file.flush()
