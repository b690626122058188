"""A server in a process of its own, with files that are staged; and what asks it.

As a program: how many files to stage, and the staging directories of the tiers, the fastest first,
which gets the files. It prints its port, and serves until its standard input ends.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.harness.store_access import stage_bytes, store_in
from overlapiter.peers.catalogue import Catalogue
from overlapiter.peers.server import Server
from overlapiter.store.extents import key_of, source_seed
from overlapiter.store.generation import prepare
from overlapiter.store.site import Site

SECRET = b"the secret of this job, 32 bytes"
SOURCE = "/nowhere"
FILE_BYTES = 20_000


def content() -> bytes:
    """Return what each file contains."""
    return bytes(range(256)) * (FILE_BYTES // 256 + 1)


def name(number: int) -> bytes:
    return b"file-%d" % number


def key(number: int) -> int:
    return key_of(f"{SOURCE}/{name(number).decode()}", source_seed(SOURCE))


@contextlib.contextmanager
def served(*directories: Path, n_files: int = 8) -> Iterator[tuple[tuple[str, int], int]]:
    """Serve staged files; give the address and the process."""
    command = [sys.executable, "-m", __name__, str(n_files), *map(str, directories)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield ("127.0.0.1", int(process.stdout.readline())), process.pid
    finally:
        process.stdin.close()
        process.stdout.close()
        process.kill()
        process.wait()


def main() -> None:
    n_files, directories = int(sys.argv[1]), sys.argv[2:]
    for directory in directories:
        prepare(directory)
    for source, prefix in ((SOURCE, "file"), ("/other", "secret")):
        store = store_in(directories[0], source)
        stage_bytes(store, [f"{prefix}-{i}" for i in range(n_files)], content()[:FILE_BYTES])
        store.close()
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    catalogue = Catalogue([*map(Site, directories)], SOURCE, "", "")
    server = Server(listener, SECRET, catalogue, since=0)
    print(listener.getsockname()[1], flush=True)  # noqa: T201  # to the test that started it
    has_ended: list[bool] = []
    server.watch(sys.stdin.fileno(), lambda: has_ended.append(True))
    while not has_ended:
        server.take_turn()


if __name__ == "__main__":
    main()
