"""PyTorch's loader and ours, to hold the same statements against."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from multiprocessing import forkserver, set_start_method
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch.utils import data  # noqa: E402  # not without PyTorch

from overlapiter import Staging  # noqa: E402
from overlapiter.torch import DataLoader  # noqa: E402

Make = Callable[..., Any]


@pytest.fixture(scope="session", autouse=True)
def _forkserver_with_torch() -> None:
    """Start the forkserver with PyTorch in it: else each supervisor imports that anew.

    PyTorch's own workers are forks, which from Python 3.14 on is not the default.
    """
    set_start_method("fork", force=True)
    forkserver._forkserver._stop()  # what other tests started
    loader = DataLoader(data.TensorDataset(torch.zeros(1)), num_workers=1)
    list(loader)
    loader.close()


class Pair:
    """Makes two loaders alike.

    Attributes:
        is_staged: Whether ours stages.
    """

    def __init__(self, staging: Staging | None) -> None:
        self.staging = staging
        self._made: list[DataLoader[Any]] = []

    def ours(self, *arguments: Any, **options: Any) -> DataLoader[Any]:
        """Return our loader."""
        if options.get("num_workers", 2):
            options = {"staging": self.staging, **options}
        loader = DataLoader(*arguments, **{"num_workers": 2, **options})
        self._made.append(loader)
        return loader

    def original(self, *arguments: Any, **options: Any) -> data.DataLoader[Any]:
        """Return PyTorch's."""
        return data.DataLoader(*arguments, **{"num_workers": 2, **options})

    def each(self) -> tuple[Make, Make]:
        """Return what makes PyTorch's, and what makes ours."""
        return self.original, self.ours

    def close(self) -> None:
        """End our workers."""
        for loader in self._made:
            loader.close()


@pytest.fixture(params=["overlap", "staged"])
def pair(request: pytest.FixtureRequest, image_folder: Path, tmp_path: Path) -> Iterator[Pair]:
    """Make PyTorch's loader and ours, without staging and with it."""
    staging = Staging(tmp_path / "fast", source=image_folder, n_prefetchers=1, keep_free=0)
    pair = Pair(staging if request.param == "staged" else None)
    yield pair
    pair.close()


@pytest.fixture
def plain_pair() -> Iterator[Pair]:
    """Make PyTorch's loader and ours, without staging."""
    pair = Pair(None)
    yield pair
    pair.close()
