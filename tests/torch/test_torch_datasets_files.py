"""The files and roots of PyTorch's own datasets, and of those that torchvision has."""

from __future__ import annotations

import contextlib
import os
import sys
import types
import warnings
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch.utils import data  # noqa: E402

from overlapiter import Staging  # noqa: E402
from overlapiter.errors import StagingWarning  # noqa: E402
from overlapiter.sources import declared_paths, source_roots  # noqa: E402
from overlapiter.torch import DataLoader  # noqa: E402
from overlapiter.torch.datasets import register_known  # noqa: E402
from tests.support.staged import flip, staged_paths  # noqa: E402
from tests.torch.torch_datasets import ImagesAtOnce, OpenedInC  # noqa: E402


def test_wrapped_folders_of_torchvision_declare_their_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class DatasetFolder:
        root = "/store"
        samples = tuple((f"/store/{i}.jpg", 0) for i in range(6))

        def __len__(self) -> int:
            return len(self.samples)

    class WithMasks(DatasetFolder):
        def __getitem__(self, index: int) -> object:
            raise NotImplementedError

    module = types.ModuleType("torchvision.datasets.folder")
    module.DatasetFolder = DatasetFolder  # type: ignore[attr-defined]  # a module made here
    monkeypatch.setitem(sys.modules, module.__name__, module)
    register_known()
    register_known()

    folder = DatasetFolder()
    joined = data.ConcatDataset([data.Subset(folder, [5, 3]), folder])
    files = [declared_paths(joined, index) for index in (0, 1, 2, 7, -1)]
    assert files == [[f"/store/{i}.jpg"] for i in (5, 3, 0, 5, 5)]
    assert source_roots(joined) == {"/store"}
    assert declared_paths(data.Subset(WithMasks(), [5, 3]), 0) is None


def test_tensors_have_no_files() -> None:
    dataset = data.TensorDataset(torch.zeros(3))
    assert declared_paths(dataset, 0) == []
    assert source_roots(dataset) == set()


def test_files_that_are_opened_unseen_are_reported_though_pytorch_reads_its_own(
    tmp_path: Path,
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    paths = [str(source / f"{number}.bin") for number in range(40)]
    for path in paths:
        Path(path).write_bytes(b"1234")
    staging = Staging(tmp_path / "fast", source=source, keep_free=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = DataLoader(OpenedInC(paths), 4, num_workers=1, staging=staging)
        assert torch.cat([*loader]).tolist() == [*range(40)]
        stats = loader.stats()
        loader.close()
    assert [each.category for each in caught] == [StagingWarning]
    assert stats.examples_unseen >= 36  # those of the last mini-batch are counted a moment later


def test_a_program_that_goes_elsewhere_before_its_first_mini_batch_stages_where_it_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(8):
        (source / f"{number:05}.jpg").write_bytes(bytes(100 + number))
    monkeypatch.chdir(tmp_path)
    staging = Staging("fast", source="source", keep_free=0)
    loader = DataLoader(ImagesAtOnce(source, 8), 4, num_workers=1, staging=staging)
    with contextlib.closing(loader):
        (tmp_path / "run").mkdir()
        monkeypatch.chdir("run")
        assert len([*loader]) == 2
    assert len(staged_paths(tmp_path / "fast")) == 8
    assert os.listdir(".") == []


def test_a_damaged_copy_of_a_mini_batch_that_is_read_at_once_is_staged_anew(
    tmp_path: Path,
) -> None:
    source, fast = tmp_path / "source", tmp_path / "fast"
    source.mkdir()
    for number in range(16):
        (source / f"{number:05}.jpg").write_bytes(bytes(100 + number))
        os.utime(source / f"{number:05}.jpg", (10**9, 10**9))
    staging = Staging(fast, source=source, keep_free=0, n_prefetchers=1)
    loader = DataLoader(ImagesAtOnce(source, 16), 4, num_workers=1, staging=staging)
    with contextlib.closing(loader):
        first = [*loader]
        flip(fast, staged_paths(fast)["00001.jpg"])
        for _ in range(3):
            torch.testing.assert_close([*loader], first)
        before = loader.stats()
        torch.testing.assert_close([*loader], first)
        after = loader.stats()
    assert (after.files_staged, after.opens_source) == (17, before.opens_source)
    # The first one is followed to its end, to learn how many files an example opens.
    assert len(os.listdir(tmp_path / "alone")) == 1
