"""Whether the slow store is as near as another node, by what it has answered."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from overlapiter.board import StatsBoard
from overlapiter.workers.supervisor.nearness import Nearness


@pytest.fixture
def board() -> Iterator[StatsBoard]:
    board, fd = StatsBoard.create(1, 2)
    yield board
    board.detach()
    os.close(fd)


def answer(board: StatsBoard, n_answers: int, milliseconds: float) -> None:
    for number in range(n_answers):
        board.prefetcher_row(number % 2).add_answers([(int(milliseconds * 1e6), 1000)])


def test_a_store_is_near_after_enough_fast_answers_and_no_more_after_slow_ones(
    board: StatsBoard,
) -> None:
    nearness = Nearness(board)
    found = []
    for n_answers, milliseconds in [(60, 1), (4, 1), (200, 3), (200, 5), (400, 3)]:
        answer(board, n_answers, milliseconds)
        nearness.look()
        found.append(nearness.is_near)
    assert found == [False, True, True, False, False]


def test_answers_of_before_do_not_count(board: StatsBoard) -> None:
    answer(board, 100, 10)
    nearness = Nearness(board)  # of a supervisor that takes another one's place
    nearness.look()
    assert not nearness.is_near
    answer(board, 63, 1)
    nearness.look()
    assert not nearness.is_near
    answer(board, 1, 1)
    nearness.look()
    assert nearness.is_near


def test_each_change_of_mind_takes_longer_than_the_one_before(board: StatsBoard) -> None:
    nearness = Nearness(board)
    changes = []
    for number in range(2000):
        before = nearness.is_near
        answer(board, 1, 5 if before else 1)  # near while it is not asked
        nearness.look()
        if nearness.is_near != before:
            changes.append(number + 1)
    assert np.diff(changes, prepend=0).tolist() == [64, 128, 256, 512, 1024]
