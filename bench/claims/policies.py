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

import functools
import heapq
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Orders = Sequence[NDArray[np.intp]]
Policy = Callable[[Orders, int], NDArray[np.bool_]]


def _misses(orders: Orders, room: int, priority_of: Callable[..., int]) -> NDArray[np.bool_]:
    """Return the misses of a policy that evicts the example of the least priority.

    Args:
        orders: Of the epochs.
        room: How many examples may be staged.
        priority_of: Takes the place of a read, the place at which its example is read next, and the
            priority that the example had, if it was staged.
    """
    reads = np.concatenate(orders)
    next_uses = _next_uses(reads).tolist()
    staged: dict[int, int] = {}  # the priority of each example
    least: list[tuple[int, int]] = []  # the same as a heap, with entries that are outdated
    missed = np.zeros(len(reads), bool)
    for place, example in enumerate(reads.tolist()):
        missed[place] = example not in staged
        staged[example] = priority_of(place, next_uses[place], staged.get(example, place))
        heapq.heappush(least, (staged[example], example))
        while len(staged) > room:
            priority, candidate = heapq.heappop(least)
            if staged.get(candidate) == priority:
                del staged[candidate]
    return missed


def _next_uses(reads: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return for each read the place at which the same example is read next, or their number."""
    by_example = np.argsort(reads, kind="stable")
    is_same = np.diff(reads[by_example]) == 0
    next_uses = np.full(len(reads), len(reads))
    next_uses[by_example[:-1][is_same]] = by_example[1:][is_same]
    return next_uses


#: The policies by name, the best first.
POLICIES: dict[str, Policy] = {
    "belady": functools.partial(_misses, priority_of=lambda _place, next_use, _before: -next_use),
    "lru": functools.partial(_misses, priority_of=lambda place, _next_use, _before: place),
    "fifo": functools.partial(_misses, priority_of=lambda _place, _next_use, before: before),
}
