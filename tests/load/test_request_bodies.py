"""Request bodies: what is in them, and that the file gives back exactly what went in."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_mlperf.benchmark.rules import benchmark
from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.load.bodies import chat_body
from dynamo_mlperf.load.requests import RequestsFile, StoredBodies, write_requests


def test_chat_body_streams_with_usage_and_leaves_sampling_to_the_model() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": 'Grüße "€"'}]}]
    assert json.loads(chat_body("served", messages, 150)) == {
        "model": "served",
        "messages": messages,
        "max_tokens": 150,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_reasoning_effort_goes_to_the_chat_template_as_the_reference_sets_it() -> None:
    rules = benchmark("gpt-oss-120b")
    efforts = {"performance": "low", "accuracy": "high", "TEST07": "high", "TEST09": "low"}
    assert dict(rules.reasoning_effort) == efforts
    body = json.loads(chat_body("served", [], 150, effort=rules.reasoning_effort["accuracy"]))
    assert body["chat_template_kwargs"] == {"reasoning_effort": "high"}
    assert not benchmark("deepseek-r1").reasoning_effort


@given(bodies=st.lists(st.binary(max_size=200), min_size=1, max_size=20).filter(any))
def test_file_gives_back_what_went_in(tmp_path_factory: pytest.TempPathFactory, bodies: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("requests") / "bodies"
    assert write_requests(path, iter(bodies)) == len(bodies)
    requests = RequestsFile(path)
    assert [bytes(requests[index]) for index in range(len(requests))] == bodies
    with pytest.raises(IndexError):
        requests[len(bodies)]
    with pytest.raises(IndexError):
        requests[-1]
    requests.close()


def test_no_bodies_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="data set is empty"):
        write_requests(tmp_path / "bodies", [])


def test_cut_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bodies"
    write_requests(path, [b"abc", b"defg"])
    path.write_bytes(b"abcdef")
    with pytest.raises(ConfigError, match="holds 6 bytes, its offsets say 7"):
        RequestsFile(path)


def test_unfinished_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bodies"
    write_requests(path, [b"abc"])

    def interrupted() -> Iterator[bytes]:
        yield b"abc"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_requests(path, interrupted())
    assert path.read_bytes() == b"abc"
    with pytest.raises(ConfigError, match="cannot be read"):
        RequestsFile(path)


def test_body_can_ask_for_the_ids_of_its_tokens() -> None:
    body = json.loads(chat_body("served", [], 150, token_ids=True))
    assert body["nvext"] == {"extra_fields": ["completion_token_ids"]}


def test_stored_bodies_are_a_sequence_of_bytes(tmp_path: Path) -> None:
    bodies = [b"a", b"bc", b"def"]
    write_requests(tmp_path / "bodies", bodies)
    stored = StoredBodies(tmp_path / "bodies")
    assert (list(stored), stored[:2], stored[-1], len(stored)) == (bodies, bodies[:2], b"def", 3)


_READER = """
import sys
from pathlib import Path
from dynamo_mlperf.load import requests
from dynamo_mlperf.load.vitals import private_mb
requests.RESIDENT_BYTES = int(sys.argv[2])
file = requests.RequestsFile(Path(sys.argv[1]))
file.prefetch()
before = private_mb()
mapped = 0
for index in range(len(file)):
    assert sum(file[index][::4096]) >= 0
    file.release(index)
    for line in open("/proc/self/status"):
        if line.startswith("RssFile:"):
            mapped = max(mapped, int(line.split()[1]) / 1000)
print(private_mb() - before, mapped)
"""


@pytest.mark.parametrize(("budget", "most_mapped_mb"), [(1 << 20, 80), (1 << 40, 400)])
def test_bodies_take_no_memory_of_a_client_process(tmp_path: Path, budget: int, most_mapped_mb: int) -> None:
    """200 MB of bodies, all of them read: private memory stays, and beyond the budget so does what is mapped."""
    body = bytes(1_000_000)
    write_requests(tmp_path / "bodies", (body for _ in range(200)))
    argv = [sys.executable, "-c", _READER, str(tmp_path / "bodies"), str(budget)]
    private_mb, mapped_mb = map(float, subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split())
    assert private_mb < 8
    assert mapped_mb < most_mapped_mb
