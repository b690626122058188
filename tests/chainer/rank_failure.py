"""Runs under mpiexec: the iterator of the last rank raises, while the others wait for that rank.

Arguments: what goes wrong, the folder of images.
"""

import sys
from pathlib import Path
from typing import Any

import chainermn
from chainer.datasets import LabeledImageDataset

from overlapiter import OverlapIterator, Staging
from tests.chainer.iterator_datasets import Culprit, numbered_images


def dataset(is_culprit: bool) -> Any:
    if not is_culprit:
        return numbered_images(Path(sys.argv[2]), 12)
    if sys.argv[1] == "a reader dies":
        return Culprit(12, 5, "exits_hard")
    pairs = [("missing.jpg" if i == 5 else f"{i:05}.jpg", i) for i in range(12)]
    return LabeledImageDataset(pairs, sys.argv[2])


def main() -> None:
    chainermn.global_except_hook.add_hook()
    comm = chainermn.create_communicator("naive")
    iterator = OverlapIterator(
        dataset(comm.rank == comm.size - 1),
        2,
        shuffle=False,
        n_processes=1,
        staging=Staging("staging", source=sys.argv[2], n_prefetchers=1, keep_free=0),
    )
    for _ in range(6):
        next(iterator)
        comm.mpi_comm.Barrier()


if __name__ == "__main__":
    main()
