"""Datasets and functions for the loaders to be compared; the workers import them by name."""

from __future__ import annotations

import collections
import ctypes
import os
import random
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import data


class Pair(NamedTuple):
    """An example with names."""

    image: torch.Tensor
    label: int


class OpenedInC(data.Dataset):
    """Files that the C library opens, which nobody sees."""

    def __init__(self, paths: list[str]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> int:
        libc = ctypes.CDLL(None)
        fd = libc.open(self.paths[index].encode(), os.O_RDONLY)
        assert fd >= 0
        os.close(fd)
        return index


class Made(data.Dataset):
    """Examples of one shape, made by a function of this module.

    Args:
        kind: Its name.
        n: Examples.
    """

    def __init__(self, kind: str, n: int = 11) -> None:
        self.kind = kind
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return MAKERS[self.kind](index)


class Custom:
    """Something that PyTorch's default collation refuses."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Custom) and self.value == other.value

    __hash__ = None  # type: ignore[assignment]


class Locked(Custom):
    """The same, but cannot be pickled."""

    def __init__(self, value: int) -> None:
        super().__init__(value)
        self.lock = threading.Lock()


class Marked(torch.Tensor):
    """A tensor of the user's."""


class Unmarked(torch.Tensor):
    """One of the user's whose results are plain, as torchvision's."""

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # as its documentation has it


class Several(list):  # type: ignore[type-arg]  # of anything
    """A list of the user's."""


def drawn(_index: int) -> tuple[float, float, torch.Tensor]:
    return random.random(), float(np.random.random()), torch.rand(2)


MAKERS = {
    "tensor": lambda i: torch.full((2, 3), float(i)),
    "scalar tensor": lambda i: torch.tensor(i),
    "empty tensor": lambda _: torch.empty(0, 3),
    "bfloat16": lambda i: torch.full((3,), i, dtype=torch.bfloat16),
    "float8": lambda i: torch.full((3,), i, dtype=torch.float32).to(torch.float8_e4m3fn),
    "strided": lambda i: torch.arange(6).reshape(2, 3).t() + i,
    "array": lambda i: np.full((3, 2), i, np.uint8),
    "0-d array": lambda i: np.array(i, np.int16),
    "NumPy number": lambda i: np.float32(i),
    "bool": lambda i: i % 2 == 0,
    "int": lambda i: i,
    "float": lambda i: i / 3,
    "complex array": lambda i: np.full(2, 1j * i),
    "mixed numbers": lambda i: i if i % 2 else i / 2,
    "large int": lambda i: 2**62 + i,
    "string": lambda i: f"example {i}",
    "bytes": lambda i: b"%d" % i,
    "tuple": lambda i: (torch.ones(2) * i, i),
    "list": lambda i: [torch.ones(2) * i, float(i)],
    "dict": lambda i: {"image": torch.ones(2) * i, "label": i, "name": str(i)},
    "ordered dict": lambda i: collections.OrderedDict(b=torch.ones(2) * i, a=i, name=str(i)),
    "namedtuple": lambda i: Pair(torch.ones(2) * i, i),
    "nested": lambda i: ({"a": [i, (np.ones(2) * i, "x")]}, [Pair(torch.ones(1), i)], 0.5),
    "empty tuple": lambda _: (),
    "drawn": drawn,
    "tensors of two types": lambda i: torch.ones(2, dtype=torch.float64 if i % 2 else None),
    "arrays of two types": lambda i: np.ones(2, np.float64 if i % 2 else np.float32),
    "subclass": lambda i: torch.full((2,), i).as_subclass(Marked),
    "plain when stacked": lambda i: torch.full((2,), i).as_subclass(Unmarked),
    "list subclass": lambda i: Several([i, torch.ones(2)]),
    "of keys in turn": lambda i: {"a": i, "b": 2 * i} if i % 2 else {"b": 2 * i, "a": i},
    "ordered keys in turn": lambda i: collections.OrderedDict(
        {"a": i, "b": 2 * i} if i % 2 else {"b": 2 * i, "a": i}
    ),
    # Which PyTorch refuses.
    "a tensor, then none": lambda i: torch.tensor(i) if i % 2 == 0 else i,
    "sparse": lambda _: torch.eye(2).to_sparse(),
    "with a gradient": lambda _: torch.ones(2, requires_grad=True),
    "None": lambda i: (i, None),
    "unequal tensors": lambda i: torch.ones(i + 1),
    "unequal lists": lambda i: [0] * (i + 1),
    "custom": Custom,
    "locked": Locked,
    "object array": lambda i: np.array([i, "a"], object),
    "string array": lambda i: np.array([str(i)]),
    "date": lambda i: np.datetime64("2026-01-01") + np.timedelta64(i, "D"),
}


class TwoArguments(Exception):
    """An exception that cannot be made of a text alone."""

    def __init__(self, one: int, other: int) -> None:
        super().__init__(f"{one} and {other}")


class Failing(data.Dataset):
    """Raises at some examples.

    Args:
        error: What to raise there.
        bad: Which ones.
    """

    def __init__(self, error: BaseException, bad: tuple[int, ...] = (5,)) -> None:
        self.error = error
        self.bad = bad

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        if index in self.bad:
            raise self.error
        return index


class TwoArgumentsAt5(Failing):
    """Raises what cannot be pickled, either."""

    def __init__(self) -> None:
        super().__init__(KeyError())

    def __getitem__(self, index: int) -> int:
        if index == 5:
            raise TwoArguments(1, 2)
        return index


class Whole(data.Dataset):
    """Gives several examples at once, by a way of its own."""

    def __len__(self) -> int:
        return 11

    def __getitem__(self, index: int) -> int:
        return -index

    def __getitems__(self, indices: list[int]) -> list[int]:
        return [index + 100 * len(indices) for index in indices]


class FailingNamed(Failing):
    """Gives each example with its name."""

    def __getitem__(self, index: int) -> tuple[int, str]:
        return super().__getitem__(index), f"{index}"


class Breaking(Whole):
    """Raises or ends its reader at some examples, whether it gives them alone or with others.

    Args:
        end: Called there with the index.
    """

    def __init__(self, end: Any) -> None:
        self.end = end

    def __getitems__(self, indices: list[int]) -> list[int]:
        for index in indices:
            if index in (2, 7):
                self.end(index)
        return indices


class Together(Whole):
    """Gives several examples at once, as something else than a list.

    Args:
        kind: What: a function of this module, or a type.
    """

    def __init__(self, kind: Any) -> None:
        self.kind = kind

    def __getitems__(self, indices: list[int]) -> Any:
        return self.kind(indices)


def columns(indices: list[int]) -> dict[str, Any]:
    return {"index": torch.tensor(indices), "drawn": random.random()}


def drawn_together(indices: list[int]) -> list[Any]:
    return [(index, *drawn(index)) for index in indices]


def described(keys: Any) -> list[str]:
    return [f"{type(keys).__name__} {keys}"]


def tensors(indices: list[int]) -> list[torch.Tensor]:
    return [torch.tensor([index]) for index in indices]


def nothing(_indices: list[int]) -> list[int]:
    return []


class Keyed(data.Dataset):
    """Has keys that are no numbers."""

    def __getitem__(self, key: Any) -> str:
        return f"{type(key).__name__} {key}"


class Given(data.Dataset):
    """Holds its examples.

    Args:
        examples: These.
    """

    def __init__(self, examples: list[Any]) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, index: int) -> Any:
        return self.examples[index]


