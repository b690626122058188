"""Kills a process at every system call of the store, or has that call fail; then looks at the rest.

    python -m tests.store.crashes kill|fail [--sample N] [--only INDEX]

What is done: open a store in which a dead process has left work half-done, take that over, claim,
copy, publish, evict, write to places that were evicted, sweep and close. One run for each system
call of it. After each, another process at once takes over, stages everything and reads it, within
the capacity, and the total is what lies on the disk. Prints a line for each run that went wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from overlapiter.store import segments
from overlapiter.store.extents import SMALL_BYTES, ExtentReader
from tests.store.stores import (
    BLOCK_BYTES,
    Files,
    check_accounts,
    disk_bytes,
    in_blocks,
    made_store,
    one_place,
    read,
    stage,
    staged,
    wanted,
    written,
    written_together,
)
from tests.store.tracing import Call, Do, next_step, traced

STEPS = [
    "open",
    "take over",
    "claim",
    "copy",
    "publish",
    "roll",
    "evict",
    "reuse",
    "sweep",
    "close",
    "again",
]
ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE)
#: Longer than anything takes that waits for nothing.
SOON_SECONDS = 1.5
WAITED = "it waited"

segments.SEGMENT_BYTES = 12 * BLOCK_BYTES
FILES = Files(16)
LARGE = FILES.paths[7]
FILES.contents[LARGE] = random.Random(1).randbytes(SMALL_BYTES + 100)
CAPACITY_BYTES = sum(in_blocks(len(data)) for data in FILES.contents.values()) + 40 * BLOCK_BYTES


class Fault(NamedTuple):
    """What happens at a system call.

    Attributes:
        index: How many calls were made before.
        call: The call.
        number: Of the error that it fails with; None if the process is killed.
    """

    index: int
    call: Call
    number: int | None

    def __str__(self) -> str:
        """Say it in words."""
        how = "killed" if self.number is None else errno.errorcode[self.number]
        return f"{how} at call {self.index}, {self.call.name} ({STEPS[self.call.step - 1]})"


# --- the process that is killed -------------------------------------------------------------------


def leave_work(directory: Path) -> None:
    """Stage some files, and end as if killed while others are copied and evicted."""
    store = made_store(directory, 1, capacity_bytes=CAPACITY_BYTES)
    stage(store, FILES, FILES.paths[:6])
    store.close()
    stage(store, FILES, FILES.paths[6:9])
    store.claim(wanted(store, FILES.paths[9:12]))
    written(store, FILES.paths[9], FILES.contents[FILES.paths[9]])
    segments.punch = lambda *_: os._exit(0)
    store.evict([store.key_of(path) for path in (FILES.paths[5], LARGE)])


def use(directory: Path, allowed: tuple[type[BaseException], ...]) -> int:
    """Do all steps; those that fail as allowed are left out."""
    store = made_store(directory, 2, capacity_bytes=CAPACITY_BYTES)
    copies = []
    mine: list[int] = []

    def copy(paths: list[str]) -> None:
        here = [(path, FILES.contents[path]) for path in paths if store.key_of(path) in mine]
        copies.extend(written_together(store, here))

    def claim(paths: list[str]) -> None:
        outdated = [extent for path, extent in staged(store, FILES).items() if path in paths[:1]]
        store.drop(outdated)
        mine.extend(store.claim(wanted(store, paths)).mine)

    def publish() -> None:
        half_done = None
        known = {copied[0].key for copied in copies}
        try:
            half_done = one_place(store, BLOCK_BYTES)
            store.publish(copies, [key for key in mine if key not in known])
        finally:
            copies.clear()
            mine.clear()
            if half_done is not None:
                store.give_up(half_done)

    def roll() -> None:
        claim(FILES.paths[11:15])
        copy(FILES.paths[11:15])
        publish()

    def evict() -> None:
        store.evict([store.key_of(path) for path in (LARGE, *FILES.paths[10:13])])

    def reuse() -> None:
        some = FILES.paths[:4]
        store.evict([store.key_of(path) for path in some], keep_room=True)
        half_done = one_place(store, len(FILES.contents[some[3]]))
        if half_done is not None:
            store.give_up(half_done)
        stage(store, FILES, some[:3])  # the place of the other one stays vacant

    def again() -> None:
        stage(store, FILES, FILES.paths[:3])
        store.close()

    steps: list[Callable[[], object]] = [
        store.total_bytes, store.take_over, lambda: claim([FILES.paths[0], *FILES.paths[5:12]]),
        lambda: copy(FILES.paths), publish, roll, evict, reuse, store.sweep,
        store.close, again,
    ]  # fmt: skip
    for step in steps:
        next_step()
        with contextlib.suppress(*allowed):
            step()
    return 0


# --- the process that comes after it --------------------------------------------------------------


def look(directory: Path, *, was_killed: bool) -> None:
    """Stage everything, as a process that begins now."""
    assert disk_bytes(directory) <= CAPACITY_BYTES, "more than the capacity"
    began = time.monotonic()
    store = made_store(directory, 3, capacity_bytes=CAPACITY_BYTES)
    assert store.total_bytes() <= CAPACITY_BYTES, "a total above the capacity"
    store.sweep()
    claim = store.claim(wanted(store, FILES.paths))
    assert not claim.others, "claims of a dead process"
    store.publish([], claim.mine)
    reader = ExtentReader([str(directory)])
    for path, extent in staged(store, FILES).items():
        data = read(reader, extent)
        assert data in (None, FILES.contents[path]), "wrong bytes"
        if data is None:
            assert not was_killed, "a copy was lost"
            store.drop([extent])
    for path in FILES.paths:
        stage(store, FILES, [path])
    for path, extent in staged(store, FILES).items():
        assert read(reader, extent) == FILES.contents[path], "wrong bytes"
    assert len(staged(store, FILES)) == len(FILES.paths), "not all could be staged"
    reader.close()
    store.close()
    check_accounts(store, directory)
    assert time.monotonic() - began < SOON_SECONDS, WAITED


# --- runs -----------------------------------------------------------------------------------------


def apart(function: Callable[[], object]) -> str:
    """Run a function in a child; return what went wrong."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            function()
        except BaseException:
            os.write(write_fd, traceback.format_exc().encode()[-3000:])
        os._exit(0)
    os.close(write_fd)
    with open(read_fd, "rb") as answer:
        text = answer.read().decode()
    os.waitpid(pid, 0)
    return text


