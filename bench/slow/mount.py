"""A real mount that is slow: a FUSE file system shows a directory as a shared store would.

It is ``slowfs.c`` beside this file, which is compiled when it is needed. Unlike
:mod:`bench.slow.store`, which emulates a slow store inside ``open`` of Python, it is slow for every
reader, those in C included, and costs what a file system costs::

    with SlowMount("/data/photographs", "/tmp/mount") as mount:
        ...  # read below mount.root
        print(mount.counts())

It needs ``/dev/fuse``, a C compiler and libfuse 3, and root or ``fusermount3``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

from bench.harness.isolated import CHECKOUT
from bench.harness.options import OptionsError

_SOURCE = Path(__file__).with_name("slowfs.c")
_PLACE = CHECKOUT / ".cache/bench"
_ATTRIBUTE = "user.slowfs"
_END_SECONDS = 10.0
_ADVICE = (
    "install what is missing (Debian, Ubuntu: apt install gcc pkg-config fuse3 libfuse3-dev; "
    "Fedora: dnf install gcc pkgconf fuse3 fuse3-devel), or measure with the emulated store, "
    "--mount emulated"
)


class MountUnavailableError(OptionsError):
    """A FUSE file system cannot be built or mounted here. The message says what to do."""


class MountPoint:
    """A mount that this or another process has made at ``root``."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.abspath(root)

    def counts(self) -> dict[str, int]:
        """Return what was asked for since it was mounted.

        ``opens``; ``files``, how many different ones; ``most_opens`` of any one of them;
        ``reads`` and ``bytes_read``; ``lookups`` and ``stats`` that the kernel did not answer.
        """
        return json.loads(os.getxattr(self.root, _ATTRIBUTE))


class SlowMount(MountPoint):
    """A read-only view of a directory, mounted from :meth:`__enter__` on.

    Each open waits ``open_seconds``; these waits overlap. All reads share ``bytes_per_second``.
    A file that is opened again is read again from the mount. A look-up of a name and a ``stat``
    wait ``stat_seconds`` where the kernel does not know the answer, which it does for a minute.
    Its server is a child of this process, named ``slowfs``, and ends with it.

    Args:
        source: The directory that is shown, on a fast disk; not to be changed meanwhile.
        root: The mount point, an empty directory.

    Raises:
        MountUnavailableError: The server cannot be built.
    """

    def __init__(
        self,
        source: str | os.PathLike[str],
        root: str | os.PathLike[str],
        open_seconds: float = 0.010,
        bytes_per_second: float = 100e6,
        stat_seconds: float = 0.0,
    ) -> None:
        super().__init__(root)
        numbers = (open_seconds, stat_seconds, bytes_per_second)
        self._command = [build(), os.path.abspath(source), self.root, *map(str, numbers)]
        self._server: subprocess.Popen[str] | None = None

    def __reduce__(self) -> tuple:
        return MountPoint, (self.root,)  # to other processes, which do not end it

    def __enter__(self) -> SlowMount:
        """Mount; blocks until it is there."""
        self._server = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        if self._server.stdout.readline() != "mounted\n":
            self.close()
            raise MountUnavailableError(f"nothing can be mounted at {self.root}; {_ADVICE}")
        return self

    def __exit__(self, *_exc_info: object) -> None:
        """Unmount, as :meth:`close`."""
        self.close()

    def close(self) -> None:
        """Unmount, also while files are open; their reads fail from then on. Idempotent."""
        if self._server is not None:
            self._server.terminate()
            self._server.wait(_END_SECONDS)
            self._server.stdout.close()
            self._server = None


def build() -> str:
    """Return the path of the server, compiled unless it has been before; takes a second."""
    if not os.path.exists("/dev/fuse"):
        raise MountUnavailableError(
            "there is no /dev/fuse here: load the kernel's module fuse (modprobe fuse), or give "
            "the container that device; or measure with the emulated store, --mount emulated"
        )
    missing = [name for name in ("cc", "pkg-config") if shutil.which(name) is None]
    if missing:
        raise MountUnavailableError(f"there is no {' and no '.join(missing)}; {_ADVICE}")
    library = ("--cflags", "--libs", "fuse3")
    flags = _run("there is no libfuse 3 to compile with", "pkg-config", *library).split()
    words = ["-O2", "-Wall", "-Wextra", str(_SOURCE), *flags, "-pthread"]
    recipe = _SOURCE.read_bytes() + " ".join(words).encode()
    program = _PLACE / f"slowfs-{hashlib.sha256(recipe).hexdigest()[:12]}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        unfinished = program.with_suffix(f".{os.getpid()}")
        _run(f"{_SOURCE} does not compile", "cc", *words, "-o", str(unfinished))
        unfinished.replace(program)
    return str(program)


def _run(complaint: str, *command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise MountUnavailableError(f"{complaint}; {_ADVICE}\n{done.stderr}")
    return done.stdout