class Sized(data.Dataset):
    """Says that it has so many examples.

    Args:
        size: How many; an exception class to raise that.
    """

    def __init__(self, size: Any) -> None:
        self.size = size

    def __len__(self) -> int:
        if isinstance(self.size, type):
            raise self.size("endless")
        return int(self.size)

    def __getitem__(self, index: int) -> int:
        return index


class Wrapping(data.Dataset):
    """Has the attributes of another dataset."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, index: int) -> Any:
        return self.inner[index]


class Mended(Wrapping):
    """The same, but can be unpickled."""

    def __getattr__(self, name: str) -> Any:
        if name == "inner":
            raise AttributeError(name)
        return super().__getattr__(name)


class Refusing(data.Dataset):
    """Has keys that are lists, and does not take one of them.

    Args:
        key: That one.
        end: Called then; None to raise.
    """

    def __init__(self, key: Any, end: Any = None) -> None:
        self.key = key
        self.end = end

    def __len__(self) -> int:
        return 3

    def __getitem__(self, key: Any) -> Any:
        if list(key) == self.key:
            (self.end or refuse_always)()
        return key[0]


class OneWay:
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> Any:
        return refuse_always, ()


def refuse_always() -> None:
    raise LookupError("one way")


def one_way(_examples: Any) -> OneWay:
    return OneWay()


def in_odd_mini_batches(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor; LookupError in every other mini-batch of four."""
    if int(tensor.flatten()[0]) % 8 == 0:
        raise LookupError("even")
    return tensor


