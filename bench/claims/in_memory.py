"""The cost of the loader itself: examples that are in memory already and need no decoding.

``python -m bench gpu`` is ``--device gpu`` with other sizes: mini-batches on their way to a GPU,
page-locked slots beside a copy by the trainer. Compared is what is installed: PyTorch, Chainer with
CuPy, or both.
"""

import ast
import importlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from bench.harness import isolated
from bench.harness.machine import is_installed
from bench.harness.options import CommonOptions, NotPossibleError, option, picked, require
from bench.harness.tables import Wanted

MEANINGS = {
    "overlap-torch": "ours for PyTorch, slots page-locked",
    "overlap-torch-unlocked": "ours for PyTorch, pin_memory=False",
    "torch": "PyTorch's, pin_memory=True",
    "torch-unlocked": "PyTorch's, pin_memory=False",
    "overlap": "OverlapIterator and overlapiter.concat_examples",
    "multiprocess": "MultiprocessIterator and chainer.dataset.concat_examples",
    "control": "a fixed piece of Python code, no loader",
}
_USUAL = {"cpu": [*MEANINGS][-3:], "gpu": [*MEANINGS][:-1]}
#: The options that a run is told.
ASKED = ("device", "examples", "side", "batch_size", "batches", "readers")
_WARM_UP_BATCHES = 20
_SOURCE = "def f(a, b):\n    return [x + 1 for x in a if x > b]\n"
#: Side of the square matrices whose product the step of a GPU repeats.
_SIDE = 4096


class Options(CommonOptions):
    device: str = option("cpu", "where mini-batches go (cpu)", choices=("cpu", "gpu"))
    loaders: list[str] = option([], f"of {', '.join(MEANINGS)}", known=MEANINGS)
    examples: int = option(256, "different examples in memory", quick=8)
    side: int = option(256, "an example has 3 x SIDE x SIDE float32")
    batch_size: int = option(32, "examples in a mini-batch", quick=4)
    batches: int = option(200, "mini-batches of a run", quick=5)
    readers: int = option(2, "file reader processes")
    compute_ms: float = option(40.0, "step in the second half")
    repeats: int = 5

    def check(self) -> None:
        self.loaders = self.loaders or _USUAL[self.device]


class Held:
    """Images in memory, again and again; the label says which one it is."""

    def __init__(self, n_images: int, side: int, n_examples: int) -> None:
        self.images = np.random.default_rng(0).random((n_images, 3, side, side), np.float32)
        self.labels = np.arange(n_images, dtype=np.int32)
        self.images[:, 0, 0, 0] = self.images[:, -1, -1, -1] = self.labels  # a GPU looks there
        self._n_examples = n_examples

    def __len__(self) -> int:
        return self._n_examples

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int32]:
        which = index % len(self.images)
        return self.images[which], self.labels[which]


def timed(batches: Iterator, n_batches: int, step: Callable, synchronize: Callable = bool) -> dict:
    """Take mini-batches, of which the first ones only warm up, and do a step with each.

    Returned are milliseconds for one until ``synchronize`` has returned, and of CPU of this
    process, and ``step_ms``, the list of all.
    """
    ends: list[float] = []
    for position in range(_WARM_UP_BATCHES + n_batches):
        if position == _WARM_UP_BATCHES:
            synchronize()
            start, cpu_start = time.perf_counter(), time.process_time()
        batch = next(batches)
        step(batch)
        ends.append(time.perf_counter())
    synchronize()
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    found = {"batch_ms": seconds / n_batches * 1e3, "trainer_cpu_ms": cpu_seconds / n_batches * 1e3}
    return {**found, "step_ms": (np.diff(ends[-n_batches - 1 :]) * 1e3).round(4).tolist()}


def take(request: dict) -> dict:
    """Time one loader in this process: what :func:`timed` returns, and ``is_same``.

    Where the step is a sleep, ``batch_ms`` is what a mini-batch takes beyond it.
    """
    n_batches, batch_size = request["batches"], request["batch_size"]
    # One is left: a loader that ends its workers is no part of a mini-batch.
    n_examples = (_WARM_UP_BATCHES + n_batches + 1) * batch_size
    dataset = Held(request["examples"], request["side"], n_examples)
    if request["device"] == "gpu":
        step, count_wrong = _step_of_gpu(request)
        found = timed(batches_of(request, dataset), n_batches, step, count_wrong)  # waits for it
        return {**found, "is_same": count_wrong() == 0}
    batches, seconds = batches_of(request, dataset), request["compute_ms"] / 1e3
    found = timed(batches, n_batches, lambda _batch: seconds and time.sleep(seconds))
    found["batch_ms"] -= request["compute_ms"]
    images, labels = map(np.asarray, next(batches))
    is_same = len(images) == batch_size and np.array_equal(images, dataset.images[labels])
    return {**found, "is_same": is_same}


def batches_of(request: dict, dataset: Held) -> Iterator[tuple]:
    """Return mini-batches of images and labels, on the device."""
    if request["loader"] == "control":
        arrays = dataset.images[: request["batch_size"]], dataset.labels[: request["batch_size"]]
        return (arrays for _ in itertools.count() if ast.unparse(ast.parse(_SOURCE)))
    return (_of_torch if "torch" in request["loader"] else _of_chainer)(request, dataset)


