"""The engine below all faces: mini-batches in their order, staged, whatever dies meanwhile."""

from __future__ import annotations

import os
import signal
from multiprocessing import util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from overlapiter.errors import ExampleError, StagingWarning
from overlapiter.options import Staging
from overlapiter.order import seeded_order
from tests.chainer.iterator_datasets import (
    Augmented,
    Culprit,
    DeclaredFiles,
    FailsToDeclare,
    Pixels,
    Slow,
    SourceFiles,
)
from tests.chainer.scripts import (
    Program,
    are_gone,
    run_script,
    wait_for_workers,
    wait_until,
    workers,
)
from tests.support.engine import Engine
from tests.support.leases import held_back
from tests.support.staged import (
    assert_accounted,
    being_copied,
    blocks_on_disk,
    charged_bytes,
    data_on_disk,
    staged_paths,
    stopped_in_transaction,
)

N_FILES = 24
BATCH_SIZE = 4
N_BATCHES = N_FILES // BATCH_SIZE


def content(batch: Any) -> list[tuple[bytes, int]]:
    return [(values.tobytes(), int(index)) for values, index in batch]


@pytest.fixture
def names(tmp_path: Path) -> list[str]:
    """The names of files in the folder ``source``."""
    random = np.random.default_rng(0)
    names = [f"{n // 8}/{n}.bin" for n in range(N_FILES)]
    for name in names:
        path = tmp_path / "source" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(random.bytes(int(random.integers(1, 30_000))))
        os.utime(path, (10**9, 10**9))
    return names


@pytest.fixture
def files(tmp_path: Path, names: list[str]) -> DeclaredFiles:
    return DeclaredFiles(tmp_path / "source", names)


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    return Staging(tmp_path / "fast", source=tmp_path / "source", n_prefetchers=2, keep_free=0)


def expected(dataset: Any, indices: Any) -> list[tuple[bytes, int]]:
    return content([dataset[int(i)] for i in indices])


def test_mini_batches_come_in_ascending_order_across_epochs() -> None:
    dataset = Pixels(10)
    with Engine(dataset, 4) as engine:
        for n in range(0, 30, 4):
            assert content(next(engine)) == expected(dataset, [i % 10 for i in range(n, n + 4)])


def test_a_seed_gives_the_same_order_and_random_streams_with_any_number_of_readers() -> None:
    runs = []
    for n_readers in (1, 3):
        with Engine(Augmented(12), 4, n_readers=n_readers, seed=5) as engine:
            runs.append([content(next(engine)) for _ in range(6)])
    assert runs[0] == runs[1]
    orders = [index for epoch in (0, 1) for index in seeded_order(5, epoch, 12)]
    assert [index for batch in runs[0] for _, index in batch] == orders


@pytest.mark.parametrize("kind", [DeclaredFiles, SourceFiles])
def test_from_the_second_epoch_on_all_files_come_from_the_staging_directory(
    kind: Any, tmp_path: Path, names: list[str], staging: Staging
) -> None:
    dataset = kind(tmp_path / "source", names)
    with Engine(dataset, BATCH_SIZE, staging=staging, seed=1) as engine:
        for epoch in range(3):
            order = seeded_order(1, epoch, N_FILES)
            for n in range(N_BATCHES):
                part = order[n * BATCH_SIZE : (n + 1) * BATCH_SIZE]
                assert content(next(engine)) == expected(dataset, part)
        stats = engine.stats()
    assert stats.files_staged == N_FILES
    assert stats.opens_source == 0
    assert_accounted(tmp_path / "fast")


def test_a_directory_for_half_of_the_files_evicts_and_gives_the_right_bytes(
    files: DeclaredFiles, tmp_path: Path
) -> None:
    total_bytes = sum(path.stat().st_size for path in (tmp_path / "source").rglob("*.bin"))
    half = Staging(
        tmp_path / "fast",
        source=tmp_path / "source",
        capacity=total_bytes // 2,
        n_prefetchers=1,
        keep_free=0,
        look_ahead=2,
    )
    with Engine(files, 2, staging=half) as engine:
        for n in range(0, 3 * N_FILES, 2):
            start = n % N_FILES
            assert content(next(engine)) == expected(files, range(start, start + 2))
        assert engine.stats().files_evicted > 0
    assert 0 < data_on_disk(tmp_path / "fast") <= total_bytes // 2


