"""What the user sees when an example cannot be given, and that it goes on afterwards."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
import time
import warnings
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest
from PIL import UnidentifiedImageError

from overlapiter import OverlapIterator, Staging
from overlapiter.errors import ExampleError, PipelineError, WorkerDiedError
from tests.chainer import iterator_datasets
from tests.chainer.conftest import Maker
from tests.chainer.iterator_datasets import Culprit, DeclaredFiles, Gated, Pixels, indices_of
from tests.chainer.iterator_datasets import numbered_images as numbered
from tests.chainer.scripts import PROMPT_SECONDS, run_script, wait_until
from tests.conftest import make_images


def error_of_second(iterator: Any) -> BaseException:
    """Take three mini-batches of four, the second of which fails; return its error."""
    assert indices_of(next(iterator)) == [0, 1, 2, 3]
    with pytest.raises(Exception) as caught:  # noqa: PT011  # the caller looks at it
        next(iterator)
    assert (iterator.current_position, iterator.previous_epoch_detail) == (8, 0.25)
    assert indices_of(next(iterator)) == [8, 9, 10, 11]
    assert iterator.current_position == 12
    error = caught.value
    del caught
    return error


def test_an_exception_of_the_dataset_leaves_next_with_its_type_and_the_readers_traceback(
    make_ours: Maker,
) -> None:
    iterator = make_ours(Culprit(16, 6, "raises"), 4, shuffle=False)

    error = error_of_second(iterator)

    assert type(error) is KeyError
    assert error.args == ("no example 6",)
    cause = error.__cause__
    assert isinstance(cause, ExampleError)
    assert cause.index == 6
    assert 'in raises\n    raise KeyError(f"no example {i}")' in cause.worker_traceback
    assert cause.worker_traceback in str(cause)


def test_every_pass_over_a_bad_example_raises_again(make_ours: Maker) -> None:
    iterator = make_ours(Culprit(8, 6, "raises"), 4, shuffle=False)

    for _ in range(3):
        assert indices_of(next(iterator)) == [0, 1, 2, 3]
        with pytest.raises(KeyError):
            next(iterator)
    iterator.reset()
    assert indices_of(next(iterator)) == [0, 1, 2, 3]


def test_an_exception_that_cannot_be_pickled_is_told_by_an_example_error(make_ours: Maker) -> None:
    error = error_of_second(make_ours(Culprit(16, 5, "raises_unpicklable"), 4, shuffle=False))

    assert isinstance(error, ExampleError)
    assert error.index == 5
    assert "CustomError: code 5: deep inside" in str(error)


@pytest.mark.parametrize(
    ("deed", "reason"),
    [
        ("exits", "SystemExit: 3"),
        ("exits_with_words", "SystemExit: bad"),
        ("exits_in_a_thread_of_a_pool", "SystemExit: 3"),
        ("interrupts", "KeyboardInterrupt"),
        ("closes", "GeneratorExit"),
        ("stops", "StopIteration: 5"),
        ("raises_mute", "MuteError: <"),
    ],
)
def test_what_the_trainer_would_take_for_its_own_is_an_error_of_the_example(
    make_ours: Maker, deed: str, reason: str
) -> None:
    iterator = make_ours(Culprit(16, 5, deed), 4, shuffle=False)

    error = error_of_second(iterator)

    assert type(error) is ExampleError
    assert error.index == 5
    assert error.reason.removeprefix("tests.chainer.iterator_datasets.").startswith(reason)
    assert f"in {deed}\n" in error.worker_traceback
    assert iterator.stats().workers_replaced == 0


def test_a_thread_of_the_dataset_that_exits_ends_alone_as_in_any_program(make_ours: Maker) -> None:
    iterator = make_ours(Culprit(8, 5, "exits_in_a_thread"), 4, shuffle=False)

    assert [indices_of(next(iterator)) for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_an_exception_that_the_trainer_cannot_unpickle_is_told_by_an_example_error(
    make_ours: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    iterator = make_ours(Culprit(16, 5, "raises_custom"), 4, shuffle=False)
    monkeypatch.delattr(iterator_datasets, "HomeError")

    error = error_of_second(iterator)

    assert isinstance(error, ExampleError)
    assert "HomeError: far away" in error.reason


def test_an_example_that_cannot_be_pickled_is_named(make_ours: Maker) -> None:
    error = error_of_second(make_ours(Culprit(16, 5, "gives_unpicklable"), 4, shuffle=False))

    assert isinstance(error, TypeError)
    assert "cannot pickle '_thread.lock' object" in str(error)
    assert isinstance(error.__cause__, ExampleError)
    assert error.__cause__.index == 5


# They look for the files of a dataset that declares none by asking it for the example.
prefetchers_may_die = pytest.mark.filterwarnings("ignore:3 prefetchers died")


@prefetchers_may_die
@pytest.mark.parametrize(
    ("deed", "exit_code"),
    [("exits_hard", 7), ("exits_well", 0), ("crashes", -11), ("is_killed", -9)],
)
def test_an_example_that_kills_its_readers_is_named_after_three_deaths(
    make_ours: Maker, deed: str, exit_code: int
) -> None:
    iterator = make_ours(Culprit(16, 6, deed), 4, shuffle=False)

    error = error_of_second(iterator)

    assert isinstance(error, WorkerDiedError)
    assert (error.index, error.deaths, error.exit_code) == (6, 3, exit_code)
    cause = {-11: "a crash inside a C library", -9: "out-of-memory killer"}
    assert cause.get(exit_code, "it called os._exit") in str(error)
    replaced = iterator.stats().workers_replaced
    # Nobody knows the files of this dataset: prefetchers look for them, and may die as well.
    assert 3 <= replaced <= (6 if make_ours.kind == "staged" else 3)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


@prefetchers_may_die
def test_the_very_first_example_may_be_the_bad_one(make_ours: Maker) -> None:
    for deed, kind in (("raises", KeyError), ("exits_hard", WorkerDiedError)):
        iterator = make_ours(Culprit(8, 0, deed), 4, shuffle=False)
        with pytest.raises(kind):
            next(iterator)
        assert indices_of(next(iterator)) == [4, 5, 6, 7]


def test_readers_that_are_replaced_after_every_part_give_the_same_mini_batches(
    make_ours: Maker,
) -> None:
    iterator = make_ours(Pixels(16), 4, shuffle=False, maxtasksperchild=1)

    for _ in range(3):
        taken = [indices_of(next(iterator)) for _ in range(4)]
        assert taken == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]]
    assert iterator.stats().workers_replaced == 0  # none died


# --- files ------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_images(tmp_path / "source", 12)
    return tmp_path / "source"


def test_a_missing_file_is_named(make_ours: Maker, folder: Path, tmp_path: Path) -> None:
    (folder / "00005.jpg").unlink()
    staging = Staging(tmp_path / "fast", source=folder, keep_free=0)
    options = {"staging": staging} if make_ours.kind == "staged" else {}

    iterator = make_ours(numbered(folder, 12), 4, shuffle=False, **options)
    assert indices_of(next(iterator)) == [0, 1, 2, 3]
    with pytest.raises(FileNotFoundError) as caught:
        next(iterator)
    error = caught.value

    assert error.filename == str(folder / "00005.jpg")
    assert isinstance(error.__cause__, ExampleError)
    assert error.__cause__.index == 5
    if options:
        assert error.__cause__.paths == (str(folder / "00005.jpg"),)
    assert indices_of(next(iterator)) == [8, 9, 10, 11]


@pytest.mark.parametrize("left_bytes", [0, 300])
def test_a_truncated_file_is_named(
    make_ours: Maker, folder: Path, tmp_path: Path, left_bytes: int
) -> None:
    os.truncate(folder / "00005.jpg", left_bytes)
    staging = Staging(tmp_path / "fast", source=folder, keep_free=0)
    options = {"staging": staging} if make_ours.kind == "staged" else {}
    iterator = make_ours(numbered(folder, 12), 4, shuffle=False, **options)
    next(iterator)

    with pytest.raises(OSError) as caught:  # noqa: PT011  # what Pillow says is its own business
        next(iterator)

    assert isinstance(caught.value, UnidentifiedImageError) or left_bytes
    assert isinstance(caught.value.__cause__, ExampleError)
    assert caught.value.__cause__.index == 5
    assert indices_of(next(iterator)) == [8, 9, 10, 11]


def test_something_that_is_no_file_is_named(make_ours: Maker, folder: Path, tmp_path: Path) -> None:
    # Root may read any file, so it is a folder that cannot be read.
    (folder / "a folder").mkdir()
    names = ["00000.jpg", "00001.jpg", "a folder", "00003.jpg", "00004.jpg", "00005.jpg"]
    staging = Staging(tmp_path / "fast", source=folder, keep_free=0)
    options = {"staging": staging} if make_ours.kind == "staged" else {}
    iterator = make_ours(DeclaredFiles(folder, names), 2, shuffle=False, **options)
    next(iterator)

    with pytest.raises(IsADirectoryError, match="a folder"):
        next(iterator)

    assert indices_of(next(iterator)) == [4, 5]


# --- waiting ----------------------------------------------------------------------------------


def test_a_stuck_dataset_is_named_and_the_wait_can_be_taken_up_again(
    make_ours: Maker, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    iterator = make_ours(Gated(12, 5, gate), 4, shuffle=False)
    assert indices_of(next(iterator)) == [0, 1, 2, 3]
    iterator.dataset_timeout = 0.1
    texts: list[str] = []

    def is_told() -> bool:
        with pytest.raises(iterator.TimeoutWarning) as caught:
            next(iterator)
        assert iterator.current_position == 4
        texts.append(str(caught.value))
        return len(texts) >= 3 and "example 5" in texts[-1]

    with warnings.catch_warnings():
        warnings.simplefilter("error", iterator.TimeoutWarning)
        wait_until(is_told)  # until a reader has come to the example
    text = texts[-1]
    assert "Stalled dataset is detected" in text
    assert "file reader" in text
    assert str(gate) in text

    gate.touch()
    iterator.dataset_timeout = None
    assert indices_of(next(iterator)) == [4, 5, 6, 7]
    assert indices_of(next(iterator)) == [8, 9, 10, 11]


def test_the_warning_of_a_stuck_dataset_does_not_end_the_wait(
    make_ours: Maker, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    iterator = make_ours(Gated(8, 5, gate), 4, shuffle=False)
    next(iterator)
    iterator.dataset_timeout = 0.1
    heard = []

    def show(message: Any, *_: Any) -> None:
        heard.append(message)
        if len(heard) == 2:
            gate.touch()

    with warnings.catch_warnings():
        warnings.simplefilter("always", iterator.TimeoutWarning)
        warnings.showwarning = show
        assert indices_of(next(iterator)) == [4, 5, 6, 7]
    assert len(heard) >= 2


@pytest.mark.parametrize("index", [0, 5])
def test_finalize_and_reset_do_not_wait_for_a_stuck_reader(
    make_ours: Maker, tmp_path: Path, index: int
) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    options = {"staging": Staging(tmp_path / "fast", source=gate)}
    options = options if make_ours.kind == "staged" else {}
    iterator = make_ours(Gated(8, index, gate / "never"), 4, shuffle=False, **options)
    if index:
        next(iterator)
    iterator.dataset_timeout = 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("error", iterator.TimeoutWarning)
        with pytest.raises(iterator.TimeoutWarning):
            next(iterator)

    start = time.monotonic()
    iterator.reset()
    iterator.finalize()
    assert time.monotonic() - start < PROMPT_SECONDS


def test_a_signal_handler_may_finalize_amid_a_wait(make_ours: Maker, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.mkdir()
    options = {"staging": Staging(tmp_path / "fast", source=gate)}
    options = options if make_ours.kind == "staged" else {}
    iterator = make_ours(Gated(8, 0, gate / "never"), 4, shuffle=False, **options)
    before = signal.signal(signal.SIGALRM, lambda *_: iterator.finalize())
    signal.setitimer(signal.ITIMER_REAL, 0.5)
    try:
        with pytest.raises(PipelineError, match="has been finalized"):
            next(iterator)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_a_forked_child_of_the_trainer_goes_on_with_workers_of_its_own(make_ours: Maker) -> None:
    iterator = make_ours(Pixels(16), 4, shuffle=False)
    next(iterator)

    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if indices_of(next(iterator)) == [4, 5, 6, 7] else 2
        finally:
            iterator.finalize()
            del iterator
            gc.collect()
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

    assert indices_of(next(iterator)) == [4, 5, 6, 7]
    assert isinstance(iterator, OverlapIterator)


def test_a_fork_while_another_thread_starts_workers_leaves_a_child_that_can_do_so(
    make_ours: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, forked = threading.Event(), threading.Event()

    def start_slowly() -> None:
        with resource_tracker._resource_tracker._lock:  # as a start does
            begun.set()
            forked.wait(0.5)  # the fork is to wait, or comes now

    monkeypatch.setattr(resource_tracker, "ensure_running", start_slowly)
    thread = threading.Thread(target=make_ours, args=(Pixels(16), 4))
    thread.start()
    begun.wait()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(PROMPT_SECONDS))
            monkeypatch.undo()
            status = 0 if next(make_ours(Pixels(16), 4)) else 2
        finally:
            os._exit(status)
    forked.set()
    thread.join()

    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


HANDED = """
    import multiprocessing
    import overlapiter
    from tests.chainer.iterator_datasets import Pixels, indices_of

    def use(iterator, answers):
        answers.put([indices_of(next(iterator)) for _ in range(2)])
        assert iterator.stats().batches_taken == 2
        iterator.finalize()

    if __name__ == "__main__":
        for method in ("fork", "forkserver", "spawn"):
            context = multiprocessing.get_context(method)
            mine, others = (
                overlapiter.OverlapIterator(Pixels(8), 2, shuffle=False, n_processes=1)
                for _ in range(2)
            )
            next(others)
            answers = context.SimpleQueue()
            process = context.Process(target=use, args=(others, answers), daemon=True)
            process.start()
            print(indices_of(next(mine)), answers.get())
            process.join()
            print(process.exitcode, indices_of(next(others)))
            mine.finalize()
            others.finalize()
"""


def test_an_iterator_that_is_handed_to_a_process_has_workers_there(tmp_path: Path) -> None:
    ended = run_script(tmp_path, HANDED)

    assert ended.stdout == 3 * "[0, 1] [[2, 3], [4, 5]]\n0 [2, 3]\n"
    assert ended.stderr == ""
