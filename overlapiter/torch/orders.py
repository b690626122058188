"""What a sampler of PyTorch is going to give, found out without drawing anything from it."""

from __future__ import annotations

import contextlib
import copy
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import data
from torch.utils.data.distributed import DistributedSampler

from overlapiter.errors import OptionError
from overlapiter.node import this_node
from overlapiter.order import Indices
from overlapiter.scatter import ScatteredOrder
from overlapiter.sources import Key

#: What a sampler gives for one mini-batch: a list of keys, or one key without batching.
Keys = Any

#: A sampler that gives more keys than this, and ten times the dataset, is not listed in advance.
_MOST_FORESEEN = 10**7


class OrderedSampler(data.Sampler[int]):
    """The order of an :class:`~overlapiter.scatter.ScatteredOrder` as a sampler of PyTorch."""

    def __init__(self, order: ScatteredOrder, dataset_size: int) -> None:
        self.order = order  # of every epoch
        self.epoch = 0  # that the next iteration gives; each iteration leads to the next
        #: Of the epoch in which a snapshot was taken: where to go on, and in which order.
        self.resumed: tuple[int, Indices] | None = None
        self._dataset_size = dataset_size

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration gives."""
        if epoch != self.epoch:
            self.resumed = None
        self.epoch = epoch

    def whole(self) -> Indices:
        """Return the order of the epoch; what precedes a place of resumption has no meaning."""
        if self.resumed is not None:
            return self.resumed[1]
        return self.order.of_epoch(self.epoch, self._dataset_size)

    @property
    def start(self) -> int:
        """Where in the order of the epoch the next iteration begins."""
        return 0 if self.resumed is None else self.resumed[0]

    def __iter__(self) -> Iterator[int]:
        """Give the indices of the epoch."""
        rest = self.whole()[self.start :].tolist()
        self.set_epoch(self.epoch + 1)  # first: the iteration may be left early
        yield from rest

    def __len__(self) -> int:
        """Return the number of indices of an epoch; of a resumed one, too, of which less is left.

        Lightning keeps the length that it meets first for all epochs.
        """
        return self.order.length(self._dataset_size)


class RankSampler(OrderedSampler, DistributedSampler[int]):
    """That of one of several ranks: Lightning divides among them what any other class gives."""

    def __init__(self, order: ScatteredOrder, dataset_size: int) -> None:
        DistributedSampler.__init__(self, range(dataset_size), order.size, order.rank)
        OrderedSampler.__init__(self, order, dataset_size)


def take_back(loader: Any, epoch: int) -> None:
    """Have the next iteration of a loader give an epoch that could not begin."""
    sampler = samplers_of(loader)[-1]
    if isinstance(sampler, OrderedSampler):
        sampler.set_epoch(epoch)


_KNOWN = (
    data.SequentialSampler,
    data.RandomSampler,
    data.SubsetRandomSampler,
    data.WeightedRandomSampler,
    DistributedSampler,
    OrderedSampler,
    RankSampler,
)


class Draws(NamedTuple):
    """The generators that an epoch draws from, as they were before it."""

    global_state: torch.Tensor | None  # that of PyTorch's own generator; None for whatever it is
    states: list[torch.Tensor]  # those of the loader's and its samplers' generators, in order


def samplers_of(loader: Any) -> list[Any]:
    """Return the samplers of a loader, the outer one first."""
    found = [loader._index_sampler]
    while True:
        inner = getattr(found[-1], "sampler", None)
        if inner is None:  # as in a batch sampler around another one, such as accelerate's
            inner = getattr(found[-1], "batch_sampler", None)
        if inner is None or any(inner is each for each in found):  # one may name itself
            return found
        found.append(inner)


def generators_of(loader: Any) -> list[torch.Generator]:
    """Return the different generators of a loader and its samplers, in order."""
    found = [getattr(thing, "generator", None) for thing in (loader, *samplers_of(loader))]
    return list(dict.fromkeys(each for each in found if isinstance(each, torch.Generator)))


def size_of(dataset: Any, option: str = "") -> int:
    """Return the examples in a dataset; -1 where it does not say.

    Raises:
        OptionError: It does not, and there is an ``option`` for which it must.
    """
    try:
        return len(dataset)
    except Exception as error:  # it has no length, or the user's code fails
        if not option:
            return -1
        raise OptionError(option, "needs a dataset with a length; give it a __len__") from error


def ranks_of(loader: Any) -> int:
    """Return how many ranks share what the sampler of a loader gives."""
    n_ranks = getattr(samplers_of(loader)[-1], "num_replicas", 1)
    return n_ranks if isinstance(n_ranks, int) else 1  # a user's own may mean anything by it


def epoch_of(sampler: Any) -> int | None:
    """Return the epoch that a sampler is at; None for one that does not count epochs."""
    epoch = getattr(sampler, "epoch", None)
    return epoch if isinstance(epoch, int) and hasattr(sampler, "set_epoch") else None


def draws_of(loader: Any) -> Draws:
    """Return the states of the generators as they are now."""
    return Draws(torch.get_rng_state(), [g.get_state() for g in generators_of(loader)])


def put_draws(loader: Any, draws: Draws) -> None:
    """Bring the generators into a state of before."""
    # A checkpoint that was loaded with map_location has its tensors on a GPU.
    if draws.global_state is not None:
        torch.set_rng_state(draws.global_state.cpu())
    # That of a sampler that counts epochs, the last, may be missing: it follows from the epoch.
    for generator, state in zip(generators_of(loader), draws.states, strict=False):
        generator.set_state(state.cpu())


class DistributedOrder(ScatteredOrder):
    """What PyTorch's ``DistributedSampler`` gives all ranks: ours, but for how it shuffles."""

    def __init__(self, sampler: DistributedSampler[Any]) -> None:
        node = this_node()
        first = sampler.rank - node.local_rank
        super().__init__(
            sampler.rank,
            sampler.num_replicas,
            sampler.seed,
            shuffle=sampler.shuffle,
            remainder="drop" if sampler.drop_last else "fill",
            local_ranks=range(max(0, first), min(first + node.local_size, sampler.num_replicas)),
        )
        self.epoch_0 = 0  # the epoch of the sampler at which the loader counts 0

    def _global_order(self, epoch: int, dataset_size: int) -> Indices:
        return super()._global_order(self.epoch_0 + epoch, dataset_size)

    def _shuffled(self, epoch: int, dataset_size: int) -> Indices:
        generator = torch.Generator().manual_seed(self.seed + epoch)
        order: Indices = torch.randperm(dataset_size, generator=generator).numpy()
        return order


