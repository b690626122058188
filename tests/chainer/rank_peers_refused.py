"""Runs under mpiexec: one rank of a job with peers cannot take part, or has other data.

What is wrong: the place of its staging directory, the pickling of its dataset, the number of its
examples, its source, the server that its source is on; one after another.
"""

import threading
from pathlib import Path
from typing import Any

import overlapiter
import overlapiter.mpi
from overlapiter import OverlapIterator, Staging
from overlapiter.errors import OverlapError
from overlapiter.peers import meeting
from tests.chainer.iterator_datasets import DeclaredFiles
from tests.chainer.rank_side import report


def refused(comm: Any, kind: str) -> tuple[str, str]:
    """Return the error of this rank, and its text."""
    wrong = kind if comm.rank else ""
    folder = Path("other" if wrong == "source" else "source")
    source = "s3://bucket/train" if kind == "server" else folder.resolve()
    host = "other" if wrong == "server" else "one"
    options = {"endpoint_url": f"http://{host}:9000", "secret": "hidden"}
    dataset = DeclaredFiles(source, ["only"] * (1 + (wrong == "number")))
    if wrong == "pickling":
        dataset.lock = threading.Lock()
    try:
        OverlapIterator(
            dataset,
            1,
            n_processes=1,
            order_sampler=overlapiter.scatter_order(comm),
            staging=Staging(
                "not-mounted/me" if wrong == "place" else f"fast-{comm.rank}",
                source=source if kind == "server" else folder,
                storage_options=options if kind == "server" else None,
                keep_free=0,
                peers="meeting" if kind == "pickling" else comm,
            ),
        )
    except OverlapError as error:
        return type(error).__name__, str(error)
    raise AssertionError(f"{kind}: it takes part")


def main() -> None:
    comm = overlapiter.mpi.create_communicator("naive")
    folder = Path("other" if comm.rank else "source")
    folder.mkdir()
    (folder / "only").write_bytes(b"x")
    comm.mpi_comm.Barrier()
    meeting.PATIENCE_SECONDS = 20.0
    kinds = "place", "pickling", "number", "source", "server"
    report(comm, {kind: refused(comm, kind) for kind in kinds})


if __name__ == "__main__":
    main()
