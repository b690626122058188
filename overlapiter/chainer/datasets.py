"""Which files Chainer's datasets read, and how they are pickled in little space."""

from __future__ import annotations

import bisect
import collections.abc
import contextlib
import os
import pickle
from collections.abc import Sequence
from typing import Any

import chainer
import numpy as np
from chainer import datasets as chainer_datasets

from overlapiter.sources import declared_paths, known_paths, source_root, source_roots
from overlapiter.urls import is_url

# --- files ------------------------------------------------------------------------------------


@known_paths.register(chainer_datasets.ImageDataset)
def _(dataset: Any, index: int) -> list[str]:
    return [os.path.join(dataset._root, dataset._paths[index])]


@known_paths.register(chainer_datasets.LabeledImageDataset)
def _(dataset: Any, index: int) -> list[str]:
    return [os.path.join(dataset._root, dataset._pairs[index][0])]


@known_paths.register(chainer_datasets.ZippedImageDataset)
def _(dataset: Any, _index: int) -> list[str]:
    return [dataset._zipfilename]


@known_paths.register(chainer_datasets.LabeledZippedImageDataset)
def _(dataset: Any, index: int) -> list[str] | None:
    return declared_paths(dataset._zipfile, index)


@known_paths.register(chainer_datasets.MultiZippedImageDataset)
def _(dataset: Any, index: int) -> list[str] | None:
    number = bisect.bisect(dataset._zpaths_accumlens, index) - 1
    return declared_paths(dataset._zfs[number], index - dataset._zpaths_accumlens[number])


@known_paths.register(chainer_datasets.TransformDataset)
def _(dataset: Any, index: int) -> list[str] | None:
    return declared_paths(dataset._dataset, index)


@known_paths.register(chainer_datasets.SubDataset)
def _(dataset: Any, index: int) -> list[str] | None:
    position = (dataset._start if index >= 0 else dataset._finish) + index
    return declared_paths(
        dataset._dataset, position if dataset._order is None else dataset._order[position]
    )


@known_paths.register(chainer_datasets.ConcatenatedDataset)
def _(dataset: Any, index: int) -> list[str] | None:
    for part in dataset._datasets:
        if index < len(part):
            return declared_paths(part, index)
        index -= len(part)
    return []


@known_paths.register(chainer_datasets.TupleDataset)
@known_paths.register(chainer_datasets.DictDataset)
def _(dataset: Any, index: int) -> list[str] | None:
    paths: list[str] = []
    for part in _parts(dataset):
        some = declared_paths(part, index)
        if some is None:  # those of one are not declared, so those of all are not known
            return None
        paths += some
    return paths


def _parts(dataset: Any) -> collections.abc.Iterable[object]:
    parts = dataset._datasets
    return parts.values() if isinstance(parts, dict) else parts


# --- roots ------------------------------------------------------------------------------------


@source_roots.register(chainer_datasets.ImageDataset)
@source_roots.register(chainer_datasets.LabeledImageDataset)
def _(dataset: Any) -> set[str]:
    return {source_root(dataset._root)}


@source_roots.register(chainer_datasets.ZippedImageDataset)
def _(dataset: Any) -> set[str]:
    name = dataset._zipfilename
    return {source_root(os.path.dirname(name if is_url(name) else os.path.abspath(name)))}


@source_roots.register(chainer_datasets.MultiZippedImageDataset)
def _(dataset: Any) -> set[str]:
    return set().union(*map(source_roots, dataset._zfs))


@source_roots.register(chainer_datasets.ConcatenatedDataset)
@source_roots.register(chainer_datasets.TupleDataset)
@source_roots.register(chainer_datasets.DictDataset)
def _(dataset: Any) -> set[str]:
    return set().union(*map(source_roots, _parts(dataset)))


# --- pickling ---------------------------------------------------------------------------------

#: Shorter lists are pickled as they are.
_PACK_FROM = 1000


