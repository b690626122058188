"""The tensors in a dataset on their way to the workers."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from overlapiter.torch.memory import FacePickler  # noqa: E402
from overlapiter.workers.start.parcel import pickled_pieces  # noqa: E402
from tests.torch import torch_datasets as D  # noqa: E402
from tests.torch.comparing import assert_alike, assert_same  # noqa: E402
from tests.torch.conftest import Pair  # noqa: E402


def sent(things: list[Any]) -> tuple[list[Any], int]:
    """Return what arrives, and how many bytes were sent."""
    pieces = pickled_pieces(things, FacePickler)
    buffers = [bytearray(piece) for piece in pieces[1:]]
    return pickle.loads(pieces[0], buffers=buffers), sum(piece.nbytes for piece in pieces)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_memory_of_many_views_is_sent_once(dtype: torch.dtype) -> None:
    signal = torch.arange(40_000).reshape(4, 10_000).to(dtype)
    views = [signal[:, 10 * t : 10 * t + 20] for t in range(900)]
    found, n_bytes = sent(views)
    assert_same(found, views)
    assert n_bytes < 40_000 * dtype.itemsize + 900 * 150
    found[0][0, 15] = -1  # they overlap as before
    assert found[1][0, 5] == -1


def test_tensors_of_all_kinds_arrive_as_they_are() -> None:
    whole = torch.arange(24).reshape(4, 6)
    things = [
        *(whole.t(), whole[::2, 1:3], whole.view(torch.int32)[:, 1::2], whole[1], whole),
        *(torch.ones(1).expand(5), torch.empty(0, 3).t(), torch.tensor(3.0)),
        *(torch.ones(2, dtype=torch.bfloat16), torch.ones(2, 2, dtype=torch.bfloat16).t()),
        *(torch.full((3,), 1j).conj(), torch._neg_view(torch.ones(3))),
        *(
            torch.ones(2, 3, requires_grad=True).t().detach(),
            torch.from_numpy(whole.numpy()[:2]).t(),
        ),
    ]
    found, _ = sent(things)
    assert_same(found, things)
    trained = sent([torch.ones(3, requires_grad=True)])[0][0]
    assert trained.requires_grad


def test_a_dataset_of_views_gives_the_same_mini_batches(plain_pair: Pair) -> None:
    signal = torch.arange(400).reshape(4, 100)
    dataset = D.Given([signal[:, 10 * t : 10 * t + 20] for t in range(8)])
    assert len(assert_alike(plain_pair, dataset, batch_size=3)) == 3
