"""Copy files to the staging directory ahead of a job.

Files that are staged already, and still as their source, are left alone, so a second run goes on
where the first one was interrupted, and a training job with the same --source finds all of it.

Examples:
  overlapiter stage train.txt --source /lustre/imagenet --to /nvme/me
  overlapiter stage train.txt --source /lustre/imagenet --to /nvme/me --capacity 200GB
  overlapiter stage train.txt --source s3://bucket/imagenet --to /nvme/me
  find /lustre/imagenet -name '*.jpg' | overlapiter stage - --source /lustre/imagenet --to /nvme/me

exit code: 0 if all files are staged, 1 if some are not
"""

from __future__ import annotations

import argparse
import contextlib
import os
import threading
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable

from overlapiter.options import Staging
from overlapiter.planning import staging_plan
from overlapiter.sources import source_root
from overlapiter.store.inventory import Inventory
from overlapiter.store.outcome import Outcome, Staged
from overlapiter.store.site import Run
from overlapiter.store.stager import Stager
from overlapiter.store.store import Store, Wanted
from overlapiter.urls import is_url
from overlapiter.words import count_words, duration_words, size_words
from overlapiter.workers.plan import StagingPlan

from .console import Names, Progress, UsageError, first_few, say, tell
from .crew import Crew, Part, answered, parts_of
from .filelist import FileList, add_list, read_list
from .origins import add_reading, add_storage_options
from .place import new_directory, recorded

