"""What PyTorch adds to the work of a file reader: tensors, collation, seeds, worker info.

It does not import PyTorch: where the dataset does not either, a file reader starts a second sooner.
"""

from __future__ import annotations

import collections
import functools
import io
import pickle
import random
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from overlapiter.errors import described
from overlapiter.importhook import when_imported
from overlapiter.sharedmem.layout import Structure
from overlapiter.sources import Dataset, Key
from overlapiter.workers.reader.face import Face

#: Types of elements that NumPy has and PyTorch, too, so that an array becomes a tensor as it is.
SHARED_DTYPES = frozenset(
    np.dtype(name)
    for name in (
        *("bool", "uint8", "int8", "int16", "int32", "int64"),
        *("uint16", "uint32", "uint64", "float16", "float32", "float64"),
        *("complex64", "complex128"),
    )
)
#: Element types that NumPy lacks travel as integers of their size.
_RAW_TYPES = {1: "uint8", 2: "int16", 4: "int32"}


class Renewal(NamedTuple):
    """What the processes of an epoch are told."""

    base_seed: int  # from which PyTorch derives the seeds of its workers
    default_dtype: str  # name of the type of elements that PyTorch gives tensors by default


class RemoteError(Exception):
    """An exception of a file reader on its way to the trainer, which raises it as PyTorch does.

    Its arguments are its class; its traceback; and in which worker it was raised, empty for the one
    that was to make the mini-batch.
    """

    @classmethod
    def of(cls, error: BaseException, where: str = "") -> RemoteError:
        """Return what travels of an exception."""
        return cls(type(error), described(error)[1], where)


class TorchFace(Face):
    """Has file readers work as the workers of PyTorch's DataLoader.

    Args:
        dataset: The dataset.
        collate_fn: Makes a mini-batch of examples; None for PyTorch's default.
        worker_init_fn: Called with the number of the worker; may be None.
        is_batched: Whether an index list is a mini-batch, and not one example.
        deals_in_turn: Whether mini-batches are dealt to the workers as PyTorch does.
    """

    def __init__(
        self,
        dataset: Dataset,
        collate_fn: Callable[[Any], Any] | None,
        worker_init_fn: Callable[[int], None] | None,
        *,
        is_batched: bool,
        deals_in_turn: bool,
    ) -> None:
        super().__init__(dataset)
        self.collate_fn = collate_fn
        self.worker_init_fn = worker_init_fn
        self.is_batched = is_batched
        self.deals_in_turn = deals_in_turn
        self.fetches_whole = is_batched and fetches_whole(dataset)
        self.collates = collate_fn is not None or self.fetches_whole
        self._number = -1
        self._words: bytes | None = None  # of the example that is read

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Learn, in the workers, which files the dataset's classes read."""
        vars(self).update(state)
        if "torch" in sys.modules:  # else they are none of its
            from overlapiter.torch.datasets import register_known

            register_known()

    def begin(self, number: int, n_readers: int) -> None:
        """Seed this process, set ``get_worker_info()`` and call ``worker_init_fn``."""
        self._number = number
        base_seed = self.renewal.base_seed
        random.seed(base_seed + number)
        words = [number, base_seed & 0xFFFFFFFF, base_seed >> 32, 0]  # as PyTorch takes them
        np.random.seed(np.random.SeedSequence(words).generate_state(4))
        when_imported("torch", lambda _module, _is_complete: self._begin_torch(n_readers))
        if self.worker_init_fn is not None:
            self.worker_init_fn(number)

    def _begin_torch(self, n_readers: int) -> None:
        import torch
        from torch.utils.data import _utils

        torch.set_num_threads(1)
        torch.set_default_dtype(getattr(torch, self.renewal.default_dtype))
        seed = self.renewal.base_seed + self._number
        torch.manual_seed(seed)
        if self._words is not None:
            seed_torch(self._words)
        _utils.worker._worker_info = _utils.worker.WorkerInfo(
            id=self._number, num_workers=n_readers, seed=seed, dataset=self.dataset
        )

    def seed_example(self, seed: int, epoch: int, index: int) -> bytes:
        """Seed ``torch.random`` besides."""
        self._words = more = super().seed_example(seed, epoch, index)
        if "torch" in sys.modules:
            seed_torch(more)
        return more

    def fetch_whole(self, indices: list[Any]) -> Any:
        """Return what ``__getitems__`` gives: any type that is collated.

        It gets the indices; or, of one key that is there for all of them, what that stands for.
        """
        dataset: Any = self.dataset
        whole = indices[0]
        return dataset.__getitems__(whole.value() if isinstance(whole, Key) else indices)

    def take_apart(self, example: object) -> tuple[Structure, list[Any]]:
        """Return an example's structure and leaves, or those of a collated mini-batch."""
        leaves: list[Any] = []
        return (_pickled if self.collates else _walk)(example, leaves), leaves

    def collate(self, examples: Any) -> object:
        """Call ``collate_fn`` as PyTorch does."""
        if self.collate_fn is None:
            from overlapiter.torch.collation import Collation

            return Collation()(examples)  # PyTorch's own uses /dev/shm here, for nothing
        return self.collate_fn(examples if self.is_batched else examples[0])

    def failure(self, error: BaseException) -> BaseException:
        """Wrap what the trainer is to raise as PyTorch does; the rest keeps its own way."""
        if not isinstance(error, Exception) or isinstance(error, StopIteration):
            return error
        return RemoteError.of(error, f"in DataLoader worker process {self._number}")


