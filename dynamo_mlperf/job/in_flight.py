"""How many client processes a measurement gets, and how many requests each keeps in flight in Offline."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from dynamo_mlperf.benchmark.rules import benchmark

if TYPE_CHECKING:
    from dynamo_mlperf.load.settings import LoadSettings
    from dynamo_mlperf.topology.spec import Role, Topology

QUERIES_PER_CLIENT_S = 200.0
"""Requests per second that one client process is asked to carry."""

TOKENS_PER_CLIENT_S = 100_000.0
"""Streamed tokens per second that one client process is asked to carry: 60 % of what was measured for a core where
each token comes in a read of its own (docs/performance.md)."""

MOST_CLIENTS = 64
"""Client processes where rate and tokens decide."""

DEFAULT_SEATS = 256
"""Sequences that one engine runs at a time where the file does not say."""

ROUNDS_WAITING = 2
"""Full rounds of sequences in flight: one that runs, and one that waits so that no engine ever does."""

LEAST_IN_FLIGHT = 1024
MOST_PER_CLIENT = 2048
"""What one client process carries in flight: descriptors, and memory of what is half read."""


def client_processes(settings: LoadSettings, seats: int = 0) -> int:
    """Client processes for the rate and its tokens, and in Offline for the requests in flight too."""
    rules = benchmark(settings.benchmark)
    tokens_per_s = settings.target_qps * (rules.tokens_per_sample[1] or rules.max_new_tokens)
    wanted = max(round(settings.target_qps / QUERIES_PER_CLIENT_S), math.ceil(tokens_per_s / TOKENS_PER_CLIENT_S))
    by_rate = max(1, min(MOST_CLIENTS, wanted))
    if settings.loadgen_scenario != "Offline":
        return by_rate
    return max(by_rate, math.ceil(offline_in_flight(seats) / MOST_PER_CLIENT))


def with_offline_bound(settings: LoadSettings, seats: int, clients: int) -> LoadSettings:
    """The settings with the bound of each client process in Offline: what the engines can take, twice."""
    return replace(settings, max_in_flight=math.ceil(offline_in_flight(seats) / clients))


def offline_in_flight(seats: int) -> int:
    """Requests that all clients together keep in flight in Offline."""
    return max(LEAST_IN_FLIGHT, ROUNDS_WAITING * seats)


def engine_seats(topology: Topology) -> int:
    """Sequences that all engines together run at a time: prefill and decode ones hold a request one after the other."""
    return sum(role.workers * _seats(role) for _name, role in topology.roles.present())


def _seats(role: Role) -> int:
    given = role.args.get("max-num-seqs")
    each = given if isinstance(given, int) and given > 0 else DEFAULT_SEATS
    return each * role.data_parallel
