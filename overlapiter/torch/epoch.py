"""An iteration over a loader with workers: one epoch."""

from __future__ import annotations

import collections
import contextlib
import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

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
from overlapiter.torch.states import Progress, Taken, check_taken

#: Without a timeout of the user's, how long a mini-batch may take before a warning.
STALL_SECONDS = 30.0


class Request(NamedTuple):
    """A mini-batch that is, or is going to be, what the sampler gives."""

    keys: Keys
    index_list: IndexList | None  # None for what is made here: it has no keys, or no list of them
    taken: Taken  # after it


class Epoch(_BaseDataLoaderIter):
    """Gives the mini-batches of an epoch, as PyTorch's own iterator does.

    It takes index lists from the sampler exactly as early as PyTorch does. Where staging needs them
    earlier, they are foreseen; what cannot be foreseen is taken early.

    With a ``state`` it goes on from there.
    """

    _feed: Feed | None = None
    _progress: Progress
    #: That are not taken, in order; an interruption may have left the first, which is.
    _requests: collections.deque[Request]

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
        self._drop_taken()
        while self._requests and not self._pipeline.is_unfinished:
            if self._requests[0].index_list is not None:
                self._wait()
            self._requests.popleft()

    def _begin(self, loader: data.DataLoader[Any], state: dict[str, Any] | None) -> None:
        self._requests = collections.deque()
        self._foresight: Foresight | None = None
        self._is_exhausted = False
        self._order_size = 0
        staging, number = loader.staging, self._progress.number
        n_wanted = n_ahead = loader.prefetch_factor * loader.num_workers
        if staging is not None:
            n_wanted = max(n_ahead, staging.look_ahead)
            self._foresight = foresee(loader, number, draws_base_seed=not loader.persistent_workers)
            n_ahead = n_wanted if self._foresight is None else n_ahead
        if state is not None:
            with contextlib.suppress(StopIteration):
                for _ in range(state["n_taken"]):
                    self._progress.count(self._flat(self._next_index()))
            check_taken(self._progress, state)
        self._n_pulled = self._progress.taken.n_batches  # from the sampler
        orders, others = {}, {}
        try:
            if self._foresight is not None:
                orders, others = self._foresight.orders, self._foresight.others
                self._order_size = len(orders.get(number, ()))
            self._n_wanted = n_wanted
            for _ in range(n_ahead):
                self._pull()
            self._n_wanted += 1  # the one that is asked for
            self._feed = self._feed_of(loader, orders.get(number))
            self._pipeline.announce(orders, others)
            self._pipeline.flush(self._requests)
        except BaseException:
            self._requests.clear()
            take_back(loader, number)
            raise

    def _feed_of(self, loader: data.DataLoader[Any], order: Indices | None) -> Feed:
        if self._feed is not None:
            self._pipeline.reset()
            return self._feed
        first = self._requests[0].index_list if self._requests else None
        default_dtype = str(torch.get_default_dtype()).removeprefix("torch.")
        renewal = Renewal(self._base_seed, default_dtype)
        feed = begin(loader, renewal, [] if first is None else first.indices)
        share = feed.pipeline.share
        if share is not None and (self._is_resumed or not share.has_begun):
            share.begin(self._progress.number, self._progress.position, order)
        return feed

    @property
    def _pipeline(self) -> Pipeline:
        assert self._feed is not None
        return self._feed.pipeline

    # --- index lists --------------------------------------------------------------------------

    def _pull(self) -> None:
        """Take one index list from the sampler, and request it unless it was foreseen."""
        n_taken = self._progress.taken.n_batches
        if self._foresight is not None:
            n_more = max(self._n_wanted, self._n_pulled - n_taken + 1) - len(self._requests)
            foreseen = self._foresight.batches_from(self._end.n_batches)
            self._request(map(self._flat, itertools.islice(foreseen, max(0, n_more))))
        # Else an interruption has left one.
        if self._n_pulled <= self._end.n_batches and not self._is_exhausted:
            try:
                self._pulled = self._flat(self._next_index())
                self._n_pulled += 1
            except StopIteration:
                self._is_exhausted = True
        if self._foresight is not None:
            given = [] if self._is_exhausted else [self._pulled]
            n_sure = self._n_pulled - n_taken - len(given)
            known = itertools.islice(self._requests, n_sure, n_sure + 1)
            if [each.keys for each in known] == given:
                return
            # The sampler has changed its mind. Another queue has the pipeline start over.
            sure = collections.deque(itertools.islice(self._requests, n_sure))
            self._requests, self._foresight = sure, None
        if self._n_pulled > self._end.n_batches:
            self._request([self._pulled])

    @property
    def _end(self) -> Taken:
        """What is taken after all requests."""
        return self._requests[-1].taken if self._requests else self._progress.taken

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

    def _request(self, batches: Iterable[Keys]) -> None:
        for keys in batches:
            taken, index_list = self._end, None
            if isinstance(keys, list) and keys:
                indices = as_indices(keys, self._counting).tolist()
                position = self._progress.position_after(taken)
                epochs = self._progress.epochs(position, len(indices))
                position += self._progress.number * self._order_size
                index_list = IndexList(indices, epochs, position)
            self._requests.append(Request(keys, index_list, taken.and_also(keys)))

    def _drop_taken(self) -> None:
        if self._requests and self._requests[0].taken is self._progress.taken:
            self._requests.popleft()

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
            self._drop_taken()
            self._pull()
            if not self._requests:
                self._progress.is_over = True
                if not self._persistent_workers:
                    self._release()
                raise StopIteration
            first = self._requests[0]
            batch = self._make_here(first.keys) if first.index_list is None else self._wait()
            # Before it counts as taken: after a warning that is an error it is asked for again.
            error, is_passed_over = self._skipped.judge(batch)
            worker = self._progress.taken.n_batches % self._num_workers
            self._progress.taken = first.taken
            if self._is_exhausted and len(self._requests) == 1 and not self._persistent_workers:
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
                batch: Collated | FailedBatch = self._pipeline.take(
                    self._requests, self._timeout or STALL_SECONDS
                )
                return batch
            except WaitTimeoutError as stall:
                text = explain_stall(stall, self._dataset, self._timeout or STALL_SECONDS)
                text = text.replace("dataset_timeout", "timeout")
                if self._timeout > 0:
                    message = f"DataLoader timed out after {self._timeout} seconds"
                    raise RuntimeError(message) from TimeoutError(text)
                warn(text, TimeoutWarning)

    # --- the end ------------------------------------------------------------------------------

    def _release(self) -> None:
        """Give the workers back to the loader."""
        feed, self._feed = self._feed, None
        if feed is not None:
            self._shelf.put(feed)

    def __del__(self) -> None:
        """Give the workers back to the loader, where the user does not go on to the end."""
        self._release()


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
