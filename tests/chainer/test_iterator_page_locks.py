"""Page-locked slots: which are locked, when they are used again, and when they are unlocked."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable

import chainer
import numpy as np
import pytest

import overlapiter
from overlapiter.sharedmem.pagelocks import PageLocks
from overlapiter.sharedmem.segments import Slot
from tests.chainer.test_iterator_kills import wait_and_kill

BATCH_SIZE = 4
SHAPE = (64, 64)


class Numbered(chainer.dataset.DatasetMixin):
    """Example ``i`` is full of ``i``."""

    def __len__(self) -> int:
        return 400

    def get_example(self, i: int) -> np.ndarray:
        return np.full(SHAPE, i, np.float32)


class Device:
    """Stands for a GPU: it locks what it is told to, and is done with what it was given later.

    Args:
        refuses: Whether it can lock nothing.
        is_broken: Whether it reports an error whenever it unlocks.
        n_behind: Marks that it always is behind, which are not done.
        step_seconds: How long after the one before each of the other marks is done.
    """

    def __init__(
        self,
        *,
        refuses: bool = False,
        is_broken: bool = False,
        n_behind: int = 0,
        step_seconds: float = 0.0,
    ) -> None:
        self.refuses = refuses
        self.is_broken = is_broken
        self.locked: dict[int, int] = {}
        self.n_marks = 0
        self.n_behind = n_behind
        self.step_seconds = step_seconds
        self.done_at = 0.0

    def lock(self, address: int, length_bytes: int) -> None:
        if self.refuses:
            raise RuntimeError("error 2")
        assert address not in self.locked
        self.locked[address] = length_bytes

    def unlock(self, address: int) -> None:
        del self.locked[address]
        if self.is_broken:
            raise RuntimeError("an illegal address was accessed")

    def mark(self) -> Callable[[], bool]:
        self.n_marks += 1
        mark = self.n_marks
        done_at = self.done_at = max(time.monotonic(), self.done_at) + self.step_seconds
        return lambda: mark <= self.n_marks - self.n_behind and time.monotonic() >= done_at


@pytest.fixture
def iterator():
    it = overlapiter.OverlapIterator(Numbered(), BATCH_SIZE, n_processes=2, shuffle=False)
    yield it
    it.finalize()


def address_of(batch) -> int:
    return batch.columns[0].__array_interface__["data"][0]


def lock_all(iterator, device: Device) -> None:
    batch = next(iterator)
    batch.lock_pages()(device)


def test_a_slot_is_locked_once_and_all_are_unlocked_at_the_end(iterator):
    device = Device()
    lock_all(iterator, device)
    for _ in range(40):
        batch = next(iterator)
        assert device.locked[address_of(batch)] >= batch.columns[0].nbytes
        assert batch.lock_pages is None
    assert len(device.locked) < 12
    iterator.finalize()
    assert device.locked == {}
    assert (batch[0] == 160).all()


def test_a_slot_is_not_written_to_while_the_device_reads_it(iterator):
    device = Device(n_behind=3)
    lock_all(iterator, device)
    last: list[int] = []
    for k in range(1, 40):  # every view is dropped, and yet no slot comes again so soon
        batch = next(iterator)
        assert address_of(batch) not in last[-device.n_behind :]
        last.append(address_of(batch))
        assert (batch.columns[0][:, 0, 0] == np.arange(k * BATCH_SIZE, (k + 1) * BATCH_SIZE)).all()
        del batch
    assert len(set(last)) < len(last)


def test_a_trainer_that_is_faster_than_the_device_waits_for_it_and_takes_no_more_slots(iterator):
    device = Device(step_seconds=0.02)
    lock_all(iterator, device)
    start = time.monotonic()
    for _ in range(30):
        next(iterator)
    assert time.monotonic() - start > 0.02 * (30 - 10)
    assert len(device.locked) < 12


def test_a_device_that_waits_for_the_trainer_is_not_waited_for_forever(iterator, monkeypatch):
    monkeypatch.setattr("overlapiter.sharedmem.pagelocks._PATIENCE_SECONDS", 0.02)
    lock_all(iterator, Device(n_behind=10**9))
    for k in range(1, 20):
        assert (next(iterator)[0] == k * BATCH_SIZE).all()


def test_locked_memory_is_kept_when_many_slots_become_free(iterator):
    device = Device()
    lock_all(iterator, device)
    kept = [next(iterator) for _ in range(30)]
    locked = set(device.locked)
    kept.clear()
    gc.collect()
    for k in range(31, 90):
        batch = next(iterator)
        assert (batch[0] == k * BATCH_SIZE % 400).all()
    assert locked <= set(device.locked)


def test_what_is_locked_is_what_is_seen_after_a_reset(iterator):
    device = Device()
    lock_all(iterator, device)
    for _ in range(3):
        for _ in range(7):
            batch = next(iterator)
            assert address_of(batch) in device.locked
        iterator.reset()


def test_slots_are_unlocked_when_the_supervisor_dies_and_locked_again(iterator):
    device = Device()
    lock_all(iterator, device)
    for k in range(1, 60):
        if k == 20:
            wait_and_kill("ovl-supervisor")
        batch = next(iterator)
        assert (batch[0] == k * BATCH_SIZE).all()
        assert address_of(batch) in device.locked
    assert len(device.locked) < 12


def test_a_device_that_cannot_lock_changes_nothing_and_the_user_is_told_once(iterator, recwarn):
    lock_all(iterator, Device(refuses=True))
    for k in range(1, 30):
        assert (next(iterator)[0] == k * BATCH_SIZE).all()
    (warned,) = recwarn
    assert "cannot lock the memory of mini-batches (error 2)" in str(warned.message)
    assert warned.filename == __file__


def test_a_mini_batch_outlives_the_iterator_that_could_lock_it():
    it = overlapiter.OverlapIterator(Numbered(), BATCH_SIZE, n_processes=1)
    batch = next(it)
    it.finalize()
    del it
    gc.collect()
    assert batch.lock_pages() is None


def test_the_end_of_the_interpreter_unlocks_nothing():
    device = Device()
    locks = PageLocks(device)
    locks.lock(Slot(0, 0), np.zeros(4096, np.uint8))
    locks.unlock(is_ending=lambda: True)  # the driver may be gone
    assert len(device.locked) == 1
    locks.unlock()
    assert not device.locked


def test_an_iterator_ends_though_its_device_is_broken(iterator):
    device = Device(is_broken=True)
    lock_all(iterator, device)
    for _ in range(4):
        next(iterator)
    assert device.locked
    iterator.finalize()
    assert not device.locked


def test_a_forked_child_unlocks_nothing(iterator):
    device = Device()
    lock_all(iterator, device)
    next(iterator)
    pid = os.fork()
    if not pid:
        try:
            iterator.finalize()
            os._exit(0 if device.locked else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0


@pytest.mark.gpu
@pytest.mark.leaks_ok("CUDA keeps descriptors, and CuPy the last array that it copied from")
def test_mini_batches_go_to_a_gpu_right_from_locked_memory():
    cupy = chainer.backends.cuda.cupy
    device = chainer.get_device("@cupy:0")
    device.use()
    with overlapiter.OverlapIterator(Numbered(), 64, n_processes=4, shuffle=False) as it:
        slow = cupy.full((4096, 4096), 1e-4, np.float32)
        arrived = []
        for _ in range(60):
            slow = slow @ slow  # the copies stand in a queue behind this
            arrived.append(overlapiter.concat_examples(next(it), device)[:, -1, -1].copy())
        numbers = np.concatenate([array.get() for array in arrived])
    assert (numbers == np.arange(len(numbers)) % 400).all()
