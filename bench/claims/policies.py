"""Which reads miss a staging directory that holds a part of the files, by replacement policy. Pure.

Every example is one file, and all files are of one size. A policy is given the examples in the
order in which they are read over all epochs and says of each read whether it misses, that is,
crosses the slow store::

    missed = POLICIES["lru"](orders, room=10_000)  # one truth value for each read

* ``belady`` is the optimum, which no policy can beat: L. A. Belady, "A study of replacement
  algorithms for a virtual-storage computer", IBM Systems Journal 5 (1966). What is read need not
  be kept.
* ``lru`` and ``fifo`` evict what was read, or staged, the longest time ago.
"""

from __future__ import annotations

import collections
import functools
import heapq
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Orders = Sequence[NDArray[np.intp]]
Policy = Callable[[Orders, int], NDArray[np.bool_]]


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


def _next_uses(reads: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return for each read the place at which the same example is read next, or their number."""
    by_example = np.argsort(reads, kind="stable")
    is_same = np.diff(reads[by_example]) == 0
    next_uses = np.full(len(reads), len(reads))
    next_uses[by_example[:-1][is_same]] = by_example[1:][is_same]
    return next_uses


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
    "lru": functools.partial(_queue, is_renewed=True),
    "fifo": functools.partial(_queue, is_renewed=False),
}
