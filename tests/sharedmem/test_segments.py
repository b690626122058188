"""Segments and slots: memory that is reserved before its use and freed with the last view."""

from __future__ import annotations

import mmap
import os
import resource
import signal

import numpy as np
import pytest

from overlapiter.errors import SharedMemoryError
from overlapiter.sharedmem.layout import Column, Layout
from overlapiter.sharedmem.segments import Segment, Slot, SlotPool

PAGE = mmap.PAGESIZE


def used_bytes(segment: Segment) -> int:
    return os.fstat(segment.fd).st_blocks * 512


def filled(segment: Segment, slot: Slot, n_bytes: int, value: int) -> np.ndarray:
    view = np.frombuffer(segment.memory, np.uint8, n_bytes, slot.offset_bytes)
    view[:] = value
    return view


def test_a_segment_takes_memory_only_when_it_is_reserved():
    segment = Segment.create(10 * PAGE)
    assert used_bytes(segment) == 0
    segment.reserve(2 * PAGE, 3 * PAGE)
    assert used_bytes(segment) == 3 * PAGE
    assert segment.memory[2 * PAGE : 5 * PAGE] == bytes(3 * PAGE)
    segment.close()


def test_what_is_forgotten_goes_back_to_the_system_and_reads_as_zeros():
    segment = Segment.create(4 * PAGE)
    segment.reserve(0, 4 * PAGE)
    segment.memory[:] = b"x" * (4 * PAGE)
    segment.forget(PAGE, 2 * PAGE)
    assert used_bytes(segment) == 2 * PAGE
    assert segment.memory[:] == b"x" * PAGE + bytes(2 * PAGE) + b"x" * PAGE
    segment.close()


def test_two_mappings_of_one_descriptor_are_the_same_memory():
    one = Segment.create(PAGE)
    other = Segment(os.dup(one.fd), PAGE)
    one.memory[10:15] = b"hello"
    assert other.memory[10:15] == b"hello"
    one.close()
    other.close()


def test_a_closed_segment_can_still_be_looked_at_and_closed_again():
    segment = Segment.create(PAGE)
    fd = segment.fd
    segment.close()
    segment.close()
    segment.memory[0:2] = b"ok"
    assert segment.memory[0:2] == b"ok"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.parametrize("size_bytes", [1 << 62, 1 << 70])
def test_a_segment_beyond_the_address_space_is_told_and_leaks_nothing(size_bytes):
    with pytest.raises(SharedMemoryError) as caught:
        Segment.create(size_bytes)
    assert caught.value.wanted_bytes == size_bytes


def test_a_segment_beyond_the_limit_of_the_process_is_told():
    pid = os.fork()  # a limit, once lowered, stays
    if not pid:
        status = 1
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (2 * PAGE, 2 * PAGE))
            Segment.create(2 * PAGE)
            try:
                Segment.create(4 * PAGE)
            except SharedMemoryError as error:
                status = 0 if error.wanted_bytes == 4 * PAGE else 2
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0


def pool_of(
    slot_bytes: int, n_rows: int, n_expected: int, columns: list[tuple[int, int]] | None = None
) -> SlotPool:
    """Return a pool; of its columns each begins somewhere in a slot, and has rows of some bytes."""
    places = columns or [(0, slot_bytes)]
    made = [Column(np.dtype(np.uint8), (n_bytes,), n_bytes, begin) for begin, n_bytes in places]
    return SlotPool(Layout("array", tuple(made), n_rows, slot_bytes), n_expected)


@pytest.mark.parametrize("slot_bytes", [1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE])
def test_slots_are_page_aligned_and_do_not_overlap(slot_bytes):
    pool = pool_of(slot_bytes, 1, 3)
    pool.add_segment(0)
    slots = [pool.acquire() for _ in range(3)]
    assert pool.is_used_up()
    views = [filled(pool.segments[0], slot, slot_bytes, n) for n, slot in enumerate(slots)]
    assert [slot.offset_bytes % PAGE for slot in slots] == [0, 0, 0]
    for n, view in enumerate(views):
        assert (view == n).all()
    pool.close()


def test_a_pool_grows_by_doubling_without_moving_what_is_in_use():
    pool = pool_of(100, 1, 2)
    taken = []
    for segment_id in range(4):
        assert pool.is_used_up()
        pool.add_segment(segment_id)
        while not pool.is_used_up():
            taken.append(pool.acquire())
    assert len(taken) == len(set(taken)) == 16
    sizes = [sum(slot.segment_id == i for slot in taken) for i in range(4)]
    assert sizes == [2, 2, 4, 8]
    assert not pool.is_idle()
    for slot in taken:
        pool.release(slot)
    assert pool.is_idle()
    pool.close()


def test_the_slot_released_last_is_given_first():
    pool = pool_of(100, 1, 3)
    pool.add_segment(0)
    slots = [pool.acquire() for _ in range(3)]
    for slot in slots:
        pool.release(slot)
    assert [pool.acquire() for _ in range(3)] == slots[::-1]
    pool.close()


def acquired(pool: SlotPool) -> Slot:
    """Return a slot of one row with memory for it."""
    slot = pool.acquire()
    pool.reserve(slot, range(1))
    return slot


def test_memory_beyond_what_is_expected_is_given_back_and_reserved_anew():
    pool = pool_of(PAGE, 1, 2)
    pool.add_segment(0)
    acquired(pool)
    acquired(pool)
    pool.add_segment(1)
    extra = [acquired(pool), acquired(pool)]
    assert used_bytes(pool.segments[1]) == 2 * PAGE
    for slot in extra:
        pool.release(slot)  # these two are kept warm
    assert used_bytes(pool.segments[1]) == 2 * PAGE
    for n in range(2):
        pool.release(Slot(0, n * PAGE))
    assert used_bytes(pool.segments[0]) == 0
    for _ in range(4):
        slot = acquired(pool)
        filled(pool.segments[slot.segment_id], slot, PAGE, 7)
    assert used_bytes(pool.segments[0]) == 2 * PAGE
    pool.close()


def test_rows_get_memory_when_they_are_asked_for_and_once(monkeypatch):
    pool = pool_of(8 * PAGE, 4, 1, [(0, PAGE), (4 * PAGE, PAGE), (8 * PAGE, 0)])
    pool.add_segment(0)
    slot = pool.acquire()
    assert used_bytes(pool.segments[0]) == 0
    pool.reserve(slot, range(1, 3))
    assert used_bytes(pool.segments[0]) == 4 * PAGE
    pool.release(slot)  # as a mini-batch that was given up
    assert pool.acquire() == slot
    pool.reserve(slot, range(4))
    assert used_bytes(pool.segments[0]) == 8 * PAGE
    monkeypatch.setattr(os, "posix_fallocate", None)
    pool.reserve(slot, range(4))
    pool.close()


def test_a_row_that_cannot_be_reserved_is_tried_again(monkeypatch):
    pool = pool_of(PAGE, 1, 1)
    pool.add_segment(0)
    slot = pool.acquire()

    def no_memory(*_arguments):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", no_memory)
        with pytest.raises(SharedMemoryError, match="No space left"):
            pool.reserve(slot, range(1))
    pool.reserve(slot, range(1))
    assert used_bytes(pool.segments[0]) == PAGE
    pool.close()


def test_a_closed_pool_has_no_descriptors():
    pool = pool_of(100, 1, 2)
    pool.add_segment(0)
    fd = pool.segments[0].fd
    pool.close()
    pool.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
