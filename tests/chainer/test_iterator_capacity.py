"""A capacity that was lowered: the directory shrinks to it, though all that is wanted is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from overlapiter import OverlapIterator, Staging
from overlapiter.errors import StagingWarning
from tests.chainer.cache_datasets import FILE_BYTES, names_of, write_files
from tests.chainer.iterator_datasets import DeclaredFiles
from tests.support.staged import blocks_on_disk, charged_bytes

N_FILES = 160
BATCH_SIZE = 4
CAPACITY_BYTES = N_FILES // 2 * FILE_BYTES


def take_epoch(iterator: OverlapIterator) -> int:
    """Take an epoch; return how many files were read from the source for it."""
    before = iterator.stats()
    for _ in range(N_FILES // BATCH_SIZE):
        for values, index in next(iterator):
            assert values.tobytes() == iterator.dataset.get_example(int(index))[0].tobytes()
    after = iterator.stats()
    assert after.opens_source == before.opens_source
    return after.files_staged - before.files_staged


def test_a_directory_shrinks_to_a_capacity_that_was_lowered(tmp_path: Path) -> None:
    write_files(tmp_path / "source", N_FILES)
    dataset, fast = DeclaredFiles(tmp_path / "source", names_of(N_FILES)), tmp_path / "fast"
    options = {"n_processes": 2, "dataset_timeout": None, "seed": 3}
    staging = Staging(fast, source=dataset.folder, keep_free=0)
    with OverlapIterator(dataset, BATCH_SIZE, staging=staging, **options) as iterator:
        assert take_epoch(iterator) >= N_FILES
    assert charged_bytes(fast) == blocks_on_disk(fast) == N_FILES * FILE_BYTES
    staging = Staging(fast, source=dataset.folder, keep_free=0, capacity=CAPACITY_BYTES)
    with OverlapIterator(dataset, BATCH_SIZE, staging=staging, **options) as iterator:
        with pytest.warns(StagingWarning, match=f"more than the capacity of {CAPACITY_BYTES:,}"):
            n_missed = take_epoch(iterator)
        assert n_missed <= 0.25 * N_FILES
        assert charged_bytes(fast) <= 1.2 * CAPACITY_BYTES
        take_epoch(iterator)
        assert charged_bytes(fast) <= CAPACITY_BYTES