def order_of_ranks(loader: Any) -> ScatteredOrder | None:
    """Return the order that a loader's sampler has together with those of other ranks, if any.

    Raises:
        OptionError: It is one of ``scatter_order``, which accelerate would divide once more.
    """
    *outer, sampler = samplers_of(loader)
    if isinstance(sampler, OrderedSampler):
        if sampler.order.size > 1 and any(getattr(each, "num_processes", 1) != 1 for each in outer):
            raise OptionError(
                "sampler",
                "scatter_order has divided the data among the ranks, and accelerate would divide "
                "each rank's part again, so that most of the data would never be read; leave out "
                "scatter_order, or accelerator.prepare for this loader",
            )
        return sampler.order
    if type(sampler) is not DistributedSampler:
        return None
    try:
        return DistributedOrder(sampler)
    except (OptionError, TypeError):  # PyTorch takes seeds that ours does not
        return None


class Foresight(NamedTuple):
    """What a loader is going to give."""

    keys: list[Any]  # what its sampler gives in this epoch, one by one
    batch_size: int | None  # how many of them make a mini-batch; None where a key is in no list
    #: By epoch, what it gives in this one and, where that is known, in the following one; all of
    #: one length. Empty where there are no keys.
    orders: dict[int, Indices]
    #: By epoch, for each example of the order a row of what the other ranks of the node read at the
    #: same time, where that is known.
    others: dict[int, Indices]

    def batches_from(self, number: int) -> Iterator[Keys]:
        """Give what the sampler gives for the mini-batches from this one on."""
        if self.batch_size is None:
            return (self.keys[at] for at in range(number, len(self.keys)))
        size = self.batch_size
        starts = range(number * size, len(self.keys), size)
        return (self.keys[start : start + size] for start in starts)


