"""Direct access: what is not staged of a remote source is read from it, where it is needed."""

from __future__ import annotations

import io
import tempfile
from typing import IO, Any

from overlapiter.origins.remote import RemoteFile, RemoteOrigin

_BUFFER_BYTES = 1 << 20
_PIECE_BYTES = 4 << 20


class Direct:
    """Opens files of a remote source in a file reader, as the built-in ``open`` would."""

    def __init__(self, origin: RemoteOrigin) -> None:
        self._origin = origin
        self._copies: dict[str, IO[bytes]] = {}

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
        """Open a file for reading, as the built-in ``open``. Raises OSError if that fails."""
        raw = RemoteFile(self._origin, url)
        raw.stat()
        if "b" in mode:
            if buffering == 0:
                return raw  # type: ignore[return-value]  # as open returns a FileIO
            return io.BufferedReader(raw, buffering if buffering > 1 else _BUFFER_BYTES)
        buffered = io.BufferedReader(raw, _BUFFER_BYTES)
        return io.TextIOWrapper(buffered, encoding, errors, newline)

    def download(self, url: str) -> str:
        """Return the path of a private copy, which lives until :meth:`forget`.

        It is a file without a name, so that it ends with this process, however that ends.

        Raises:
            OSError: It cannot be read, or there is no room for temporary files.
        """
        file = self._copies.get(url)
        if file is None:
            file = tempfile.TemporaryFile()  # noqa: SIM115  # lives until forget
            try:
                with self._origin.open(url) as remote:
                    while piece := remote.read(_PIECE_BYTES):
                        file.write(piece)
                file.flush()
            except BaseException:
                file.close()
                raise
            self._copies[url] = file
        return f"/proc/self/fd/{file.fileno()}"

    def forget(self) -> None:
        """Drop the private copies."""
        for file in self._copies.values():
            file.close()
        self._copies.clear()
