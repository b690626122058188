"""Origins that have no paths: object stores, web servers and archives, read through fsspec.

fsspec keeps a thread for its connections, which no child inherits by fork: the file system is made
in each process that reads, when it reads first. Credentials stay in the options that the user gave
for fsspec; they are neither stored nor part of any text made here.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import pickle
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from typing import IO, Any, TypeVar

from overlapiter.errors import OptionError
from overlapiter.origins.origin import Original
from overlapiter.origins.outages import Outages
from overlapiter.origins.retry import (
    call_again,
    causes,
    may_pass,
    status_of,
    trouble_words,
)
from overlapiter.urls import protocol_of

ResultT = TypeVar("ResultT")

#: What is asked for at once, and so what a read keeps in memory.
_PIECE_BYTES = 4 << 20
#: What changes when the content does, as the implementations of fsspec call it.
_VERSION_KEYS = (
    "ETag", "etag", "md5Hash", "content_md5", "Content-MD5", "Digest", "crc32c", "CRC", "sha256",
    "generation", "VersionId", "LastModified", "Last-Modified", "last_modified", "updated",
    "modified", "mtime", "date_time",
)  # fmt: skip
#: The options that say which store or archive is meant; never those that say who asks.
_PLACE_KEYS = ("fo", "endpoint_url", "host", "port", "account_name", "project", "repo", "ref")
#: Beside those that wait for all requests in one thread. Of others, the open files may share a
#: position (tar), or a connection (ftp).
_SAFE_FOR_THREADS = {"file", "local", "zip", "hdfs"}
#: Any such number is an mtime that every file system can keep.
_MTIMES = 2**31 * 10**9


def check_remote(source: str, options: Mapping[str, object]) -> str:
    """Check that a source can be read through fsspec, without asking it; return the module to load.

    Raises:
        OptionError: Something is to be installed first, or it cannot work across processes.
    """
    protocol = protocol_of(source)
    inner = protocol_of(str(options.get("fo", "")))
    if "memory" in (protocol, inner, options.get("target_protocol")):
        raise OptionError(
            "source", "memory:// exists in one process alone, and the prefetchers are others"
        )
    try:
        import fsspec

        kind = fsspec.get_filesystem_class(protocol)
    except ValueError as error:  # unknown
        raise OptionError("source", f"{error}; fsspec knows no such protocol") from error
    except ImportError as error:
        raise OptionError(
            "source",
            f"{source} cannot be read, because something is not installed ({error}); run "
            f"pip install 'overlapiter[remote]' for s3:// and https://, pip install gcsfs for gs://",
        ) from error
    if _is_archive(kind) and not options.get("fo"):
        raise OptionError(
            "storage_options",
            f"do not say which archive {source} is; give {{'fo': its path or URL}}",
        )
    try:
        pickle.dumps(dict(options))
    except Exception as error:  # theirs; its text may name what is inside
        reason = type(error).__name__
        raise OptionError(
            "storage_options", f"cannot be sent to the workers ({reason}); give texts and numbers"
        ) from None
    return str(kind.__module__)


def place_of(options: Mapping[str, object]) -> str:
    """Return what tells sources of one URL apart, such as two servers; mostly empty.

    It is written to the disk, and holds no credentials.
    """
    client = options.get("client_kwargs")
    inner = client.get("endpoint_url") if isinstance(client, Mapping) else None
    chosen = [(key, _without_credentials(options[key])) for key in _PLACE_KEYS if key in options]
    chosen += [("endpoint_url", _without_credentials(inner))] if inner else []
    return repr(chosen) if chosen else ""


def _without_credentials(value: object) -> object:
    """Return a value; of a URL neither user nor password, and of its query a digest alone.

    A query may tell two files apart, but it may as well be a signature.
    """
    if not isinstance(value, str) or "://" not in value:
        return value
    head, mark, rest = value.rpartition("://")  # it may be a chain of URLs
    url = urllib.parse.urlsplit(f"//{rest}")
    query = f"{url.query}#{url.fragment}".rstrip("#")
    digest = hashlib.blake2b(query.encode(), digest_size=8).hexdigest() if query else ""
    return f"{head}{mark}{url.netloc.rpartition('@')[2]}{url.path}{digest and '?'}{digest}"


class RemoteOrigin:
    """Files below a URL. Safe for threads, and made anew in a process that was forked.

    Args:
        source: The URL.
        options: For the file system of fsspec: credentials, an endpoint, and so on.
        n_connections: Files that are read at the same time.
        patience_seconds: How long a store that fails in a way that may pass is tried again.
        outages: What is known of failures, shared with other processes; by default its own.
    """

    def __init__(
        self,
        source: str,
        options: Mapping[str, object],
        *,
        n_connections: int,
        patience_seconds: float,
        outages: Outages | None = None,
    ) -> None:
        self._protocol = protocol_of(source)
        # Whether a file comes as the answer to one request; not every server knows ranges.
        self.is_streaming = self._protocol in ("http", "https")
        self._options = dict(options)
        self._n_connections = n_connections
        self._patience_seconds = patience_seconds
        self._outages = outages or Outages()
        self._lock = threading.Lock()
        self._one_at_a_time = threading.Lock()
        self._made: tuple[int, Any] | None = None

    def stat(self, path: str) -> Original:
        """Tell what a file is now. Blocks, also while a store that fails is tried again."""
        return original_of(self.info(path))

    def info(self, path: str) -> Mapping[str, Any]:
        """Return what fsspec tells of a file; see :meth:`stat`."""
        question = f"what is {path}"  # that it is answered does not say that the file can be read
        return self.trying(path, lambda: _checked_info(self._filesystem().info(path)), question)

    def open(self, path: str) -> contextlib.AbstractContextManager[RemoteFile]:
        """Open a file, for the length of a ``with`` block."""
        return RemoteFile(self, path, reads_ahead=not self.is_streaming)

    def open_stream(self, path: str, info: Mapping[str, Any]) -> IO[bytes]:
        """Open a file of which ``info`` is known. Tries once; raises what the library raises."""
        filesystem = self._filesystem()
        if self.is_streaming:  # with a size of 0, or without one, it would ask again
            stream: IO[bytes] = filesystem.open(
                path, "rb", block_size=0, size=info.get("size") or -1
            )
            return stream
        known = {"block_size": _PIECE_BYTES, "cache_type": "none", "size": info.get("size")}
        try:
            stream = filesystem.open(path, "rb", **known)
        except TypeError:  # it takes no such arguments
            return filesystem.open(path, "rb")  # type: ignore[no-any-return]  # as above
        with contextlib.suppress(AttributeError):  # what needs this asks again without
            stream.details = info  # type: ignore[attr-defined]  # as fsspec's buffered files have
        return stream

    def _filesystem(self) -> Any:
        """Return the file system of this process."""
        with self._lock:
            if self._made is None or self._made[0] != os.getpid():
                self._made = os.getpid(), self._make()
            return self._made[1]

    def trying(self, url: str, action: Callable[[], ResultT], name: str = "") -> ResultT:
        """Return what ``action`` returns, trying it again; OSErrors alone leave.

        Its failures count for ``name``; by default for the URL.

        Raises:
            OSError: What cannot be read, and why; ``filename`` is the URL.
        """

        def act() -> ResultT:
            with self._turn():
                return action()

        try:
            return call_again(act, self._patience_seconds, self._outages, name or url)
        except Exception as error:
            raise _as_os_error(error, url) from error

    def _turn(self) -> contextlib.AbstractContextManager[object]:
        """Return what to hold while the file system is used."""
        is_safe = self._protocol in _SAFE_FOR_THREADS or self._filesystem().async_impl
        return contextlib.nullcontext() if is_safe else self._one_at_a_time

    def _make(self) -> Any:
        import fsspec

        options = {**self._options, "skip_instance_cache": True}
        if self._protocol in _DEFAULTS:
            _DEFAULTS[self._protocol](options, self._n_connections)
        kind = fsspec.get_filesystem_class(self._protocol)
        if _is_archive(kind):
            try:
                filesystem = kind(**options)
                filesystem.ls("")  # its table, before many threads want it
            except Exception as error:
                raise _ArchiveError(str(_without_credentials(options["fo"]))) from error
            return filesystem
        filesystem = kind(**options)
        if hasattr(filesystem, "retries"):  # s3fs: once is enough, see trying
            filesystem.retries = 1
        return filesystem


class RemoteFile(io.RawIOBase):
    """A file of a remote store that is read once, from its start to its end.

    A read that fails is begun again where it stopped. To read from another position takes a new
    request, or reading what lies before.

    Args:
        reads_ahead: Whether a request is for as much as a request may be, whatever is asked for:
            where all of the file is read.
    """

    def __init__(self, origin: RemoteOrigin, path: str, *, reads_ahead: bool = False) -> None:
        self._origin = origin
        self._path = path
        self._reads_ahead = reads_ahead
        self._ahead = memoryview(b"")  # what has come and was not asked for yet
        self._info: Mapping[str, Any] = {}
        self._stream: IO[bytes] | None = None
        self._size_bytes = self._position = self._stream_position = self._n_requests = 0

    def stat(self) -> Original:
        """Tell what the file is; asked for anew once it was read by more than one request."""
        if not self._info or self._n_requests > 1:
            self._info = self._origin.info(self._path)
        found = original_of(self._info)
        self._size_bytes = found.size_bytes
        return found

    @property
    def tells_size(self) -> bool:
        """Whether the store has told the size, once :meth:`stat` was called."""
        return self._info.get("size") is not None

    def read(self, size_bytes: int = -1) -> bytes:
        """Return up to ``size_bytes`` more; none at the end."""
        if size_bytes < 0:
            return self.readall()
        if not self._info:
            self.stat()
        return self._origin.trying(self._path, lambda: self._read(size_bytes))

    def readinto(self, buffer: Any) -> int:
        """Read as many bytes as the buffer takes, or fewer; return how many."""
        if self._is_at_end():
            return 0
        piece = self.read(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def readall(self) -> bytes:
        """Return what is left; RawIOBase would ask for 8 KiB at a time."""
        pieces = []
        while not self._is_at_end() and (piece := self.read(_PIECE_BYTES)):
            pieces.append(piece)
        return b"".join(pieces)

    def _is_at_end(self) -> bool:
        """Return whether all was read, as far as that is known without a request."""
        return 0 < self._size_bytes <= self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go on reading elsewhere; from the end, once :meth:`stat` was called."""
        starts = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size_bytes}
        self._position = max(0, starts[whence] + offset)
        return self._position

    def readable(self) -> bool:
        """Return True."""
        return True

    seekable = readable

    def close(self) -> None:
        """End the request; closing twice is fine."""
        self._end_request()
        super().close()

    def _read(self, size_bytes: int) -> bytes:
        if self._stream_position != self._position + len(self._ahead):
            self._end_request()
        if not self._ahead:
            self._ahead = memoryview(self._received(size_bytes))
        piece, self._ahead = bytes(self._ahead[:size_bytes]), self._ahead[size_bytes:]
        self._position += len(piece)
        return piece

    def _received(self, size_bytes: int) -> bytes:
        self._ahead = memoryview(b"")  # the last piece goes before another one comes
        most_bytes = _PIECE_BYTES if self._reads_ahead else min(size_bytes, _PIECE_BYTES)
        is_request = self._stream is None or not self._origin.is_streaming
        try:
            if self._stream is None:
                self._stream = self._origin.open_stream(self._path, self._info)
                _skip(self._stream, self._position)
            received = self._stream.read(most_bytes)
        except BaseException:
            self._end_request()
            raise
        self._n_requests += is_request and bool(received)
        self._stream_position = self._position + len(received)
        return received

    def _end_request(self) -> None:
        stream, self._stream, self._ahead = self._stream, None, memoryview(b"")
        if stream is not None:
            with contextlib.suppress(Exception):  # a broken connection
                stream.close()