class Odd(Pair):
    """A pair that every other mini-batch of four cannot be collated to."""

    def __new__(cls, first: Any, second: Any) -> Odd:
        """Refuse when the second one is not a number any more."""
        if isinstance(second, torch.Tensor):
            in_odd_mini_batches(second)
        return super().__new__(cls, first, second)


class OddPairs(data.Dataset):
    """Gives such pairs."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Odd:
        return Odd(torch.full((1000,), index), index)


class OddBatch:
    """Its tensor, where it is unpickled; every other one cannot be."""

    def __init__(self, examples: list[Odd]) -> None:
        self.tensor = torch.stack([first for first, _ in examples])

    def __reduce__(self) -> Any:
        return in_odd_mini_batches, (self.tensor,)


class Counting(data.Dataset):
    """Counts how often this copy of it was asked."""

    def __init__(self) -> None:
        self.offset = 0
        self.n_asked = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.n_asked += 1
        return self.offset + index, self.n_asked


class Informed(data.Dataset):
    """Tells which worker it is in."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, Any]:
        info = data.get_worker_info()
        assert info is not None
        return {
            "worker": (info.id, info.num_workers, info.seed),
            "is own": info.dataset is self,
            "threads": torch.get_num_threads(),
            "prepared": getattr(self, "prepared", -1),
            "process": os.getpid(),
        }


def prepare(worker: int) -> None:
    info = data.get_worker_info()
    assert info is not None
    info.dataset.prepared = 10 * worker + torch.randint(10, ()).item()


def forbid_dev_shm(_worker: int) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("/dev/shm")

    torch.TypedStorage._new_shared = refuse


def refuse(worker: int) -> None:
    raise ValueError(f"worker {worker} refuses")


class Slow(data.Dataset):
    """Takes long for an example."""

    def __init__(self, n: int = 8, at: int = 0, seconds: float = 60.0) -> None:
        self.n = n
        self.at = at
        self.seconds = seconds

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> int:
        if index == self.at:
            time.sleep(self.seconds)
        return index


class Images(data.Dataset):
    """Reads files, which it does not declare.

    Args:
        folder: Where they are; their names are numbers.
        n: How many there are.
        draws: Whether it adds random numbers.
    """

    def __init__(self, folder: Path, n: int, *, draws: bool = False) -> None:
        self.folder = folder
        self.n = n
        self.draws = draws

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, torch.Tensor]:
        with open(self.folder / f"{index:05}.jpg", "rb") as file:
            content = file.read()
        noise = torch.rand(3) + random.random() + np.random.random()
        sums = torch.tensor([len(content), sum(content)])
        return sums, index, noise if self.draws else torch.zeros(3)


class ImagesAtOnce(Images):
    """Gives several examples at once; each that is asked for alone leaves a folder."""

    def __getitem__(self, index: int) -> Any:
        example = super().__getitem__(index)
        (self.folder.parent / "alone" / str(index)).mkdir(parents=True, exist_ok=True)
        return example

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [Images.__getitem__(self, index) for index in indices]


