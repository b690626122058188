"""How a rank ends where MPI was started with fault tolerance.

After a rank has died, MPI_Finalize of Open MPI 5.0.11 does not always return (seen once in some ten
jobs on a busy machine). So ranks of a job that is to survive deaths leave without it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys

#: How Open MPI tells its ranks that it was started with ``--with-ft ulfm``.
_TOLERANT = "OMPI_MCA_mpi_ft_enable"


class _State:
    """The exit status of this process, as far as it is known.

    Attributes:
        status: None as long as only Python knows.
        is_registered: Whether this process leaves without MPI_Finalize.
    """

    status: int | None = None
    is_registered = False


def is_tolerant() -> bool:
    """Return whether the ranks of this job go on when one has died."""
    return os.environ.get(_TOLERANT, "0") not in ("0", "false")


def leave_without_finalize() -> None:
    """Have this process end without MPI_Finalize, if the job is tolerant of faults."""
    if is_tolerant() and not _State.is_registered:
        _State.is_registered = True
        atexit.register(_leave)


def set_status(status: int) -> None:
    """Say with which exit status this process is about to end."""
    _State.status = status


def _leave() -> None:
    status = _State.status
    if status is None:
        status = int(getattr(sys, "last_value", None) is not None)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # it is closed, or its reader has ended
            stream.flush()
    os._exit(status)