def original_of(info: Mapping[str, Any]) -> Original:
    """Return what fsspec tells of a file; the version as an mtime, whatever it consists of."""
    version = [str(info[key]) for key in _VERSION_KEYS if info.get(key)]
    mtime_ns = 0
    if version:
        digest = hashlib.blake2b("\n".join(version).encode(), digest_size=8).digest()
        mtime_ns = int.from_bytes(digest, "big") % _MTIMES
    return Original(int(info.get("size") or 0), mtime_ns)


def _skip(stream: IO[bytes], size_bytes: int) -> None:
    try:
        stream.seek(size_bytes)
    except (ValueError, OSError):  # a stream that only goes on
        while size_bytes > 0:
            piece = stream.read(min(size_bytes, _PIECE_BYTES))
            if not piece:
                return
            size_bytes -= len(piece)


def _checked_info(info: Mapping[str, Any]) -> Mapping[str, Any]:
    if info.get("type") == "directory":
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    return info


def _as_os_error(error: Exception, url: str) -> OSError:
    """Return the error to raise for a URL; the texts of the libraries name no credentials."""
    status = status_of(error)
    *_, first = causes(error)
    # The same for all files: what aiohttp writes besides the message holds the URL.
    words = str(getattr(first, "message", "") or first).replace(url, "…")
    cause = f"{type(first).__name__}: {words}" if words else type(first).__name__
    if status in (401, 403) or any(map(_is_denial, causes(error))):
        text = f"access is denied ({cause}); check the credentials and Staging.storage_options"
        return PermissionError(errno.EACCES, text, url)
    if archive := next((each for each in causes(error) if isinstance(each, _ArchiveError)), None):
        text = f"the archive {archive} cannot be opened ({cause}); check Staging.storage_options"
        return OSError(errno.EIO, text, url)
    if isinstance(error, IsADirectoryError):
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), url)
    if status in (404, 410) or (status is None and _is_absence(error)):
        return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), url)
    return OSError(errno.EIO, f"cannot be read: {trouble_words(error)} ({cause})", url)


