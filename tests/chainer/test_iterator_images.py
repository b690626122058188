"""What Chainer's image datasets give is the same, byte for byte, however images become arrays."""

from __future__ import annotations

import importlib
import textwrap
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chainer
import numpy as np
import pytest
from chainer import datasets as d
from chainer.datasets import image_dataset
from PIL import Image

from overlapiter import OverlapIterator, Staging
from overlapiter.chainer import images
from overlapiter.chainer.images import gives_plain_images
from overlapiter.sharedmem.images import DecodedImage, _planes

N_IMAGES = 12
MODES = ["RGB", "RGB", "L", "RGB", "RGBA", "CMYK"]


def save_images(root: Path, modes: list[str], sizes: list[tuple[int, int]]) -> list[str]:
    """Save images of these modes and sizes, in turn, in two formats; return their names."""
    random = np.random.default_rng(0)
    names = []
    for number in range(N_IMAGES):
        mode, (width, height) = modes[number % len(modes)], sizes[number % len(sizes)]
        pixels = random.integers(0, 256, (height, width, 3), np.uint8)
        name = f"{number}.tif" if number % 3 == 2 else f"{number}.jpg"
        if mode == "RGBA":
            name = f"{number}.png"
        Image.fromarray(pixels).convert(mode).save(root / name)
        names.append(name)
    return names


def zipped(root: Path, names: list[str]) -> Any:
    with zipfile.ZipFile(root / "all.zip", "w") as file:
        for name in names:
            file.write(root / name, name)
    return d.ZippedImageDataset(str(root / "all.zip"))


def labeled(root: Path, names: list[str], **options: Any) -> Any:
    pairs = [(name, number) for number, name in enumerate(names)]
    return d.LabeledImageDataset(pairs, str(root), **options)


PLAIN: dict[str, Callable[[Path, list[str]], Any]] = {
    "images": lambda root, names: d.ImageDataset(names, str(root)),
    "labeled": labeled,
    "labeled, uint8": lambda root, names: labeled(root, names, dtype=np.uint8),
    "labeled, float16": lambda root, names: labeled(root, names, dtype=np.float16),
    "zipped": zipped,
    "part": lambda root, names: d.SubDataset(labeled(root, names), 1, 9, [*range(11, -1, -1)]),
    "joined": lambda root, names: d.ConcatenatedDataset(labeled(root, names), labeled(root, names)),
    "tuple": lambda root, names: d.TupleDataset(
        d.ImageDataset(names, str(root)), np.arange(N_IMAGES), [*map(str, range(N_IMAGES))]
    ),
}


def assert_same(found: Any, wanted: Any) -> None:
    assert type(found) is type(wanted)
    if isinstance(wanted, tuple):
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    elif isinstance(wanted, np.ndarray):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert np.ascontiguousarray(found).tobytes() == np.ascontiguousarray(wanted).tobytes()
    else:
        assert found == wanted


def assert_same_batches(dataset: Any, **options: Any) -> None:
    overlap = OverlapIterator(dataset, 4, repeat=False, shuffle=False, n_processes=2, **options)
    found = [example for batch in overlap for example in batch]
    overlap.finalize()
    for example, index in zip(found, range(len(dataset)), strict=True):
        assert_same(example, dataset[index])


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("sizes", [[(40, 30)], [(40, 30), (50, 60)]], ids=["even", "uneven"])
@pytest.mark.parametrize("modes", [["RGB"], MODES], ids=["rgb", "mixed"])
def test_examples_are_those_of_the_dataset(
    tmp_path: Path, name: str, sizes: list[tuple[int, int]], modes: list[str]
) -> None:
    dataset = PLAIN[name](tmp_path, save_images(tmp_path, modes, sizes))
    assert gives_plain_images(dataset)
    assert_same_batches(dataset)


