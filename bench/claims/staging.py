"""What staging takes: reads in flight, and CPU, for files that are read but not decoded.

There are three experiments, by ``--part``; those that are published have names of their own:
``reads-in-flight`` of reads, ``evicting``, of which ``--local`` names another disk, and
``large-files`` of sizes.
"""

import os
import resource
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from bench.harness import isolated
from bench.harness.options import CommonOptions, option
from bench.harness.tables import Wanted, median_of, table
from bench.loaders.files import make_files, read_files
from bench.loaders.report import staging_us, verified
from bench.loaders.sources import MountOptions, prepare, require_room, run_once, spec_of
from bench.loaders.spec import RunSpec

#: Of files that are evicted by driving the store, and how many at once: by the pipeline up to 32.
STATES = {"dirty": 8, "written": 8, "written, 32 at once": 32}
_SIZES = [110_000, 10**6, 10**7]
_FILE_BYTES = 20_800
_WINDOW_SECONDS = 0.5


class Options(MountOptions):
    part: str = option("reads", "experiment (reads)", choices=("reads", "evicting", "sizes"))
    repeats: int = 5
    readers: int = option(2, "file reader processes")
    files: int = option(8000, "files to stage, at most, of reads and evicting", quick=320)
    latencies_ms: list[int] = option([1, 10, 50], "of an open, of reads", quick=[1])
    reads: list[int] = option([16, 64, 256], "the fixed numbers", quick=[8])
    seconds: float = option(6.0, "length of a run, of reads")
    fraction: float = option(0.5, "of the data that fits, of evicting")
    sizes: list[int] = option(_SIZES, "bytes of a file, of sizes")
    total_mb: int = option(300, "MB of each size", quick=4)

    @property
    def fixed(self) -> tuple[str, ...]:
        """The stores are emulated, each with a latency of its own, or are the local disk."""
        made, local = ("pairs", "root"), ("mb_per_s",)
        of_part = {"reads": made, "evicting": local, "sizes": made + local}
        return ("source", "mount", "open_ms", *of_part[self.part])

    def check(self) -> None:
        super().check()
        # Not ext4: it avoids the inodes of files removed in the last minute, and looking past
        # thousands of them slows down every create of the next run.
        if self.part == "reads" and self.local == CommonOptions.local:
            self.local = Path("/dev/shm")


