"""What staging costs: `python -m tests.performance.staging`, or `make bench-staging`.

Not a test: it asserts nothing. A model of random shards is copied on one disk by `stage copy`, and by cp, rsync and
rclone where they are installed, in turns. Every copy counts until it is on the disk (`sync -f` is part of it; ours
flushes by itself); ours alone is verified. Then four nodes, each a process with a directory of its own, stage a
smaller model from one store: each by itself, and passing chunks on to each other. A store of a given speed is
simulated: who reads a block holds a lock for as long as the store would take.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dynamo_mlperf.staging.manifest import make_manifest
from dynamo_mlperf.staging.peers import Peer, Peers, new_token

MIB = 1 << 20
NODES = 4
WARMTHS = (True, False)
STAGE = (sys.executable, "-m", "dynamo_mlperf.cli", "stage", "copy")

# Runs `stage copy` with the rest of the arguments; argv[1] is the store's speed in bytes/s, argv[2] its lock.
FROM_SLOW_STORE = """
import fcntl, os, sys, time
from dynamo_mlperf.cli import main
from dynamo_mlperf.staging import blocks, swarm

speed, lock = float(sys.argv[1]), os.open(sys.argv[2], os.O_RDWR | os.O_CREAT)
sendfile, read_chunk = os.sendfile, swarm.Swarm._read_chunk

def take(size):
    with open(sys.argv[2]) as mine:
        fcntl.flock(mine, fcntl.LOCK_EX)
        time.sleep(size / speed)

def slow_sendfile(target, origin, at, size):
    moved = sendfile(target, origin, at, size)
    take(moved)
    return moved

def slow_read_chunk(self, number):
    block = read_chunk(self, number)
    take(len(block))
    return block

class Slow:  # only the copy's calls: the giver sends to the other nodes by socket.sendfile
    def __getattr__(self, name):
        return slow_sendfile if name == "sendfile" else getattr(os, name)

if speed:
    blocks.os = Slow()
    swarm.Swarm._read_chunk = slow_read_chunk
