"""Tiers: a copy enters at the fastest one that takes it, sinks, and goes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overlapiter.staging.room import Room
from overlapiter.staging.store import Outcome, Store
from overlapiter.staging.strays import Strays
from overlapiter.staging.tiers import Tiers
from overlapiter.store.eviction import Victim
from overlapiter.workers.prefetcher.evictor import ABSENT, Evictor, RoomForPart

SIZE_BYTES = 100
OLD_NS = 10**18


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for number in range(6):
        (folder / str(number)).write_bytes(bytes([number]) * SIZE_BYTES)
        os.utime(folder / str(number), ns=(OLD_NS, OLD_NS))
    return folder


@pytest.fixture
def stores(source: Path, tmp_path: Path) -> Callable[..., list[Store]]:
    def make(*capacities: int | None, **options: Any) -> list[Store]:
        made = []
        for number, capacity_bytes in enumerate(capacities):
            directory = tmp_path / f"tier-{number}"
            directory.mkdir(exist_ok=True)
            room = Room(str(directory), capacity_bytes, 0)
            room.prepare()
            made.append(Store(str(directory), str(source), room, **options))
            made[-1].create()
        return made

    return make


class Files:
    """Declares the files of each example."""

    def __init__(self, *paths: Sequence[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: Any) -> Any:
        return index

    def source_paths(self, index: int) -> Sequence[str]:
        return self.paths[index]


class Setting:
    """Tiers with an evictor for some examples."""

    def __init__(self, stores: list[Store], dataset: Files) -> None:
        self.told: list[str] = []
        self.n_gone = 0
        self.tiers = Tiers(stores, self.told.append, 1)
        self.validated = memoryview(np.zeros(len(dataset), np.uint64))
        strays = [Strays(store) for store in stores]
        source = stores[0].source
        self.evictor = Evictor(dataset, source, self.tiers, strays, self.validated, self.count)

    def count(self) -> None:
        self.n_gone += 1

    def tier_of(self, path: str) -> int | None:
        found = self.tiers.peek(path)
        return None if found is None else found.tier


def paths_of(source: Path, *names: int) -> list[str]:
    return [str(source / str(name)) for name in names]


def test_a_file_enters_at_the_fastest_tier_that_has_room(source, stores):
    setting = Setting(stores(2 * SIZE_BYTES, SIZE_BYTES), Files())
    paths = paths_of(source, *range(4))
    answers = [setting.tiers.copy(path, None) for path in paths]
    assert [answer.tier for answer in answers[:3]] == [0, 0, 1]
    assert answers[3].outcome is Outcome.REFUSED
    for path, answer in zip(paths, answers[:3], strict=False):
        assert Path(answer.path).read_bytes() == Path(path).read_bytes()


def test_victims_sink_to_the_next_tier_and_go_from_the_last_one(source, stores):
    paths = paths_of(source, *range(4))
    setting = Setting(stores(SIZE_BYTES, SIZE_BYTES), Files(*([path] for path in paths)))
    assert [setting.tiers.copy(path, None).tier for path in paths[:2]] == [0, 1]
    room = RoomForPart(setting.evictor, [Victim(0, 0), Victim(1, 1)])
    assert setting.tiers.copy(paths[2], room.make).tier == 0
    assert [setting.tier_of(path) for path in paths[:3]] == [1, None, 0]
    assert room.moved == {0: 1, 1: ABSENT}
    assert setting.n_gone == 1
    assert setting.tiers.copy(paths[3], room.make).outcome is Outcome.REFUSED


def test_what_sinks_is_still_known_to_be_valid(source, stores):
    (path,) = paths_of(source, 0)
    setting = Setting(stores(SIZE_BYTES, SIZE_BYTES), Files([path]))
    setting.validated[0] = setting.tiers.copy(path, None).stamp
    assert setting.evictor.evict(Victim(0, 0), lambda _tier: False) == 1
    found = setting.tiers.peek(path)
    assert setting.validated[0] == found.stamp
    assert setting.tiers.compare(path, found).outcome is Outcome.FOUND


def test_a_damaged_copy_does_not_sink_where_checksums_are_kept(source, stores):
    (path,) = paths_of(source, 3)
    setting = Setting(stores(SIZE_BYTES, None, validate="checksum"), Files([path]))
    staged = Path(setting.tiers.copy(path, None).path)
    with staged.open("r+b") as file:
        file.write(b"BAD")
    os.utime(staged, ns=(OLD_NS, OLD_NS))
    assert setting.tiers.sink(path, 0, None) is None
    assert setting.tier_of(path) is None


def test_making_room_in_one_tier_leaves_the_files_in_others(source, stores):
    one, other = paths_of(source, 0, 1)
    setting = Setting(stores(SIZE_BYTES, None), Files([one, other]))
    assert [setting.tiers.copy(path, None).tier for path in (one, other)] == [0, 1]
    assert setting.evictor.evict(Victim(0, 0), lambda _tier: False) == 1
    assert [setting.tier_of(path) for path in (one, other)] == [1, 1]
    assert setting.n_gone == 0


def test_a_tier_that_is_sick_hides_no_other_one_that_is_full(source, stores):
    fast, slow = stores(SIZE_BYTES, None)

    def fail(*_arguments: object) -> None:
        raise OSError(5, "Input/output error")

    slow.fetch = fail
    setting = Setting([fast, slow], Files())
    one, other = paths_of(source, 0, 1)
    assert setting.tiers.copy(one, None).tier == 0
    assert setting.tiers.copy(other, None).outcome is Outcome.REFUSED


def test_a_file_that_another_process_has_put_into_a_slower_tier_is_found_there(source, stores):
    made = stores(None, None)
    (path,) = paths_of(source, 0)
    assert made[1].stage(path).outcome is Outcome.COPIED
    answer = Setting(made, Files()).tiers.copy(path, None)
    assert (answer.outcome, answer.tier) == (Outcome.FOUND, 1)


def test_a_file_larger_than_all_the_room_makes_nobody_go(source, stores):
    paths = paths_of(source, *range(3))
    setting = Setting(stores(3 * SIZE_BYTES), Files(*([path] for path in paths)))
    for path in paths:
        setting.tiers.copy(path, None)
    (source / "big").write_bytes(bytes(4 * SIZE_BYTES))
    room = RoomForPart(setting.evictor, [Victim(index, 0) for index in range(3)])
    answer = setting.tiers.copy(str(source / "big"), room.make)
    assert answer.outcome is Outcome.TOO_LARGE
    assert [setting.tier_of(path) for path in paths] == [0, 0, 0]
    (text,) = setting.told
    assert "larger than all the room" in text


def test_an_example_that_does_not_say_what_it_reads_is_no_victim(source, stores):
    class Broken(Files):
        def source_paths(self, index: int) -> Sequence[str]:
            raise OSError(2, f"no list names example {index}")

    (path,) = paths_of(source, 0)
    setting = Setting(stores(SIZE_BYTES), Broken([path]))
    setting.tiers.copy(path, None)
    assert setting.evictor.evict(Victim(0, 0), lambda _tier: False) is None
    assert setting.tier_of(path) == 0
    assert setting.told == []


def test_what_others_are_about_to_read_goes_last(source, stores):
    paths = paths_of(source, 0, 1, 2)
    made = stores(2 * SIZE_BYTES)
    setting = Setting(made, Files(*([path] for path in paths)))
    for path in paths[:2]:
        setting.tiers.copy(path, None)
    Tiers(made, pytest.fail, 2).want(paths[:1])
    room = RoomForPart(setting.evictor, [Victim(0, 0), Victim(1, 0)])
    assert setting.tiers.copy(paths[2], room.make).outcome is Outcome.COPIED
    assert [setting.tier_of(path) for path in paths] == [0, None, 0]
