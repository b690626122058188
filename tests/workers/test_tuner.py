"""The tuner: from the counters of all prefetchers to what each of them is told."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from overlapiter.board import Counter, Row
from overlapiter.workers.ipc.channel import Message
from overlapiter.workers.plan import StagingPlan
from overlapiter.workers.supervisor.team import Worker
from overlapiter.workers.supervisor.tuner import Tuner, credit_examples

LATENCY_SECONDS = 0.050
LOOK_SECONDS = 0.021


class Told(Worker):
    """A prefetcher without a process, which does at once what it is told."""

    messages: list[Message]

    def send(self, message: Message, fds: tuple[int, ...] = ()) -> None:
        assert fds == ()
        self.messages.append(message)
        self.row.put(Counter.READS_IN_FLIGHT, message[1])

    @property
    def n_reads(self) -> int:
        return self.row.get(Counter.READS_IN_FLIGHT)


class Team:
    """A tuner and its prefetchers, in simulated time, on a store that only latency limits."""

    def __init__(self, n_prefetchers: int, n_sharers: int = 1) -> None:
        plan = StagingPlan((), "source", True, n_prefetchers, None, n_sharers=n_sharers)
        self.workers = []
        for number in range(n_prefetchers):
            cells = memoryview(bytearray(8 * len(Counter))).cast("q")
            worker = Told("prefetcher", number, Row(cells))
            worker.pid = 1000 + number
            worker.messages = []
            worker.row.put(Counter.READS_IN_FLIGHT, plan.reads_per_prefetcher)
            self.workers.append(worker)
        self.n_wanted = n_prefetchers
        self.now = 0.0
        self.tuner = Tuner(self, plan, self.now)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Told]:
        return iter(self.workers)

    def run(self, seconds: float, *, is_waiting: bool = True, has_work: bool = True) -> None:
        for _ in range(round(seconds / LOOK_SECONDS)):
            self.now += LOOK_SECONDS
            for worker in self.workers:
                worker.n_examples = 2 * worker.n_reads if has_work else 1
                n_files = round(worker.n_reads * LOOK_SECONDS / LATENCY_SECONDS)
                worker.row.add(Counter.FILES_STAGED, n_files)
                worker.row.add(Counter.BYTES_STAGED, 20_000 * n_files)
                worker.row.add(Counter.READ_NS, round(n_files * LATENCY_SECONDS * 1e9))
            self.tuner.look(self.now, is_waiting=is_waiting)

    def numbers(self) -> set[int]:
        return {worker.n_reads for worker in self.workers}


@pytest.fixture(params=[1, 2, 5])
def team(request: pytest.FixtureRequest) -> Team:
    return Team(request.param)


def test_all_prefetchers_are_told_the_same_and_their_sum_keeps_to_the_bound(team):
    team.run(4.0)
    (number,) = team.numbers()
    assert number == team.tuner.reads_per_prefetcher == 256 // len(team.workers)
    for worker in team.workers:
        assert all(kind == "reads" and n <= number for kind, n in worker.messages)


def test_the_ranks_of_a_node_divide_the_reads():
    team = Team(2, n_sharers=4)
    assert team.tuner.reads_per_prefetcher == 64 // 4 // 2
    team.run(4.0)
    assert team.tuner.reads_per_prefetcher == 256 // 4 // 2


def test_each_rank_of_many_has_a_read_for_each_prefetcher():
    team = Team(2, n_sharers=1000)
    team.run(2.0)
    assert team.numbers() == {1}


def test_nobody_is_told_what_he_knows(team):
    team.run(1.0, is_waiting=False)
    for worker in team.workers:
        told = [n for _, n in worker.messages]
        assert all(one != next_one for one, next_one in itertools.pairwise(told))


def test_where_more_processes_are_wanted_each_has_fewer_reads():
    team = Team(4)
    team.n_wanted = 2
    team.run(4.0)
    assert team.tuner.reads_per_prefetcher == 256 // 2
    team.n_wanted = 4
    team.run(0.1)
    assert team.numbers() == {team.tuner.reads_per_prefetcher}
    assert team.tuner.reads_per_prefetcher <= 256 // 4


def test_without_work_at_hand_nothing_is_concluded(team):
    team.run(4.0, has_work=False)
    assert team.tuner.reads_per_prefetcher == 64 // len(team.workers)


def test_a_process_that_takes_the_place_of_another_is_told(team):
    team.run(4.0)
    worker = team.workers[-1]
    worker.pid = 0  # it died
    worker.messages.clear()
    team.run(0.1)
    assert worker.messages == []
    worker.pid = 77
    worker.row.put(Counter.READS_IN_FLIGHT, 1)
    team.run(0.1)
    assert worker.messages == [("reads", team.tuner.reads_per_prefetcher)]


def test_each_of_more_prefetchers_than_reads_has_one():
    team = Team(300)
    team.run(2.0)
    assert team.numbers() == {1}


def test_a_prefetcher_has_more_at_hand_than_it_reads():
    for n_reads in (1, 2, 64):
        assert credit_examples(n_reads) >= 2 * n_reads
