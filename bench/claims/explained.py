"""Whether `it.explain()` finds a bottleneck, and whether the change brings what it says.

Seven trainings with one bottleneck each run on an emulated store. Beside it, what statistics in
each iteration and a trace cost a training whose readers keep all cores busy.
"""

import contextlib
import dataclasses
import functools
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from bench.harness import isolated
from bench.harness.options import CommonOptions, option, picked
from bench.harness.tables import Rows, interval, median_of
from bench.loaders.files import Heads
from bench.slow.store import SlowStore, attach

#: The published bound: the change brings what was said.
_WITHIN = 0.15
_MOST_COST = {"stats": 0.01, "trace": 0.02}
#: Of the second run, before which it does not count.
_WARM_UP = 0.2


class RequestStore(SlowStore):
    """A store that serves so many files a second, whatever their size: each counts as a byte."""

    def wait_for(self, path: str, _size_bytes: int) -> None:
        super().wait_for(path, 1)


class TimedFiles(Heads):
    """Files, each of which takes a while of a core to decode."""

    def __init__(self, names: list[str], decode_seconds: float) -> None:
        super().__init__([(name, number) for number, name in enumerate(names)], "/")
        self.decode_seconds = decode_seconds

    def _content(self, file: IO[bytes]) -> np.ndarray:
        head, end = super()._content(file), time.process_time() + self.decode_seconds
        while time.process_time() < end:
            pass
        return head


@dataclasses.dataclass(frozen=True)
class Job:
    n_files: int = 400  # of 5 to 35 kB
    batch_size: int = 8
    n_batches: int = 40
    train_seconds: float = 0.0  # for a mini-batch; the trainer sleeps, as one that awaits a GPU
    decode_seconds: float = 0.0  # of a core, for an example
    n_readers: int = 1
    open_seconds: float = 0.001
    bytes_per_second: float = 1e12
    kind_of_store: type[SlowStore] = SlowStore
    is_staging: bool = True
    is_staged: bool = False  # whether all files are there before
    staging: dict[str, Any] = dataclasses.field(default_factory=dict)  # its options
    # What the paragraph says to change, done: fields that are others then.
    change: dict[str, Any] = dataclasses.field(default_factory=dict)

    def files(self, folder: Path) -> list[str]:
        """Make the files, unless they are there, and return their paths."""
        folder.mkdir(parents=True, exist_ok=True)
        random = np.random.default_rng(0)
        names = [str(folder / f"{number:05}") for number in range(self.n_files)]
        for name in names:
            size = int(random.integers(5_000, 35_000))
            if not os.path.exists(name):
                Path(name).write_bytes(random.bytes(size))
                os.utime(name, (10**9, 10**9))
        return names

    def store(self, folder: Path) -> SlowStore:
        return self.kind_of_store(folder, self.open_seconds, self.bytes_per_second)

    def staging_options(self, folder: Path) -> dict[str, Any]:
        return {"source": folder, "keep_free": 0, "n_prefetchers": 1} | self.staging

    def train(self, iterator: Iterator[Any], n_batches: int = 0) -> float:
        """Train on mini-batches; return the examples per second."""
        n_batches, begin = n_batches or self.n_batches, time.perf_counter()
        for _ in range(n_batches):
            next(iterator)
            time.sleep(self.train_seconds)
        return n_batches * self.batch_size / (time.perf_counter() - begin)


#: One whose trainer the store can keep up with.
_slower = functools.partial(Job, train_seconds=0.01)
#: By what limits them.
JOBS = {
    "store latency": _slower(n_files=2000, open_seconds=0.05, n_batches=15,
        staging={"reads_in_flight": 2}, change={"staging": {}}),
    "store bandwidth": _slower(n_files=1000, n_batches=60, bytes_per_second=3e6,
        change={"is_staged": True}),
    "store requests": _slower(n_files=1000, n_batches=60, bytes_per_second=150,
        kind_of_store=RequestStore, change={"is_staged": True}),
    "not staged": _slower(open_seconds=0.02, n_batches=15, is_staging=False,
        change={"is_staging": True, "is_staged": True}),
    "decoding": Job(decode_seconds=0.005, change={"n_readers": os.cpu_count() or 1}),
    "trainer": Job(train_seconds=0.03, change={"train_seconds": 0.015}),
    "directory too small": _slower(n_files=200, n_batches=75, open_seconds=0.02,
        staging={"capacity": "1500kB"}, change={"staging": {}, "is_staged": True}),
}  # fmt: skip


class Options(CommonOptions):
    seconds: float = option(4.0, "length of a run after the change", quick=0.5)


def explain(request: dict) -> dict:
    """Run a training, explain it, change it, and run it again; return rates in examples/s."""
    job, scratch = JOBS[request["name"]], request["scratch"]
    with _prepared(job, scratch) as open_iterator, open_iterator() as iterator:
        job.train(iterator, 1)  # the start counts for none of the rates
        before = job.train(iterator)
        found = iterator.explain()
    expected = found.expected or found.examples_per_second  # no change would bring more
    changed = dataclasses.replace(job, **job.change)
    if "train_seconds" in job.change:  # not what is said: half of its time, twice the speed
        expected = 2 * found.examples_per_second
    n_batches = max(20, round(request["seconds"] * (expected or before) / job.batch_size))
    with _prepared(changed, scratch) as open_iterator, open_iterator() as iterator:
        changed.train(iterator, max(1, round(_WARM_UP * n_batches)))
        after = changed.train(iterator, round((1 - _WARM_UP) * n_batches))
    rates = {"before": before, "expected": expected, "after": after}
    return {"cause": found.cause.value, "text": found.text, **rates}