def test_a_prefetcher_at_rest_keeps_nothing_that_it_could_not_give_back_at_first(
    files: DeclaredFiles, tmp_path: Path, names: list[str]
) -> None:
    fast, source = tmp_path / "fast", tmp_path / "source"
    staging = Staging(fast, source=source, n_prefetchers=1, keep_free=0, look_ahead=3)
    with Engine(files, BATCH_SIZE, staging=staging) as engine:
        with held_back(source / names[9]) as let_go:
            next(engine)  # the second and third mini-batch follow, and no other
            wait_until(lambda: len(staged_paths(fast)) == 11)
            with stopped_in_transaction(fast):
                reserved_bytes = blocks_on_disk(fast)
                let_go(source / names[9])
                wait_until(lambda: blocks_on_disk(fast) < reserved_bytes)  # it wants to rest
                assert len(being_copied(fast)) == 1
        wait_until(lambda: not being_copied(fast))
        assert charged_bytes(fast) < reserved_bytes
        assert_accounted(fast)


def test_a_dataset_that_cannot_say_what_it_reads_is_read_unstaged_with_one_warning(
    tmp_path: Path, names: list[str]
) -> None:
    source = tmp_path / "source"
    dataset = FailsToDeclare(source, names)
    staging = Staging(tmp_path / "fast", source=source, n_prefetchers=1, keep_free=0)
    with (
        Engine(dataset, BATCH_SIZE, staging=staging) as engine,
        pytest.warns(StagingWarning) as caught,
    ):
        examples = [each for _ in range(N_BATCHES) for each in content(next(engine))]
    assert examples == expected(dataset, range(N_FILES))
    (warning,) = caught
    assert "cannot be staged (KeyError" in str(warning.message)


@pytest.mark.parametrize("victim", ["ovl-reader", "ovl-prefetcher", "ovl-supervisor"])
def test_whoever_is_killed_the_mini_batches_stay_the_same(
    victim: str, files: DeclaredFiles, staging: Staging
) -> None:
    there = {"ovl-reader": 2, "ovl-prefetcher": 2, "ovl-supervisor": 1}
    with Engine(files, BATCH_SIZE, staging=staging) as engine:
        for n in range(3 * N_BATCHES):
            if n % N_BATCHES == 2:
                wait_for_workers(there)
                workers()[victim][0].send_signal(signal.SIGKILL)
            start = n % N_BATCHES * BATCH_SIZE
            assert content(next(engine)) == expected(files, range(start, start + BATCH_SIZE))


def test_no_worker_interrupts_those_who_compute(files: DeclaredFiles, staging: Staging) -> None:
    with Engine(files, BATCH_SIZE, staging=staging) as engine:
        next(engine)
        policies = {
            name: {os.sched_getscheduler(process.pid) for process in found}
            for name, found in workers().items()
        }
    own = os.sched_getscheduler(0)
    wanted = {os.SCHED_BATCH if own == os.SCHED_OTHER else own}
    assert policies == dict.fromkeys(("ovl-supervisor", "ovl-prefetcher", "ovl-reader"), wanted)


def test_what_the_dataset_raises_comes_out_and_the_next_mini_batch_follows() -> None:
    with Engine(Culprit(12, 5, "raises"), 4) as engine:
        next(engine)
        with pytest.raises(KeyError, match="no example 5") as caught:
            next(engine)
        assert isinstance(caught.value.__cause__, ExampleError)
        assert caught.value.__cause__.index == 5
        assert content(next(engine)) == expected(Pixels(12), range(8, 12))


def test_an_example_that_cannot_be_read_is_left_out_where_that_is_asked_for() -> None:
    with Engine(Culprit(12, 5, "raises"), 4, is_skipping=True) as engine:
        next(engine)
        batch = next(engine)
        assert content(batch) == expected(Pixels(12), [4, 6, 7])
        assert [error.index for error in batch.skipped] == [5]


class Undecodable(DeclaredFiles):
    """The file of one example is no image, say."""

    def get_example(self, i: int) -> tuple[Any, Any]:
        example = super().get_example(i)
        if i == 5:
            raise ValueError("no image")
        return example


def test_an_example_that_fails_by_its_source_as_well_has_lost_no_copy(
    tmp_path: Path, names: list[str], staging: Staging
) -> None:
    dataset = Undecodable(tmp_path / "source", names)
    with Engine(dataset, BATCH_SIZE, staging=staging, is_skipping=True) as engine:
        for _ in range(3 * N_BATCHES):
            next(engine)
        stats = engine.stats()
    assert stats.examples_skipped >= 3
    assert stats.copies_lost == 0


