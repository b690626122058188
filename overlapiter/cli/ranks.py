"""What the commands have in common that every rank of an MPI job runs."""

from __future__ import annotations

from collections.abc import Callable

from overlapiter.errors import OptionError, OverlapError, TrainingError
from overlapiter.mpi.training.ending import abort_start, leave_together, own
from overlapiter.mpi.training.worker import RefusedError, ServerLostError
from overlapiter.node import launched_rank

from .console import say


def run_as_rank(work: Callable[[], int]) -> int:
    """Run the work of a command on this rank; return the exit code.

    An error is raised, to be said, where the others do not say it: by rank 0, and where that is
    dead.
    """
    leave_together(say)
    own.status = 1  # unless it comes to its end
    try:
        status = work()
    except KeyboardInterrupt:
        if not own.processes:
            abort_start()
        raise
    except ServerLostError as error:
        if not error.rank:
            raise
        say(f"note: {error}")
        status = 0  # the server says how it ends
    except (OverlapError, SystemExit) as error:
        status = 2 if isinstance(error, (OptionError, RefusedError)) else 1
        own.status = status
        if not launched_rank():
            if isinstance(error, SystemExit):
                raise TrainingError(f"the model has called sys.exit({error.code!r})") from error
            raise
    own.status = status
    return status
