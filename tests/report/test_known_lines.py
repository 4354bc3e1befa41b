"""Lines that Dynamo and etcd write at every stop, as they were seen, and when they are harmless."""

from __future__ import annotations

import time

import pytest

from dynamo_mlperf.report.known_lines import KNOWN, harmless_lines, looks_known, stop_time

SEEN_UTC = (
    "2026-11-30T18:52:01.686724Z  WARN dynamo_llm::discovery::controller: Model discovery stream ended; retaining committed serving state",
    "2026-11-30T18:52:01.686297Z ERROR dynamo_runtime::component::client: monitor_instance_source: The Sender is dropped: channel closed, endpoint=x/prefill/generate",
    "2026-11-30T18:52:02.204302Z  WARN dynamo_llm::entrypoint::input::endpoint: Endpoint service completed unexpectedly for endpoint: dyn://x.backend.generate",
    "2026-11-30T18:53:35.055214Z  WARN dynamo_runtime::pipeline::network::egress::push_router: Instance removal watcher stream ended; reconnecting endpoint=generate",
    "2026-11-30T18:53:35.055258Z  WARN dynamo_runtime::pipeline::network::egress::push_router: Failed to start instance removal watcher (will retry): Watch on bucket 'v1/instances' was cancelled before it was established endpoint=generate",
    "2026-11-30T18:53:35.054518Z  WARN dynamo_llm::discovery::worker_monitor: runtime-config watch closed source=Prefill",
    "2026-11-30T18:57:23.135427Z ERROR dynamo_runtime::component::endpoint: Unable to unregister endpoint instance from discovery endpoint_id=x/prefill/clear_kv_blocks error=Internal etcd error: grpc request error",
    "2026-11-30T18:57:23.137243Z  WARN dynamo_runtime::component::endpoint: Failed to unregister endpoint from discovery error=Internal etcd error: grpc request error",
)
AT_ANY_TIME = (
    '{"level":"warn","ts":"2026-11-30T18:51:20.468Z","caller":"auth/store.go:1220","msg":"simple token is not cryptographically signed"}',
    "2026-11-30T18:51:23.335083Z  WARN http-request: dynamo_llm::preprocessor: backend_instance_id provided but no token_data; tokenizing prompt method=POST",
)
BEFORE_T, AFTER_T = 1796064721.0, 1796065200.0
"""18:52:01 and 19:00:00 of that day, UTC."""


@pytest.mark.parametrize("line", SEEN_UTC)
def test_a_line_of_a_stop_is_harmless_behind_its_time_alone(line: str) -> None:
    assert sum(harmless_lines([line], BEFORE_T).values()) == 1
    assert harmless_lines([line], AFTER_T) == {}
    assert harmless_lines([line], None) == {}
    assert looks_known(line)


def test_etcds_own_time_is_local() -> None:
    when = time.strftime("%Y/%m/%d %H:%M:%S", time.localtime(BEFORE_T))
    line = f"WARNING: {when} [core] grpc: addrConn.createTransport failed to connect to {{127.0.0.1:1 <nil>}}. Err: connection error"
    assert sum(harmless_lines([line], BEFORE_T + 0.7).values()) == 1
    assert harmless_lines([line], BEFORE_T + 5) == {}


def test_others_are_harmless_at_any_time_and_every_kind_was_seen() -> None:
    assert sum(harmless_lines(AT_ANY_TIME, None).values()) == len(AT_ANY_TIME)
    seen = "\n".join((*SEEN_UTC, *AT_ANY_TIME, "grpc: addrConn.createTransport failed to connect"))
    assert [known.mark for known in KNOWN if known.mark not in seen] == []


@pytest.mark.parametrize(
    "line",
    [
        "2026-11-30T18:55:00.1Z ERROR dynamo_llm::http: no worker for this request",
        "2026-11-30T18:55:00.1Z ERROR dynamo_runtime::component::client: monitor_instance_source: lost the store",
        "monitor_instance_source: The Sender is dropped: channel closed",
        "",
    ],
)
def test_real_faults_and_lines_without_a_time_are_not(line: str) -> None:
    assert harmless_lines([line], BEFORE_T) == {}


def test_a_process_ends_by_its_own_stop_or_that_of_the_job() -> None:
    own: dict[str, object] = {"t": 5.0, "event": "process_stopped", "process": "decode-0"}
    job: dict[str, object] = {"t": 9.0, "event": "phase_begin", "phase": "stop"}
    events: list[dict[str, object]] = [
        {"t": "x", "event": "phase_begin", "phase": "stop"},
        {"event": "phase_begin", "phase": "stop"},
        own,
        job,
    ]
    assert (stop_time(events, "decode-0"), stop_time(events, "decode-1"), stop_time([], "x")) == (5.0, 9.0, None)
