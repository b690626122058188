"""Reads in flight of a real iterator on a store whose latency is emulated."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.slow.store import SlowStore, attach
from overlapiter import OverlapIterator, Staging
from tests.chainer.iterator_datasets import DeclaredFiles, SourceFiles
from tests.chainer.scripts import wait_until, workers

N_FILES = 2000
BATCH_SIZE = 16


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of small files, each a link to one of them."""
    folder = tmp_path_factory.mktemp("many")
    (folder / "0").write_bytes(b"0123456789")
    os.utime(folder / "0", (10**9, 10**9))
    for number in range(1, N_FILES):
        os.link(folder / "0", folder / str(number))
    return folder


def iterate(
    folder: Path,
    fast: Path,
    store: SlowStore,
    kind: type[SourceFiles] = DeclaredFiles,
    **options: Any,
) -> OverlapIterator:
    staging = Staging(fast, source=folder, keep_free=0, look_ahead=64, **options)
    dataset = attach(kind(folder, [str(i) for i in range(N_FILES)]), store)
    return OverlapIterator(dataset, BATCH_SIZE, shuffle=False, n_processes=1, staging=staging)


@pytest.fixture
def slow(many: Path) -> Iterator[SlowStore]:
    # So slow that it is what limits the reads, also where cores are slow and busy.
    with SlowStore(many, open_seconds=0.3, bytes_per_second=1e12) as store:
        yield store


def test_a_trainer_that_waits_for_the_store_gets_more_reads_in_flight(many, tmp_path, slow):
    with iterate(many, tmp_path / "fast", slow, n_prefetchers=2) as iterator:
        wait_until(lambda: iterator.stats().reads_in_flight == 64)

        def take_some() -> bool:
            for _ in range(4):
                for values, _ in next(iterator):
                    assert bytes(values) == b"0123456789"
            return iterator.stats().reads_in_flight > 64

        wait_until(take_some)
        stats = iterator.stats()
        assert stats.reads_in_flight <= 256
        # The two are not counted at the same moment.
        assert stats.read_seconds / stats.files_staged >= 0.28


def test_a_number_that_is_given_is_kept(many, tmp_path, slow):
    slow.open_seconds = 0.02
    staging = {"n_prefetchers": 2, "reads_in_flight": 20}
    with iterate(many, tmp_path / "fast", slow, **staging) as iterator:
        for _ in range(40):
            next(iterator)
            assert iterator.stats().reads_in_flight in (0, 10, 20)  # as they start, one by one
        wait_until(lambda: iterator.stats().reads_in_flight == 20)


N_CORES = len(os.sched_getaffinity(0))


def test_prefetchers_beyond_the_cores_start_where_the_datasets_code_is_asked(many, tmp_path, slow):
    slow.open_seconds = 0.005
    n_prefetchers = N_CORES + 3

    def n_processes() -> int:
        return len(workers().get("ovl-prefetcher", []))

    with iterate(many, tmp_path / "one", slow, n_prefetchers=n_prefetchers) as iterator:
        for _ in range(40):
            next(iterator)
        assert n_processes() == N_CORES
        assert iterator.stats().opens_source == 0
    given = {"n_prefetchers": n_prefetchers, "reads_in_flight": 32}
    with iterate(many, tmp_path / "two", slow, **given) as iterator:
        next(iterator)
        wait_until(lambda: n_processes() == n_prefetchers)
    undeclared = {"kind": SourceFiles, "n_prefetchers": n_prefetchers}
    with iterate(many, tmp_path / "three", slow, **undeclared) as iterator:
        next(iterator)
        wait_until(lambda: n_processes() == n_prefetchers)