def run(fault: Fault | None, calls: list[Call] | None = None) -> str:
    """Do it all once; return what went wrong."""
    directory = Path(tempfile.mkdtemp(prefix="crashes-"))
    allowed = () if fault is None or fault.number is None else (OSError,)

    is_due = fault is not None

    def choose(index: int, call: Call) -> Do | int:
        nonlocal is_due
        if calls is not None:
            calls.append(call)
        if fault is None or not is_due or index < fault.index or call != fault.call:
            return Do.GO_ON  # a run may make a call more or less than another
        is_due = False
        return Do.KILL if fault.number is None else fault.number

    def steps() -> int:
        text = ""
        try:
            return use(directory, allowed)
        except BaseException:
            text = traceback.format_exc()
        (directory / "error").write_text(text)
        return 1

    try:
        if text := apart(lambda: leave_work(directory)):
            return text
        status = traced(steps, choose)
        was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if not was_killed and status:
            return (directory / "error").read_text()
        return apart(lambda: look(directory, was_killed=was_killed or fault is None))
    finally:
        shutil.rmtree(directory)


def faults_of(kind: str, calls: list[Call]) -> list[Fault]:
    """Return all faults of a kind."""
    if kind == "kill":
        return [Fault(index, call, None) for index, call in enumerate(calls)]
    return [
        Fault(index, call, number)
        for index, call in enumerate(calls)
        for number in ERRORS
        if (number == errno.EIO and call.is_of_disk)
        or (number == errno.EMFILE and call.opens)
        or (number in (errno.ENOSPC, errno.EDQUOT) and call.may_create)
    ]


def main() -> int:
    """Run it; return how many runs went wrong."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=["kill", "fail"])
    parser.add_argument("--sample", type=int)
    parser.add_argument("--only", type=int)
    options = parser.parse_args()
    calls: list[Call] = []
    if text := run(None, calls):
        sys.stdout.write(f"without any fault:\n{text}\n")
        return 1
    faults = faults_of(options.kind, calls)
    if options.only is not None:
        faults = [fault for fault in faults if fault.index == options.only]
    if options.sample is not None:
        faults = random.Random(0).sample(faults, options.sample)
    n_wrong = 0
    for fault in faults:
        text = run(fault)
        for _ in range(3):
            if WAITED in text:  # or the machine was busy, which it is not each time
                text = run(fault)
        if text:
            sys.stdout.write(f"{fault}:\n{text}\n")
            sys.stdout.flush()
            n_wrong += 1
    sys.stdout.write(f"{len(calls)} calls, {len(faults)} runs, {n_wrong} wrong\n")
    return n_wrong


if __name__ == "__main__":
    sys.exit(bool(main()))
