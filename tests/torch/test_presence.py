"""A file reader imports PyTorch only where the dataset does, and draws the same numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch.utils import data  # noqa: E402

from overlapiter.torch.presence import is_needed  # noqa: E402
from tests.chainer.scripts import run_script  # noqa: E402
from tests.torch import plain_datasets, torch_datasets  # noqa: E402


def test_it_is_seen_whether_a_dataset_needs_pytorch() -> None:
    assert not is_needed([plain_datasets.Plain(), None, [1, "a"], {"a": np.zeros(2)}])
    for thing in (
        torch_datasets.Made("int"),
        data.TensorDataset(torch.zeros(1)),
        [(torch.zeros(1), 1)],
        torch_datasets.to_list,
    ):
        assert is_needed([thing]), thing


class Nameless:
    """A class as some are in C: what it says of its module is no name."""

    __module__ = property(str)


def test_a_class_without_the_name_of_a_module_is_no_obstacle() -> None:
    assert not is_needed([Nameless()])


PROGRAM = """
    import torch
    from torch.utils import data
    from overlapiter.torch import DataLoader
    from tests.torch.plain_datasets import Late, Plain

    def batches(kind, dataset, **options):
        torch.manual_seed(1)
        return torch.cat(list(kind(dataset, 2, num_workers=2, **options)))

    def main():
        plain = batches(DataLoader, Plain())
        assert torch.equal(plain[:, :3], batches(data.DataLoader, Plain())[:, :3])
        assert not plain[:, 3].any(), "PyTorch was imported"
        assert torch.equal(batches(DataLoader, Late()), batches(data.DataLoader, Late()))
        seeded = [batches(DataLoader, Late(), seed=n)[:, :4] for n in (3, 3, 4)]
        assert torch.equal(seeded[0], seeded[1])
        assert not torch.equal(seeded[0][:, 2], seeded[2][:, 2])

    if __name__ == "__main__":
        main()
"""


def test_a_reader_without_pytorch_draws_the_same_and_one_that_imports_it_late_too(
    tmp_path: Path,
) -> None:
    ended = run_script(tmp_path, PROGRAM)
    assert ended.returncode == 0, ended.stderr


def test_the_forkserver_starts_before_the_rest_is_imported(tmp_path: Path) -> None:
    body = """
import sys
import overlapiter

overlapiter.torch.DataLoader
print({f"overlapiter.{name}" for name in ("pipeline", "planning", "store")} & sys.modules.keys())
if __name__ == "__main__":
    loader = overlapiter.torch.DataLoader([1, 2], 2, num_workers=1)
    print(*loader)
    loader.close()
"""
    assert run_script(tmp_path, body).stdout == "set()\ntensor([1, 2])\n"


@pytest.mark.parametrize("is_first", [True, False])
def test_lightning_meets_the_class_of_the_loader_before_the_program_uses_it(
    tmp_path: Path, is_first: bool
) -> None:
    """Lightning patches PyTorch's class and its subclasses while a model makes its loader."""
    utilities = tmp_path / "lightning" / "fabric" / "utilities"  # what stands in for it
    utilities.mkdir(parents=True)
    (utilities / "data.py").write_text("from torch.utils.data import DataLoader\n")
    imports = ["import overlapiter", "from lightning.fabric.utilities.data import DataLoader"]
    use = "print(overlapiter.torch.DataLoader in before)"
    lines = [*imports[:: 1 if is_first else -1], "before = DataLoader.__subclasses__()", use]
    assert run_script(tmp_path, "\n".join(lines)).stdout == "True\n"
