#!/usr/bin/env python3
"""Compute the mean image of a list of labelled images, which train_imagenet.py subtracts."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

import chainer
import numpy as np

import overlapiter

Batches = Iterable[list[tuple[np.ndarray, np.ndarray]]]


def mean_image(batches: Batches) -> np.ndarray:
    """Average pixel by pixel.

    Returns:
        The mean image, shape ``(3, height, width)``, float32.

    Raises:
        ValueError: The images differ in size, or there is none.
    """
    total, n_images = None, 0
    for batch in batches:
        for image, _ in batch:
            if total is None:
                total = np.zeros(image.shape, dtype=np.float64)
            if image.shape != total.shape:
                raise ValueError(
                    f"image {n_images} has shape {image.shape}, those before it "
                    f"{total.shape}; resize the images or use --per_channel"
                )
            total += image
            n_images += 1
    if total is None:
        raise ValueError("the list names no image")
    return (total / n_images).astype(np.float32)


def mean_color(batches: Batches) -> np.ndarray:
    """Average over places too; every image counts the same, whatever its size.

    Returns:
        The mean colour, shape ``(3, 1, 1)``, float32.

    Raises:
        ValueError: There is no image.
    """
    colors = [image.mean(axis=(1, 2), dtype=np.float64) for batch in batches for image, _ in batch]
    if not colors:
        raise ValueError("the list names no image")
    return np.mean(colors, axis=0, dtype=np.float64).astype(np.float32).reshape(-1, 1, 1)


def main() -> None:
    """Compute as the command line says."""
    parser = argparse.ArgumentParser(
        description="Compute the mean image of a list of labelled images.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("list", help="a file of 'path label' lines")
    add("--root", "-R", default=".", help="directory that the paths in the list start from")
    add("--output", "-o", default="mean.npy", help="mean file to write")
    add("--per_channel", action="store_true", help="one number per colour, for mixed image sizes")
    add("--loaderjob", "-j", type=int, help="file reader processes; one per core if not given")
    args = parser.parse_args()

    images = chainer.datasets.LabeledImageDataset(args.list, args.root)
    with overlapiter.OverlapIterator(
        images, 32, repeat=False, shuffle=False, n_processes=args.loaderjob
    ) as batches:
        mean = mean_color(batches) if args.per_channel else mean_image(batches)
    np.save(args.output, mean)


if __name__ == "__main__":
    main()
