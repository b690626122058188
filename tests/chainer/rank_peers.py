"""Runs under mpiexec: ranks on several nodes that give each other what they have staged.

Arguments: how the ranks find each other, the share of the files that a node has room for, what
happens amid each epoch from the second one on: nothing, or a signal to a server; how many
milliseconds the slow store takes to open a file: if several, there is a run for each, and those
with the same number share their directories; whether the dataset declares its files.
"""

import contextlib
import math
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil

import overlapiter
import overlapiter.mpi
from bench.slow import SlowStore
from bench.slow.store import attach
from overlapiter import OverlapIterator, Staging
from tests.chainer.iterator_datasets import DeclaredFiles, SourceFiles
from tests.chainer.rank_side import forks, report

N_FILES, FILE_BYTES, BATCH_SIZE, N_EPOCHS, SEED = 480, 4000, 4, 4, 7
_BLOCK_BYTES = 4096
NAMES = [f"{number:04}" for number in range(N_FILES)]
KINDS = {"declared": DeclaredFiles, "found": SourceFiles}


def content(number: int) -> bytes:
    return int(number).to_bytes(4, "little") * (FILE_BYTES // 4)


def signal_server(which: str) -> None:
    """Send a signal to the server of this rank."""
    for process in psutil.process_iter(["name"]):
        if process.info["name"] == "ovl-peer" and whose(process) == whose(psutil.Process()):
            os.kill(process.pid, {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}[which])


def whose(process: psutil.Process) -> list[str]:
    """Return by which job, and on which node of it, a process was started."""
    with contextlib.suppress(psutil.Error):
        environment = process.environ()
        return [environment.get(name, "") for name in ("OVERLAPITER_TEST_JOB", "OVERLAPITER_NODE")]
    return []


def main() -> None:
    comm = overlapiter.mpi.create_communicator("naive")
    folder = Path("source")
    if comm.rank == 0:
        folder.mkdir()
        for number, name in enumerate(NAMES):
            (folder / name).write_bytes(content(number))
            os.utime(folder / name, (1e9, 1e9))  # a file that has just changed is not trusted
    comm.mpi_comm.Barrier()
    runs = [run(comm, folder, float(open_ms) / 1e3) for open_ms in sys.argv[4].split(",")]
    report(comm, {"runs": runs, "forks": forks})


def run(comm: Any, folder: Path, open_seconds: float) -> dict[str, Any]:
    """Train all epochs; return what this rank finds."""
    meeting, share, faults = sys.argv[1], float(sys.argv[2]), sys.argv[3].split(",")
    node = os.environ["OVERLAPITER_NODE"]
    results: dict[str, Any] = {"reads": [], "not asked": [], "wrong": 0}
    store = SlowStore(folder.resolve(), open_seconds, math.inf)
    time.sleep(1)  # what was of use in the second in which a run begins may be of use to it
    with OverlapIterator(
        attach(KINDS[sys.argv[5]](folder.resolve(), NAMES), store),
        BATCH_SIZE,
        n_processes=1,
        order_sampler=overlapiter.scatter_order(comm, SEED),
        staging=Staging(
            f"fast-{node}-{open_seconds}",
            source=folder,
            capacity=int(share * N_FILES * _BLOCK_BYTES),
            keep_free=0,
            n_prefetchers=1,
            look_ahead=4,
            peers={"comm": comm, "directory": "meeting"}[meeting],
        ),
    ) as iterator:
        orders = [iterator.order_sampler.of_epoch(epoch, N_FILES) for epoch in range(N_EPOCHS)]
        n_batches = N_FILES // comm.size // BATCH_SIZE
        for epoch, order in enumerate(orders):
            for place in range(n_batches):
                if place == n_batches // 2 and epoch and comm.rank == 1 and faults != [""]:
                    signal_server(faults[(epoch - 1) % len(faults)])
                batch = next(iterator)
                expected = order[place * BATCH_SIZE : (place + 1) * BATCH_SIZE]
                results["wrong"] += [bytes(data) for data, _ in batch] != [*map(content, expected)]
                comm.mpi_comm.Barrier()  # as the exchange of the gradients
            stats = iterator.stats()
            results["reads"].append(stats.files_staged + stats.opens_source)
            results["not asked"].append(stats.peers_not_asked)
        results |= {"peer": stats.files_peer, "faults": stats.peer_faults}
        results |= {"replaced": stats.workers_replaced}
        comm.mpi_comm.Barrier()
    return results


if __name__ == "__main__":
    main()
