"""Look whether the staged files are right, and mend what is not.

Reads each copy and compares it with the checksum that was taken when it was made, and compares its
size and mtime with those of its source; with --checksum the sources are read, too. Also found:
what jobs that were killed have left behind, and a wrong count of the bytes in use.

--repair drops bad copies, of which the source has the original, and what was left behind, and
counts anew. Jobs may go on meanwhile.

Examples:
  overlapiter check /nvme/me
  overlapiter check /nvme/me --repair
  overlapiter check /nvme/me --checksum --source /lustre/imagenet

exit code: 0 if nothing is wrong, or all that was is repaired; otherwise 1
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
from collections import defaultdict

from overlapiter.errors import OptionError
from overlapiter.options import directory_path
from overlapiter.origins.origin import Original
from overlapiter.store.extents import Checksum, ExtentReader
from overlapiter.store.generation import discard, generation_of
from overlapiter.store.index import IndexDamagedError
from overlapiter.store.inventory import Accounts, Inventory, Source, StagedFile
from overlapiter.store.store import Store
from overlapiter.urls import is_url
from overlapiter.words import count_words, size_words

from .console import CommandError, Names, Progress, UsageError, printable, tell
from .crew import Crew, Part, parts_of
from .origins import add_reading, origin_of
from .place import add_directory, chosen, opened, recorded, source_words, store_of

_PART_FILES = 64
_DROPPED_AT_ONCE = 256
_CHUNK_BYTES = 1 << 20
_GONE = {errno.ENOENT, errno.ENOTDIR}
#: What the disk takes beyond the bytes of files, for its own lists of where they lie.
_SLACK_SHARE, _SLACK_BYTES = 0.02, 1 << 20
#: How a fault begins for which a copy is not dropped.
_UNKNOWN = "not compared, their sources cannot be read now"

#: What is wrong with staged files.
Faults = dict[StagedFile, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add_directory(parser, "check")
    add("--repair", action="store_true", help="drop what is bad, and count bytes anew")
    add("--checksum", action="store_true", help="read the sources, too: takes as long as staging")
    add_reading(parser)


def run(arguments: argparse.Namespace) -> int:
    """Check; return the exit code."""
    report = _Report(arguments)
    try:
        with opened(arguments.directory) as inventory:
            inventory.check()
            _check(inventory, arguments, report)
    except IndexDamagedError as error:
        directory = directory_path(arguments.directory)
        how = "" if arguments.repair else " by --repair, or by the next job"
        if arguments.repair:
            discard(generation_of(directory))
        text = f"the index of {directory} is damaged ({error}): what was staged is thrown away{how}"
        report.wrong(text, is_repaired=arguments.repair)
    return int(report.is_bad)


class _Report:
    """Prints what is good and what is wrong; ``is_bad`` if some of it was not repaired."""

    is_bad = False

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._arguments = arguments
        self._place = ""
        self._is_printed = True

    def begin(self, place: str) -> None:
        """Go on to a source root, or to the directory; its first line prints its name, too."""
        self._place = place
        self._is_printed = self._arguments.json

    def good(self, text: str, n: int, thing: str) -> None:
        """Tell of so many things that are right."""
        self._tell(f"  good     {text}", state="good", n=n, thing=thing)

    def wrong(self, text: str, n: int = 0, thing: str = "", *, is_repaired: bool = False) -> None:
        """Tell of something, or of a number of things."""
        number = f"{count_words(n, thing):>14}   " if thing else ""
        state = "repaired" if is_repaired else "wrong"
        facts = {"state": state, "n": n or None, "thing": thing or None, "what": text}
        self._tell(f"  {state:8} {number}{text}", **facts)
        self.is_bad |= not is_repaired

    def _tell(self, line: str, **facts: object) -> None:
        if not self._is_printed:
            print(self._place)
            self._is_printed = True
        tell(self._arguments, line, place=self._place, **facts)


def _check(inventory: Inventory, arguments: argparse.Namespace, report: _Report) -> None:
    sources = chosen(inventory, arguments, arguments.timeout)
    before = inventory.accounts()
    with contextlib.ExitStack() as stack:
        store = None
        if arguments.repair:
            store = store_of(inventory, sources[0], "check --repair")
            if inventory.is_copy:
                raise CommandError(
                    f"the disk of {inventory.directory} is full: make room with `overlapiter "
                    f"evict` first"
                )
            stack.enter_context(recorded(store, dict))
        for source in sources:
            try:
                verifier = _Verifier(inventory, source, arguments)
            except (OptionError, UsageError) as error:
                if arguments.source is not None:
                    raise
                report.begin(source_words(source.root, source.place))
                report.wrong(f"not compared: {error}")
            else:
                _check_files(verifier, store, report)
        report.begin(printable(inventory.directory))
        _check_segments(inventory, before, store, report)


def _check_files(verifier: _Verifier, store: Store | None, report: _Report) -> None:
    """Look at the files of a source root; drop those that are bad if there is a store."""
    n_unseen, n_good, faults = verifier.run()
    names: dict[str, list[str]] = defaultdict(list)
    for file, fault in faults.items():
        names[fault].append(file.name)
    repaired = {fault for fault in names if store is not None and not fault.startswith(_UNKNOWN)}
    if store is not None:
        bad = [file.extent for file, fault in faults.items() if fault in repaired]
        for some in parts_of(bad, _DROPPED_AT_ONCE):
            store.drop(some)
    report.begin(source_words(verifier.source.root, verifier.source.place))
    report.good(f"{count_words(n_good, 'file'):>14}", n_good, "file")
    for fault, some_names in names.items():
        text = f"{fault}: {Names(sorted(some_names))}"
        report.wrong(text, len(some_names), "file", is_repaired=fault in repaired)
    if n_unseen:
        text = "not looked at: the source has no answer; see whether it is mounted"
        report.wrong(text, n_unseen, "file")


def _check_segments(
    inventory: Inventory, before: Accounts, store: Store | None, report: _Report
) -> None:
    """Look whether anything was left behind, and whether the count of bytes in use is right."""
    now = before
    if store is not None:
        store.sweep()
        inventory.recount()
        now = inventory.accounts()
    if before.n_left:
        text = "left behind by jobs that were killed"
        report.wrong(text, before.n_left, "segment", is_repaired=not now.n_left)
    if not before.is_right:
        text = (
            f"the count of bytes in use says {before.total_bytes:,}, the segments say "
            f"{before.charged_bytes:,}, and {before.n_miscounted} of them other than their files"
        )
        report.wrong(text, is_repaired=now.is_right)
    if now.disk_bytes > now.charged_bytes * (1 + _SLACK_SHARE) + _SLACK_BYTES:
        report.wrong(
            f"the disk holds {size_words(now.disk_bytes)}, but {size_words(now.charged_bytes)} are "
            f"staged: something else writes there; `overlapiter evict --all` begins anew"
        )
    if not report.is_bad:
        text = f"nothing else is wrong, {now.total_bytes:,} bytes are in use"
        report.good(text, now.total_bytes, "byte")


def _is_mounted(root: str) -> bool:
    """Return whether anything lies below a source; a mount point without its mount is empty."""
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        return any(entries)
    return False


class _Verifier:
    """Compares the staged files of a ``source`` with their checksums and their sources."""

    def __init__(self, inventory: Inventory, source: Source, arguments: argparse.Namespace) -> None:
        n_reads = arguments.reads_in_flight
        self.source = source
        self._inventory = inventory
        self._is_reading = arguments.checksum
        origin = origin_of(source.root, arguments.storage_options, n_reads, source.place)
        self._crew = Crew[StagedFile, Faults](origin, self._look_at, n_reads, arguments.timeout)

    def run(self) -> tuple[int, int, Faults]:
        """Return how many files were not looked at, how many are good, and what is wrong."""
        faults: Faults = {}
        files = self._inventory.files([self.source], order="place")
        n_unseen = files.n_files
        parts = ({file.path: file for file in some} for some in parts_of(files, _PART_FILES))
        with Progress(files.n_files) as shown, contextlib.closing(self._crew.run(parts)) as done:
            for part, found in done:
                silent = f"{_UNKNOWN} ({self._crew.silence})"
                faults |= dict.fromkeys(part.values(), silent) if found is None else found
                n_unseen -= len(part)
                shown.advance(sum(file.extent.size for file in part.values()), len(part))
        # What jobs have replaced or evicted meanwhile is not wrong any more.
        keys = [file.extent.key for file in faults]
        there = set(self._inventory.files([self.source], keys=keys))
        faults = {file: fault for file, fault in faults.items() if file in there}
        return n_unseen, files.n_files - n_unseen - len(faults), faults

    def _look_at(self, part: Part[StagedFile]) -> Faults:
        with contextlib.closing(ExtentReader([self._inventory.directory])) as reader:
            faults = {file: self._fault_of(file, reader) for file in part.values()}
        return {file: fault for file, fault in faults.items() if fault}

    def _fault_of(self, file: StagedFile, reader: ExtentReader) -> str:
        """Look at a copy, and compare it with its source; return what is wrong, if anything."""
        extent, root = file.extent, self.source.root
        if not reader.is_right(extent):
            return "damaged, not what was copied"
        try:
            if self._crew.stat(file.path) != Original(extent.size, extent.mtime):
                return "outdated, their sources have changed"
            if self._is_reading and self._checksum_of_source(file) != extent.checksum:
                return "not what their sources hold, though size and mtime are the same"
        except OSError as error:
            reason = error.strerror or str(error)
            if error.errno in _GONE:
                if is_url(root) or self._crew.ask(file.path, lambda: _is_mounted(root)):
                    return "without a source, which was removed"
                reason = f"{root} is not there, empty or not readable: is it mounted?"
            return f"{_UNKNOWN} ({reason})"
        return ""

    def _checksum_of_source(self, file: StagedFile) -> int:
        checksum = Checksum(file.extent.key, file.extent.size, file.extent.mtime)
        with self._crew.open(file.path) as original:
            while piece := original.read(_CHUNK_BYTES):
                checksum.update(piece)
        return checksum.value()
