"""Datasets of a module that does not import PyTorch."""

from __future__ import annotations

import random
import sys
from typing import Any

import numpy as np


class Plain:
    """Gives random numbers, and whether this process has imported PyTorch."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        drawn = [random.random(), np.random.random(), index]
        return np.array([*drawn, "torch" in sys.modules])


class Late(Plain):
    """Imports it when it is asked, and draws from it."""

    def __getitem__(self, index: int) -> Any:
        before = random.random()
        torch = __import__("torch")
        info = torch.utils.data.get_worker_info()
        return torch.tensor(
            [before, random.random(), torch.rand(()), index, info.id, info.seed % 7]
        )
