"""Several processes of a node, each with an order of its own, share one staging directory."""

from __future__ import annotations

import multiprocessing
import warnings
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from bench.slow.store import SlowStore, attach
from overlapiter import OverlapIterator, Staging
from overlapiter.errors import StagingWarning
from overlapiter.order import seeded_order
from tests.chainer.cache_datasets import FILE_BYTES, names_of, write_files
from tests.chainer.iterator_datasets import DeclaredFiles
from tests.store.disks import mounted_tmpfs

N_FILES = 240
N_RANKS = 4
BATCH_SIZE = 4


def read_epochs(
    dataset: DeclaredFiles, staging: Staging, seed: int, n_epochs: int, answer: Connection
) -> None:
    """Read some epochs, compare every byte, and answer with the counters of each epoch."""
    warnings.simplefilter("error", StagingWarning)
    counted = []
    with OverlapIterator(
        dataset, BATCH_SIZE, n_processes=1, seed=seed, staging=staging, dataset_timeout=None
    ) as iterator:
        for epoch in range(n_epochs):
            seen = []
            for _ in range(N_FILES // BATCH_SIZE):
                for values, index in next(iterator):
                    # Their likes elsewhere: the opens of the source are counted.
                    alike = Path(f"{dataset.folder}-again", dataset.names[int(index)])
                    assert values.tobytes() == alike.read_bytes()
                    seen.append(int(index))
            assert seen == seeded_order(seed, epoch, N_FILES).tolist()
            stats = iterator.stats()
            counted.append((stats.files_staged, stats.opens_source))
    answer.send(counted)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name in ("source", "source-again"):
        write_files(tmp_path / name, N_FILES)
    return tmp_path / "source"


def run_ranks(dataset: DeclaredFiles, staging: Staging, n_epochs: int) -> list[Any]:
    """Have all ranks read at the same time; return what each has counted."""
    context = multiprocessing.get_context("forkserver")
    ranks = []
    for seed in range(N_RANKS):
        ours, theirs = context.Pipe(duplex=False)
        arguments = (dataset, staging, seed, n_epochs, theirs)
        rank = context.Process(target=read_epochs, args=arguments)
        rank.start()
        theirs.close()
        ranks.append((rank, ours))
    counted = []
    for rank, ours in ranks:
        try:
            counted.append(ours.recv())
        except EOFError:  # it has failed, and says why on the screen
            counted.append(None)
        rank.join()
        assert rank.exitcode == 0
        rank.close()
        ours.close()
    return counted


def test_each_file_crosses_the_slow_store_once_for_all_processes_of_a_node(
    source: Path, tmp_path: Path
) -> None:
    names = names_of(N_FILES)
    with SlowStore(source, 0.002, 10**8) as store:
        dataset = attach(DeclaredFiles(source, names), store)
        staging = Staging(tmp_path / "fast", source=source, keep_free=0)
        run_ranks(dataset, staging, n_epochs=1)
        opened = store.opens_by_path()
    assert opened == dict.fromkeys(names, 1)


@pytest.mark.parametrize("share", [0.5])
def test_with_room_for_half_each_process_misses_half_and_the_disk_is_never_too_full(
    source: Path, tmp_path: Path, share: float
) -> None:
    dataset = DeclaredFiles(source, names_of(N_FILES))
    capacity = int(share * N_FILES) * FILE_BYTES
    # Hardly larger than the capacity: a byte too many would be an error of the disk, and told.
    with mounted_tmpfs(tmp_path / "disk", capacity + (1 << 20)) as disk:
        staging = Staging(disk / "fast", source=source, capacity=capacity, keep_free=0)
        counted = run_ranks(dataset, staging, n_epochs=3)
    for rank in counted:
        (before, _), *_, (after, from_source) = rank
        assert after - before <= (1 - share + 0.1) * 2 * N_FILES
        assert from_source <= 0.1 * 3 * N_FILES
