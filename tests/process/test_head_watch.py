"""The watch over the first node: a good-bye alone is no loss, as long as the node itself answers."""

from __future__ import annotations

import errno
import resource
import select
import socket
import time

import pytest

from dynamo_mlperf.process import head_watch
from dynamo_mlperf.process.head_watch import Calls, HeadWatch

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


def reset(guest: socket.socket) -> None:
    guest.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    guest.close()


def test_after_a_reset_the_node_is_called_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_watch, "CALL_S", 0.05)
    with socket.create_server((HERE, 0)) as place:
        watch = HeadWatch()
        assert watch.watch(HERE, place.getsockname()[1], 5.0)
    # Its agent was killed before it accepted: the kernel resets what waited.
    assert not turns(watch, 1.0), "the node refuses, so it is there"
    assert watch.calling
    watch.close()


def test_a_node_that_answers_no_call_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_watch, "CALL_S", 0.05)
    watch = HeadWatch()
    with socket.create_server((HERE, 0), backlog=0) as place, socket.socket() as waits:
        assert watch.watch(HERE, place.getsockname()[1], 5.0)
        guest, _ = place.accept()
        waits.connect(place.getsockname())
        reset(guest)  # one waits already, as many as may: the kernel leaves further calls without an answer
        assert turns(watch, 60.0)
    watch.close()


def test_a_lost_route_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_watch, "CALL_S", 0.01)
    group = ("224.0.0.1", 9)  # no TCP to a multicast group: connect(2) itself fails, at once
    with socket.socket() as tried:
        assert tried.connect_ex(group) == errno.ENETUNREACH
    calls = Calls(group)
    deadline = time.monotonic() + 60
    while calls.unanswered() < head_watch.CALLS:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_call_that_is_taken_and_reset_is_answered_and_want_of_ports_here_says_nothing() -> None:
    calls = Calls((HERE, 9))
    calls._note(errno.EHOSTUNREACH)
    calls._note(errno.EADDRNOTAVAIL)
    assert calls._unanswered == 1
    calls._note(errno.ECONNRESET)
    assert calls._unanswered == 0


def holds(head: HeadWatch, guests: int) -> bool:
    """Whether it comes to hold that many."""
    deadline = time.monotonic() + 60
    while len(head._guests) != guests and time.monotonic() < deadline:
        assert not head.turn()
        time.sleep(0.01)
    return len(head._guests) == guests


def hung_up(one: socket.socket) -> bool:
    one.settimeout(60.0)
    try:
        return one.recv(1) == b""
    except ConnectionResetError:
        return True


def test_guests_that_hang_up_or_speak_are_let_go_and_one_too_many_calls_instead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(head_watch, "GUESTS", 3)
    head, other = HeadWatch(), HeadWatch()
    port = head.open(HERE)
    guests = [socket.create_connection((HERE, port)) for _ in range(3)]
    assert holds(head, 3)
    assert other.watch(HERE, port, 5.0)
    deadline = time.monotonic() + 60
    while not other.calling:
        assert time.monotonic() < deadline
        assert not head.turn()
        assert not other.turn()
    assert len(head._guests) == 3
    other.close()
    guests[0].close()
    guests[1].sendall(b"GET / HTTP/1.1\r\n\r\n")
    assert holds(head, 1)
    assert hung_up(guests[1])
    head.close()
    for one in guests:
        one.close()


def test_without_a_descriptor_nobody_is_let_in_and_nothing_spins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_watch, "PAUSE_S", 0.2)
    head = HeadWatch()
    port = head.open(HERE)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.create_connection((HERE, port)) as guest:
        assert select.select(head.sources(), [], [], 60.0)[0]
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
            assert not head.turn()
            assert not select.select(head.sources(), [], [], 0)[0], "who waits wakes nobody"
            assert not turns(head, 0.5)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert head._guests == {}
        assert holds(head, 1)
        head.close()
        assert hung_up(guest)


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
