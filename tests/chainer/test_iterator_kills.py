"""Workers that are killed: the mini-batches stay what they were, byte for byte."""

from __future__ import annotations

import contextlib
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from overlapiter import OverlapIterator, Staging
from overlapiter.errors import PipelineError
from tests.chainer.iterator_datasets import (
    DiesWhenUnpickled,
    Gated,
    Slow,
    indices_of,
    numbered_images,
)
from tests.chainer.scripts import (
    PROMPT_SECONDS,
    kill_all,
    wait_for_workers,
    wait_until,
    workers,
)
from tests.conftest import make_images

N_IMAGES = 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_images(tmp_path / "source", N_IMAGES)
    return tmp_path / "source"


@pytest.fixture(params=[False, True], ids=["overlap", "staged"])
def iterator(
    request: pytest.FixtureRequest, folder: Path, tmp_path: Path
) -> Iterator[OverlapIterator]:
    """An iterator over images with three readers, and two prefetchers where it is staged."""
    staging = Staging(tmp_path / "fast", source=folder, n_prefetchers=2, keep_free=0)
    with OverlapIterator(
        numbered_images(folder, N_IMAGES),
        8,
        n_processes=3,
        seed=7,
        n_prefetch=2,
        staging=staging if request.param else None,
    ) as iterator:
        yield iterator


def content(batch: list[Any]) -> list[tuple[bytes, bytes]]:
    return [(pixels.tobytes(), label.tobytes()) for pixels, label in batch]


def undisturbed(folder: Path, n_batches: int) -> list[Any]:
    with OverlapIterator(numbered_images(folder, N_IMAGES), 8, n_processes=1, seed=7) as iterator:
        return [content(next(iterator)) for _ in range(n_batches)]


def kill_one(name: str, signal_number: int, random_numbers: random.Random) -> bool:
    """Kill one of our processes of this name; return whether there was one.

    A supervisor that was killed is missed, with its workers, when the trainer has taken all
    mini-batches that were ready.
    """
    victims = workers().get(name)
    if not victims:
        return False
    with contextlib.suppress(psutil.NoSuchProcess):
        random_numbers.choice(victims).send_signal(signal_number)
    return True


def wait_and_kill(name: str) -> None:
    """Kill one of our processes of this name as soon as there is one."""
    wait_until(lambda: kill_one(name, signal.SIGKILL, random.Random(0)))


@pytest.mark.parametrize("name", ["ovl-reader", "ovl-prefetcher", "ovl-supervisor"])
def test_a_worker_that_is_killed_now_and_then_changes_no_mini_batch(
    iterator: OverlapIterator, folder: Path, name: str
) -> None:
    if name == "ovl-prefetcher" and iterator.staging is None:
        pytest.skip("there are none")
    expected = undisturbed(folder, 26)
    numbers = random.Random(1)

    n_killed = 0
    for step in range(26):
        if step % 4 == 1 and step < 18:
            signal_number = (signal.SIGKILL, signal.SIGSEGV)[n_killed % 2]
            n_killed += kill_one(name, signal_number, numbers)
        assert content(next(iterator)) == expected[step]
    assert n_killed >= 2
    wait_until(lambda: len(workers().get("ovl-reader", [])) == 3)


def test_workers_that_are_killed_before_the_first_mini_batch_change_nothing(
    iterator: OverlapIterator, folder: Path
) -> None:
    expected = undisturbed(folder, 3)
    for name in ("ovl-reader", "ovl-supervisor"):
        iterator.reset()
        wait_and_kill(name)
        assert [content(next(iterator)) for _ in range(3)] == expected


def test_all_workers_at_once_may_be_killed(iterator: OverlapIterator, folder: Path) -> None:
    expected = undisturbed(folder, 23)
    n_workers = {"ovl-supervisor": 1, "ovl-reader": 3}
    if iterator.staging is not None:
        n_workers["ovl-prefetcher"] = 2
    kept = [next(iterator) for _ in range(3)]

    for step in (3, 13):  # more than can be ready in the trainer
        kill_all(wait_for_workers(n_workers))
        kept += [next(iterator) for _ in range(step, step + 10)]

    assert [content(batch) for batch in kept] == expected
    wait_for_workers(n_workers)


def test_mini_batches_that_are_kept_outlive_the_supervisor(
    iterator: OverlapIterator, folder: Path
) -> None:
    expected = undisturbed(folder, 8)
    kept = [next(iterator) for _ in range(4)]
    wait_and_kill("ovl-supervisor")

    kept += [next(iterator) for _ in range(4)]

    assert [content(batch) for batch in kept] == expected


@pytest.mark.parametrize("is_removed", [False, True])
def test_the_supervisor_stands_where_the_iterator_was_made_though_another_one_was_killed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_removed: bool
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    root = folder if is_removed else Path("../source")
    with OverlapIterator(numbered_images(root, N_IMAGES), 8, shuffle=False) as iterator:
        next(iterator)
        if is_removed:
            place.rmdir()
        else:
            monkeypatch.chdir("/")
        kill_all(workers()["ovl-supervisor"])
        for number in range(1, 10):
            first = number * 8 % N_IMAGES
            assert indices_of(next(iterator)) == list(range(first, first + 8))


def test_a_reset_after_a_kill_starts_from_the_beginning(
    iterator: OverlapIterator, folder: Path
) -> None:
    expected = undisturbed(folder, 5)
    for name in ("ovl-reader", "ovl-supervisor"):
        next(iterator)
        wait_and_kill(name)
        iterator.reset()
        assert [content(next(iterator)) for _ in range(5)] == expected


def test_finalize_after_a_kill_is_quiet() -> None:
    for name in ("ovl-reader", "ovl-supervisor"):
        iterator = OverlapIterator(Slow(20), 4, n_processes=2)
        next(iterator)
        wait_and_kill(name)
        iterator.finalize()
        wait_until(lambda: not workers(), PROMPT_SECONDS)


def test_a_supervisor_may_die_twice_while_it_starts_where_one_has_started_before(
    tmp_path: Path,
) -> None:
    with OverlapIterator(DiesWhenUnpickled(8, tmp_path), 4, shuffle=False, n_processes=1) as it:
        next(it)
        for name in ("one", "two"):
            (tmp_path / name).touch()
        wait_and_kill("ovl-supervisor")
        assert [indices_of(next(it)) for _ in range(5)] == [
            [4, 5, 6, 7], [0, 1, 2, 3], [4, 5, 6, 7], [0, 1, 2, 3], [4, 5, 6, 7]
        ]  # fmt: skip
        assert not list(tmp_path.iterdir())


def test_a_supervisor_that_dies_again_and_again_is_given_up_clearly(tmp_path: Path) -> None:
    is_over = threading.Event()

    def kill_them_all() -> None:
        while not is_over.is_set():
            kill_one("ovl-supervisor", signal.SIGKILL, random.Random(0))

    with OverlapIterator(Gated(4, 0, tmp_path / "never"), 4, shuffle=False, n_processes=1) as it:
        thread = threading.Thread(target=kill_them_all)
        thread.start()
        try:
            with pytest.raises(PipelineError, match=r"supervisor process ended \d times in a row"):
                next(it)
        finally:
            is_over.set()
            thread.join()
