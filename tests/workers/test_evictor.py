"""Making room: which victims go, which stay, and what becomes of them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from overlapiter.store import neighbours
from overlapiter.store.eviction import Victim
from overlapiter.store.extents import unpacked
from overlapiter.store.index import IndexBusyError
from overlapiter.store.outcome import Outcome
from overlapiter.workers.prefetcher import evictor as evictor_module
from overlapiter.workers.prefetcher.evictor import Evictor, RoomForTask
from tests.store.actors import in_a_process
from tests.store.stagers import Setting, contents_of
from tests.store.stores import BLOCK_BYTES, Files, made_store, stage, staged
from tests.support.staged import another_run

COPIED, REFUSED = Outcome.COPIED, Outcome.REFUSED


class Declared:
    """Declares the files of each example."""

    def __init__(self, paths: Sequence[Sequence[str]]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> Any:
        return index

    def source_paths(self, index: int) -> Sequence[str]:
        return self.paths[index]


class Room:
    """A setting whose files have all been staged, one for each example, and an evictor for it."""

    def __init__(self, folder, n_files, *n_blocks, dataset=None):
        self.setting = Setting(folder, contents_of(n_files + 2), *n_blocks)
        self.paths = self.setting.paths[:n_files]
        self.more = self.setting.paths[n_files:]
        for path in self.paths:
            assert self.setting.outcomes(path) == [COPIED]
        self.n_gone = 0
        dataset = dataset or Declared([[path] for path in self.setting.paths])
        self.evictor = Evictor(dataset, self.setting.stager, self._count)

    def _count(self, n_files):
        self.n_gone += n_files

    def key(self, index):
        return self.setting.stores[0].key_of(self.setting.paths[index])

    def victim(self, index, tier=0):
        return Victim(index, tier, (self.key(index),), BLOCK_BYTES)

    def for_task(self, *victims):
        """Return the room of a task: victims are indices, or indices and tiers."""
        own = [self.victim(*v) if isinstance(v, tuple) else self.victim(v) for v in victims]
        return RoomForTask(self.evictor, own)

    def for_guesses(self, *guesses, known=()):
        own = [self.victim(index)._replace(keys=()) for index in guesses]
        return RoomForTask(self.evictor, own + [self.victim(index) for index in known])

    def tiers(self):
        return [self.setting.tier_of(path) for path in self.paths]


@in_a_process
def test_victims_make_room_the_first_of_them_first_and_no_more_than_are_needed(tmp_path):
    room = Room(tmp_path, 3, 3)
    task = room.for_task(1, 0)
    assert room.setting.outcomes(room.more[0], make_room=task.make) == [COPIED]
    assert room.tiers() == [0, None, 0]
    assert task.moved == {1: b""}
    assert room.setting.outcomes(room.more[1], make_room=task.make) == [COPIED]
    assert room.tiers() == [None, None, 0]
    assert room.setting.outcomes(room.paths[0], make_room=task.make) == [REFUSED]
    assert room.n_gone == 2


@in_a_process
def test_for_all_files_of_a_task_room_is_made_at_once(tmp_path, monkeypatch):
    room = Room(tmp_path, 4, 4)
    (store,) = room.setting.stores
    evict, n_evicted = store.evict, []
    monkeypatch.setattr(
        store, "evict", lambda keys, **how: n_evicted.append(len(keys)) or evict(keys, **how)
    )
    task = room.for_task(3, 2, 1, 0)
    assert room.setting.outcomes(*room.more, make_room=task.make) == [COPIED] * 2
    assert n_evicted == [2]
    assert room.tiers() == [0, 0, None, None]
    assert store.total_bytes() == 4 * BLOCK_BYTES


@in_a_process
def test_guesses_are_looked_up_together_and_those_that_are_wrong_evict_nothing(tmp_path):
    room = Room(tmp_path, 2, 2)  # the examples 2 and 3 are not staged
    task = room.for_guesses(2, 3, 1, known=[0])
    assert room.setting.outcomes(room.more[0], make_room=task.make) == [COPIED]
    assert room.tiers() == [0, None]
    assert task.moved == {2: None, 3: None, 1: b""}
    assert room.setting.outcomes(room.more[1], make_room=task.make) == [COPIED]
    assert room.tiers() == [None, None]
    assert room.n_gone == 2


@in_a_process
def test_a_guess_that_is_wrong_takes_no_victim_s_place(tmp_path):
    room = Room(tmp_path, 1, 1)
    task = room.for_guesses(1, 2, known=[0])
    assert task.make(0, BLOCK_BYTES)
    assert room.tiers() == [None]


@in_a_process
def test_victims_sink_to_the_next_tier_and_there_others_go(tmp_path):
    room = Room(tmp_path, 2, 1, 1)
    assert room.tiers() == [0, 1]
    task = room.for_task(0, (1, 1))
    assert room.setting.outcomes(room.more[0], make_room=task.make) == [COPIED]
    assert room.tiers() == [1, None]
    assert room.setting.tier_of(room.more[0]) == 0
    (sunk,) = unpacked(task.moved.pop(0)).values()
    assert sunk == room.setting.extent(room.paths[0])
    assert task.moved == {1: b""}
    assert room.n_gone == 1
    assert room.setting.outcomes(room.more[1], make_room=task.make) == [REFUSED]


@in_a_process
def test_a_victim_that_is_not_there_is_told_apart_from_one_that_went(tmp_path):
    room = Room(tmp_path, 1, None)
    moved = room.evictor.evict([room.victim(0), room.victim(1)], 0, lambda *_: False)
    assert moved == {0: b"", 1: None}


@in_a_process
def test_the_files_that_a_victim_names_go_and_no_others(tmp_path):
    room = Room(tmp_path, 2, None, dataset=[0, 1])  # which declares none
    victim = room.victim(0)._replace(keys=(room.key(1),))
    assert room.evictor.evict([victim], 0, lambda *_: False) == {0: b""}
    assert room.tiers() == [0, None]


@in_a_process
def test_an_example_that_does_not_say_what_it_reads_is_no_victim(tmp_path):
    class Broken(Declared):
        def source_paths(self, index: int) -> Sequence[str]:
            raise OSError(2, f"no list names example {index}")

    room = Room(tmp_path, 1, 1, dataset=Broken([()]))
    assert_is_no_victim(room)


@in_a_process
def test_an_example_with_a_path_that_no_file_can_have_is_no_victim(tmp_path):
    room = Room(tmp_path, 1, 1, dataset=Declared([["/lustre/images/\ud800"]]))
    assert_is_no_victim(room)


def assert_is_no_victim(room):
    task = room.for_guesses(0)
    assert room.setting.outcomes(room.more[0], make_room=task.make) == [REFUSED]
    assert room.tiers() == [0]
    assert room.setting.said == []


@in_a_process
def test_what_another_run_is_about_to_read_goes_last(tmp_path):
    room = Room(tmp_path, 3, 3)
    setting = room.setting
    with another_run(setting.directories[0], setting.stores[0].source) as other:
        other.neighbours.want([other.key_of(path) for path in room.paths[:2]])
        task = room.for_task(0, 2, 1)
        assert task.make(0, 3 * BLOCK_BYTES)
        assert setting.outcomes(room.more[0], make_room=task.make) == [COPIED]
        assert room.tiers() == [0, 0, None]
        assert setting.outcomes(room.more[1], make_room=task.make) == [COPIED]
        assert room.tiers().count(0) < 2


@in_a_process
def test_a_file_that_another_run_wants_spares_all_examples_that_read_it(tmp_path):
    room = Room(tmp_path, 2, 2)
    first, second = room.paths
    setting = room.setting
    with another_run(setting.directories[0], setting.stores[0].source) as other:
        other.neighbours.want([other.key_of(first)])
        keys = [other.key_of(path) for path in (first, first, second)]
        victims = [Victim(example, 0, (key,)) for example, key in enumerate(keys)]
        assert room.evictor.wanted_by_others(0, victims) == {0, 1}


@pytest.mark.parametrize("is_running", [True, False])
@in_a_process
def test_files_of_a_source_that_no_run_uses_make_room_before_any_victim(tmp_path, is_running):
    room = Room(tmp_path, 1, 2)
    setting, files = room.setting, Files(1, BLOCK_BYTES)
    other = made_store(setting.directories[0], 2, "/lustre/other")
    assert stage(other, files, files.paths)
    if not is_running:
        other.record_end("closed", {})
    other.close()
    neighbours._DAY_SECONDS = -10  # it was staged just now
    task = room.for_task(0)
    assert setting.outcomes(room.more[0], make_room=task.make) == [COPIED]
    assert bool(staged(other, files)) == is_running
    assert room.tiers() == [None if is_running else 0]
    assert task.moved == ({0: b""} if is_running else {})


@in_a_process
def test_files_are_written_to_the_places_of_those_that_no_run_uses(tmp_path):
    room = Room(tmp_path, 0, 2)
    setting, files = room.setting, Files(2, BLOCK_BYTES)
    other = made_store(setting.directories[0], 2, "/lustre/other")
    strays = stage(other, files, files.paths)
    other.record_end("closed", {})
    other.close()
    task = room.for_task()
    answers = setting.stage(*room.more, make_room=task.make).values()
    places = {(answer.extent.segment, answer.extent.start) for answer in answers}
    assert places == {(extent.segment, extent.start) for extent in strays.values()}


@in_a_process
def test_tasks_may_look_at_once_for_what_no_run_uses(tmp_path, monkeypatch):
    room = Room(tmp_path, 0, None)
    (store,) = room.setting.stores
    files = Files(2, BLOCK_BYTES)
    other = made_store(room.setting.directories[0], 2, "/lustre/other")
    assert stage(other, files, files.paths)
    other.record_end("closed", {})
    other.close()
    assert room.evictor.evict_strays(0, are_young_spared=False)  # all of them
    rows, both = store._access.rows, threading.Barrier(2)

    def slow_rows(statement, *values):
        found = rows(statement, *values)
        if statement == neighbours._STRAYS:
            with contextlib.suppress(threading.BrokenBarrierError):
                both.wait(0.5)
        return found

    monkeypatch.setattr(store._access, "rows", slow_rows)
    with ThreadPoolExecutor(2) as tasks:
        found = [
            tasks.submit(room.evictor.evict_strays, 0, are_young_spared=False) for _ in range(2)
        ]
    assert [each.result() for each in found] == [False, False]


@in_a_process
def test_a_tier_whose_capacity_was_larger_before_shrinks(tmp_path):
    room = Room(tmp_path, 6, None)
    room.setting.close()
    (store,) = room.setting.stores
    store.site = store._access._site = store.site._replace(capacity_bytes=2 * BLOCK_BYTES)
    room.for_task(*range(6)).shrink()
    store.close()
    assert store.total_bytes() <= 2 * BLOCK_BYTES
    assert room.n_gone == 4


@in_a_process
def test_after_a_search_in_vain_for_what_no_run_uses_there_is_none_for_a_while(
    tmp_path, monkeypatch
):
    room = Room(tmp_path, 1, None)
    searches = []
    (store,) = room.setting.stores

    def search(**how):
        searches.append(how)
        time.sleep(0.05)
        return []

    monkeypatch.setattr(store.neighbours, "strays", search)
    for _ in range(5):
        assert not room.evictor.evict_strays(0, are_young_spared=False)
    assert len(searches) == 1
    real = time.monotonic
    monkeypatch.setattr(evictor_module.time, "monotonic", lambda: real() + 60)
    room.evictor.evict_strays(0, are_young_spared=False)
    assert len(searches) == 2


@in_a_process
def test_what_is_of_use_each_tier_is_told_however_long_one_of_them_fails(tmp_path, monkeypatch):
    room = Room(tmp_path, 1, None, None)
    fast, slow = room.setting.stores
    told = []

    def tell_fast(keys, *, needs_room):
        told.append(("fast", keys, needs_room))
        if len(told) < 100:
            raise IndexBusyError("locked")

    def tell_slow(keys, *, needs_room):
        told.append(("slow", keys, needs_room))

    monkeypatch.setattr(fast.neighbours, "tell_uses", tell_fast)
    monkeypatch.setattr(slow.neighbours, "tell_uses", tell_slow)
    monkeypatch.setattr(evictor_module, "_PAUSE_SECONDS", 0.0)
    room.evictor.tell_uses(np.array([3, 5]).tobytes(), True)
    assert told == [(tier, [3, 5], True) for tier in ("fast", "slow", *["fast"] * 98)]
