"""`make setup` called twice in one checkout: the second waits, says so, and then does only what is left to do."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="make is not on PATH")

PYTHON = """#!/bin/sh
case "$1 $2" in
"-m venv") mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
"-m pip")
    mkdir busy || exit 9
    echo "$*" >>pips
    until [ -e go ]; do sleep 0.02; done
    rmdir busy
    if [ -e broken ]; then rm broken; exit 1; fi ;;
esac
"""
"""In Python's place: its pip takes until there is a file `go`, fails once where there is a file `broken`, and always
beside another pip.
"""
PATIENCE_S = 120.0


class Checkout:
    """The Makefile with all that its `setup` depends on."""

    def __init__(self, root: Path, repository: Path) -> None:
        self.root = root
        shutil.copy(repository / "Makefile", root)
        for name in ("requirements.lock", "pyproject.toml", "hatch_build.py", "dynamo_mlperf/load/_pump.c"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("")
        (root / "python").write_text(PYTHON)
        (root / "python").chmod(0o755)

    @contextlib.contextmanager
    def start(self, name: str, path: str = os.environ["PATH"]) -> Iterator[subprocess.Popen[str]]:
        """Call `make setup`; what it says goes to the file called `name`, and it ends with the block."""
        environment = {**{key: os.environ[key] for key in os.environ if not key.startswith("MAKE")}, "PATH": path}
        argv = ("make", "setup", "PYTHON=./python")
        with (self.root / name).open("w") as out:
            called = subprocess.Popen(argv, cwd=self.root, env=environment, stdout=out, stderr=out, text=True)
        try:
            yield called
        finally:
            (self.root / "go").touch()
            called.wait(PATIENCE_S)

    def said(self, name: str) -> str:
        return (self.root / name).read_text()

    def pips(self) -> list[str]:
        """The last words of each call of pip."""
        place = self.root / "pips"
        return [line.split()[-1] for line in place.read_text().splitlines()] if place.exists() else []

    def wait_for(self, name: str, text: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not ((self.root / name).exists() and text in self.said(name)):
            assert time.monotonic() < deadline, self.said(name)
            time.sleep(0.02)


@pytest.fixture
def checkout(tmp_path: Path, repository: Path) -> Checkout:
    return Checkout(tmp_path, repository)


@pytest.mark.skipif(shutil.which("flock") is None, reason="flock is not on PATH, and without it nobody waits")
@pytest.mark.parametrize("broken", [False, True])
def test_the_second_waits_and_does_what_is_left_to_do(checkout: Checkout, *, broken: bool) -> None:
    if broken:
        (checkout.root / "broken").touch()
    with checkout.start("first") as first:
        checkout.wait_for("pips", "requirements.lock")
        with checkout.start("second") as second:
            checkout.wait_for("second", "Another make sets up .venv here; waiting until it has ended")
            (checkout.root / "go").touch()
            codes = first.wait(PATIENCE_S), second.wait(PATIENCE_S)
    assert codes == (2 if broken else 0, 0), checkout.said("first") + checkout.said("second")
    assert checkout.pips() == ["requirements.lock"] * broken + ["requirements.lock", "."]
    assert ("pip could not install requirements.lock" in checkout.said("first")) == broken
    with checkout.start("third") as third:
        assert third.wait(PATIENCE_S) == 0
    assert len(checkout.pips()) == 2 + broken


def test_without_flock_it_sets_up_all_the_same(checkout: Checkout) -> None:
    tools = checkout.root / "tools"
    tools.mkdir()
    for tool in ("make", "sh", "mkdir", "rmdir", "rm", "cp", "sleep", "touch"):
        found = shutil.which(tool)
        assert found is not None
        (tools / tool).symlink_to(found)
    (checkout.root / "go").touch()
    with checkout.start("alone", str(tools)) as alone:
        assert alone.wait(PATIENCE_S) == 0, checkout.said("alone")
    assert checkout.pips() == ["requirements.lock", "."]
