"""The source stalls: the wait is announced with what it is for, and goes on, or can be ended."""

from __future__ import annotations

import os
import threading
import time
import warnings
from pathlib import Path

import pytest

from tests.chainer.faults import Run, SourceFiles, held_back
from tests.chainer.scripts import wait_until, workers


def stalls(run: Run, seconds: float = 0.1) -> str:
    """Have the next mini-batch stall, as an error; return what is said."""
    run.iterator.dataset_timeout = seconds
    with warnings.catch_warnings():
        warnings.simplefilter("error", run.iterator.TimeoutWarning)
        with pytest.raises(run.iterator.TimeoutWarning) as caught:
            next(run.iterator)
    run.iterator.dataset_timeout = None
    return str(caught.value)


def assert_named(text: str, directory: Path | None, index: int, path: Path) -> None:
    stage = "file reader" if directory is None else "prefetcher"
    assert f"{stage} " in text
    assert f"at example {index} ({path})" in text


def test_a_store_that_stalls_again_and_again_is_announced_and_everything_comes_in_order(
    source: SourceFiles, directory: Path | None
) -> None:
    paths = [source.folder / name for name in source.names]
    with (
        held_back(paths[1], paths[7], paths[10]) as release,
        source.iterate(directory) as run,
    ):
        wait_until(lambda: workers().get("ovl-reader"))
        assert_named(stalls(run, 1.0), directory, 1, paths[1])
        assert_named(stalls(run), directory, 1, paths[1])
        for index in (7, 10):
            release(paths[1 if index == 7 else 7])
            run.take()
            for _ in range(3):
                assert_named(stalls(run), directory, index, paths[index])
        release(paths[10])
        run.take(5)
        assert run.warnings == []


def test_the_wait_for_a_stalled_store_goes_on_after_the_warning(
    source: SourceFiles, directory: Path | None
) -> None:
    path = source.folder / source.names[2]
    with (
        held_back(path) as release,
        source.iterate(directory, dataset_timeout=0.7) as run,
    ):
        wait_until(lambda: workers().get("ovl-reader"))
        timer = threading.Timer(1.5, release, [path])
        timer.start()
        run.take(4)
        timer.join()
    assert run.warnings
    assert_named(run.warnings[-1], directory, 2, path)


def test_reset_and_finalize_do_not_wait_for_a_stalled_store(
    source: SourceFiles, directory: Path | None
) -> None:
    path = source.folder / source.names[5]
    with held_back(path), source.iterate(directory) as run:
        run.take()
        stalls(run)
        start = time.monotonic()
        run.iterator.reset()
        run.n_taken = 0
        run.take()
        stalls(run)
        run.iterator.finalize()
        assert time.monotonic() - start < 2


def test_a_fifo_in_the_place_of_a_file_is_announced_and_ends_with_the_iterator(
    source: SourceFiles, directory: Path | None
) -> None:
    path = source.folder / source.names[6]
    path.unlink()
    os.mkfifo(path)
    with source.iterate(directory) as run:
        run.take()
        assert_named(stalls(run), directory, 6, path)
        start = time.monotonic()
        run.iterator.finalize()
        assert time.monotonic() - start < 2
