"""An image lies in a slot as NumPy would have copied it, however its pixels lay before."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from overlapiter.sharedmem import images
from overlapiter.sharedmem.images import DecodedImage, write

needs_planes = pytest.mark.skipif(images._planes is None, reason="no compiler, or OVERLAPITER_NO_C")
GUARD = 64


@pytest.fixture(params=["c", "numpy"])
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have images copied by the module in C, and without it."""
    if request.param == "numpy":
        monkeypatch.setattr(images, "_planes", None)
    elif images._planes is None:
        pytest.skip("no compiler, or OVERLAPITER_NO_C")


def written(image: np.ndarray | DecodedImage) -> np.ndarray:
    """Return what an image becomes in a row of a slot, between others that stay as they are."""
    memory = np.full(image.nbytes + 2 * GUARD, 77, np.uint8)
    row = memory[GUARD:-GUARD].view(image.dtype).reshape(image.shape)
    write(row, image)
    assert (memory[:GUARD] == 77).all()
    assert (memory[-GUARD:] == 77).all()
    return row.copy()


def views(dtype: str, n_channels: int) -> Iterator[np.ndarray]:
    """Yield views, planes first, of images whose pixels lie in any order."""
    numbers = np.random.default_rng(0).integers(0, 200, (37, 41, n_channels))
    whole = numbers.astype(dtype)
    planes = whole.transpose(2, 0, 1)
    yield planes
    yield planes[:, 3:-4, 5:-6]  # a crop
    yield planes[:, :, ::-1]  # flipped
    yield planes[:, ::-1]
    yield planes[:, ::2, ::3]
    yield planes[::-1]  # BGR to RGB
    yield whole.transpose(2, 1, 0)
    yield np.ascontiguousarray(planes)
    yield np.broadcast_to(planes[:, :, :1], planes.shape)
    if n_channels > 3:
        yield planes[:3]


@needs_planes
@pytest.mark.parametrize("dtype", ["u1", "f4", "f8"])
def test_pixels_of_three_channels_are_split_in_c_however_they_are_turned(dtype: str) -> None:
    is_split = [images._planes.split(np.empty(v.shape, dtype), v) for v in views(dtype, 3)]
    assert is_split == [True] * 5 + [False, True, False, True]


@pytest.mark.usefixtures("_way")
@pytest.mark.parametrize("n_channels", [1, 3, 4])
@pytest.mark.parametrize("dtype", ["u1", "f2", "f4", "f8", ">f4", "c16", "?", "M8[s]"])
def test_every_view_is_copied_as_numpy_does(dtype: str, n_channels: int) -> None:
    for view in views(dtype, n_channels):
        assert written(view).tobytes() == np.ascontiguousarray(view).tobytes()


@pytest.mark.usefixtures("_way")
def test_elements_may_lie_anywhere() -> None:
    memory = np.zeros(40 * 40 * 3 * 4 + 1, np.uint8)[1:].view("f4").reshape(40, 40, 3)
    memory[...] = np.arange(memory.size).reshape(memory.shape)
    assert not memory.flags.aligned
    assert (written(memory.transpose(2, 0, 1)) == memory.transpose(2, 0, 1)).all()


@pytest.mark.usefixtures("_way")
def test_pixels_need_not_be_multiples_of_their_elements_apart() -> None:
    packed = np.zeros((40, 41), [("pixel", "c8", 3), ("more", "f4")])
    packed["pixel"].real = np.arange(40 * 41 * 3).reshape(40, 41, 3)
    view = packed["pixel"].transpose(2, 0, 1)
    assert (written(view) == view).all()


@needs_planes
@given(st.integers(1, 70), st.integers(1, 70), st.booleans(), st.integers(0, 1000))
def test_decoded_images_become_what_numpy_makes_of_them(
    width: int, height: int, is_closed: bool, seed: int
) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    image = Image.open(stream)
    image.load()
    decoded = DecodedImage.of(image)
    assert decoded is not None
    if is_closed:  # the pixels outlive it
        image.close()
    wanted = pixels.transpose(2, 0, 1).astype(np.float32)
    assert (decoded.shape, decoded.dtype, decoded.nbytes) == (
        wanted.shape, wanted.dtype, wanted.nbytes,
    )  # fmt: skip
    assert (written(decoded) == wanted).all()
    assert (np.asarray(decoded) == wanted).all()
    assert np.asarray(decoded, np.float64).dtype == np.float64
    found = pickle.loads(pickle.dumps(decoded))
    assert type(found) is np.ndarray
    assert (found == wanted).all()


@needs_planes
@pytest.mark.parametrize("mode", ["1", "L", "P", "LA", "RGBA", "RGBX", "CMYK", "YCbCr", "I", "F"])
def test_images_of_other_modes_are_left_to_numpy(mode: str) -> None:
    assert DecodedImage.of(Image.new(mode, (8, 8))) is None


@needs_planes
def test_images_in_several_pieces_are_left_to_numpy() -> None:
    large = Image.new("RGB", (4096, 2048))  # Pillow has pieces of 16 MB
    assert DecodedImage.of(large) is None


def test_without_the_module_images_are_left_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "_planes", None)
    assert DecodedImage.of(Image.new("RGB", (8, 8))) is None
    view = np.arange(3 * 40 * 40, dtype="f4").reshape(40, 40, 3).transpose(2, 0, 1)
    assert (written(view) == view).all()