class Prepared(Images):
    """Cannot be asked before ``worker_init_fn`` was called."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, torch.Tensor]:
        info = data.get_worker_info()
        assert info is not None
        assert info.dataset.prepared >= 0
        return super().__getitem__(index)


class Batch:
    """What a ``collate_fn`` may return: an object with tensors in it, and memory to lock."""

    def __init__(self, examples: list[Any]) -> None:
        self.images = torch.stack([torch.as_tensor(example[0]) for example in examples])
        self.names = [str(example[1]) for example in examples]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Batch)
            and torch.equal(self.images, other.images)
            and self.names == other.names
        )

    __hash__ = None  # type: ignore[assignment]


def padded(examples: list[Any]) -> dict[str, Any]:
    lengths = [len(example) for example in examples]
    values = torch.nn.utils.rnn.pad_sequence(list(examples), batch_first=True)
    return {"values": values, "lengths": lengths, "process": data.get_worker_info() is not None}


def registered(batch: Any, *, collate_fn_map: Any) -> Any:
    values = [getattr(each, "value", each) for each in batch]
    info = data.get_worker_info()
    return values, -1 if info is None else info.id, torch.rand(2), len(collate_fn_map)


def noisy(examples: Any) -> dict[str, Any]:
    noise = random.random(), float(np.random.random()), torch.rand(2)
    return {"examples": data.default_collate(examples), "noise": noise}


def to_list(examples: list[Any]) -> list[Any]:
    return list(examples)


def to_arrays(examples: list[Any]) -> tuple[Any, ...]:
    return np.stack([np.asarray(e) for e in examples]), np.float32(len(examples)), "text", None


def fail_to_collate(examples: list[Any]) -> Any:
    raise LookupError(f"cannot collate {len(examples)}")


def turned(_examples: list[Any]) -> tuple[Any, ...]:
    image = torch.arange(120).reshape(2, 3, 4, 5)
    rows = image[:, 0].to(torch.bfloat16).permute(2, 0, 1)
    arrays = [image.numpy().T, image.numpy().transpose(1, 3, 0, 2), image.numpy()[..., ::-1]]
    return image.contiguous(memory_format=torch.channels_last), rows, arrays


def other_memory(_examples: list[Any]) -> tuple[Any, ...]:
    records = np.array(["2019-12-05"], "M8[D]"), np.zeros(2, "i4,f8"), np.array([1, "a"], object)
    parts = torch.arange(6, dtype=torch.bfloat16)[2:4], torch.full((3,), 1j)
    return np.frombuffer(b"read only", np.uint8), np.empty((0, 2)), records, parts


def twice(_examples: list[Any]) -> dict[str, Any]:
    tensor, array = torch.ones(3), np.ones(3)
    return {"a": tensor, "b": [tensor, array], "c": array}


def same(examples: Any) -> Any:
    return examples


class Doubling(data.Sampler[int]):
    """A sampler of the user's, which draws from PyTorch's generator when it is iterated over."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.n_begun = 0

    def __iter__(self) -> Any:
        self.n_begun += 1
        return iter(torch.randperm(self.n).tolist() * 2)

    def __len__(self) -> int:
        return 2 * self.n


class Own(data.Sampler[int]):
    """A sampler of the user's, whose attributes are not what PyTorch's samplers have there."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(1)
        self.epoch = self.num_replicas = None
        self.sampler = self

    def __iter__(self) -> Any:
        return iter(self.generator.permutation(7).tolist())

    def __len__(self) -> int:
        return 7


class Sizes(data.Sampler[list[int]]):
    """A batch sampler whose mini-batches grow."""

    def __iter__(self) -> Any:
        start = 0
        for size in (1, 3, 2, 5):
            yield list(range(start, start + size))
            start += size


class Stumbling(data.Sampler[list[int]]):
    """A batch sampler that raises once, amid its second epoch.

    Args:
        error: Its class.
    """

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error
        self.n_begun = 0

    def __iter__(self) -> Any:
        self.n_begun += 1
        yield [0, 1]
        if self.n_begun == 2:
            raise self.error()
        yield from ([2, 3], [4, 5])


class Hesitating(data.Sampler[list[int]]):
    """A batch sampler that raises once amid an epoch, and then goes on."""

    def __iter__(self) -> Any:
        self.n_asked = 0
        return self

    def __next__(self) -> list[int]:
        self.n_asked += 1
        if self.n_asked == 6:
            raise LookupError
        number = self.n_asked - (self.n_asked > 6)
        if number > 9:
            raise StopIteration
        return [number]
