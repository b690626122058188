"""Runs under mpiexec: iterators whose order is scattered over the ranks, saved and resumed.

Arguments: what to do, the folder of images, the snapshot to resume from.
"""

import os
import pickle
import sys
import warnings
from pathlib import Path
from typing import Any

import chainermn
from chainer.serializers import load_npz, save_npz

import overlapiter
import overlapiter.mpi
from overlapiter import OverlapIterator, Staging
from tests.chainer.iterator_datasets import DeclaredFiles, indices_of, numbered_images
from tests.chainer.rank_side import content, forks, report

warnings.simplefilter("ignore")  # that ChainerMN finds its own checkpointer out of date

N_IMAGES, SEED = 61, 4
N_FILES, FILE_BYTES = 240, 4096


class Recording:
    """A communicator that notes what is called, and how much it is given."""

    def __init__(self, comm: Any) -> None:
        self._comm = comm
        self.calls: list[tuple[str, int]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._comm, name)
        if not callable(found):
            return found

        def call(*arguments: Any) -> Any:
            self.calls.append((name, len(pickle.dumps(arguments))))
            return found(*arguments)

        return call


def make(
    comm: Any, batch_size: int, directory: str | None = "staging", peers: Any = None
) -> OverlapIterator:
    staging = None
    if directory is not None:
        staging = Staging(directory, source=sys.argv[2], n_prefetchers=1, keep_free=0, peers=peers)
    return OverlapIterator(
        numbered_images(Path(sys.argv[2]), N_IMAGES),
        batch_size,
        n_processes=1,
        order_sampler=overlapiter.scatter_order(comm, SEED),
        staging=staging,
    )


def taken(iterator: OverlapIterator, n_batches: int) -> list[list[Any]]:
    """Take mini-batches; return the epoch of each example, its index, and a digest of it."""
    examples = []
    for _ in range(n_batches):
        epoch, left = iterator.epoch, iterator._epoch_size - iterator.current_position
        examples += [
            [epoch + (place >= left), *indices_of([example]), content([example])]
            for place, example in enumerate(next(iterator))
        ]
    return examples


# --- the agreement ----------------------------------------------------------------------------


def agreement(comm: Any) -> Any:
    recording = Recording(comm)
    sampler = overlapiter.scatter_order(recording, SEED)
    dataset = numbered_images(Path(sys.argv[2]), N_IMAGES)
    with OverlapIterator(dataset, 4, n_processes=1, order_sampler=sampler) as iterator:
        taken(iterator, 9)
    try:
        overlapiter.scatter_order(comm, comm.rank)
    except overlapiter.errors.OptionError as error:
        refusal = str(error)
    return {
        "calls": recording.calls,
        "drawn": [overlapiter.scatter_order(c).seed for c in (comm, comm.mpi_comm)],
        "refusal": refusal,
    }


# --- saving and resuming ----------------------------------------------------------------------


def begun(comm: Any) -> Any:
    """Take some of the first epoch, save it in several ways, and go on from each of them."""
    checkpointer = chainermn.create_multi_node_checkpointer("run", comm, path="checkpoints")
    iterator = make(comm, 3)
    examples = taken(iterator, 3)
    checkpointer.save(iterator, 3)
    if comm.rank == 0:
        save_npz("begun.npz", iterator)
    results = {"taken": examples, "went on": taken(iterator, 25)}
    iterator.finalize()
    comm.mpi_comm.Barrier()
    with make(comm, 3) as own, make(comm, 3) as of_rank_0:
        again = chainermn.create_multi_node_checkpointer("run", comm, path="checkpoints")
        again.maybe_load(own)
        load_npz("begun.npz", of_rank_0)
        results["resumed"] = [taken(own, 25), taken(of_rank_0, 25)]
    return results | agreement(comm) | {"peers": with_peers(comm)}


def resumed(comm: Any) -> Any:
    """Go on from a snapshot of rank 0 of another number of ranks; the last rank takes the next."""
    with make(comm, 3) as iterator:
        load_npz(sys.argv[3], iterator)
        examples = taken(iterator, 2)
        if comm.rank == comm.size - 1:
            save_npz("resumed.npz", iterator)
        results = {"taken": examples, "went on": taken(iterator, 21)}
    if comm.size > 2:
        results |= {"small": reads(comm, 0.5), "large": reads(comm, None)}
    return results


def with_peers(comm: Any) -> Any:
    """Take some with peers, from a snapshot if there is one; save; go on; take all without."""
    node = os.environ["OVERLAPITER_NODE"]
    with make(comm, 3, f"fast-{node}", comm) as iterator, make(comm, 3, None) as alone:
        for each in (iterator, alone) if sys.argv[3] else ():
            load_npz(sys.argv[3], each)
        results = {"taken": taken(iterator, 3)}
        if comm.rank == 0:
            save_npz(f"of-{comm.size}.npz", iterator)
        results |= {"went on": taken(iterator, 12), "alone": taken(alone, 15)}
        comm.mpi_comm.Barrier()  # those that are ahead serve the others
        return results | {"files_peer": iterator.stats().files_peer}


# --- a directory that the ranks share ---------------------------------------------------------


def reads(comm: Any, share: float | None) -> list[int]:
    """Return how many reads of the slow store this rank has caused after each epoch.

    Args:
        comm: The communicator.
        share: Of the data set, what the staging directory holds; None for all of it.
    """
    folder, directory = Path(f"source-{share}"), f"shared-{share}"
    names = [f"{number:04}" for number in range(N_FILES)]
    if comm.rank == 0:
        folder.mkdir()
        for name in names:
            (folder / name).write_bytes(bytes(FILE_BYTES))
    comm.mpi_comm.Barrier()
    capacity = None if share is None else int(share * N_FILES * FILE_BYTES)
    found = []
    with OverlapIterator(
        DeclaredFiles(folder.resolve(), names),
        3,
        n_processes=1,
        order_sampler=overlapiter.scatter_order(comm, SEED),
        staging=Staging(directory, source=folder, capacity=capacity, keep_free=0, n_prefetchers=1),
    ) as iterator:
        for _ in range(3):
            for _ in range(N_FILES // comm.size // 3):
                next(iterator)
                comm.mpi_comm.Barrier()  # as the exchange of the gradients
            stats = iterator.stats()
            found.append(stats.files_staged + stats.files_refused + stats.opens_source)
    return found


def main() -> None:
    comm = overlapiter.mpi.create_communicator("naive")
    deed = {"begun": begun, "resumed": resumed, "with peers": with_peers}[sys.argv[1]]
    report(comm, {**deed(comm), "forks": forks})


if __name__ == "__main__":
    main()