def _of_torch(request: dict, dataset: Held) -> Iterator[tuple]:
    """Yield what PyTorch's examples send to the device."""
    import torch

    import overlapiter.torch

    kind = overlapiter.torch if request["loader"].startswith("overlap") else torch.utils.data
    options = {"num_workers": request["readers"]}
    options["pin_memory"] = not request["loader"].endswith("unlocked")
    device = "cuda" if request["device"] == "gpu" else "cpu"
    for arrays in kind.DataLoader(dataset, request["batch_size"], **options):
        yield tuple(array.to(device, non_blocking=True) for array in arrays)


def _of_chainer(request: dict, dataset: Held) -> Iterator[tuple]:
    """Yield what an updater of Chainer sends to the device."""
    import chainer

    import overlapiter

    kind, convert = chainer.iterators.MultiprocessIterator, chainer.dataset.concat_examples
    if request["loader"] == "overlap":
        kind, convert = overlapiter.OverlapIterator, overlapiter.concat_examples
    device = chainer.get_device("@cupy:0") if request["device"] == "gpu" else None
    if device:
        device.use()
    options = {"n_processes": request["readers"], "repeat": False, "shuffle": False}
    with kind(dataset, request["batch_size"], **options) as iterator:
        for batch in iterator:
            yield convert(batch, device)


def _step_of_gpu(request: dict) -> tuple[Callable, Callable[[], int]]:
    """Return a step with a mini-batch, and what waits for all of them and counts wrong examples."""
    of_torch = "torch" in request["loader"]
    xp = importlib.import_module("torch" if of_torch else "cupy")
    place = {"device": "cuda"} if of_torch else {}
    factor = xp.full((_SIDE, _SIDE), 1 / _SIDE, dtype=xp.float32, **place)
    n_products = _products(factor, request["compute_ms"])
    wrong = xp.zeros(1, dtype=xp.int64, **place)

    def step(batch: tuple) -> None:
        nonlocal factor, wrong
        images, labels = batch
        wrong += (images[:, 0, 0, 0] != labels).sum() + (images[:, -1, -1, -1] != labels).sum()
        for _ in range(n_products):
            factor = factor @ factor

    return step, lambda: int(wrong)


def _products(factor: Any, step_ms: float) -> int:
    """Return how many products of matrices take this long on the GPU."""
    for n_products in (5, 20):  # the first ones warm up
        start = time.perf_counter()
        for _ in range(n_products):
            product = factor @ factor
        float(product[0, 0])  # waits for them
        seconds = time.perf_counter() - start
    return round(step_ms / 1e3 / (seconds / n_products))


def frameworks(_request: dict) -> dict:
    """Return the libraries that see a GPU here, of PyTorch and CuPy, and what the GPU is called."""
    names = {}
    if is_installed("torch"):
        cuda = importlib.import_module("torch").cuda
        names |= {"torch": cuda.get_device_name(0)} if cuda.is_available() else {}
    if is_installed("cupy") and is_installed("chainer"):
        cuda = importlib.import_module("cupy").cuda
        if cuda.is_available():
            names["cupy"] = cuda.runtime.getDeviceProperties(0)["name"].decode()
    return {"found": [*names], "gpu": next(iter(names.values()), "")}


def measure(options: Options) -> dict:
    there = {"found": ["torch", "cupy"], "gpu": "the trainer"}
    if options.device == "gpu":
        there = isolated.call(frameworks, {})
    else:
        require(*("torch" if "torch" in name else "chainer" for name in options.loaders))
    if not there["found"]:
        raise NotPossibleError("there is no GPU, or neither PyTorch nor CuPy can use it")
    points = [
        {"loader": loader, "name": f"{loader}, {half}", "compute_ms": compute_ms}
        for half, compute_ms in zip(_HALVES, (0.0, options.compute_ms), strict=True)
        for loader in options.loaders
        if ("torch" if "torch" in loader else "cupy") in there["found"]
    ]
    isolated.call_in_turns(points, options.repeats, take, **picked(options, ASKED))
    megabytes = options.batch_size * 3 * options.side**2 * 4 / 1e6
    return {"points": points, "data": f"mini-batches of {megabytes:.1f} MB to {there['gpu']}"}


def faults(result: dict) -> list[str]:
    """Return which loaders gave other arrays than the examples in memory, as ``is_same`` tells."""
    runs = [(point["loader"], run) for point in result["points"] for run in point["runs"]]
    return [f"{loader}: the arrays are wrong" for loader, run in runs if not run["is_same"]]


_HALVES = ("flat out", "with a step")
_PAIRS = [("PyTorch's", "torch", "overlap-torch"), ("Chainer's", "multiprocess", "overlap")]
TARGETS: list[Wanted] = [
    (f"{words} {name}, {half}", "", None, [f"{loader}, {half}" for loader in pair], key)
    for name, *pair in _PAIRS
    for half in _HALVES
    for words, key in (("times as fast as", "batch_ms"), ("trainer's CPU beside", "trainer_cpu_ms"))
]
_COLUMNS = {
    "": lambda point: MEANINGS[point["loader"]],
    "step, ms": "{compute_ms:g}",
    "ms of a mini-batch": "{batch_ms:.2f}",
    "min to max": "{batch_ms.min:.2f} to {batch_ms.max:.2f}",
    "trainer's CPU, ms": "{trainer_cpu_ms:.2f}",
}
TABLES = {"in-memory": _COLUMNS}
NEEDS = ()  # what the loaders need
