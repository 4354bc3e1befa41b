"""Requests of their own for workers, against a real server: side by side, but never two at one worker."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

from dynamo_mlperf.errors import ServingError
from dynamo_mlperf.files import RunPaths
from dynamo_mlperf.process.allocation import LocalAllocation
from dynamo_mlperf.process.signals import StopFlag
from dynamo_mlperf.record import EventLog
from dynamo_mlperf.serving import errands as module
from dynamo_mlperf.serving.errands import Errand, run_errands
from dynamo_mlperf.serving.readiness import AT_ONCE, DECODE_HEADER, Gate
from dynamo_mlperf.serving.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ANSWER = b'data: {"choices": [{"delta": {"content": "hi"}}]}\n\ndata: [DONE]\n\n'


class Frontend(ThreadingHTTPServer):
    """Notes who is asked, and refuses each worker for as often as it was told to."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.refusals: Counter[str] = Counter()
        self.busy: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.served: Counter[str] = Counter()


class Handler(BaseHTTPRequestHandler):
    server: Frontend

    def do_POST(self) -> None:
        name = self.headers[DECODE_HEADER]
        self.rfile.read(int(self.headers["Content-Length"]))
        with self.server.lock:
            self.server.busy[name] += 1
            self.server.busy["all"] += 1
            for key in (name, "all"):
                self.server.most[key] = max(self.server.most[key], self.server.busy[key])
            refused = self.server.refusals[name] > 0
            self.server.refusals[name] -= refused
            self.server.served[name] += not refused
        time.sleep(0.02)
        self.send_response(400 if refused else 200)
        self.end_headers()
        self.wfile.write(b"{}" if refused else ANSWER)
        with self.server.lock:
            self.server.busy[name] -= 1
            self.server.busy["all"] -= 1

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def frontend() -> Iterator[Frontend]:
    with Frontend() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    paths = RunPaths(tmp_path)
    events = EventLog(paths)
    supervisor = Supervisor(LocalAllocation(1), paths, events, StopFlag())
    return Gate(supervisor, None, events, "mocker", lambda _text: None, 120.0, 60.0)  # type: ignore[arg-type]


def errand(frontend: Frontend, *workers: str) -> Errand:
    host, port = frontend.server_address[:2]
    body = json.dumps({"n": 1}).encode()
    return Errand(" to ".join(workers), workers, (str(host), port), {DECODE_HEADER: workers[-1]}, [body, body])


def test_workers_are_asked_side_by_side_but_each_one_thing_at_a_time(gate: Gate, frontend: Frontend) -> None:
    asked = [errand(frontend, "prefill-0", "decode-0"), errand(frontend, "prefill-1", "decode-0")]
    asked += [errand(frontend, f"decode-{number}") for number in range(1, 60)]
    run_errands(gate, asked)
    assert all(len(one.replies) == 2 for one in asked)
    assert frontend.served == {"decode-0": 4, **{f"decode-{number}": 2 for number in range(1, 60)}}
    assert {most for name, most in frontend.most.items() if name != "all"} == {1}
    assert 1 < frontend.most["all"] <= AT_ONCE


def test_progress_counts_workers_not_pairs_of_them(gate: Gate, frontend: Frontend) -> None:
    said: list[str] = []
    telling = replace(gate, say=said.append)
    run_errands(telling, [errand(frontend, "prefill-0", name) for name in ("decode-0", "decode-1")])
    counts = dict.fromkeys(text.partition(" workers")[0] for text in said)
    assert list(counts) == ["0 of 3", "1 of 3", "3 of 3"], "prefill-0 serves with both"


def test_a_worker_that_is_listed_before_it_is_routable_is_asked_again(gate: Gate, frontend: Frontend) -> None:
    frontend.refusals["decode-1"] = 2
    asked = [errand(frontend, "decode-0"), errand(frontend, "decode-1")]
    run_errands(gate, asked)
    assert frontend.served == {"decode-0": 2, "decode-1": 2}


def test_a_worker_that_is_never_routable_is_named(
    gate: Gate, frontend: Frontend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROUTABLE_S", 1.0)
    frontend.refusals["decode-1"] = 1000
    with pytest.raises(ServingError, match="decode-1 did not answer a request: HTTP 400"):
        run_errands(gate, [errand(frontend, "decode-0"), errand(frontend, "decode-1")])
