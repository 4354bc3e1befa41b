"""What the client reports against what the oracle sent: `python -m tests.performance.client_truth [--official]`.

A Server run of llama2-70b's shape (295 tokens an answer) by real LoadGen, judged by the product. TTFT and TPOT as
reported must lie within 1 ms + 1 % of the oracle's own record at p50 and 2 ms + 2 % at p99; the oracle records its
sends as they happened, so that a late server is not held against the client. Exit status 0 when the run is VALID and
within the bounds, 5 when not. `make proof-server` is the full run: 600 s, 24,576 samples, all rules.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from dynamo_mlperf.benchmark.rules import Reduction, benchmark
from dynamo_mlperf.load.bodies import chat_body
from dynamo_mlperf.load.queries import read_queries
from dynamo_mlperf.load.requests import write_requests
from dynamo_mlperf.load.settings import LoadSettings, build_settings
from dynamo_mlperf.load.spec import MeasureSpec
from dynamo_mlperf.load.verdict import judge
from tests.performance.client_runs import Load, OracleProcess

BOUNDS = {50: (1.0, 0.01), 99: (2.0, 0.02)}
"""Milliseconds and share, by percentile."""

TOKENS = 295
_NAME = "llama2-70b-99.9"
_OFFICIAL_SAMPLES = 24_576


def _settings(qps: float, seconds: float, *, official: bool) -> LoadSettings:
    if official:
        return build_settings(benchmark(_NAME), "Server", qps, _OFFICIAL_SAMPLES)
    samples = int(qps * seconds)
    return build_settings(benchmark(_NAME), "Server", qps, samples, Reduction(seconds, samples, 99))


def _compare(reported: dict[str, np.ndarray], truth: dict[str, np.ndarray]) -> bool:
    within = True
    for name, values in reported.items():
        for percentile, (extra_ms, share) in BOUNDS.items():
            got, sent = float(np.percentile(values, percentile)), float(np.percentile(truth[name], percentile))
            good = abs(got - sent) <= extra_ms + share * sent
            within = within and good
            print(
                f"{name} p{percentile}: reported {got:.3f} ms, sent {sent:.3f} ms, difference {got - sent:+.3f} ms, "
                f"bound {extra_ms + share * sent:.3f} ms: {'within' if good else 'OUTSIDE'}",
                flush=True,
            )
    return within


def main() -> int:
    """Run, judge, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--qps", type=float, default=200)
    parser.add_argument("--seconds", type=float, default=30, help="of a short run")
    parser.add_argument("--official", action="store_true", help="all rules: 600 s, 24,576 samples")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of an answer")
    parser.add_argument("--ttft-ms", type=float, default=200)
    parser.add_argument("--tpot-ms", type=float, default=20)
    parser.add_argument("--workers", type=int, default=1, help="client processes")
    parser.add_argument("directory", type=Path, help="where the run's files go; must not exist")
    options = parser.parse_args()
    settings = _settings(options.qps, options.seconds, official=options.official)
    directory = options.directory.resolve()
    directory.mkdir(parents=True)
    texts = (f"sample {number} of a run that is proof" for number in range(settings.dataset_samples))
    write_requests(
        directory / "requests.bin", (chat_body("m", [{"role": "user", "content": text}], 1024) for text in texts)
    )
    load = Load(options.tokens, 0, options.qps, 0, options.ttft_ms, options.tpot_ms)
    with OracleProcess(load) as oracle:
        frontends = (("127.0.0.1", oracle.port),)
        spec = MeasureSpec(settings, directory / "requests.bin", frontends, directory / "loadgen", options.workers)
        (directory / "measure.json").write_text(json.dumps(spec.to_json()))
        argv = [sys.executable, "-m", "dynamo_mlperf.load.loadgen_process", str(directory / "measure.json")]
        status = subprocess.run(argv, cwd=directory, check=False).returncode
        if status:
            return status
        sent = oracle.truth()
    (directory / "truth.json").write_text(json.dumps({key: values.tolist() for key, values in sent.items()}))
    truth = {
        "ttft": (sent["first_ns"] - sent["arrived_ns"]) / 1e6,
        "tpot": (sent["last_ns"] - sent["first_ns"]) / 1e6 / (sent["tokens"] - 1),
    }
    queries = read_queries(directory / "loadgen" / "queries.csv")
    verdict = judge(
        directory / "loadgen", settings, None, "official" if options.official else "reduced", directory.name
    )
    client = json.loads((directory / "loadgen" / "client.json").read_text())
    print(f"verdict {verdict.verdict}: {verdict.requests} requests, {verdict.duration_s:.1f} s")
    for reason in verdict.reasons:
        print(f"  {reason.text()}")
    print(f"issue delay ms {client['issue_delay_ms']}; processes {json.dumps(client['processes'])}")
    within = _compare({name: queries.latencies_ms(name) for name in ("ttft", "tpot")}, truth)
    return 0 if within and verdict.verdict == "VALID" else 5


if __name__ == "__main__":
    sys.exit(main())
