"""Images for the examples to train on."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from tests.examples.scripts import N_TRAIN, N_VAL, SIDE, write_images


@pytest.fixture(scope="session")
def images(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder of images with ``train.txt``, ``val.txt`` and ``mean.npy``; no test changes it."""
    folder = tmp_path_factory.mktemp("images")
    write_images(folder, "train", N_TRAIN)
    write_images(folder, "val", N_VAL)
    np.save(folder / "mean.npy", np.full((3, SIDE, SIDE), 120, dtype=np.float32))
    return folder
