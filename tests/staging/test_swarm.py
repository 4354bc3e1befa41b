"""Nodes that pass a model on to each other: real stagers, one process and one disk each, over real sockets."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from blake3 import blake3

from dynamo_mlperf.errors import ConfigError, SetupError
from dynamo_mlperf.staging.copy import stage, staged_path
from dynamo_mlperf.staging.manifest import Manifest, make_manifest
from dynamo_mlperf.staging.marker import is_staged
from dynamo_mlperf.staging.peers import Peer, Peers, new_token, read_peers
from dynamo_mlperf.staging.swarm import Swarm
from dynamo_mlperf.staging.wire import (
    MAGIC,
    Secret,
    WireError,
    answer_head,
    ask,
    greet_as_taker,
    receive_head,
    receive_into,
)
from tests.fakes.free_ports import free_block

if TYPE_CHECKING:
    from collections.abc import Iterator

MIB = 1 << 20
NODES = 4
PATIENCE_S = 60.0
CHUNK_BYTES = 256 * 1024

# Stages argv[1] from argv[2] to argv[3] with peers argv[4] as rank argv[5]; argv[6] is Python to run before.
STAGER = """
import json, sys, time
from pathlib import Path
from dynamo_mlperf.errors import SetupError
from dynamo_mlperf.staging import blocks, giver, swarm, wire
from dynamo_mlperf.staging.copy import stage
from dynamo_mlperf.staging.manifest import load_manifest
from dynamo_mlperf.staging.peers import read_peers

exec(sys.argv[6])
notices = []
manifest, source, disk = (load_manifest(Path(sys.argv[1])), Path(sys.argv[2]), Path(sys.argv[3]))
try:
    with swarm.Swarm(read_peers(Path(sys.argv[4])), int(sys.argv[5]), manifest, source, notices.append) as supply:
        result = stage(manifest, source, disk, supply=supply, notice=notices.append)
except SetupError as error:
    sys.exit(f"refused: {error.what}")
