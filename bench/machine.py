"""Facts about the machine that a result needs to be understood; nothing that identifies it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

import psutil

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
