"""Trains a model: in this process alone, or as one rank of an MPI job."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from overlapiter.errors import OptionError
from overlapiter.workers.start.no_mpi import world_of_this_process

from .epochs import Record
from .hosting import Host
from .interrupts import Interrupts
from .job import NoListener, Preparation, begin_tracing
from .model import Builder
from .settings import settings_of, split
from .worker import Worker

#: The rank of the worker where there is one process, as under MPI.
_RANK = 1


def train(
    model: str | os.PathLike[str] | Builder,
    train_files: str | os.PathLike[str] | Sequence[Any],
    val_files: str | os.PathLike[str] | Sequence[Any] = (),
    *,
    comm: Any = None,
    on_epoch: Callable[[Record], object] | None = None,
    listener: NoListener | None = None,
    restart: bool = False,
    **settings: Any,
) -> list[Record] | None:
    """Train a model on as many processes as mpiexec has started; on one, without MPI.

    Every rank calls it with the same arguments. It blocks until the run is over, and goes on from
    the checkpoint in ``out`` if there is one of the same run.

    Args:
        model: A Python file with ``build_model()``, or that function itself. It returns a
            ``chainer.Link``, a ``torch.nn.Module``, or what :class:`.model.Model` describes.
        train_files: The training files, or a text file with one path a line.
        val_files: The validation files in the same forms; may be none.
        comm: An mpi4py communicator, whose rank 0 is the server; None for all ranks of the job.
        on_epoch: Called on rank 0 with the record of each epoch; a true answer stops the run.
        listener: Shows how it goes on; None shows nothing.
        restart: Whether to begin anew where there is a checkpoint.
        settings: See :class:`.settings.Settings` for their names, meanings and defaults. What
            begins with ``model.`` is an argument of ``build_model()``, as in the TOML files.

    Returns:
        The records of all epochs on rank 0, None on the other ranks.

    Raises:
        OptionError: A setting or a file cannot work.
        TrainingError: The run could not come to its end.
    """
    settings, of_model = split(settings)
    chosen = settings_of(settings)
    preparation = Preparation(
        model, of_model, train_files, val_files, chosen, listener or NoListener(), restart,
        on_epoch or (lambda _record: False),
    )  # fmt: skip
    comm = ranks_of(comm)
    if comm is not None:
        from .ranks import train_as_rank  # and with it mpi4py

        return train_as_rank(comm, preparation)
    if chosen.masters:
        raise OptionError("masters", "need processes: start it by mpiexec")
    with begin_tracing(chosen, "train", 0) as trace:
        job = preparation.job(preparation.plan(1), trace)
        # The same steps as with one worker under MPI, without communication.
        with Host(job, [_RANK]) as host:
            Worker(job, _RANK, job.model(), host.answer).run()
            return host.finish()


def ranks_of(comm: Any) -> Any:
    """Return a communicator, by default of all ranks of the job; None for one process alone."""
    if comm is None and not world_of_this_process().endswith("/1"):  # some launchers tell no size
        interrupts = Interrupts()
        interrupts.begin()
        with interrupts.whole():  # else MPI would run, and Python have no module of it
            from mpi4py import MPI
        interrupts.end()
        comm = MPI.COMM_WORLD
    return comm if comm is not None and comm.size > 1 else None
