"""Runs under mpiexec: one rank of a job with peers cannot take part, or has other data.

Argument: what is wrong: the place of its staging directory, the pickling of its dataset, the number
of its examples, its source.
"""

import sys
import threading
from pathlib import Path

import overlapiter
import overlapiter.mpi
from overlapiter import OverlapIterator, Staging
from overlapiter.errors import OverlapError
from overlapiter.peers import meeting
from tests.chainer.iterator_datasets import DeclaredFiles
from tests.chainer.rank_side import report


def main() -> None:
    comm = overlapiter.mpi.create_communicator("naive")
    wrong = sys.argv[1] if comm.rank else ""
    folder = Path("other" if wrong == "source" else "source")
    if comm.rank == 0 or wrong == "source":
        folder.mkdir()
        (folder / "only").write_bytes(b"x")
    comm.mpi_comm.Barrier()
    dataset = DeclaredFiles(folder.resolve(), ["only"] * (1 + (wrong == "number")))
    if wrong == "pickling":
        dataset.lock = threading.Lock()
    meeting.PATIENCE_SECONDS = 20.0
    try:
        OverlapIterator(
            dataset,
            1,
            n_processes=1,
            order_sampler=overlapiter.scatter_order(comm),
            staging=Staging(
                "not-mounted/me" if wrong == "place" else f"fast-{comm.rank}",
                source=folder,
                keep_free=0,
                peers="meeting" if sys.argv[1] == "pickling" else comm,
            ),
        )
    except OverlapError as error:
        report(comm, {"error": type(error).__name__, "text": str(error)})


if __name__ == "__main__":
    main()
