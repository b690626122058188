"""The dataset of the ImageNet example: images of a list, cropped, flipped and scaled.

It is a module of its own, so that the worker processes import it and not the training script.
"""

from __future__ import annotations

import random

import chainer
import numpy as np


class PreprocessedDataset(chainer.dataset.DatasetMixin):
    """Crops, flips and scales the images of a list.

    Args:
        pairs: File of ``path label`` lines.
        root: Directory that the paths start from.
        mean: Mean image, shape ``(3, height, width)``, or mean colour, shape ``(3, 1, 1)``; values
            from 0 to 255.
        crop_size: Side of the square that is cut out, in pixels.
        augment: Whether to cut at a random place and flip every other image at random; otherwise
            the centre is cut.
    """

    def __init__(
        self, pairs: str, root: str, mean: np.ndarray, crop_size: int, augment: bool = True
    ) -> None:
        self.base = chainer.datasets.LabeledImageDataset(pairs, root)
        self.mean = mean.astype(chainer.get_dtype(), copy=False)
        self.crop_size = crop_size
        self.augment = augment

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.base)

    def get_example(self, i: int) -> tuple[np.ndarray, np.ndarray]:
        """Read one example.

        Returns:
            The image, shape ``(3, crop_size, crop_size)``, float32, and its label, int32.

        Raises:
            ValueError: The image is smaller than the crop.
        """
        image, label = self.base[i]
        _, height, width = image.shape
        if min(height, width) < self.crop_size:
            raise ValueError(
                f"image {i} has {height} x {width} pixels; it must be at least "
                f"{self.crop_size} x {self.crop_size}"
            )
        top, left = (height - self.crop_size) // 2, (width - self.crop_size) // 2
        if self.augment:
            top = random.randint(0, height - self.crop_size)
            left = random.randint(0, width - self.crop_size)
        window = np.s_[:, top : top + self.crop_size, left : left + self.crop_size]

        mean = self.mean if self.mean.shape[1:] == (1, 1) else self.mean[window]
        image = image[window] - mean
        if self.augment and random.random() < 0.5:
            image = image[:, :, ::-1]
        image *= 1 / 255
        return image, label
