"""A staging directory that is smaller than the data set: what is needed last makes room."""

from __future__ import annotations

import contextlib
import random
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.slow.store import SlowStore, attach
from overlapiter import OverlapIterator, Staging, Stats, Tier
from overlapiter.errors import StagingWarning
from overlapiter.order import seeded_order
from tests.chainer.cache_datasets import FILE_BYTES, Drawn, FewFiles, Pairs, names_of, write_files
from tests.chainer.iterator_datasets import DeclaredFiles, SourceFiles
from tests.chainer.scripts import PROMPT_SECONDS, kill_all, wait_until, workers
from tests.support.staged import (
    charged_bytes,
    data_on_disk,
    query,
    staged_paths,
    stopped_in_transaction,
)

N_FILES = 160
BATCH_SIZE = 4
N_BATCHES = N_FILES // BATCH_SIZE
NAMES = names_of(N_FILES)
#: Of the hundreds of reads of a test: on a busy machine a part may come while all that is staged is
#: needed sooner, and is read from the source.
FEW = 20


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    write_files(folder, N_FILES)
    return folder


def capacity_of(share: float) -> int:
    return int(share * N_FILES) * FILE_BYTES


def iterator_of(
    dataset: Any, source: Path, directory: Path | None, *, staging: Any = (), **options: Any
) -> OverlapIterator:
    """Return an iterator with room for half of the files, if nothing else is said."""
    chosen = {"keep_free": 0, "capacity": capacity_of(0.5), **dict(staging)}
    options = {"n_processes": 2, "dataset_timeout": None, "seed": 3, **options}
    return OverlapIterator(
        dataset, BATCH_SIZE, staging=Staging(directory, source=source, **chosen), **options
    )


def take_epoch(iterator: OverlapIterator, dataset: Any, n_batches: int = N_BATCHES) -> list[int]:
    """Take an epoch, compare its bytes, and return its indices."""
    indices = []
    for _ in range(n_batches):
        for values, index in next(iterator):
            assert values.tobytes() == dataset.get_example(int(index))[0].tobytes()
            indices.append(int(index))
    return indices


def changes(before: Stats, after: Stats, name: str) -> int:
    return getattr(after, name) - getattr(before, name)


@contextlib.contextmanager
def no_warning() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", StagingWarning)
        yield


@contextlib.contextmanager
def watched(*directories: Path) -> Iterator[list[list[int]]]:
    """Add up what the segments of some directories take, again and again."""
    totals: list[list[int]] = [[0] for _ in directories]
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.is_set():
            for directory, sizes in zip(directories, totals, strict=True):
                # What goes while it is added up counts, and something else may come.
                before, after = data_on_disk(directory), data_on_disk(directory)
                sizes.append(min(before, after))

    thread = threading.Thread(target=watch, name="watch")
    thread.start()
    try:
        yield totals
    finally:
        is_over.set()
        thread.join()
    for directory, sizes in zip(directories, totals, strict=True):
        sizes.append(data_on_disk(directory))


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_of_fresh_shuffles_no_more_is_read_again_than_belady_would(
    tmp_path: Path, share: float
) -> None:
    # What is being read takes some room, which is to be little beside the capacity.
    n_files = max(N_FILES, int(60 / share))
    write_files(tmp_path / "source", n_files)
    dataset = DeclaredFiles(tmp_path / "source", names_of(n_files))
    staging = {"capacity": int(share * n_files) * FILE_BYTES}
    n_epochs, n_batches = 3, n_files // BATCH_SIZE
    with (
        no_warning(),
        iterator_of(dataset, dataset.folder, tmp_path / "fast", staging=staging) as iterator,
    ):
        seen = take_epoch(iterator, dataset, n_batches)
        before = iterator.stats()
        for _ in range(n_epochs):
            seen += take_epoch(iterator, dataset, n_batches)
        after = iterator.stats()
    wanted = [i for epoch in range(n_epochs + 1) for i in seeded_order(3, epoch, n_files)]
    assert seen == wanted[: len(seen)]
    missed = changes(before, after, "files_staged") + changes(before, after, "opens_source")
    # Belady's rule misses a share of 1 - share of them; what is staged ahead is counted, too.
    assert missed <= (1 - share + 0.02) * n_epochs * n_files + 2 * BATCH_SIZE
    assert changes(before, after, "opens_source") == 0


