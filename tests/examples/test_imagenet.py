"""The ImageNet example, run as a user runs it: each script in a process of its own."""

from __future__ import annotations

import functools
import math
import pathlib
import subprocess
from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image

from tests.examples.scripts import (
    BATCH_SIZE,
    EXAMPLE,
    N_CLASSES,
    N_TRAIN,
    N_VAL,
    SIDE,
    assert_succeeded,
    read_log,
    run_python,
)
from tests.support.staged import read_staged, staged_paths

OURS = ("overlap", "staged")
ITERATORS = (*OURS, "multiprocess", "serial")
#: That the script works with Chainer's own, too, is seen from their losses.
OURS_AND_SLOWLY_OTHERS = (*OURS, *(pytest.param(i, marks=pytest.mark.slow) for i in ITERATORS[2:]))


def train(
    images: pathlib.Path,
    cwd: pathlib.Path,
    iterator: str,
    *options: object,
    train_list: pathlib.Path | str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Train for two epochs into ``cwd/<iterator>``; ``staged`` is ``overlap`` with staging."""
    staging = ("--staging", cwd / "fast", "--prefetchers", 1) if iterator == "staged" else ()
    return run_python(
        EXAMPLE / "train_imagenet.py",
        train_list or images / "train.txt",
        images / "val.txt",
        *("--root", images, "--mean", images / "mean.npy", "--arch", "tiny"),
        *("--batchsize", BATCH_SIZE, "--val_batchsize", BATCH_SIZE, "--epoch", 2),
        *("--iterator", "overlap" if iterator == "staged" else iterator, "--loaderjob", 2),
        *("--out", iterator, *staging, *options),
        cwd=cwd,
    )


SEEDED = ("--seed", 3)
EXACT = (*SEEDED, "--no-augment")  # the same losses for every iterator


@pytest.fixture(scope="module")
def trained(
    images: pathlib.Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., pathlib.Path]:
    """A function that trains as :func:`train` does and returns the folder where it did.

    A training that was done before is not done again; no test changes its files.
    """

    @functools.cache
    def folder_of(iterator: str, *options: object) -> pathlib.Path:
        folder = tmp_path_factory.mktemp("training")
        assert_succeeded(train(images, folder, iterator, *options))
        return folder

    return folder_of


@pytest.mark.parametrize("iterator", OURS_AND_SLOWLY_OTHERS)
def test_two_epochs_lower_the_loss_and_leave_a_log_and_snapshots(
    iterator: str, trained: Callable[..., pathlib.Path]
) -> None:
    # With ours, the trainings that are resumed below.
    out = trained(iterator, *(SEEDED if iterator in OURS else ())) / iterator
    log = read_log(out)
    assert [entry["epoch"] for entry in log] == [1, 2]
    assert all(math.isfinite(value) for entry in log for value in entry.values())
    assert log[1]["main/loss"] < log[0]["main/loss"]
    assert log[1]["validation/main/loss"] < log[0]["validation/main/loss"]
    snapshots = {path.name for path in out.glob("snapshot_*")}
    assert snapshots == {"snapshot_iter_6", "snapshot_iter_12"}


def test_the_staging_directory_holds_a_copy_of_every_image_afterwards(
    images: pathlib.Path, trained: Callable[..., pathlib.Path]
) -> None:
    folder = trained("staged", *SEEDED)

    staged = staged_paths(folder / "fast")
    assert len(staged) == N_TRAIN + N_VAL
    for name, extent in staged.items():
        assert read_staged(folder / "fast", extent) == (images / name).read_bytes()


def test_without_augmentation_every_iterator_gives_the_same_losses(
    trained: Callable[..., pathlib.Path],
) -> None:
    logs = {iterator: read_log(trained(iterator, *EXACT) / iterator) for iterator in ITERATORS}

    assert all(log == logs["serial"] for log in logs.values()), logs


def test_a_seed_fixes_crops_and_flips_whatever_the_number_of_file_readers(
    trained: Callable[..., pathlib.Path],
) -> None:
    two_readers, three_readers, exact = (
        read_log(trained("overlap", *options) / "overlap")
        for options in (SEEDED, (*SEEDED, "--loaderjob", 3), EXACT)
    )

    assert two_readers == three_readers
    assert two_readers != exact


@pytest.mark.parametrize("iterator", OURS_AND_SLOWLY_OTHERS)
def test_a_resumed_run_ends_like_one_that_was_not_interrupted(
    iterator: str,
    images: pathlib.Path,
    trained: Callable[..., pathlib.Path],
    tmp_path: pathlib.Path,
) -> None:
    options = SEEDED if iterator in OURS else EXACT  # Chainer's iterators do not fix the crops
    whole = trained(iterator, *options) / iterator
    snapshot = whole / "snapshot_iter_6"
    resumed = ("--out", "resumed", "--resume", snapshot)
    assert_succeeded(train(images, tmp_path, iterator, *options, *resumed))

    assert not (tmp_path / "resumed" / snapshot.name).exists()
    assert read_log(tmp_path / "resumed") == read_log(whole)


def test_the_option_test_stops_after_three_mini_batches(
    images: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    assert_succeeded(train(images, tmp_path, "serial", "--test"))

    log = read_log(tmp_path / "serial")
    assert [entry["iteration"] for entry in log] == [1, 2, 3]
    assert "validation/main/loss" in log[-1]
    assert (tmp_path / "serial" / "snapshot_iter_3").exists()


@pytest.mark.parametrize(
    ("iterator", "options"),
    [
        ("overlap", ("--prefetchers", 1)),
        ("overlap", ("--source", "/")),
        ("serial", ("--staging", "fast")),
    ],
)
def test_options_that_would_have_no_effect_are_refused(
    iterator: str, options: tuple[object, ...], images: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    ended = train(images, tmp_path, iterator, *options)

    assert ended.returncode == 2
    assert "--staging" in ended.stderr.splitlines()[-1]


def test_an_image_smaller_than_the_crop_is_named(
    images: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    Image.new("RGB", (70, 50)).save(tmp_path / "small.jpg")
    (tmp_path / "small.txt").write_text(f"{tmp_path}/small.jpg 0\n")
    ended = train(images, tmp_path, "overlap", train_list=tmp_path / "small.txt")

    assert ended.returncode == 1
    assert "image 0 has 50 x 70 pixels; it must be at least 64 x 64" in ended.stderr


def test_workers_import_the_dataset_without_the_training_script_and_the_networks(
    tmp_path: pathlib.Path,
) -> None:
    code = f"""
import sys
sys.path.insert(0, {str(EXAMPLE)!r})
import chainer
before = set(sys.modules)
import preprocessing
added = {{name.partition(".")[0] for name in set(sys.modules) - before}}
assert added - sys.stdlib_module_names == {{"preprocessing"}}, added
"""
    assert_succeeded(run_python("-c", code, cwd=tmp_path))


def test_compute_mean_averages_the_images_of_the_list(
    images: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    script = (EXAMPLE / "compute_mean.py", images / "val.txt", "--root", images, "--loaderjob", 1)
    assert_succeeded(run_python(*script, cwd=tmp_path))
    assert_succeeded(run_python(*script, "--per_channel", "-o", "color.npy", cwd=tmp_path))

    pixels = []
    for path in (images / "val").iterdir():
        with Image.open(path) as image:
            pixels.append(np.asarray(image))
    expected = np.mean(pixels, axis=0, dtype=np.float64).transpose(2, 0, 1)
    mean, color = np.load(tmp_path / "mean.npy"), np.load(tmp_path / "color.npy")
    assert (mean.dtype, color.dtype) == (np.float32, np.float32)
    np.testing.assert_allclose(mean, expected, rtol=1e-6)
    np.testing.assert_allclose(color, expected.mean(axis=(1, 2), keepdims=True), rtol=1e-6)


@pytest.mark.slow  # the mean has tests of its own
def test_training_on_images_of_several_sizes_works_with_a_mean_color(
    images: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    lines = []
    for i in range(2 * BATCH_SIZE):
        Image.new("RGB", (SIDE + i, SIDE)).save(tmp_path / f"{i}.jpg")
        lines.append(f"{tmp_path}/{i}.jpg {i % N_CLASSES}\n")
    (tmp_path / "mixed.txt").write_text("".join(lines))

    # A mean image needs a single size.
    script = (EXAMPLE / "compute_mean.py", "mixed.txt", "--loaderjob", 1)
    refused = run_python(*script, cwd=tmp_path)
    assert refused.returncode == 1
    assert "use --per_channel" in refused.stderr
    assert_succeeded(run_python(*script, "--per_channel", cwd=tmp_path))

    mixed = ("--mean", "mean.npy", "--test")
    assert_succeeded(train(images, tmp_path, "overlap", *mixed, train_list="mixed.txt"))


@pytest.mark.parametrize(
    "architecture",
    ["tiny", *(pytest.param(n, marks=pytest.mark.slow) for n in ("alex", "resnet50"))],
)
def test_a_network_learns_from_one_mini_batch(architecture: str, tmp_path: pathlib.Path) -> None:
    # In a process of its own, which gives the memory of the large networks back.
    code = f"""
import sys
sys.path.insert(0, {str(EXAMPLE)!r})
import chainer, models, numpy as np
np.random.seed(0)
network = models.ARCHITECTURES[{architecture!r}]()
model = chainer.links.Classifier(network)
optimizer = chainer.optimizers.MomentumSGD(0.01).setup(model)
images = np.random.rand(2, 3, network.insize, network.insize).astype(np.float32)
optimizer.update(model, images, np.array([1, 999], np.int32))
assert network(images).shape == (2, models.N_CLASSES)
assert all(p.grad is not None and np.isfinite(p.array).all() for p in model.params())
"""
    assert_succeeded(run_python("-c", code, cwd=tmp_path))
