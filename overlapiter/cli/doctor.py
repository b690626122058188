"""Measure the slow store and this node, and recommend settings, with the reasons.

Reads files below --source that were not read before, with 1, 2, 4 … 128 reads in flight, each for
a second or two; stages files on the staging disk; looks at the limits of this process. What it
writes it removes. Run it on a compute node, for login nodes have other disks and limits.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sqlite3
import sys
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from overlapiter.errors import StagingError
from overlapiter.options import check_count, directory_path
from overlapiter.origins.origin import Origin
from overlapiter.sources import source_root
from overlapiter.store.generation import root_of
from overlapiter.store.inventory import Inventory
from overlapiter.urls import is_url

from . import advice
from .advice import Advice, knee
from .console import (
    CommandError,
    count_words,
    duration_words,
    is_terminal,
    size_words,
    table,
)
from .filelist import read_list
from .origins import add_storage_options, origin_of, storage_options
from .place import existing_directory
from .probe import (
    READS_IN_FLIGHT,
    DiskSpeed,
    FileSystem,
    Level,
    Node,
    UncachedOrigin,
    file_system_of,
    find_files,
    look_at_node,
    measure_disk,
    measure_source,
    scratch,
)

EXAMPLES = """\
examples:
  overlapiter doctor --source /lustre/imagenet --to /nvme/me
  overlapiter doctor train.txt --source /lustre/imagenet --to /nvme/me --ranks 4

