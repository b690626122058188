"""Where the images of a benchmark are, how slow their store is, and runs over them in turns."""

import dataclasses
import shutil
import tempfile
from pathlib import Path
from typing import Any

from bench.harness import isolated
from bench.harness.options import CommonOptions, OptionsError, option, picked
from bench.loaders.files import copy_files, forget_files, read_files, read_pairs
from bench.loaders.report import verified
from bench.loaders.run import run_loader
from bench.loaders.spec import OF_LOCAL_DISK, RunSpec
from bench.photographs import PHOTOGRAPHS, make_photographs
from bench.slow.mount import build
from overlapiter import Staging
from overlapiter.options import parse_size
from overlapiter.store.limits import Limits
from overlapiter.store.site import Site
from overlapiter.words import size_words

BLOCK_BYTES = 4096
#: While there is so much room, what earlier runs have staged stays.
ROOM_BYTES = 5 * 10**9


class MountOptions(CommonOptions):
    """Where the images are, and how slow a store is that is no real one."""

    most_seconds = None  # that a run may take, None for any time; no argument of the command
    pairs: Path | None = option(None, "list file of 'path label' lines (made images)")
    root: Path | None = option(None, "folder of the files of --pairs, on the local disk")
    source: Path | None = option(None, "their folder on a real slow store: no emulation")
    open_ms: float = option(10.0, "latency of an open")
    mb_per_s: float = option(100.0, "bandwidth of the store, 0 for no limit")
    batch_size: int = option(32, "examples in a mini-batch", quick=4)
    mount: str = option("emulated", "slow store (emulated)", choices=("emulated", "fuse"))

    def check(self) -> None:
        """Refuse options that contradict each other, and build the mount if there is to be one."""
        super().check()
        if self.source and self.root:
            raise OptionsError("--source is the place of files; --root is for an emulated store")
        if bool(self.source or self.root) != bool(self.pairs):
            raise OptionsError("own data need --pairs, and either --root or --source")
        if self.mount == "fuse" and not self.source:
            build()


class EpochOptions(MountOptions):
    """Some epochs over photographs."""

    examples: int = option(3200, "photographs", quick=320)
    epochs: int = option(3, "epochs, at least 2", quick=2)
    readers: int = option(2, "file reader processes")

    def check(self) -> None:
        """Refuse a single epoch, too."""
        super().check()
        if self.epochs < 2:
            raise OptionsError("--epochs: give at least 2: the first has the start of the workers")

    @property
    def usual(self) -> dict[str, object]:
        """What all runs have in common, by the names of ``RunSpec``."""
        return {"n_epochs": self.epochs, "n_readers": self.readers, "order": "own"}


def prepare(options: MountOptions, n_examples: int) -> tuple[RunSpec, dict]:
    """Make the images or find them; return what all runs have in common, and facts of a result."""
    pairs, place, local = options.pairs, options.source or options.root, ""
    if pairs:
        if len(read_pairs(pairs, n_examples)) < n_examples:
            few = f"{pairs} has fewer than {n_examples} lines: give fewer"
            raise SystemExit(f"{few} --batches, --examples or --files")
        data = f"{n_examples} files of the user's own"
        some = [Path(place, path).stat().st_size for path, _ in read_pairs(pairs, 100)]
        mean_bytes = sum(some) / len(some)
    else:
        place, made, mean_bytes = make_photographs(PHOTOGRAPHS, n_examples)
        pairs = options.scratch / "pairs.txt"  # no more than these: there may be more
        pairs.write_text("".join(f"{path} {label}\n" for path, label in made))
        data = f"{n_examples} different JPEG files of {mean_bytes / 1e3:.1f} kB on average"
    # Some runs stage what others find staged, or copied.
    require_room(options.scratch, 2 * n_examples * max(mean_bytes, BLOCK_BYTES))
    kind = "FUSE mount" if options.mount == "fuse" else "emulated store"
    rate = f"{options.mb_per_s:g} MB/s" if options.mb_per_s else "any number of MB/s"
    store, mount = f"{kind}: {options.open_ms:g} ms per open, {rate}", options.mount
    if options.source:
        store, mount, local = "slow store given by the user", "given", f"{options.scratch}/local"
    spec = RunSpec(
        "overlap", str(pairs.resolve()), n_examples, str(place.resolve()),
        f"{options.scratch}/staged", local_root=local, mount=mount, seed=options.seed,
        open_seconds=options.open_ms / 1e3, batch_size=options.batch_size,
        bytes_per_second=options.mb_per_s * 1e6 or float("inf"),
    )  # fmt: skip
    return spec, {"data": data, "store": store}