class _Packed(collections.abc.Sequence):  # type: ignore[type-arg]  # of str or pairs
    """A list in a few arrays, so that forked processes share its memory for good.

    The pages of a million Python objects would be copied, since their reference counts change.
    """

    def __getitem__(self, index: Any) -> Any:
        """Return one element, or a list of them."""
        if isinstance(index, slice):
            return [self._element(i) for i in range(*index.indices(len(self)))]
        return self._element(range(len(self))[index])

    def _element(self, position: int) -> Any:
        raise NotImplementedError


class PackedPaths(_Packed):
    """A list of strings: their bytes, one after another, and where each ends."""

    def __init__(self, paths: Sequence[str]) -> None:
        text = "".join(paths)
        data = text.encode("utf-8", "surrogatepass")
        is_ascii = len(data) == len(text)
        encoded = paths if is_ascii else [p.encode("utf-8", "surrogatepass") for p in paths]
        lengths = map(len, encoded)
        self._data = np.frombuffer(data, np.uint8)
        self._ends = np.cumsum(np.fromiter(lengths, np.int64, len(paths)))

    def __len__(self) -> int:
        """Return the number of paths."""
        return len(self._ends)

    def _element(self, position: int) -> Any:
        start = self._ends[position - 1] if position else 0
        return self._data[start : self._ends[position]].tobytes().decode("utf-8", "surrogatepass")


class PackedPairs(_Packed):
    """A list of (path, label) pairs."""

    def __init__(self, pairs: Sequence[tuple[str, int]]) -> None:
        self._paths = PackedPaths([path for path, _ in pairs])
        self._labels = np.array([label for _, label in pairs], np.int64)

    def __len__(self) -> int:
        """Return the number of pairs."""
        return len(self._paths)

    def _element(self, position: int) -> Any:
        return self._paths[position], int(self._labels[position])


class ZippedImages(chainer_datasets.ZippedImageDataset):
    """Accepts NumPy integers as indices, which order samplers give; Chainer's own fails on them."""

    def get_example(self, i: Any) -> Any:
        """Return an image; ``i`` may be its name in the archive as well."""
        return super().get_example(int(i) if isinstance(i, np.integer) else i)


known_paths.register(ZippedImages, known_paths.dispatch(chainer_datasets.ZippedImageDataset))


class DatasetPickler(pickle.Pickler):
    """Pickles a dataset with the long lists of Chainer's image datasets packed."""

    def reducer_override(self, thing: Any) -> Any:
        """Replace the lists of Chainer's image datasets by packed ones; pickle the rest as is."""
        if thing is chainer.mixed16:  # by its name: a copy of it would be no such type
            return "mixed16"
        if type(thing) not in _PACKABLE:  # the code of a subclass may need a list
            return NotImplemented
        reduced = list(thing.__reduce_ex__(pickle.HIGHEST_PROTOCOL))
        if reduced[1] == (chainer_datasets.ZippedImageDataset,):
            reduced[:2] = object.__new__, (ZippedImages,)
        if len(reduced) > 2 and isinstance(reduced[2], dict):
            reduced[2] = {name: _packed(name, value) for name, value in reduced[2].items()}
        return tuple(reduced)


_PACKABLE = (
    chainer_datasets.ImageDataset,
    chainer_datasets.LabeledImageDataset,
    chainer_datasets.ZippedImageDataset,
    chainer_datasets.LabeledZippedImageDataset,
)


def _packed(name: str, value: Any) -> Any:
    if type(value) not in (list, tuple) or len(value) < _PACK_FROM:
        return value
    if name == "_paths" and set(map(type, value)) == {str}:
        return PackedPaths(value)
    if name == "_pairs" and set(map(type, value)) == {tuple} and set(map(len, value)) == {2}:
        kinds = {type(path) for path, _ in value}, {type(label) for _, label in value}
        if kinds == ({str}, {int}):
            with contextlib.suppress(OverflowError):  # a label of more than 64 bits
                return PackedPairs(value)
    return value
