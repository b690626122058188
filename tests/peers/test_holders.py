"""Who holds what: all nodes come to the same plan, from the order alone."""

from __future__ import annotations

import numpy as np
import pytest

from overlapiter.order import Indices
from overlapiter.peers.holders import NOWHERE, NodeShare
from overlapiter.scatter import ScatteredOrder, ScatterState
from overlapiter.store.elsewhere import Holders

N = 97
NODE_OF_RANK = (0, 0, 1, 2)


def shares(remainder: str = "fill", start: tuple[int, int] = (0, 0)) -> list[NodeShare]:
    found = []
    for rank in range(len(NODE_OF_RANK)):
        order = ScatteredOrder(rank, len(NODE_OF_RANK), 5, remainder=remainder)  # type: ignore[arg-type]  # one of three
        found.append(NodeShare(order, NODE_OF_RANK, N))
        found[-1].begin(*first_state(order, *start))
    return found


def first_state(
    order: ScatteredOrder, epoch: int, global_position: int
) -> tuple[int, int, Indices]:
    """Return epoch, position and order of a rank that goes on somewhere."""
    state = ScatterState(5, N, 0, epoch, 0, global_position)
    return epoch, *order.resume(state, N)


@pytest.mark.parametrize("remainder", ["fill", "drop", "uneven"])
def test_each_example_has_one_holder_that_reads_it_first(remainder: str) -> None:
    for rank, share in enumerate(shares(remainder)):
        holders = share.sharing([0])
        first = ScatteredOrder(rank, 4, 5, remainder=remainder).of_epoch(0, N)  # type: ignore[arg-type]  # one of three
        own = np.flatnonzero(holders.first == NODE_OF_RANK[rank])
        assert remainder == "drop" or set(first[: N // 4]) <= set(own)
        assert (holders.first == shares(remainder)[0].sharing([0]).first).all()
        assert (holders.first != NOWHERE).all()
        assert np.array_equal(holders.is_elsewhere(), holders.first != NODE_OF_RANK[rank])


def test_its_latest_readers_are_the_further_holders_of_an_example() -> None:
    share = shares()[2]
    orders = [[set(ScatteredOrder(r, 4, 5).of_epoch(e, N)) for r in range(4)] for e in range(5)]
    holders = share.sharing([3, 4])
    example = next(e for e in range(N) if e in orders[3][0] and e in orders[2][3])
    (found,) = holders.of([example], 4 * holders.length, 4 * holders.length)
    assert found is not None
    assert found.nodes == tuple(dict.fromkeys([holders.first[example], 0, 2]))
    (found,) = holders.of([example], 0, 0)  # an epoch that this plan is not of
    assert found is not None
    assert found.nodes == (holders.first[example],)


def test_in_the_first_epoch_none_is_asked_that_cannot_have_it_yet() -> None:
    holders = shares()[0].sharing([0])
    for example, found in enumerate(holders.of(range(N), 0, 0)):
        first = int(holders.first[example])
        assert found == (None if first == 0 else Holders((first,), is_coming=True))


def test_what_a_node_serves_is_what_others_read_of_what_it_holds() -> None:
    orders = [ScatteredOrder(rank, 4, 5) for rank in range(4)]
    for rank, share in enumerate(shares()):
        sharing = share.sharing([1])
        own = set(np.flatnonzero(sharing.first == NODE_OF_RANK[rank]).tolist())
        elsewhere = [r for r in range(4) if NODE_OF_RANK[r] != NODE_OF_RANK[rank]]
        expected = {
            int(example): place
            for r in reversed(elsewhere)
            for place, example in reversed([*enumerate(orders[r].of_epoch(1, N))])
            if int(example) in own
        }
        served = sharing.served[1]
        found = dict(zip(served.examples.tolist(), served.offsets.tolist(), strict=True))
        assert found.items() <= expected.items()
        assert len(expected) - len(found) <= 3  # those that fill the last row
        assert (np.diff(served.offsets) >= 0).all()


def test_a_run_that_goes_on_amid_an_epoch_counts_from_there() -> None:
    begun = shares(start=(2, 40))
    order = ScatteredOrder(0, 1, 5).of_epoch(2, N)
    nodes = begun[0].sharing([2]).first
    for place, example in enumerate(order[40:]):
        assert nodes[example] == NODE_OF_RANK[place % 4]
    later = ScatteredOrder(0, 1, 5).of_epoch(3, N)
    assert all(
        nodes[example] == NODE_OF_RANK[place % 4]
        for place, example in enumerate(later)
        if example in set(order[:40])
    )


def test_a_holder_that_has_not_read_its_file_yet_is_about_to() -> None:
    share = shares()[0]
    holders = share.sharing([0])
    elsewhere = np.flatnonzero(holders.is_elsewhere())
    late = elsewhere[np.argmax(holders.since[elsewhere])]
    position = int(holders.since[late])
    found = [holders.of([int(late)], 0, settled)[0] for settled in (0, position, position + 1)]
    assert [each is not None and each.is_coming for each in found] == [True, True, False]
    assert holders.of([int(np.flatnonzero(holders.first == 0)[0])], 0, 0) == [None]
