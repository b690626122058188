"""Copy files to the staging directory ahead of a job.

Files that are staged already, and still as their source, are left alone, so a second run goes on
where the first one was interrupted, and a training job with the same --source finds all of it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Callable

from overlapiter.options import FIRST_READS_IN_FLIGHT, Staging, check_count
from overlapiter.planning import staging_plan
from overlapiter.sources import source_root
from overlapiter.staging.inventory import entries, subdirectories
from overlapiter.staging.records import recorded_run

from .console import (
    SHOWN_NAMES,
    CommandError,
    count_words,
    duration_words,
    names_words,
    progress,
    say,
    size_words,
)
from .filelist import FileList, read_list
from .origins import add_storage_options, storage_options
from .stager import Done, Fate, Stager

EXAMPLES = """\
examples:
  overlapiter stage train.txt --source /lustre/imagenet --to /nvme/me
  overlapiter stage train.txt --source /lustre/imagenet --to /nvme/me --capacity 200GB
  overlapiter stage train.txt --source s3://bucket/imagenet --to /nvme/me
  find /lustre/imagenet -name '*.jpg' | overlapiter stage - --source /lustre/imagenet --to /nvme/me

exit code: 0 if all files are staged, 1 if some are not, 2 if the command line cannot work,
130 after Ctrl-C"""

_FULL = (
    "the staging directory is full: raise --capacity, lower --keep-free, make room with "
    "`overlapiter evict`, or leave it: a job reads the rest from the source"
)

_ALL_MISSING = (
    "of all there is none; see whether --source is the root of these files, and --labels fits"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    _add_files(parser)
    _add_staging(parser)


def _add_files(parser: argparse.ArgumentParser) -> None:
    """Declare what is copied, and from where."""
    parser.add_argument(
        "list",
        metavar="LIST",
        help="file with one path a line, relative to SRC or absolute; lines of `path label`, as "
        "for Chainer's LabeledImageDataset, are understood; - reads standard input",
    )
    parser.add_argument(
        "--source",
        metavar="SRC",
        required=True,
        help="root of the files on the slow store, a directory or a URL such as s3://bucket/train: "
        "the same as the job's Staging(source=...)",
    )
    add_storage_options(parser)
    parser.add_argument(
        "--labels",
        choices=("auto", "yes", "no"),
        default="auto",
        help="whether the lines of LIST are `path label`; auto: those that end in a number, unless "
        "there is a file of that whole name",
    )


def _add_staging(parser: argparse.ArgumentParser) -> None:
    """Declare where it is copied to, and how."""
    parser.add_argument(
        "--to",
        metavar="DIR",
        required=True,
        help="the staging directory: the same as the job's Staging(DIR)",
    )
    parser.add_argument(
        "--capacity",
        metavar="SIZE",
        help="most bytes that staged files may take in DIR: 200GB, or 50%% of the disk "
        "(default: no limit but --keep-free)",
    )
    parser.add_argument(
        "--keep-free",
        metavar="SIZE",
        default="5%",
        help="free space to leave on the disk (default: 5%%)",
    )
    parser.add_argument(
        "--reads-in-flight",
        metavar="N",
        type=int,
        default=FIRST_READS_IN_FLIGHT,
        help="files to read at the same time (default: %(default)s); see `overlapiter doctor`",
    )
    parser.add_argument(
        "--validate",
        choices=("mtime", "checksum", "never"),
        default="mtime",
        help="how to tell whether a staged file is still as its source (default: %(default)s)",
    )


class Tally:
    """What has become of the files so far.

    Attributes:
        n: How many had each fate.
        copied_bytes: Bytes read from the source.
    """

    def __init__(self) -> None:
        self.n: dict[Fate, int] = defaultdict(int)
        self.copied_bytes = 0
        self._names: dict[Fate, dict[str, _Names]] = defaultdict(dict)

    def add(self, done: Done) -> None:
        """Count one file."""
        self.n[done.fate] += 1
        self.copied_bytes += done.copied_bytes
        self._names[done.fate].setdefault(done.reason, _Names()).add(done.path)

    @property
    def n_well(self) -> int:
        """How many need nothing further."""
        return self.n[Fate.STAGED] + self.n[Fate.FOUND] + self.n[Fate.EMPTY]

    def counters(self) -> dict[str, float]:
        """Return it as the record of a run has it."""
        n_refused = self.n[Fate.NO_ROOM] + self.n[Fate.BUSY] + self.n[Fate.FAILED]
        return {
            "files_staged": self.n[Fate.STAGED],
            "bytes_staged": self.copied_bytes,
            "files_found_staged": self.n[Fate.FOUND],
            "files_refused": n_refused,
        }

    def named(self, fate: Fate) -> str:
        """Name the first few of each reason."""
        return "; ".join(
            f"{names}" + (f" ({reason})" if reason else "")
            for reason, names in self._names[fate].items()
        )


class _Names:
    """The first few of some files, and how many there are."""

    def __init__(self) -> None:
        self._n = 0
        self._first: list[str] = []

    def add(self, name: str) -> None:
        self._n += 1
        if len(self._first) < SHOWN_NAMES:
            self._first.append(name)

    def __str__(self) -> str:
        return names_words(self._first, self._n)


def run(arguments: argparse.Namespace) -> int:
    """Stage; return the exit code."""
    check_count("--reads-in-flight", arguments.reads_in_flight)
    options = Staging(
        arguments.to,
        source=arguments.source,
        capacity=arguments.capacity,
        keep_free=arguments.keep_free,
        validate=arguments.validate,
        reads_in_flight=arguments.reads_in_flight,
        n_prefetchers=1,  # this process
        storage_options=storage_options(arguments),
    )
    files = _listed(arguments)  # first: a list that cannot work leaves no staging directory
    plan = staging_plan(options, (), [])
    assert plan is not None
    (store,) = plan.stores()
    store.sweep()
    _say_neighbours(store.directory, plan.source)
    tally, started = Tally(), time.monotonic()
    stager = Stager(store, arguments.reads_in_flight, tally.add)
    facts = {
        "command": "overlapiter stage",
        "trainer_pid": os.getpid(),
        "staging": {"source": plan.source, "capacity_bytes": plan.capacity_bytes},
    }
    try:
        with (
            recorded_run(store.directory, facts, tally.counters, say),
            progress(len(files.paths), "files") as shown,
        ):
            _stage(stager, files.paths, shown.advance)
    except KeyboardInterrupt:
        _say_interrupted(stager, tally, len(files.paths))
        raise
    print(_summary(tally, files, time.monotonic() - started))
    if text := plan.tiers[0].excess_words():
        say(f"note: {text}")
    return 0 if tally.n_well == len(files.paths) and not files.outside else 1


def _listed(arguments: argparse.Namespace) -> FileList:
    source = source_root(arguments.source)
    files = read_list(arguments.list, source, arguments.labels)
    if not files.paths:
        raise CommandError(
            f"no entry of the list lies below {source}, for example "
            f"{names_words(files.outside)}; see whether --source is the root of these files",
            is_usage=True,
        )
    return files


def _say_neighbours(directory: str, source: str) -> None:
    """Tell of source roots with the same files, which are staged apart: mostly a mistake."""
    for sub in subdirectories(directory):
        other = sub.source or source
        ours, theirs = os.path.join(source, ""), os.path.join(other, "")
        is_nested = ours.startswith(theirs) or theirs.startswith(ours)
        if ours != theirs and is_nested and next(entries(sub), None) is not None:
            say(
                f"note: of {other}, files are staged in {directory}, too; a job finds those of the "
                f"very source that it names, so mind which one your job has"
            )


def _stage(stager: Stager, paths: list[str], advance: Callable[[int], None]) -> None:
    """Stage files until they are done, or there is no room for a further one."""
    with contextlib.closing(stager.run(paths)) as answers:
        for done in answers:
            advance(done.copied_bytes)
            if done.fate is Fate.NO_ROOM:
                stager.stop_soon()


def _say_interrupted(stager: Stager, tally: Tally, n_files: int) -> None:
    text = f"interrupted: {tally.n_well:,} of {count_words(n_files, 'file')} are staged"
    if stager.is_at_rest:
        say(f"{text}, nothing is left half-done; run the same command again to go on")
    else:
        say(
            f"{text}; the slow store does not answer, so some files are left half-copied, which "
            f"nobody reads and the next run removes; run the same command again to go on"
        )


def _summary(tally: Tally, files: FileList, seconds: float) -> str:
    n = tally.n
    speed = f"{size_words(tally.copied_bytes)} in {duration_words(seconds)}"
    if tally.copied_bytes:
        speed += f", {size_words(tally.copied_bytes / max(seconds, 1e-3))}/s"
    missing = tally.named(Fate.MISSING)
    if n[Fate.MISSING] == len(files.paths):
        missing += f": {_ALL_MISSING}"
    n_left = len(files.paths) - sum(n.values()) + n[Fate.NO_ROOM]
    rows = [
        ("staged", n[Fate.STAGED], speed),
        ("found", n[Fate.FOUND], "staged before, and still as their source"),
        ("empty", n[Fate.EMPTY], "nothing to stage"),
        ("missing", n[Fate.MISSING], missing),
        ("outside", len(files.outside), f"not below the source: {names_words(files.outside)}"),
        ("busy", n[Fate.BUSY], f"kept by another process: {tally.named(Fate.BUSY)}"),
        ("failed", n[Fate.FAILED], f"the staging disk: {tally.named(Fate.FAILED)}"),
        ("no room", n_left, _FULL),
    ]
    return "\n".join(
        f"{word:8} {count_words(number, 'file'):>15}   {text}"
        for word, number, text in rows
        if number
    )
