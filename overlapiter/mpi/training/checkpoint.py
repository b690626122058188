"""The files that a run writes: each is whole at any time, or not there; its checkpoints."""

from __future__ import annotations

import contextlib
import glob
import json
import os
import threading
import zipfile
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from overlapiter.errors import TrainingError
from overlapiter.newfile import replaced

#: What NumPy raises for a file that is damaged, cut off or empty.
_UNREADABLE = (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile)
#: What a run cannot go on without.
_FACTS = {"settings", "plan", "queue", "epochs", "piece_examples", "number"}


def path_in(out: str) -> str:
    """Return the path of the checkpoint in the directory of a run."""
    return os.path.join(out, "checkpoint.npz")


def remove(out: str) -> None:
    """Remove the checkpoint in the directory of a run, and what workers keep beside it."""
    for name in glob.glob("checkpoint*.npz", root_dir=out):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(out, name))


def replacing(path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
    """Give a file of the run, which takes the place of the one before when it is whole."""
    root, ending = os.path.splitext(path)
    return replaced(path, f"{root}.new{ending}")


def write_text(path: str, text: str) -> None:
    """Write a file in the way of :func:`replacing`."""
    with replacing(path) as file:
        file.write(text.encode(errors="backslashreplace"))  # a path may have bytes that are no text


def _write_arrays(file: IO[bytes], arrays: Mapping[str, Any]) -> None:
    """Write what :func:`numpy.load` reads; NumPy would leave the archive open on a full disk."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.save(entry, np.asarray(array), allow_pickle=False)


class Writer:
    """Writes checkpoints of a directory in a thread, so that training goes on."""

    def __init__(self, out: str) -> None:
        self._path = path_in(out)
        self._thread: threading.Thread | None = None
        self._error: OSError | None = None

    def write(self, facts: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """Begin to write a checkpoint: facts for JSON, and arrays that do not change any more.

        Raises:
            TrainingError: The one before could not be written.
        """
        self.wait()
        ready = {name: np.asarray(value) for name, value in arrays.items()}
        ready["facts"] = np.array(json.dumps(facts))
        self._thread = threading.Thread(target=self._write, args=(ready,), name="checkpoint")
        self._thread.start()

    def _write(self, arrays: Mapping[str, Any]) -> None:
        try:
            with replacing(self._path) as file:
                _write_arrays(file, arrays)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            self._error = error

    def wait(self) -> None:
        """Wait until what was begun is written.

        Raises:
            TrainingError: It could not be.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            words = f"the checkpoint {self._path} cannot be written ({error}); make room there"
            raise TrainingError(words) from error


def read(out: str, kind: str = "") -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return facts and arrays of the checkpoint in a directory; None if there is none.

    Args:
        out: The directory.
        kind: Begins the names of the arrays that are read.

    Raises:
        TrainingError: It cannot be read.
    """
    path = path_in(out)
    if not os.path.exists(path):
        return None
    try:
        arrays = _arrays_in(path, kind)
        facts = json.loads(str(arrays.pop("facts")))
        if missing := _FACTS - facts.keys():
            raise ValueError(f"another version has written it, without {sorted(missing)[0]}")
        return facts, arrays
    except _UNREADABLE as error:
        raise TrainingError(
            f"the checkpoint {path} cannot be read ({error}); begin anew with --restart, or name "
            f"another --out"
        ) from error


def _arrays_in(path: str, kind: str = "") -> dict[str, Any]:
    # NumPy leaves a damaged file open that it has opened itself.
    with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays if name.startswith((kind, "facts"))}


class WorkerStates:
    """What a worker keeps of its own beside each checkpoint: EASGD and GEM need it."""

    def __init__(self, out: str, rank: int) -> None:
        self._path = os.path.join(out, f"checkpoint-rank{rank}.npz")

    def write(self, number: int, state: Mapping[str, Any]) -> None:
        """Write the state that belongs to a checkpoint, in place of that of an earlier one."""
        with replacing(self._path) as file:
            _write_arrays(file, flat("side", state) | {"number": number})

    def read(self, number: int) -> dict[str, Any] | None:
        """Return the state that belongs to a checkpoint; None if there is none."""
        with contextlib.suppress(*_UNREADABLE):  # the server's weights will do
            arrays = _arrays_in(self._path)
            if int(arrays["number"]) == number:
                return part("side", arrays)
        return None


def flat(name: str, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state with the keys of a checkpoint's arrays."""
    return {f"{name}/{key}": value for key, value in state.items()}


def part(name: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return what :func:`flat` was given; numbers come back as numbers."""
    found = {}
    for key, value in arrays.items():
        if key.startswith(f"{name}/"):
            found[key[len(name) + 1 :]] = value.item() if value.ndim == 0 else value
    return found
