"""Request bodies: what is in them, and that the file gives back exactly what went in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dynamo_mlperf.errors import ConfigError
from dynamo_mlperf.load.bodies import chat_body
from dynamo_mlperf.load.requests import RequestsFile, write_requests


def test_chat_body_streams_with_usage_and_leaves_sampling_to_the_model() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": 'Grüße "€"'}]}]
    assert json.loads(chat_body("served", messages, 150)) == {
        "model": "served",
        "messages": messages,
        "max_tokens": 150,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


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
