"""Runs a program so that whatever ends a rank of it otherwise than well ends the job.

::

    mpiexec -n 4 python -m overlapiter.mpi train.py --epoch 90
    mpiexec -n 4 python -m overlapiter.mpi -m my.training --epoch 90

It calls :func:`~overlapiter.mpi.abort_on_failure` first, and sees ``raise SystemExit(3)``, too.
"""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from types import TracebackType

from .failure import abort_on_failure, end_job_by

_OURS = {__file__, runpy.run_path.__code__.co_filename}


def main() -> None:
    """Run the program that the command line names, as the interpreter would."""
    parser = argparse.ArgumentParser(
        prog="python -m overlapiter.mpi",
        description="Run a program; if it fails on one rank of an MPI job, the job ends.",
    )
    parser.add_argument("-m", dest="is_module", action="store_true", help="PROGRAM is a module")
    parser.add_argument("program", metavar="PROGRAM")
    parser.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER)
    asked = parser.parse_args()
    if not (asked.is_module or os.path.exists(asked.program)):
        parser.error(f"there is no {asked.program}")
    abort_on_failure()
    sys.argv[:] = [asked.program, *asked.arguments]
    try:
        if asked.is_module:
            runpy.run_module(asked.program, run_name="__main__", alter_sys=True)
        else:
            if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):
                sys.path[0] = os.path.realpath(os.path.dirname(asked.program))
            runpy.run_path(asked.program, run_name="__main__")
    except BaseException as error:
        error.__traceback__ = _of_the_program(error.__traceback__)
        end_job_by(error, getattr(error, "code", None))
        raise


def _of_the_program(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of the runner."""
    while trace is not None and trace.tb_frame.f_code.co_filename in _OURS:
        trace = trace.tb_next
    return trace


if __name__ == "__main__":  # not when a worker process imports the program's main module
    main()