def test_staged_images_are_the_same(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    dataset = labeled(source, save_images(source, ["RGB"], [(40, 30)]))
    staging = Staging(tmp_path / "staging", source=source, keep_free=0)
    assert_same_batches(dataset, staging=staging)
    assert_same_batches(dataset, staging=staging)  # of which all is staged now


@pytest.mark.skipif(_planes is None, reason="no compiler, or OVERLAPITER_NO_C")
def test_images_are_not_copied_between_pillow_and_the_mini_batch(tmp_path: Path) -> None:
    names = save_images(tmp_path, ["RGB"], [(41, 30)])
    image = images._in_planes(images._read_image(tmp_path / names[0], np.float32))
    assert type(image) is DecodedImage
    wanted = np.asarray(Image.open(tmp_path / names[0]), np.float32).transpose(2, 0, 1)
    assert (np.asarray(image) == wanted).all()


def test_rows_of_pixels_with_gaps_between_them_are_right(
    tmp_path: Path,
) -> None:
    names = save_images(tmp_path, ["RGB"], [(41, 30)])
    before = Image.core.get_alignment()
    Image.core.set_alignment(64)
    try:
        array = images._read_image(tmp_path / names[0], np.float32)
    finally:
        Image.core.set_alignment(before)
    assert type(array) is np.ndarray
    assert (array == np.asarray(Image.open(tmp_path / names[0]), np.float32)).all()


def failure_of(function: Callable[[], object]) -> OSError:
    try:
        function()
    except OSError as error:
        return error
    raise AssertionError("it did not fail")


def skipping_to(iterator: OverlapIterator, index: int) -> OverlapIterator:
    while iterator.current_position < index:
        next(iterator)
    return iterator


def test_what_fails_fails_as_in_chainer(tmp_path: Path) -> None:
    names = save_images(tmp_path, ["RGB"], [(400, 300)])
    whole = (tmp_path / names[0]).read_bytes()
    (tmp_path / names[0]).write_bytes(whole[: len(whole) // 2])
    (tmp_path / names[1]).write_bytes(b"no image")
    (tmp_path / names[3]).unlink()
    dataset = labeled(tmp_path, names)
    iterator = OverlapIterator(dataset, 1, repeat=False, shuffle=False, n_processes=1)
    for index in (0, 1, 3):
        wanted = failure_of(lambda index=index: dataset[index])
        found = failure_of(lambda index=index: next(skipping_to(iterator, index)))
        assert (type(found), str(found)) == (type(wanted), str(wanted))
        assert names[index] in str(found.__cause__)
    iterator.finalize()


class Brightened(d.LabeledImageDataset):
    """A user's own subclass, whose code needs an array."""

    def get_example(self, i: int) -> Any:
        image, label = super().get_example(i)
        image += 1
        return image[:, ::-1], label


def cropped(example: Any) -> Any:
    image, label = example
    return image[:, 3:20, 4:30][:, :, ::-1], label


@pytest.mark.parametrize("kind", ["subclass", "transformed", "part of a subclass", "dictionary"])
def test_code_of_others_gets_arrays(tmp_path: Path, kind: str) -> None:
    names = save_images(tmp_path, ["RGB"], [(40, 30)])
    pairs = [(name, number) for number, name in enumerate(names)]
    own = Brightened(pairs, str(tmp_path))
    dataset = {
        "subclass": own,
        "transformed": d.TransformDataset(labeled(tmp_path, names), cropped),
        "part of a subclass": d.SubDataset(own, 0, 8),
        "dictionary": chainer.datasets.DictDataset(image=d.ImageDataset(names, str(tmp_path))),
    }[kind]
    assert not gives_plain_images(dataset)
    if kind != "dictionary":
        assert_same_batches(dataset)


def test_a_reading_function_that_a_program_has_replaced_is_the_one_that_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = """
        import numpy
        from chainer.datasets import image_dataset

        class Label(int):
            pass

        image_dataset._read_image_as_array = lambda file, dtype: numpy.ones((3, 4, 3), dtype)
    """
    (tmp_path / "replacing.py").write_text(textwrap.dedent(module))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(image_dataset, "_read_image_as_array", None)  # to be there again later
    labels = [importlib.import_module("replacing").Label(n) for n in range(N_IMAGES)]
    names = save_images(tmp_path, ["RGB"], [(40, 30)])
    dataset = d.TupleDataset(d.ImageDataset(names, str(tmp_path)), labels)
    assert gives_plain_images(dataset)
    assert_same_batches(dataset)
    assert dataset[0][0].shape == (3, 3, 4)