@contextlib.contextmanager
def _prepared(job: Job, scratch: Path) -> Iterator[Callable[..., Any]]:
    """Give what makes the iterator of a training, all of which have one fresh staging directory."""
    import overlapiter
    from overlapiter.cli.main import main as command

    folder, directory = scratch / "source", scratch / "fast"
    names = job.files(folder)
    shutil.rmtree(directory, ignore_errors=True)
    if job.is_staged:
        (scratch / "list").write_text("\n".join(names))
        words = ["stage", scratch / "list", "--source", folder, "--to", directory]
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            assert command([*map(str, words)]) == 0
    staging = overlapiter.Staging(directory, **job.staging_options(folder))
    options = {"staging": staging if job.is_staging else None, "seed": 1}
    with job.store(folder) as store:
        files = attach(TimedFiles(names, job.decode_seconds), store)
        make = functools.partial(overlapiter.OverlapIterator, files, job.batch_size)
        yield functools.partial(make, n_processes=job.n_readers, **options)


# --- what watching costs --------------------------------------------------------------------------

_WATCHED = Job(n_files=400, decode_seconds=0.001, n_readers=2, batch_size=16, is_staged=True)
_WAYS = ("nothing", "stats", "trace")


def watch(request: dict) -> dict:
    """Run three trainings side by side; return the microseconds of CPU for an example of each."""
    scratch, spent_ns = request["scratch"], dict.fromkeys(_WAYS, 0)
    with _prepared(_WATCHED, scratch) as open_iterator, contextlib.ExitStack() as stack:
        traces = {"trace": scratch / "trace.json"}
        iterators = {n: stack.enter_context(open_iterator(trace=traces.get(n))) for n in _WAYS}
        for iterator in iterators.values():
            _WATCHED.train(iterator, 20)
        before = {name: iterator.stats() for name, iterator in iterators.items()}
        end, order = time.monotonic() + 2 * request["seconds"], [*_WAYS]
        while time.monotonic() < end:
            order = [*order[1:], order[0]]  # none is always behind the same one
            for name in order:
                begin_ns = time.process_time_ns()
                next(iterators[name])
                if name == "stats":
                    iterators[name].stats()
                spent_ns[name] += time.process_time_ns() - begin_ns
        done = {name: iterators[name].stats().since(before[name]) for name in _WAYS}
    return {
        name: (each.cpu_seconds + spent_ns[name] / 1e9) / each.examples_read * 1e6
        for name, each in done.items()
    }


def measure(options: Options) -> dict:
    points, watched = [{"name": name} for name in JOBS], {"name": "watching"}
    request, store = picked(options, ("scratch", "seconds")), "emulated, see bench/slow/store.py"
    isolated.call_in_turns(points, options.repeats, explain, **request)
    isolated.call_in_turns([watched], 3 * options.repeats, watch, **request)
    return {"points": points, "watched": watched["runs"], "store": store}


def _ratio(point: dict) -> float:
    return median_of(point, "after") / median_of(point, "expected")


def costs(result: dict) -> Rows:
    rows = [["watched by", "CPU, µs an example", "more, and so slower by", "at most"]]
    for name in _WAYS:
        used, more, most = np.median([run[name] for run in result["watched"]]), "", ""
        if name in _MOST_COST:
            more, most = "{:+.2%} ± {:.2%}".format(*_cost(result, name)), f"{_MOST_COST[name]:.0%}"
        rows.append([name, f"{used:,.0f}", more, most])
    return rows


def _cost(result: dict, name: str) -> tuple[float, float]:
    """Return how much more a way of watching takes, and half the interval of 95%."""
    return interval([run[name] / run["nothing"] - 1 for run in result["watched"]])


def faults(result: dict) -> list[str]:
    if result["options"]["quick"]:
        return []  # so short a run shows that it works, and no more
    found = []
    for point in result["points"]:
        name, ratio = point["name"], _ratio(point)
        if wrong := {run["cause"] for run in point["runs"]} - {name}:
            found.append(f"{name} was taken for {', '.join(sorted(wrong))}")
        if abs(ratio - 1) > _WITHIN:
            found.append(f"{name}: the change brought {ratio:.2f} of what was said")
    for name, most in _MOST_COST.items():
        if (largest := sum(_cost(result, name))) > most:
            found.append(f"{name} may cost {largest:.1%}, above {most:.0%}")
    return found


def marks(result: dict) -> list[tuple]:
    title = "Examples/s of trainings with one bottleneck each, on an emulated store"
    labels = {"before": "before", "expected": "said for after the change", "after": "measured"}
    return [
        (title, label, p["name"].replace(" ", "\n", 1), [run[key] for run in p["runs"]])
        for key, label in labels.items()
        for p in result["points"]
    ]


_COLUMNS = {
    "limited by": "{name}",
    "said": lambda point: ", ".join(sorted({run["cause"] for run in point["runs"]})),
    "examples/s": "{before:,.0f}", "said for after the change": "{expected:,.0f}",
    "measured": "{after:,.0f}", "measured / said": lambda point: f"{_ratio(point):.2f}"
}  # fmt: skip
TABLES = {"explained": _COLUMNS, "watching": costs}
