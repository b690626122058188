"""The loader: a drop-in for ``torch.utils.data.DataLoader``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed
import torch.utils.data
from torch.utils.data.dataloader import _BaseDataLoaderIter

from overlapiter.errors import ExampleError, OptionError
from overlapiter.faults import SkippedExamples, TimeoutWarning, warn_if_failure_hangs
from overlapiter.options import BadExamples, Staging, check_staging, count_or_none, skip_limit
from overlapiter.scatter import ScatteredOrder
from overlapiter.torch.datasets import register_known
from overlapiter.torch.feed import Shelf, preload_of
from overlapiter.torch.orders import (
    DistributedOrder,
    OrderedSampler,
    RankSampler,
    order_of_ranks,
    ranks_of,
    size_of,
)
from overlapiter.torch.states import Progress, State, check_state, resumed, state_of
from overlapiter.workers.start.launch import start_forkserver

if TYPE_CHECKING:  # nothing that the start of the workers would have to wait for
    from overlapiter.explain import Explanation
    from overlapiter.stats import Stats

T = TypeVar("T", covariant=True)


class DataLoader(torch.utils.data.DataLoader[T]):
    """Loads the mini-batches of a map-style dataset, and stages their files.

    A drop-in for ``torch.utils.data.DataLoader``: the same arguments, attributes, draws from the
    generators and mini-batches. The workers come from a forkserver, whatever the
    ``multiprocessing_context``; they live until the loader is dropped or closed, and each iteration
    has fresh file readers unless ``persistent_workers`` is set. Tensors are views of shared memory,
    valid as long as they are kept.

    Args:
        dataset: A map-style dataset. It is pickled at each iteration, or once for
            ``persistent_workers``.
        batch_size: As in PyTorch, as are all arguments that are not described here.
        sampler: Besides PyTorch's, what ``overlapiter.scatter_order`` returns.
        num_workers: File readers. With 0 the dataset is asked in this process.
        collate_fn: Called in a file reader, with all examples of a mini-batch.
        pin_memory: Has CUDA lock the memory that the tensors are views of, so nothing is copied.
        timeout: With 0, a :class:`TimeoutWarning` after 30 s says what is waited for.
        multiprocessing_context: Checked, and not used.
        in_order: Accepted: mini-batches always come in order.
        staging: Where to stage files; None reads them where they are.
        seed: With it, the state of ``random``, ``numpy.random`` and ``torch.random`` that each
            example sees follows from (seed, epoch, index) alone, and any worker may read any
            example. Without it mini-batch ``b`` is read by worker ``b % num_workers``, whose
            random streams are those of PyTorch's.
        bad_examples: ``"raise"``, ``"skip"`` or :class:`overlapiter.Skip`, as for
            :class:`overlapiter.OverlapIterator`.

    Raises:
        OptionError: An argument cannot work.
        ValueError: PyTorch refuses an argument.
    """

    TimeoutWarning = TimeoutWarning

    def __init__(
        self,
        dataset: torch.utils.data.Dataset[T],
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
        bad_examples: BadExamples = "raise",
    ) -> None:
        _refuse_iterable(dataset)
        if isinstance(sampler, ScatteredOrder):
            kind = RankSampler if sampler.size > 1 else OrderedSampler
            sampler = kind(sampler, size_of(dataset, "sampler"))
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
        self.staging = check_staging(staging)
        self.seed = count_or_none("seed", seed, minimum=0)
        self.bad_examples = bad_examples
        self._order = order_of_ranks(self)
        self._check_workers()
        limit = None
        if bad_examples != "raise":
            limit = skip_limit(bad_examples, size_of(dataset, "bad_examples"))
        self._skipped = SkippedExamples(limit, dataset)
        self._shelf = Shelf()
        self._n_begun = 0  # epochs
        self._progress: Progress | None = None  # of the latest iteration
        self._resume: State | None = None
        register_known()
        if num_workers:
            warn_if_failure_hangs()
            start_forkserver(preload_of(self))  # it may import PyTorch meanwhile

    @classmethod
    def like(
        cls,
        other: torch.utils.data.DataLoader[T],
        *,
        staging: Staging | None = None,
        seed: int | None = None,
        bad_examples: BadExamples = "raise",
    ) -> DataLoader[T]:
        """Return a loader with the arguments of another one, which a library has made.

        The further arguments are those of the class.
        """
        is_batching_itself = other.batch_size is None and other.batch_sampler is not None
        names = (
            *(("batch_sampler",) if is_batching_itself else ("batch_size", "drop_last", "sampler")),
            *("num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn"),
            *("multiprocessing_context", "generator", "prefetch_factor", "persistent_workers"),
            *("pin_memory_device", "in_order"),
        )
        same: dict[str, Any] = {name: getattr(other, name) for name in names}
        return cls(other.dataset, staging=staging, seed=seed, bad_examples=bad_examples, **same)

    def _check_workers(self) -> None:
        """Refuse what needs worker processes where there are none; attributes may have changed."""
        wants = {"staging": self.staging is not None, "bad_examples": self.bad_examples != "raise"}
        for option in [each for each in wants if wants[each] and not self.num_workers]:
            raise OptionError(option, "needs worker processes; give num_workers, 2 for example")

    def _is_in_step(self) -> bool:
        """Return whether other ranks take a mini-batch for each one of this loader."""
        dist = torch.distributed  # which sampler divides the data does not always show
        n_ranks = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        return max(n_ranks, ranks_of(self)) > 1

    # --- iteration ----------------------------------------------------------------------------

    def _get_iterator(self) -> _BaseDataLoaderIter:
        """Return an iterator over one epoch; PyTorch's ``__iter__`` calls this."""
        self._check_workers()
        if self.num_workers:
            self.check_worker_number_rationality()
        with resumed(self) as state:
            if not self.num_workers:
                from overlapiter.torch.local import LocalEpoch

                return LocalEpoch(self, state)
            from overlapiter.torch.epoch import Epoch  # while the forkserver starts

            return Epoch(self, state)

    def _set_out(self) -> Progress:
        """Begin an epoch, before anything is drawn for it."""
        self._progress = begun = Progress(self)
        self._n_begun = begun.number + 1
        self._skipped.keeps_step = self._is_in_step()  # the process group may be newer than this
        if isinstance(self._order, DistributedOrder):
            self._order.epoch_0 = (begun.sampler_epoch or 0) - begun.number
        return begun

    # --- saving -------------------------------------------------------------------------------

    def state_dict(self) -> State:
        """Return where the latest iteration is, for :meth:`load_state_dict`.

        It describes the mini-batch that was given last, however far the workers are ahead.
        """
        if self._resume is not None:
            return self._resume
        progress = self._progress
        if progress is None or progress.is_over:
            progress = Progress(self)
            # PyTorch's own generator is left as the program that resumes has seeded it, and a
            # sampler in the epoch that the program sets.
            progress.draws = progress.draws._replace(global_state=None)
            progress.sampler_epoch = None
            progress.has_base_seed = self._iterator is None  # persistent workers have drawn theirs
        return state_of(self, progress)

    def load_state_dict(self, state_dict: State) -> None:
        """Have the next iteration go on where :meth:`state_dict` was called.

        Raises:
            OptionError: It is of another dataset or order.
        """
        check_state(self, state_dict)
        self._resume = state_dict
        self._iterator = None  # of persistent workers; they go on with the next one

    # --- looking and ending -------------------------------------------------------------------

    @property
    def skipped(self) -> list[ExampleError]:
        """The error of each example left out so far, with ``index``, ``paths`` and ``reason``."""
        return [*self._skipped.errors.values()]

    def stats(self) -> Stats | None:
        """Return the counters of the workers; None before the first iteration with workers."""
        latest = self._shelf.latest
        return None if latest is None else latest.stats()

    def explain(self, since: Stats | None = None) -> Explanation | None:
        """Say in plain words what the trainer waits for; None before the first iteration.

        Args:
            since: What :meth:`stats` gave when the time to be explained began.
        """
        if self._shelf.latest is None:
            return None
        found = self._shelf.latest.explain(since)
        text, change = (
            words.replace("n_processes=", "num_workers=").replace("dataset_timeout", "timeout")
            for words in (found.text, found.change)
        )
        return dataclasses.replace(found, text=text, change=change)

    def close(self) -> None:
        """End the workers of finished iterations; the loader can be used again."""
        self._iterator = None
        self._shelf.close()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the loader without its workers."""
        return {**vars(self), "_iterator": None, "_shelf": Shelf(), "_progress": None}


def _refuse_iterable(dataset: Any) -> None:
    kind = type(dataset)
    has_keys = hasattr(kind, "__getitem__") or hasattr(kind, "__getitems__")
    is_iterable = hasattr(kind, "__iter__") and not has_keys
    if is_iterable or isinstance(dataset, torch.utils.data.IterableDataset):
        raise OptionError(
            "dataset",
            f"{type(dataset).__name__} is an iterable-style dataset: which files the coming "
            f"mini-batches read is not known before it reads them, so nothing can be staged ahead; "
            f"give it __len__ and __getitem__, or keep torch.utils.data.DataLoader for it",
        )
