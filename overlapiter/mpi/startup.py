"""Starting Python's forkserver before MPI."""

from __future__ import annotations

from collections.abc import Sequence

from overlapiter.planning import PRELOAD
from overlapiter.workers.start.launch import start_forkserver as _start


def start_forkserver(preload: Sequence[str] = ()) -> None:
    """Start the forkserver from which the workers of all iterators come.

    Call it at the top of a program, before MPI; :func:`overlapiter.mpi.create_communicator` does so
    itself. It imports Chainer, once for all workers, while the program goes on: nothing waits for
    that. A forkserver that runs already stays as it is, so calling twice is fine.

    It is started by vfork and exec, which touch no memory of this process, so it is safe after
    MPI_Init, too; only later. In a worker that imports the script it does nothing.

    Args:
        preload: Further modules that it is to import, such as that of the dataset.

    Raises:
        PipelineError: It cannot be started.
    """
    _start((*PRELOAD, *preload))
