"""One run of a loader in each rank of a job, which all read one slow store.

Groups of ranks of ``mpiexec`` are nodes, each with a staging directory of its own; or the ranks are
those of a job of the user's, in which this process is one. The order of the examples is scattered
anew over all ranks in each epoch ("global"), is so without that a rank knows what the others read
("apart"), or is that of a fixed shard for each rank ("shards").
"""

import itertools
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

import overlapiter.mpi
from bench.harness import isolated
from bench.loaders.adapters import ADAPTERS, Part
from bench.loaders.files import copy_files, forget_files
from bench.loaders.run import data_of, drive
from bench.loaders.sources import ROOM_BYTES, room_of
from bench.loaders.spec import RunSpec
from bench.slow import SlowStore, slow_store
from bench.slow.store import OpenRecord
from overlapiter.node import this_node
from overlapiter.scatter import ScatteredOrder

#: See :func:`run_ranks`.
StepOf = Callable[[dict, Any, int], tuple[Callable[[Any, list], float], Callable[[], dict]]]
_numbers = itertools.count()


def run_ranks(
    spec: RunSpec, step_of: StepOf, request: dict, n_ranks: int, n_nodes: int = 1,
    n_threads: int | None = None,
) -> tuple[list[dict], list[OpenRecord]]:  # fmt: skip
    """Run the ranks of a job over a slow store of its own, which share the cores.

    In each rank ``step_of`` takes the request, with ``spec``, ChainerMN's communicator and the
    device; it returns what trains on a mini-batch of a loader and gives the loss, and what has
    more to report. Without ``n_ranks`` this process is a rank of a job of the user's. NumPy's BLAS
    has ``n_threads`` in each, or its share of the cores.

    Returned are what each rank reports, which only the first one of a job of the user's gets, and
    each open of the store if it is emulated.
    """
    staging = Path(spec.staging).with_name(f"staging-{next(_numbers)}")
    spec = replace(spec, staging=str(staging))
    with slow_store(spec) as store:
        told = {"communicator": "naive", **request, "spec": spec, "store": store}
        told["step_of"] = step_of
        if n_ranks:
            launcher = partial(isolated.launch, n_ranks=n_ranks, n_nodes=n_nodes)
            n_threads = n_threads or max(1, len(os.sched_getaffinity(0)) // (n_nodes * n_ranks))
            # A rank that waits for the others is not to take the cores that their readers need.
            sharing = {"OMPI_MCA_mpi_yield_when_idle": "1", "OMP_NUM_THREADS": str(n_threads)}
            found = isolated.call(rank, told, launcher, **sharing)
        else:
            found = rank(told) or {"ranks": []}
        records = store.records() if isinstance(store, SlowStore) else []
    if spec.local_root or room_of(staging.parent) < ROOM_BYTES:  # a data set may be large
        shutil.rmtree(staging, ignore_errors=True)
    return found["ranks"], records


def rank(request: dict) -> dict | None:
    """Be one rank; all ranks call it at the same time, and the first one gets the result.

    The clock runs from before the loader is made until the last mini-batch has been trained on;
    Python's forkserver is running by then, since it is started before MPI.
    """
    comm = overlapiter.mpi.create_communicator(request["communicator"])
    spec, store, node = request["spec"], request["store"], this_node()
    device = -1 if request["communicator"] == "naive" else node.local_rank
    train, more = request["step_of"](request, comm, device)
    spec = replace(spec, staging=os.path.join(spec.staging, node.name))
    os.makedirs(spec.staging, exist_ok=True)
    if spec.is_local and node.local_rank == 0:
        missing = [path for path in spec.paths() if not Path(spec.local, path).exists()]
        copy_files(missing, spec.root, spec.local, n_streams=16)
    elif spec.local_root and node.local_rank == 0:  # a store of the user's
        forget_files(spec.paths(), spec.root)
    comm.mpi_comm.Barrier()
    spec, dataset = data_of(spec, store)
    dataset, sampler = _scattered(spec, dataset, comm)
    open_loader = cache(partial(ADAPTERS[spec.loader], spec, dataset, Part(comm, sampler, device)))
    if spec.loader == "synthetic":
        open_loader()  # before the clock starts
    comm.mpi_comm.Barrier()

    def facts() -> dict:
        found = more()
        comm.mpi_comm.Barrier()  # before a rank ends processes, which takes time of the others
        return {"more": found}

    found = drive(spec, open_loader, store, train=train, at_end=facts)
    told = {"rank": comm.rank, "node": node.name, "start_seconds": found["first_batch_seconds"]}
    # All: no rank goes on, and removes what is staged, before the others have ended theirs.
    ranks = comm.mpi_comm.allgather({**told, "epochs": found["epochs"], **found["more"]})
    return {"ranks": ranks} if comm.rank == 0 else None


def _scattered(spec: RunSpec, dataset: Any, comm: Any) -> tuple[Any, Any]:
    """Return the examples of a rank and what draws their order; all ranks call it."""
    if spec.order == "apart":
        return dataset, ScatteredOrder(comm.rank, comm.size, spec.seed)
    if spec.order == "global":
        return dataset, overlapiter.scatter_order(comm, seed=spec.seed)
    import chainermn
    from chainer.iterators import ShuffleOrderSampler

    shard = chainermn.scatter_dataset(dataset, comm, shuffle=True, seed=spec.seed)
    return shard, ShuffleOrderSampler(np.random.RandomState([spec.seed, comm.rank]))
