"""Where the files of a source come from, for commands: a mounted directory, or a URL."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import stat
from collections.abc import Callable
from typing import Any, TypeVar

from overlapiter.errors import OptionError
from overlapiter.options import check_count
from overlapiter.origins.origin import LocalOrigin, Origin, Original, OriginalFile
from overlapiter.urls import is_url

from .console import CommandError

ResultT = TypeVar("ResultT")

#: How long a remote store that fails is tried again.
_RETRY_SECONDS = 30.0
_TIMEOUT_SECONDS = 60.0
#: What can be opened by its name and is no file: that may take for ever, or wake its other end.
_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device"}


def add_storage_options(parser: argparse.ArgumentParser) -> None:
    """Declare the argument that names what fsspec is to know."""
    parser.add_argument(
        "--storage-options",
        metavar="FILE",
        help="of a SRC that is a URL: a JSON file of what Staging(storage_options=...) holds; not "
        "needed where credentials are found by themselves, as in ~/.aws",
    )


def add_reading(parser: argparse.ArgumentParser, n_reads: int) -> None:
    """Declare how a source is read: ``n_reads`` files at the same time, unless told otherwise."""
    add_storage_options(parser)
    parser.add_argument(
        "--reads-in-flight",
        metavar="N",
        type=int,
        default=n_reads,
        help="files to ask the source for at the same time (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        metavar="S",
        type=float,
        default=_TIMEOUT_SECONDS,
        help="leave out a file for which the source has no answer in so long (default: "
        "%(default)g s)",
    )


def check_reading(arguments: argparse.Namespace) -> None:
    """Raise OptionError unless a source can be read as the command line says."""
    check_count("--reads-in-flight", arguments.reads_in_flight)
    if not arguments.timeout > 0:
        raise OptionError("--timeout", "give more than 0")


def storage_options(arguments: argparse.Namespace) -> dict[str, object]:
    """Return the options that the command line names. Raises CommandError if it cannot."""
    name = arguments.storage_options
    try:
        options = {} if name is None else json.loads(open(name, "rb").read())  # noqa: SIM115  # read whole
    except (OSError, ValueError) as error:
        raise CommandError(
            f"--storage-options: {name} cannot be read ({error}); name a JSON file", is_usage=True
        ) from error
    if not isinstance(options, dict):
        message = f'--storage-options: {name} holds no object; write {{"key": …}}'
        raise CommandError(message, is_usage=True)
    return options


def origin_of(
    source: str, options: dict[str, object], n_reads: int, place: str | None = None
) -> Origin:
    """Return what gives the files of a source.

    Args:
        source: The source root, as :func:`~overlapiter.sources.source_root` gives it.
        options: For fsspec.
        n_reads: Files that are read at the same time.
        place: What tells sources of one name apart, if that is known.

    Raises:
        CommandError: The options are for another store than the one at this place.
        OptionError: It is a URL that cannot be read here.
    """
    if not is_url(source):
        return LocalOrigin()
    # fsspec is not needed for a directory.
    from overlapiter.origins.remote import RemoteOrigin, check_remote, place_of

    check_remote(source, options)
    if place not in (None, place_of(options)):
        raise CommandError(
            f"{source} was staged from another store ({place or 'without options'}); name --source "
            f"and the --storage-options of that one",
            is_usage=True,
        )
    return RemoteOrigin(source, options, n_connections=n_reads, patience_seconds=_RETRY_SECONDS)


def _check_is_file(path: str) -> None:
    """Raise OSError unless a path of a mounted directory leads to a file; opens nothing."""
    kind = stat.S_IFMT(os.stat(path).st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    if kind in _KINDS:
        raise OSError(errno.EINVAL, f"{_KINDS[kind]}, not a file", path)


class WatchedOrigin:
    """An origin that opens files alone, says when it is asked, and notes why it fails.

    Args:
        origin: The origin.
        ask: Called with the path before it is asked.
        told: Called when it has answered.

    Attributes:
        is_local: As of any origin.
        reasons: Why files could not be read; an empty text for those that are empty.
    """

    def __init__(
        self, origin: Origin, ask: Callable[[str], None], told: Callable[[], None]
    ) -> None:
        self._origin = origin
        self._ask = ask
        self._told = told
        self.is_local = origin.is_local
        self.reasons: dict[str, str] = {}

    def asked(self, path: str, question: Callable[[], ResultT]) -> ResultT:
        """Return the answer to a question about a file."""
        self._ask(path)
        try:
            return question()
        except OSError as error:
            self.reasons[path] = error.strerror or str(error)
            raise
        finally:
            self._told()

    def stat(self, path: str) -> Original:
        """Tell what a file is now."""
        return self.asked(path, lambda: self._origin.stat(path))

    def open(self, path: str) -> contextlib.AbstractContextManager[OriginalFile]:
        """Open a file, for the length of a ``with`` block."""
        if self.is_local:
            self.asked(path, lambda: _check_is_file(path))
        return _WatchedFile(self, path, self.asked(path, lambda: self._origin.open(path)))


class _WatchedFile:
    """A file of a watched origin."""

    def __init__(
        self,
        origin: WatchedOrigin,
        path: str,
        opened: contextlib.AbstractContextManager[OriginalFile],
    ) -> None:
        self._origin = origin
        self._path = path
        self._opened = opened

    def __enter__(self) -> _WatchedFile:
        self._file = self._opened.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._opened.__exit__(*exception)

    def stat(self) -> Original:
        found = self._origin.asked(self._path, self._file.stat)
        if not found.size_bytes:
            self._origin.reasons[self._path] = ""
        return found

    def read(self, size_bytes: int) -> bytes:
        return self._origin.asked(self._path, lambda: self._file.read(size_bytes))