def room_of(folder: Path) -> float:
    """Return the bytes that can be staged in a folder: beyond them a run stages nothing more."""
    disk = shutil.disk_usage(folder)
    site = Site(str(folder), None, parse_size("keep_free", Staging.keep_free, disk.total))
    return disk.free - Limits(site, str(folder)).kept_free_bytes


def require_room(folder: Path, n_bytes: float) -> None:
    """End the program before anything is measured unless so many bytes can be staged in a folder.

    Else the runs would be ones that stage nothing, and only warn.
    """
    missing_bytes = n_bytes - room_of(folder)
    if missing_bytes > 0:
        free_bytes = shutil.disk_usage(folder).free
        raise SystemExit(
            f"the disk of {folder} is too full to measure there: {size_words(free_bytes)} are free "
            f"and {size_words(free_bytes + missing_bytes)} have to be, {size_words(n_bytes)} for "
            f"staged files and the rest as what staging leaves free ({Staging.keep_free} of the "
            f"disk); free some, or give another folder by --local"
        )


def capacity_of(spec: RunSpec, fraction: float) -> int:
    """Return the bytes that a part of the files takes, each in whole blocks of the disk."""
    paths = (Path(spec.root, path) for path, _ in read_pairs(spec.pairs, spec.n_examples))
    n_blocks = sum(-(-path.stat().st_size // BLOCK_BYTES) for path in paths)
    return int(fraction * n_blocks) * BLOCK_BYTES


def spec_of(base: RunSpec, asked: dict[str, Any]) -> RunSpec:
    """Return a run with what is asked for by names of ``RunSpec``; all others are ignored.

    But for ``room``, the part of the data set that may be staged.
    """
    known = {name: asked[name] for name in vars(base).keys() & asked.keys()}
    if "room" in asked:
        known["capacity"] = capacity_of(base, asked["room"])
    return dataclasses.replace(base, **known)


def prepare_local(specs: list[RunSpec]) -> None:
    """Copy and stage, outside of any timing, what some loaders presume; the store is fast."""
    longest_last = sorted(specs, key=lambda spec: spec.n_batches)
    for spec in [s for s in longest_last if s.is_local and s.local != s.root][-1:]:
        copy_files(spec.paths(), spec.root, spec.local, n_streams=16)
    for spec in [s for s in longest_last if s.loader.endswith("-staged")][-1:]:
        fast = {"open_seconds": 0.0, "stat_seconds": 0.0, "bytes_per_second": float("inf")}
        isolated.call(run_loader, dataclasses.replace(spec, **fast))


def fresh(spec: RunSpec) -> RunSpec:
    """Return the same run with an empty staging directory of its own.

    What earlier runs staged stays until the end while there is room: ext4 avoids the inodes of
    files removed in the last minute, and looking past thousands of them slows down every create.
    """
    base = Path(spec.staging).parent
    base.mkdir(parents=True, exist_ok=True)
    if room_of(base) < ROOM_BYTES:
        for folder in base.glob("fresh-*"):
            shutil.rmtree(folder, ignore_errors=True)
    return dataclasses.replace(spec, staging=tempfile.mkdtemp(prefix="fresh-", dir=base))


def run_once(spec: RunSpec, most_seconds: float | None = None) -> dict:
    """Do one run, with its files in the page cache, unless they are in a store of the user's."""
    if not spec.loader.endswith("-staged"):
        spec = fresh(spec)
    if spec.is_local or not spec.local_root:
        read_files(spec.paths(), spec.local if spec.is_local else spec.root)
    if spec.loader not in OF_LOCAL_DISK and spec.local_root:
        forget_files(spec.paths(), spec.root)
    return isolated.call(run_loader, spec, most_seconds=most_seconds)


def run_points(options: MountOptions, points: list[dict], n_examples: int, **usual: object) -> dict:
    """Do all runs in turns, each in a process of its own, and add them to their points.

    A point asks as :func:`spec_of` says, and what is usual is the same for all that say nothing
    else. If runs may take at most some seconds, the points of those that fail or take longer are
    removed and named under ``failed``; else one failure ends the benchmark.
    """
    base, facts = prepare(options, n_examples)
    specs = {}
    for point in points:
        spec = specs[id(point)] = spec_of(base, {**usual, **point})
        point |= picked(spec, ("n_prefetchers", "n_readers", "n_batches"))
    prepare_local(list(specs.values()))

    failed: dict[str, str] = {}

    def run(point: dict) -> dict:
        if (name := isolated.name_of(point)) not in failed:
            try:
                return run_once(specs[id(point)], options.most_seconds)
            except isolated.RunFailedError as error:
                if options.most_seconds is None:
                    raise
                failed[name] = str(error)
        return {}

    isolated.take_turns(points, options.repeats, run)
    points[:] = [point for point in points if isolated.name_of(point) not in failed]
    return {**facts, "failed": failed, "points": points, **verified(points)}
