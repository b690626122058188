"""How long the constructor takes when many files are staged, and how long counting them takes.

The staging directory is filled with entries of the size of a photograph that take no space.
Measured is the constructor of an iterator over as many files, with a capacity: over an empty
staging directory, over a full one, and over one that nobody has counted (its usage file was
removed, or the node was booted); and the recount that a prefetcher does in that last case::

    python -m bench.startup_staged
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from pathlib import Path
from statistics import median

from bench import isolated
from bench.machine import machine_facts
from bench.progress import progress_bar

NUM_FILES = 1_280_000
_FILE_BYTES = 110_000
_FOLDER_SIZE = 1_280
_BATCH_SIZE = 32


def measure(request: dict) -> dict:
    """Make an iterator in this process, or count what is staged.

    Args:
        request: ``state`` is "empty", "counted", "uncounted" or "recount"; ``root``, ``staging``,
            ``n_files``.

    Returns:
        ``seconds``.
    """
    from chainer.datasets import LabeledImageDataset

    import overlapiter
    from overlapiter.staging.room import Room

    if request["state"] == "recount":
        start = time.monotonic()
        Room(request["staging"], None, 0).recount()
        return {"seconds": time.monotonic() - start}
    pairs = [(_name(number), 0) for number in range(request["n_files"])]
    dataset = LabeledImageDataset(pairs, request["root"])
    staging = overlapiter.Staging(request["staging"], source=request["root"], capacity="100TB")
    start = time.monotonic()
    iterator = overlapiter.OverlapIterator(dataset, _BATCH_SIZE, n_processes=2, staging=staging)
    seconds = time.monotonic() - start
    iterator.finalize()
    return {"seconds": seconds}


def _name(number: int) -> str:
    return f"n{number // _FOLDER_SIZE:04}/{number}.jpg"


def fill(folder: Path, n_files: int) -> None:
    """Make files of the right size, of which nothing is stored."""
    with progress_bar(n_files, "file") as progress:
        for number in range(n_files):
            if number % _FOLDER_SIZE == 0:
                (folder / _name(number)).parent.mkdir(parents=True, exist_ok=True)
                progress.update(min(_FOLDER_SIZE, n_files - number))
            fd = os.open(folder / _name(number), os.O_WRONLY | os.O_CREAT, 0o600)
            os.truncate(fd, _FILE_BYTES)
            os.close(fd)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--files", type=int, default=NUM_FILES, help="staged files (%(default)s)")
    add("--repeats", type=int, default=3, help="runs of each (%(default)s)")
    add("--place", type=Path, default=isolated.CHECKOUT / ".cache/bench", help="(%(default)s)")
    add("--out", type=Path, default=isolated.CHECKOUT / "bench/results/startup_staged.json")
    options = parser.parse_args(arguments)
    place = options.place / f"startup-staged-{os.getpid()}"
    try:
        seconds = _run(place, options.files, options.repeats)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    result = {
        "benchmark": "startup_staged",
        "machine": machine_facts(),
        "options": {"files": options.files, "repeats": options.repeats},
        "seconds": seconds,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result) + "\n")
    for state, runs in seconds.items():
        print(f"{state:>10} {median(runs):8.2f} s  [{min(runs):.2f}, {max(runs):.2f}]")


def _run(place: Path, n_files: int, n_repeats: int) -> dict[str, list[float]]:
    from overlapiter.staging.folders import subdirectory

    source, staging, empty = place / "source", place / "full", place / "empty"
    fill(source, _BATCH_SIZE)
    fill(Path(subdirectory(str(staging), str(source)), "files"), n_files)
    request = {"root": str(source), "staging": str(staging), "n_files": n_files}
    seconds: dict[str, list[float]] = {}
    for state in ("uncounted", "recount", "counted", "empty"):
        for _ in range(n_repeats):
            if state == "uncounted":
                (staging / "overlapiter.usage").unlink(missing_ok=True)
            if state == "empty":
                shutil.rmtree(empty, ignore_errors=True)
                request["staging"] = str(empty)
            answer = isolated.call("bench.startup_staged", {**request, "state": state})
            seconds.setdefault(state, []).append(answer["seconds"])
    return seconds


if __name__ == "__main__":
    if isolated.is_child():
        isolated.serve(measure)
    else:
        main()
