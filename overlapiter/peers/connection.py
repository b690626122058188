"""A client's connection to a server. Every wait is bounded."""

from __future__ import annotations

import hmac
import secrets
import socket
import struct
from collections.abc import Sequence

from .protocol import (
    CODE_BYTES,
    LENGTH,
    NONCE_BYTES,
    Record,
    Seal,
    answer_bytes,
    packed_names,
    proof,
    unpacked_records,
)

#: Where a server is: host and port.
Address = tuple[str, int]

#: How long to wait for the next bytes of a server; to be let in again by one that has failed.
WAIT_SECONDS, WAIT_AGAIN_SECONDS = 1.0, 0.25
_TIMEVAL = struct.Struct("@ll")


class Connection:
    """A connection to a server. For one thread.

    Args:
        address: Of the server.
        secret: Of the job.
        wait_seconds: How long to wait for what comes next.
        let_in_seconds: How long to wait to be let in.

    Raises:
        OSError: The server cannot be reached, does not answer, or does not know the secret.
    """

    def __init__(
        self,
        address: Address,
        secret: bytes,
        wait_seconds: float = WAIT_SECONDS,
        let_in_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._socket = socket.create_connection(address, let_in_seconds)
        try:
            self._socket.settimeout(None)  # the kernel's own limits cost no system call
            self._limit(let_in_seconds)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            nonces = self.read(NONCE_BYTES) + secrets.token_bytes(NONCE_BYTES)
            hello = nonces[NONCE_BYTES:] + proof(secret, b"client", nonces)
            self._socket.sendall(hello)
            if not hmac.compare_digest(self.read(CODE_BYTES), proof(secret, b"server", nonces)):
                raise ConnectionError("the server does not know the secret")
            self._limit(wait_seconds)
        except BaseException:
            self._socket.close()
            raise
        self._requests = Seal(secret, b"client", nonces)
        self._answers = Seal(secret, b"server", nonces)

    def _limit(self, seconds: float) -> None:
        limit = _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            self._socket.setsockopt(socket.SOL_SOCKET, option, limit)

    def ask(self, names: Sequence[bytes]) -> None:
        """Ask for files; a second request may be sent before the first one is answered."""
        self._socket.sendall(self._requests.message(packed_names(names)))

    def answer(self, n_names: int) -> list[Record]:
        """Return what the server says of the files of the oldest request that is not answered.

        The bytes of those that it has are to be read next, in the same order.

        Raises:
            OSError: None has come, or it is none.
        """
        n_bytes = answer_bytes(n_names)
        data = self.read(LENGTH.size + n_bytes + CODE_BYTES)
        payload = data[LENGTH.size : LENGTH.size + n_bytes]
        if LENGTH.unpack_from(data)[0] != n_bytes:
            raise ConnectionError("an answer of another length")
        self._answers.check(payload, data[LENGTH.size + n_bytes :])
        return unpacked_records(payload)

    def read(self, size_bytes: int) -> bytes:
        """Return the next bytes, all of them. Raises OSError if they do not come."""
        data = self._socket.recv(size_bytes, socket.MSG_WAITALL)
        if len(data) < size_bytes:
            raise ConnectionError("the server does not go on")
        return data

    def close(self) -> None:
        """Close it; closing twice is fine."""
        self._socket.close()
