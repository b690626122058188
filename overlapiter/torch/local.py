"""An iteration over a loader without workers."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils import data
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from overlapiter.torch.face import fetches_whole, seed_torch
from overlapiter.torch.orders import as_indices, put_draws
from overlapiter.torch.states import check_taken
from overlapiter.workers.reader.face import Face


class Seeded:
    """A dataset whose examples each see a random state of their own, in this process.

    These states follow from the seed, the epoch and the index.
    """

    epochs: Iterator[int]  # of the examples that are asked for next

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset, self._seed = dataset, seed
        self._face = Face(dataset)
        if fetches_whole(dataset):
            self.__getitems__ = self._whole  # PyTorch calls it where it finds it

    def __getitem__(self, index: Any) -> Any:
        """Return an example; what is drawn next, as by a ``collate_fn``, follows from it, too."""
        self._put_seed(index)
        return self._dataset[index]

    def _whole(self, indices: Any) -> Any:
        if indices:
            self._put_seed(indices[0])
        return self._dataset.__getitems__(indices)

    def _put_seed(self, index: Any) -> None:
        (number,) = as_indices([index], "seed")
        seed_torch(self._face.seed_example(self._seed, next(self.epochs), int(number)))


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Leave the random states of this process as they are, whatever is drawn inside."""
    states = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])


class LocalEpoch(_SingleProcessDataLoaderIter):
    """Asks the dataset in this process, as PyTorch does without workers."""

    _sampler_iter: Iterator[Any]
    _seeded: Seeded | None = None

    def __init__(self, loader: data.DataLoader[Any], state: dict[str, Any] | None) -> None:
        self._progress = loader._set_out()
        super().__init__(loader)
        if state is not None and not state["has_base_seed"]:
            put_draws(loader, self._progress.draws)
            self._progress.has_base_seed = False
            self._sampler_iter = iter(self._index_sampler)
        if loader.seed is not None:
            fetcher = self._dataset_fetcher
            fetcher.dataset = self._seeded = Seeded(loader.dataset, loader.seed)
            fetcher.fetch = undisturbed()(fetcher.fetch)
        if state is None:
            return
        with contextlib.suppress(StopIteration):
            for _ in range(state["n_taken"]):
                self._next_index()
        check_taken(self._progress, state)
        # A sampler draws when it is first asked: now, while the generators are as they were.
        first = list(itertools.islice(self._sampler_iter, 1))
        self._sampler_iter = itertools.chain(first, self._sampler_iter)

    def _next_index(self) -> Any:
        try:
            keys = super()._next_index()
        except StopIteration:
            self._progress.is_over = True
            raise
        position = self._progress.position
        if self._seeded is not None and self._auto_collation:
            keys = list(keys)
        self._progress.count(keys)
        if self._seeded is not None:
            n = self._progress.position - position
            self._seeded.epochs = iter(self._progress.epochs(position, n))
        return keys
