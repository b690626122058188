"""Indices that cannot be hashed are hashed by what they are, in any process."""

from __future__ import annotations

import pickle

import numpy as np

from overlapiter.sources import Key, index_maker


class Unloadable:
    def __reduce__(self) -> object:
        return int, ("x",)


def test_equal_keys_are_equal_wherever_they_come_from():
    keys = {Key.of([1, 2]), Key.of(np.arange(3)), pickle.loads(pickle.dumps(Key.of([1, 2])))}
    assert len(keys) == 2
    assert Key.of([1, 2]) not in {1: 2, "a": 3}
    assert index_maker("O")(Key.of([1, 2])) == [1, 2]
    assert index_maker("O")((1, 2)) == (1, 2)


def test_a_key_is_shown_as_the_index_if_it_can_be():
    assert f"{Key.of([1, 'a'])}" == "[1, 'a']"
    assert f"{Key.of(Unloadable())}" == "with a key that cannot be shown"