answer = {"store": supply.store_bytes, "peers": supply.peer_bytes, "reused": result.reused, "notices": notices}
print(json.dumps(answer), flush=True)
"""
SLOW_STORE = """
swarm.STORE_READERS = 1
read = swarm.Swarm._read_chunk
swarm.Swarm._read_chunk = lambda *given: (time.sleep({seconds}), read(*given))[1]
"""
NEVER_S = 3600.0
"""For what is not to happen in a test, however busy the machine is."""


@dataclass
class Part:
    """What one node did."""

    store: int
    peers: int
    notices: list[str]
    error: SetupError | None


class Cluster:
    """A store, and four nodes with a disk each."""

    def __init__(self, root: Path, repository: Path) -> None:
        self.root, self.repository = root, repository
        self.source = root / "store"
        self.source.mkdir()
        for number in range(5):
            (self.source / f"shard-{number}.bin").write_bytes(os.urandom(MIB + number * 1000))
        (self.source / "config.json").write_text("{}")
        (self.source / "empty").touch()
        self.manifest: Manifest = make_manifest(self.source, name="m")
        (root / "m.yaml").write_text(self.manifest.to_yaml())
        self.processes: list[subprocess.Popen[str]] = []

    def peers(self, **changes: Any) -> Path:
        nodes = tuple(Peer("127.0.0.1", (port,)) for port in free_block(NODES))
        settings = {
            "mode": "peers",
            "chunk_bytes": CHUNK_BYTES,
            "patience_s": PATIENCE_S,
            "slow_s": NEVER_S,
            **changes,
        }
        path = self.root / "peers.json"
        Peers(nodes, new_token(), **settings).write(path)
        return path

    def disk(self, rank: int) -> Path:
        return self.root / f"disk-{rank}"

    def start(self, rank: int, before: str = "pass", peers: Path | None = None) -> subprocess.Popen[str]:
        argv = [self.root / "m.yaml", self.source, self.disk(rank), peers or self.root / "peers.json", rank, before]
        process = subprocess.Popen(
            [sys.executable, "-c", STAGER, *map(str, argv)],
            cwd=self.repository,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        found: dict[str, Any] = json.loads(out)
        return found

    def written_bytes(self, rank: int) -> int:
        """What a node has of the copy that grows; what it has only made room for does not count."""
        try:
            return sum(path.stat().st_blocks * 512 for path in self.disk(rank).glob(".*.partial/*.bin"))
        except FileNotFoundError:  # it has got its final name meanwhile
            return self.manifest.total_bytes

    def assert_staged(self, *ranks: int) -> None:
        for rank in ranks:
            final = staged_path(self.manifest, self.disk(rank))
            assert is_staged(self.manifest, final)
            for file in self.manifest.files:
                assert (final / file.path).read_bytes() == (self.source / file.path).read_bytes()
            assert list(self.disk(rank).glob(".*.partial")) == []


@pytest.fixture
def cluster(tmp_path: Path, repository: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path, repository)
    yield made
    for process in made.processes:
        process.kill()
        process.communicate()


Tweak = Callable[[Swarm], None]


def _together(cluster: Cluster, tweaks: Mapping[int, Tweak] | None = None, **changes: Any) -> list[Part]:
    """All nodes as threads of this process, each with its own disk and sockets; one result per rank, or its error.

    Nobody is found to be slow, and nobody is dropped for its silence, unless `changes` says otherwise.
    """
    peers = read_peers(cluster.peers(**changes))

    def part(rank: int) -> Part:
        notices: list[str] = []
        try:
            with Swarm(peers, rank, cluster.manifest, cluster.source, notices.append) as swarm:
                if tweaks and rank in tweaks:
                    tweaks[rank](swarm)
                result = stage(cluster.manifest, cluster.source, cluster.disk(rank), supply=swarm)
        except SetupError as error:
            return Part(0, 0, notices, error)
        assert (result.bytes_from_store, result.bytes_from_peers) == (swarm.store_bytes, swarm.peer_bytes)
        return Part(swarm.store_bytes, swarm.peer_bytes, notices, None)

    with ThreadPoolExecutor(NODES) as pool:
        return list(pool.map(part, range(NODES)))


def test_the_store_is_read_once(cluster: Cluster) -> None:
    cluster.peers()
    answers = [cluster.answer(each) for each in [cluster.start(rank) for rank in range(NODES)]]
    total = cluster.manifest.total_bytes
    assert sum(each["store"] for each in answers) == total
    assert [each["store"] + each["peers"] for each in answers] == [total] * NODES
    assert all(each["store"] < total / 2 for each in answers)
    assert [each["notices"] for each in answers] == [[]] * NODES
    cluster.assert_staged(*range(NODES))


def test_a_node_that_is_killed_midway_costs_its_share_and_no_more(cluster: Cluster) -> None:
    cluster.peers()
    # The one that is killed is by far the slowest, so that something of its share is always still to come.
    paces_s = [3.0 if rank == 2 else 0.2 for rank in range(NODES)]
    processes = [cluster.start(rank, SLOW_STORE.format(seconds=pace_s)) for rank, pace_s in enumerate(paces_s)]
    deadline = time.monotonic() + PATIENCE_S
    while not all(cluster.written_bytes(rank) >= 8 * CHUNK_BYTES for rank in range(NODES)):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    processes[2].send_signal(signal.SIGKILL)
    answers = [cluster.answer(processes[rank]) for rank in (0, 1, 3)]
    cluster.assert_staged(0, 1, 3)
    total = cluster.manifest.total_bytes
    assert sum(each["store"] for each in answers) <= total * 1.05
    for each in answers:
        assert len(each["notices"]) <= 1
        assert all(re.match(r"node 2 .*; its share comes from elsewhere$", text) for text in each["notices"])
    assert any(each["notices"] for each in answers)
    # The dead node comes back alone and finishes from what it has and from the store.
    assert stage(cluster.manifest, cluster.source, cluster.disk(2)).path.is_dir()
    cluster.assert_staged(2)


def test_a_damaged_chunk_is_refused_on_arrival(cluster: Cluster) -> None:
    def damage(swarm: Swarm) -> None:
        def give(sock: socket.socket, number: int) -> None:
            chunk = swarm._board.chunks[number]
            sock.sendall(answer_head(chunk.length, bytes(32)) + os.urandom(chunk.length))

        swarm._giver._give = give  # type: ignore[method-assign]

    parts = _together(cluster, {1: damage})
    cluster.assert_staged(*range(NODES))
    assert [part.notices for part in parts] == [
        [] if rank == 1 else ["node 1 sent a damaged chunk; its share comes from elsewhere"] for rank in range(NODES)
    ]
    total = cluster.manifest.total_bytes
    assert total < sum(part.store for part in parts) < 1.5 * total


def test_a_node_that_gives_other_content_with_its_right_digest_is_found_by_the_file(cluster: Cluster) -> None:
    def lie(swarm: Swarm) -> None:
        def give(sock: socket.socket, number: int) -> None:
            false = b"?" * swarm._board.chunks[number].length
            sock.sendall(answer_head(len(false), blake3(false).digest()) + false)

        swarm._giver._give = give  # type: ignore[method-assign]

    parts = _together(cluster, {3: lie})
    cluster.assert_staged(*range(NODES))
    dropped = [text for part in parts for text in part.notices if text.startswith("node 3 gave another content")]
    assert dropped
    assert {text for part in parts for text in part.notices} == set(dropped)


def test_a_slow_node_is_relieved(cluster: Cluster) -> None:
    def slow(swarm: Swarm) -> None:
        give = swarm._giver._give

        def later(sock: socket.socket, number: int) -> None:
            time.sleep(1.5)
            give(sock, number)

        swarm._giver._give = later  # type: ignore[method-assign]

    parts = _together(cluster, {1: slow}, slow_s=2.0)
    cluster.assert_staged(*range(NODES))
    relieved = set()
    for rank in (0, 2, 3):
        told = [
            re.fullmatch(r"node (\d) would take \d+ s more; \d of its chunks come from elsewhere", text)
            for text in parts[rank].notices
        ]
        named = [found[1] for found in told if found]
        assert len(named) == len(told), parts[rank].notices
        assert named.count("1") == 1
        relieved.update(named)  # where the machine is very busy, another one is slow, too
    total = cluster.manifest.total_bytes
    assert total < sum(part.store for part in parts) < (1 + 0.4 * len(relieved)) * total


def test_a_node_that_delivers_nothing_is_dropped(cluster: Cluster) -> None:
    def hang(swarm: Swarm) -> None:
        swarm._giver._give = lambda *_: time.sleep(8.0)  # type: ignore[method-assign]

    parts = _together(cluster, {0: hang}, patience_s=5.0)
    cluster.assert_staged(*range(NODES))
    told = {text for rank in (1, 2, 3) for text in parts[rank].notices if "its share" in text}
    assert told <= {
        "node 0 has delivered nothing for 5 s; its share comes from elsewhere",
        "node 0 timed out; its share comes from elsewhere",
    }
    assert told


def test_a_node_that_never_comes_is_not_waited_for_longer_than_patience(cluster: Cluster) -> None:
    peers = read_peers(cluster.peers(patience_s=0.5))
    notices: list[str] = []
    with Swarm(peers, 0, cluster.manifest, cluster.source, notices.append) as swarm:
        stage(cluster.manifest, cluster.source, cluster.disk(0), supply=swarm)
    assert swarm.store_bytes == cluster.manifest.total_bytes
    cluster.assert_staged(0)
    assert notices[-1] == "nodes [1, 2, 3] never came; not waited for"


def test_a_node_that_has_everything_gives_its_share_and_reads_nothing(cluster: Cluster) -> None:
    stage(cluster.manifest, cluster.source, cluster.disk(2))
    parts = _together(cluster)
    cluster.assert_staged(*range(NODES))
    total = cluster.manifest.total_bytes
    assert (parts[2].store, parts[2].peers) == (0, 0)
    assert sum(part.store for part in parts) < total * 0.85


def test_an_interrupted_copy_is_continued_in_the_swarm(cluster: Cluster) -> None:
    final = stage(cluster.manifest, cluster.source, cluster.disk(1)).path
    (final / "shard-0.bin").unlink()
    (final / "shard-1.bin").write_bytes(b"?" * (final / "shard-1.bin").stat().st_size)
    (final / "config.json").write_text("cut")
    parts = _together(cluster)
    cluster.assert_staged(*range(NODES))
    kept = sum(file.bytes for file in cluster.manifest.files if file.path in {f"shard-{n}.bin" for n in (2, 3, 4)})
    assert parts[1].store + parts[1].peers == cluster.manifest.total_bytes - kept


def test_a_changed_source_is_refused_by_every_node(cluster: Cluster) -> None:
    path = cluster.source / "shard-3.bin"
    content = bytearray(path.read_bytes())
    content[CHUNK_BYTES] ^= 1
    path.write_bytes(content)
    parts = _together(cluster, patience_s=2.0)
    for rank, part in enumerate(parts):
        assert part.error is not None
        assert part.error.what.startswith(f"{path} has digest ")
        assert list(cluster.disk(rank).glob("[!.]*")) == []
        assert list(cluster.disk(rank).glob(".*.partial")) == []


def test_a_store_that_is_much_faster_than_the_nodes_is_read_directly(cluster: Cluster) -> None:
    def slow(swarm: Swarm) -> None:
        give = swarm._giver._give

        def later(sock: socket.socket, number: int) -> None:
            time.sleep(2.0)
            give(sock, number)

        swarm._giver._give = later  # type: ignore[method-assign]

    parts = _together(cluster, dict.fromkeys(range(NODES), slow), mode="auto")
    cluster.assert_staged(*range(NODES))
    for part in parts:
        [text] = part.notices
        assert re.fullmatch(r"the store gave \d+ MB/s, the other nodes \d+; the last \d+ MB come from the store", text)
    assert sum(part.store for part in parts) > 2 * cluster.manifest.total_bytes


@pytest.fixture
def giving(cluster: Cluster) -> Iterator[tuple[Swarm, Peers]]:
    """Rank 0, with everything; nobody else is there."""
    peers = read_peers(cluster.peers(patience_s=0.1))
    final = stage(cluster.manifest, cluster.source, cluster.disk(0)).path
    with Swarm(peers, 0, cluster.manifest, cluster.source, lambda _: None) as swarm:
        swarm.settle(final)
        yield swarm, peers


def _dial(peers: Peers) -> socket.socket:
    return socket.create_connection((peers.nodes[0].address, peers.nodes[0].ports[0]), timeout=60)


def test_who_does_not_know_the_secret_gets_nothing(giving: tuple[Swarm, Peers], cluster: Cluster) -> None:
    _, peers = giving
    for token, digest, rank in (
        (new_token(), cluster.manifest.digest, 1),
        (peers.token, "0" * 64, 1),
        (peers.token, cluster.manifest.digest, 0),
        (peers.token, cluster.manifest.digest, NODES),
    ):
        with _dial(peers) as sock, pytest.raises((WireError, OSError)):
            greet_as_taker(sock, Secret(token, digest), rank, 0)


def test_one_who_claims_to_be_a_node_without_the_secret_is_not_believed(cluster: Cluster) -> None:
    peers = read_peers(cluster.peers())
    giver, taker = socket.socketpair()
    with giver, taker:
        giver.sendall(MAGIC + bytes(16) + bytes(32))
        with pytest.raises(WireError, match="does not know this job's secret"):
            greet_as_taker(taker, Secret(peers.token, cluster.manifest.digest), 1, 0)


@pytest.mark.parametrize("number", [10_000, 0xFFFFFFFE])
def test_a_chunk_that_is_not_there_ends_the_connection(
    giving: tuple[Swarm, Peers], cluster: Cluster, number: int
) -> None:
    _, peers = giving
    with _dial(peers) as sock:
        greet_as_taker(sock, Secret(peers.token, cluster.manifest.digest), 1, 0)
        ask(sock, 0)
        length, digest = receive_head(sock)
        block = bytearray(length)
        receive_into(sock, memoryview(block))
        assert blake3(block).digest() == digest
        ask(sock, number)
        with pytest.raises(WireError, match="closed the connection"):
            receive_head(sock)


def test_a_link_that_takes_a_files_place_is_not_followed(giving: tuple[Swarm, Peers], cluster: Cluster) -> None:
    _, peers = giving
    final = staged_path(cluster.manifest, cluster.disk(0))
    first = cluster.manifest.files[0].path
    (final / first).unlink()
    (final / first).symlink_to("/etc/hostname")
    with _dial(peers) as sock:
        greet_as_taker(sock, Secret(peers.token, cluster.manifest.digest), 1, 0)
        ask(sock, 0)
        with pytest.raises(WireError, match="closed the connection"):
            receive_head(sock)


def test_a_rank_that_is_none_is_refused(cluster: Cluster) -> None:
    peers = read_peers(cluster.peers())
    with pytest.raises(ConfigError, match="rank 4 among 4 nodes"):
        Swarm(peers, NODES, cluster.manifest, cluster.source, lambda _: None)


def test_the_list_of_peers_is_for_its_owner_alone(cluster: Cluster) -> None:
    path = cluster.peers()
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(FileExistsError):
        cluster.peers()


@pytest.mark.parametrize(
    "change", [{"token": "00"}, {"nodes": [{"address": "a", "ports": []}]}, {"mode": "store"}, {"chunk_bytes": 0}]
)
def test_a_wrong_list_of_peers_is_refused(cluster: Cluster, change: dict[str, object]) -> None:
    path = cluster.peers()
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ConfigError, match="no list of peers"):
        read_peers(path)