def points_of(options: Options) -> list[dict]:
    """Return what runs, with values of ``RunSpec`` by name; files with a size are made."""
    if options.part == "reads":
        usual = {"loader": "overlap", "file_bytes": 20_000, "seconds": options.seconds}
        usual["n_batches"] = options.files // options.batch_size
        return [
            {"open_ms": ms, "open_seconds": ms / 1e3, "reads_in_flight": reads, **usual}
            for ms in options.latencies_ms
            for reads in (None, *options.reads)
        ]
    usual = {"mount": "given", "order": "own", "n_epochs": 1}
    if options.part == "evicting":
        part = {"name": "part", "room": options.fraction, **usual}
        return [{"name": "whole", **usual}, part, *({"name": state} for state in STATES)]
    return [
        {"name": f"{way}, {size / 1e6:g} MB", "file_bytes": size, "n_examples": n_files,
         "batch_size": max(1, min(32, n_files // 20)), **usual}
        for size in options.sizes for n_files in [max(2, options.total_mb * 10**6 // size)]
        for way in ("stage", "cp")
    ]  # fmt: skip


def spec_with_files(point: dict, options: Options) -> RunSpec:
    """Return the run that stages the files of a point, once they are there."""
    n_files = point.get("n_examples", options.files)
    if size := point.get("file_bytes"):
        options.root = options.scratch / f"source-{size}"
        options.pairs = options.root.with_suffix(".txt")
        # Beside the source there is what is staged, and copied.
        require_room(options.scratch, 3 * n_files * size)
        if not options.pairs.exists():  # of many small ones, most are links to the others
            make_files(options.root, n_files, size, 500 if options.part == "reads" else n_files)
    spec, _facts = prepare(options, n_files)
    return spec_of(spec, {"is_decoding": False, "n_readers": options.readers, **point})


def measure(options: Options) -> dict:
    points = points_of(options)
    specs = {id(point): spec_with_files(point, options) for point in points}

    def run(point: dict) -> dict:
        name, spec = point.get("name", ""), specs[id(point)]
        if name in STATES:
            request = {"name": name, "local": options.scratch, "n_files": options.files}
            return isolated.call(drive, request)
        return copy(spec) if name.startswith("cp") else stage(spec)

    isolated.take_turns(points, options.repeats, run)
    if options.part != "reads":
        return {"points": points, "store": "local disk"}
    found = {"points": points, "data": "files of 20 kB, read but not decoded"}
    return {**found, "store": f"emulated store, {options.mb_per_s:g} MB/s", **verified(points)}


def stage(spec: RunSpec) -> dict:
    """Stage the files; return the CPU ``seconds`` of the prefetchers, the bytes, and more."""
    run = run_once(spec)
    found = {name: run[name] for name in ("wall_seconds", "cpu", "statistics", "fingerprints")}
    found |= {"bytes": run["statistics"]["bytes_staged"], **run["cpu"]["prefetcher"]}
    if reads := run["reads_in_flight"]:
        found |= facts(*map(np.array, zip(*reads, strict=True)), spec.batch_size)
    return {**found, "cpu_us_per_file": staging_us(run)}


def copy(spec: RunSpec) -> dict:
    """Copy the files by ``cp -r``; return its CPU ``seconds`` and the bytes."""
    read_files(spec.paths(), spec.root)
    n_bytes = sum(Path(spec.root, path).stat().st_size for path in spec.paths())
    target = tempfile.mkdtemp(prefix="fresh-copied-", dir=Path(spec.root).parent)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(["cp", "-r", spec.root, target], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return {"seconds": sum(after[:2]) - sum(before[:2]), "bytes": n_bytes}


def drive(request: dict) -> dict:
    """Stage files through the store in this process and evict them.

    Returned are ``stage_us`` and ``evict_us``, of the CPU of this process for a file, and
    ``charged_bytes`` that are left in the end, of its reservation.
    """
    from bench.harness.store_access import stage_bytes, store_in

    store = store_in(tempfile.mkdtemp(prefix="fresh-evicted-", dir=request["local"]))
    data, n_files = os.urandom(_FILE_BYTES), request["n_files"]
    names = [f"{number}.jpg" for number in range(n_files)]
    n_at_once = STATES[request["name"]]
    parts = [names[first : first + n_at_once] for first in range(0, n_files, n_at_once)]
    began = time.process_time()
    keys = [stage_bytes(store, part, data) for part in parts]
    stage_us = (time.process_time() - began) / n_files * 1e6
    if request["name"] != "dirty":
        os.sync()
    began = time.process_time()
    for part in keys:
        store.evict(part)
    evict_us = (time.process_time() - began) / n_files * 1e6
    charged_bytes = store.total_bytes()
    store.close()
    return {"stage_us": stage_us, "evict_us": evict_us, "charged_bytes": charged_bytes}


def facts(taken_at: np.ndarray, reads: np.ndarray, batch_size: int) -> dict[str, float]:
    """Return what a run says that took its mini-batches at these seconds, with so many reads."""
    middle = np.searchsorted(taken_at, (taken_at[0] + taken_at[-1]) / 2)
    rate = (len(taken_at) - 1 - middle) * batch_size / (taken_at[-1] - taken_at[middle])
    # When, for the first time, half a second began that had nine tenths of this.
    ends = np.searchsorted(taken_at, taken_at + _WINDOW_SECONDS, side="right")
    rates = (ends - np.arange(len(taken_at))) * batch_size / _WINDOW_SECONDS
    reached = taken_at[np.argmax(rates >= 0.9 * rate)]
    found = {"files_per_second": rate, "seconds_to_90_percent": reached - taken_at[0]}
    found |= {"first_batch_seconds": taken_at[0], "reads": np.median(reads[middle:])}
    return {name: float(number) for name, number in found.items()}


def evicting_us(whole: dict, part: dict) -> float:
    """Return what evicting a file cost the prefetchers, beside a run with room for the whole."""
    counts = part["statistics"]
    beyond_us = (staging_us(part) - staging_us(whole)) * counts["files_staged"]
    return beyond_us / counts["files_evicted"]


def rate(run: dict[str, float]) -> float:
    """Return bytes for a second of CPU."""
    return run["bytes"] / run["seconds"]


TARGETS: tuple[Wanted, ...] = (
    ("evicting, in the pipeline", "µs", 20, ("whole", "part"), evicting_us),
    *((f"evicting, store, {each}", "µs", 20, (each,), "evict_us") for each in STATES),
    ("claiming, writing and publishing, dirty", "µs", None, ("dirty",), "stage_us"),
    *((f"bytes for CPU, {mb:g} MB, of cp", "", 0.9, (f"stage, {mb:g} MB", f"cp, {mb:g} MB"),
       lambda staged, copied: rate(staged) / rate(copied)) for mb in (s / 1e6 for s in _SIZES)),
)  # fmt: skip
_SETTINGS = {
    "ms/open": "{open_ms}",
    "reads in flight": lambda point: point["reads_in_flight"] or "self-tuned",
    "files/s": "{files_per_second:,.0f}", "reads": "{reads:.0f}",
    "s to 90 %": "{seconds_to_90_percent:.2f}", "first, s": "{first_batch_seconds:.2f}",
    "µs of CPU for a file": "{cpu_us_per_file:.0f}"
}  # fmt: skip
_OF_SIZES = {
    "way": "{name}",
    "files": "{n_examples}",
    "MB for a CPU second": lambda point: f"{np.median([*map(rate, point['runs'])]) / 1e6:.0f}",
    "µs of CPU for a file": lambda p: f"{median_of(p, 'seconds') / p['n_examples'] * 1e6:.0f}",
}
TABLES = {
    "settings": lambda result: table([p for p in result["points"] if "open_ms" in p], _SETTINGS),
    "sizes": lambda result: table([p for p in result["points"] if "n_examples" in p], _OF_SIZES),
}
