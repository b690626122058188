"""The simulated policies, against brute force and by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.claims import misses_simulated as misses
from bench.claims.policies import ORDER_KINDS, POLICIES, epoch_orders
from bench.harness import claim


def missed(policy: str, reads: list[int], room: int) -> list[bool]:
    return POLICIES[policy]([np.array(reads)], room).tolist()


def least_misses(reads: tuple[int, ...], room: int, staged: frozenset[int] = frozenset()) -> int:
    """Return how few reads can miss, by trying everything that may be evicted, or not be kept."""
    if not reads:
        return 0
    first, rest = reads[0], reads[1:]
    if first in staged:
        return least_misses(rest, room, staged)
    wider = staged | {first}
    choices = [wider] if len(wider) <= room else [wider - {gone} for gone in wider]
    return 1 + min(least_misses(rest, room, choice) for choice in choices)


@given(st.lists(st.integers(0, 4), min_size=1, max_size=9), st.integers(1, 4))
def test_belady_misses_as_rarely_as_can_be(reads: list[int], room: int) -> None:
    assert sum(missed("belady", reads, room)) == least_misses(tuple(reads), room)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(1, 8))
def test_no_policy_beats_belady_and_each_misses_every_first_read(
    reads: list[int], room: int
) -> None:
    least = sum(missed("belady", reads, room))
    firsts = [reads.index(read) for read in set(reads)]
    for policy in POLICIES:
        found = missed(policy, reads, room)
        assert sum(found) >= least
        assert all(found[place] for place in firsts)


@pytest.mark.parametrize("policy", POLICIES)
def test_with_room_for_everything_each_example_is_read_once(policy: str) -> None:
    reads = [2, 0, 1, 1, 2, 0, 2, 0, 1]
    assert missed(policy, reads, 3) == [True, True, True] + [False] * 6


def test_what_was_read_lately_stays_in_one_queue_and_goes_from_the_other() -> None:
    reads = [0, 1, 0, 2, 0]  # the third read renews 0 for one of them
    assert missed("lru", reads, 2) == [True, True, False, True, False]
    assert missed("fifo", reads, 2) == [True, True, False, True, True]


@pytest.mark.parametrize("kind", ORDER_KINDS)
def test_orders_are_of_their_kind_and_follow_from_the_seed(kind: str) -> None:
    one, same, other = (epoch_orders(kind, 50, 2, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert np.array_equal(one[0], other[0]) == (kind == "ascending")
    assert np.array_equal(one[0], one[1]) == (kind == "ascending")
    assert (sorted(one[0]) == [*range(50)]) == (kind != "drawn")
    assert set(np.concatenate(one)) <= set(range(50))


@pytest.mark.parametrize("fraction", misses.FRACTIONS)
def test_of_fresh_shuffles_ours_misses_as_many_as_the_optimum_and_the_others_more(
    fraction: float,
) -> None:
    point = misses.simulate("shuffled", fraction, n_examples=1000, n_epochs=4, seed=0)
    shares = {name: misses.later_share(point, name) for name in POLICIES}
    assert shares["belady"] == pytest.approx(1 - fraction, abs=0.01)
    assert shares["ours"] == pytest.approx(shares["belady"], abs=0.02)
    assert min(shares["lru"], shares["fifo"]) > shares["ours"] + 0.05


def test_the_command_line_writes_the_misses_and_the_figure_is_drawn_from_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "misses.json"
    claim.run("misses-simulated", ["--quick", "--out", str(out)])
    result = json.loads(out.read_text())
    assert len(result["points"]) == len(ORDER_KINDS) * len(misses.FRACTIONS)
    assert "shuffled" in capsys.readouterr().out
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
