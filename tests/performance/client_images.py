"""Offline of qwen3-vl-235b-a22b at its real size through the client: `python -m tests.performance.client_images DIRECTORY`.

48,289 products with a picture each, by `dynamo-mlperf measure` against the oracle, with the rule on duration lowered so
that it takes as long as the work does. `--image-kb` is the size of a picture's file; the bodies carry it as base64, and
what all bodies come to decides whether they are within the client's budget (`requests.RESIDENT_BYTES`) or beyond it.
Prints the verdict, the counts, and each process's largest private and resident memory. Exit status: that of `measure`,
or 5 where a sample is without its whole answer by the client's count or the oracle's.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil

from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.benchmark.tiny_catalogue import png
from tests.fakes.made_data import write_made_data
from tests.performance.client_runs import Load, OracleProcess, ProcessWatch

_NAME = "qwen3-vl-235b-a22b"
_TURNS = (
    ("dynamo_mlperf.load.http_worker", "client process"),
    ("dynamo_mlperf.load.loadgen_process", "LoadGen's process"),
    ("dynamo_mlperf.cli", "measure"),
)


class MemoryWatch(ProcessWatch):
    """Peak memory of the processes below one, by what they are: private (`RssAnon`) and resident, in MB."""

    def __init__(self, pid: int) -> None:
        super().__init__(pid)
        self.private_mb: dict[str, float] = {}
        self.resident_mb: dict[str, float] = {}

    def look(self, process: psutil.Process) -> None:
        """Take in one process."""
        words = process.cmdline()
        name = next((turn for module, turn in _TURNS if module in words), "another")
        status = Path(f"/proc/{process.pid}/status").read_text()
        sizes = {
            key: int(rest.split()[0]) * 1024 / 1e6
            for key, _, rest in (line.partition(":") for line in status.splitlines())
            if key in ("RssAnon", "VmHWM")
        }
        self.private_mb[name] = max(self.private_mb.get(name, 0.0), sizes.get("RssAnon", 0.0))
        self.resident_mb[name] = max(self.resident_mb.get(name, 0.0), sizes.get("VmHWM", 0.0))


def _data(directory: Path, share: float, image_kb: int) -> Path:
    """The data set, its eight pictures of noise, which no compression makes smaller."""
    write_made_data(_NAME, directory, share=share)
    draw = np.random.default_rng(7)
    side = int((image_kb * 1000 / 3) ** 0.5)
    for picture in sorted((directory / "images").iterdir()):
        picture.write_bytes(png(draw.integers(0, 256, (side, side, 3), np.uint8)))
    return directory


def main() -> int:
    """Make the data, run, compare the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the 48,289 products")
    parser.add_argument("--image-kb", type=int, default=80, help="size of a picture's file")
    parser.add_argument("--tokens", type=int, default=32, help="of an answer")
    parser.add_argument("--ttft-ms", type=float, default=200)
    parser.add_argument("--tpot-ms", type=float, default=10)
    parser.add_argument("directory", type=Path, help="where data and run go; must not exist")
    options = parser.parse_args()
    directory = options.directory.resolve()
    directory.mkdir(parents=True)
    data = _data(directory / "data", options.share, options.image_kb)
    samples = max(1, round(options.share * benchmark(_NAME).performance_sample_count["Offline"]))
    load = Load(options.tokens, 0, None, 0, options.ttft_ms, options.tpot_ms)
    run = directory / "run"
    began_s = time.monotonic()
    with OracleProcess(load) as oracle:
        argv = [sys.executable, "-m", "dynamo_mlperf.cli", "measure", f"http://127.0.0.1:{oracle.port}"]
        argv += ["--model", "m", "--benchmark", _NAME, "--scenario", "Offline", "--dataset", str(data)]
        argv += ["--target-qps", "10", "--reduced", "min_duration_s=1", "--run-dir", str(run)]
        if options.share < 1:
            argv += ["--reduced", f"samples={samples}"]
        process = subprocess.Popen(argv)
        watch = MemoryWatch(process.pid)
        watch.start()
        status = process.wait()
        watch.done.set()
        watch.join()
        answers = len(oracle.truth()["first_ns"])
    accounts = sorted(run.rglob("client.json"))
    if not accounts:
        return status or 5  # `measure` has said why
    client = json.loads(accounts[0].read_text())
    print(
        json.dumps(
            {
                "samples": samples,
                "bodies_mb": round(sum(path.stat().st_size for path in run.rglob("requests.bin")) / 1e6),
                "answered_whole": answers,
                "failed": len(client["failed"]),
                "wall_s": round(time.monotonic() - began_s, 1),
                "measured_s": client["wall_s"],
                "max_in_flight": client["max_in_flight"],
                "in_flight_bound": client["in_flight_bound"],
                "processes": client["processes"],
                "peak_private_mb": {name: round(size, 1) for name, size in watch.private_mb.items()},
                "peak_resident_mb": {name: round(size, 1) for name, size in watch.resident_mb.items()},
            },
            indent=1,
        )
    )
    whole = client["requests"] == samples <= answers and not client["failed"]  # the warm-up has been answered, too
    return status or (0 if whole else 5)


if __name__ == "__main__":
    sys.exit(main())
