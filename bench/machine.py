"""Facts about the machine that a result needs to be understood; nothing that identifies it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import psutil

from bench.isolated import CHECKOUT

_PACKAGES = ("overlapiter", "chainer", "numpy", "pillow", "torch")


def machine_facts() -> dict[str, object]:
    """Return cores, memory in bytes, processor, kernel and versions."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "processor": _processor(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": {name: version for name in _PACKAGES if (version := _version(name))},
    }


def commit_facts() -> dict[str, object]:
    """Return which commit is measured, and which files of the engine differ from it."""
    commit = _git("rev-parse", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=all", "overlapiter", "bench/*.py")
    return {"commit": commit.strip(), "changed": [line[3:] for line in changed.splitlines()]}


def _git(*words: str) -> str:
    """Return what git answers; nothing where this is no clone."""
    try:
        done = subprocess.run(
            ["git", "-C", str(CHECKOUT), *words], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        return ""
    return done.stdout


def filesystem_of(path: str | os.PathLike[str]) -> str:
    """Return the kind of file system that ``path`` is on, e.g. ``ext4``, or ``unknown``."""
    name = os.path.realpath(path)
    best, kind = "", "unknown"
    for partition in psutil.disk_partitions(all=True):
        mount = partition.mountpoint.rstrip("/") + "/"
        if (name + "/").startswith(mount) and len(mount) > len(best):
            best, kind = mount, partition.fstype
    return kind


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
