"""A rank on a host of its own: a network namespace, in which no launcher starts it.

Arguments: its rank, the number of ranks, the number of files, the number of epochs. Amid each
epoch it prints a line and waits for one; in the end it prints what it found as JSON.
"""

import json
import math
import os
import sys
import time
from pathlib import Path

from bench.slow import SlowStore
from bench.slow.store import attach
from overlapiter import OverlapIterator, Rendezvous, Staging, scatter_order
from tests.chainer.iterator_datasets import DeclaredFiles

BATCH_SIZE = 4


def main() -> None:
    rank, size, n_files, n_epochs = map(int, sys.argv[1:])
    comm = Rendezvous("meeting", rank, size)
    names = [f"{number:04}" for number in range(n_files)]
    found: dict[str, list[float]] = {"reads": [], "seconds": [], "wrong": [], "faults": []}
    staging = Staging(
        f"fast-{rank}", source="source", keep_free=0, n_prefetchers=1, look_ahead=4, peers=comm
    )
    sampler = scatter_order(comm, 3)
    source = Path("source").resolve()
    store = SlowStore(source, 0.005, math.inf)  # farther than the other host
    dataset = attach(DeclaredFiles(source, names), store)
    with OverlapIterator(
        dataset, BATCH_SIZE, n_processes=1, order_sampler=sampler, staging=staging
    ) as iterator:
        for epoch in range(n_epochs):
            order, taken = sampler.of_epoch(epoch, n_files).tolist(), []
            n_batches = len(order) // BATCH_SIZE
            for place in range(n_batches):
                if place == n_batches // 2:
                    print(epoch, flush=True)  # noqa: T201  # to the test
                    sys.stdin.readline()
                    began = time.monotonic()
                taken += [int(index) for _, index in next(iterator)]
            found["seconds"].append(time.monotonic() - began)
            found["wrong"].append(taken != order)
            stats = iterator.stats()
            found["reads"].append(stats.files_staged + stats.opens_source)
            found["faults"].append(stats.peer_faults)
            comm.allgather(epoch)
    print(json.dumps(found), flush=True)  # noqa: T201  # to the test


if __name__ == "__main__":
    os.environ["OVERLAPITER_NODE"] = f"host-{sys.argv[1]}"
    main()
