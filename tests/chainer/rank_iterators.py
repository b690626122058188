"""Runs under mpiexec: what ChainerMN does with an iterator, for iterators of several kinds.

Arguments: the folder of images.
"""

from mpi4py import MPI  # isort: skip  # first, as in many a program: MPI runs before all else

import functools
import sys
import warnings
from typing import Any

import chainermn
import numpy as np
from chainer.datasets import SubDataset

import overlapiter.mpi
from overlapiter import OverlapIterator, Staging
from tests.chainer.iterator_datasets import indices_of, numbered_images
from tests.chainer.rank_side import (
    KINDS,
    Make,
    content,
    forks,
    one_epoch,
    position,
    report,
    trail,
)
from tests.chainer.scripts import wait_until, workers

warnings.simplefilter("ignore")  # that ChainerMN's iterators are experimental
synchronized = chainermn.iterators.create_synchronized_iterator

N_IMAGES = 20
N_SCATTERED = 22  # of which three ranks cannot have equal parts
images = functools.partial(numbered_images, sys.argv[1])


class Save:
    """A serializer that saves; can be sent to other ranks."""

    def __init__(self, saved: dict[str, Any]) -> None:
        self.saved = saved

    def __call__(self, key: str, value: Any) -> Any:
        self.saved[key] = np.array(value)
        return value


