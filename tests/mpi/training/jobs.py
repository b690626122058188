"""Files to train on, and the command ``overlapiter train``, alone and under mpiexec."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import psutil
from sklearn.datasets import load_digits

from tests.chainer.mpi_jobs import exit_status_of
from tests.chainer.scripts import ENVIRONMENT

HERE = Path(__file__).parent
COUNTING, DIGITS = HERE / "counting.py", HERE / "digits.py"

#: Files of a size that no number of workers and no mini-batch divides.
LENGTHS = (37, 5, 1, 40, 17)

#: With these the weights of the counting model are minus how often each example was used.
COUNTED = ("--optimizer", "sgd", "--learning-rate", "1", "--batch", "2")
#: The same, for a run in this process.
COUNTED_HERE: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 1.0, "batch": 2}

IMPATIENT = "tests.mpi.impatient"

#: Variables of a job that does not take the time that these need to be imported.
WITHOUT = {"TESTS_DO_WITHOUT": "numba matplotlib"}


class Ended(NamedTuple):
    """A command that has ended: exit status, and all that it has printed."""

    exit_status: int
    output: str


def write_file(path: Path, features: Any, labels: Any) -> None:
    """Write an HDF5 file."""
    with h5py.File(path, "w") as file:
        file["features"], file["labels"] = features, labels


def write_numbers(folder: Path, lengths: Sequence[int] = LENGTHS) -> Path:
    """Write files whose examples are the numbers from 0 on; return their list."""
    ends = np.cumsum(lengths).tolist()
    for i, (end, length) in enumerate(zip(ends, lengths, strict=True)):
        numbers = np.arange(end - length, end, dtype=np.int32)
        write_file(folder / f"numbers{i}.h5", numbers, np.zeros(length, np.int32))
    listing = folder / "numbers.txt"
    listing.write_text("".join(f"numbers{i}.h5\n" for i in range(len(lengths))))
    return listing


def write_digits(folder: Path) -> tuple[Path, Path]:
    """Write 600 digits to train on and 201 to validate with; return the two lists."""
    pixels, labels = load_digits(return_X_y=True)
    pixels = (pixels / 16).astype(np.float32)
    for name, start, stop in (("a", 0, 290), ("b", 290, 600), ("v", 600, 735), ("w", 735, 801)):
        write_file(folder / f"{name}.h5", pixels[start:stop], labels[start:stop])
    # As some editors write it.
    (folder / "train.txt").write_text("# two files\na.h5\nb.h5\n", encoding="utf-8-sig")
    (folder / "val.txt").write_text("v.h5\nw.h5\n")
    return folder / "train.txt", folder / "val.txt"


@contextlib.contextmanager
def training_job(
    folder: Path,
    n_ranks: int,
    *words: object,
    is_tolerant: bool = False,
    wrapper: Sequence[str] = (),
    program: str = "overlapiter",
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """Start ``overlapiter train`` with some words, on 0 ranks without mpiexec; kill it at the end.

    What it prints goes to ``output.txt``. ``program`` is the module that is run, ``wrapper`` a
    command that each rank is started by.
    """
    command = [sys.executable, "-m", program, "train", *map(str, words)]
    without = {} if DIGITS in words else WITHOUT
    if n_ranks:
        tolerance = ["--with-ft", "ulfm"] if is_tolerant else []
        launcher = ["mpiexec", "--allow-run-as-root", "--oversubscribe", *tolerance]
        command = [*launcher, "-n", str(n_ranks), *wrapper, *command]
    with (folder / "output.txt").open("wb") as output:
        job = subprocess.Popen(
            command,
            cwd=folder,
            env={**ENVIRONMENT, **without, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        yield job
    finally:
        if job.poll() is None:
            for process in psutil.Process(job.pid).children(recursive=True):
                process.kill()
            job.kill()
            job.wait()


def run_training(folder: Path, n_ranks: int, *words: object, **more: Any) -> Ended:
    """Run ``overlapiter train``; see :func:`training_job`."""
    with training_job(folder, n_ranks, *words, **more) as job:
        return end_of(folder, job)


def end_of(folder: Path, job: subprocess.Popen[bytes]) -> Ended:
    """Wait for the end of a job that was begun in a folder."""
    job.wait(200)
    output = (folder / "output.txt").read_text()
    return Ended(exit_status_of(job.returncode, output), output)


def rank_of(job: subprocess.Popen[bytes], rank: int) -> psutil.Process:
    """Return the process of a rank of a job."""
    children = psutil.Process(job.pid).children(recursive=True)
    return next(c for c in children if c.environ().get("OMPI_COMM_WORLD_RANK") == str(rank))


def counts(out: Path) -> list[int]:
    """Return how often each example was used, by the weights of the counting model."""
    used = -weights(out)["used"]
    assert (used == used.round()).all(), used
    return used.astype(int).tolist()


def weights(out: Path) -> dict[str, Any]:
    """Return the arrays of ``weights.npz``."""
    with np.load(out / "weights.npz") as file:
        return dict(file)


def same_weights(one: Path, other: Path) -> bool:
    """Return whether two runs have ended with the same weights, bit for bit."""
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(
        np.array_equal(first[name], second[name]) for name in first
    )


def epochs(out: Path) -> list[dict[str, Any]]:
    """Return the records of ``history.json``."""
    records: list[dict[str, Any]] = json.loads((out / "history.json").read_text())["epochs"]
    return records
