"""The DataLoader of PyTorch, on the engine of overlapiter. Needs PyTorch, and no Chainer."""

from overlapiter.torch.communicator import Communicator as Communicator
from overlapiter.torch.loader import DataLoader as DataLoader

__all__ = ["Communicator", "DataLoader"]
