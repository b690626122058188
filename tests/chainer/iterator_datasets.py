"""Datasets for the tests of the iterator; the processes that read them import this module."""

from __future__ import annotations

import concurrent.futures
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from chainer.datasets import LabeledImageDataset


class Examples:
    """What ``DatasetMixin`` is to an iterator; with it, every program here would import Chainer
    a second time, in its workers.
    """

    def __getitem__(self, index: int) -> Any:
        return self.get_example(index)

    def get_example(self, i: int) -> Any:
        raise NotImplementedError


def numbered_images(folder: Path, n: int) -> LabeledImageDataset:
    """Return ``n`` images of a folder of ``make_images``, each with its index as label."""
    from chainer.datasets import LabeledImageDataset

    return LabeledImageDataset([(f"{i:05}.jpg", i) for i in range(n)], str(folder))


def indices_of(batch: list[Any]) -> list[int]:
    """Return the index of each example of ``numbered_images`` or :class:`Pixels`."""
    return [int(example[1]) for example in batch]


class Values(Examples):
    """Gives ``values[i]``."""

    def __init__(self, values: list[Any]) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def get_example(self, i: int) -> Any:
        return self.values[i]


class Pixels(Examples):
    """Gives ``(array, index)``, where each array follows from its index."""

    def __init__(self, n: int, shape: tuple[int, ...] = (3, 8, 8)) -> None:
        self.n = n
        self.shape = shape

    def __len__(self) -> int:
        return self.n

    def get_example(self, i: int) -> tuple[Any, Any]:
        size = int(np.prod(self.shape))
        values = np.arange(i * 1000, i * 1000 + size, dtype=np.float32)
        return values.reshape(self.shape), np.int32(i)


class Pooled:
    """Gives what a process tells of a pool that each worker makes: its number."""

    pool: concurrent.futures.Executor | None = None

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, _index: int) -> int:
        self.pool = self.pool or concurrent.futures.ProcessPoolExecutor(1)
        return self.pool.submit(os.getpid).result()


class Slow(Pixels):
    """As :class:`Pixels`; each example takes a while."""

    seconds = 0.002

    def get_example(self, i: int) -> tuple[Any, Any]:
        time.sleep(self.seconds)
        return super().get_example(i)


class Augmented(Pixels):
    """Draws from the random streams that datasets commonly use."""

    def get_example(self, i: int) -> tuple[Any, Any]:
        values, index = super().get_example(i)
        return values + np.random.rand(*self.shape).astype(np.float32), index


class Configured(Examples):
    """Gives what Chainer's configuration says where the example is read."""

    def __len__(self) -> int:
        return 8

    def get_example(self, i: int) -> Any:
        import chainer

        dtype = chainer.get_dtype(map_mixed16=np.float64)
        return np.full(2, i, dtype), int(chainer.config.train), chainer.config.augment


class Draws(Examples):
    """Gives what it draws from the two global random streams, and the process.

    After the first example, each process waits until there are two of them.
    """

    def __init__(self, n: int, folder: Path) -> None:
        self.n = n
        self.folder = str(folder)

    def __len__(self) -> int:
        return self.n

    def get_example(self, _: int) -> tuple[int, int, int]:
        own = Path(self.folder, str(os.getpid()))
        is_first = not own.exists()
        own.touch()
        while not is_first and len(os.listdir(self.folder)) < 2:
            time.sleep(0.001)
        return int(np.random.randint(2**62)), random.getrandbits(62), os.getpid()


class SourceFiles(Examples):
    """Reads one file for each example, without declaring it: the bytes, and the index."""

    def __init__(self, folder: Path, names: list[str]) -> None:
        self.folder = str(folder)
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def get_example(self, i: int) -> tuple[Any, Any]:
        with open(os.path.join(self.folder, self.names[i]), "rb") as file:
            return np.frombuffer(file.read(), np.uint8), np.int32(i)


