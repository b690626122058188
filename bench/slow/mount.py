"""A real mount that is slow: a FUSE file system, ``slowfs.c``, compiled when it is needed.

It needs ``/dev/fuse``, a C compiler and libfuse 3, and root or ``fusermount3``.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from functools import partial
from pathlib import Path

from bench.harness.isolated import CHECKOUT
from bench.harness.options import NotPossibleError

_SOURCE = Path(__file__).with_name("slowfs.c")
_ATTRIBUTE = "user.slowfs"
_END_SECONDS = 10.0
_INSTALL = (
    "install what is missing (Debian, Ubuntu: apt install gcc pkg-config fuse3 libfuse3-dev; "
    "Fedora: dnf install gcc pkgconf fuse3 fuse3-devel)"
)


def _unavailable(what: str, to_do: str = _INSTALL) -> NotPossibleError:
    return NotPossibleError(f"{what}; {to_do}, or take the emulated store, --mount emulated")


class SlowMount:
    """A read-only view of the files of a directory, mounted from :meth:`__enter__` on.

    Unlike :class:`bench.slow.store.SlowStore`, it is slow for every reader, those in C included,
    and costs what a file system costs::

        with SlowMount("/data/photographs", "/tmp/mount") as mount:
            ...  # read below mount.root
            print(mount.counts())

    ``slowfs.c`` says what waits. Its server is a child of this process and ends with it. The source
    is not to be changed meanwhile, and the root, where it is mounted, an empty directory.
    """

    def __init__(
        self, source: str | os.PathLike[str], root: str | os.PathLike[str],
        open_seconds: float = 0.010, bytes_per_second: float = 100e6, stat_seconds: float = 0.0,
    ) -> None:  # fmt: skip
        self.root = os.path.abspath(root)
        numbers = map(str, (open_seconds, stat_seconds, bytes_per_second))
        self._arguments = os.path.abspath(source), self.root, *numbers
        self._server: subprocess.Popen[str] | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_server": None}  # for other processes, which do not end it

    def __enter__(self) -> SlowMount:
        """Mount; blocks until it is there, or raises a NotPossibleError that says what to do."""
        command, pipe = [build(), *self._arguments], subprocess.PIPE
        self._server = subprocess.Popen(command, stdout=pipe, text=True, start_new_session=True)
        if self._server.stdout.readline() != "mounted\n":
            self.close()
            raise _unavailable(f"nothing can be mounted at {self.root}")
        return self

    def counts(self) -> dict[str, int]:
        """Return ``store_opens`` and ``store_bytes`` since it was mounted."""
        return json.loads(os.getxattr(self.root, _ATTRIBUTE))

    def __exit__(self, *_exc_info: object) -> None:
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
        device = "load the kernel's module fuse (modprobe fuse), give the container that device"
        raise _unavailable("there is no /dev/fuse here", device)
    run = partial(subprocess.run, check=True, capture_output=True, text=True)
    try:
        flags = run(["pkg-config", "--cflags", "--libs", "fuse3"]).stdout.split()
        words = ["-O2", "-Wall", "-Wextra", str(_SOURCE), *flags, "-pthread"]
        recipe = _SOURCE.read_bytes() + " ".join(words).encode()
        program = CHECKOUT / f".cache/bench/slowfs-{hashlib.sha256(recipe).hexdigest()[:12]}"
        if not program.exists():
            program.parent.mkdir(parents=True, exist_ok=True)
            unfinished = program.with_suffix(f".{os.getpid()}")
            run(["cc", *words, "-o", str(unfinished)])
            unfinished.replace(program)
    except (OSError, subprocess.CalledProcessError) as error:
        raise _unavailable(f"{getattr(error, 'stderr', '')}{error}") from error
    return str(program)