main(sys.argv[3:])
"""


@dataclass(frozen=True)
class Cost:
    """Seconds until everything is on the disk, and CPU seconds of all processes."""

    wall_s: float
    cpu_s: float


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _measured(work: Callable[[], None]) -> Cost:
    began_s, before_s = time.perf_counter(), _cpu_s()
    work()
    return Cost(time.perf_counter() - began_s, _cpu_s() - before_s)


def make_model(directory: Path, shards: int, shard_bytes: int) -> None:
    """Shards of random bytes; no file system can store them as holes or share them."""
    directory.mkdir()
    for number in range(shards):
        with (directory / f"model-{number + 1:05d}-of-{shards:05d}.safetensors").open("wb") as out:
            left = shard_bytes
            while left:
                left -= out.write(os.urandom(min(left, 8 * MIB)))
            os.fsync(out.fileno())


def set_cache(directory: Path, *, warm: bool) -> None:
    """Bring the files into the page cache, or drop them from it."""
    for path in directory.iterdir():
        fd = os.open(path, os.O_RDONLY)
        if warm:
            while os.read(fd, 8 * MIB):
                pass
        else:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def tools(source: Path, manifest: Path, target: Path) -> dict[str, Sequence[Sequence[str | Path]]]:
    """Commands by name, those of installed tools."""
    flush = ("sync", "-f", target.parent)
    found: dict[str, Sequence[Sequence[str | Path]]] = {
        "stage copy": [(*STAGE, manifest, "--base", "/", "--to", target, "--no-evict", "--json")],
        "cp -r": [("cp", "-r", source, target), flush],
        "rsync -a": [("rsync", "-a", f"{source}/", f"{target}/"), flush],
        "rclone copy": [("rclone", "copy", "--config", "/dev/null", source, target), flush],
    }
    return {name: commands for name, commands in found.items() if name == "stage copy" or shutil.which(name.split()[0])}


def compare(source: Path, manifest: Path, root: Path, rounds: int, *, warm: bool) -> dict[str, list[Cost]]:
    """Each tool in turn, round by round and each round from another one on, so that the machine is alike to all.

    Before each, a copy that does not count takes as much memory and gives it back: the first to touch memory that a
    virtual machine's host has taken back pays for that, whoever it is.
    """
    target = root / "copy"
    costs: dict[str, list[Cost]] = {}
    for turn in range(rounds):
        found = [*tools(source, manifest, target).items()]
        for name, commands in found[turn % len(found) :] + found[: turn % len(found)]:
            set_cache(source, warm=True)
            shutil.copytree(source, target)
            shutil.rmtree(target)
            set_cache(source, warm=warm)
            os.sync()

            def work(commands: Sequence[Sequence[str | Path]] = commands) -> None:
                for command in commands:
                    subprocess.run(command, check=True, capture_output=True)

            costs.setdefault(name, []).append(_measured(work))
            shutil.rmtree(target)
    return costs


def four_nodes(manifest: Path, root: Path, mode: str, store_bytes_per_s: float) -> tuple[Cost, int]:
    """Stage on four nodes at once; returns the cost and the bytes read from the store."""
    held = [socket.socket() for _ in range(NODES)]
    for sock in held:
        sock.bind(("127.0.0.1", 0))
    nodes = tuple(Peer("127.0.0.1", (sock.getsockname()[1],)) for sock in held)
    for sock in held:
        sock.close()
    peers = root / "peers.json"
    if mode != "store":
        Peers(nodes, new_token(), "peers" if mode == "peers" else "auto").write(peers)
    read_bytes = 0

    def work() -> None:
        nonlocal read_bytes
        own = [("--peers", peers, "--rank", str(rank)) if mode != "store" else () for rank in range(NODES)]
        copy = ("stage", "copy", manifest, "--base", "/", "--no-evict", "--json")
        start = (sys.executable, "-c", FROM_SLOW_STORE, str(store_bytes_per_s), root / "store.lock")
        processes = [
            subprocess.Popen(
                [*start, *copy, "--to", root / f"node-{rank}", *own[rank]],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            for rank in range(NODES)
        ]
        for process in processes:
            out, _ = process.communicate()
            read_bytes += json.loads(out)["bytes_from_store"]

    cost = _measured(work)
    peers.unlink(missing_ok=True)
    for rank in range(NODES):
        shutil.rmtree(root / f"node-{rank}")
    return cost, read_bytes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dir", type=Path, default=Path(), help="a directory on the disk to measure")
    parser.add_argument("--mib", type=int, default=4096, help="size of the model")
    parser.add_argument("--shards", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--node-mib", type=int, default=512, help="size of the model for four nodes")
    parser.add_argument("--stores", type=float, nargs="*", default=[100, 400, 0], help="store speeds in MB/s; 0: as is")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir, prefix=".bench-staging-") as name:
        root = Path(name).absolute()
        if given.rounds:
            _tell_tools(root, given.shards, given.mib, given.rounds)
        if given.stores:
            _tell_nodes(root, given.shards, given.node_mib, given.stores)


def _model(root: Path, name: str, shards: int, mib: int) -> tuple[Path, Path]:
    source, manifest = root / name, root / f"{name}.yaml"
    make_model(source, shards, mib * MIB // shards)
    manifest.write_text(make_manifest(source).to_yaml())
    return source, manifest


def _tell_tools(root: Path, shards: int, mib: int, rounds: int) -> None:
    source, manifest = _model(root, "model", shards, mib)
    for warm in WARMTHS:
        costs = compare(source, manifest, root, rounds, warm=warm)
        ours_s = statistics.median(cost.wall_s for cost in costs["stage copy"])
        print(f"{mib} MiB in {shards} shards, source {'in' if warm else 'not in'} the page cache, {rounds} rounds")
        for tool, found in costs.items():
            wall_s, cpu_s = (
                statistics.median(values) for values in zip(*((c.wall_s, c.cpu_s) for c in found), strict=True)
            )
            best_s = min(cost.wall_s for cost in found)
            print(
                f"  {tool:12} median {wall_s:6.2f} s  x{wall_s / ours_s:4.2f}  best {best_s:6.2f} s  CPU {cpu_s:5.2f} s",
                flush=True,
            )
    shutil.rmtree(source)


def _tell_nodes(root: Path, shards: int, mib: int, stores: Sequence[float]) -> None:
    source, manifest = _model(root, "shared", shards, mib)
    total_bytes = sum(path.stat().st_size for path in source.iterdir())
    for speed in stores:
        print(f"{NODES} nodes, {mib} MiB, a store of {f'{speed:g} MB/s' if speed else 'this disk, in the page cache'}")
        for mode in ("store", "peers", "auto"):
            set_cache(source, warm=True)
            cost, read_bytes = four_nodes(manifest, root, mode, speed * 1e6)
            times = read_bytes / total_bytes
            print(
                f"  {mode:6} {cost.wall_s:6.2f} s, store read {times:4.2f} times, CPU {cost.cpu_s:5.2f} s", flush=True
            )


if __name__ == "__main__":
    main()