def test_no_file_of_any_size_is_read_to_find_no_room(tmp_path: Path) -> None:
    folder, n_files, numbers = tmp_path / "source", 800, random.Random(1)
    folder.mkdir()
    names = [str(number) for number in range(n_files)]
    for name in names:
        (folder / name).write_bytes(numbers.randbytes(numbers.randrange(8_000, 32_000)))
    dataset = DeclaredFiles(folder, names)
    with SlowStore(folder, open_seconds=0.002) as store:
        slow = attach(dataset, store)
        staging = {"capacity": 100 * 20_000}
        with iterator_of(slow, folder, tmp_path / "fast", staging=staging) as iterator:
            for _ in range(3):
                take_epoch(iterator, dataset, n_files // BATCH_SIZE)
            stats = iterator.stats()
            n_read = stats.files_staged + stats.opens_source
            assert store.opens <= n_read + 64  # that are being read at this moment
    assert stats.files_evicted > n_files
    assert stats.files_refused <= 4


@pytest.mark.parametrize("kind", ["declared", "discovered"])
@pytest.mark.parametrize("options", [{"seed": None}, {"shuffle": False, "seed": None}])
def test_without_a_seed_too_all_reads_are_of_the_staging_directory(
    source: Path, tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    dataset = (DeclaredFiles if kind == "declared" else SourceFiles)(source, NAMES)
    with (
        no_warning(),
        watched(tmp_path / "fast") as (sizes,),
        iterator_of(dataset, source, tmp_path / "fast", **options) as iterator,
    ):
        for _ in range(3):
            assert sorted(take_epoch(iterator, dataset)) == list(range(N_FILES))
        stats = iterator.stats()
    assert max(sizes) <= capacity_of(0.5)
    assert stats.files_evicted > 0
    assert stats.opens_staged >= 3 * N_FILES
    assert stats.opens_source <= FEW  # while it is not known yet that there will be no room
    is_shuffled = "shuffle" not in options
    assert stats.files_staged <= (1 + 2 * (0.55 if is_shuffled else 0.75)) * N_FILES


def test_what_is_drawn_often_stays(source: Path, tmp_path: Path) -> None:
    dataset = DeclaredFiles(source, NAMES)
    options = {"order_sampler": Drawn(1), "seed": None}
    staging = {"capacity": capacity_of(0.25)}
    with iterator_of(dataset, source, tmp_path / "fast", staging=staging, **options) as iterator:
        take_epoch(iterator, dataset)
        before = iterator.stats()
        often = 0
        for _ in range(3):
            often += sum(index < 10 for index in take_epoch(iterator, dataset))
        after = iterator.stats()
    assert often > N_FILES
    assert changes(before, after, "opens_source") <= FEW
    assert changes(before, after, "files_staged") < 0.45 * 3 * N_FILES


def test_files_that_many_examples_read_are_staged_once_and_counted(
    source: Path, tmp_path: Path
) -> None:
    dataset = FewFiles(source, NAMES[:20], 8)
    staging = {"capacity": 10 * FILE_BYTES}
    n_batches = len(dataset) // BATCH_SIZE
    options = {"shuffle": False, "seed": None}
    with (
        no_warning(),
        watched(tmp_path / "fast") as (sizes,),
        iterator_of(dataset, source, tmp_path / "fast", staging=staging, **options) as it,
    ):
        for _ in range(3):
            assert take_epoch(it, dataset, n_batches) == list(range(len(dataset)))
        stats = it.stats()
    assert max(sizes) <= 10 * FILE_BYTES
    assert stats.opens_source <= FEW
    assert stats.files_staged <= 50


def test_files_that_two_examples_share_go_when_neither_needs_them(
    source: Path, tmp_path: Path
) -> None:
    dataset = Pairs(source, NAMES)
    n_batches = len(dataset) // BATCH_SIZE
    with no_warning(), iterator_of(dataset, source, tmp_path / "fast") as iterator:
        for _ in range(3):
            take_epoch(iterator, dataset, n_batches)
        stats = iterator.stats()
    assert stats.opens_source <= FEW
    assert stats.files_evicted > 0


def test_a_directory_too_small_for_what_is_staged_ahead_is_used_all_the_same(
    source: Path, tmp_path: Path
) -> None:
    dataset = DeclaredFiles(source, NAMES)
    staging = {"capacity": 2 * BATCH_SIZE * FILE_BYTES, "look_ahead": 1000}
    with warnings.catch_warnings(), watched(tmp_path / "fast") as (sizes,):
        warnings.simplefilter("ignore", StagingWarning)
        with iterator_of(dataset, source, tmp_path / "fast", staging=staging) as iterator:
            for _ in range(3):
                take_epoch(iterator, dataset)
            stats = iterator.stats()
    assert max(sizes) <= staging["capacity"]
    assert stats.opens_staged > N_FILES


def test_the_head_of_the_next_epoch_is_staged_before_this_one_ends(
    source: Path, tmp_path: Path
) -> None:
    dataset = DeclaredFiles(source, NAMES)
    with iterator_of(dataset, source, tmp_path / "fast") as iterator:
        take_epoch(iterator, dataset, N_BATCHES - 1)
        head = seeded_order(3, 1, N_FILES)[: 2 * BATCH_SIZE]
        copies = {NAMES[i] for i in head}
        wait_until(lambda: copies <= staged_paths(tmp_path / "fast").keys())
        assert iterator.epoch == 0


def test_nothing_is_staged_for_what_follows_the_end_until_it_is_asked_for(
    source: Path, tmp_path: Path
) -> None:
    dataset = DeclaredFiles(source, NAMES)
    room = {"capacity": None}
    with iterator_of(dataset, source, tmp_path / "fast", staging=room, epochs=0.5) as iterator:
        take_epoch(iterator, dataset, N_BATCHES // 2)
        time.sleep(0.5)
        before = iterator.stats()
        order = seeded_order(3, 0, N_FILES).tolist()
        assert take_epoch(iterator, dataset, N_BATCHES // 2) == order[N_FILES // 2 :]
        take_epoch(iterator, dataset)
        after = iterator.stats()
    assert (before.files_staged, after.files_staged) == (N_FILES // 2, N_FILES)


def test_after_a_reset_and_a_jump_to_a_snapshot_what_is_staged_is_still_known(
    source: Path, tmp_path: Path
) -> None:
    dataset = DeclaredFiles(source, NAMES)
    with no_warning(), iterator_of(dataset, source, tmp_path / "fast") as iterator:
        for _ in range(3):
            take_epoch(iterator, dataset, N_BATCHES + 7)
            iterator.reset()
        before = iterator.stats()
        take_epoch(iterator, dataset)
        take_epoch(iterator, dataset)
        after = iterator.stats()
    assert changes(before, after, "files_staged") <= 1.2 * N_FILES
    assert changes(before, after, "opens_source") <= FEW


# What the dead were about to free is not known at once: meanwhile there may be no room.
@pytest.mark.filterwarnings("ignore:the staging directory .* is full")
def test_prefetchers_that_are_killed_while_they_evict_change_no_byte(
    source: Path, tmp_path: Path
) -> None:
    dataset = DeclaredFiles(source, NAMES)
    n_killed = 0
    with iterator_of(dataset, source, tmp_path / "fast") as iterator:
        for step in range(3 * N_BATCHES):
            take_epoch(iterator, dataset, 1)
            if step % 10 == 5:
                for kind in ("ovl-prefetcher", "ovl-supervisor")[: 1 + (step % 20 == 15)]:
                    found = workers().get(kind, [])[:1]  # none, while it is being replaced
                    kill_all(found)
                    n_killed += len(found)
        assert n_killed > 3
        assert iterator.stats().files_evicted > 0
    with iterator_of(dataset, source, tmp_path / "fast"), watched(tmp_path / "fast") as (sizes,):
        wait_until(lambda: len(sizes) > 3)
    assert max(sizes) <= capacity_of(0.5)


def test_files_sink_from_tier_to_tier_and_both_hold_no_more_than_they_may(
    source: Path, tmp_path: Path
) -> None:
    dataset = DeclaredFiles(source, NAMES)
    ram, nvme = tmp_path / "ram", tmp_path / "nvme"
    staging = {
        "tiers": [Tier(ram, capacity_of(0.2)), Tier(nvme, capacity_of(0.4))],
        "capacity": None,
    }
    with (
        no_warning(),
        watched(ram, nvme) as (ram_sizes, nvme_sizes),
        iterator_of(dataset, source, None, staging=staging) as iterator,
    ):
        take_epoch(iterator, dataset)
        before = iterator.stats()
        for _ in range(3):
            take_epoch(iterator, dataset)
        after = iterator.stats()
    assert capacity_of(0.2) >= max(ram_sizes) > capacity_of(0.15)
    assert capacity_of(0.4) >= max(nvme_sizes) > capacity_of(0.35)
    assert changes(before, after, "opens_source") == 0
    assert changes(before, after, "files_staged") <= (0.4 + 0.02) * 3 * N_FILES + 10


def test_a_second_run_finds_what_the_first_one_left_in_any_tier(
    source: Path, tmp_path: Path
) -> None:
    dataset = DeclaredFiles(source, NAMES)
    ram, nvme = tmp_path / "ram", tmp_path / "nvme"
    staging = {"tiers": [Tier(ram, capacity_of(0.3)), Tier(nvme)], "capacity": None}
    for run in range(2):
        with no_warning(), iterator_of(dataset, source, None, staging=staging) as iterator:
            take_epoch(iterator, dataset)
            assert (iterator.stats().files_staged == 0) == (run == 1)


@pytest.mark.filterwarnings("ignore:some files of .* are read from the source")
def test_a_tier_that_cannot_be_told_what_is_of_use_holds_no_read_up(
    source: Path, tmp_path: Path
) -> None:
    dataset = DeclaredFiles(source, NAMES)
    ram, nvme = tmp_path / "ram", tmp_path / "nvme"
    staging = {
        "tiers": [Tier(ram, capacity_of(0.2)), Tier(nvme, capacity_of(0.5))],
        "capacity": None, "n_prefetchers": 1, "reads_in_flight": 1,
    }  # fmt: skip
    with iterator_of(dataset, source, None, staging=staging) as iterator:
        take_epoch(iterator, dataset, 1)
        with stopped_in_transaction(ram):
            for _ in range(3 * N_BATCHES):  # it is to be told after the first N_BATCHES
                start = time.monotonic()
                take_epoch(iterator, dataset, 1)
                assert time.monotonic() - start < PROMPT_SECONDS


def test_the_default_sampler_is_asked_for_no_order_before_its_time(
    source: Path, tmp_path: Path
) -> None:
    asked = []

    def sampler(order: Any, position: int) -> Any:
        asked.append(position)
        return np.roll(order, 1)

    dataset = DeclaredFiles(source, NAMES)
    options = {"order_sampler": sampler, "seed": None}
    with iterator_of(dataset, source, tmp_path / "fast", **options) as iterator:
        take_epoch(iterator, dataset, 2)
        assert len(asked) == 1


def test_what_no_run_uses_makes_room_and_what_a_run_uses_stays(
    source: Path, tmp_path: Path
) -> None:
    write_files(tmp_path / "other", 60)
    write_files(tmp_path / "in-use", 20)
    other = DeclaredFiles(tmp_path / "other", names_of(60))
    in_use = DeclaredFiles(tmp_path / "in-use", names_of(20))
    fast = tmp_path / "fast"
    with iterator_of(other, other.folder, fast) as iterator:
        take_epoch(iterator, other, 15)
    staging = {"capacity": 200 * FILE_BYTES}  # so that little is reserved ahead
    with no_warning(), iterator_of(in_use, in_use.folder, fast, staging=staging) as validation:
        take_epoch(validation, in_use, 5)
        # Until its prefetchers rest they keep some room, with which it is more than the capacity.
        wait_until(lambda: charged_bytes(fast) == 80 * FILE_BYTES)
        with iterator_of(DeclaredFiles(source, NAMES), source, fast) as iterator:
            take_epoch(iterator, DeclaredFiles(source, NAMES))
            take_epoch(iterator, DeclaredFiles(source, NAMES))
            stats = iterator.stats()
        left = [len(staged_paths(fast, folder)) for folder in (other.folder, in_use.folder)]
    assert left[1] == 20
    assert left[0] < 60  # staged so lately that they only go where nothing else may
    assert stats.opens_source <= FEW


N_OLD, N_NEW = 60, 40


class OneRootForTwo:
    """Two data sets below one source root, and room for the larger one, which is staged."""

    def __init__(self, folder: Path) -> None:
        self.root, self.fast = folder / "root", folder / "fast"
        self.old, self.new = (
            self._data_set(name, n) for name, n in (("old", N_OLD), ("new", N_NEW))
        )
        with self.iterator(self.old) as iterator:
            take_epoch(iterator, self.old, N_OLD // BATCH_SIZE)
        assert self.n_left("old") == N_OLD

    def _data_set(self, name: str, n_files: int) -> DeclaredFiles:
        write_files(self.root / name, n_files)
        return DeclaredFiles(self.root, [f"{name}/{file}" for file in names_of(n_files)])

    def iterator(self, dataset: DeclaredFiles) -> OverlapIterator:
        return iterator_of(dataset, self.root, self.fast, staging={"capacity": N_OLD * FILE_BYTES})

    def n_left(self, name: str) -> int:
        return sum(path.startswith(name) for path in staged_paths(self.fast, self.root))

    def take_epochs_of_new(self, n_epochs: int) -> None:
        with self.iterator(self.new) as iterator:
            for _ in range(n_epochs):
                take_epoch(iterator, self.new, N_NEW // BATCH_SIZE)


@pytest.mark.filterwarnings("ignore:the staging directory")
@pytest.mark.parametrize("n_empty", [0, 4])  # an empty file is not staged, whenever it is read
def test_files_of_the_same_root_that_no_run_has_used_for_days_make_room(
    tmp_path: Path, n_empty: int
) -> None:
    two = OneRootForTwo(tmp_path)
    for path in two.new.names[:n_empty]:
        (two.root / path).write_bytes(b"")
    query(two.fast, "UPDATE staged SET used=used - 3 * 86400")
    two.take_epochs_of_new(5)
    assert N_NEW - n_empty - BATCH_SIZE <= two.n_left("new") <= N_OLD - two.n_left("old")


def test_what_is_of_use_is_told_again_by_the_successor_of_a_prefetcher_that_was_killed(
    tmp_path: Path,
) -> None:
    two = OneRootForTwo(tmp_path)
    living = "SELECT COUNT(*) FROM run WHERE ended IS NULL AND told > 0"
    with two.iterator(two.old) as iterator:
        take_epoch(iterator, two.old, N_OLD // BATCH_SIZE)
        wait_until(lambda: query(two.fast, living) == [(1,)])
        query(two.fast, "UPDATE run SET told=0")  # as if it had been killed before
        kill_all(workers()["ovl-prefetcher"])
        wait_until(lambda: query(two.fast, living) == [(1,)])
        take_epoch(iterator, two.old, N_OLD // BATCH_SIZE)


@pytest.mark.filterwarnings("ignore:the staging directory")
@pytest.mark.parametrize("user", ["earlier run", "living run", "run that came back"])
def test_files_of_the_same_root_that_a_run_has_used_lately_stay(tmp_path: Path, user: str) -> None:
    two = OneRootForTwo(tmp_path)
    with contextlib.ExitStack() as stack:
        if user != "earlier run":
            query(two.fast, "UPDATE staged SET used=used - 3 * 86400")
            iterator = stack.enter_context(two.iterator(two.old))
            # One that has not looked at all its examples may need any file.
            take_epoch(iterator, two.old, 1 if user == "living run" else N_OLD // BATCH_SIZE)
        if user == "run that came back":
            iterator.finalize()
        two.take_epochs_of_new(3)
        assert two.n_left("old") == N_OLD
