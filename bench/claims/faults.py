"""What a fault costs: workers that are killed or stopped under a trainer, a program that ends."""

from __future__ import annotations  # OverlapIterator is there with Chainer alone

import faulthandler
import os
import random
import resource
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil

import overlapiter
from bench.harness import isolated
from bench.harness.family import descendants, is_running, send, workers
from bench.harness.options import CommonOptions, option, picked
from bench.harness.tables import Wanted, table
from bench.loaders.files import Images, checksum, read_pairs
from bench.photographs import PHOTOGRAPHS, make_photographs

N_WORKERS = {"reader": 3, "prefetcher": 2, "supervisor": 1}
SIGNALS = ("SIGKILL", "SIGSEGV", "SIGSTOP")
#: Each way to end: its signal, and the seconds within which all children are to be gone.
ENDINGS = {
    "finalize": (signal.SIGUSR1, 2.0),
    "interrupt": (signal.SIGINT, 2.0),
    "kill": (signal.SIGKILL, 5.0),
}
_BATCH_SIZE = 16
_N_FOLLOWING = 3  # mini-batches that may still wait because of a fault
_N_CALM = 6  # between two faults
_N_WARM_UP = 50
_HANG_SECONDS = 60.0
_LOOK_SECONDS = 0.001


class Options(CommonOptions):
    hits: int = option(10, "signals of each kind, to each kind of worker", quick=1)
    examples: int = option(400, "photographs, of which a third is staged at a time")
    compute_ms: float = option(5.0, "of the trainer's step")
    repeats: int = 5  # of each ending


def open_iterator(request: dict, **options: object) -> overlapiter.OverlapIterator:
    """Return an iterator over photographs; ``request`` says where they are, and what is staged."""
    pairs, root = read_pairs(request["pairs"], request["examples"]), request["root"]
    if staged := request["staging"]:
        most = {"n_prefetchers": N_WORKERS["prefetcher"], "capacity": request["capacity"]}
        options["staging"] = overlapiter.Staging(staged, source=root, keep_free=0, **most)
    images = Images(pairs, root)
    return overlapiter.OverlapIterator(images, _BATCH_SIZE, seed=request["seed"], **options)


class Trainer:
    """Takes mini-batches and notes what they were, and how long each took."""

    def __init__(self, iterator: overlapiter.OverlapIterator, compute_ms: float) -> None:
        self._iterator = iterator
        self._compute_seconds = compute_ms / 1e3
        self.checksums: list[int] = []
        self.next_seconds: list[float] = []

    def take(self, n_batches: int = 1) -> None:
        for _ in range(n_batches):
            start = time.monotonic()
            batch = next(self._iterator)
            self.next_seconds.append(round(time.monotonic() - start, 6))
            self.checksums.append(checksum(batch))
            time.sleep(self._compute_seconds)

    def hit(self, kind: str, name: str, numbers: random.Random) -> dict:
        """Hit a worker, and train until it is replaced and what it cost has been paid."""
        faulthandler.dump_traceback_later(_HANG_SECONDS, exit=True)
        while any(len(found) < N_WORKERS[each] for each, found in _workers_by_kind().items()):
            self.take()
        self.take(_N_CALM)
        known, first = _workers_by_kind()[kind], len(self.next_seconds)

        def notice() -> float:
            while _workers_by_kind()[kind] <= known:
                time.sleep(_LOOK_SECONDS)
            return time.monotonic()

        with ThreadPoolExecutor(1) as watcher:
            hit_at = time.monotonic()
            send(numbers.choice([*known]), signal.Signals[name])
            seen_at = watcher.submit(notice)
            while not seen_at.done():
                self.take()
        self.take(_N_FOLLOWING)
        fault = {"kind": kind, "signal": name, "notice_seconds": seen_at.result() - hit_at}
        return {**fault, "recover_seconds": max(self.next_seconds[first:])}


def _workers_by_kind() -> dict[str, set[psutil.Process]]:
    found = workers(descendants(os.getpid())).items()
    return {each: {p for p, kind in found if kind == each and is_running(p)} for each in N_WORKERS}


