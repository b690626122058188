"""Waiting, processes, and use by Chainer, checked against Chainer's own iterators."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import chainer
import numpy as np
import psutil
import pytest
from chainer import training
from chainer.training import extensions

from overlapiter import Staging
from tests.chainer.conftest import Maker
from tests.chainer.iterator_datasets import Gated, Pixels, indices_of
from tests.chainer.scripts import PROMPT_SECONDS, run_script, wait_for_workers


def progress_of(iterator: Any) -> tuple[Any, ...]:
    names = ("current_position", "epoch", "is_new_epoch", "epoch_detail", "previous_epoch_detail")
    return tuple(getattr(iterator, name) for name in names)


def taken(iterator: Any, n_batches: int) -> list[list[int]]:
    return [indices_of(next(iterator)) for _ in range(n_batches)]


def descending(order: Any, _: int) -> Any:
    return np.arange(len(order))[::-1]


def gated(make: Maker, folder: Path, n: int, index: int, **options: Any) -> tuple[Any, Path]:
    """Return an iterator with an example that waits for a file, and the file."""
    source = folder / "source"
    source.mkdir()
    if make.kind == "staged":
        options["staging"] = Staging(folder / "fast", source=source, keep_free=0)
    gate = source / "gate"
    return make(Gated(n, index, gate), 2, shuffle=False, **options), gate


def assert_finalized(iterator: Any) -> None:
    with pytest.raises(NotImplementedError, match="Reset of finalized"):
        iterator.reset()


# --- waiting ----------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [0, 1, 2])
def test_a_stalled_example_is_warned_of_and_no_example_is_lost(
    make_parallel: Maker, tmp_path: Path, index: int
) -> None:
    iterator, gate = gated(make_parallel, tmp_path, 5, index, repeat=False, dataset_timeout=0.1)
    heard = []

    def show(message: Any, *_: Any) -> None:
        heard.append(message)
        gate.touch()

    with warnings.catch_warnings():
        warnings.simplefilter("always", iterator.TimeoutWarning)
        warnings.showwarning = show
        assert [indices_of(batch) for batch in iterator] == [[0, 1], [2, 3], [4]]

    assert {type(message) for message in heard} == {iterator.TimeoutWarning}
    assert all(str(message).startswith("Stalled dataset is detected") for message in heard)


@pytest.mark.parametrize("index", [0, 3])
def test_the_warning_as_an_error_leaves_next_again_and_again_and_no_mini_batch_is_lost(
    make_parallel: Maker, tmp_path: Path, index: int
) -> None:
    iterator, gate = gated(make_parallel, tmp_path, 6, index, dataset_timeout=0.1)
    batches: list[list[int]] = []
    n_errors = 0

    with warnings.catch_warnings():
        warnings.simplefilter("error", iterator.TimeoutWarning)
        while len(batches) < 4:
            before = progress_of(iterator)
            try:
                batches += taken(iterator, 1)
            except iterator.TimeoutWarning:
                n_errors += 1
                assert progress_of(iterator) == before
                if n_errors == 4:
                    gate.touch()

    assert batches == [[0, 1], [2, 3], [4, 5], [0, 1]]
    assert n_errors >= 4


def test_without_a_timeout_nothing_is_warned_of(make_parallel: Maker, tmp_path: Path) -> None:
    iterator, gate = gated(make_parallel, tmp_path, 4, 0, dataset_timeout=None)
    opener = threading.Timer(0.3, gate.touch)
    opener.start()

    assert taken(iterator, 2) == [[0, 1], [2, 3]]  # a warning would be an error
    opener.join()


# --- processes and threads --------------------------------------------------------------------


def test_a_reset_keeps_the_worker_processes(make_parallel: Maker) -> None:
    def pids() -> set[int]:
        return {process.pid for process in psutil.Process().children(recursive=True)}

    iterator = make_parallel(Pixels(8), 2, shuffle=False)
    kept = next(iterator)
    if make_parallel.kind != "multiprocess":
        n_expected = {"ovl-supervisor": 1, "ovl-reader": 2}
        if make_parallel.kind == "staged":
            n_expected["ovl-prefetcher"] = 1
        wait_for_workers(n_expected)
    before = pids()
    for _ in range(3):
        iterator.reset()
        assert taken(iterator, 3) == [[0, 1], [2, 3], [4, 5]]

    assert pids() == before
    np.testing.assert_equal(kept, [Pixels(8)[0], Pixels(8)[1]])


def test_one_thread_may_make_an_iterator_another_use_it_and_another_finalize_it(
    make_parallel: Maker,
) -> None:
    made = []
    maker = threading.Thread(
        target=lambda: made.append(make_parallel(np.ones((100, 1000)), 10, n_processes=4))
    )
    maker.start()
    maker.join()
    for _ in range(12):
        assert len(next(made[0])) == 10

    ender = threading.Thread(target=made[0].finalize)
    ender.start()
    ender.join(PROMPT_SECONDS)

    assert not ender.is_alive()
    assert_finalized(made[0])


DAEMON = """
    import multiprocessing
    import overlapiter
    from tests.chainer.iterator_datasets import Pixels, indices_of

    def train(connection):
        with overlapiter.OverlapIterator(Pixels(8), 4, shuffle=False, n_processes=2) as it:
            connection.send([indices_of(next(it)) for _ in range(2)])

    if __name__ == "__main__":
        for method in ("fork", "used", "fork", "forkserver"):
            if method == "used":
                overlapiter.OverlapIterator(Pixels(8), 4, n_processes=1).finalize()
                continue
            context = multiprocessing.get_context(method)
            ours, theirs = context.Pipe()
            process = context.Process(target=train, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            print(ours.recv())
            process.join()
            print(process.exitcode)
"""


def test_a_daemonic_process_may_use_an_iterator(tmp_path: Path) -> None:
    ended = run_script(tmp_path, DAEMON)

    assert (ended.stdout, ended.stderr) == (3 * "[[0, 1, 2, 3], [4, 5, 6, 7]]\n0\n", "")


def test_to_collect_an_iterator_is_to_finalize_it(make_parallel: Maker) -> None:
    iterator = make_parallel(Pixels(4), 2)
    next(iterator)

    iterator.__del__()
    iterator.finalize()

    assert_finalized(iterator)


# --- in Chainer -------------------------------------------------------------------------------


def test_the_evaluator_resets_what_it_was_given_and_copies_nothing(make: Maker) -> None:
    iterator = make(Pixels(5), 2, repeat=False, shuffle=False)
    seen: list[list[int]] = []

    def look(_values: Any, indices: Any) -> None:
        seen.append(list(indices))

    evaluator = extensions.Evaluator(iterator, chainer.Chain(), eval_func=look)

    for _ in range(2):
        evaluator()
        assert iterator.is_new_epoch  # it is the very iterator that was used

    assert seen == [[0, 1], [2, 3], [4]] * 2
    evaluator.finalize()
    if make.kind != "serial":
        assert_finalized(iterator)


def test_the_updater_tells_what_its_iterator_tells_and_finalizes_it(make: Maker) -> None:
    iterator = make(Pixels(5), 2, shuffle=False)
    updater = training.StandardUpdater(iterator, SimpleNamespace(target=None), loss_func=None)
    updater.update_core = lambda: next(updater.get_iterator("main"))

    told = []
    for _ in range(3):
        updater.update()
        told.append((updater.epoch, updater.is_new_epoch, updater.epoch_detail))
        assert updater.previous_epoch_detail == iterator.previous_epoch_detail

    assert told == [(0, False, 0.4), (0, False, 0.8), (1, True, 1.2)]
    updater.finalize()
    if make.kind != "serial":
        assert_finalized(iterator)


def test_chainermns_multi_node_iterator_hands_on_what_it_wraps(make: Maker) -> None:
    from chainermn.iterators import multi_node_iterator

    told = []
    communicator = SimpleNamespace(rank=0, bcast=lambda data, root: told.append((data, root)))
    iterator = make(Pixels(4), 2, repeat=False, order_sampler=descending)

    wrapped = multi_node_iterator._MultiNodeIteratorMaster(iterator, communicator, 0)

    assert [list(map(float, data)) for data, _ in told] == [[4], [3, 2, 1, 0]]
    assert [indices_of(batch) for batch in wrapped] == [[3, 2], [1, 0]]
    assert (wrapped.epoch, wrapped.is_new_epoch, wrapped.epoch_detail) == (1, True, 1.0)
