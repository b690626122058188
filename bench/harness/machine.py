"""Facts about commit and machine that a result needs; nothing that identifies the machine."""

import importlib.metadata
import importlib.util
import os
import platform
import subprocess
from pathlib import Path

import psutil

from bench.harness.isolated import CHECKOUT

_PACKAGES = ("overlapiter", "chainer", "numpy", "pillow", "torch")


def machine_facts() -> dict[str, object]:
    """Return cores, memory in bytes, processor, kernel and versions."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    # Of several versions the first one that is found is imported, and so comes last here.
    found = reversed([*importlib.metadata.distributions()])
    installed = {each.name.lower(): each.version for each in found if each.name}
    return {
        "cores": len(os.sched_getaffinity(0)), "memory_bytes": psutil.virtual_memory().total,
        "processor": [*names, platform.machine()][0],
        "system": f"{platform.system()} {platform.release()}", "python": platform.python_version(),
        "packages": {name: installed[name] for name in _PACKAGES if name in installed}
    }  # fmt: skip


def machine_words(result: dict) -> str:
    """Return cores and processor of the machine of a result, in words."""
    return f"{result['machine']['cores']} cores, {result['machine']['processor']}"


def is_installed(module: str) -> bool:
    """Return whether a module can be imported."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # nor its parent
        return False


def commit_facts() -> dict[str, object]:
    """Return which commit is measured, and which files of the engine differ from it."""
    paths = ("overlapiter", "bench/**/*.py", "bench/*.py", "bench/slow", "examples/digits")
    changed = _git("status", "--porcelain", "--untracked-files=all", "--", *paths)
    commit = _git("rev-parse", "HEAD").strip()
    return {"commit": commit, "changed": [line[3:] for line in changed.splitlines()]}


def _git(*words: str) -> str:
    """Return what git answers; nothing where this is no clone."""
    try:
        command = ["git", "-C", str(CHECKOUT), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except FileNotFoundError:
        return ""