class DeclaredFiles(SourceFiles):
    """As :class:`SourceFiles`, and says which file an example reads."""

    def source_paths(self, i: int) -> list[str]:
        return [os.path.join(self.folder, self.names[i])]


class FailsToDeclare(DeclaredFiles):
    """As :class:`DeclaredFiles`, but of most examples it cannot say which file they read."""

    def source_paths(self, i: int) -> list[str]:
        if i >= 4:
            raise KeyError(i)
        return super().source_paths(i)


class CustomError(Exception):
    """An exception of the user's with a constructor that pickle does not know how to call."""

    def __init__(self, code: int, *, detail: str) -> None:
        super().__init__(f"code {code}: {detail}")
        self.code = code

    def __reduce__(self) -> Any:
        raise TypeError("this exception stays where it is")


class HomeError(Exception):
    """An exception of the user's that the trainer may not know."""


class MuteError(Exception):
    """An exception of the user's of which nothing works but raising it."""

    def __str__(self) -> str:
        raise ValueError("no words")

    __repr__ = __str__

    @property
    def filename(self) -> str:
        raise SystemExit("nor a file")

    def __reduce__(self) -> Any:
        raise SystemExit("nor a way out")


class Culprit(Pixels):
    """One example does something bad; the others are those of :class:`Pixels`."""

    def __init__(self, n: int, index: int, deed: str) -> None:
        super().__init__(n)
        self.index = index
        self.deed = deed

    def get_example(self, i: int) -> Any:
        if i == self.index:
            return getattr(self, self.deed)(i)
        return super().get_example(i)

    def raises(self, i: int) -> None:
        raise KeyError(f"no example {i}")

    def raises_unpicklable(self, i: int) -> None:
        raise CustomError(i, detail="deep inside")

    def gives_unpicklable(self, i: int) -> Any:
        return threading.Lock(), i

    def exits_hard(self, _: int) -> None:
        os._exit(7)

    def exits_well(self, _: int) -> None:
        os._exit(0)

    def is_killed(self, _: int) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def exits(self, _: int) -> None:
        sys.exit(3)

    def exits_with_words(self, _: int) -> None:
        raise SystemExit("bad")

    def interrupts(self, _: int) -> None:
        raise KeyboardInterrupt

    def closes(self, _: int) -> None:
        raise GeneratorExit

    def stops(self, i: int) -> None:
        raise StopIteration(i)

    def raises_custom(self, _: int) -> None:
        raise HomeError("far away")

    def raises_mute(self, _: int) -> None:
        raise MuteError

    def exits_in_a_thread_of_a_pool(self, i: int) -> None:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            pool.submit(self.exits, i).result()

    def exits_in_a_thread(self, i: int) -> Any:
        thread = threading.Thread(target=sys.exit, args=("bad",))
        thread.start()
        thread.join()
        return super().get_example(i)

    def crashes(self, _: int) -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGSEGV)  # at once, as a real one

    def gives_objects(self, i: int) -> Any:
        return np.array([None, "text", i], dtype=object), i


class DeclaredCulprit(Culprit):
    """As :class:`Culprit`, and says which file an example reads."""

    def __init__(self, n: int, index: int, deed: str, folder: str) -> None:
        super().__init__(n, index, deed)
        self.folder = folder

    def source_paths(self, i: int) -> list[str]:
        return [f"{self.folder}/{i}"]


class Gated(Pixels):
    """One example waits until a file appears."""

    def __init__(self, n: int, index: int, gate: Path) -> None:
        super().__init__(n)
        self.index = index
        self.gate = str(gate)

    def get_example(self, i: int) -> Any:
        while i == self.index and not os.path.exists(self.gate):
            time.sleep(0.005)
        return super().get_example(i)

    def source_paths(self, i: int) -> list[str]:
        return [self.gate] if i == self.index else []


class DiesWhenUnpickled(Pixels):
    """Takes its process down while it is unpickled, once for each file in a folder."""

    def __init__(self, n: int, folder: Path) -> None:
        super().__init__(n)
        self.folder = folder

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for path in self.folder.iterdir():
            path.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