#: Files that a thread claims and publishes at once, and copies one after the other.
_PART_FILES = 8
#: What may become of a file, and what is said of it.
_FATES = {
    "staged": "{speed}",
    "found": "staged before, and still as their source",
    "empty": "nothing to stage",
    "missing": "{names}",
    "unread": "{names}",
    "outside": "not below the source: {names}",
    "busy": "kept by another process: {names}",
    "too big": "larger than all the room there is: raise --capacity, or lower --keep-free: {names}",
    "failed": "the staging disk: {names}",
    "no room": "the staging directory is full: raise --capacity, lower --keep-free, make room with "
    "`overlapiter evict`, or leave it: a job reads the rest from the source",
    "left": "the source has no answer: see whether it is mounted",
}
_REFUSED = ("no room", "too big", "busy", "failed")
_FATE_OF = {
    Outcome.COPIED: "staged",
    Outcome.FOUND: "found",
    Outcome.REFUSED: "no room",
    Outcome.TOO_LARGE: "too big",
    Outcome.FAILED: "failed",
    Outcome.BUSY: "busy",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    text = (
        "file with one path a line, relative to SRC or absolute; lines of `path label`, as for "
        "Chainer's LabeledImageDataset, are understood; - reads standard input"
    )
    add_list(parser, text)
    text = (
        "root of the files on the slow store, a directory or a URL such as s3://bucket/train: "
        "the same as the job's Staging(source=...)"
    )
    add("--source", metavar="SRC", required=True, help=text)
    text = (
        "whether the lines of LIST are `path label`; auto: those that end in a number, unless "
        "there is a file of that whole name"
    )
    add("--labels", choices=("auto", "yes", "no"), default="auto", help=text)
    text = "the staging directory: the same as the job's Staging(DIR)"
    add("--to", metavar="DIR", required=True, help=text)
    text = (
        "most bytes that staged files may take in DIR: 200GB, or 50%% of the disk "
        "(default: no limit but --keep-free)"
    )
    add("--capacity", metavar="SIZE", help=text)
    text = "free space to leave on the disk (default: 5%%)"
    add("--keep-free", metavar="SIZE", default="5%", help=text)
    text = "how to tell whether a staged file is still as its source (default: %(default)s)"
    add("--validate", choices=("mtime", "checksum", "never"), default="mtime", help=text)
    add_storage_options(parser)
    add_reading(parser)


def run(arguments: argparse.Namespace) -> int:
    """Stage; return the exit code."""
    options = Staging(
        arguments.to,
        source=arguments.source,
        capacity=arguments.capacity,
        keep_free=arguments.keep_free,
        validate=arguments.validate,
        reads_in_flight=arguments.reads_in_flight,
        n_prefetchers=1,  # this process
        storage_options=arguments.storage_options,
    )
    new_directory("--to", arguments.to)
    files = _listed(arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda text, *_others: say(f"note: {text}")
        plan = staging_plan(options, (), [], is_training=False)
    staging = {"source": plan.source, "tiers": [site._asdict() for site in plan.sites]}
    warned: dict[str, None] = {}
    (store,) = plan.stores(Run.of_command("stage", staging), warned.setdefault)
    work = _Work(plan, store, arguments.timeout, warned.setdefault)
    started = time.monotonic()
    with recorded(store, work.counters, map(store.key_of, files.paths)):
        store.sweep()
        _say_neighbours(store.site.directory, plan.real_source or plan.source)
        work.run(files.paths)
        _tell_summary(work, files, time.monotonic() - started, arguments)
    for text in warned:
        say(f"note: {text}")
    return 0 if work.n_well == len(files.paths) and not files.outside else 1


def _listed(arguments: argparse.Namespace) -> FileList:
    source, timeout = source_root(arguments.source), arguments.timeout
    if not is_url(source):
        answered(source, lambda: os.path.isdir(source), timeout)
    name, labels, is_null = arguments.list, arguments.labels, arguments.null
    files = read_list(name, source, labels, is_null=is_null, timeout_seconds=timeout)
    if not files.paths:
        raise UsageError(
            f"no entry of the list lies below {source}, for example {Names(files.outside)}; see "
            f"whether --source is the root of these files, by the name that they begin with"
        )
    return files


class _Work:
    """Stages files, and counts what becomes of them.

    Attributes:
        n: How many had each fate.
        names: The same by name, for each reason.
        copied_bytes: Bytes read from the source.
    """

    def __init__(
        self, plan: StagingPlan, store: Store, timeout_seconds: float, warn: Callable[[str], None]
    ) -> None:
        self._store = store
        self._n_reads = plan.first_reads_in_flight
        self._crew = Crew[None, int](
            plan.origin(), self._work_on, self._n_reads, timeout_seconds, self._give_up
        )
        self._stager = Stager([store], self._crew, plan.validate, lambda job: job(), warn)
        self._lock = threading.Lock()
        self._is_full = False
        self.n: Counter[str] = Counter()
        self.names: dict[str, dict[str, Names]] = defaultdict(lambda: defaultdict(Names))
        self.copied_bytes = 0

    @property
    def n_well(self) -> int:
        """How many need nothing further."""
        return self.n["staged"] + self.n["found"] + self.n["empty"]

    def counters(self) -> dict[str, float]:
        """Return what the record of a run holds."""
        return {
            "files_staged": self.n["staged"],
            "bytes_staged": self.copied_bytes,
            "files_found_staged": self.n["found"],
            "files_refused": sum(self.n[fate] for fate in _REFUSED),
        }

    def run(self, paths: list[str]) -> None:
        """Stage until all is done; once there is no room, look only for what is staged already."""
        n_each = max(1, min(_PART_FILES, len(paths) // self._n_reads))
        parts = filter(None, map(self._to_do, parts_of(paths, n_each)))
        done = self._crew.run(map(dict.fromkeys, parts))
        try:
            with Progress(len(paths)) as shown, contextlib.closing(done):
                for part, copied_bytes in done:
                    if copied_bytes is None:
                        for path in part:
                            self._count("unread", path, self._crew.silence)
                    shown.advance(copied_bytes or 0, len(part))
        except KeyboardInterrupt:
            say(
                f"interrupted: {self.n_well:,} of {count_words(len(paths), 'file')} are staged, "
                f"nothing is left half-done; run the same command again to go on"
            )
            raise

    def _to_do(self, paths: list[str]) -> list[str]:
        if not self._is_full:
            return paths
        wanted = [Wanted(self._store.key_of(path), path) for path in paths]
        there = self._store.look(wanted)
        return [path for key, path in wanted if key in there]

    def _work_on(self, part: Part[None]) -> int:
        """Stage the files of a part; return how many bytes were read."""
        wanted = [Wanted(self._store.key_of(path), path) for path in part]
        answers: dict[int, Staged] = {}
        self._stager.stage(wanted, answers.update)
        copied_bytes = 0
        for key, path in wanted:
            outcome, extent, *_ = answers[key]
            if outcome is Outcome.SOURCE_FAILED:
                reason = self._crew.reasons.pop(path, "it is being written")
                if path in self._crew.unread:
                    self._count("unread", path, reason or "the store does not tell its size")
                else:
                    self._count("missing" if reason else "empty", path, reason)
            else:
                self._count(_FATE_OF[outcome], path)
            if outcome is Outcome.COPIED and extent is not None:
                copied_bytes += extent.size
            elif outcome is Outcome.REFUSED:
                self._is_full = True
        with self._lock:
            self.copied_bytes += copied_bytes
        return copied_bytes

    def _count(self, fate: str, path: str, reason: str = "") -> None:
        with self._lock:
            self.n[fate] += 1
            self.names[fate][reason].add(path)

    def _give_up(self, part: Part[None]) -> None:
        """End the claims of a part whose thread is lost, so that its other files can be staged."""
        self._store.publish([], [self._store.key_of(path) for path in part])


def _say_neighbours(directory: str, source: str) -> None:
    """Tell of source roots with the same files, which are staged apart: mostly a mistake."""
    with contextlib.closing(Inventory(directory)) as inventory:
        others = {holding["source"] for holding in inventory.holdings()} - {source}
    for other in others:
        names = f"{source}/", f"{other}/"
        if names[0].startswith(names[1]) or names[1].startswith(names[0]):
            say(
                f"note: of {other}, files are staged in {directory}, too; a job finds those of the "
                f"very source that it names, so mind which one your job has"
            )


def _tell_summary(
    work: _Work, files: FileList, seconds: float, arguments: argparse.Namespace
) -> None:
    n, named = work.n, work.names
    n["outside"], named["outside"] = len(files.outside), {"": Names(files.outside)}
    n["no room" if n["no room"] else "left"] += len(files.paths) + n["outside"] - n.total()
    speed = f"{size_words(work.copied_bytes)} in {duration_words(seconds)}"
    if work.copied_bytes:
        speed += f", {size_words(work.copied_bytes / max(seconds, 1e-3))}/s"
    for fate, text in _FATES.items():
        reasons = first_few(
            [f"{some} ({why})" if why else f"{some}" for why, some in named[fate].items()]
        )
        if fate == "missing" and n[fate] == len(files.paths):
            reasons[-1] += ": none can be read; see whether --source and --labels fit"
        if n[fate]:
            words = text.format(speed=speed, names="; ".join(reasons))
            text = f"{fate:8} {count_words(n[fate], 'file'):>15}   {words}"
            copied_bytes = work.copied_bytes if fate == "staged" else None
            facts = {"fate": fate, "n_files": n[fate], "size_bytes": copied_bytes}
            tell(arguments, text, **facts, names="; ".join(reasons), seconds=seconds)
