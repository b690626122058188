"""Chainer's image datasets without a copy of each image between the decoder and the slot."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from chainer import datasets as chainer_datasets
from chainer.datasets import image_dataset
from PIL import Image, _imaging

from overlapiter.sharedmem.images import DecodedImage
from overlapiter.workers.reader.face import ChainerFace

_OF_IMAGES = (
    chainer_datasets.ImageDataset,
    chainer_datasets.LabeledImageDataset,
    chainer_datasets.ZippedImageDataset,
    chainer_datasets.MultiZippedImageDataset,
    chainer_datasets.LabeledZippedImageDataset,
)


#: What a tuple of a TupleDataset may have besides images.
_PLAIN = (list, tuple, np.ndarray)


class ImageFace(ChainerFace):
    """Has Chainer's image datasets give images as they were decoded.

    A :class:`DecodedImage` goes through Chainer's own code unseen. Any other code, a user's
    transformation for example, needs arrays: so this is for what :func:`gives_plain_images`.
    """

    def begin(self, number: int, n_readers: int) -> None:
        """Replace, in this process, the functions by which all of these datasets read an image.

        If they are Chainer's: a program may have put its own in their places.
        """
        super().begin(number, n_readers)
        old = image_dataset._read_image_as_array, image_dataset._postprocess_image
        if all(getattr(each, "__globals__", None) is vars(image_dataset) for each in old):
            image_dataset._read_image_as_array = _read_image
            image_dataset._postprocess_image = _in_planes


def gives_plain_images(dataset: Any) -> bool:
    """Return whether images go from Chainer's datasets to the mini-batch past no other code.

    That of a subclass is other code.
    """
    kind = type(dataset)
    if "get_example" in getattr(dataset, "__dict__", ()):
        return False
    if kind is chainer_datasets.SubDataset:
        return gives_plain_images(dataset._dataset)
    if kind is chainer_datasets.ConcatenatedDataset:
        return all(map(gives_plain_images, dataset._datasets))
    if kind is chainer_datasets.TupleDataset:
        parts = [part for part in dataset._datasets if type(part) not in _PLAIN]
        return bool(parts) and all(map(gives_plain_images, parts))
    return kind in _OF_IMAGES


def _read_image(file: Any, dtype: Any) -> Any:
    """Do what Chainer's function does, but for the copy of a decoded image."""
    with contextlib.closing(Image.open(file)) as image:
        # With another alignment there may be gaps between rows, which Arrow's interface conceals.
        if np.dtype(dtype) == DecodedImage.dtype and _imaging.get_alignment() == 1:
            image.load()
            decoded = DecodedImage.of(image)
            if decoded is not None:
                return decoded
        return np.asarray(image, dtype=dtype)


_postprocess = image_dataset._postprocess_image


def _in_planes(image: Any) -> Any:
    return image if type(image) is DecodedImage else _postprocess(image)
