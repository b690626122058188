"""What the supervisor records of its run in the staging directory."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager

from overlapiter.staging.records import recorded_run
from overlapiter.stats import StatsBoard
from overlapiter.workers.plan import SupervisorPlan

_SHOWN_WORDS = 2  # the interpreter and the script: further ones may be nobody's business
_SHOWN_CHARACTERS = 200
#: Not all of them: some hold credentials.
_SHOWN_OPTIONS = ("source", "validate", "n_prefetchers", "reads_in_flight")


def recorded(
    plan: SupervisorPlan, board: StatsBoard, board_fd: int, tell: Callable[[str], None]
) -> AbstractContextManager[None]:
    """Return what records a run while it is entered; nothing without staging.

    Args:
        plan: The plan of the run.
        board: Its counters.
        board_fd: Their memory; the trainer keeps it open, so others can read them there.
        tell: Called with what the user should know.
    """
    staging = plan.staging
    if staging is None:
        return contextlib.nullcontext()
    facts = {
        "command": _command_of(plan.trainer_pid),
        "trainer_pid": plan.trainer_pid,
        "board_inode": os.fstat(board_fd).st_ino,
        "n_readers": plan.n_readers,
        "batch_size": plan.batch_size,
        "dataset_size": plan.dataset_size,
    }
    created_ns = time.monotonic_ns()

    def counters() -> dict[str, float]:
        return dataclasses.asdict(board.snapshot(created_ns))

    options = {name: getattr(staging, name) for name in _SHOWN_OPTIONS}
    runs = [
        # The record in each tier says what is its own.
        recorded_run(
            tier.directory,
            {**facts, "staging": {**options, **dataclasses.asdict(tier)}},
            counters,
            tell,
        )
        for tier in staging.tiers
    ]
    return _together(runs)


@contextlib.contextmanager
def _together(contexts: Iterable[AbstractContextManager[None]]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


def _command_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return ""
    return os.fsdecode(b" ".join(words[:_SHOWN_WORDS]))[:_SHOWN_CHARACTERS]
