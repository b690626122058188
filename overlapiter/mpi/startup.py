"""Starting Python's forkserver before MPI."""

from __future__ import annotations

from collections.abc import Sequence

from overlapiter.planning import PRELOAD
from overlapiter.workers.start.launch import start_forkserver as _start


def start_forkserver(preload: Sequence[str] = ()) -> None:
    """Start the forkserver from which the workers of all iterators come.

    Call it at the top of a program, before MPI; :func:`overlapiter.mpi.create_communicator` calls
    it, too. The forkserver imports Chainer, once for all workers, while the program goes on. A
    forkserver that runs already stays as it is.

    It is started by vfork and exec, which leave the memory of this process alone, so it is safe
    after MPI_Init, too. In a worker that imports the script this function does nothing.

    Args:
        preload: Further modules for it to import, such as that of the dataset.

    Raises:
        PipelineError: It cannot be started.
    """
    _start((*PRELOAD, *preload))
