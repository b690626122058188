"""The memory of a virtual machine that gives what is free back to its host.

There a page costs CPU when it is used again, in whichever process that is, since the host has to
bring it. A node of a cluster has its memory. So what is free is filled with pages of a file, which
Linux takes back for little where it needs them.
"""

import os
from collections.abc import Callable
from pathlib import Path

import psutil

#: Of the features that a balloon and its host agree on: free pages are reported.
_REPORTING = 5
_STEP_BYTES, _PIECE_BYTES = 256 << 20, 4 << 20


def is_lent() -> bool:
    """Return whether this is a virtual machine that gives free memory back to its host."""
    balloons = Path("/sys/bus/virtio/drivers/virtio_balloon").glob("virtio*/features")
    return any(path.read_text()[_REPORTING] == "1" for path in balloons)


def filler(folder: Path) -> Callable[[], None]:
    """Return what fills the free memory, as often as it is called, by a file in a folder."""
    path, n_bytes = folder / "filler", 2 * psutil.virtual_memory().total
    path.touch()
    os.truncate(path, n_bytes)  # a hole takes no room on the disk; its pages are read all the same
    piece, position = bytearray(_PIECE_BYTES), 0

    def fill() -> None:
        nonlocal position
        is_filled = False
        with path.open("rb", buffering=0) as file:
            while not is_filled:
                free_bytes = psutil.virtual_memory().free
                for _ in range(_STEP_BYTES // _PIECE_BYTES):
                    os.preadv(file.fileno(), [piece], position)
                    position = (position + _PIECE_BYTES) % n_bytes
                # Linux takes old pages for new ones before all is used: it wants large free pieces.
                is_filled = psutil.virtual_memory().free > free_bytes - _STEP_BYTES / 2

    return fill
