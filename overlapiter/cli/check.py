"""Compare staged files with their sources, and find whatever else is wrong.

Looks at size and mtime of every staged file and of its source; with --checksum both are read and
compared byte by byte. Also found: files left half-copied by jobs that were killed, files that
others may read, links, files that overlapiter did not make, a wrong count of bytes in use.

--repair removes bad copies and leftovers, closes what others could read, and counts anew. What
overlapiter did not make is reported and never removed. Jobs may go on meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections import defaultdict
from collections.abc import Mapping

from overlapiter.options import check_count
from overlapiter.sources import source_root
from overlapiter.staging.folders import subdirectory
from overlapiter.staging.inventory import (
    Subdirectory,
    close_folders,
    entries,
    foreign_entries,
    is_staging_directory,
    open_folders,
    orphans,
)
from overlapiter.staging.marks import write_mark
from overlapiter.staging.tree import counted_bytes
from overlapiter.staging.usage import BusyError
from overlapiter.urls import is_url

from .console import count_words, names_words, printable, progress, size_words
from .origins import add_storage_options, origin_of, storage_options
from .place import add_directory, chosen, existing_directory, is_in_use
from .usage import count_of, forgetting, free, recount, sweep
from .verify import REMOVABLE, Fault, Finding, Verifier

EXAMPLES = """\
examples:
  overlapiter check /nvme/me
  overlapiter check /nvme/me --repair
  overlapiter check /nvme/me --checksum --source /lustre/imagenet