class Connected(Pixels):
    """Has a connection for each process; an example tells whether that is its own one."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._connect()
        util.register_after_fork(self, Connected._connect)

    def _connect(self) -> None:
        self._connected_pid = os.getpid()

    def get_example(self, i: int) -> Any:
        return np.bool_(self._connected_pid == os.getpid()), np.int32(i)


def test_a_dataset_that_asks_multiprocessing_for_it_opens_its_connections_in_each_worker() -> None:
    with Engine(Connected(40), 4) as engine:
        are_own = [bool(is_own) for _ in range(10) for is_own, _ in next(engine)]
    assert all(are_own)


def test_a_mini_batch_that_is_kept_is_never_overwritten() -> None:
    with Engine(Pixels(40), 4) as engine:
        kept = [next(engine) for _ in range(20)]
        indices = [int(index) for batch in kept for _, index in batch]
        assert indices == [i % 40 for i in range(80)]
        for n, batch in enumerate(kept):
            assert content(batch) == expected(Pixels(40), [i % 40 for i in range(4 * n, 4 * n + 4)])


def test_the_end_of_the_engine_ends_its_processes() -> None:
    with Engine(Slow(100), 4) as engine:
        next(engine)
        found = wait_for_workers({"ovl-reader": 2, "ovl-supervisor": 1})
    assert are_gone(found)


KILLED = """
from tests.chainer.iterator_datasets import Slow
from tests.support.engine import Engine

if __name__ == "__main__":
    engine = Engine(Slow(1000), 4)
    next(engine)
    print("ready", flush=True)
    while True:
        next(engine)
"""


def test_a_trainer_that_is_killed_takes_its_workers_along(tmp_path: Path) -> None:
    with Program(tmp_path, KILLED) as program:
        program.wait_for("ready")
        found = program.descendants()
        program.process.kill()
        assert are_gone(found)


MODULES = """
import sys
from tests.chainer.iterator_datasets import Pixels
from tests.support.engine import Engine

class Modules(Pixels):
    def get_example(self, i):
        return frozenset(sys.modules)

if __name__ == "__main__":
    frameworks = {"chainer", "chainermn", "cupy", "mpi4py.MPI", "torch"}
    with Engine(Modules(2), 1) as engine:
        for modules in (sys.modules, *next(engine)):
            print(sorted(frameworks & set(modules)))
"""


def test_neither_the_trainer_nor_its_workers_import_a_framework(tmp_path: Path) -> None:
    assert run_script(tmp_path, MODULES).stdout == "[]\n[]\n"


FORMATS = """
import os, sys
import PIL.Image
from overlapiter import Staging
from tests.chainer.iterator_datasets import Pixels
from tests.support.engine import Engine

class Formats(Pixels):
    def get_example(self, i):
        return "PIL.JpegImagePlugin" in sys.modules

if __name__ == "__main__":
    os.mkdir("slow")
    with Engine(Formats(1), 1, staging=Staging("fast", source="slow")) as engine:
        print(*next(engine))
"""


def test_a_reader_that_waits_for_its_first_files_has_pillow_import_its_formats(
    tmp_path: Path,
) -> None:
    assert run_script(tmp_path, FORMATS).stdout == "True\n"


SETTINGS = """
import os
from tests.chainer.iterator_datasets import Pixels
from tests.support.engine import Engine

class Settings(Pixels):
    def get_example(self, i):
        return os.environ["OPENBLAS_THREAD_TIMEOUT"], os.environ["GLIBC_TUNABLES"].split("=")[0]

if __name__ == "__main__":
    with Engine(Settings(1), 1) as engine:
        print(*next(engine)[0])
    assert "GLIBC_TUNABLES" not in os.environ or os.environ["GLIBC_TUNABLES"] == "of.the.user=1"
"""
OF_THE_USER = """
import os
os.environ.update({"OPENBLAS_THREAD_TIMEOUT": "26", "GLIBC_TUNABLES": "of.the.user=1"})
"""


@pytest.mark.parametrize(
    ("before", "settings"),
    [("", "4 glibc.cpu.x86_non_temporal_threshold"), (OF_THE_USER, "26 of.the.user")],
)
def test_libraries_have_our_settings_in_a_worker_unless_the_user_has_said_otherwise(
    tmp_path: Path, before: str, settings: str
) -> None:
    assert run_script(tmp_path, before + SETTINGS).stdout == f"{settings}\n"