class Load(Save):
    """A serializer that loads what was saved, in place, as Chainer's do."""

    def __call__(self, key: str, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            np.copyto(value, self.saved[key])
            return value
        return self.saved[key].item()


# --- multi-node iterator ----------------------------------------------------------------------


def multi_node(
    comm: Any, make: Make, dataset: Any, batch_size: int, *, master: int = 0, **options: Any
) -> Any:
    """Return the iterator of this rank; that of the master has workers."""
    iterator = make(dataset, batch_size, **options) if comm.rank == master else None
    return chainermn.iterators.create_multi_node_iterator(iterator, comm, master)


def multi_node_whole_batches(comm: Any, make: Make) -> Any:
    return trail(multi_node(comm, make, images(N_IMAGES), 4), 16)


def multi_node_ragged_batches(comm: Any, make: Make) -> Any:
    return trail(multi_node(comm, make, images(N_IMAGES), 7), 10)


def multi_node_other_master(comm: Any, make: Make) -> Any:
    return trail(multi_node(comm, make, images(N_IMAGES), 4, master=comm.size - 1), 6)


def multi_node_ascending(comm: Any, make: Make) -> Any:
    iterator = multi_node(comm, make, images(N_IMAGES), 6, shuffle=False)
    assert comm.rank == 0 or iterator._order is None
    return trail(iterator, 6)


def multi_node_once(comm: Any, make: Make) -> Any:
    return trail(multi_node(comm, make, images(N_IMAGES), 7, repeat=False), 6)


def multi_node_scalars(comm: Any, make: Make) -> Any:
    return trail(multi_node(comm, make, np.arange(9, dtype=np.float32), 4), 6)


def multi_node_pairs(comm: Any, make: Make) -> Any:
    numbers = np.arange(9, dtype=np.float32)
    return trail(multi_node(comm, make, list(zip(numbers, numbers, strict=True)), 4), 6)


def multi_node_texts(comm: Any, make: Make) -> Any:
    try:
        next(multi_node(comm, make, ["text"] * 6, 2))
    except TypeError as error:
        return str(error)
    return "taken"


def multi_node_saved_and_loaded_into_a_plain_one(comm: Any, make: Make) -> Any:
    iterator = multi_node(comm, make, np.arange(6, dtype=np.float32), 2)
    taken = [next(iterator) for _ in range(2)]
    saved: dict[str, Any] = {}
    iterator.serialize(Save(saved))
    plain = make(np.arange(6, dtype=np.float32), 2, random_seed=1)
    plain.serialize(Load(saved))
    before = position(plain)
    taken.append([float(number) for number in next(plain)])
    everything = sorted(float(number) for batch in taken for number in batch)
    return [before, position(plain), everything, float(next(iterator)[0])]


def multi_node_loaded_with_another_order(comm: Any, make: Make) -> Any:
    iterator = multi_node(comm, make, images(N_IMAGES), 4)
    next(iterator)
    saved: dict[str, Any] = {}
    iterator.serialize(Save(saved))
    saved["order"] = np.roll(saved["order"], 1)
    iterator.serialize(Load(saved))
    order = iterator._state.order if comm.rank == 0 else iterator._order
    return [np.asarray(order).tolist(), *trail(iterator, 4)]


def multi_node_workers(comm: Any, make: Make) -> Any:
    """Workers live with the iterator of the master, and nowhere else."""
    before = workers()
    plain = make(images(N_IMAGES), 4)
    iterator = chainermn.iterators.create_multi_node_iterator(plain, comm)
    del plain
    next(iterator)
    if comm.rank:  # no variable kept the iterator
        wait_until(lambda: not workers())
    n_workers = len(workers())
    del iterator
    wait_until(lambda: not workers())
    return [len(before), n_workers]


# --- synchronized iterator --------------------------------------------------------------------


def synchronized_repeating(comm: Any, make: Make, batch_size: int) -> Any:
    iterator = synchronized(make(images(N_IMAGES), batch_size, random_seed=comm.rank), comm)
    epochs = []
    for _ in range(3):
        epoch = iterator.epoch
        epochs.append([epoch, [content(batch) for batch in one_epoch(iterator)]])
    return epochs


def synchronized_reset(comm: Any, make: Make, batch_size: int) -> Any:
    dataset = images(N_IMAGES)
    iterator = synchronized(make(dataset, batch_size, repeat=False, random_seed=comm.rank), comm)
    epochs = []
    for _ in range(3):
        epochs.append([indices_of(batch) for batch in one_epoch(iterator)])
        iterator.reset()
    return epochs


def synchronized_whole_batches(comm: Any, make: Make) -> Any:
    return synchronized_repeating(comm, make, 4)


def synchronized_ragged_batches(comm: Any, make: Make) -> Any:
    return synchronized_repeating(comm, make, 7)


def synchronized_once_whole_batches(comm: Any, make: Make) -> Any:
    return synchronized_reset(comm, make, 4)


def synchronized_once_ragged_batches(comm: Any, make: Make) -> Any:
    return synchronized_reset(comm, make, 7)


def synchronized_reset_amid_an_epoch(comm: Any, make: Make) -> Any:
    iterator = synchronized(make(images(N_IMAGES), 6, random_seed=comm.rank), comm)
    taken = []
    for n_batches in (2, 5, 8):  # in the first epoch, the second, the third
        taken.append([indices_of(next(iterator)) for _ in range(n_batches)])
        iterator.reset()
    return taken


def synchronized_saved_and_loaded(comm: Any, make: Make) -> Any:
    iterator = synchronized(make(images(N_IMAGES), 3, random_seed=comm.rank), comm)
    next(iterator)
    next(iterator)
    saved: dict[str, Any] = {}
    iterator.serialize(Save(saved))
    expected = [indices_of(next(iterator)) for _ in range(4)]
    other = synchronized(make(images(N_IMAGES), 3, random_seed=9 + comm.rank), comm)
    other.serialize(Load(saved))
    return [expected, [indices_of(next(other)) for _ in range(4)]]


def synchronized_workers(comm: Any, make: Make) -> Any:
    """The wrapper does not forward ``finalize``; its end is the end of the workers all the same."""
    with synchronized(make(images(N_IMAGES), 3), comm) as iterator:
        next(iterator)
    n_workers = len(workers())
    del iterator
    wait_until(lambda: not workers())
    return n_workers


# --- datasets ---------------------------------------------------------------------------------


def scattered(comm: Any, make: Make, **options: Any) -> Any:
    whole = images(N_SCATTERED) if comm.rank == 0 else None
    part = chainermn.scatter_dataset(whole, comm, shuffle=True, seed=1, **options)
    once = make(part, 4, repeat=False)
    epochs = []
    for _ in range(2):
        epochs.append([indices_of(batch) for batch in one_epoch(once)])
        once.reset()
    again = make(part, 4)
    n_examples = 3 * len(part)
    taken: list[int] = []
    while len(taken) < n_examples:
        taken += indices_of(next(again))
    return epochs + [taken[i : i + len(part)] for i in range(0, n_examples, len(part))]


def scattered_unequally(comm: Any, make: Make) -> Any:
    return scattered(comm, make, force_equal_length=False)


def scattered_equally(comm: Any, make: Make) -> Any:
    return scattered(comm, make)


def scattered_by_index(comm: Any, make: Make) -> Any:
    begin, end = chainermn.scatter_index(N_SCATTERED, comm, force_equal_length=False)
    part = SubDataset(images(N_SCATTERED), begin, end)
    return [indices_of(batch) for batch in make(part, 3, repeat=False)]


def empty_dataset(comm: Any, make: Make) -> Any:
    empty = chainermn.datasets.create_empty_dataset(images(N_IMAGES))
    iterator = make(chainermn.scatter_dataset(empty, comm), 3)
    return [[next(iterator) == [()] * 3, *position(iterator)] for _ in range(8)]


#: For every kind of iterator.
CHECKS = (
    multi_node_ragged_batches,
    multi_node_once,
    multi_node_loaded_with_another_order,
    synchronized_whole_batches,
    synchronized_once_ragged_batches,
    synchronized_saved_and_loaded,
    scattered_unequally,
    scattered_by_index,
)

#: Staging would change nothing about them.
CHECKS_WITHOUT_STAGING = (
    scattered_equally,
    multi_node_ascending,
    multi_node_other_master,
    multi_node_whole_batches,
    multi_node_scalars,
    multi_node_pairs,
    multi_node_texts,
    multi_node_saved_and_loaded_into_a_plain_one,
    multi_node_workers,
    synchronized_ragged_batches,
    synchronized_once_whole_batches,
    synchronized_reset_amid_an_epoch,
    synchronized_workers,
    empty_dataset,
)


def shared_staging(comm: Any, staging: Staging) -> Any:
    """All ranks read all images at the same time; the root of the dataset is found."""
    with OverlapIterator(
        SubDataset(images(64), 0, 64), 8, n_processes=1, repeat=False, staging=staging
    ) as iterator:
        comm.mpi_comm.Barrier()
        n_examples = sum(len(batch) for batch in iterator)
        counters = iterator.stats()
    return [n_examples, counters.files_staged, counters.opens_source]


def main() -> None:
    assert MPI.Is_initialized()
    comm = overlapiter.mpi.create_communicator("naive")
    results: dict[str, Any] = {
        "shared_staging": shared_staging(comm, Staging("shared", n_prefetchers=1, keep_free=0))
    }
    staging = Staging("staging", source=sys.argv[1], n_prefetchers=1, keep_free=0)
    for kind in KINDS:
        make = Make(kind, staging)
        checks = CHECKS if kind == "staged" else CHECKS + CHECKS_WITHOUT_STAGING
        results[kind] = {check.__name__: check(comm, make) for check in checks}
    report(comm, {**results, "forks": forks})


if __name__ == "__main__":
    main()
