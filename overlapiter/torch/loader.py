"""The loader: a drop-in for ``torch.utils.data.DataLoader``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import torch.utils.data
from torch.utils.data.dataloader import _BaseDataLoaderIter

from overlapiter.errors import ExampleError, OptionError
from overlapiter.faults import SkippedExamples
from overlapiter.options import Skip, Staging, check_count
from overlapiter.order import EpochSampler
from overlapiter.stats import Stats
from overlapiter.torch.datasets import register_known
from overlapiter.torch.epoch import Epoch, TimeoutWarning
from overlapiter.torch.feed import PRELOAD, Shelf
from overlapiter.torch.orders import OrderedSampler
from overlapiter.workers.start.launch import start_forkserver

T = TypeVar("T", covariant=True)


class DataLoader(torch.utils.data.DataLoader[T]):
    """..."""

    TimeoutWarning = TimeoutWarning

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], None] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        staging: Staging | None = None,
        seed: int | None = None,
        bad_examples: Any = "raise",
    ) -> None:
        if isinstance(dataset, torch.utils.data.IterableDataset):
            raise OptionError("dataset", "iterable")
        if isinstance(sampler, EpochSampler):
            sampler = OrderedSampler(sampler, len(dataset))
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        self.staging = staging
        self.seed = seed
        self.bad_examples = bad_examples
        self._skipped = SkippedExamples(None, dataset)
        self._shelf = Shelf()
        self._n_begun = 0
        if num_workers:
            register_known()
            start_forkserver(PRELOAD)

    def _begin_epoch(self) -> int:
        self._n_begun += 1
        return self._n_begun - 1

    def _get_iterator(self) -> _BaseDataLoaderIter:
        if self.num_workers == 0:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        return Epoch(self)
