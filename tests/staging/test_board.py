"""One node's view of a swarm: whose turn a chunk is, and what happens to the share of one that drops out."""

from __future__ import annotations

import time
from threading import Thread

import pytest

from dynamo_mlperf.staging.board import Board, Chunk, cut

ME, RANKS = 1, 4


@pytest.fixture
def board() -> Board:
    """Two files of six and two chunks, all wanted: numbers 0 to 7."""
    made = Board([60, 15], 10, RANKS, ME)
    made.want(0)
    made.want(1)
    return made


def _queues(board: Board) -> list[list[int]]:
    return [list(source.queue) for source in board.sources]


def test_files_are_cut_and_empty_ones_have_no_chunk() -> None:
    assert cut([25, 0, 10], 10) == (Chunk(0, 0, 10), Chunk(0, 10, 10), Chunk(0, 20, 5), Chunk(2, 0, 10))


def test_chunks_go_round(board: Board) -> None:
    assert _queues(board) == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_wanting_twice_asks_once(board: Board) -> None:
    board.want(0)
    assert _queues(board) == [[0, 4], [1, 5], [2, 6], [3, 7]]


def test_the_share_of_one_that_drops_out_goes_to_the_next_with_what_was_on_its_way(board: Board) -> None:
    assert board.take(2) == 2
    assert board.drop(2, "died")
    assert _queues(board) == [[0, 4], [1, 5], [], [3, 7, 2, 6]]
    assert board.take(2) is None
    assert not board.drop(2, "died again")
    assert board.drop(3, "died")
    assert _queues(board) == [[0, 4, 2, 3, 6, 7], [1, 5], [], []]
    assert board.drop(0, "died")
    assert _queues(board) == [[], [1, 5, 0, 2, 3, 4, 6, 7], [], []], "the store is left"


def test_a_slow_one_keeps_the_first_half_and_gets_nothing_new(board: Board) -> None:
    assert board.shed(3) == 1
    assert _queues(board) == [[0, 4, 7], [1, 5], [2, 6], [3]]
    board.drop(2, "died")
    assert _queues(board) == [[0, 4, 7, 2, 6], [1, 5], [], [3]]


def test_a_chunk_that_another_node_asks_for_is_read_at_once(board: Board) -> None:
    """It asks us because the one whose chunk it is has dropped out for it."""
    answers: list[bool] = []
    asking = Thread(target=lambda: answers.append(board.wait_for_chunk(6)))
    asking.start()
    deadline_s = time.monotonic() + 60
    while 6 not in board.sources[ME].queue and time.monotonic() < deadline_s:
        time.sleep(0.001)
    assert _queues(board)[ME] == [6, 1, 5]
    assert board.take(ME) == 6
    assert board.may_write(6)
    assert not board.may_write(6), "one writer at a time"
    board.arrived(ME, 6, b"digest")
    asking.join(60)
    assert answers == [True]
    assert _queues(board)[2] == [2]
    assert not board.may_write(6), "it is here"
    assert board.known_of(6) == (b"digest", True)


def test_what_another_node_gave_is_passed_on_once_its_file_is_right(board: Board) -> None:
    board.arrived(2, 2, b"digest")
    assert board.known_of(2) == (b"digest", False)
    board.set_right(0)
    assert board.known_of(2) == (b"digest", True)


def test_complete_when_all_is_here(board: Board) -> None:
    board.set_right(0)
    assert not board.complete
    board.set_right(1)
    assert board.complete
    assert [board.take(rank) for rank in range(RANKS)] == [None] * RANKS


def test_a_failure_reaches_who_waits(board: Board) -> None:
    board.fail(OSError("disk"))
    with pytest.raises(OSError, match="disk"):
        board.wait_for_file(0, lambda: False)


def test_after_the_end_nobody_waits(board: Board) -> None:
    board.close()
    assert board.take(0) is None
    assert not board.wait_for_chunk(0)
    assert not board.wait_for_file(0, lambda: False)
