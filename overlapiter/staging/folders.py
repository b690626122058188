"""The directories of the store: private, and never somebody else's."""

from __future__ import annotations

import contextlib
import errno
import os
import stat


def refuse_foreign(path: str) -> None:
    """Raise OSError unless ``path`` is a directory, not a link to one, and the user's own.

    One that others may enter is closed to them.
    """
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(errno.EPERM, "a link, or another user's, is in its place")
    if found.st_mode & 0o077:  # nobody else may plant a link in it
        os.chmod(path, 0o700)


def make_private(path: str) -> None:
    """Make a directory and its missing parents, all with mode 0700."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        return
    except FileNotFoundError:
        make_private(os.path.dirname(path.rstrip("/")))
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
