"""The source stalls: the wait is announced with what it is for, and goes on, or can be ended."""

from __future__ import annotations

import os
import re
import time
import warnings
from pathlib import Path
from threading import Timer

import psutil
import pytest

from tests.chainer.faults import Run, SourceFiles, content
from tests.chainer.scripts import PROMPT_SECONDS, wait_until
from tests.support.leases import held_back


def stalls(run: Run) -> str:
    """Have the next mini-batch stall, as an error; return what is said."""
    run.iterator.dataset_timeout = 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("error", run.iterator.TimeoutWarning)
        with pytest.raises(run.iterator.TimeoutWarning) as caught:
            next(run.iterator)
    run.iterator.dataset_timeout = None
    return str(caught.value)


def test_each_time_that_nothing_has_come_for_so_long_is_announced(
    source: SourceFiles,
) -> None:
    with held_back(source.folder / source.names[0]) as release, source.iterate(None) as run:
        run.iterator.dataset_timeout = 0.5
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("default")
            Timer(2.2, release, [source.folder / source.names[0]]).start()
            next(run.iterator)
    texts = [str(each.message) for each in said]
    assert len(texts) >= 3
    assert len({*texts}) == len(texts)  # one that had been said before would not be shown
    assert said[0].filename == __file__
    assert "no mini-batch for 0.5 seconds." in texts[0]
    assert re.search(r"for 0\.5 seconds, \d in all\.", texts[1])


def stalls_at(run: Run, index: int) -> str:
    """Return what is said once a worker has come to the example that stalls."""
    heard: list[str] = []
    wait_until(lambda: heard.append(stalls(run)) or f"at example {index} " in heard[-1])
    return heard[-1]


def assert_named(text: str, directory: Path | None, index: int, path: Path) -> None:
    stage = "file reader" if directory is None else "prefetcher"
    assert f"{stage} " in text
    assert f"at example {index} ({path})" in text


def test_no_file_is_blamed_where_the_supervisor_is_waited_for(source: SourceFiles) -> None:
    with held_back(source.folder / source.names[0]), source.iterate(None) as run:
        stalls_at(run, 0)  # all run
        children = psutil.Process().children(recursive=True)
        supervisor = next(child for child in children if child.name() == "ovl-supervisor")
        supervisor.suspend()
        text = stalls(run)
        supervisor.resume()
    assert "It waits for the supervisor. See whether this node is too busy, or raise" in text


def test_a_store_that_stalls_again_and_again_is_announced_and_everything_comes_in_order(
    source: SourceFiles, directory: Path | None
) -> None:
    paths = [source.folder / name for name in source.names]
    with (
        held_back(paths[1], paths[7], paths[10]) as release,
        source.iterate(directory) as run,
    ):
        for before, index in ((None, 1), (1, 7), (7, 10)):
            if before is not None:
                release(paths[before])
                run.take()
            assert_named(stalls_at(run, index), directory, index, paths[index])
            for _ in range(2):
                assert_named(stalls(run), directory, index, paths[index])
        release(paths[10])
        run.take(5)
        assert run.warnings == []


def test_the_wait_for_a_stalled_store_goes_on_after_the_warning(
    source: SourceFiles, directory: Path | None
) -> None:
    path = source.folder / source.names[2]
    named: list[str] = []
    with (
        held_back(path) as release,
        source.iterate(directory, dataset_timeout=0.1) as run,
    ):

        def show(message: Warning | str, *_: object) -> None:
            if "at example 2 " in str(message):
                named.append(str(message))
            if len(named) == 1:
                release(path)

        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = show
            assert content(next(run.iterator)) == run.expected
        run.n_taken += 1
        run.iterator.dataset_timeout = None
        run.take(3)
    assert_named(named[0], directory, 2, path)


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
        assert time.monotonic() - start < PROMPT_SECONDS


def test_a_fifo_in_the_place_of_a_file_is_announced_and_ends_with_the_iterator(
    source: SourceFiles, directory: Path | None
) -> None:
    path = source.folder / source.names[6]
    path.unlink()
    os.mkfifo(path)
    with source.iterate(directory) as run:
        run.take()
        # A prefetcher does not wait for it; a file reader does, since the dataset opens it.
        assert_named(stalls_at(run, 6), None, 6, path)
        start = time.monotonic()
        run.iterator.finalize()
        assert time.monotonic() - start < PROMPT_SECONDS
