"""The queue of leases: each example once an epoch, though workers come, go and come back."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from overlapiter.mpi.training.data import Source
from overlapiter.mpi.training.leases import Lease, LeaseQueue, default_piece_examples, pieces_of
from overlapiter.mpi.training.messages import Kind, Message, buffer_bytes, pack, unpack
from overlapiter.mpi.training.model import Batch
from overlapiter.mpi.training.plan import groups_of, make_plan
from overlapiter.mpi.training.settings import Settings

LENGTHS = (37, 5, 0, 40, 17)


def test_pieces_have_every_example_of_every_file_once() -> None:
    pieces = pieces_of(LENGTHS, 8)
    found = Counter((file, i) for file, start, stop in pieces for i in range(start, stop))
    assert found == {(file, i): 1 for file, length in enumerate(LENGTHS) for i in range(length)}
    assert max(map(len, pieces)) == 8
    assert min(map(len, pieces)) == 2  # no example of the 17 is left to itself


def test_there_are_pieces_for_all_workers_in_whole_steps() -> None:
    assert default_piece_examples(1000, 3, 10) == 50
    assert default_piece_examples(10, 8, 4) == 4


class Large(Source):
    """Files of 1,000 examples of 1 MiB each."""

    def look_at(self, _path: str) -> tuple[int, Batch]:
        return 1000, (np.empty((1, 1 << 18), np.float32), np.empty(1, np.int32))


def test_pieces_of_large_examples_fit_into_the_memory_those_of_validation_too() -> None:
    for chosen, most in ((Settings(batch=2), 62), (Settings(batch=2, piece_examples=10), 10)):
        plan = make_plan(chosen, Large(chosen), ["t"], ["v"], 1)
        assert {max(map(len, pieces)) for pieces in (plan.train_pieces, plan.val_pieces)} == {most}


@pytest.mark.parametrize("seed", range(20))
def test_each_example_is_used_once_an_epoch_whatever_happens_to_workers(seed: int) -> None:
    random = np.random.default_rng(seed)
    pieces = pieces_of(LENGTHS, 8)
    queue = LeaseQueue(pieces, 3, seed)
    used: Counter[tuple[int, int, int]] = Counter()
    epoch = 1
    while epoch <= 3:
        worker = int(random.integers(4))
        deed = random.random()
        held = queue.held.get(worker, [])
        if deed < 0.1:
            queue.give_back(worker)
        elif deed < 0.15:
            if deed < 0.13:  # the run ends, and what is left is for the next one
                queue.close()
                assert queue.take(worker, epoch) is None
                assert queue.has_open(epoch)
            state = queue.state()
            queue = LeaseQueue(pieces, 3, seed)
            queue.restore(state)
        elif not held or deed < 0.3:
            lease = queue.take(worker, epoch)
            assert lease is None or epoch <= lease.epoch <= epoch + 1
        else:
            lease = held[0]
            end = min(lease.position + 3, len(pieces[lease.piece]))
            used.update((lease.epoch, lease.piece, i) for i in range(lease.position, end))
            queue.advance(worker, lease.epoch, lease.piece, end)
        while epoch <= 3 and not queue.has_open(epoch):
            epoch += 1
    assert set(used.values()) == {1}
    assert len(used) == 3 * sum(LENGTHS)


def test_the_order_of_the_pieces_changes_with_epoch_and_seed() -> None:
    def order(seed: int, epoch: int, *, shuffle: bool = True) -> list[int]:
        queue = LeaseQueue(pieces_of(LENGTHS, 4), 9, seed, shuffle=shuffle)
        leases = []
        while len(leases) < epoch * 27:
            lease = queue.take(1, 9)
            assert isinstance(lease, Lease)
            leases.append(lease)
        return [lease.piece for lease in leases if lease.epoch == epoch]

    assert sorted(order(0, 1)) == sorted(order(0, 2)) == [*range(27)]
    assert order(0, 1) != order(0, 2) != order(1, 2)
    assert order(0, 1) == order(0, 1)
    assert order(0, 2, shuffle=False) == [*range(27)]


def test_a_message_is_the_same_when_it_was_a_flat_buffer() -> None:
    sent = Message(
        Kind.EXCHANGE, 3, 1 << 20, 1 << 40, 7, 5, (Lease(1, 2, 3), Lease(4, 5, 6)), (0.1, 2.0),
        1 << 35, 12, vector=np.arange(4, dtype=np.float32),
    )  # fmt: skip
    buffer = np.empty(buffer_bytes() + sent.vector.nbytes, np.uint8)
    got = unpack(pack(sent, buffer))
    assert got._replace(vector=sent.vector) == sent
    assert np.array_equal(got.vector, sent.vector)
    assert unpack(pack(Message(Kind.STOP, text="Ende: ü"), buffer)).text == "Ende: ü"


def test_a_text_of_any_length_and_with_any_bytes_fits_into_a_message() -> None:
    buffer = np.empty(buffer_bytes(), np.uint8)
    got = unpack(pack(Message(Kind.FAILED, text="\udcff" + "ü" * 100_000), buffer))
    assert got.text.startswith("?üü")
    assert len(got.text) > 7000


def test_reports_of_a_group_travel_together() -> None:
    large = 1 << 62
    reports = tuple(
        Message(Kind.EXCHANGE, i, large, large, large, large, (), (0.5, i), large, large)
        for i in range(100)
    )
    buffer = np.empty(buffer_bytes(group_size=100), np.uint8)
    found = unpack(pack(Message(Kind.EXCHANGE, reports=reports), buffer)).reports
    assert [each[:-1] for each in found] == [each[:-1] for each in reports]


def test_every_worker_belongs_to_one_group() -> None:
    assert groups_of(8, 2) == {1: [3, 5, 7], 2: [4, 6]}
    assert groups_of(8, 0) == {}
