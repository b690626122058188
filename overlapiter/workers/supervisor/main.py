"""The main function of the supervisor's process."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import os
import signal
import traceback
from collections.abc import Callable

from overlapiter.board import StatsBoard
from overlapiter.redirection import install
from overlapiter.workers.ipc.channel import Channel, ChannelClosedError
from overlapiter.workers.plan import SupervisorPlan
from overlapiter.workers.reader.face import Face
from overlapiter.workers.start.parcel import open_parcel
from overlapiter.workers.start.processes import freeze, set_name
from overlapiter.workers.supervisor.attendance import run_of
from overlapiter.workers.supervisor.supervisor import Supervisor


def main(
    fds: list[int],
    import_main_module: Callable[[], None],
    plan: SupervisorPlan,
    dataset_bytes: int,
) -> int:
    """Run the supervisor until the trainer ends it; return the exit code.

    Args:
        fds: The channel to the trainer, the pickled dataset, the stats board; with peers also the
            socket on which they come.
        import_main_module: Imports the program's ``__main__``, if the dataset refers to it.
        plan: The plan.
        dataset_bytes: Size of the pickled dataset.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    set_name("ovl-supervisor")
    channel = Channel.from_fd(fds[0])
    try:
        if plan.staging is not None:
            install(plan.staging.readers)
        import_main_module()
        for name in (*plan.imports, *(plan.staging.imports if plan.staging else ())):
            importlib.import_module(name)
        dataset = open_parcel(fds[1], dataset_bytes)
        if isinstance(dataset, Face):  # of a framework, which holds the dataset
            plan = dataclasses.replace(plan, face=dataset)
            dataset.renewal = plan.renewal
            dataset = dataset.dataset
        # If the program or an import ignored it, the supervisor could not wait for its workers.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        board = StatsBoard(fds[2])
        freeze()
        run = run_of(plan, fds[2])
        supervisor = Supervisor(channel, dataset, plan, board, run, *fds[3:])
        for fd in fds[1:3]:
            os.close(fd)
        ending = "failed"
        try:
            supervisor.run()
            ending = "closed"
        finally:
            supervisor.end_workers(ending)
    except ChannelClosedError:
        return 0
    except BaseException as error:  # the trainer raises it
        _report_fatal(channel, error)
        return 1
    return 0


def _report_fatal(channel: Channel, error: BaseException) -> None:
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    reason = "".join(traceback.format_exception_only(type(error), error)).strip()
    with contextlib.suppress(ChannelClosedError):  # the trainer is gone
        channel.send(("fatal", reason, text))
