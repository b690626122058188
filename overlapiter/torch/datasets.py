"""Which files the datasets of PyTorch and torchvision read."""

from __future__ import annotations

import bisect
import sys
from typing import Any

from torch.utils import data

from overlapiter.sources import declared_paths, known_paths, source_root, source_roots


@known_paths.register(data.TensorDataset)
def _(_dataset: Any, _index: int) -> list[str]:
    return []


@known_paths.register(data.Subset)
def _(dataset: Any, index: int) -> list[str] | None:
    return declared_paths(dataset.dataset, dataset.indices[index])


@known_paths.register(data.ConcatDataset)
def _(dataset: Any, index: int) -> list[str] | None:
    index = index + len(dataset) if index < 0 else index
    number = bisect.bisect_right(dataset.cumulative_sizes, index)
    before = dataset.cumulative_sizes[number - 1] if number else 0
    return declared_paths(dataset.datasets[number], index - before)


@source_roots.register(data.ConcatDataset)
def _(dataset: Any) -> set[str]:
    return set().union(*map(source_roots, dataset.datasets))


def register_known() -> None:
    """Register torchvision's folders of images, if the program has imported it."""
    folder = getattr(sys.modules.get("torchvision.datasets.folder"), "DatasetFolder", None)
    if folder is not None and folder not in known_paths.registry:
        known_paths.register(folder, lambda dataset, index: [dataset.samples[index][0]])
        source_roots.register(folder, lambda dataset: {source_root(str(dataset.root))})
