"""Held engines that do not come to rest are restarted; who stops the measurement meanwhile does not stop that."""

from __future__ import annotations

import contextlib
import http.client
import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.job.chain import Place, Run, client_was_late

pytestmark = [pytest.mark.dynamo, pytest.mark.loadgen]

IMPATIENT = {
    "measure": {"target_qps": None},
    "search": {"low": 4, "high": 8, "tolerance": 0.2, "rest_s": 2},
}
IN_FLIGHT = 12


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("held-restart"))


@contextlib.contextmanager
def others_ask(run: Run) -> Iterator[None]:
    """Somebody else keeps the engines busy with long requests."""
    argv = run.commands()["frontend-0"]["argv"]
    port = int(argv[argv.index("--http-port") + 1])
    first = Path(run.paths.root / "requests.bin").read_bytes().split(b'"', 4)
    messages = [{"role": "user", "content": "hello " * 50}]
    enough = threading.Event()

    def ask(tokens: int) -> None:
        body = json.dumps({"model": first[3].decode(), "messages": messages, "max_tokens": tokens, "ignore_eos": True})
        while not enough.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):
                asked = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                asked.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
                asked.getresponse().read()
                asked.close()
            enough.wait(0.05)

    # Answers of one length would end together, and the engines be at rest for that moment.
    lengths = (3000 - 170 * number for number in range(IN_FLIGHT))
    threads = [threading.Thread(target=ask, args=(tokens,), daemon=True) for tokens in lengths]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        enough.set()
        for thread in threads:
            thread.join()


def test_a_stop_waits_until_workers_that_are_restarted_are_up_again(place: Place) -> None:
    with place.holding(IMPATIENT) as holder:
        restarts = [event for event in holder.events() if event["event"] == "workers_restarted"]
        with others_ask(holder), place.run(place.topology(), "--attach", str(holder.paths.root)) as run:
            while [event for event in holder.events() if event["event"] == "workers_restarted"] == restarts:
                assert run.process.poll() is None, run.stderr()
                assert holder.process.poll() is None, holder.stderr()
                time.sleep(0.05)
            run.send(signal.SIGINT)
            ended = run.end()
            assert (ended.status, run.verdict()["reasons"][0]["got"]) == (130, "stopped by SIGINT"), ended.stderr
        with place.run(place.topology(), "--attach", str(holder.paths.root)) as run:
            ended = run.end()
            verdict = run.verdict()
            assert client_was_late(verdict) or (ended.status, verdict["reasons"]) == (0, []), ended.stderr
            assert any(path.stem.startswith("decode-0.again-") for path in run.paths.logs.glob("*.log")), "its own"
        assert holder.process.poll() is None, holder.stderr()
