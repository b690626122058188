"""The examples of training by server and workers, run as their READMEs say, at a small size."""

from __future__ import annotations

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

from tests.examples.scripts import ENVIRONMENT, REPOSITORY, assert_succeeded, run_python

pytest.importorskip("h5py")
EXAMPLES = REPOSITORY / "examples"
NEEDS_MPIEXEC = [
    pytest.mark.mpi,
    pytest.mark.skipif(shutil.which("mpiexec") is None, reason="needs mpiexec"),
]


def accuracies(name: str, data: pathlib.Path, *words: object, n_ranks: int = 0) -> list[float]:
    """Train an example on the data in a folder; return the accuracy after each epoch."""
    command = ["-m", "overlapiter", "train", EXAMPLES / name / "model.py"]
    lists = [data / "train.txt", data / "val.txt"]
    command += [*lists, *words, "--metrics", "accuracy", "--out", "run"]
    if n_ranks:
        launcher = ["mpiexec", "--allow-run-as-root", "--oversubscribe", "-n", str(n_ranks)]
        ended = subprocess.run(
            [*launcher, sys.executable, *map(str, command)],
            cwd=data,
            env=ENVIRONMENT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=250,
            check=False,
        )
    else:
        ended = run_python(*command, cwd=data)
    assert_succeeded(ended)
    epochs = json.loads((data / "run" / "history.json").read_text())["epochs"]
    return [epoch["val_accuracy"] for epoch in epochs]


@pytest.fixture
def digits(tmp_path: pathlib.Path) -> pathlib.Path:
    pytest.importorskip("sklearn")
    assert_succeeded(run_python(EXAMPLES / "digits/make_data.py", tmp_path, cwd=tmp_path))
    return tmp_path


class TestRanks:
    pytestmark = NEEDS_MPIEXEC

    def test_two_workers_learn_the_digits(self, digits: pathlib.Path) -> None:
        words = ("--epochs", 3, "--batch", 16, "--learning-rate", 0.002)
        assert accuracies("digits", digits, *words, n_ranks=3)[-1] > 0.93

    @pytest.mark.slow
    def test_four_workers_reach_the_published_accuracy(self, digits: pathlib.Path) -> None:
        words = ("--epochs", 8, "--batch", 16, "--learning-rate", 0.002)
        assert accuracies("digits", digits, *words, n_ranks=5)[-1] >= 0.97


@pytest.mark.slow
def test_a_process_alone_learns_to_tell_jets_apart(tmp_path: pathlib.Path) -> None:
    made = run_python(EXAMPLES / "jets/make_data.py", tmp_path, "--examples", 1600, cwd=tmp_path)
    assert_succeeded(made)
    words = ("--epochs", 3, "--batch", 20, "--learning-rate", 0.005)
    assert max(accuracies("jets", tmp_path, *words)) > 0.65


@pytest.mark.slow
@pytest.mark.timeout(1500)  # sixty trainings
def test_a_search_finds_the_accuracy_of_the_best_of_a_grid_with_half_of_the_trials(
    digits: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bench.claims.grid import compare
    from overlapiter.mpi.training import curves

    monkeypatch.setattr(curves, "draw", lambda *_: None)  # sixty figures
    found = compare({"folder": digits, "trials": 20, "seed": 0})
    assert found["grid"]["n"] == 40
    assert found["search"]["best"] >= found["grid"]["best"]
