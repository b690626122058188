"""An iteration over a loader: one epoch."""

from __future__ import annotations

import collections
import itertools
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils.data import _utils
from torch.utils.data.dataloader import _BaseDataLoaderIter

from overlapiter.errors import ExampleError, OptionError
from overlapiter.faults import SkippedExamples, explain_stall
from overlapiter.order import IndexList
from overlapiter.pipeline import FailedBatch, Pipeline, WaitTimeoutError
from overlapiter.torch.batches import Collated
from overlapiter.torch.face import Renewal, RemoteError
from overlapiter.torch.feed import Feed, begin
from overlapiter.torch.orders import Keys, as_indices, foresee, order_of

if TYPE_CHECKING:
    from overlapiter.torch.loader import DataLoader

#: Without a timeout of the user's, how long a mini-batch may take before a warning.
STALL_SECONDS = 30.0


class TimeoutWarning(RuntimeWarning):
    """No mini-batch has come for a while."""


class Epoch(_BaseDataLoaderIter):
    """Gives the mini-batches of an epoch, as PyTorch's own iterator does.

    It takes index lists from the sampler exactly as early as PyTorch does. Where staging needs them
    earlier, they are foreseen; what cannot be foreseen is taken early.

    Args:
        loader: The loader.
    """

    _feed: Feed | None = None

    def __init__(self, loader: DataLoader[Any]) -> None:
        self._loader = loader
        super().__init__(loader)
        self._skipped: SkippedExamples = loader._skipped
        self._reset(loader, first_iter=True)

    # --- the beginning ------------------------------------------------------------------------

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Start over; with persistent workers, PyTorch calls this for each further epoch."""
        super()._reset(loader, first_iter)
        self._number = loader._begin_epoch()
        self._pending: collections.deque[Keys] = collections.deque()  # taken from the sampler
        self._foreseen: Iterator[Keys] | None = None
        self._submitted: collections.deque[Keys] = collections.deque()  # foreseen, not yet taken
        self._n_taken = self._position = 0
        self._is_exhausted = self._is_unfinished = False
        self._order_size = 0
        self._begin(loader, first_iter)

    def _begin(self, loader: DataLoader[Any], first_iter: bool) -> None:
        staging = loader.staging
        n_wanted = n_ahead = loader.prefetch_factor * loader.num_workers
        foresight = None
        if staging is not None:
            n_wanted = max(n_ahead, staging.look_ahead)
            foresight = foresee(loader, draws_base_seed=not loader.persistent_workers)
            n_ahead = n_ahead if foresight is not None else n_wanted
        first = list(itertools.islice(self._keys(), n_ahead))
        self._feed = self._feed_of(loader, first, first_iter)
        if foresight is None:
            self._submit_all(first)
        else:
            self._announce(foresight)
            batches = iter(foresight.batches[len(first) :])
            self._submit_all(first)
            self._foreseen = batches
            for keys in itertools.islice(batches, n_wanted - len(first)):
                self._submit_foreseen(keys)
        self._pipeline.flush()

    def _feed_of(self, loader: DataLoader[Any], first: list[Keys], first_iter: bool) -> Feed:
        if not first_iter and self._feed is not None:
            self._pipeline.reset()
            return self._feed
        indices = as_indices(self._flat(first[0]) if first else [])
        if loader.staging is not None and indices.dtype != np.intp:
            raise OptionError("staging", f"needs whole numbers as keys, not {indices[0]!r}")
        return begin(loader, Renewal(self._base_seed), indices.tolist())

    def _announce(self, foresight: Any) -> None:
        order = order_of(foresight.batches)
        if order is None or not len(order):
            return
        self._order_size = len(order)
        orders = {self._number: order}
        if foresight.next_order is not None and len(foresight.next_order) == len(order):
            orders[self._number + 1] = foresight.next_order
        others = foresight.others
        self._pipeline.announce(
            orders, {} if others is None else {self._number: others[: len(order)]}
        )

    # --- index lists --------------------------------------------------------------------------

    @property
    def _pipeline(self) -> Pipeline:
        assert self._feed is not None
        return self._feed.pipeline

    def _keys(self) -> Iterator[Keys]:
        """Take from the sampler until its end."""
        while not self._is_exhausted:
            try:
                keys = self._next_index()
            except StopIteration:
                self._is_exhausted = True
                return
            self._pending.append(keys)
            yield keys

    def _pull(self) -> None:
        """Take one index list from the sampler, and submit it or another one that is foreseen."""
        for keys in itertools.islice(self._keys(), 1):
            if not self._submitted:
                self._submit(keys)
                continue
            if self._submitted.popleft() == keys:
                for ahead in itertools.islice(self._foreseen or (), 1):
                    self._submit_foreseen(ahead)
                continue
            self._foreseen = None  # the sampler has changed its mind
            self._submit_again()

    def _flat(self, keys: Keys) -> list[Any]:
        return list(keys) if self._auto_collation else [keys]

    def _submit_all(self, batches: list[Keys]) -> None:
        for keys in batches:
            self._submit(keys)

    def _submit_foreseen(self, keys: Keys) -> None:
        self._submitted.append(keys)
        self._submit(keys)

    def _submit(self, keys: Keys) -> None:
        indices = as_indices(self._flat(keys))
        epochs = np.full(len(indices), self._number, np.int64)
        position = self._number * self._order_size + self._position
        self._pipeline.submit(IndexList(indices, epochs, position))
        self._position += len(indices)

    def _submit_again(self) -> None:
        """Drop all that was sent, half of a message perhaps, and submit again what is pending."""
        self._pipeline.reset()
        self._submitted.clear()
        self._foreseen = None
        self._submit_all(list(self._pending))
        self._is_unfinished = False

    # --- mini-batches -------------------------------------------------------------------------

    def _next_data(self) -> Any:
        """Return the next mini-batch. Blocks until it is there."""
        while True:
            if self._is_unfinished:
                self._submit_again()
            if self._feed is not None:
                self._pull()
            if not self._pending:
                self._finish()
            self._is_unfinished = True  # until the index list is taken off, too
            batch = self._wait()
            self._pending.popleft()
            self._is_unfinished = False
            worker = self._n_taken % self._num_workers
            self._n_taken += 1
            if isinstance(batch, FailedBatch) and isinstance(batch.error, RemoteError):
                _reraise(batch.error, batch.context, worker)
            error, is_passed_over = self._skipped.judge(batch)
            if error is not None:
                raise error
            if not is_passed_over:
                return self._pinned(batch.data)

    def _pinned(self, data: Any) -> Any:
        if not self._pin_memory:
            return data
        return _utils.pin_memory.pin_memory(data, self._pin_memory_device)

    def _wait(self) -> Collated | FailedBatch:
        while True:
            try:
                return self._pipeline.take(self._timeout or STALL_SECONDS)
            except WaitTimeoutError as stall:
                seconds = self._timeout or STALL_SECONDS
                text = explain_stall(stall, self._dataset, seconds).replace(
                    "dataset_timeout", "timeout"
                )
                self._is_unfinished = False  # nothing is lost
                if self._timeout > 0:
                    message = f"DataLoader timed out after {self._timeout} seconds"
                    raise RuntimeError(message) from TimeoutError(text)
                warnings.warn(text, TimeoutWarning, stacklevel=5)
                self._is_unfinished = True

    # --- the end ------------------------------------------------------------------------------

    def _finish(self) -> NoReturn:
        if not self._persistent_workers:
            self._release()
        raise StopIteration

    def _release(self) -> None:
        """Give the workers back to the loader."""
        feed, self._feed = self._feed, None
        if feed is not None:
            self._loader._shelf.put(feed)

    def __del__(self) -> None:
        """Give the workers back to the loader, where the user does not go on to the end."""
        self._release()


def _reraise(remote: RemoteError, context: ExampleError | None, worker: int) -> NoReturn:
    """Raise what a worker has raised, with the words of PyTorch."""
    wrapper = ExceptionWrapper.__new__(ExceptionWrapper)
    wrapper.exc_type, wrapper.exc_msg = remote.kind, remote.text
    wrapper.where = remote.where or f"in DataLoader worker process {worker}"
    try:
        wrapper.reraise()
    except Exception as error:
        raise error from context
    raise AssertionError
