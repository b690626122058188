"""An iteration over a loader with workers: one epoch."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator
from typing import Any, NoReturn

import torch
from torch._utils import ExceptionWrapper
from torch.utils import data
from torch.utils.data import _utils
from torch.utils.data.dataloader import _BaseDataLoaderIter

from overlapiter.errors import ExampleError, warn
from overlapiter.faults import (
    FailedBatch,
    SkippedExamples,
    TimeoutWarning,
    WaitTimeoutError,
    explain_stall,
)
from overlapiter.order import IndexList, Indices
from overlapiter.pipeline import Pipeline
from overlapiter.sources import Key
from overlapiter.torch.batches import Collated
from overlapiter.torch.face import RemoteError, Renewal, fetches_whole
from overlapiter.torch.feed import Feed, begin
from overlapiter.torch.orders import Foresight, Keys, as_indices, foresee, put_draws, take_back
from overlapiter.torch.states import Progress, check_taken

#: Without a timeout of the user's, how long a mini-batch may take before a warning.
STALL_SECONDS = 30.0


class Epoch(_BaseDataLoaderIter):
    """Gives the mini-batches of an epoch, as PyTorch's own iterator does.

    It takes index lists from the sampler exactly as early as PyTorch does. Where staging needs them
    earlier, they are foreseen; what cannot be foreseen is taken early.

    With a ``state`` it goes on from there.
    """

    _feed: Feed | None = None
    _progress: Progress
    #: Whether a call has begun that has not ended: an interruption may have sent half of a message.
    _is_unfinished: bool

    def __init__(self, loader: data.DataLoader[Any], state: dict[str, Any] | None) -> None:
        self._shelf = loader._shelf  # not the loader, which may hold this
        self._skipped: SkippedExamples = loader._skipped
        self._progress = loader._set_out()
        if loader.prefetch_factor == 0:  # PyTorch's words
            raise AssertionError(
                "prefetch_factor must be greater than 0 for MultiProcessingDataLoaderIter"
            )
        super().__init__(loader)
        if state is not None and not state["has_base_seed"]:
            put_draws(loader, self._progress.draws)
            self._progress.has_base_seed = False
        super()._reset(loader, first_iter=True)
        self._is_resumed = state is not None
        #: The option that needs whole numbers as keys, if there is one.
        self._counting = "staging" if loader.staging else "seed" if loader.seed is not None else ""
        #: Whether the dataset gets what a batch sampler gives, of whatever type.
        self._is_given_whole = not self._counting and fetches_whole(loader.dataset)
        self._begin(loader, state)

    # --- the beginning ------------------------------------------------------------------------

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Start over, with the same workers; PyTorch calls this where these are persistent."""
        if loader.seed is None and loader.staging is None:
            self._read_out()
        self._progress = loader._set_out()
        self._progress.has_base_seed = False
        super()._reset(loader, first_iter)
        self._begin(loader, None)

    def _read_out(self) -> None:
        """Wait for what the workers have been given: PyTorch's read it, too, and draw meanwhile."""
        while self._pending and not self._is_unfinished:
            self._is_unfinished = True  # until the index list is taken off, too
            if _is_sent(self._pending[0]):
                self._wait()
            self._pending.popleft()
            self._is_unfinished = False

    def _begin(self, loader: data.DataLoader[Any], state: dict[str, Any] | None) -> None:
        self._pending: collections.deque[Keys] = collections.deque()  # taken from the sampler
        self._submitted: collections.deque[Keys] = collections.deque()  # foreseen, not yet taken
        self._foresight: Foresight | None = None
        self._is_exhausted = False
        self._is_unfinished = True  # until all was submitted: a sampler may raise
        self._order_size = 0
        staging, number = loader.staging, self._progress.number
        self._n_wanted = n_ahead = loader.prefetch_factor * loader.num_workers
        if staging is not None:
            self._n_wanted = max(n_ahead, staging.look_ahead)
            self._foresight = foresee(loader, number, draws_base_seed=not loader.persistent_workers)
            n_ahead = self._n_wanted if self._foresight is None else n_ahead
        orders = {} if self._foresight is None else self._foresight.orders
        if state is not None:
            for keys in itertools.islice(self._keys(), state["n_taken"]):
                self._progress.count(keys)
            check_taken(self._progress, state)
        self._pending.clear()
        first = list(itertools.islice(self._keys(), n_ahead))
        try:
            self._feed = self._feed_of(loader, first, orders.get(number))
        except BaseException:
            take_back(loader, number)
            raise
        self._submit_all()
        self._pipeline.flush()
        self._is_unfinished = False

    def _feed_of(
        self, loader: data.DataLoader[Any], first: list[Keys], order: Indices | None
    ) -> Feed:
        if self._feed is not None:
            self._pipeline.reset()
            return self._feed
        indices = as_indices(first[0] if first and _is_sent(first[0]) else [], self._counting)
        default_dtype = str(torch.get_default_dtype()).removeprefix("torch.")
        renewal = Renewal(self._base_seed, default_dtype)
        feed = begin(loader, renewal, indices.tolist())
        share = feed.pipeline.share
        if share is not None and (self._is_resumed or not share.has_begun):
            share.begin(self._progress.number, self._progress.position, order)
        return feed

    @property
    def _pipeline(self) -> Pipeline:
        assert self._feed is not None
        return self._feed.pipeline

    # --- index lists --------------------------------------------------------------------------

    def _keys(self) -> Iterator[Keys]:
        """Take from the sampler until its end."""
        while not self._is_exhausted:
            try:
                keys = self._flat(self._next_index())
            except StopIteration:
                self._is_exhausted = True
                return
            self._pending.append(keys)
            yield keys

    def _pull(self) -> None:
        """Take one index list from the sampler, and submit it or another one that is foreseen."""
        try:
            taken = [*itertools.islice(self._keys(), 1)]
        except Exception:  # the sampler's; nothing was sent
            self._is_unfinished = False
            raise
        for keys in taken:
            if not self._submitted:
                self._submit(keys)
                continue
            if self._submitted.popleft() == keys:
                for ahead in itertools.islice(self._foreseen, 1):
                    self._submit_foreseen(ahead)
                continue
            self._foresight = None  # the sampler has changed its mind
            self._submit_again()

    def _flat(self, keys: Keys) -> Keys:
        """Return the keys of a mini-batch as a list, or what is none as it is.

        What ``__getitems__`` is to get as the batch sampler gave it, is one key.
        """
        if not self._auto_collation:
            return [keys]
        if self._is_given_whole and not (type(keys) is list and set(map(type, keys)) == {int}):
            return [Key.of(keys)]
        try:
            return list(keys)
        except TypeError:
            return keys

    def _submit_foreseen(self, keys: Keys) -> None:
        keys = self._flat(keys)
        self._submitted.append(keys)
        self._submit(keys)

    def _submit(self, keys: Keys) -> None:
        if not _is_sent(keys):
            return
        indices = as_indices(keys, self._counting)
        epochs = self._progress.epochs(self._position, len(indices))
        position = self._progress.number * self._order_size + self._position
        self._pipeline.submit(IndexList(indices.tolist(), epochs, position))
        self._position += len(indices)

    def _submit_all(self) -> None:
        """Submit what was taken from the sampler, and what is foreseen to follow it."""
        self._submitted.clear()
        self._foreseen: Iterator[Keys] = iter(())
        self._position = self._progress.position  # of the next one to be submitted
        foresight = self._foresight
        if foresight is not None and foresight.orders:
            self._order_size = len(foresight.orders[self._progress.number])
            self._pipeline.announce(foresight.orders, foresight.others)
        for keys in self._pending:
            self._submit(keys)
        if foresight is not None:
            n_pending = len(self._pending)
            self._foreseen = foresight.batches_from(self._progress.n_taken + n_pending)
            for keys in itertools.islice(self._foreseen, max(0, self._n_wanted - n_pending)):
                self._submit_foreseen(keys)

    def _submit_again(self) -> None:
        """Drop all that was sent, half of a message perhaps, and submit it again."""
        if self._feed is not None:  # else nothing is left to submit
            self._pipeline.reset()
            self._submit_all()

    # --- mini-batches -------------------------------------------------------------------------

    def __next__(self) -> Any:
        """Return the next mini-batch; PyTorch's own way costs as much again, for its profiler."""
        if torch.autograd._profiler_enabled():
            return super().__next__()
        batch = self._next_data()
        self._num_yielded += 1
        return batch

    def _next_data(self) -> Any:
        """Return the next mini-batch. Blocks until it is there."""
        while True:
            if self._is_unfinished:
                self._submit_again()
            self._is_unfinished = True  # until the index list is taken off, too
            self._pull()
            if not self._pending:
                self._is_unfinished = False
                self._progress.is_over = True
                if not self._persistent_workers:
                    self._release()
                raise StopIteration
            first = self._pending[0]
            batch = self._wait() if _is_sent(first) else self._make_here(first)
            # Before it is taken off: after a warning that is an error it is asked for again.
            error, is_passed_over = self._skipped.judge(batch)
            worker = self._progress.n_taken % self._num_workers
            keys = self._pending.popleft()
            self._progress.count(keys)
            self._is_unfinished = False
            if self._is_exhausted and not self._pending and not self._persistent_workers:
                self._release()  # a program that counts, as Lightning does, never asks for more
            if isinstance(batch, FailedBatch) and isinstance(batch.error, RemoteError):
                _reraise(batch.error, batch.context, worker)
            if error is not None:
                try:
                    raise error
                finally:  # its traceback holds this frame, and so the workers
                    del error, batch
            if not is_passed_over and isinstance(batch, Collated):
                if not self._pin_memory:
                    return batch.data
                return _utils.pin_memory.pin_memory(batch.data, self._pin_memory_device)

    def _make_here(self, keys: Keys) -> Collated | FailedBatch:
        """Make a mini-batch of no keys, or fail to, as PyTorch does."""
        try:
            return Collated(self._collate_fn([self._dataset[key] for key in keys]), (), 0)
        except Exception as error:
            return FailedBatch(RemoteError.of(error), None)

    def _wait(self) -> Collated | FailedBatch:
        while True:
            try:
                batch: Collated | FailedBatch = self._pipeline.take(self._timeout or STALL_SECONDS)
                return batch
            except WaitTimeoutError as stall:
                text = explain_stall(stall, self._dataset, self._timeout or STALL_SECONDS)
                text = text.replace("dataset_timeout", "timeout")
                self._is_unfinished = False  # nothing is lost
                if self._timeout > 0:
                    message = f"DataLoader timed out after {self._timeout} seconds"
                    raise RuntimeError(message) from TimeoutError(text)
                warn(text, TimeoutWarning)
                self._is_unfinished = True

    # --- the end ------------------------------------------------------------------------------

    def _release(self) -> None:
        """Give the workers back to the loader."""
        feed, self._feed = self._feed, None
        if feed is not None:
            self._shelf.put(feed)

    def __del__(self) -> None:
        """Give the workers back to the loader, where the user does not go on to the end."""
        self._release()


def _is_sent(keys: Keys) -> bool:
    """Return whether a mini-batch is the workers': it has keys, in a list."""
    return isinstance(keys, list) and bool(keys)


def _reraise(remote: RemoteError, context: ExampleError | None, worker: int) -> NoReturn:
    """Raise what a worker has raised, with the words of PyTorch."""
    wrapper = ExceptionWrapper.__new__(ExceptionWrapper)
    wrapper.exc_type, wrapper.exc_msg, where = remote.args
    wrapper.where = where or f"in DataLoader worker process {worker}"
    try:
        wrapper.reraise()
    except Exception as error:
        raise error.with_traceback(None) from context  # PyTorch's frame holds it: a cycle
    raise AssertionError
