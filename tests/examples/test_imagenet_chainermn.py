"""The ImageNet example on several ranks: started by hand, and by the job scripts of clusters."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from tests.chainer.mpi_jobs import NEEDS_MPIEXEC
from tests.examples.scripts import (
    BATCH_SIZE,
    ENVIRONMENT,
    EXAMPLE,
    N_TRAIN,
    N_VAL,
    REPOSITORY,
    assert_succeeded,
    read_log,
    run_python,
)
from tests.support.staged import read_staged, staged_paths

pytestmark = NEEDS_MPIEXEC

SCRIPT = EXAMPLE / "train_imagenet_chainermn.py"
CLUSTER = REPOSITORY / "examples" / "cluster"
EXACT = ("--seed", 3, "--no-augment")  # the same losses for every iterator
STAGED_ONCE = N_TRAIN + N_VAL


def batch_sizes(n_ranks: int) -> tuple[object, ...]:
    """Return the options with which the mini-batch of all ranks is that of one process."""
    size = BATCH_SIZE // n_ranks
    return ("--batchsize", size, "--val_batchsize", size)


def run(
    *command: object, cwd: pathlib.Path, **environment: object
) -> subprocess.CompletedProcess[str]:
    """Run a command with these variables; return its exit status and what it wrote."""
    path = os.pathsep.join([str(pathlib.Path(sys.prefix, "bin")), os.environ["PATH"]])
    variables = {"PATH": path, **environment}
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env={**ENVIRONMENT, **{name: str(value) for name, value in variables.items()}},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )


def train(
    images: pathlib.Path,
    cwd: pathlib.Path,
    n_ranks: int,
    iterator: str,
    *options: object,
    n_epochs: int = 2,
) -> subprocess.CompletedProcess[str]:
    """Train on ``n_ranks`` into ``cwd/<iterator>``; ``staged`` is ``overlap`` with staging."""
    staging = ("--staging", cwd / "fast", "--capacity", "90%") if iterator == "staged" else ()
    return run(
        *("mpiexec", "--allow-run-as-root", "--oversubscribe", "-n", n_ranks, sys.executable),
        *(SCRIPT, images / "train.txt", images / "val.txt", "--communicator", "naive"),
        *("--root", images, "--mean", images / "mean.npy", "--arch", "tiny"),
        *(*batch_sizes(n_ranks), "--epoch", n_epochs),
        *("--iterator", "overlap" if iterator == "staged" else iterator, "--loaderjob", 1),
        *("--out", iterator, *staging, *options),
        cwd=cwd,
    )


@pytest.fixture(scope="module")
def expected(
    images: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., list[dict[str, float]]]:
    """A function that returns the log of two epochs of the script for one process."""

    @functools.cache
    def log_of(*options: object) -> list[dict[str, float]]:
        folder = tmp_path_factory.mktemp("single")
        ended = run_python(
            *(EXAMPLE / "train_imagenet.py", images / "train.txt", images / "val.txt"),
            *("--root", images, "--mean", images / "mean.npy", "--arch", "tiny"),
            *(*batch_sizes(1), "--epoch", 2, *options),
            cwd=folder,
        )
        assert_succeeded(ended)
        return read_log(folder / "result")

    return log_of


def assert_equal_logs(log: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    """Fail unless they are equal up to the rounding of sums in another order."""
    assert log == [pytest.approx(entry, rel=1e-5) for entry in expected]


# --- job scripts ------------------------------------------------------------------------------


def submit(
    script: str, images: pathlib.Path, folder: pathlib.Path, n_ranks: int, **environment: object
) -> subprocess.CompletedProcess[str]:
    """Run a job script in the top folder of the repository, with everything else in ``folder``."""
    (folder / "node disk").mkdir(exist_ok=True)
    options = (*batch_sizes(n_ranks)[2:], *EXACT, "--loaderjob", 1)
    variables = {
        "DATA": images,
        "OUT": folder / "result",
        "VENV": sys.prefix,
        "ARCH": "tiny",
        "BATCHSIZE": BATCH_SIZE // n_ranks,
        "EPOCHS": 2,
        "COMMUNICATOR": "naive",
        "OPTIONS": " ".join(map(str, options)),
    }
    return run("bash", CLUSTER / script, cwd=REPOSITORY, **{**variables, **environment})


def submit_slurm(
    images: pathlib.Path, folder: pathlib.Path, n_ranks: int, **environment: object
) -> subprocess.CompletedProcess[str]:
    stubs = os.pathsep.join(
        [str(pathlib.Path(__file__).parent), str(pathlib.Path(sys.prefix, "bin"))]
    )
    variables = {
        "PATH": os.pathsep.join([stubs, os.environ["PATH"]]),
        "SRUN_LOG": folder / "srun.txt",
        "SLURM_NTASKS": n_ranks,
        "SLURM_CPUS_PER_TASK": 8,
        "SLURM_TMPDIR": folder / "node disk",
    }
    return submit("slurm.sh", images, folder, n_ranks, **{**variables, **environment})


def submit_pbs(
    images: pathlib.Path, folder: pathlib.Path, n_ranks: int, **environment: object
) -> subprocess.CompletedProcess[str]:
    (folder / "nodes.txt").write_text("localhost\n" * n_ranks)
    variables = {
        **{f"{name}_ALLOW_RUN_AS_ROOT": 1 for name in ("OMPI", "PRTE")},
        **{f"{name}_ALLOW_RUN_AS_ROOT_CONFIRM": 1 for name in ("OMPI", "PRTE")},
        "PBS_NODEFILE": folder / "nodes.txt",
        "PBS_O_WORKDIR": REPOSITORY,
        "NCPUS": n_ranks,
        "FAST": folder / "node disk",
    }
    return submit("pbs.sh", images, folder, n_ranks, **{**variables, **environment})


def assert_job_has_trained(
    folder: pathlib.Path, images: pathlib.Path, expected: list[dict[str, float]]
) -> None:
    """Fail unless a job trained as one process does and staged each file once."""
    assert_equal_logs(read_log(folder / "result"), expected)
    for entry in json.loads((folder / "result" / "log").read_text()):
        assert entry["staged_share/worst"] == 1
        assert 0 <= entry["wait_share"] <= entry["wait_share/worst"] <= 1
        assert 0 < entry["examples_per_second/worst"] <= entry["examples_per_second/total"]
    names = {path.name for path in (folder / "result").iterdir()}
    assert names == {"log", "snapshot_iter_6.0", "snapshot_iter_12.0"}
    (fast,) = (folder / "node disk").iterdir()
    staged = staged_paths(fast)
    assert len(staged) == STAGED_ONCE
    for name, extent in staged.items():
        assert read_staged(fast, extent) == (images / name).read_bytes()


def test_the_job_script_for_slurm_trains_four_ranks_as_one_process_trains(
    images: pathlib.Path, tmp_path: pathlib.Path, expected: Callable[..., list[dict[str, float]]]
) -> None:
    ended = submit_slurm(images, tmp_path, 4)

    assert_succeeded(ended)
    assert "examples_per_second/total" in ended.stdout
    assert_job_has_trained(tmp_path, images, expected(*EXACT))
    arguments = (tmp_path / "srun.txt").read_text().splitlines()
    # Without the former a rank has one core, with the latter it sees but one GPU, number 0.
    assert "--cpus-per-task=8" in arguments
    assert not any(argument.startswith("--gpus-per-task") for argument in arguments)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="binds each rank to a core")
def test_the_job_script_for_pbs_trains_two_ranks_as_one_process_trains(
    images: pathlib.Path, tmp_path: pathlib.Path, expected: Callable[..., list[dict[str, float]]]
) -> None:
    assert_succeeded(submit_pbs(images, tmp_path, 2))

    assert_job_has_trained(tmp_path, images, expected(*EXACT))


@pytest.mark.slow
def test_a_job_that_is_submitted_again_goes_on_with_another_number_of_ranks(
    images: pathlib.Path, tmp_path: pathlib.Path, expected: Callable[..., list[dict[str, float]]]
) -> None:
    assert_succeeded(submit_slurm(images, tmp_path, 2, EPOCHS=1))
    assert not (tmp_path / "result" / "snapshot_iter_12.0").exists()
    assert_succeeded(submit_slurm(images, tmp_path, 4))

    assert_job_has_trained(tmp_path, images, expected(*EXACT))


@pytest.mark.parametrize("script", ["slurm.sh", "pbs.sh"])
def test_a_job_script_is_free_of_what_bash_and_shellcheck_find(
    script: str, tmp_path: pathlib.Path
) -> None:
    assert_succeeded(run("bash", "-n", CLUSTER / script, cwd=tmp_path))
    if shutil.which("shellcheck"):
        assert_succeeded(run("shellcheck", CLUSTER / script, cwd=tmp_path))


# --- by hand ----------------------------------------------------------------------------------


@pytest.mark.slow  # the job scripts do the same with staging on 2 and 4 ranks
@pytest.mark.parametrize(
    ("iterator", "n_ranks"),
    [
        ("staged", 1),
        ("overlap", 1),
        ("overlap", 2),
        ("overlap", 4),
        ("multiprocess", 2),
        ("serial", 2),
    ],
)
def test_every_iterator_and_ours_on_any_number_of_ranks_trains_as_one_process_trains(
    iterator: str,
    n_ranks: int,
    images: pathlib.Path,
    tmp_path: pathlib.Path,
    expected: Callable[..., list[dict[str, float]]],
) -> None:
    assert_succeeded(train(images, tmp_path, n_ranks, iterator, *EXACT))

    assert_equal_logs(read_log(tmp_path / iterator), expected(*EXACT))


@pytest.mark.slow
def test_a_seed_fixes_crops_and_flips_whatever_the_number_of_ranks(
    images: pathlib.Path, tmp_path: pathlib.Path, expected: Callable[..., list[dict[str, float]]]
) -> None:
    seeded = EXACT[:2]
    assert_succeeded(train(images, tmp_path, 4, "staged", *seeded))

    assert_equal_logs(read_log(tmp_path / "staged"), expected(*seeded))
    assert expected(*seeded) != expected(*EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("iterator", ["overlap", "serial"])
def test_a_resumed_run_ends_like_one_that_was_not_interrupted(
    iterator: str,
    images: pathlib.Path,
    tmp_path: pathlib.Path,
    expected: Callable[..., list[dict[str, float]]],
) -> None:
    assert_succeeded(train(images, tmp_path, 2, iterator, *EXACT, n_epochs=1))
    resumed = ("--out", "resumed", "--resume", tmp_path / iterator / "snapshot_iter_6")
    assert_succeeded(train(images, tmp_path, 2, iterator, *EXACT, *resumed))

    assert_equal_logs(read_log(tmp_path / "resumed"), expected(*EXACT))


@pytest.mark.slow
def test_without_a_seed_all_ranks_have_the_weights_of_rank_0_from_the_first_mini_batch_on(
    images: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    # Each rank writes a snapshot with this iterator. The weights differ at first.
    assert_succeeded(train(images, tmp_path, 2, "serial", n_epochs=1))

    first, second = (np.load(tmp_path / "serial" / f"snapshot_iter_6.{rank}") for rank in (0, 1))
    weights = [name for name in first.files if name.startswith("updater/model:main/")]
    assert len(weights) == 6
    for name in weights:
        np.testing.assert_array_equal(first[name], second[name])
    assert first["updater/iteration"] == first["updater/optimizer:main/t"] == 6


@pytest.mark.slow
def test_resnet50_trains_for_a_few_iterations(tmp_path: pathlib.Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    generator = np.random.default_rng(0)
    for i in range(8):
        pixels = generator.integers(0, 256, (7, 7, 3), dtype=np.uint8)
        Image.fromarray(pixels).resize((256, 256)).save(source / f"{i}.jpg")
    for name in ("train", "val"):
        (source / f"{name}.txt").write_text("".join(f"{i}.jpg {i}\n" for i in range(8)))
    np.save(source / "mean.npy", np.full((3, 1, 1), 120, np.float32))
    few = ("--arch", "resnet50", "--test", "--batchsize", 1, "--val_batchsize", 1)
    assert_succeeded(train(source, tmp_path, 2, "staged", *few))

    log = read_log(tmp_path / "staged")
    assert [entry["iteration"] for entry in log] == [1, 2, 3]
    assert all(np.isfinite(entry["main/loss"]) for entry in log)


@pytest.mark.parametrize(
    ("iterator", "options"),
    [("overlap", ("--capacity", "1GB")), ("serial", ("--staging", "fast"))],
)
def test_options_that_would_have_no_effect_are_refused(
    iterator: str, options: tuple[object, ...], tmp_path: pathlib.Path
) -> None:
    ended = run_python(
        SCRIPT, "train.txt", "val.txt", "--iterator", iterator, *options, cwd=tmp_path
    )

    assert ended.returncode == 2
    assert "--staging" in ended.stderr.splitlines()[-1]
