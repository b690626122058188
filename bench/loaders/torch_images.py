"""The same images as a data set whose module imports PyTorch, as most do."""

from __future__ import annotations

from torch.utils.data import Dataset

from bench.loaders.adapters import _Images


class TorchImages(_Images, Dataset):
    """Images for PyTorch's loaders."""
