"""The main function of the supervisor's process."""

from __future__ import annotations

import contextlib
import importlib
import os
import pwd
import signal
import sys
from collections.abc import Callable

from overlapiter.board import StatsBoard
from overlapiter.errors import described
from overlapiter.node import program_words
from overlapiter.redirection import install
from overlapiter.store.site import Run
from overlapiter.workers.ipc.channel import Channel, ChannelClosedError
from overlapiter.workers.plan import SupervisorPlan
from overlapiter.workers.reader.face import Face
from overlapiter.workers.start.parcel import open_parcel
from overlapiter.workers.start.processes import freeze, run_as_batch, set_name
from overlapiter.workers.supervisor.supervisor import Supervisor

_SHOWN_CHARACTERS = 200
#: Not all of them: some hold credentials.
_SHOWN_OPTIONS = ("source", "validate", "n_prefetchers", "reads_in_flight")
_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PJM_JOBID", "JOB_ID")


def main(fds: list[int], import_main_module: Callable[[], None], plan: SupervisorPlan) -> int:
    """Run the supervisor until the trainer ends it; return the exit code.

    Args:
        fds: The channel to the trainer, the pickled dataset, the stats board; with peers also the
            socket on which they come.
        import_main_module: Imports the program's ``__main__``, if the dataset refers to it.
        plan: What to do.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_name("ovl-supervisor")
    run_as_batch()
    channel = Channel.from_fd(fds[0])
    try:
        if plan.staging is not None:
            install(plan.staging.readers)
        import_main_module()
        for name in (*plan.imports, *(plan.staging.imports if plan.staging else ())):
            importlib.import_module(name)
        pickled = open_parcel(fds[1])
        _import_image_formats()
        face = pickled if isinstance(pickled, Face) else Face(pickled)  # of a framework, or of none
        face.renewal = plan.renewal
        # If the program or an import ignored it, the supervisor could not wait for its workers.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        board = StatsBoard(fds[2])
        freeze()
        run = run_of(plan, fds[2])
        supervisor = Supervisor(channel, face, plan, board, run, *fds[3:])
        for fd in fds[1:3]:
            os.close(fd)
        try:
            supervisor.run()
        finally:
            supervisor.end_workers()
    except ChannelClosedError:
        return 0
    except BaseException as error:  # the trainer raises it
        with contextlib.suppress(ChannelClosedError):  # it is gone
            channel.send(("fatal", *described(error)))
        return 1
    return 0


def _import_image_formats() -> None:
    """Have Pillow, if the dataset has imported it, import its formats, which takes 10 ms.

    Otherwise every file reader does so when it opens its first image. Where the forkserver has
    imported them, there is nothing to do.
    """
    preinit = getattr(sys.modules.get("PIL.Image"), "preinit", None)
    if preinit is not None and "PIL.JpegImagePlugin" not in sys.modules:
        preinit()


def run_of(plan: SupervisorPlan, board_fd: int) -> Run:
    """Return what the staging directory holds of a run, for ``overlapiter status`` to show.

    The trainer keeps the memory of the counters open, so others can read them there.
    """
    staging = plan.staging
    facts: dict[str, object] = {
        "command": " ".join(program_words(plan.trainer_pid))[:_SHOWN_CHARACTERS],
        "trainer_pid": plan.trainer_pid,
        "board_inode": os.fstat(board_fd).st_ino,
        "n_readers": plan.n_readers,
        "batch_size": plan.batch_size,
        "dataset_size": plan.dataset_size,
        "host": os.uname().nodename,
        "user": _user_name(os.geteuid()),
        "job": next((f"{n}={os.environ[n]}" for n in _JOB_VARIABLES if os.environ.get(n)), ""),
    }
    if staging is not None:
        options = {name: getattr(staging, name) for name in _SHOWN_OPTIONS}
        facts["staging"] = {**options, "tiers": [site._asdict() for site in staging.sites]}
    return Run(plan.run_number, facts)


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # a container may have no such user
        return str(number)
