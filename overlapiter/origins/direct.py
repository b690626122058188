"""Direct access: what is not staged of a remote source is read from it, where it is needed."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import IO, Any

from overlapiter.origins.remote import RemoteFile, RemoteOrigin

_BUFFER_BYTES = 1 << 20
_PIECE_BYTES = 4 << 20

#: Returns the path of a file of a name that it has written: given what that is called, and what
#: writes the content.
Keep = Callable[[str, Callable[[IO[bytes]], None]], str]


class Direct:
    """Opens files of a remote source in a file reader, as the built-in ``open`` would.

    Args:
        origin: Gives the files.
        keep: Keeps private copies, as long as the current example is read.
    """

    def __init__(self, origin: RemoteOrigin, keep: Keep) -> None:
        self._origin = origin
        self._keep = keep

    def open(
        self,
        url: str,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        **_others: Any,
    ) -> IO[Any]:
        """Open a file for reading; takes the arguments of the built-in ``open``.

        Raises:
            OSError: It cannot be read.
        """
        raw = RemoteFile(self._origin, url)
        raw.stat()
        if "b" in mode:
            if buffering == 0:
                return raw  # type: ignore[return-value]  # as open returns a FileIO
            return io.BufferedReader(raw, buffering if buffering > 1 else _BUFFER_BYTES)
        buffered = io.BufferedReader(raw, _BUFFER_BYTES)
        return io.TextIOWrapper(buffered, encoding, errors, newline)

    def download(self, url: str) -> str:
        """Return the path of a private copy, which lives as long as the current example.

        Raises:
            OSError: It cannot be read, or there is no room for it.
        """

        def fetch(file: IO[bytes]) -> None:
            with self._origin.open(url) as remote:
                while piece := remote.read(_PIECE_BYTES):
                    file.write(piece)

        return self._keep(url, fetch)