def train(request: dict) -> dict:
    """Train in this process, undisturbed for ``n_batches``, and then hit as ``hits`` says."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no file for each SIGSEGV
    numbers = random.Random(request["seed"])
    planned = [(kind, name) for kind in N_WORKERS for name in SIGNALS] * request["hits"]
    numbers.shuffle(planned)
    with open_iterator(request, n_processes=request["n_readers"], n_prefetch=2) as iterator:
        trainer = Trainer(iterator, request["compute_ms"])
        trainer.take(request["n_batches"])
        calm_seconds = trainer.next_seconds[_N_WARM_UP:]
        hits = [trainer.hit(*each, numbers) for each in planned]
        faulthandler.cancel_dump_traceback_later()
    return {"hits": hits, "checksums": trainer.checksums, "calm_seconds": calm_seconds}


def run_until_ended(request: dict) -> None:
    """Be a program that trains until the signal for that comes, then finalizes, and stays."""
    is_over = threading.Event()
    signal.signal(ENDINGS["finalize"][0], lambda *_: is_over.set())
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a shell's background job
    iterator = open_iterator(request, n_processes=N_WORKERS["reader"])
    trainer = Trainer(iterator, request["compute_ms"])
    trainer.take(_N_CALM)
    print("ready", flush=True)
    while not is_over.is_set():
        trainer.take()
    iterator.finalize()
    signal.pause()


def end(request: dict, folder: Path, ending: str) -> dict:
    """Start a program, end it, and return how long it took until all of its workers were gone."""
    program = isolated.Program(run_until_ended, request, folder)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(program.command, cwd=isolated.CHECKOUT, text=True, **pipes) as process:
        if process.stdout.readline() != "ready\n":
            raise isolated.RunFailedError(f"{program.name} did not become ready")
        children = workers(descendants(process.pid))
        start, seconds = time.monotonic(), 0.0
        process.send_signal(ENDINGS[ending][0])
        while any(map(is_running, children)) and seconds < _HANG_SECONDS:
            time.sleep(_LOOK_SECONDS)
            seconds = time.monotonic() - start
        process.kill()
    return {"children_seconds": seconds}


def measure(options: Options) -> dict:
    made = make_photographs(PHOTOGRAPHS, options.examples)
    request = {
        **picked(options, ("examples", "seed", "compute_ms", "hits")),
        "pairs": str(made.root / "pairs.txt"), "root": str(made.root.resolve()),
        "staging": str(options.scratch / "staging"),
        "capacity": int(options.examples * made.mean_bytes / 3), "n_readers": N_WORKERS["reader"],
        "n_batches": 4 * _N_WARM_UP
    }  # fmt: skip
    found = isolated.call(train, request)
    sums = found.pop("checksums")
    calm = {"staging": None, "n_readers": 1, "n_batches": len(sums), "hits": 0, "compute_ms": 0.0}
    reference = isolated.call(train, {**request, **calm})["checksums"]
    wrong = np.flatnonzero(np.not_equal(sums, reference)).tolist()
    points = [{"name": name} for name in ENDINGS]
    isolated.take_turns(points, options.repeats, lambda p: end(request, options.scratch, p["name"]))
    return {**found, "n_batches": len(sums), "wrong": wrong, "points": points}


def hit_rows(result: dict) -> list[list[str]]:
    calm_seconds, groups = np.median(result["calm_seconds"]), {}
    for hit in sorted(result["hits"], key=lambda hit: (hit["kind"], hit["signal"])):
        name = {"kind": hit["kind"], "signal": hit["signal"]}
        runs = groups.setdefault(tuple(name.values()), {**name, "runs": []})["runs"]
        runs.append({**hit, "lost_seconds": max(hit["recover_seconds"] - calm_seconds, 0.0)})
    columns = {
        "hit": "{kind}", "signal": "{signal}", "times": lambda group: len(group["runs"]),
        "replaced after, s: median / max": "{notice_seconds:.3f} / {notice_seconds.max:.3f}",
        "lost, s: median / max": "{lost_seconds:.3f} / {lost_seconds.max:.3f}"
    }  # fmt: skip
    return table(groups.values(), columns)


def faults(result: dict) -> list[str]:
    found = [f"wrong mini-batches at {result['wrong']}"] if result["wrong"] else []
    runs = [(point["name"], run) for point in result["points"] for run in point["runs"]]
    hung = {name for name, run in runs if run["children_seconds"] > _HANG_SECONDS}
    return found + [f"{name}: children that do not end" for name in sorted(hung)]


TARGETS: tuple[Wanted, ...] = tuple(
    (f"all children gone after {name}", "s", seconds, (name,), "children_seconds")
    for name, (_, seconds) in ENDINGS.items()
)
TABLES = {"hits": hit_rows}
