"""What a run survives: odd datasets, damaged copies, interruptions at the worst moment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chainer.dataset import DatasetMixin

from overlapiter import OverlapIterator, Staging
from overlapiter.errors import ExampleError, OptionError, StagingWarning, WorkerDiedError
from tests.chainer.iterator_datasets import Pixels
from tests.support.interruptions import interrupted_at
from tests.support.staged import flip, staged_paths


class TwoFiles(DatasetMixin):
    """Reads two files for each example, undeclared."""

    def __init__(self, root: Path, size: int) -> None:
        self.root, self.size = str(root), size

    def __len__(self) -> int:
        return self.size

    def get_example(self, i: int) -> Any:
        texts = []
        for kind in "ab":
            with open(f"{self.root}/{kind}{i}") as file:
                texts.append(int(file.read()))
        return np.array(texts)


class Series(DatasetMixin):
    """Its one example takes a while before it reads each of 30 files, undeclared."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)

    def __len__(self) -> int:
        return 1

    def get_example(self, _: int) -> Any:
        with open(f"{self.root}-runs", "a") as runs:
            runs.write("1")
        total = 0
        for number in range(30):
            time.sleep(0.01)
            with open(f"{self.root}/{number}") as file:
                total += int(file.read())
        return np.array(total)


class Declared(DatasetMixin):
    """Reads one number from a declared file; a number is all that the file may hold."""

    def __init__(self, root: Path, size: int, odd_path: Any = None) -> None:
        self.root, self.size, self.odd_path = str(root), size, odd_path

    def __len__(self) -> int:
        return self.size

    def source_paths(self, i: int) -> list[Any]:
        if i == 5 and self.odd_path is not None:
            if self.odd_path == "exit":
                sys.exit(3)
            if self.odd_path == "kill":
                time.sleep(0.5)
                os.kill(os.getpid(), signal.SIGKILL)
            return [self.odd_path]
        return [f"{self.root}/a{i}"]

    def get_example(self, i: int) -> Any:
        with open(f"{self.root}/a{i}") as file:
            return np.array(int(file.read()))


#: How a forked child leaves ``dataset[i]``, and with which exit status.
WAYS: list[tuple[Any, int]] = [
    ("returns", 0),
    (SystemExit(), 0),
    (SystemExit(3), 3),
    (SystemExit("bye"), 1),
    (ValueError("odd"), 1),
]


