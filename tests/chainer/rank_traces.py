"""Runs under mpiexec: two epochs of an iterator that is traced.

Arguments: the folder of images.
"""

import sys

import chainermn

import overlapiter
from overlapiter import OverlapIterator, Staging
from tests.chainer.iterator_datasets import numbered_images
from tests.chainer.rank_side import report


def main() -> None:
    """Take two epochs."""
    comm = chainermn.create_communicator("naive")
    order = overlapiter.scatter_order(comm, seed=1)
    images, staging = numbered_images(sys.argv[1], 61), Staging("staging", source=sys.argv[1])
    with OverlapIterator(
        images, 2, n_processes=1, order_sampler=order, staging=staging, trace="out.json"
    ) as iterator:
        while iterator.epoch < 2:
            next(iterator)
    report(comm, comm.rank)


if __name__ == "__main__":
    main()
