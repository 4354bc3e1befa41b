"""What load clients cost, side by side against the oracle: `python -m tests.performance.client [--peers DIRECTORY]`.

Not a test: it asserts nothing. `make bench-client` runs it; `docs/performance.md` holds figures and method.

CPU is user and system time of all processes of a client. Each load runs twice, short and long, and the difference
counts, so that start-up does not. `per request` comes from answers of one token, `per further token` from what longer
answers cost beyond those. Saturation keeps a fixed number of requests in flight and divides what was carried by the
CPU seconds it took: the rate that one core would carry.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.performance.client_peers import AIPerf, Endpoints
from tests.performance.client_runs import Aiohttp, Client, Figures, Load, Ours, measure

_SHORT_S = 2
_IN_FLIGHT = 256


@dataclass(frozen=True)
class Cost:
    """What one client costs; None where it gives no figure."""

    client: str
    request_us: float
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
    """Measure one client."""

    def both(name: str, answer: int, rate: float | None, short: int, long: int) -> tuple[Figures, Figures]:
        ttft_ms, tpot_ms = (30.0, 10.0) if rate else (0.0, 2.0)
        loads = [Load(answer, count, rate, _IN_FLIGHT, ttft_ms, tpot_ms) for count in (short, long)]
        first, second = (measure(client, load, directory / f"{name}-{load.requests}") for load in loads)
        print(f"  {client.name} {name}: {first} {second}", file=sys.stderr)
        return first, second

    few, many = int(qps * _SHORT_S), int(qps * (_SHORT_S + seconds))
    one = _difference(*both("one-token", 1, qps, few, many))
    short, long = both("tokens", tokens, qps, few, many)
    requests = 1 / _difference(*both("saturated-requests", 1, None, 1000, 1000 + int(1000 * seconds)))
    whole = _difference(*both("saturated-tokens", tokens, None, 300, 300 + int(300 * seconds)))
    added = long.added_ttft_ms or (None, None)
    return Cost(
        client.name,
        round(one * 1e6, 1),
        round((_difference(short, long) - one) / (tokens - 1) * 1e6, 2),
        None if added[0] is None else round(added[0], 3),
        None if added[1] is None else round(added[1], 3),
        round(long.largest_mb, 1),
        round(requests),
        round(tokens / whole),
    )


def main() -> None:
    """Measure the clients that are there, and print them beside each other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, help="directory that `make bench-peers` has filled")
    parser.add_argument("--qps", type=float, default=200)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--only", action="append", default=[], help="measure only this client; may be repeated")
    options = parser.parse_args()
    clients: list[Client] = [Ours(), Aiohttp()]
    if options.peers is not None:
        peers = options.peers.resolve()
        clients += [peer for peer in (Endpoints(peers), AIPerf(peers)) if peer.program.exists()]
    costs = []
    with tempfile.TemporaryDirectory(prefix="bench-client-") as directory:
        for client in clients:
            if options.only and client.name not in options.only:
                continue
            try:
                found = cost(client, options.qps, options.tokens, options.seconds, Path(directory) / client.name)
            except (RuntimeError, ZeroDivisionError) as problem:
                print(f"  {client.name} could not be measured: {problem}", file=sys.stderr)
                continue
            costs.append(found)
            print(json.dumps(asdict(found)), flush=True)
    if costs and costs[0].client == "ours":
        for other in costs[1:]:
            ratios = {
                "ours to": other.client,
                "request": round(costs[0].request_us / other.request_us, 2),
                "token": round(costs[0].token_us / other.token_us, 2),
                "tokens per core": round(costs[0].tokens_per_core_s / other.tokens_per_core_s, 2),
                "requests per core": round(costs[0].requests_per_core_s / other.requests_per_core_s, 2),
            }
            print(json.dumps(ratios))


if __name__ == "__main__":
    main()
