"""Which reads miss a staging directory that holds a part of the files, by replacement policy. Pure.

Every example is one file, and all files are of one size. A policy is given the examples in the
order in which they are read over all epochs and says of each read whether it misses, that is,
crosses the slow store::

    orders = epoch_orders("shuffled", n_examples=20_000, n_epochs=4, seed=0)
    missed = POLICIES["lru"](orders, room=10_000)  # one truth value for each read

* ``belady`` is the optimum, which no policy can beat: L. A. Belady, "A study of replacement
  algorithms for a virtual-storage computer", IBM Systems Journal 5 (1966). What is read need not
  be kept.
* ``ours`` is what overlapiter does. It knows the order of this epoch and of the next, keeps what
  it reads until it has been read, and stages a window ahead of that.
* ``lru`` and ``fifo`` evict what was read, or staged, the longest time ago.
"""

from __future__ import annotations

import collections
import functools
import heapq
from typing import TYPE_CHECKING

import numpy as np

from overlapiter.nextuse import FAR
from overlapiter.order import seeded_order
from overlapiter.store.eviction import Eviction, StagedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    Orders = Sequence[NDArray[np.intp]]
    Policy = Callable[[Orders, int], NDArray[np.bool_]]

ORDER_KINDS = ("shuffled", "drawn", "ascending")
#: The share of the room that may be taken by what is staged ahead of being read.
WINDOW_SHARE = 1 / 16


def epoch_orders(kind: str, n_examples: int, n_epochs: int, seed: int) -> list[NDArray[np.intp]]:
    """Return the order of each epoch.

    Args:
        kind: ``"shuffled"`` anew in each epoch, ``"drawn"`` with replacement, or ``"ascending"``.
        n_examples: Examples in the dataset, and reads in an epoch.
        n_epochs: Epochs.
        seed: The orders follow from it.
    """
    if kind == "shuffled":
        return [seeded_order(seed, epoch, n_examples) for epoch in range(n_epochs)]
    if kind == "drawn":
        random = np.random.default_rng(seed)
        return [random.integers(0, n_examples, n_examples) for _ in range(n_epochs)]
    return [np.arange(n_examples)] * n_epochs


def belady(orders: Orders, room: int) -> NDArray[np.bool_]:
    """Return the misses of a policy that always evicts the farthest next use."""
    reads = np.concatenate(orders)
    next_use = _next_uses(reads).tolist()
    staged: dict[int, int] = {}  # the next use of each example
    farthest: list[tuple[int, int]] = []  # the same as a heap, with entries that are outdated
    missed = np.zeros(len(reads), bool)
    for place, example in enumerate(reads.tolist()):
        missed[place] = example not in staged
        staged[example] = next_use[place]
        heapq.heappush(farthest, (-next_use[place], example))
        while len(staged) > room:
            negative, candidate = heapq.heappop(farthest)
            if staged.get(candidate) == -negative:
                del staged[candidate]
    return missed


def _next_uses(reads: NDArray[np.intp]) -> NDArray[np.int64]:
    """Return for each read the place at which the same example is read next, or FAR."""
    by_example = np.argsort(reads, kind="stable")
    is_same = np.diff(reads[by_example]) == 0
    next_uses = np.full(len(reads), FAR, np.int64)
    next_uses[by_example[:-1][is_same]] = by_example[1:][is_same]
    return next_uses


def ours(orders: Orders, room: int) -> NDArray[np.bool_]:
    """Return the misses of overlapiter, with a window of :data:`WINDOW_SHARE` of the room."""
    size, window = len(orders[0]), int(room * WINDOW_SHARE)
    reads = np.concatenate(orders)
    eviction = Eviction(1 + int(reads.max()))
    for example in range(1 + int(reads.max())):
        eviction.note_absent(example)  # nobody staged it before
    missed = np.zeros(len(reads), bool)
    n_staged = 0
    for place, example in enumerate(reads.tolist()):
        if place % size == 0:
            _learn(eviction, orders, place // size)
        eviction.settle(place - window)
        eviction.hand_out(place, [example])
        missed[place] = is_new = bool(eviction.count_missing([example]))
        if is_new and n_staged >= room:
            for victim in eviction.offer(0, 1):
                eviction.note_evicted(victim, was_there=True)
                n_staged -= 1
        if n_staged + is_new <= room:
            n_staged += is_new
            eviction.note(example, 0, [StagedFile(example + 1, 1)])
    return missed


def _learn(eviction: Eviction, orders: Orders, epoch: int) -> None:
    """Have the order of the next epoch known, and at the start that of the first."""
    for known in (0, 1) if epoch == 0 else (epoch + 1,):
        if known < len(orders):
            eviction.learn({known: orders[known]})


def _queue(orders: Orders, room: int, *, is_renewed: bool) -> NDArray[np.bool_]:
    """Return the misses of a policy that evicts what was staged, or read, the longest time ago."""
    reads = np.concatenate(orders)
    staged: collections.OrderedDict[int, None] = collections.OrderedDict()
    missed = np.zeros(len(reads), bool)
    for place, example in enumerate(reads.tolist()):
        missed[place] = example not in staged
        if missed[place] or is_renewed:
            staged[example] = None
            staged.move_to_end(example)
        if len(staged) > room:
            staged.popitem(last=False)
    return missed


#: The policies by name, the best first.
POLICIES: dict[str, Policy] = {
    "belady": belady,
    "ours": ours,
    "lru": functools.partial(_queue, is_renewed=True),
    "fifo": functools.partial(_queue, is_renewed=False),
}
