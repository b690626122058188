"""How long a start takes when many files are staged, in whatever state they were left."""

import os
import signal
import sqlite3
import subprocess
from contextlib import closing

from bench.harness import isolated
from bench.harness.options import CommonOptions, option
from bench.harness.tables import Wanted
from bench.loaders.run import run_loader
from bench.loaders.sources import BLOCK_BYTES, fresh, require_room
from bench.loaders.spec import RunSpec
from bench.photographs import PHOTOGRAPHS, make_photographs

STATES = ("empty", "closed", "killed", "another boot")
_CAPACITY_BYTES = 10**14
_PART_FILES = 1_000
_FOLDER_FILES = 1_280


class Options(CommonOptions):
    files: int = option(1_280_000, "staged files", quick=5_000)
    batches: int = option(50, "mini-batches to take", quick=2)
    photographs: int = option(8_000, "to take from", quick=400)
    repeats: int = 5


def names_of(n_files: int) -> list[str]:
    """Return the paths of files that are staged, and that no source has."""
    return [f"n{number // _FOLDER_FILES:04}/{number}.jpg" for number in range(n_files)]


def leave(request: dict) -> dict:
    """Leave the staging directory in a state, without what the last run has staged.

    ``filled`` adds rows to an index that is empty, ``killed`` does not return.
    """
    from bench.harness.store_access import stage_bytes, store_in, wanted_of
    from overlapiter.store.generation import generation_of, index_path

    staging, root, names = request["staging"], request["root"], names_of(request["n_files"])
    store = store_in(staging, root)
    store.evict([each.key for each in wanted_of(store, request["photographs"])])
    if request["state"] == "filled":
        for first in range(0, len(names), _PART_FILES):
            stage_bytes(store, names[first : first + _PART_FILES], b"")
    if request["state"] == "killed":
        store.note_verified([each.key for each in wanted_of(store, names[::6])])
        store.claim(wanted_of(store, [f"copied/{number}" for number in range(_PART_FILES)]))
        os.kill(os.getpid(), signal.SIGKILL)
    store.close()
    if request["state"] == "another boot":
        with closing(sqlite3.connect(index_path(generation_of(staging)))) as index, index:
            index.execute("UPDATE fact SET value='another' WHERE name='boot'")
    return {}


def measure(options: Options) -> dict:
    scratch = options.scratch
    require_room(scratch, options.files * BLOCK_BYTES)
    made = make_photographs(PHOTOGRAPHS, options.photographs)
    full, pairs = str(scratch / "full"), scratch / "pairs.txt"
    root, photographs = str(made.root.resolve()), [path for path, _ in made.pairs]
    names = photographs + names_of(options.files - len(photographs))
    pairs.write_text("".join(f"{name} 0\n" for name in names))
    spec = RunSpec(
        "overlap", str(pairs), options.files, root, full, order="ascending", mount="given",
        n_batches=options.batches, capacity=_CAPACITY_BYTES,
    )  # fmt: skip
    request = {"staging": full, "root": root, "n_files": options.files, "photographs": photographs}
    isolated.call(leave, {**request, "state": "filled"})

    def run(point: dict) -> dict:
        if point["name"] == "empty":
            return isolated.call(run_loader, fresh(spec))
        program = isolated.Program(leave, {**request, "state": point["name"]}, scratch)
        status = subprocess.run(program.command, cwd=isolated.CHECKOUT, check=False).returncode
        if status != -signal.SIGKILL:
            program.answer(status)
        os.sync()
        return isolated.call(run_loader, spec)

    points = [{"name": state} for state in STATES]
    return {"points": isolated.take_turns(points, options.repeats, run)}


TARGETS: tuple[Wanted, ...] = tuple(
    (f"first mini-batch, {state}, more than empty", "s", 1.0, (state, "empty"),
     lambda run, empty: run["first_batch_seconds"] - empty["first_batch_seconds"])
    for state in STATES[1:]
)  # fmt: skip
_COLUMNS = {
    "seconds": "{name}",
    "constructor": "{constructor_seconds:.2f}",
    "first mini-batch": "{first_batch_seconds:.2f}",
    "[min, max]": "[{first_batch_seconds.min:.2f}, {first_batch_seconds.max:.2f}]",
    "all mini-batches": "{wall_seconds:.2f}",
}
TABLES = {"startup-staged": _COLUMNS}
