"""The watch over the first node: a good-bye alone is no loss, as long as the node itself answers."""

from __future__ import annotations

import socket
import time

import pytest

from dynamo_mlperf.process import head_watch
from dynamo_mlperf.process.head_watch import HeadWatch

HERE = "127.0.0.1"


def turns(watch: HeadWatch, seconds: float) -> bool:
    """Whether the node counts as lost within that time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if watch.turn():
            return True
        time.sleep(0.01)
    return False


def test_a_node_that_refuses_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_watch, "CALL_S", 0.05)
    with socket.create_server((HERE, 0)) as place:
        watch = HeadWatch()
        assert watch.watch(HERE, place.getsockname()[1], 5.0)
        guest, _ = place.accept()
        assert not turns(watch, 0.1)
        assert not watch.calling
    guest.close()
    assert not turns(watch, 1.0), "its agent has ended; the node refuses, so it is there"
    assert watch.calling
    watch.close()


def test_a_node_that_was_booted_since_is_lost() -> None:
    with socket.create_server((HERE, 0)) as place:
        watch = HeadWatch()
        assert watch.watch(HERE, place.getsockname()[1], 5.0)
        guest, _ = place.accept()
        guest.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset instead of a good-bye
        guest.close()
        assert turns(watch, 5.0)
        watch.close()


def test_both_ends_find_each_other_and_no_way_is_told() -> None:
    head, other = HeadWatch(), HeadWatch()
    port = head.open(HERE)
    assert other.watch(HERE, port, 5.0)
    assert not head.turn()
    assert not turns(other, 0.1)
    with socket.create_server((HERE, 0)) as place:
        free = place.getsockname()[1]
    assert not HeadWatch().watch(HERE, free, 1.0)
    head.close()
    other.close()
