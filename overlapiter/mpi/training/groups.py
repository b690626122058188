"""Groups of workers with a sub-server each: who belongs where, and the one message of a group."""

from __future__ import annotations

import numpy as np

from .messages import Doubles, Kind, Message

_N_FACTS = 5


def groups_of(size: int, n_masters: int) -> dict[int, list[int]]:
    """Return the workers of each sub-server, by ranks; rank 0 is the server."""
    workers = range(n_masters + 1, size)
    return {master: [*workers[master - 1 :: n_masters]] for master in range(1, n_masters + 1)}


def rows_of(reports: list[Message]) -> Doubles:
    """Return reports as the numbers of one message."""
    rows = [[r.origin, r.epoch, r.piece, r.position, r.n_examples, *r.doubles] for r in reports]
    return np.array(rows, np.float64).ravel()


def reports_in(message: Message, n_measures: int) -> list[Message]:
    """Return the reports that :func:`rows_of` has put into a message."""
    found = []
    for row in message.doubles.reshape(-1, _N_FACTS + n_measures):
        origin, epoch, piece, position, n_examples = (int(value) for value in row[:_N_FACTS])
        found.append(
            Message(Kind.REPORT, origin, epoch, piece, position, n_examples, doubles=row[_N_FACTS:])
        )
    return found


def n_doubles_of(group: list[int], n_measures: int) -> int:
    """Return how many numbers a message of a group has."""
    return len(group) * (_N_FACTS + n_measures)
