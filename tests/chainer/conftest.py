"""Iterators of several kinds to hold the same statements against."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from multiprocessing import forkserver
from multiprocessing.sharedctypes import RawArray
from pathlib import Path
from typing import Any

import pytest
from chainer.datasets import LabeledImageDataset, TupleDataset
from chainer.iterators import MultiprocessIterator, SerialIterator

from overlapiter import OverlapIterator, Staging
from tests.chainer.faults import SourceFiles
from tests.chainer.iterator_datasets import numbered_images

NumberedImages = Callable[[int], LabeledImageDataset]


class Maker:
    """Makes iterators of one kind, and ends them after the test.

    Attributes:
        kind: ``"serial"``, ``"multiprocess"``, ``"overlap"`` or ``"staged"``.
        staging: What a staged iterator uses.
    """

    def __init__(self, kind: str, source: Path, directory: Path) -> None:
        self.kind = kind
        self.staging = Staging(directory, source=source, n_prefetchers=1, keep_free=0)
        self._made: list[Any] = []

    @property
    def iterator_class(self) -> type:
        """The class of the iterators that are made."""
        others = {"serial": SerialIterator, "multiprocess": MultiprocessIterator}
        return others.get(self.kind, OverlapIterator)

    def __call__(self, dataset: Any, batch_size: int, **options: Any) -> Any:
        """Return an iterator; options of workers do not concern the serial one."""
        if self.kind == "serial":
            known = ("repeat", "shuffle", "order_sampler")
            options = {name: options[name] for name in known if name in options}
        else:
            options = {"n_processes": 2, **options}
        if self.kind == "multiprocess":
            # So that it needs no more than the little shared memory of the fixture below.
            options = {"shared_mem": 0, **options}
        if self.kind == "staged":
            options = {"staging": self.staging, **options}
        return self.keep(self.iterator_class(dataset, batch_size, **options))

    def keep(self, iterator: Any) -> Any:
        """End an iterator after the test that came into being otherwise."""
        self._made.append(iterator)
        return iterator

    def finalize(self) -> None:
        """End all iterators."""
        for iterator in self._made:
            iterator.finalize()
        self._made.clear()


@pytest.fixture(scope="session", autouse=True)
def _shared_heap() -> None:
    """Have multiprocessing make its shared memory, which it keeps, before leaks are counted."""
    RawArray("b", 1)


@pytest.fixture(scope="session", autouse=True)
def _forkserver_with_chainer() -> None:
    """Start the forkserver for a dataset of Chainer's: else each supervisor imports that anew."""
    forkserver._forkserver._stop()  # what other tests started
    with OverlapIterator(TupleDataset([1]), 1, n_processes=1) as iterator:
        next(iterator)


def _maker(request: pytest.FixtureRequest, source: Path, tmp_path: Path) -> Iterator[Maker]:
    maker = Maker(request.param, source, tmp_path / "staging")
    yield maker
    maker.finalize()


#: The original, which stays as it is: whether it does all this, too, need not be seen each time.
ORIGINAL = pytest.param("multiprocess", marks=pytest.mark.slow)


@pytest.fixture(params=["serial", ORIGINAL, "overlap", "staged"])
def make(request: pytest.FixtureRequest, image_folder: Path, tmp_path: Path) -> Iterator[Maker]:
    """Make iterators of each kind, the originals and ours."""
    yield from _maker(request, image_folder, tmp_path)


@pytest.fixture(params=[ORIGINAL, "overlap", "staged"])
def make_parallel(
    request: pytest.FixtureRequest, image_folder: Path, tmp_path: Path
) -> Iterator[Maker]:
    """Make iterators with worker processes."""
    yield from _maker(request, image_folder, tmp_path)


@pytest.fixture(params=["overlap", "staged"])
def make_ours(
    request: pytest.FixtureRequest, image_folder: Path, tmp_path: Path
) -> Iterator[Maker]:
    """Make our iterators, without staging and with it."""
    yield from _maker(request, image_folder, tmp_path)


@pytest.fixture
def images(image_folder: Path) -> NumberedImages:
    """A function that gives ``n`` images, each with its index as label."""
    return lambda n: numbered_images(image_folder, n)


@pytest.fixture
def source(tmp_path: Path) -> SourceFiles:
    """Files that a test may spoil."""
    return SourceFiles(tmp_path / "source")


@pytest.fixture(params=["overlap", "staged"])
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """Where to stage; None for no staging."""
    return tmp_path / "fast" if request.param == "staged" else None
