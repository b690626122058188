"""Small disks of real file systems, mounted for a test."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def run_as_root(*command: str) -> None:
    """Run a command that root alone may, or skip the test."""
    if os.geteuid() != 0:
        pytest.skip(f"only root may {command[0]}")
    if shutil.which(command[0]) is None:
        pytest.skip(f"there is no {command[0]}")
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"cannot {' '.join(command)}: {done.stderr.decode()}")


@contextlib.contextmanager
def mounted(place: Path, *options: str) -> Iterator[Path]:
    """Mount something, by the options of ``mount``, at a new folder."""
    place.mkdir()
    run_as_root("mount", *options, str(place))
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False, capture_output=True)


def mounted_tmpfs(place: Path, size_bytes: int) -> contextlib.AbstractContextManager[Path]:
    return mounted(place, "-t", "tmpfs", "-o", f"size={size_bytes}", "none")


def mounted_ext4(place: Path, size_bytes: int) -> contextlib.AbstractContextManager[Path]:
    return _mounted_image(place, size_bytes, "mkfs.ext4", "-q", "-b", "4096", "-O", "^has_journal")


def mounted_btrfs(place: Path, size_bytes: int) -> contextlib.AbstractContextManager[Path]:
    return _mounted_image(place, size_bytes, "mkfs.btrfs", "-q", "-m", "single")


def _mounted_image(
    place: Path, size_bytes: int, *make: str
) -> contextlib.AbstractContextManager[Path]:
    image = place.with_suffix(".image")
    image.write_bytes(b"")
    os.truncate(image, size_bytes)
    run_as_root(*make, str(image))
    return mounted(place, "-o", "loop", str(image))