exit code: 0 if nothing is wrong, or all that was is repaired; otherwise 1"""

_READS_IN_FLIGHT = 64

_FOREIGN = "not made by overlapiter: left alone"
_WORDS = {
    Fault.OUTDATED: "outdated, their sources have changed",
    Fault.CORRUPTED: "corrupted, not what their sources hold",
    Fault.GONE: "without a source, which was removed",
    Fault.MODE: "open to others, by their mode",
    Fault.LINK: "links, not made by overlapiter: left alone",
    Fault.FOREIGN: _FOREIGN,
    Fault.UNVERIFIED: "not verified, their sources cannot be read now",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_directory(parser)
    parser.add_argument(
        "--source", metavar="SRC", help="check only what comes from this source root"
    )
    add_storage_options(parser)
    parser.add_argument(
        "--repair", action="store_true", help="remove what is bad, and count bytes anew"
    )
    parser.add_argument(
        "--checksum", action="store_true", help="read and compare contents, too: takes long"
    )
    parser.add_argument(
        "--reads-in-flight",
        metavar="N",
        type=int,
        default=_READS_IN_FLIGHT,
        help="sources to look at at the same time (default: %(default)s)",
    )


class Report:
    """Prints what is wrong as it is found.

    Attributes:
        is_bad: Whether something is wrong and was not repaired.
        n_notes: How much it has told.
    """

    def __init__(self) -> None:
        self.is_bad = False
        self.n_notes = 0

    def add(self, text: str, names: list[str], *, is_repaired: bool, thing: str = "file") -> None:
        """Tell of a number of things."""
        self.note(
            f"{count_words(len(names), thing):>14}   {text}: {names_words(names)}",
            is_repaired=is_repaired,
        )

    def note(self, text: str, *, is_repaired: bool = False) -> None:
        """Tell of something else."""
        print(f"  {'repaired' if is_repaired else 'wrong':8} {text}")
        self.is_bad |= not is_repaired
        self.n_notes += 1


def run(arguments: argparse.Namespace) -> int:
    """Check; return the exit code."""
    check_count("--reads-in-flight", arguments.reads_in_flight)
    directory = existing_directory(arguments.directory)
    report = Report()
    for sub in _named(directory, arguments):
        print(printable(sub.source or os.path.basename(sub.path)))
        if sub.source is None:
            report.note(
                "nobody knows its source: give it as --source, to check and (with --repair) note it"
            )
        elif not is_url(sub.source) and not os.path.isdir(sub.source):
            report.note(f"the source {printable(sub.source)} is not there: is it mounted?")
        else:
            _check_files(sub, arguments, report)
        _check_leftovers(directory, sub, report, is_repairing=arguments.repair)
    print(directory)
    _check_directory(directory, report, is_repairing=arguments.repair)
    return int(report.is_bad)


def _named(directory: str, arguments: argparse.Namespace) -> list[Subdirectory]:
    """Return what to check, and note the source of what has lost its mark."""
    if arguments.source is not None:
        source = source_root(arguments.source)
        for sub in chosen(directory, None):
            if sub.source is None and sub.path == subdirectory(directory, source):
                if arguments.repair:
                    write_mark(sub.path, source)
                return [sub._replace(source=source)]
    return chosen(directory, arguments.source)


def _check_files(sub: Subdirectory, arguments: argparse.Namespace, report: Report) -> None:
    assert sub.source is not None
    verifier = Verifier(
        sub,
        sub.source,
        origin_of(sub.source, storage_options(arguments), arguments.reads_in_flight),
        is_reading=arguments.checksum,
        n_reads=arguments.reads_in_flight,
    )
    n_files = 0
    bad: dict[Fault, dict[str, Finding]] = defaultdict(dict)
    with progress(None, "files") as shown, contextlib.closing(verifier.run()) as findings:
        for finding in findings:
            n_files += 1
            shown.advance(finding.size_bytes)
            if finding.fault is not None:
                bad[finding.fault][finding.name] = finding
    n_well = n_files - sum(map(len, bad.values()))
    print(f"  good     {count_words(n_well, 'file'):>14}")
    repaired = _repair(sub, bad) if arguments.repair else set()
    for fault, found in bad.items():
        names = sorted(found)
        reason = found[names[0]].reason
        text = _WORDS[fault] + (f" ({reason})" if reason else "")
        report.add(text, names, is_repaired=repaired.issuperset(names))


def _repair(sub: Subdirectory, bad: Mapping[Fault, Mapping[str, Finding]]) -> set[str]:
    """Remove bad copies and close open ones; return the names of those that are mended."""
    mended = set()
    forget = forgetting(os.path.dirname(sub.path), sub)

    def remove() -> int:
        removed_bytes = 0
        for entry in entries(sub):
            for fault, found in bad.items():
                finding = found.get(entry.name)
                if finding is None or finding.inode != entry.found.st_ino:
                    continue
                if fault in REMOVABLE:
                    removed_bytes += (counted_bytes(entry.found) or 0) if entry.remove() else 0
                    forget(entry.name)
                    mended.add(entry.name)
                elif fault is Fault.MODE and entry.found.st_uid == os.geteuid():
                    entry.restrict()
                    mended.add(entry.name)
        return removed_bytes

    free(os.path.dirname(sub.path), remove)
    return mended


def _check_leftovers(
    directory: str, sub: Subdirectory, report: Report, *, is_repairing: bool
) -> None:
    names = [os.path.basename(path) for path in orphans(sub)]
    if names:
        if is_repairing:
            sweep(directory, sub)
        are_gone = is_repairing and not orphans(sub)
        report.add("left half-copied by jobs that were killed", names, is_repaired=are_gone)
    names = [os.path.relpath(path, directory) for path in open_folders(sub)]
    if names:
        if is_repairing:
            close_folders(sub)
        report.add("open to others", names, is_repaired=is_repairing, thing="folder")


def _check_count(directory: str, report: Report, *, is_repairing: bool) -> None:
    counted_bytes, used_bytes = count_of(directory)
    if counted_bytes == used_bytes:
        return
    is_right = is_repairing and recount(directory)
    if counted_bytes is None or is_in_use(directory):  # jobs are ahead of files
        return
    report.note(
        f"the count of bytes in use says {counted_bytes:,}, but there are {used_bytes:,} "
        f"({size_words(used_bytes)})",
        is_repaired=is_right,
    )


def _is_staging(path: str) -> bool:
    with contextlib.suppress(OSError):
        return not os.path.islink(path) and is_staging_directory(path)
    return False


def _check_directory(directory: str, report: Report, *, is_repairing: bool) -> None:
    """Look at what belongs to no source."""
    n_notes = report.n_notes
    foreign = foreign_entries(directory)
    nested = [name for name in foreign if _is_staging(os.path.join(directory, name))]
    if nested:  # the directory of a tier in that of another one, for example
        text = "in here is another staging directory, which is checked by its own name"
        print(f"  note     {text}: {names_words(nested)}")
    foreign = [name for name in foreign if name not in nested]
    if foreign:
        report.add(_FOREIGN, foreign, is_repaired=False, thing="thing")
    try:
        _check_count(directory, report, is_repairing=is_repairing)
    except BusyError:
        report.note("another process keeps the count of bytes in use to itself; try again")
    if report.n_notes == n_notes:
        print("  good     nothing else is wrong")
