"""Runs under mpiexec: the workers of one iterator start before MPI, those of another after.

Arguments: the folder of images. The fork server is the program's own, as ChainerMN's guide has it.
"""

import multiprocessing
import sys
import warnings

import chainermn
import mpi4py
import psutil

from overlapiter import OverlapIterator, Staging
from tests.chainer.iterator_datasets import indices_of, numbered_images
from tests.chainer.rank_side import forks, report

warnings.simplefilter("ignore")  # that ChainerMN's iterators are experimental
mpi4py.rc.initialize = False


def main() -> None:
    multiprocessing.set_start_method("forkserver")
    process = multiprocessing.Process(target=len, args=("",))
    process.start()
    process.join()
    staging = Staging("staging", source=sys.argv[1], n_prefetchers=1, keep_free=0)
    images = numbered_images(sys.argv[1], 12)
    early = OverlapIterator(images, 4, shuffle=False, n_processes=1, staging=staging)
    taken = [indices_of(next(early))]
    children = psutil.Process().children()

    from mpi4py import MPI

    MPI.Init()
    comm = chainermn.create_communicator("naive")
    late = OverlapIterator(images, 4, shuffle=False, n_processes=1, staging=staging)
    for iterator in (early, late):
        shared = chainermn.iterators.create_multi_node_iterator(iterator, comm)
        taken += [indices_of(next(shared)) for _ in range(3)]
    has_new_children = psutil.Process().children() != children
    report(comm, {"taken": taken, "has new children": has_new_children, "forks": forks})
    MPI.Finalize()  # and the workers end after MPI


if __name__ == "__main__":
    main()