exit code: 0, or 1 if the store or the disk cannot be measured"""

_SECONDS = 20.0
_COLUMNS = 100
_FINDING_SHARE, _SOURCE_SHARE, _DISK_SHARE = 0.1, 0.65, 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    files = "files to measure with, as for stage (default: what is found below SRC)"
    parser.add_argument("list", metavar="LIST", nargs="?", help=files)
    source = "root of the files on the slow store"
    parser.add_argument("--source", metavar="SRC", required=True, help=source)
    parser.add_argument("--to", metavar="DIR", help="the staging directory, to measure its disk")
    add_storage_options(parser)
    ranks = "training processes on this node, which share cores and reads (default: 1)"
    parser.add_argument("--ranks", metavar="N", type=int, default=1, help=ranks)
    seconds = "how long to measure, about (default: %(default)g)"
    parser.add_argument("--seconds", metavar="S", type=float, default=_SECONDS, help=seconds)
    parser.add_argument("--json", action="store_true", help="print JSON")


class Findings(NamedTuple):
    """All that was measured; ``dataset_bytes`` is estimated, None if that is not possible."""

    source: str
    directory: str | None
    levels: list[Level]
    disk: DiskSpeed | None
    place: FileSystem | None
    node: Node
    staged_bytes: int
    dataset_bytes: float | None
    n_ranks: int

    def advice(self) -> list[Advice]:
        """Return what to set."""
        best = knee(self.levels)
        return [
            advice.processes_advice(self.node, self.n_ranks),
            advice.prefetchers_advice(best, self.disk, self.node, self.n_ranks),
            advice.reads_advice(self.levels, self.n_ranks),
            advice.capacity_advice(self.place, self.staged_bytes, self.dataset_bytes),
        ]

    def warnings(self) -> list[str]:
        """Return what is in the way."""
        return advice.warnings(self.levels, self.disk, self.place, self.node)


def run(arguments: argparse.Namespace) -> int:
    """Measure and recommend; return the exit code."""
    check_count("--ranks", arguments.ranks)
    if not arguments.seconds > 0:
        raise CommandError("--seconds: give more than 0", is_usage=True)
    findings = _examine(arguments)
    print(json.dumps(_facts(findings), indent=2) if arguments.json else _report(findings))
    return 0


def _examine(arguments: argparse.Namespace) -> Findings:
    source, seconds = source_root(arguments.source), arguments.seconds
    try:
        levels, dataset_bytes = _measured_source(source, arguments)
        disk, place, staged_bytes, directory = None, None, 0, None
        if arguments.to is not None:
            directory = directory_path(arguments.to)
            with scratch(directory) as folder:
                _say_at("the staging disk")
                place = file_system_of(directory)
                small_bytes = max(1, round(knee(levels).file_bytes))
                disk = measure_disk(folder, small_bytes, seconds * _DISK_SHARE)
            if os.path.isdir(root_of(directory)):
                with contextlib.closing(Inventory(existing_directory(directory))) as inventory:
                    staged_bytes = inventory.total_bytes()
    except StagingError:
        raise
    except OSError as error:
        raise CommandError(
            f"the staging disk at {arguments.to} cannot be measured ({error.strerror or error}); name "
            f"a directory that you may write, whose parent exists"
        ) from error
    finally:
        _say_at("")
    node = look_at_node()
    facts = (source, directory, levels, disk, place, node, staged_bytes, dataset_bytes)
    return Findings(*facts, arguments.ranks)


def _measured_source(
    source: str, arguments: argparse.Namespace
) -> tuple[list[Level], float | None]:
    """Return what the source gives, and the size of the data set, if all its files are known."""
    origin: Origin = origin_of(source, storage_options(arguments), READS_IN_FLIGHT[-1])
    is_whole = True
    if arguments.list is not None:
        paths = read_list(arguments.list, source).paths
    elif is_url(source):
        raise CommandError("for a source that is a URL, name a LIST of files", is_usage=True)
    elif not os.path.isdir(source):
        message = f"{source} is no directory; check the path of the source, and the mount"
        raise CommandError(message, is_usage=True)
    else:
        _say_at("files below the source")
        paths, is_whole = find_files(source, arguments.seconds * _FINDING_SHARE)
    if not paths:
        raise CommandError(f"no file is found below {source}; check --source and LIST")

    def begin(n_reads: int) -> None:
        _say_at(f"the slow store with {count_words(n_reads, 'read')} in flight")

    origin = UncachedOrigin() if origin.is_local else origin
    levels = measure_source(origin, paths, arguments.seconds * _SOURCE_SHARE, begin)
    if not levels:
        raise CommandError(f"none of the files can be read, for example {paths[0]}; check LIST")
    n_bytes = sum(level.n_bytes for level in levels)
    mean_bytes = n_bytes / sum(level.n_files for level in levels)
    return levels, mean_bytes * len(paths) if is_whole else None


def _say_at(text: str) -> None:
    """Show what is being measured, in a terminal, in the place of what was."""
    if is_terminal():
        print(f"\r\033[Kmeasuring {text}" if text else "\r\033[K", end="", file=sys.stderr)
        sys.stderr.flush()


# --- the report -----------------------------------------------------------------------------------


def _facts(findings: Findings) -> dict[str, object]:
    advised = findings.advice()
    return {
        "source": findings.source,
        "directory": findings.directory,
        "levels": [
            {
                **level._asdict(),
                "files_per_second": level.files_per_second,
                "bytes_per_second": level.bytes_per_second,
            }
            for level in findings.levels
        ],
        "disk": findings.disk and findings.disk._asdict(),
        "file_system": findings.place and findings.place._asdict(),
        "node": findings.node._asdict(),
        "sqlite": sqlite3.sqlite_version,
        "dataset_bytes": findings.dataset_bytes,
        "recommended": {each.name: each.value for each in advised},
        "reasons": {each.name: each.reason for each in advised},
        "warnings": findings.warnings(),
    }


def _report(findings: Findings) -> str:
    notes = [textwrap.fill(f"Note: {text}.", _COLUMNS) for text in findings.warnings()]
    parts = [_source_table(findings), _node_table(findings), *notes, _recommendation(findings)]
    return "\n\n".join(parts)


def _source_table(findings: Findings) -> str:
    rows = [
        (
            f"{level.n_reads}",
            f"{level.files_per_second:,.0f}",
            f"{size_words(level.bytes_per_second)}/s",
            duration_words(level.latency_seconds),
            f"{level.n_files:,}",
        )
        for level in findings.levels
    ]
    head = ("reads in flight", "files/s", "throughput", "latency", "files read")
    text = f"The slow store, {findings.source}\n" + table(head, rows, n_left=0)
    most = findings.levels[-1].n_reads
    if len(findings.levels) < len(READS_IN_FLIGHT):
        text += f"\n  There are too few files to measure more than {most} reads in flight."
    return text


def _node_table(findings: Findings) -> str:
    node, disk, place = findings.node, findings.disk, findings.place
    rows: Sequence[tuple[str, str]] = ()
    if disk is not None and place is not None:
        free = f"{size_words(place.free_bytes)} of {size_words(place.size_bytes)} free"
        write, read, evict = (duration_words(seconds) for seconds in (
            disk.small_write_seconds, disk.small_read_seconds, disk.evict_seconds))  # fmt: skip
        rows = (
            ("staging disk", f"{place.kind}, {free}"),
            ("  large files", f"write {size_words(disk.write_bytes_per_second)}/s, "
                              f"read {size_words(disk.read_bytes_per_second)}/s"),
            (f"  files of {size_words(disk.small_bytes)}",
             f"stage {write}, read {read}, evict {evict}"),
            ("  locks, holes", f"yes, {'yes' if disk.has_holes else 'no'}"),
        )  # fmt: skip
    rows = (
        *rows,
        ("/dev/shm", f"{size_words(node.shm_bytes)} free" if node.shm_bytes else "none"),
        ("cores", f"{node.n_cores}"),
        ("memory", f"{size_words(node.memory_bytes)} available"),
        ("open files", f"{node.n_descriptors:,} (ulimit -n)" if node.n_descriptors else "no limit"),
        ("processes", f"{node.n_processes:,} (ulimit -u)" if node.n_processes else "no limit"),
        ("SQLite", sqlite3.sqlite_version),
    )
    width = max(len(name) for name, _ in rows)
    return "This node\n" + "\n".join(f"  {name:{width}}   {text}" for name, text in rows)


def _recommendation(findings: Findings) -> str:
    advised = findings.advice()
    width = max(len(f"{each.name} = {each.value}") for each in advised) + 5
    lines = [
        textwrap.fill(
            each.reason,
            _COLUMNS,
            initial_indent=f"  {each.name} = {each.value}".ljust(width),
            subsequent_indent=" " * width,
        )
        for each in advised
    ]
    n_processes, *others = advised
    directory = findings.directory or "/path/to/a/disk/of/this/node"
    options = "".join(f", {each.name}={each.value!r}" for each in others if each.value is not None)
    return "\n".join(
        [
            "Recommended",
            *lines,
            "",
            "  overlapiter.OverlapIterator(",
            f"      train, batch_size, n_processes={n_processes.value},",
            "      staging=overlapiter.Staging(",
            f"          {directory!r}, source={findings.source!r}{options}",
            "      ),",
            "  )",
        ]
    )
