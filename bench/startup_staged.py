"""How long a start takes when many files are staged, in whatever state they were left.

The index of a staging directory is filled with a row for each file; a file takes one block, and
nothing is written. Then an iterator over as many files starts, with a capacity, and takes some
mini-batches, which are none of those staged: they are the same work over an empty directory::

    python -m bench.startup_staged

The directory was left ``closed`` by the process that had filled it; by one that was ``killed``
between changing a sixth of all rows, not yet written back, and copying some files; or before
``another boot`` of the node, after which the index is checked as a whole.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import isolated
from bench.cpu import cpu_by_kind
from bench.machine import commit_facts, filesystem_of, machine_facts
from bench.photographs import make_photographs
from bench.pipeline_targets import target_of, target_rows
from bench.progress import progress_bar
from bench.summary import aligned, spread

NAME = "startup-staged"
NUM_FILES = 1_280_000
NUM_BATCHES = 50
STATES = ("empty", "closed", "killed", "another boot")
WANTED_SECONDS = 1.0
_BATCH_SIZE = 32
_NUM_PHOTOGRAPHS = 8_000
_PART_FILES = 1_000
_FOLDER_FILES = 1_280
_LEAVE = "--leave"


def measure(request: dict) -> dict:
    """Start an iterator in this process and take some mini-batches.

    Args:
        request: ``pairs`` and ``root`` of ``n_photographs``, which are the first files; ``n_files``
            of the whole data set; ``staging``; ``n_batches``.

    Returns:
        ``constructor_seconds``, ``first_batch_seconds`` and ``batches_seconds`` from its start,
        and ``cpu`` by kind of process.
    """
    from chainer.datasets import LabeledImageDataset

    import overlapiter
    from bench.spec import read_pairs

    pairs = read_pairs(request["pairs"], request["n_photographs"])
    pairs += [(name_of(number), 0) for number in range(request["n_files"] - len(pairs))]
    dataset = LabeledImageDataset(pairs, request["root"])
    staging = overlapiter.Staging(request["staging"], source=request["root"], capacity="100TB")
    start = time.monotonic()
    iterator = overlapiter.OverlapIterator(
        dataset, _BATCH_SIZE, n_processes=2, shuffle=False, staging=staging
    )
    constructed = time.monotonic()
    taken = []
    for _ in range(request["n_batches"]):
        next(iterator)
        taken.append(time.monotonic() - start)
    cpu = cpu_by_kind()
    iterator.finalize()
    return {
        "constructor_seconds": constructed - start,
        "first_batch_seconds": taken[0],
        "batches_seconds": taken[-1],
        "cpu": cpu,
    }


def name_of(number: int) -> str:
    """Return the path of a file that is staged, and that no source has."""
    return f"n{number // _FOLDER_FILES:04}/{number}.jpg"


def leave(state: str, staging: str, root: str, n_files: int) -> None:
    """Leave the staging directory in a state: fill it if it is empty, and do what the state says.

    With ``killed``, this process does not return.
    """
    from bench.store_access import stage_bytes, store_in
    from overlapiter.store.generation import generation_of, index_path
    from overlapiter.store.store import Wanted

    is_empty = not os.path.exists(staging)
    store = store_in(staging, root)
    if is_empty:
        with progress_bar(n_files, "file") as progress:
            for first in range(0, n_files, _PART_FILES):
                part = range(first, min(first + _PART_FILES, n_files))
                stage_bytes(store, [name_of(number) for number in part], b"")
                progress.update(len(part))
    if state == "killed":
        paths = [os.path.join(root, name_of(number)) for number in range(n_files)]
        store.note_verified([store.key_of(path) for path in paths[::6]])
        copied = [os.path.join(root, f"copied/{number}") for number in range(_PART_FILES)]
        store.claim([Wanted(store.key_of(path), path) for path in copied])
        os.kill(os.getpid(), signal.SIGKILL)
    store.close()
    if state == "another boot":
        connection = sqlite3.connect(index_path(generation_of(staging)))
        with connection:
            connection.execute("UPDATE fact SET value='another' WHERE name='boot'")
        connection.close()


def _run(options: argparse.Namespace, local: str) -> dict[str, list[dict]]:
    made = make_photographs(isolated.CHECKOUT / ".cache/bench/photographs", options.photographs)
    root = str(made.root.resolve())
    full = os.path.join(local, "full")
    request = {
        "root": root,
        "pairs": os.path.join(root, "pairs.txt"),
        "n_photographs": options.photographs,
        "n_files": options.files,
        "n_batches": options.batches,
    }
    found: dict[str, list[dict]] = {state: [] for state in STATES}
    _leave("closed", full, root, options.files)
    with progress_bar(len(STATES) * options.repeats, "run") as progress:
        for repeat in range(options.repeats):
            for state in STATES[:: (-1) ** repeat]:
                staging = full
                if state == "empty":
                    staging = tempfile.mkdtemp(prefix="empty-", dir=local)
                else:
                    _leave(state, full, root, options.files)
                os.sync()
                request["staging"] = staging
                found[state].append(isolated.call("bench.startup_staged", request))
                progress.update()
    return found


def _leave(*arguments: object) -> None:
    """Call :func:`leave` in a process of its own."""
    command = [sys.executable, "-m", "bench.startup_staged", _LEAVE, *map(str, arguments)]
    done = subprocess.run(command, cwd=isolated.CHECKOUT, check=False)
    if done.returncode not in (0, -signal.SIGKILL):
        raise isolated.RunFailedError(f"{command} ended with {done.returncode}")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--files", type=int, default=NUM_FILES, help="staged files (%(default)s)")
    add("--batches", type=int, default=NUM_BATCHES, help="mini-batches to take (%(default)s)")
    add("--photographs", type=int, default=_NUM_PHOTOGRAPHS, help="to take from (%(default)s)")
    add("--repeats", type=int, default=5, help="runs of each (%(default)s)")
    add("--local", type=Path, help="a folder on the local disk (that of temporary files)")
    add("--out", type=Path, default=isolated.CHECKOUT / f"bench/results/{NAME}.json")
    options = parser.parse_args(arguments)
    local = tempfile.mkdtemp(prefix="bench-startup-", dir=options.local)
    try:
        found = _run(options, local)
        disk = filesystem_of(local)
    finally:
        shutil.rmtree(local, ignore_errors=True)
    targets = _targets(found)
    facts = {"benchmark": NAME, **commit_facts(), "machine": machine_facts(), "filesystem": disk}
    sizes = {name: vars(options)[name] for name in ("files", "batches", "repeats")}
    result = {**facts, "options": sizes, "runs": found, "targets": targets}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result) + "\n")
    print(f"{options.files:,} staged files, {disk}; seconds from the start\n\n{_table(found)}\n")
    print(f"{aligned(target_rows(targets))}\n")


def _targets(found: dict[str, list[dict]]) -> list[dict]:
    targets = []
    for state in STATES[1:]:
        pairs = zip(found[state], found["empty"], strict=True)
        more = [a["first_batch_seconds"] - b["first_batch_seconds"] for a, b in pairs]
        target = target_of(f"first mini-batch, {state}, more than empty", "s", WANTED_SECONDS, more)
        targets.append(dataclasses.asdict(target))
    return targets


def _table(found: dict[str, list[dict]]) -> str:
    names = ("constructor_seconds", "first_batch_seconds", "batches_seconds")
    rows = [["", "constructor", "first mini-batch", "[min, max]", "all mini-batches"]]
    for state, runs in found.items():
        over = {name: spread(run[name] for run in runs) for name in names}
        first = over["first_batch_seconds"]
        middles = [f"{over[name]['median']:.2f}" for name in names]
        extremes = f"[{first['min']:.2f}, {first['max']:.2f}]"
        rows.append([state, *middles[:2], extremes, middles[2]])
    return aligned(rows)


if __name__ == "__main__":
    if isolated.is_child():
        isolated.serve(measure)
    elif sys.argv[1:2] == [_LEAVE]:
        leave(*sys.argv[2:5], int(sys.argv[5]))
    else:
        main()
