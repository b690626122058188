"""One message is one flat buffer: a header, numbers of double precision, a vector.

A message takes one transfer, however many layers the model has. The buffer is made once for each
message in flight; a message without a vector sends only its beginning.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from overlapiter.objective import EMPTY, Vector

Doubles = NDArray[np.float64]
Buffer = NDArray[np.uint8]

_N_INTEGERS = 24
_HEADER_BYTES = 8 * _N_INTEGERS
_NO_DOUBLES = np.empty(0, np.float64)
#: Room for a text in a message of a small model.
_LEAST_BYTES = 16384
#: Numbers of a worker's report in the message of its group, beside the measures.
_N_FACTS = 7


class Kind(enum.IntEnum):
    """What a message is about."""

    # from a worker
    JOIN = 1  # it has built its model, and asks for the weights
    EXCHANGE = 2  # the vector is for the algorithm; reports training
    ASK = 3  # it has nothing to do
    VALIDATED = 4  # reports validation
    FAILED = 5  # it cannot go on; the text says why
    LOST = 6  # from a sub-server: a worker of its group is gone
    GROUP = 7  # from a sub-server: mean of a group, and the reports of its workers
    PING = 8  # it waits for long, and asks for a sign of life
    INTERRUPTED = 9  # by Ctrl-C or SIGTERM, also from a sub-server; it waits for no reply
    # from the server
    BEGIN = 10  # the weights to begin with
    GO = 11  # reply to a report, with the reply of the algorithm
    VALIDATE = 12  # evaluate a piece of the validation files with these weights
    STOP = 13  # end; a text says why if that is a failure
    ALIVE = 14  # reply to a ping


class Message(NamedTuple):
    """What ranks send each other; what a kind does not need is left out."""

    kind: Kind
    origin: int = 0  # the worker that it is from, or for; a sub-server passes it on
    epoch: int = 0  # of the report, or of the validation
    piece: int = -1  # of the report, or to validate
    #: Up to which of its examples; of a worker that joins, the digest of its model; of the server,
    #: the number of the checkpoint that the worker's own state is to be kept with, or to be taken
    #: from; of its last message, 1 if the run is refused.
    position: int = 0
    n_examples: int = 0  # that the measures are about
    leases: tuple[tuple[int, int, int], ...] = ()  # epoch, piece, position; four fit
    doubles: Doubles = _NO_DOUBLES  # measures, as sums over examples
    vector: Vector = EMPTY  # gradients or weights
    text: str = ""  # of a failure
    memory_bytes: int = 0  # what the worker has of the memory
    cpu_ms: int = 0  # CPU time of the worker since its start


def buffer_bytes(n_measures: int = 0, n_values: int = 0, group_size: int = 0) -> int:
    """Return how large a buffer must be for the messages about a model, and of a group."""
    n_doubles = max(n_measures, group_size * (_N_FACTS + n_measures))
    return max(_LEAST_BYTES, _HEADER_BYTES + 8 * n_doubles + 4 * n_values)


def pack(message: Message, buffer: Buffer) -> Buffer:
    """Write a message into a buffer; return the part of it that has to be sent."""
    header = buffer[:_HEADER_BYTES].view(np.int64)
    text = message.text.encode("utf-8", "replace")[: _LEAST_BYTES - _HEADER_BYTES - 8 * 64]
    n_doubles, n_vector = message.doubles.size, message.vector.size
    header[:12] = (
        message.kind, message.origin, message.epoch, message.piece, message.position,
        message.n_examples, n_doubles, n_vector, len(text), message.memory_bytes,
        message.cpu_ms, len(message.leases),
    )  # fmt: skip
    for i, lease in enumerate(message.leases):
        header[12 + 3 * i : 15 + 3 * i] = lease
    end = _HEADER_BYTES + 8 * n_doubles
    buffer[_HEADER_BYTES:end].view(np.float64)[:] = message.doubles
    if text:
        buffer[end : end + len(text)] = np.frombuffer(text, np.uint8)
        return buffer[: end + len(text)]
    buffer[end : end + 4 * n_vector].view(np.float32)[:] = message.vector
    return buffer[: end + 4 * n_vector]


def unpack(buffer: Buffer) -> Message:
    """Return the message in a buffer; its arrays are views of the buffer."""
    header = buffer[:_HEADER_BYTES].view(np.int64)
    kind, origin, epoch, piece, position, n_examples, *sizes = header[:12].tolist()
    n_doubles, n_vector, n_text, memory_bytes, cpu_ms, n_leases = sizes
    leases = header[12 : 12 + 3 * n_leases].reshape(-1, 3).tolist()
    end = _HEADER_BYTES + 8 * n_doubles
    return Message(
        Kind(kind), origin, epoch, piece, position, n_examples,
        tuple((epoch, piece, position) for epoch, piece, position in leases),
        buffer[_HEADER_BYTES:end].view(np.float64),
        buffer[end : end + 4 * n_vector].view(np.float32),
        bytes(buffer[end : end + n_text]).decode("utf-8", "replace"),
        memory_bytes,
        cpu_ms,
    )  # fmt: skip


# --- the one message of a group of workers that share a sub-server -------------------------------


def rows_of(reports: Sequence[Message]) -> Doubles:
    """Return reports as the numbers of one message."""
    rows = [
        [r.origin, r.epoch, r.piece, r.position, r.n_examples, r.memory_bytes, r.cpu_ms, *r.doubles]
        for r in reports
    ]
    return np.array(rows, np.float64).ravel()


def reports_in(message: Message, n_measures: int) -> list[Message]:
    """Return the reports that :func:`rows_of` has put into a message."""
    found = []
    for row in message.doubles.reshape(-1, _N_FACTS + n_measures):
        origin, epoch, piece, position, n_examples, memory_bytes, cpu_ms = map(int, row[:_N_FACTS])
        report = Message(Kind.EXCHANGE, origin, epoch, piece, position, n_examples)
        found.append(
            report._replace(doubles=row[_N_FACTS:], memory_bytes=memory_bytes, cpu_ms=cpu_ms)
        )
    return found
