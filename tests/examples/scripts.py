"""Runs the scripts of the examples as a user does, on images made for them."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import numpy as np
from PIL import Image

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "examples" / "imagenet"
N_TRAIN, N_VAL, N_CLASSES, SIDE = 48, 16, 4, 80
BATCH_SIZE = 8
# The scripts run as they do for a user, also where the tests turn warnings into errors.
ENVIRONMENT = {
    **{name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"},
    "PYTHONPATH": f"{REPOSITORY / 'tests' / 'quick_start'}{os.pathsep}{REPOSITORY}",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",  # losses are the same to the last digit, and ranks share no GPU
}


def run_python(*arguments: object, cwd: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Run Python without a terminal; return its exit status and what it wrote."""
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        cwd=cwd,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def write_images(folder: pathlib.Path, name: str, n_images: int) -> None:
    """Write JPEGs whose colour tells their class, and their list ``<name>.txt``."""
    generator = np.random.default_rng(n_images)
    lines = []
    (folder / name).mkdir()
    for i in range(n_images):
        label = i % N_CLASSES
        pixels = np.full((SIDE, SIDE, 3), (60 * label, 120, 255 - 60 * label))
        pixels += generator.integers(-20, 20, pixels.shape)
        path = f"{name}/{i:03d}.jpg"
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / path)
        lines.append(f"{path} {label}\n")
    (folder / f"{name}.txt").write_text("".join(lines))


def read_log(out: pathlib.Path) -> list[dict[str, float]]:
    """Return the entries of the log that are the same in every run."""
    entries = json.loads((out / "log").read_text())
    ends = ("epoch", "iteration", "loss", "accuracy")
    return [{name: entry[name] for name in entry if name.endswith(ends)} for entry in entries]


def assert_succeeded(ended: subprocess.CompletedProcess[str]) -> None:
    """Fail, showing what was written, unless the process ended well and without complaint."""
    complaints = [
        word for word in ("Traceback", "leaked", "Exception ignored") if word in ended.stderr
    ]
    assert (ended.returncode, complaints) == (0, []), ended.stdout + ended.stderr
