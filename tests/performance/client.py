"""What load clients cost, side by side against the oracle: `python -m tests.performance.client [--peers DIRECTORY]`.

Not a test: it asserts nothing. `make bench-client` runs it; `docs/performance.md` holds figures and method.

CPU is user and system time of all processes of a client. Each load runs twice, short and long, and the difference
counts, so that start-up does not. At a rate, `short` answers have two tokens (LoadGen logs an error for each answer of
one where it judges tokens) and `whole` ones `--tokens`; a further token costs the difference over their tokens.
Saturation keeps a fixed number of requests in flight and divides what was carried by the CPU seconds it took: the rate
that one core would carry. Clients take turns, `--repeats` times, and medians are given. All of it runs under real-time
priority where the system allows it, clients and servers alike, so that other work on the machine delays none of them
(it still takes their caches). Last, `--sustain` one-token requests/s through LoadGen and our client.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from tests.performance.client_peers import AIPerf, Endpoints
from tests.performance.client_runs import Aiohttp, Client, Figures, Load, Ours, measure

_SHORT_S = 2
_SHORT_TOKENS = 2
_IN_FLIGHT = 256
_REAL_TIME = 40
_SUSTAINED_S = 6


@dataclass(frozen=True)
class Cost:
    """What one client costs; None where it gives no figure."""

    short_request_us: float
    whole_request_us: float
    token_us: float
    added_ttft_p50_ms: float | None
    added_ttft_p99_ms: float | None
    largest_mb: float
    requests_per_core_s: float
    tokens_per_core_s: float


def _difference(short: Figures, long: Figures) -> float:
    """CPU seconds per request, start-up taken out."""
    return (long.cpu_s - short.cpu_s) / (long.requests - short.requests)


def cost(client: Client, qps: float, tokens: int, seconds: float, directory: Path) -> Cost:
    """Measure one client once."""

    def both(name: str, answer: int, rate: float | None, short: int, long: int) -> tuple[Figures, Figures]:
        ttft_ms, tpot_ms = (30.0, 10.0) if rate else (0.0, 2.0)
        loads = [Load(answer, count, rate, _IN_FLIGHT, ttft_ms, tpot_ms) for count in (short, long)]
        first, second = (measure(client, load, directory / f"{name}-{load.requests}") for load in loads)
        print(f"  {client.name} {name}: {first} {second}", file=sys.stderr)
        return first, second

    few, many = int(qps * _SHORT_S), int(qps * (_SHORT_S + seconds))
    short = _difference(*both("short", _SHORT_TOKENS, qps, few, many))
    brief, long = both("whole", tokens, qps, few, many)
    whole = _difference(brief, long)
    requests = 1 / _difference(*both("saturated-requests", 1, None, 1000, 1000 + int(1000 * seconds)))
    saturated = _difference(*both("saturated-tokens", tokens, None, 300, 300 + int(300 * seconds)))
    p50, p99 = long.added_ttft_ms or (None, None)
    token = (whole - short) / (tokens - _SHORT_TOKENS)
    return Cost(short * 1e6, whole * 1e6, token * 1e6, p50, p99, long.largest_mb, requests, tokens / saturated)


def _median(costs: list[Cost]) -> dict[str, float | None]:
    """Of each figure by itself."""
    medians = {}
    for field in fields(Cost):
        values = [value for value in (getattr(each, field.name) for each in costs) if value is not None]
        medians[field.name] = round(statistics.median(values), 3) if values else None
    return medians


def _ratios(ours: dict[str, float | None], theirs: dict[str, float | None]) -> dict[str, float]:
    """Ours to theirs."""
    return {
        name: round(mine / other, 3)
        for name, mine in ours.items()
        if mine is not None and (other := theirs.get(name)) is not None and other > 0
    }


def _sustain(rate: float, directory: Path) -> dict[str, Any]:
    """One-token requests at a rate for some seconds, and whether our client says that it kept up."""
    load = Load(1, int(rate * _SUSTAINED_S), rate, 0, 5.0, 1.0)
    found = measure(Ours(), load, directory)
    account = json.loads((directory / "out" / "client.json").read_text())
    return {
        "sustained": round(found.requests / found.wall_s),
        "wanted": rate,
        "failed": len(account["failed"]),
        "issue_delay_ms": account["issue_delay_ms"],
        "cpu_share": {each["name"]: round(each["cpu_s"] / account["wall_s"], 3) for each in account["processes"]},
        "client_limited": account["client_limited"],
    }


def _set_real_time() -> str:
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_REAL_TIME))
    except PermissionError:
        return "normal"
    return "real time"


def _tell(**figures: object) -> None:
    print(json.dumps(figures), flush=True)


def main() -> None:
    """Measure the clients that are there, and print them beside each other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="directory that `make bench-peers` has filled")
    parser.add_argument("--qps", type=float, default=200)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sustain", type=float, default=4000, help="one-token requests/s; 0 = leave out")
    parser.add_argument("--only", action="append", default=[], help="measure only this client; may be repeated")
    options = parser.parse_args()
    clients: list[Client] = [Ours(), Aiohttp()]
    if options.peers is not None:
        peers = options.peers.resolve()
        clients += [peer for peer in (Endpoints(peers), AIPerf(peers)) if peer.program.exists()]
    clients = [client for client in clients if not options.only or client.name in options.only]
    _tell(priority=_set_real_time(), cores=os.cpu_count(), load_average=os.getloadavg()[0])
    costs: dict[str, list[Cost]] = {client.name: [] for client in clients}
    with tempfile.TemporaryDirectory(prefix="bench-client-") as directory:
        for turn in range(options.repeats):
            for client in clients:
                place = Path(directory) / f"{client.name}-{turn}"
                try:
                    found = cost(client, options.qps, options.tokens, options.seconds, place)
                except (RuntimeError, ZeroDivisionError) as problem:
                    print(f"  {client.name} could not be measured: {problem}", file=sys.stderr)
                    continue
                costs[client.name].append(found)
                _tell(turn=turn, client=client.name, load_average=os.getloadavg()[0], **asdict(found))
        medians = {name: _median(found) for name, found in costs.items() if found}
        for name, median in medians.items():
            _tell(median_of=len(costs[name]), client=name, **median)
        for name, median in medians.items():
            if name != "ours" and "ours" in medians:
                _tell(ours_to=name, **_ratios(medians["ours"], median))
        if options.sustain and "ours" in costs:
            _tell(**_sustain(options.sustain, Path(directory) / "sustained"))


if __name__ == "__main__":
    main()
