"""Interception: what an ``open`` of a source file opens instead, in worker processes alone.

:class:`OpenHook` replaces ``builtins.open`` and ``io.open``. C libraries that open files themselves
ask :func:`local_path`.
"""

from __future__ import annotations

import builtins
import functools
import io
import os
import pathlib
from collections.abc import Callable
from typing import IO, Any, Protocol

from .errors import OptionError
from .sources import is_below
from .urls import is_url, url_below

OpenFunction = Callable[..., IO[Any]]


class DirectAccess(Protocol):
    """Gives the files of a source that Python's ``open`` knows nothing of."""

    def open(self, url: str, mode: str = "r", *args: Any, **kwargs: Any) -> IO[Any]:
        """Open a file of the source for reading, as the built-in ``open``."""

    def download(self, url: str) -> str:
        """Return the path of a private copy, which lives as long as the current example."""


class OpenHook:
    """Sends every reading ``open`` of a file below the source to a handler.

    A handler takes the path as the caller wrote it, or the URL, and returns the path to open
    instead, or None to leave the call alone. The hook costs a string comparison for any other
    file.

    Args:
        source: Absolute root of the files on the slow store, or a URL.
        handler: Called in the thread that opens.
        direct: Opens what the handler leaves alone, where the source is a URL.
        elsewhere: Called with any other file that is opened for reading.
    """

    def __init__(
        self,
        source: str,
        handler: Callable[[str], str | None],
        direct: DirectAccess | None = None,
        elsewhere: Callable[[str], None] | None = None,
    ) -> None:
        self._prefix = os.path.join(source, "")
        self._is_url = is_url(source)
        self._handler = handler
        self._direct = direct
        self._elsewhere = elsewhere
        self._underlying: OpenFunction | None = None

    def install(self) -> None:
        """Replace ``open``; what was there before still does the opening."""
        underlying = self._underlying = builtins.open
        below, handler = self._below, self._handler

        @functools.wraps(underlying)
        def open_below_source(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> IO[Any]:
            # A number is a file descriptor; a writing mode is never redirected.
            if not isinstance(file, (str, bytes, os.PathLike)) or mode not in _READ_MODES:
                return underlying(file, mode, *args, **kwargs)
            found = below(file)
            other = None if found is None else handler(found)
            if other is not None:
                try:
                    return underlying(other, mode, *args, **kwargs)
                except OSError:  # the staged copy has gone: the source still has it
                    self.missed(other)
            if found is not None and self._direct is not None:
                return self._direct.open(found, mode, *args, **kwargs)
            if found is None and self._elsewhere is not None:
                self._elsewhere(os.fsdecode(file))
            return underlying(file, mode, *args, **kwargs)

        self._wrapper = open_below_source
        builtins.open = open_below_source  # type: ignore[assignment]  # same call signature
        io.open = open_below_source  # type: ignore[assignment]  # same call signature
        self._set_pathlib_open(open_below_source)
        _set_current_hook(self)

    def uninstall(self) -> None:
        """Put back the ``open`` that was found, unless somebody replaced it since."""
        if self._underlying is not None and builtins.open is self._wrapper:
            builtins.open = self._underlying  # type: ignore[assignment]  # what was there before
            io.open = self._underlying  # type: ignore[assignment]  # what was there before
            self._set_pathlib_open(self._underlying)
        self._underlying = None
        if _current_hook is self:
            _set_current_hook(None)

    @staticmethod
    def _set_pathlib_open(function: OpenFunction) -> None:
        # Python 3.10's pathlib keeps the open that it found when it was imported.
        accessor = getattr(pathlib, "_normal_accessor", None)
        if accessor is not None:
            accessor.open = function

    def _below(self, file: Any) -> str | None:
        """Return what the handler is to know of ``file``; None if it lies elsewhere."""
        path = file if type(file) is str else os.fsdecode(os.fspath(file))
        if self._is_url:
            return url_below(self._prefix, path)
        return path if is_below(self._prefix, path) else None

    def local_path(self, name: str) -> str:
        """Return a path from which ``name`` can be read now; see :func:`local_path`."""
        found = self._below(name)
        staged = None if found is None else self._handler(found)
        if staged is None and found is not None and self._direct is not None:
            return self._direct.download(found)
        return staged or name

    def missed(self, staged: str) -> None:
        """Tell the handler that a staged copy cannot be opened."""
        missed = getattr(self._handler, "missed", None)
        if missed is not None:
            missed(staged)


_READ_MODES = frozenset({"r", "rb", "br", "rt", "tr"})


_current_hook: OpenHook | None = None


def _set_current_hook(hook: OpenHook | None) -> None:
    global _current_hook  # as builtins.open, it is one for the process
    _current_hook = hook


def local_path(path: str | os.PathLike[str]) -> str:
    """Return the path to open instead of ``path``: its staged copy, or ``path`` itself.

    For libraries that open files without Python's ``open`` (OpenCV, HDF5). Counts, and is
    discovered, as an ``open``. Outside a worker it returns ``path`` unchanged. The answer holds
    while the example is being read: of a URL that is not staged, a private copy is made for that
    time in the directory for temporary files.

    Raises:
        OptionError: It is a URL that no iterator of this process stages.
        OSError: It is a URL, and cannot be read.
    """
    name = os.fspath(path)
    found = name if _current_hook is None else _current_hook.local_path(name)
    if found is name and is_url(name):
        raise OptionError(
            "path",
            f"{name} has no local copy here: ask for it in the dataset of an OverlapIterator "
            f"whose staging has a source that it lies below",
        )
    return found
