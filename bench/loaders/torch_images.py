"""The same images as a data set whose module imports PyTorch, as most do."""

from torch.utils.data import Dataset

from bench.loaders.files import Images


class TorchImages(Images, Dataset):
    """Images for PyTorch's loaders."""