class Forks(DatasetMixin):
    """Each example opens its file, undeclared, and forks; the children leave it in all ``WAYS``."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)

    def __len__(self) -> int:
        return 8

    def get_example(self, i: int) -> Any:
        how, _ = WAYS[i % len(WAYS)]
        pid = os.fork()
        if not pid:
            with open(f"{self.root}/a{i}") as file:
                i = int(file.read()) + 100
            if how == "returns":
                return np.array([i, i])
            raise how
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with open(f"{self.root}/a{i}") as file:
            return np.array([int(file.read()), status])


class Growing(DatasetMixin):
    """Arrays that grow with the index."""

    def __len__(self) -> int:
        return 64

    def get_example(self, i: int) -> Any:
        return np.full(1 + i * 50, i)


class DiesWhenPickled:
    """Ends the process that pickles it."""

    def __reduce__(self) -> Any:
        os._exit(7)


class Deadly(DatasetMixin):
    """Its example 2 ends the file reader, not in the dataset but when it is reported."""

    def __len__(self) -> int:
        return 8

    def get_example(self, i: int) -> Any:
        return DiesWhenPickled() if i == 2 else np.array(i)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    for i in range(8):
        for kind in "ab":
            (tmp_path / "source" / f"{kind}{i}").write_text("1")
    return tmp_path / "source"


def staging(source: Path) -> Staging:
    return Staging(source.parent / "staging", source=source, n_prefetchers=1, keep_free=0)


def values(iterator: OverlapIterator, n_batches: int) -> list[int]:
    return [int(x) for _ in range(n_batches) for example in next(iterator) for x in example.flat]


def test_an_undeclared_second_file_that_changed_between_runs_is_never_read_stale(source):
    dataset = TwoFiles(source, 8)
    for expected in ([1, 1], [1, 2]):
        (source / "b0").write_text(str(expected[1]))
        for i in range(8):
            (source / f"b{i}").write_text(str(expected[1]))
            os.utime(source / f"b{i}", ns=(0, expected[1] * 10**9))
        with OverlapIterator(
            dataset, 4, shuffle=False, n_processes=1, staging=staging(source)
        ) as iterator:
            assert values(iterator, 8) == expected * 32


def test_many_undeclared_files_of_an_example_are_staged_in_a_few_runs_of_the_dataset(source):
    for number in range(30):
        (source / str(number)).write_text("1")
    with OverlapIterator(
        Series(source), 1, repeat=False, n_processes=1, staging=staging(source)
    ) as iterator:
        assert values(iterator, 1) == [30]
        stats = iterator.stats()
    assert (stats.files_staged, stats.opens_source) == (30, 0)
    assert len(Path(f"{source}-runs").read_text()) < 10  # of which the file reader has one


@pytest.mark.parametrize("odd_path", ["exit", "below\0nul", b"bytes", "below/\udcff\ud800"])
def test_paths_that_no_file_can_have_are_read_unstaged(source, odd_path):
    if isinstance(odd_path, str) and odd_path.startswith("below"):
        odd_path = f"{source}/{odd_path}"
    dataset = Declared(source, 8, odd_path)
    with (
        # Of a path below the source that no file can have, it is for the dataset to tell.
        pytest.warns(RuntimeWarning) if odd_path == "exit" else contextlib.nullcontext(),
        OverlapIterator(
            dataset, 4, shuffle=False, n_processes=1, dataset_timeout=None, staging=staging(source)
        ) as iterator,
    ):
        assert values(iterator, 6) == [1] * 24


def test_an_example_that_kills_the_prefetcher_that_asks_for_its_paths_is_named(source):
    with OverlapIterator(
        Declared(source, 8, "kill"), 4, shuffle=False, n_processes=1, staging=staging(source)
    ) as iterator:
        with pytest.warns(StagingWarning, match="3 prefetchers died .* the files of example 5,"):
            assert values(iterator, 6) == [1] * 24
        assert iterator.stats().workers_replaced == 3


def test_a_damaged_copy_does_not_end_the_run(source):
    dataset = Declared(source, 8)
    with OverlapIterator(
        dataset, 4, shuffle=False, n_processes=1, staging=staging(source)
    ) as iterator:
        assert values(iterator, 4) == [1] * 16
        for extent in staged_paths(source.parent / "staging").values():
            flip(source.parent / "staging", extent)
        assert values(iterator, 8) == [1] * 32


def test_many_readers_and_growing_arrays_start_together():
    with OverlapIterator(Growing(), 8, shuffle=False, n_processes=24) as iterator:
        for _ in range(16):
            for example in next(iterator):
                assert (example == example[0]).all()


def test_an_example_that_ends_its_reader_when_it_is_reported_is_named():
    with OverlapIterator(Deadly(), 4, shuffle=False, n_processes=1) as iterator:
        with pytest.raises(WorkerDiedError):
            next(iterator)
        assert [int(x) for x in next(iterator)] == [4, 5, 6, 7]
        assert iterator.stats().workers_replaced <= 11


def test_a_slot_is_released_once_though_a_reset_is_interrupted(monkeypatch):
    with OverlapIterator(Growing(), 4, shuffle=False, n_processes=1, n_prefetch=3) as iterator:
        next(iterator)
        pipeline = iterator._pipeline
        while len(pipeline._ready) < 2:
            pipeline._receive(60.0)
        release, calls = pipeline._release_unseen, []

        def interrupted(message: Any) -> None:
            release(message)
            calls.append(message)
            if len(calls) == 1:
                raise KeyboardInterrupt

        monkeypatch.setattr(pipeline, "_release_unseen", interrupted)
        with pytest.raises(KeyboardInterrupt):
            iterator.reset()
        iterator.reset()
        slots = [message[3] for message in calls]
        assert len(set(slots)) == len(slots) >= 2
        assert [len(example) for example in next(iterator)] == [1, 51, 101, 151]


def test_an_interrupted_reset_delivers_no_old_mini_batch(monkeypatch):
    with OverlapIterator(Growing(), 4, shuffle=False, n_processes=1) as iterator:
        next(iterator)

        def interrupted() -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(iterator._pipeline, "reset", interrupted)
            with pytest.raises(KeyboardInterrupt):
                iterator.reset()
        assert [len(example) for example in next(iterator)] == [1, 51, 101, 151]
        assert iterator.current_position == 4


def test_a_snapshot_beyond_the_end_of_the_dataset_is_refused():
    saved = {"current_position": 70, "epoch": 0, "is_new_epoch": False, "previous_epoch_detail": 0}
    with OverlapIterator(Growing(), 4, shuffle=False, n_processes=1) as iterator:
        with pytest.raises(OptionError, match="70"):
            iterator.serialize(lambda key, _value: saved[key])
        assert [len(example) for example in next(iterator)] == [1, 51, 101, 151]


def test_the_counters_can_be_read_after_the_end():
    with OverlapIterator(Growing(), 4, shuffle=False, n_processes=1) as iterator:
        next(iterator)
    assert iterator.stats().examples_read >= 4


def test_a_program_without_standard_output_trains():
    program = (
        "import numpy, overlapiter\n"
        "it = overlapiter.OverlapIterator(numpy.arange(8), 4, n_processes=1)\n"
        "raise SystemExit(len(next(it)))\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", program]
    ended = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], check=False)
    assert ended.returncode == 4


class Stubborn:
    """Pickles, but does not unpickle."""

    def __reduce__(self):
        return int, ("no number",)


class GivesStubborn(Pixels):
    def get_example(self, i):
        return (np.zeros(1000), Stubborn()) if i == 5 else super().get_example(i)


def test_an_example_that_cannot_be_unpickled_costs_its_mini_batch_and_no_memory():
    with OverlapIterator(GivesStubborn(16), 4, shuffle=False, n_processes=1) as iterator:
        for _ in range(20):
            assert [i for _, i in next(iterator)] == [0, 1, 2, 3]
            with pytest.raises(ValueError, match="no number") as caught:
                next(iterator)
            assert isinstance(caught.value.__cause__, ExampleError)
            assert "4 to 7, cannot be unpickled" in str(caught.value.__cause__)
            assert [i for _, i in next(iterator)] == [8, 9, 10, 11]
            next(iterator)
        assert len(iterator._pipeline._slots.segments) == 1


@pytest.mark.parametrize("is_staged", [False, True])
def test_a_process_that_the_dataset_forks_ends_with_the_example_and_answers_nothing(
    tmp_path, is_staged
):
    source = tmp_path / "source"
    source.mkdir()
    for i in range(8):
        (source / f"a{i}").write_text(str(i))
    staging = Staging(tmp_path / "fast", source=source, keep_free=0) if is_staged else None
    dataset = Forks(source)
    with OverlapIterator(dataset, 4, shuffle=False, n_processes=2, staging=staging) as iterator:
        for number in range(6):
            batch = [example.tolist() for example in next(iterator)]
            indices = range(8)[4 * (number % 2) :][:4]
            assert batch == [[i, WAYS[i % len(WAYS)][1]] for i in indices]
        stats = iterator.stats()
    assert (stats.workers_replaced, stats.examples_skipped) == (0, 0)


def test_an_interruption_at_any_line_of_next_loses_and_doubles_no_mini_batch():
    _interrupt_at_each_line("chainer/iterator.py", "order.py")


@pytest.mark.slow
@pytest.mark.leaks_ok(reason="descriptors that come with a message are lost with it")
def test_an_interruption_at_any_line_of_the_pipeline_loses_and_doubles_none():
    _interrupt_at_each_line("overlapiter/pipeline.py")


def _interrupt_at_each_line(*files):
    n_lines = 0
    n_returns = 0
    with OverlapIterator(Growing(), 4, shuffle=False, n_processes=1) as iterator:
        while n_lines < 10_000:
            n_lines += 1
            before = iterator.current_position
            is_interrupted, batch = interrupted_at(n_lines, iterator, *files)
            if not is_interrupted:  # there is no such line any more
                break
            # It counts as taken just before the return, where no signal is handled.
            n_returns += iterator.current_position != before
            expected = iterator.current_position
            batch = next(iterator)
            assert int(batch[0].flat[0]) == expected
            assert iterator.current_position == (expected + 4) % len(Growing())
    assert 30 < n_lines < 10_000
    assert n_returns <= 2  # the test of the condition, and the return
