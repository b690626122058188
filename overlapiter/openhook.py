"""Interception: what an ``open`` of a source file gives instead, in worker processes alone.

:class:`OpenHook` replaces ``open`` wherever Python code finds it. For C libraries that open files
themselves it is asked by :mod:`.redirection`, or by the user through :func:`local_path`.
"""

from __future__ import annotations

import _io
import builtins
import contextlib
import functools
import io
import os
import pathlib
import sys
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import IO, Any, Protocol

from .errors import OptionError
from .sources import is_below
from .stagedfile import READ_MODES
from .urls import is_url, url_below

OpenFunction = Callable[..., IO[Any]]
#: What names a file, and is no descriptor.
PATHS = (str, bytes, os.PathLike)


class Handler(Protocol):
    """Knows the staged copies of source files, by the path as the caller wrote it, or the URL.

    It is called in the thread that opens; what it raises reaches the caller.
    """

    def open(
        self, path: str, mode: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> IO[Any] | None:
        """Return the staged copy, opened as ``open`` would for reading; None to read the source."""

    def local_path(self, path: str) -> str | None:
        """Return the path of a staged copy, which lives as long as the current example; or None.

        Its name ends as that of the source file does: libraries choose a format by it. A path below
        ``/proc`` will not do: HDF5 resolves links.
        """


class DirectAccess(Protocol):
    """Gives the files of a source that Python's ``open`` knows nothing of."""

    def open(self, url: str, mode: str = "r", *args: Any, **kwargs: Any) -> IO[Any]:
        """Open a file of the source for reading, as the built-in ``open``."""

    def download(self, url: str) -> str:
        """Return the path of a private copy, which lives as long as the current example."""


class OpenHook:
    """Sends every reading ``open`` of a file below the source to a handler.

    The hook costs a string comparison for any other file. An ``open`` with an opener is left
    alone, since only the opener knows which file the path means.

    Args:
        source: Absolute root of the files on the slow store, or a URL.
        handler: Opens the staged copies.
        direct: Opens what the handler does not, where the source is a URL.
        elsewhere: Called with any other file that is opened for reading, but for Python's source:
            what makes the text of a traceback reads that, as PyTorch does when it gets a seed.
    """

    def __init__(
        self,
        source: str,
        handler: Handler,
        direct: DirectAccess | None = None,
        elsewhere: Callable[[str], None] | None = None,
    ) -> None:
        self._prefix = os.path.join(source, "")
        self._is_url = is_url(source)
        self._handler = handler
        self._direct = direct
        self._elsewhere = elsewhere
        self._given = ""  # the folder of the folders of the copies that have paths

    def install(self) -> None:
        """Replace ``open``; what was there before still opens what is not staged."""
        underlying = builtins.open
        below, staged = self._below, self._handler.open
        direct, elsewhere = self._direct, self._elsewhere

        @functools.wraps(underlying)
        def open_below_source(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> IO[Any]:
            # A number is a file descriptor; a writing mode is never redirected.
            if (
                not isinstance(file, PATHS)
                or mode not in READ_MODES
                or any(args[5:])
                or kwargs.get("opener")
            ):
                return underlying(file, mode, *args, **kwargs)
            found = below(file)
            if found is not None:
                opened = staged(found, mode, args, kwargs)
                if opened is not None:
                    return opened
                if direct is not None:
                    return direct.open(found, mode, *args, **kwargs)
            elif elsewhere is not None and not (path := os.fsdecode(file)).endswith(".py"):
                elsewhere(path)
            return underlying(file, mode, *args, **kwargs)

        _replace_open(underlying, open_below_source)
        global _current_hook  # as builtins.open, it is one for the process
        _current_hook = self

    def _below(self, file: Any) -> str | None:
        """Return what the handler is to know of ``file``; None if it lies elsewhere, or is none."""
        if not isinstance(file, PATHS):
            return None
        path = file if type(file) is str else os.fsdecode(os.fspath(file))
        if self._is_url:
            return url_below(self._prefix, path)
        return path if is_below(self._prefix, path) else None

    def instead_of(self, file: Any) -> Any:
        """Return the path to open instead of ``file``, in its type; see :func:`local_path`.

        Anything but a path comes back as it is.
        """
        found = self._below(file)
        if found is None:
            if self._elsewhere is not None and isinstance(file, PATHS):
                self._elsewhere(os.fsdecode(file))
            return file
        path = self._handler.local_path(found)
        if path is None and self._direct is not None:
            path = self._direct.download(found)
        if path is None:
            return file
        self._given = os.path.dirname(os.path.dirname(os.path.dirname(path)))
        return _as_path(path, file)

    @contextlib.contextmanager
    def giving(self, file: Any, *, by_content: bool) -> Iterator[Any]:
        """Give what :meth:`instead_of` returns; or, by content, the path of a descriptor."""
        if not by_content or self._below(file) is None:
            yield self.instead_of(file)
            return
        fd = self.descriptor(file)
        if fd is None:
            yield file
            return
        try:
            yield _as_path(f"/proc/self/fd/{fd}", file)
        finally:
            os.close(fd)

    def has_given(self, path: str) -> bool:
        """Return whether a path is one of those that :meth:`instead_of` gives."""
        return bool(self._given) and path.startswith(self._given)

    def descriptor(self, file: Any) -> int | None:
        """Return a new descriptor, for reading, of a source file's copy; None for the file itself.

        Raises:
            OSError: There are no more descriptors, or the file is a URL and cannot be read.
        """
        found = self._below(file)
        if found is None:
            return None
        opened = self._handler.open(found, "rb", (0,), {})
        if opened is not None:
            with opened:
                return os.dup(opened.fileno())
        if self._direct is not None:
            return os.open(self._direct.download(found), os.O_RDONLY | os.O_CLOEXEC)
        return None


def _as_path(path: str, like: str | bytes | os.PathLike[Any]) -> Any:
    """Return a path in the type of another one."""
    if isinstance(like, bytes):
        return os.fsencode(path)
    return type(like)(path) if isinstance(like, pathlib.PurePath) else path


# What modules call the open that they import: `from io import open`, and tarfile and bz2.
_NAMES_OF_OPEN = ("open", "bltn_open", "_builtin_open")


def _replace_open(before: OpenFunction, after: OpenFunction) -> None:
    """Put ``after`` in the place of ``before``, also where a module has imported that.

    ``_io.open`` stays: with it overlapiter opens staged copies.
    """
    builtins.open = after  # type: ignore[assignment]  # same call signature
    io.open = after  # type: ignore[assignment]  # same call signature
    replace_imported(_NAMES_OF_OPEN, before, after)
    # Python 3.10's pathlib keeps the open that it found when it was imported.
    accessor = getattr(pathlib, "_normal_accessor", None)
    if accessor is not None:
        accessor.open = after


def replace_imported(names: Iterable[str], before: object, after: object) -> None:
    """Replace what modules have imported by one of some names."""
    for module in [*sys.modules.values()]:
        if isinstance(module, ModuleType) and module is not _io:
            for name in names:
                if vars(module).get(name) is before:
                    setattr(module, name, after)


_current_hook: OpenHook | None = None


def current_hook() -> OpenHook | None:
    """Return the hook that this process has."""
    return _current_hook


def local_path(path: str | os.PathLike[str]) -> str:
    """Return the path to open instead of ``path``: its staged copy, or ``path`` itself.

    For libraries that open files without Python's ``open`` and are not redirected, see
    :func:`overlapiter.redirect`. Counts, and is discovered, as an ``open``. Outside a worker it
    returns ``path`` unchanged. The answer holds while the example is being read: of a small staged
    file, and of a URL that is not staged, a private copy is made for that time.

    Raises:
        OptionError: It is a URL that no iterator of this process stages.
        OSError: It is a URL, and cannot be read.
    """
    name = os.fspath(path)
    found: str = name if _current_hook is None else _current_hook.instead_of(name)
    if found is name and is_url(name):
        raise OptionError(
            "path",
            f"{name} has no local copy here: ask for it in the dataset of an OverlapIterator "
            f"whose staging has a source that it lies below",
        )
    return found
