"""Runs under mpiexec: one rank of a job with peers cannot make its staging directory."""

from pathlib import Path

import overlapiter
import overlapiter.mpi
from overlapiter import OverlapIterator, Staging
from overlapiter.errors import OptionError, StagingError
from tests.chainer.iterator_datasets import DeclaredFiles
from tests.chainer.rank_side import report


def main() -> None:
    comm = overlapiter.mpi.create_communicator("naive")
    folder = Path("source")
    if comm.rank == 0:
        folder.mkdir()
        (folder / "only").write_bytes(b"x")
    comm.mpi_comm.Barrier()
    try:
        OverlapIterator(
            DeclaredFiles(folder.resolve(), ["only"]),
            1,
            n_processes=1,
            order_sampler=overlapiter.scatter_order(comm),
            staging=Staging(
                "not-mounted/me" if comm.rank else "fast", source=folder, keep_free=0, peers=comm
            ),
        )
    except (OptionError, StagingError) as error:
        report(comm, {"error": type(error).__name__, "text": str(error)})


if __name__ == "__main__":
    main()
