"""One message is one flat buffer: a vector, then its facts, pickled.

A message takes one transfer, however many layers the model has. The buffer is made once for each
message in flight; a message without a vector sends only its beginning.
"""

from __future__ import annotations

import enum
import pickle
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from overlapiter.objective import EMPTY, Vector

from .leases import Lease
from .model import Model

Buffer = NDArray[np.uint8]

#: Has the end of the vector, which begins where the processor's vector units like it.
_HEADER_BYTES = 64
#: Room for the facts of a message, and for the report of each further worker in one of a group.
_FACTS_BYTES, _REPORT_BYTES = 16384, 1024
#: Of a text; the rest is cut off.
_MOST_TEXT_BYTES = 15000


class Kind(enum.IntEnum):
    """What a message is about."""

    # from a worker
    JOIN = 1  # it has built its model, and asks for the weights
    EXCHANGE = 2  # the vector is for the algorithm; reports training, of a group or of itself
    ASK = 3  # it has nothing to do
    VALIDATED = 4  # reports validation
    FAILED = 5  # it cannot go on; the text says why
    LOST = 6  # this rank is gone; from a sub-server, or from a post that has found it
    PING = 7  # it waits for long, and asks for a sign of life
    INTERRUPTED = 8  # by Ctrl-C or SIGTERM, also from a sub-server; it waits for no reply
    # from the server
    BEGIN = 9  # the weights to begin with
    GO = 10  # reply to a report, with the reply of the algorithm
    VALIDATE = 11  # evaluate a piece of the validation files with these weights
    STOP = 12  # end; a text says why if that is a failure
    ALIVE = 13  # reply to a ping


class Message(NamedTuple):
    """What ranks send each other; what a kind does not need is left out."""

    kind: Kind
    origin: int = 0  # the worker that it is from, or for; a sub-server passes it on
    epoch: int = 0  # of the report, or of the validation
    piece: int = -1  # of the report, or to validate
    position: int = 0  # up to which of its examples
    n_examples: int = 0  # that the measures are about
    leases: tuple[Lease, ...] = ()  # granted
    sums: tuple[float, ...] = ()  # of the measures, over examples
    memory_bytes: int = 0  # what the worker has of the memory
    cpu_ms: int = 0  # CPU time of the worker since its start
    reports: tuple[Message, ...] = ()  # from a sub-server: of the workers whose mean this is
    n_values: int = 0  # of the model of a worker that joins
    digest: int = 0  # of that model
    checkpoint: int = 0  # which the worker's own state is to be kept with, or to be taken from
    is_refused: bool = False  # the run does not begin
    text: str = ""  # of a failure
    vector: Vector = EMPTY  # gradients or weights


def buffer_bytes(model: Model | None = None, group_size: int = 0) -> int:
    """Return how large a buffer must be for the messages about a model, and of a group."""
    n_bytes = _HEADER_BYTES + _FACTS_BYTES + group_size * _REPORT_BYTES
    if model is not None:
        n_bytes += 8 * len(model.measure_names) * (1 + group_size) + model.weights().nbytes
    return n_bytes


def pack(message: Message, buffer: Buffer) -> Buffer:
    """Write a message into a buffer; return the part of it that has to be sent."""
    kind, *facts, text, vector = message
    text = text.encode("utf-8", "replace")[:_MOST_TEXT_BYTES].decode("utf-8", "replace")
    # Plain values take a fourth of the time of what has a class.
    pickled = pickle.dumps((int(kind), *facts, text), pickle.HIGHEST_PROTOCOL)
    vector_end = _HEADER_BYTES + 4 * vector.size
    end = vector_end + len(pickled)
    buffer[:8].view(np.int64)[0] = vector_end
    buffer[_HEADER_BYTES:vector_end].view(np.float32)[:] = vector
    buffer[vector_end:end] = np.frombuffer(pickled, np.uint8)
    return buffer[:end]


def unpack(buffer: Buffer) -> Message:
    """Return the message in a buffer; its vector is a view of the buffer."""
    vector_end = int(buffer[:8].view(np.int64)[0])
    kind, *facts = pickle.loads(buffer[vector_end:].data)
    vector = buffer[_HEADER_BYTES:vector_end].view(np.float32)
    return Message(Kind(kind), *facts)._replace(vector=vector)