class _ArchiveError(Exception):
    """An archive, which it names, cannot be opened; the cause says why."""


def _is_archive(kind: type) -> bool:
    """Return whether the files of a kind of file system lie in a file."""
    from fsspec.archive import AbstractArchiveFileSystem

    return issubclass(kind, AbstractArchiveFileSystem)


def _is_denial(error: BaseException) -> bool:
    return isinstance(error, PermissionError) or "Credentials" in type(error).__name__


def _is_absence(error: BaseException) -> bool:
    """Return whether it is the file that is missing, not the server (see :func:`may_pass`)."""
    others = [cause for cause in causes(error) if not isinstance(cause, FileNotFoundError)]
    is_lost = may_pass(error) or any(isinstance(cause, OSError) for cause in others)
    return isinstance(error, FileNotFoundError) and not is_lost


def _s3_defaults(options: dict[str, Any], n_connections: int) -> None:
    """Have a connection for each read, and leave it to us to try again."""
    ours = {"max_pool_connections": n_connections, "retries": {"total_max_attempts": 1}}
    options["config_kwargs"] = {**ours, **(options.get("config_kwargs") or {})}


def _http_defaults(options: dict[str, Any], _n_connections: int) -> None:
    """Wait for the next bytes, not for all, and take files as they are, not compressed."""
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=30)
    options["client_kwargs"] = {"timeout": timeout, **(options.get("client_kwargs") or {})}
    options["headers"] = {"Accept-Encoding": "identity", **(options.get("headers") or {})}


_DEFAULTS: dict[str, Callable[[dict[str, Any], int], None]] = {
    "s3": _s3_defaults,
    "s3a": _s3_defaults,
    "http": _http_defaults,
    "https": _http_defaults,
}
