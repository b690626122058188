"""Searches settings: asks, trains and tells, in as many groups as there are ranks for."""

from __future__ import annotations

import contextlib
import functools
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from overlapiter.errors import OptionError
from overlapiter.mpi.training import checkpoint
from overlapiter.mpi.training.ending import expect_end, start_together
from overlapiter.mpi.training.model import Builder
from overlapiter.mpi.training.run import ranks_of, train
from overlapiter.mpi.training.settings import METRICS, Settings, read_toml
from overlapiter.mpi.training.worker import DesertedError, reason_of
from overlapiter.node import launched_rank
from overlapiter.store.segments import NO_ROOM

from .space import Values, space_of
from .study import Study, Trial, journal_bytes

if TYPE_CHECKING:
    from .groups import Group

_LOOK_SECONDS = 0.2
#: Trains a trial with the others of its group.
_Run = Callable[..., list[dict[str, Any]] | None]


def search(
    space: str | os.PathLike[str] | Mapping[str, Any],
    model: str | os.PathLike[str] | Builder,
    train_files: Any,
    val_files: Any,
    *,
    out: str = "search",
    n_trials: int = 20,
    group_size: int = 1,
    metric: str = "val_accuracy",
    seed: int = 0,
    is_pruning: bool = True,
    comm: Any = None,
    on_trial: Callable[[Trial, Study], object] = lambda _trial, _study: None,
    say: Callable[[str], object] = lambda _text: None,
    **settings: Any,
) -> Study | None:
    """Find good settings for a training.

    Every rank calls it with the same arguments. It blocks until all trials have ended, and goes on
    with a search that was begun in ``out`` before. It survives the loss of ranks and of whole
    groups that are silent for ``worker_timeout``; with ``mpiexec --with-ft ulfm`` also their death.

    Args:
        space: A TOML file, or its tables; see :mod:`.space`.
        model: As for :func:`overlapiter.mpi.train`; ``build_model()`` takes the searched values
            whose names begin with ``model.`` as keyword arguments.
        train_files: As for :func:`overlapiter.mpi.train`.
        val_files: The same; the trials are compared by them.
        out: A directory on a file system that all ranks share.
        n_trials: How many trials there are to be in all.
        group_size: How many ranks train a trial, the server being one of them.
        metric: The key of an epoch's record to be optimized: smaller is better if it ends in
            ``loss``. Its value after the last epoch counts.
        seed: The proposals follow from it.
        is_pruning: Whether a trial ends early that is worse than the median of the others.
        comm: An mpi4py communicator; None for all ranks of the job.
        on_trial: Called by the leader of a group when it has ended a trial.
        say: Called with what the user should know.
        settings: Fixed settings of the training, which come before those in ``space``.

    Returns:
        The study on one rank, the first that is left; None on the others.

    Raises:
        OptionError: A setting or a file cannot work, whatever is searched.
        TrainingError: The trials fail whatever the settings, or this rank's leader was lost.
    """
    for option, number in (("trials", n_trials), ("group", group_size)):
        if number < 1:
            raise OptionError(option, f"{number}; give at least 1")
    tables = read_toml(os.fspath(space)) if isinstance(space, (str, os.PathLike)) else space
    chosen = space_of(tables, _with_metric(settings, metric))
    run = functools.partial(train, model, train_files, val_files)
    world = ranks_of(comm)
    seconds = chosen.fixed.get("worker_timeout", Settings.worker_timeout)
    name = uuid.uuid4().hex
    ours: Group | _Alone = _Alone(comm)
    if world is not None:
        from .groups import Group  # and with it mpi4py

        start_together(world, seconds)
        name = world.bcast(name)
        ours = Group(world, group_size, seconds, say)
    with ours as group:
        try:
            if not group.is_leader:
                _follow(group, run)
                return None
            study = Study(out, chosen, metric, n_trials, seed, is_pruning=is_pruning)
            study.timeout_seconds = seconds
            _lead(group, study, name, run, on_trial, say)
        finally:  # the others go on, if this rank has ended early
            expect_end(seconds, functools.partial(journal_bytes, out))
        expect_end(seconds)
        return study if group.is_first() else None


class _Alone:
    """The group of one process: it leads, and there are no others."""

    number, is_leader = 0, True

    def __init__(self, comm: Any) -> None:
        self.comm = comm  # None would be all ranks, for train

    def order(self, what: Any) -> None: ...

    def leave_behind(self) -> list[int]:
        return []

    def orders(self) -> Iterator[Any]:
        yield from ()

    def lost_leaders(self) -> set[int]:
        return set()

    def is_first(self) -> bool:
        return True

    def __enter__(self) -> _Alone:
        return self

    def __exit__(self, *_exception: object) -> None: ...


def _with_metric(settings: Values, metric: str) -> Values:
    """Return settings with which an epoch's record has the metric."""
    name = metric.removeprefix("val_")
    if name in METRICS:
        return {"metrics": (name,), **settings}
    if name != "loss":
        known = ", ".join(f"val_{each}" for each in ("loss", *METRICS))
        raise OptionError("metric", f"there is no {metric!r}; choose one of {known}")
    return settings


def _follow(group: Group | _Alone, run: _Run) -> None:
    """Train trials at the leader's orders, until it sends this rank home or is lost."""
    for values in group.orders():
        with contextlib.suppress(Exception):  # the leader was told, and records it, or is lost
            run(comm=group.comm, **values)


def _is_for_user(error: Exception, study: Study) -> bool:
    """Return whether no trial can work before the user has changed something."""
    if isinstance(error, OptionError):
        return error.option not in study.space.searched
    return getattr(error.__cause__ or error, "errno", None) in NO_ROOM


def _lead(
    group: Group | _Alone,
    study: Study,
    name: str,
    run: _Run,
    on_trial: Callable[[Trial, Study], object],
    say: Callable[[str], object],
) -> None:
    """Train trials as long as there are any."""

    def is_lost(owner: str) -> bool:
        of_run, number, *_ = owner.split(":")
        return of_run != name or int(number) in group.lost_leaders()

    owner = f"{name}:{group.number}:{launched_rank() or 0}"
    while not study.is_over():
        group.leave_behind()  # this takes a while, in which a trial would be silent
        asked = study.ask(owner, is_lost, say)
        if asked is None:  # the last ones are being trained; one may be lost yet
            time.sleep(_LOOK_SECONDS)
            continue
        group.order(asked.values)
        try:
            with asked.beating():
                records = run(
                    comm=group.comm,
                    on_epoch=asked.on_epoch,
                    listener=asked,
                    restart=not asked.is_continued,
                    **asked.values,
                )
            asked.finish(records)
        except Exception as error:
            if _is_for_user(error, study):
                with contextlib.suppress(OSError):  # a later run finds it without that
                    study.put_back(asked)
                raise
            if group.leave_behind() or isinstance(error, DesertedError):
                study.put_back(asked, f"ranks were lost ({error})")
                say(f"trial {asked.number} of group {group.number} is done again: {error}")
                continue
            asked.reason = asked.reason or reason_of(error)
        except BaseException:  # this group ends; another one, or a later run, does it
            study.put_back(asked)
            raise
        trial = study.tell(asked)
        if trial is None:  # this rank did not answer for a while, and another group does it
            continue
        checkpoint.remove(trial.out)
        on_trial(trial, study)
