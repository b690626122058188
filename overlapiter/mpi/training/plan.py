"""What all ranks of a run know: files, their lengths, the pieces that they are divided into."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from overlapiter.errors import TrainingError

from .data import Source
from .leases import Piece, default_piece_examples, pieces_of
from .model import Batch
from .settings import Settings

#: What a piece may take of the memory, if nothing else is said.
_PIECE_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class Plan:
    """What the server finds out at the start, and tells all ranks."""

    train_paths: Sequence[str]
    val_paths: Sequence[str]  # may be none
    train_pieces: Sequence[Piece]
    val_pieces: Sequence[Piece]
    example: Batch  # a mini-batch of one example
    n_workers: int

    @property
    def n_examples(self) -> int:
        """How many examples an epoch has."""
        return sum(map(len, self.train_pieces))


def make_plan(
    settings: Settings,
    source: Source,
    train_paths: Sequence[str],
    val_paths: Sequence[str],
    n_workers: int,
    *,
    kept_size: int = 0,
) -> Plan:
    """Look at all files; takes some time where there are many.

    ``kept_size`` is that of the training pieces of a run that goes on; 0 without one.

    Raises:
        TrainingError: One cannot be read, or they have no examples, or differ in shape.
    """
    lengths, first, example = [], "", ()
    for path in (*train_paths, *val_paths):
        length, batch = source.look_at(path)
        lengths.append(length)
        if length and not first:
            first, example = path, batch
        elif length:
            _check_shapes(path, batch, first, example)
    lengths, val_lengths = lengths[: len(train_paths)], lengths[len(train_paths) :]
    n, n_val = sum(lengths), sum(val_lengths)
    if not n:
        raise TrainingError("the training files have no examples; see whether the list is right")
    if val_paths and not n_val:
        raise TrainingError("the validation files have no examples; see whether the list is right")
    step = settings.batch * settings.sync_every
    size = settings.piece_examples or kept_size or _piece_examples(n, n_workers, step, example)
    val_size = settings.piece_examples or _piece_examples(n_val, n_workers, settings.batch, example)
    return Plan(
        tuple(train_paths),
        tuple(val_paths),
        pieces_of(lengths, size),
        pieces_of(val_lengths, val_size),
        example,
        n_workers,
    )


def _piece_examples(n: int, n_workers: int, step: int, example: Batch) -> int:
    """Return a size of pieces that gives work to all workers, and is not too large to read."""
    most: float = _PIECE_BYTES / max(1, sum(array.nbytes for array in example))
    return min(default_piece_examples(n, n_workers, step), step * max(1, math.floor(most / step)))


def _check_shapes(path: str, batch: Batch, first: str, example: Batch) -> None:
    """Raise TrainingError if the examples of a file have other shapes than those of the first."""
    here, shapes = ([each.shape[1:] for each in some] for some in (batch, example))
    if here != shapes:
        raise TrainingError(
            f"the examples of {path} have the shapes {here}, those of {first} {shapes}; all files "
            f"of a run must be alike"
        )


def groups_of(size: int, n_masters: int) -> dict[int, list[int]]:
    """Return the workers of each sub-server, by ranks; rank 0 is the server."""
    workers = range(n_masters + 1, size)
    return {master: [*workers[master - 1 :: n_masters]] for master in range(1, n_masters + 1)}
