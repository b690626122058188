"""One run of one loader, in a process of its own."""

import importlib
import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from bench.harness.family import OTHER, cpu_by_kind, cpu_seconds, descendants, private_bytes_by_kind
from bench.harness.machine import is_installed
from bench.loaders.adapters import ADAPTERS, Loader
from bench.loaders.files import Heads, Images, fingerprint, images_of
from bench.loaders.floor import bare_reader, read_all, run_floor
from bench.loaders.spec import NOT_MEASURED, RunSpec, package_of, rates
from bench.slow import SlowStore, Store, slow_store
from bench.slow.store import attach

#: What the iterator counts: opens of staged copies and of source files, files and bytes staged.
_COUNTS = ("opens_staged", "opens_source", "files_staged", "bytes_staged")


def run_loader(spec: RunSpec) -> dict:
    """Do one run in this process."""
    package = package_of(spec.loader)
    if is_installed(package.split(".")[0]):  # a script has imported it before
        importlib.import_module(package)
    if spec.loader in ("floor", "ceiling"):
        return run_floor(spec)
    with slow_store(spec) as store:
        spec, dataset = data_of(spec, store)
        open_loader = partial(ADAPTERS[spec.loader], spec, dataset)
        if not spec.beside_fraction:
            return drive(spec, open_loader, store)
        paths, random = [path for path, _ in dataset._pairs], np.random.RandomState(0)
        n_files = round(spec.beside_fraction * len(paths))
        with bare_reader(store) as reader:

            def beside() -> Future:
                some = random.permutation(paths)[:n_files].tolist()
                return reader.submit(read_all, spec.root, some)

            return drive(spec, open_loader, store, beside)


def data_of(spec: RunSpec, store: Store) -> tuple[RunSpec, Any]:
    """Return what is asked with the root to read from, and the data set.

    An emulated store slows this process down from then on, and all that unpickle the data set.
    """
    root = spec.local if spec.is_local else spec.root
    spec = replace(spec, root=store.root if store else root)
    if not spec.is_decoding:
        make = Heads
    elif spec.loader == "overlap-torch-importing":
        from bench.loaders.torch_images import TorchImages as make
    else:
        make = images_of if package_of(spec.loader) == "chainer" else Images
    dataset = make(spec.examples(), spec.root)
    if isinstance(store, SlowStore):  # the list of files may lie in it, too
        store.install()
        dataset = attach(dataset, store)
    return spec, dataset


def _mark(store: Store = None, loader: Loader | None = None, position: int = 0) -> dict:
    """Note after how many mini-batches an epoch ends and the next one starts, and all counters."""
    end, pids = time.monotonic(), [process.pid for process in descendants(os.getpid())]
    counted, crossed = loader.statistics() if loader else {}, store.counts() if store else {}
    counts = {key.removeprefix("store_"): n for key, n in crossed.items()}
    counts |= {name: counted[name] for name in _COUNTS if name in counted}
    counts["trainer_cpu_seconds"] = time.process_time()
    counts["workers_cpu_seconds"] = sum(map(cpu_seconds, pids))
    found = {"position": position, "pids": [os.getpid(), *pids], "counts": counts}
    # Looking at the processes has taken milliseconds, which are part of no epoch.
    return {**found, "end": end, "start": time.monotonic()}


def _epochs(marks: list[dict], taken: list[tuple], losses: list[float]) -> list[dict]:
    """Return what each epoch took; of each mini-batch the wait for it and its size are given."""
    found = []
    for before, after in itertools.pairwise(marks):
        here = slice(before["position"], after["position"])
        start, end, waited = before["start"], after["end"], before.get("waited_seconds", 0.0)
        waits, sizes = zip(*taken[here], strict=True)
        epoch = {"start": start, "end": end, "seconds": end - start, "pids": after["pids"]}
        epoch |= {"wait_seconds": sum(waits, waited), "n_images": sum(sizes)}
        epoch |= {"opens": None, "bytes": None}  # where no store counts them
        epoch |= {"loss": np.mean(losses[here])} if losses else {}
        counts = {key: n - before["counts"].get(key, 0) for key, n in after["counts"].items()}
        found.append(epoch | counts)
    return found


def drive(
    spec: RunSpec, open_loader: Callable[[], Loader], store: Store,
    beside: Callable[[], Future] | None = None, train: Callable | None = None,
    at_end: Callable[[], dict] = dict,
) -> dict:  # fmt: skip
    """Time one loader from its constructor to the last mini-batch.

    In each epoch after the first ``beside`` begins to read a part of the data set, and the epoch
    ends when that is done, too; ``train`` takes the loader and each mini-batch, and returns the
    loss; ``at_end`` is called before the loader is closed, and what it returns is in the result.
    """
    taken, fingerprints, reads, losses = [], [], [], []
    reading: Future | None = None
    marks, cpu_start, start = [_mark()], time.process_time(), time.monotonic()
    loader = open_loader()
    marks[0]["waited_seconds"] = constructor_seconds = time.monotonic() - start
    first_delivered = 0.0
    for position in itertools.count(1):
        asked = time.monotonic()
        batch = loader.next_batch()
        delivered = time.monotonic()
        first_delivered = first_delivered or delivered
        taken.append((round(delivered - asked, 6), len(batch)))
        if spec.order == "fixed":  # the same for all
            fingerprints.append(fingerprint(batch))
        if train:
            losses.append(train(loader, batch))
            batch = None  # its memory is for the next ones
        if spec.compute_seconds:
            time.sleep(spec.compute_seconds)
        if spec.seconds:
            reads.append((delivered - start, loader.statistics()["reads_in_flight"]))
        if spec.n_epochs and loader.is_new_epoch():
            if reading:
                reading.result()
            marks.append(_mark(store, loader, position))
            if len(marks) > spec.n_epochs:
                break
            if beside:
                reading = beside()
        is_late = spec.seconds and delivered - first_delivered > spec.seconds
        if is_late or position == spec.n_batches:
            break
    trainer = {"n_processes": 1, "seconds": time.process_time() - cpu_start}
    unnamed = OTHER if spec.loader.startswith("overlap") else "reader"
    waits, sizes = zip(*taken, strict=True)
    result = NOT_MEASURED | {
        **rates(start, first_delivered, delivered, sum(sizes)),
        "rate_after_first": sum(sizes[1:]) / max(delivered - first_delivered, 1e-9),
        "statistics": loader.statistics(), "cpu": {**cpu_by_kind(unnamed), "trainer": trainer},
        "private_bytes": private_bytes_by_kind(unnamed), "fingerprints": fingerprints,
        "constructor_seconds": constructor_seconds, "waits_seconds": waits,
        "epochs": _epochs(marks, taken, losses), "reads_in_flight": reads
    }  # fmt: skip
    more, batch, closing = at_end(), None, time.monotonic()
    loader.close()
    more["finalize_seconds"] = time.monotonic() - closing
    return {**result, **more, **(store.counts() if store else {})}