def seed_torch(words: bytes) -> None:
    """Set ``torch.random`` to a state that follows from 16 bytes alone."""
    import torch

    torch.default_generator.manual_seed(int.from_bytes(words[:8], "little") >> 1)


def is_tensor(thing: object) -> bool:
    """Return whether something is a plain tensor: there is none where PyTorch is not imported."""
    torch = sys.modules.get("torch")
    return torch is not None and type(thing) is torch.Tensor


def fetches_whole(dataset: Any) -> bool:
    """Return whether a dataset has a way of its own to give several examples at once."""
    import torch

    while type(dataset) is torch.utils.data.Subset:  # it passes that on
        dataset = dataset.dataset
    return bool(getattr(dataset, "__getitems__", None))


# --- examples, one row each -------------------------------------------------------------------


def _walk(node: Any, leaves: list[Any]) -> Structure:
    """Return the structure of an example for PyTorch's default collation.

    The leaves that collate to tensors are arrays in ``leaves``; their kind says what they were.
    """
    kind = type(node)
    if is_tensor(node):
        return _tensor_leaf(node, leaves)
    if kind is tuple or kind is list:
        return (kind.__name__, None, tuple([_walk(child, leaves) for child in node]))
    if kind is dict or kind is collections.OrderedDict:
        name = "dict" if kind is dict else kind
        return (name, tuple(node), tuple([_walk(child, leaves) for child in node.values()]))
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return (kind, None, tuple([_walk(child, leaves) for child in node]))
    if _stacks_as_plain(kind):  # type: ignore[arg-type]  # mypy looks at how its instances hash
        return _tensor_leaf(node.as_subclass(sys.modules["torch"].Tensor), leaves)
    return _plain_leaf(node, kind, leaves)


@functools.cache
def _stacks_as_plain(kind: type) -> bool:
    """Return whether this is a subclass of tensors that stack as plain ones do: torchvision's."""
    torch = sys.modules.get("torch")
    if torch is None or not issubclass(kind, torch.Tensor):
        return False
    try:
        stacked = torch.stack([torch.arange(2.0).as_subclass(kind)])
    except Exception:  # the user's code
        return False
    return type(stacked) is torch.Tensor and stacked.tolist() == [[0.0, 1.0]]


def _tensor_leaf(tensor: Any, leaves: list[Any]) -> str:
    import torch

    from overlapiter.torch.memory import RAW, is_dense

    if is_dense(tensor):
        try:
            leaves.append(tensor.resolve_conj().resolve_neg().numpy())
        except TypeError:  # NumPy lacks this type of element
            raw = _RAW_TYPES.get(tensor.element_size())
            if raw is not None:
                leaves.append(tensor.view(getattr(torch, raw)).numpy())
                return RAW + str(tensor.dtype).removeprefix("torch.")
        else:
            return "tensor"
    leaves.append(tensor)
    return "loose"


def _plain_leaf(node: Any, kind: type, leaves: list[Any]) -> str:
    name = "loose"
    if kind is float:
        name, node = "float", np.float64(node)
    elif kind is bool:
        name, node = "bool", np.bool_(node)
    elif kind is int and -(2**63) <= node < 2**63:
        name, node = "int", np.int64(node)
    elif (kind is np.ndarray or isinstance(node, np.generic)) and node.dtype in SHARED_DTYPES:
        name = "array" if kind is np.ndarray else "number"
    leaves.append(node)
    return name


# --- what a collate_fn returns, as one row ----------------------------------------------------


class _CollatedPickler(pickle.Pickler):
    """Pickles anything; buffers stand for tensors and arrays, which it does not look into."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.leaf_of: dict[int, Any] = {}  # by the id of the buffer

    def reducer_override(self, thing: Any) -> Any:
        leaves = [thing]
        if is_tensor(thing):
            kind = _tensor_leaf(thing, leaves)
        elif type(thing) is np.ndarray and not thing.dtype.hasobject:
            kind = "array"
        else:
            return NotImplemented
        if kind == "loose":
            return NotImplemented
        buffer, leaf, axes = pickle.PickleBuffer(bytearray()), leaves[-1], None
        if not leaf.flags.c_contiguous:
            order = sorted(range(leaf.ndim), key=leaf.strides.__getitem__, reverse=True)
            turned = leaf.transpose(order)
            if turned.flags.c_contiguous:  # a user chose channels_last for the sake of speed
                leaf, axes = turned, np.argsort(order).tolist()
        self.leaf_of[id(buffer)] = leaf
        return restored, (buffer, kind, axes)


def restored(leaf: Any, kind: str, axes: list[int] | None) -> Any:
    """Return what a leaf was in a mini-batch; its axes are turned back."""
    array = leaf if axes is None else leaf.transpose(axes)
    if kind == "array":
        return array
    from overlapiter.torch.memory import tensor_of

    return tensor_of(kind, array)


def _pickled(batch: object, leaves: list[Any]) -> Structure:
    """Return the pickle of a mini-batch as its structure; its buffers are the leaves."""
    stream = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []  # in order, those of the user's classes included
    pickler = _CollatedPickler(stream, pickle.HIGHEST_PROTOCOL, buffer_callback=buffers.append)
    pickler.dump(batch)
    for buffer in buffers:
        leaf = pickler.leaf_of.get(id(buffer))
        leaves.append(np.asarray(buffer.raw()) if leaf is None else leaf)
    return (stream.getvalue(), None, ("array",) * len(leaves))
