"""Offline's bound comes from what the engines run at a time, and client processes from rate and bound."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from dynamo_mlperf.benchmark.rules import Reduction, benchmark
from dynamo_mlperf.job.in_flight import client_processes, engine_seats, with_offline_bound
from dynamo_mlperf.load.settings import build_settings
from dynamo_mlperf.topology.spec import load_topology

OFFLINE = build_settings(benchmark("qwen3-vl-235b-a22b"), "Offline", 100, 64, Reduction(3, 64, 90))
SERVER = build_settings(benchmark("qwen3-vl-235b-a22b"), "Server", 100, 64, Reduction(3, 64, 90))


@pytest.mark.parametrize(
    ("name", "seats"), [("demo.yaml", 2 * 16), ("rehearse-22p28d.yaml", 50 * 64), ("rehearse-512a.yaml", 512 * 64)]
)
def test_seats_are_summed_over_all_workers(repository: Path, name: str, seats: int) -> None:
    assert engine_seats(load_topology(repository / "topologies" / name)) == seats


@pytest.mark.parametrize(
    ("seats", "clients", "each"), [(32, 1, 1024), (3200, 4, 1600), (512 * 64, 32, 2048), (10_000, 10, 2000)]
)
def test_no_engine_waits_and_no_client_process_carries_too_much(seats: int, clients: int, each: int) -> None:
    assert client_processes(OFFLINE, seats) == clients
    assert with_offline_bound(OFFLINE, seats, clients).max_in_flight == each


@pytest.mark.parametrize(("qps", "clients"), [(1, 1), (290, 1), (310, 2), (1600, 8), (90_000, 64)])
def test_rate_decides_in_server(qps: float, clients: int) -> None:
    assert client_processes(replace(SERVER, target_qps=qps), 512 * 64) == clients


@pytest.mark.parametrize(
    ("name", "qps", "clients"), [("llama2-70b-99.9", 100, 1), ("deepseek-r1", 100, 5), ("gpt-oss-120b", 4500, 64)]
)
def test_long_answers_get_more_processes(name: str, qps: float, clients: int) -> None:
    settings = build_settings(benchmark(name), "Server", qps, 64, Reduction(3, 64, 90))
    assert client_processes(settings) == clients
