"""`measure` at a Dynamo frontend whose workers are simulated: its list of models hides it, its answers do not."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest

from dynamo_mlperf.job.simulated import MOCKED_IDS, TOKENS, are_mocked
from tests.fakes.made_data import write_made_data

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

END_S = 240.0
DRAWN = [1123, 1665, 1575, 1407, 1203, 1531, 1375, 1728, 1948, 1384, 1449, 1899] * 2
OTHERS = DRAWN[::-1]
GREEDY = [785, 1156, 374, 825, 11, 1378, 11, 2326, 11, 3040, 11, 4236, 11, 4743, 11, 8094, 11, 8063, 11, 11627, 323]


def test_only_answers_that_no_model_gives_are_a_mockers() -> None:
    assert len(DRAWN) == TOKENS
    assert MOCKED_IDS.start <= min(DRAWN) <= max(DRAWN) < MOCKED_IDS.stop
    assert are_mocked([DRAWN, OTHERS])
    assert not are_mocked([DRAWN, DRAWN]), "a model that answers the same twice"
    assert not are_mocked([DRAWN, [*OTHERS[:-1], MOCKED_IDS.stop]]), "a token that is never drawn"
    assert not are_mocked([DRAWN[:-1], OTHERS[:-1]]), "answers that end before they are cut"
    assert not are_mocked([[*GREEDY, 3, 4, 5], GREEDY]), "a model that is not quite deterministic"
    assert not are_mocked([[], []]), "a server that gives no token ids"


@pytest.fixture
def mocked(tmp_path: Path, repository: Path) -> Iterator[str]:
    """Address of a frontend with one mocker behind it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "DYN_NAMESPACE": f"simulated-{port}",
        "DYN_REQUEST_PLANE": "tcp",
        "DYN_EVENT_PLANE": "zmq",
        "DYN_TCP_RPC_HOST": "127.0.0.1",
        "DYN_DISCOVERY_BACKEND": "file",
        "DYN_FILE_KV": str(tmp_path / "discovery"),
        "HF_HUB_OFFLINE": "1",
    }
    model = str(repository / "assets" / "tiny-qwen3-vl-moe")
    commands = (
        ("dynamo.mocker", "--model-path", model, "--model-name", "m", "--speedup-ratio", "10"),
        ("dynamo.frontend", "--http-host", "127.0.0.1", "--http-port", str(port), "--namespace", f"simulated-{port}"),
    )
    url = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        log = stack.enter_context((tmp_path / "dynamo.log").open("wb"))
        for module, *words in commands:
            argv = [sys.executable, "-m", module, *words]
            process = stack.enter_context(subprocess.Popen(argv, env=environment, stdout=log, stderr=log))
            stack.callback(process.kill)
        _wait_for_model(url)
        yield url


def _wait_for_model(url: str) -> None:
    end = time.monotonic() + END_S
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(f"{url}/v1/models", timeout=5) as answer:
                if b'"owned_by":"nvidia"' in answer.read():
                    return
        except OSError:
            pass
        time.sleep(0.5)
    pytest.fail(f"{url} lists no model after {END_S:g} s")


@pytest.mark.dynamo
@pytest.mark.loadgen
@pytest.mark.assets
@pytest.mark.parametrize("mode", [(), ("--mode", "accuracy")])
def test_a_mocker_gives_no_official_result(tmp_path: Path, mocked: str, mode: tuple[str, ...]) -> None:
    write_made_data("llama2-70b-99.9", tmp_path / "data")
    argv = [sys.executable, "-m", "dynamo_mlperf.cli", "measure", mocked, "--model", "m", "--dataset", "data"]
    argv += ["--benchmark", "llama2-70b-99.9", "--scenario", "Server", "--target-qps", "20", "--run-dir", "run", *mode]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=END_S, check=False)
    assert done.returncode == 2, done.stderr
    assert "is served by simulated engines (dynamo.mocker)" in done.stderr
    assert "Try: add --rehearsal" in done.stderr
    assert not (tmp_path / "run" / "loadgen").exists()