def foresee(loader: Any, number: int, *, draws_base_seed: bool) -> Foresight | None:
    """Find out what the samplers of a loader are about to give; None where that is not known.

    Nothing was drawn for epoch ``number`` but the base seed; the next may draw one, too.

    Raises:
        OptionError: The dataset has no length, or one that is too large to be staged.
    """
    from overlapiter.planning import check_size  # while the forkserver starts

    check_size(size_of(loader.dataset, "staging"))
    *batching, innermost = samplers_of(loader)
    is_known = [type(sampler) for sampler in batching] in ([], [data.BatchSampler])
    if not is_known or type(innermost) not in _KNOWN:
        return None
    if len(innermost) > max(10 * len(loader.dataset), _MOST_FORESEEN):
        return None  # a list of all of them takes too much memory
    size = batching[0].batch_size if batching else None
    whole = batching[0].batch_size if batching and batching[0].drop_last else 1
    sampler = copy.copy(innermost)

    def keys_of_epoch() -> list[Any]:
        keys = list(sampler)
        return keys[: len(keys) // whole * whole]

    before = draws_of(loader)
    try:
        keys = keys_of_epoch()
        order = as_indices(keys, "staging")
        if not len(order):
            return Foresight(keys, size, {}, {})
        shared = _foresee_ranks(loader, number, order)
        if shared is not None:
            return Foresight(keys, size, *shared)
        orders = {number: order}
        # Else it depends on what else is drawn meanwhile.
        has_own_draws = getattr(innermost, "generator", None) is not None
        if has_own_draws or isinstance(innermost, data.SequentialSampler):
            if draws_base_seed:
                torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
            next_order = as_indices(keys_of_epoch(), "staging")
            if len(next_order) == len(order):
                orders[number + 1] = next_order
        return Foresight(keys, size, orders, {})
    finally:
        put_draws(loader, before)


def _foresee_ranks(
    loader: Any, number: int, order: Indices
) -> tuple[dict[int, Indices], dict[int, Indices]] | None:
    """Return the orders of this epoch and the next, and those of the node's other ranks.

    Of this one the loader gives ``order``: less than the sampler where it drops a last mini-batch.
    """
    shared, sampler, size = loader._order, samplers_of(loader)[-1], len(loader.dataset)
    if shared is None:
        return None
    orders = {epoch: shared.of_epoch(epoch, size) for epoch in (number, number + 1)}
    start = 0
    if isinstance(sampler, OrderedSampler) and sampler.resumed is not None:
        start, orders[number] = sampler.resumed
    if not np.array_equal(orders[number][start:][: len(order)], order):
        return None  # the sampler was changed since
    return orders, shared.of_neighbours(orders, size)


def as_indices(keys: Sequence[Any], option: str) -> Any:
    """Return keys as an array: of integers, or of objects if some are none.

    Raises:
        OptionError: Some key is no whole number, and there is an ``option`` that needs such.
    """
    if option:
        with contextlib.suppress(TypeError):
            keys = [operator.index(key) for key in keys]
    if set(map(type, keys)) <= {int}:
        with contextlib.suppress(OverflowError):
            return np.array(keys, np.intp)
    if option:
        wrong = next((key for key in keys if type(key) is not int), keys[0])
        raise OptionError(option, f"needs whole numbers as keys, not {wrong!r}")
    array = np.empty(len(keys), object)
    for number, key in enumerate(keys):
        array[number] = int(key) if isinstance(key, np.integer) else _comparable(key)
    return array


def _comparable(key: Any) -> Any:
    """Return a key as it is, if the workers can look for it among others."""
    if isinstance(key, torch.Tensor):  # each is only equal to itself
        return Key.of(key)
    try:
        hash(key)
    except TypeError:
        return Key.of(key)
    return key
