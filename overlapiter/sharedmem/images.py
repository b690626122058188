"""Images on their way into a slot: channels that lie side by side in a pixel become planes.

A decoder gives pixels, frameworks want planes, and the copy into the slot is where one becomes the
other. NumPy does it, too; a module in C takes half the time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapiter.compiled import compiled

_planes = compiled("overlapiter.sharedmem._planes")

_FLOAT32 = np.dtype(np.float32)

Array = NDArray[Any]


class DecodedImage:
    """An image as Pillow has decoded it, which stands for a float32 array of its planes.

    It becomes that, of shape ``(3, height, width)``, where it is written to a slot, pickled or
    converted by ``numpy.asarray``: each pixel is then read once, from where it was decoded to.

    Args:
        owner: Keeps the pixels alive.
        address: Where they lie: 4 bytes each, of which the fourth does not count.
        height: In pixels.
        width: In pixels.
    """

    dtype = _FLOAT32

    def __init__(self, owner: object, address: int, height: int, width: int) -> None:
        self._owner = owner
        self._address = address
        self.shape = (3, height, width)
        self.nbytes = 3 * height * width * _FLOAT32.itemsize

    @classmethod
    def of(cls, image: Any) -> DecodedImage | None:
        """Return a loaded image of Pillow's; None where its pixels cannot be had, or are others."""
        if _planes is None or image.mode != "RGB" or not hasattr(image, "__arrow_c_array__"):
            return None
        try:
            capsules = image.__arrow_c_array__()
        except ValueError:  # a large image, whose rows lie in several pieces
            return None
        found = _planes.pixels_of(*capsules)
        width, height = image.size
        if found is None or found[1] != height * width:
            return None
        return cls(capsules, found[0], height, width)

    def write_to(self, row: Array) -> None:
        """Write the planes to a contiguous array of this shape and dtype."""
        _planes.convert(row, self._address, self.shape[1] * self.shape[2])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Return a new array of the planes."""
        array: Array = np.empty(self.shape, self.dtype)
        self.write_to(array)
        return array if dtype is None else array.astype(dtype, copy=False)

    def __reduce__(self) -> Any:
        """Pickle as the array that it stands for."""
        return self.__array__().__reduce__()


def write(row: Array, leaf: Array | DecodedImage) -> None:
    """Copy what an example has to a contiguous array of its shape and dtype.

    The module in C takes images of three channels that lie side by side in each pixel.
    """
    if isinstance(leaf, DecodedImage):
        leaf.write_to(row)
    elif row.ndim != 3 or _planes is None or not _planes.split(row, leaf):
        row[...] = leaf
