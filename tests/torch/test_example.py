"""The example runs as a user runs it, alone and under torchrun, and resumes amid an epoch."""

from __future__ import annotations

import re
import subprocess
import textwrap
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.examples.scripts import REPOSITORY, assert_succeeded, run_python
from tests.support.staged import staged_paths

pytest.importorskip("torch")

SCRIPT = REPOSITORY / "examples" / "imagenet_torch" / "train_imagenet.py"
N_TRAIN = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images of two classes, told apart by their colour."""
    root = tmp_path_factory.mktemp("folders")
    random = np.random.default_rng(0)
    for part, n in (("train", N_TRAIN), ("val", 8)):
        for i in range(n):
            path = root / part / ("red", "blue")[i % 2] / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.full((48, 40, 3), (200, 30, 30) if i % 2 == 0 else (30, 30, 200))
            noisy = (pixels + random.integers(-20, 20, pixels.shape)).clip(0, 255)
            Image.fromarray(noisy.astype(np.uint8)).save(path)
    return root


def train(
    folder: Path, cwd: Path, *options: object, n_processes: int = 0, script: Path = SCRIPT
) -> subprocess.CompletedProcess[str]:
    """Train; with ``n_processes`` under torchrun."""
    launcher: list[object] = []
    if n_processes:
        launcher = [
            "-m",
            "torch.distributed.run",
            "--standalone",
            f"--nproc-per-node={n_processes}",
        ]
    fixed = (folder, "--arch", "tiny", "--batch-size", 8, "--workers", 1, "--lr", 0.01)
    return run_python(*launcher, script, *fixed, *options, cwd=cwd)


def losses(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines of the epochs."""
    assert_succeeded(ended)
    return re.findall(r"epoch \d+: .*", ended.stdout)


def saving_otherwise(tmp_path: Path, body: str) -> Path:
    """Make a script that is the example, but runs this where a ``training`` is saved.

    ``save(training)`` does what the example does, and ``n_saved`` counts.
    """
    head = f"""
    import os, pathlib, shutil, signal, sys, time
    sys.path.insert(0, {str(SCRIPT.parent)!r})
    import train_imagenet as script
    save, n_saved = script.Training.save, 0
    def save_otherwise(training):
        global n_saved
        n_saved += 1
    """
    end = """
    script.Training.save = save_otherwise
    if __name__ == "__main__":
        script.main()
    """
    program = tmp_path / "saving.py"
    texts = (
        textwrap.dedent(head),
        textwrap.indent(textwrap.dedent(body), "    "),
        textwrap.dedent(end),
    )
    program.write_text("".join(texts))
    return program


def test_it_trains_stages_and_resumes_amid_an_epoch_with_the_same_losses(
    folder: Path, tmp_path: Path
) -> None:
    # Every mini-batch is saved; one checkpoint from the middle of the second epoch is kept.
    program = saving_otherwise(
        tmp_path,
        """
        save(training)
        if n_saved == 6:  # three of the first epoch, its end, two of the second epoch
            shutil.copy("checkpoint.pt", "amid.pt")
        """,
    )
    saving = ("--epochs", 3, "--save-every", 1, "--staging", tmp_path / "fast")
    whole = losses(train(folder, tmp_path, *saving, script=program))
    assert len(whole) == 3
    assert len(staged_paths(tmp_path / "fast")) == N_TRAIN + 8

    rest, last = losses(train(folder, tmp_path, "--epochs", 3, "--resume", "amid.pt"))
    assert rest.split("accuracy")[1] == whole[1].split("accuracy")[1]
    assert last == whole[2]  # an order of its own, too


@pytest.mark.slow
def test_two_processes_of_which_one_is_killed_go_on_amid_an_epoch_with_the_same_losses(
    folder: Path, tmp_path: Path
) -> None:
    program = saving_otherwise(
        tmp_path,
        """
        saved = pathlib.Path("saved")
        if n_saved == 6 and os.environ["RANK"] == "1":
            while not saved.exists():
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        save(training)
        if n_saved == 6:
            saved.touch()
            signal.pause()
        """,
    )
    saving = ("--epochs", 3, "--save-every", 1)
    assert train(folder, tmp_path, *saving, n_processes=2, script=program).returncode
    resumed = train(folder, tmp_path, *saving, "--resume", "checkpoint.pt", n_processes=2)
    rest, last = losses(resumed)
    whole = losses(train(folder, tmp_path, *saving, n_processes=2))
    assert rest.split("accuracy")[1] == whole[1].split("accuracy")[1]
    assert last == whole[2]


def test_two_processes_share_a_staging_directory_and_stage_each_file_once(
    folder: Path, tmp_path: Path
) -> None:
    ended = train(folder, tmp_path, "--epochs", 1, "--staging", tmp_path / "fast", n_processes=2)
    assert len(losses(ended)) == 1
    assert len(staged_paths(tmp_path / "fast")) == N_TRAIN + 8


@pytest.mark.slow
def test_it_trains_with_pytorchs_own_loader_too(folder: Path, tmp_path: Path) -> None:
    assert len(losses(train(folder, tmp_path, "--epochs", 1, "--loader", "torch"))) == 1
