"""Trains a model: in this process alone, or as one rank of an MPI job."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from overlapiter.errors import OptionError

from .alone import train_alone
from .history import Record
from .job import NoListener, begin_tracing
from .model import Builder
from .outputs import Outputs
from .preparation import Preparation
from .settings import settings_of

#: What launchers of MPI jobs set in the environment of each rank.
_LAUNCHED = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


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
        settings: See :class:`.settings.Settings` for their names, meanings and defaults.

    Returns:
        The records of all epochs on rank 0, None on the other ranks.

    Raises:
        OptionError: A setting or a file cannot work.
        TrainingError: The run could not come to its end.
    """
    chosen = settings_of(settings)
    listener = _Listener(listener or NoListener(), on_epoch)
    comm = ranks_of(comm)
    if comm is not None:
        from .ranks import train_as_rank  # and with it mpi4py

        make = Preparation(model, train_files, val_files, chosen, listener)
        return train_as_rank(comm, make, listener, restart=restart)
    if chosen.masters:
        raise OptionError("masters", "need processes: start it by mpiexec")
    preparation = Preparation(model, train_files, val_files, chosen, listener)
    with begin_tracing(chosen, "train", 0) as trace:
        job = preparation.job(preparation.plan(1), trace)
        outputs = Outputs(job, preparation.command, listener, restart=restart)
        return train_alone(job, outputs)


def ranks_of(comm: Any) -> Any:
    """Return a communicator, by default of all ranks of the job; None for one process alone."""
    if comm is None and any(int(os.environ.get(name, "1")) > 1 for name in _LAUNCHED):
        from mpi4py import MPI

        comm = MPI.COMM_WORLD
    return comm if comm is not None and comm.size > 1 else None


class _Listener(NoListener):
    """A listener that also calls ``on_epoch``."""

    def __init__(self, shown: NoListener, on_epoch: Callable[[Record], object] | None) -> None:
        self.say = shown.say  # type: ignore[method-assign]  # passed through
        self.progress = shown.progress  # type: ignore[method-assign]  # passed through
        self.alive = shown.alive  # type: ignore[method-assign]  # passed through
        self._shown = shown
        self._on_epoch = on_epoch

    def epoch(self, record: Record, line: str) -> object:
        """Show the record of an epoch; return whether that is to be the last one."""
        is_last = self._shown.epoch(record, line)
        return (self._on_epoch is not None and self._on_epoch(record)) or is_last
