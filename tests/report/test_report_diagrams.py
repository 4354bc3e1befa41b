from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

from dynamo_mlperf.report.diagrams import flow, shown_processes, timeline_chart
from dynamo_mlperf.report.figures import Proof
from dynamo_mlperf.report.timeline import Process, build_timeline

PROOF = Proof(
    kind="kv-counters", disaggregated=True, requests=20, prefill_requests=20, remote_prefills=18, prompt_tokens=2000,
    external_tokens=1800, local_tokens=200, kv_bytes=93_200_000, transfers=18, failed_transfers=2,
)  # fmt: skip


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in ET.fromstring(svg).iter("text")]


def bars(svg: str, css: str) -> list[tuple[float, float]]:
    found = [e for e in ET.fromstring(svg).iter("rect") if css in e.get("class", "").split()]
    return [(float(e.get("x", "")), float(e.get("width", ""))) for e in found]


def events() -> list[dict[str, Any]]:
    rows: list[tuple[float, str, dict[str, Any]]] = [
        (0, "phase_begin", {"phase": "start"}),
        (10, "process_started", {"process": "decode-0", "node": 1}),
        (30, "process_ready", {"process": "decode-0", "seconds": 20.0}),
        (40, "phase_end", {"phase": "start"}),
        (40, "phase_begin", {"phase": "measure"}),
        (70, "process_exited", {"process": "decode-0", "status": -9}),
        (100, "progress", {}),
    ]
    return [{"t": at, "event": kind, **details} for at, kind, details in rows]


def test_bars_lie_where_things_happened() -> None:
    svg = timeline_chart("t", build_timeline(events()), {"1": "n2"})
    left, per_second = 190.0, (936.0 - 190.0) / 100
    assert bars(svg, "starting") == [pytest.approx((left + 10 * per_second, 20 * per_second), abs=0.1)]
    assert bars(svg, "serving") == [pytest.approx((left + 30 * per_second, 40 * per_second), abs=0.1)]
    assert bars(svg, "open") == [pytest.approx((left + 40 * per_second, 60 * per_second), abs=0.1)]
    assert bars(svg, "band") == bars(svg, "open")
    assert {"start", "40.0 s", "measure", "did not end", "decode-0 · n2", "ended by itself, status -9"} <= set(
        texts(svg)
    )
    assert svg.count('class="cross"') == 1


def test_a_process_that_never_was_ready_never_serves() -> None:
    cut = [event for event in events() if event["event"] != "process_ready"]
    svg = timeline_chart("t", build_timeline(cut), {})
    assert bars(svg, "serving") == []
    assert len(bars(svg, "starting")) == 1


def test_of_many_processes_the_dead_and_the_slow_are_shown() -> None:
    processes = [Process(f"p{i}", "0", float(i), ready_s=i + 10.0 + i % 5) for i in range(200)]
    processes[3] = Process("dead", "0", 3.0, ready_s=3.5, exited_s=9.0, status="1", died=True)
    processes[4] = Process("stuck", "0", 4.0)
    shown = shown_processes(processes)
    assert len(shown) == 60
    assert [process.name for process in shown[:2]] == ["dead", "stuck"]
    assert all((p.ready_s or 0) - p.started_s >= 13 for p in shown[2:])
    assert [p.started_s for p in shown] == sorted(p.started_s for p in shown)


def test_the_flow_tells_the_counted_numbers() -> None:
    found = texts(flow("f", PROOF, "4 workers, 8 GPUs", "8 workers, 8 GPUs"))
    assert {
        "4 workers, 8 GPUs",
        "18 of 20 prefilled remotely",
        "93.2 MB of KV cache over NIXL",
        "18 transfers, 2 failed",
    } <= set(found)


def test_simulated_engines_moved_no_kv_cache() -> None:
    routed = Proof("routing only", True, 20, 20, 20, 0, 0, 0, 0, 0, 0)  # noqa: FBT003
    svg = flow("f", routed, "1 worker, 1 GPU", "1 worker, 1 GPU")
    assert {"KV cache: did not measure", "proof: routing only"} <= set(texts(svg))
    assert "0 B" not in svg
    assert "arrow guessed" in svg
