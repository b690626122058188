"""`overlapiter.mpi.train` trains a PyTorch module through its adapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import overlapiter.mpi
from overlapiter.errors import TrainingError

torch = pytest.importorskip("torch")
pytest.importorskip("matplotlib")

ROWS = """
import numpy as np
class Rows:
    def __init__(self, path):
        self.pixels = np.random.default_rng(int(path[-1])).standard_normal((200, 8))
    def __len__(self):
        return 200
    def read(self, start, stop):
        pixels = self.pixels[start:stop]
        return pixels, (pixels[:, 0] > 0).astype(int)
    def close(self):
        pass
"""


class WithLoss(torch.nn.Module):
    """Returns its loss, and its accuracy if it is to."""

    def __init__(self, *, is_measuring: bool) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)
        self.is_measuring = is_measuring

    def forward(self, pixels: Any, labels: Any) -> Any:
        outputs = self.layer(pixels)
        loss = torch.nn.functional.cross_entropy(outputs, labels.long())
        if not self.is_measuring:
            return loss
        return loss, (outputs.argmax(1) == labels).float().mean()


def train(folder: Path, build: Any, out: str = "run", **chosen: Any) -> dict[str, Any]:
    """Train on two made-up files; return the last record."""
    (folder / "rows.py").write_text(ROWS)
    for name in ("0", "1"):
        (folder / name).touch()
    overlapiter.mpi.train(
        build, [folder / "0"], [folder / "1"], data=f"{folder / 'rows.py'}:Rows", epochs=3,
        batch=20, learning_rate=0.05, out=folder / out, **{"metrics": "accuracy"} | chosen,
    )  # fmt: skip
    record: dict[str, Any] = json.loads((folder / out / "history.json").read_text())["epochs"][-1]
    return record


@pytest.mark.leaks_ok("matplotlib keeps its fonts open")
def test_a_module_is_trained_exactly_again_and_pytorch_loads_its_weights(tmp_path: Path) -> None:
    def build() -> Any:
        return torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(),
            torch.nn.Dropout(0.1), torch.nn.Linear(16, 2),
        )  # fmt: skip

    last = train(tmp_path, build)
    assert last["val_accuracy"] > 0.8
    train(tmp_path, build, "again")
    with (
        np.load(tmp_path / "run/weights.npz") as one,
        np.load(tmp_path / "again/weights.npz") as other,
    ):
        assert all(np.array_equal(one[name], other[name]) for name in one.files)
        module = build()
        module.load_state_dict({name: torch.from_numpy(one[name]) for name in one.files})
        assert one["1.num_batches_tracked"] == last["updates"]


class WithBuffers(torch.nn.Module):
    """Has buffers that have no mean in single precision."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 2)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
        self.register_buffer("key", torch.tensor(123_456_789))
        self.register_buffer("large", torch.tensor(1e300, dtype=torch.float64))
        self.register_buffer("is_used", torch.tensor([True, False]))

    def forward(self, pixels: Any) -> Any:
        assert self.key == 123_456_789
        return self.layer(pixels) + self.mask.exp()


@pytest.mark.leaks_ok("matplotlib keeps its fonts open")
@pytest.mark.parametrize("algorithm", ["downpour", "easgd"])
def test_a_module_keeps_its_masks_and_its_large_whole_numbers(
    tmp_path: Path, algorithm: str
) -> None:
    last = train(tmp_path, WithBuffers, algorithm=algorithm)
    assert last["val_accuracy"] > 0.8
    with np.load(tmp_path / "run/weights.npz") as arrays:
        assert arrays["mask"].tolist() == [0.0, -np.inf]
        assert arrays["key"] == 123_456_789
        assert arrays["large"] == 1e300
        assert arrays["is_used"].tolist() == [True, False]


class OfShortNumbers(torch.nn.Module):
    """Computes in a type of numbers that NumPy does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 2, dtype=torch.bfloat16)
        self.register_buffer("scale", torch.tensor(2.0, dtype=torch.bfloat16))

    def forward(self, pixels: Any) -> Any:
        return (self.layer(pixels.bfloat16()) * self.scale).float()


@pytest.mark.leaks_ok("matplotlib keeps its fonts open")
def test_a_module_of_numbers_that_numpy_does_not_have_is_trained_and_written(
    tmp_path: Path,
) -> None:
    assert train(tmp_path, OfShortNumbers)["val_accuracy"] > 0.8
    with np.load(tmp_path / "run/weights.npz") as arrays:
        found = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    OfShortNumbers().load_state_dict(found)
    assert found["scale"] == 2.0


@pytest.mark.leaks_ok("matplotlib keeps its fonts open")
def test_a_module_that_returns_its_loss_returns_its_accuracy_too(tmp_path: Path) -> None:
    last = train(tmp_path, lambda: WithLoss(is_measuring=True), loss="model")
    assert last["val_accuracy"] > 0.8
    chosen: dict[str, Any] = {"loss": "model", "metrics": ()}
    without = train(tmp_path, lambda: WithLoss(is_measuring=True), "without", **chosen)
    assert without["val_loss"] == last["val_loss"]
    assert "val_accuracy" not in without
    with pytest.raises(TrainingError, match=r"has to return \(loss, accuracy\)"):
        train(tmp_path, lambda: WithLoss(is_measuring=False), "other", loss="model")
