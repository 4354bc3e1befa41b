"""Whole submissions rehearsed: official settings against an oracle that knows the truth of made data.

`python -m tests.performance.submission DIRECTORY [--cells gpt-oss-120b:Server,...]` makes, per benchmark and scenario,
one run directory with a performance test of 600 s, an accuracy test and the compliance tests, by `measure --rehearsal`
and real LoadGen. A cell takes 20 to 30 minutes; all run side by side (`--at-once`). What is VALID already is left alone
when the command is run again, and a performance test that was INVALID is put aside and repeated (`--tries`).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dynamo_mlperf.benchmark.rules import SCENARIOS, benchmark
from tests.fakes.made_data import write_made_data

BENCHMARKS = ("gpt-oss-120b", "deepseek-r1", "llama2-70b-99.9")
"""Those whose LoadGen form is rehearsed."""

RUN_S = 630.0
"""Planned length of Server and Interactive: one whole data set, and enough beyond 600 s for the luck of arrivals."""

OFFLINE_S = 612.0
_OFFLINE_PLAN_S = 670.0
"""LoadGen plans Offline for 1.1 times 600 s: a target below the data set over this gives one whole data set."""

EOS = 2


@dataclass(frozen=True)
class Cell:
    """One scenario of one benchmark."""

    benchmark: str
    scenario: str

    @property
    def name(self) -> str:
        """Of its run directory."""
        return f"{self.benchmark}-{self.scenario.lower()}"

    @property
    def samples(self) -> int:
        """Of its performance test."""
        return benchmark(self.benchmark).performance_sample_count[self.scenario]

    @property
    def target_qps(self) -> float:
        """A rate that just fills the time with one whole data set."""
        return round(self.samples / (_OFFLINE_PLAN_S if self.scenario == "Offline" else RUN_S), 3)


class Rehearsal:
    """Runs cells below one directory."""

    def __init__(self, root: Path, tries: int) -> None:
        self._root = root
        self._tries = tries
        self._tokenizer = root / "tokenizer"
        self._tokenizer.mkdir(parents=True, exist_ok=True)
        (self._tokenizer / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS}))

    def data(self, name: str) -> Path:
        """The benchmark's data sets, made where they are not there."""
        directory = self._root / "data" / name
        if not (directory / "prompts.jsonl").exists():
            write_made_data(name, directory)
        return directory

    def run(self, cell: Cell) -> bool:
        """Whether every test of the cell is VALID at the end."""
        root = self._root / cell.name
        with _OracleProcess(
            cell, self.data(cell.benchmark), _port_of(root), self._root / f"{cell.name}.oracle"
        ) as port:
            for _ in range(self._tries):
                if self._performance(cell, root, port):
                    break
            else:
                return False
            done = [self._side(cell, root, port, name) for name in _side_names(cell)]
        return all(done)

    def _performance(self, cell: Cell, root: Path, port: int) -> bool:
        if _verdict(root / "verdict.json") == "VALID":
            return True
        if root.exists():
            root.rename(root.with_name(f"{root.name}.aside-{int(time.time())}"))
        self._measure(cell, root, port)
        return _verdict(root / "verdict.json") == "VALID"

    def _side(self, cell: Cell, root: Path, port: int, name: str) -> bool:
        folder = root / name
        for _ in range(self._tries):
            if _verdict(folder / "result.json") == "VALID":
                return True
            if folder.exists():
                aside = self._root / f"{cell.name}.{name}.aside-{int(time.time())}"
                folder.rename(aside)
            mode = ["--mode", "accuracy"] if name == "accuracy" else ["--mode", "compliance", "--test", name]
            self._measure(cell, root, port, *mode)
        return _verdict(folder / "result.json") == "VALID"

    def _measure(self, cell: Cell, root: Path, port: int, *more: str) -> None:
        argv = [sys.executable, "-m", "dynamo_mlperf.cli", "measure", f"http://127.0.0.1:{port}"]
        argv += ["--model", cell.benchmark, "--benchmark", cell.benchmark, "--scenario", cell.scenario]
        argv += ["--dataset", str(self.data(cell.benchmark)), "--target-qps", str(cell.target_qps), "--rehearsal"]
        argv += ["--tokenizer", str(self._tokenizer), "--run-dir", str(root), *more]
        with (self._root / f"{cell.name}.log").open("ab") as log:
            done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=log, text=True, check=False)
        print(
            f"{time.strftime('%H:%M:%S')} {cell.name} {' '.join(more)}: {done.returncode} {done.stdout.strip()}",
            flush=True,
        )


class _OracleProcess:
    """The cell's oracle, at the port that its run directory names if it has one."""

    def __init__(self, cell: Cell, data: Path, port: int, log: Path) -> None:
        self._argv = [sys.executable, "-m", "tests.fakes.truth_oracle", str(data), "--benchmark", cell.benchmark]
        self._argv += ["--model", cell.benchmark, "--right", "0.93", "--eos", str(EOS), "--port", str(port)]
        if cell.scenario == "Offline":
            self._argv += ["--rate", f"{cell.samples / OFFLINE_S:.4f}"]
        self._log = log

    def __enter__(self) -> int:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._argv, stdout=subprocess.PIPE, stderr=log, text=True)
        assert self._process.stdout is not None
        return int(self._process.stdout.readline().split()[-1])

    def __exit__(self, *_problem: object) -> None:
        self._process.kill()
        self._process.wait()


def _side_names(cell: Cell) -> tuple[str, ...]:
    return ("accuracy", *benchmark(cell.benchmark).compliance_tests)


def _verdict(path: Path) -> str | None:
    return str(json.loads(path.read_text())["verdict"]) if path.exists() else None


def _port_of(root: Path) -> int:
    """All tests of a run directory go to one address; 0 where there is none yet."""
    path = root / "endpoint.json"
    value: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"urls": ["x:0"]}
    return int(value["urls"][0].rpartition(":")[2])


def main() -> int:
    """Run the cells; exit status 0 when every test of each is VALID."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--cells", help="BENCHMARK:SCENARIO, comma between; default: all")
    parser.add_argument("--at-once", type=int, default=9)
    parser.add_argument("--tries", type=int, default=2)
    options = parser.parse_args()
    every = [Cell(name, scenario) for name in BENCHMARKS for scenario in SCENARIOS]
    if options.cells:
        every = [Cell(*entry.split(":")) for entry in options.cells.split(",")]
    rehearsal = Rehearsal(options.directory.resolve(), options.tries)
    for name in {cell.benchmark for cell in every}:
        rehearsal.data(name)
    with ThreadPoolExecutor(options.at_once) as pool:
        done = dict(zip(every, pool.map(rehearsal.run, every), strict=True))
    for cell, valid in done.items():
        print(f"{cell.name}: {'VALID' if valid else 'NOT VALID'}")
    return 0 if all(done.values()) else 5


if __name__ == "__main__":
    sys.exit(main())
