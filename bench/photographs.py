"""A data set of real photographic content, of any number of different JPEG images.

Every image is a random crop of one of the two sample photographs that scikit-learn ships, with
its own place, scale, flip and brightness, at 256x256 pixels and 20.6 kB on average, about what an
ImageNet image has at that size. The same index gives the same bytes. An incomplete set is
completed, and a complete one is left as it is.
"""

import functools
import io
import os
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from bench.harness.isolated import CHECKOUT
from overlapiter.cli.console import Progress

IMAGE_SIDE = 256
FILES_PER_FOLDER = 1_000
NUM_LABELS = 1_000
#: Gives a mean of 20.6 kB with this recipe.
JPEG_QUALITY = 92
_SEED = 0
#: One folder for each recipe.
PHOTOGRAPHS = CHECKOUT / f".cache/bench/photographs-{IMAGE_SIDE}-{JPEG_QUALITY}-{_SEED}"


class Photographs(NamedTuple):
    """A finished set of images: ``pairs`` of path below ``root`` and label, mean size of a file."""

    root: Path
    pairs: list[tuple[str, int]]
    mean_bytes: float


def relative_path(index: int) -> str:
    """Return the path of image ``index`` below the root: at most 1,000 files in a folder."""
    return f"{index // FILES_PER_FOLDER:04d}/{index:07d}.jpg"


@functools.cache
def load_sources() -> list[Image.Image]:
    """Return the two photographs that all images are cut from."""
    from sklearn.datasets import load_sample_images

    return [Image.fromarray(array) for array in load_sample_images().images]


def encode(index: int) -> bytes:
    """Return image ``index`` as JPEG bytes; a function of the index alone."""
    random, sources = np.random.RandomState([_SEED, index]), load_sources()
    photograph = sources[random.randint(len(sources))]
    side = random.uniform(0.6, 1.0) * min(photograph.size)
    left = random.uniform(0, photograph.width - side)
    top = random.uniform(0, photograph.height - side)
    place = left, top, left + side, top + side
    image = photograph.resize((IMAGE_SIDE, IMAGE_SIDE), Image.BILINEAR, place)
    if random.randint(2):
        image = image.transpose(Image.FLIP_LEFT_RIGHT)
    gain = random.uniform(0.7, 1.2)
    image = image.point([min(int(level * gain), 255) for level in range(256)] * 3)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=JPEG_QUALITY)
    return buffer.getvalue()


def _write_image(root: Path, index: int) -> None:
    path = root / relative_path(index)
    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_suffix(".part")
    unfinished.write_bytes(encode(index))
    unfinished.rename(path)


def make_photographs(root: str | os.PathLike[str], count: int) -> Photographs:
    """Make the images that are missing below ``root`` and return the first ``count`` of the set.

    Blocks for about 2 ms of one core per missing image. There may be more than ``count``.
    """
    root = Path(root)
    root.mkdir(parents=True, exist_ok=True)
    pairs = [(relative_path(index), index % NUM_LABELS) for index in range(count)]
    missing = [index for index, (path, _) in enumerate(pairs) if not (root / path).exists()]
    if missing:
        pool = ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("forkserver"))
        with Progress(len(missing), "images") as progress, pool:
            for _ in pool.map(functools.partial(_write_image, root), missing, chunksize=100):
                progress.advance()
    listed = root / "pairs.txt"
    if not listed.exists() or len(listed.read_text().splitlines()) < count:
        listed.write_text("".join(f"{path} {label}\n" for path, label in pairs))
    mean_bytes = sum((root / path).stat().st_size for path, _ in pairs) / count
    return Photographs(root, pairs, mean_bytes)
