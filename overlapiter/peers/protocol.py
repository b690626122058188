"""What peers send each other: a handshake, then requests and answers. Pure.

The server speaks first, with a nonce; a client that does not know the job's secret gets nothing
else. From then on each message ends with a code by which the other side knows that it comes from
the same connection, whole and in order::

    server → client   nonce
    client → server   nonce, proof
    server → client   proof
    client → server   request: length, names, code
    server → client   answer: length, a record for each name, code; then the bytes of the files

The bytes themselves have the checksum of their record, which is seeded with the file's key, size
and mtime.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Iterable
from typing import NamedTuple

SECRET_BYTES = 32
NONCE_BYTES = 16
CODE_BYTES = 16
#: What a client sends to be let in.
HELLO_BYTES = NONCE_BYTES + CODE_BYTES
#: Most files of a request, and most bytes of its names.
MOST_NAMES = 64
MOST_REQUEST_BYTES = 256 << 10

LENGTH = struct.Struct("<I")
_RECORD = struct.Struct("<Bqqq")
_COUNTER = struct.Struct("<Q")

#: What a server says of a file: it does not have it; it is there; it is there, and was read from
#: the source since the job began.
ABSENT, THERE, FRESH = range(3)


class Record(NamedTuple):
    """What a server says of a file; mtime and checksum as in the extent of the copy."""

    state: int  # ABSENT, THERE or FRESH
    size: int = 0  # bytes that follow
    mtime: int = 0
    checksum: int = 0

    @property
    def has_bytes(self) -> bool:
        """Whether the bytes follow."""
        return self.state >= THERE


def proof(secret: bytes, who: bytes, nonces: bytes) -> bytes:
    """Return what shows that one side knows the secret.

    Args:
        secret: Of the job.
        who: ``b"client"`` or ``b"server"``, so that neither can send the other's proof back.
        nonces: The server's, then the client's.
    """
    return hashlib.blake2b(nonces, digest_size=CODE_BYTES, key=secret, person=who).digest()


class Seal:
    """The codes of the messages of one direction of a connection; they come in order.

    Args:
        secret: Of the job.
        who: Sends the messages: ``b"client"`` or ``b"server"``.
        nonces: The server's, then the client's.
    """

    def __init__(self, secret: bytes, who: bytes, nonces: bytes) -> None:
        self._key = hashlib.blake2b(nonces, key=secret, person=b"seal " + who).digest()
        self._n_messages = 0

    def code(self, payload: bytes) -> bytes:
        """Return the code of the next message."""
        self._n_messages += 1
        salt = _COUNTER.pack(self._n_messages)
        return hashlib.blake2b(payload, digest_size=CODE_BYTES, key=self._key, salt=salt).digest()

    def message(self, payload: bytes) -> bytes:
        """Return the next message as it is sent."""
        return b"".join((LENGTH.pack(len(payload)), payload, self.code(payload)))

    def check(self, payload: bytes, code: bytes) -> None:
        """Raise ConnectionError unless this is the code of the next message."""
        if not hmac.compare_digest(code, self.code(payload)):
            raise ConnectionError("a message was changed, or comes from elsewhere")


def packed_names(names: Iterable[bytes]) -> bytes:
    """Return the payload of a request; no name has a null in it."""
    return b"\0".join(names)


def unpacked_names(payload: bytes) -> list[bytes]:
    """Return the names of a request. Raises ConnectionError if it is none."""
    names = payload.split(b"\0", MOST_NAMES)
    if len(names) > MOST_NAMES:
        raise ConnectionError(f"more than {MOST_NAMES} names")
    return names


def packed_records(records: Iterable[tuple[int, int, int, int]]) -> bytes:
    """Return the payload of an answer; each record is what a :class:`Record` is."""
    return b"".join([_RECORD.pack(*record) for record in records])


def answer_bytes(n_names: int) -> int:
    """Return the length of the payload of an answer."""
    return n_names * _RECORD.size


def unpacked_records(payload: bytes) -> list[Record]:
    """Return the records of the payload of an answer. Raises ConnectionError if it is none."""
    records = [Record(*values) for values in _RECORD.iter_unpack(payload)]
    if any(record.state > FRESH or record.size < 0 for record in records):
        raise ConnectionError("no answer")
    return records
