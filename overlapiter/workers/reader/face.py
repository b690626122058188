"""What a framework adds to the work of a file reader."""

from __future__ import annotations

import contextlib
import pickle
import random
from typing import Any

import numpy as np

from overlapiter.importhook import when_imported
from overlapiter.sharedmem.layout import Structure, flatten
from overlapiter.sources import Dataset


class Face:
    """What file readers do besides ``dataset[i]``; this one, of no framework, does little.

    A framework's own one is pickled in the place of the dataset, which it holds.

    Attributes:
        collates: Whether a mini-batch is read by one file reader, as a whole, and what
            :meth:`collate` makes of it is written to the slot in the place of its examples.
        deals_in_turn: Whether reader ``k`` of ``n`` reads the mini-batches ``k``, ``k + n``, …
            since the start of an epoch, each as a whole.
        fetches_whole: Whether :meth:`fetch_whole` asks the dataset for such a mini-batch.
        renewal: What the trainer has sent for the processes of this epoch; None for nothing.
    """

    collates = False
    deals_in_turn = False
    fetches_whole = False
    renewal: Any = None

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    def begin(self, number: int, n_readers: int) -> None:
        """Prepare the process of file reader ``number``; what it raises all its parts raise.

        A prefetcher calls it, too, before it asks the dataset which files an example reads.
        """

    def seed_example(self, seed: int, epoch: int, index: int) -> bytes:
        """Set ``random`` and ``numpy.random`` to a state that follows from the arguments alone.

        Returns:
            16 bytes that follow from them, too, to seed more.
        """
        words = np.random.SeedSequence([seed, epoch, index % 2**64]).generate_state(4)
        np.random.seed(words)  # the global stream is what datasets use
        random.seed(words.tobytes())
        return words.tobytes()

    def fetch_whole(self, indices: list[int]) -> Any:
        """Return the examples of a mini-batch, asked for with one call, for :meth:`collate`."""
        return [self.dataset[index] for index in indices]

    def take_apart(self, example: object) -> tuple[Structure, list[Any]]:
        """Return the structure of an example and its leaves, as arrays where it has some."""
        return flatten(example)

    def collate(self, examples: Any) -> object:
        """Return what is made of a mini-batch."""
        return examples

    def failure(self, error: BaseException) -> BaseException:
        """Return what is to travel to the trainer for what the user's code raised."""
        return error


class ChainerFace(Face):
    """Has Chainer configured in file readers as it is in the trainer.

    It imports nothing of Chainer, which a dataset may do without, and does not stand in our package
    for Chainer, whose import would take each supervisor 3 ms.
    """

    def __init__(self, dataset: Dataset, config: dict[str, bytes]) -> None:
        super().__init__(dataset)
        self._config = config  # the values of ``chainer.config``, each pickled

    def begin(self, number: int, n_readers: int) -> None:
        """Configure Chainer now if this process has imported it, and whenever it does."""
        super().begin(number, n_readers)
        when_imported("chainer", self._configure)

    def _configure(self, chainer: Any, is_complete: bool) -> None:
        if not is_complete:
            return
        for name, pickled in self._config.items():
            with contextlib.suppress(Exception):  # a value of the user's, for the trainer alone
                setattr(chainer.global_config, name, pickle.loads(pickled))
