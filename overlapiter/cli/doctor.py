"""Measure the slow store and this node, and recommend settings, with the reasons.

Reads files below --source that were not read before, and tunes the number of reads in flight as a
job does; stages files on the staging disk; looks at the limits of this process. What it writes it
removes. Run it on a compute node, for login nodes have other disks and limits.

Examples:
  overlapiter doctor --source /lustre/imagenet --to /nvme/me
  overlapiter doctor --source /lustre/imagenet --to /nvme/me --save node.json
  overlapiter doctor train.txt --source /lustre/imagenet --to /nvme/me --ranks 4

exit code: 0, or 1 if the store or the disk cannot be measured
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import sqlite3
import sys
import textwrap
from typing import Any, NamedTuple

from overlapiter.errors import StagingError
from overlapiter.options import MAX_READS_IN_FLIGHT
from overlapiter.origins.origin import Origin
from overlapiter.planning import check_apart
from overlapiter.sources import source_root
from overlapiter.store.index import IndexBusyError
from overlapiter.store.inventory import Inventory
from overlapiter.urls import is_url
from overlapiter.words import duration_words, size_words

from . import advice, probe, sourcespeed
from .console import CommandError, UsageError, at_least, is_terminal, seconds, table, tell
from .crew import answered
from .filelist import add_list, read_list
from .origins import TIMEOUT_SECONDS, add_storage_options, origin_of, source_name
from .place import existing_directory, new_directory

_SECONDS = 20.0
_COLUMNS = 100
_FINDING_SHARE, _SOURCE_SHARE, _DISK_SHARE = 0.1, 0.65, 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add = parser.add_argument
    add_list(parser, "files to measure with, as for stage (default: what is found below SRC)", "?")
    source = "root of the files on the slow store"
    add("--source", metavar="SRC", type=source_name, required=True, help=source)
    add("--to", metavar="DIR", help="the staging directory, to measure its disk")
    add_storage_options(parser)
    ranks = "training processes on this node, which share cores and reads (default: 1)"
    add("--ranks", metavar="N", type=at_least(1), default=1, help=ranks)
    length = "how long to measure, about (default: %(default)g)"
    add("--seconds", metavar="S", type=seconds, default=_SECONDS, help=length)
    save = "write the JSON to this file, too, for `overlapiter plan`"
    add("--save", metavar="PROFILE", help=save)


class _Findings(NamedTuple):
    """What was measured; of the data set the size is an estimate, if all its files are known.

    ``unread`` are files that could not be read, ``unlisted`` folders, with the reasons.
    """

    source: str
    directory: str | None
    levels: list[sourcespeed.Level]
    unread: dict[str, str]
    unlisted: dict[str, str]
    mean_bytes: float
    dataset_bytes: float | None
    node: probe.Node
    disk: probe.DiskSpeed | None
    file_system: probe.FileSystem | None
    staged_bytes: int


def run(arguments: argparse.Namespace) -> int:
    """Measure and recommend; return the exit code."""
    save = arguments.save
    place = save if save and os.path.exists(save) else os.path.dirname(save or "") or "."
    if save and (os.path.isdir(save) or not os.access(place, os.W_OK)):
        raise UsageError(f"--save: {save} cannot be written; name a file in a folder of yours")
    try:
        found = _measured(arguments)
    finally:
        _say_at("")
    levels, disk, node = found.levels, found.disk, found.node
    advised = [
        advice.processes_advice(node, arguments.ranks),
        advice.reads_advice(levels, disk, node, arguments.ranks),
        advice.capacity_advice(found.file_system, found.staged_bytes, found.dataset_bytes),
    ]
    notes = advice.warnings(levels, disk, found.file_system, node)
    notes += advice.notes_on(found.unread, "file", "read")
    notes += advice.notes_on(found.unlisted, "folder", "listed")
    facts = {
        **{name: _plain(value) for name, value in found._asdict().items()},
        "sqlite": sqlite3.sqlite_version,
        "recommended": {each.name: each.value for each in advised},
        "reasons": {each.name: each.reason for each in advised},
        "warnings": notes,
    }
    noted = [textwrap.fill(f"Note: {text}.", _COLUMNS) for text in notes]
    tables = [_source_table(found), _node_table(found)]
    has_options = bool(arguments.storage_options)
    text = "\n\n".join([*tables, *noted, _recommendation(found, advised, has_options)])
    tell(arguments, text, **facts)
    if save:
        with open(save, "w") as file:  # its folder may be another's
            file.write(json.dumps(facts, indent=2) + "\n")
    return 0


def _plain(value: Any) -> Any:
    """Return named tuples as objects of JSON."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value._asdict() if hasattr(value, "_asdict") else value


def _measured(arguments: argparse.Namespace) -> _Findings:
    """Measure what the source gives, and the disk, if one is named; look at this node."""
    source = source_root(arguments.source)
    directory = None if arguments.to is None else new_directory("--to", arguments.to)
    origin: Origin = sourcespeed.UncachedOrigin()
    if is_url(source):
        origin = origin_of(source, arguments.storage_options, MAX_READS_IN_FLIGHT)
    elif not answered(source, lambda: os.path.isdir(source), TIMEOUT_SECONDS):
        raise UsageError(f"{source} is no directory; check the path of the source, and the mount")
    check_apart(source, [directory] if directory else [])
    paths, is_whole, unlisted = _files(source, arguments)
    if not paths:
        raise CommandError(
            f"no file is found below {source}; check --source, whether you may read it"
            f"{''.join(f' ({reason})' for reason in unlisted.values())[:80]}, and LIST"
        )

    for_seconds = arguments.seconds * _SOURCE_SHARE
    levels, unread = sourcespeed.measure(
        origin, paths, for_seconds, lambda n: _say_at(f"the slow store, reads in flight: {n}")
    )
    if not levels:
        path, reason = next(iter(unread.items()), (paths[0], "no answer"))
        raise CommandError(f"no file can be read, {path} for example ({reason}); check LIST")
    mean_bytes = sum(level.n_bytes for level in levels) / sum(level.n_files for level in levels)
    dataset_bytes = mean_bytes * len(paths) if is_whole else None
    of_store = source, directory, levels, unread, unlisted, mean_bytes, dataset_bytes
    node = probe.look_at_node()
    if directory is None:
        return _Findings(*of_store, node, None, None, 0)
    for_seconds = arguments.seconds * _DISK_SHARE
    return _Findings(*of_store, node, *_measured_disk(directory, mean_bytes, for_seconds))


def _files(source: str, arguments: argparse.Namespace) -> tuple[list[str], bool, dict[str, str]]:
    """Return files to measure with; see :func:`.sourcespeed.find_files`."""
    if arguments.list is not None:
        return read_list(arguments.list, source, is_null=arguments.null).paths, True, {}
    if is_url(source):
        raise UsageError("for a source that is a URL, name a LIST of files")
    _say_at("files below the source")
    return sourcespeed.find_files(source, arguments.seconds * _FINDING_SHARE)


def _measured_disk(
    directory: str, mean_bytes: float, for_seconds: float
) -> tuple[probe.DiskSpeed, probe.FileSystem, int]:
    """Measure the disk of the staging directory; return where that is, and what is staged, too."""
    try:
        with probe.scratch(directory) as folder:
            _say_at("the staging disk")
            place = probe.file_system_of(folder)
            disk = probe.measure_disk(folder, max(1, round(mean_bytes)), for_seconds)
        staged_bytes = 0
        if os.path.isdir(directory):
            existing_directory(directory)
            no_index = contextlib.suppress(FileNotFoundError)  # nothing was ever staged there
            with no_index, contextlib.closing(Inventory(directory)) as inventory:
                staged_bytes = inventory.total_bytes()
    except (StagingError, IndexBusyError):
        raise
    except OSError as error:
        what_to_do = "name a directory that you may write, whose parent exists"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            what_to_do = "free some space there: what is written to measure it does not fit"
        raise CommandError(
            f"the staging disk at {directory} cannot be measured ({error.strerror or error}); "
            f"{what_to_do}"
        ) from error
    return disk, place, staged_bytes


def _say_at(text: str) -> None:
    """Show what is being measured, in a terminal, in the place of what was."""
    if is_terminal():
        print(f"\r\033[Kmeasuring {text}" if text else "\r\033[K", end="", file=sys.stderr)
        sys.stderr.flush()


# --- the report -----------------------------------------------------------------------------------


def _source_table(found: _Findings) -> str:
    rows = [
        (
            f"{level.n_reads}",
            f"{level.files_per_second:,.0f}",
            f"{size_words(level.bytes_per_second)}/s",
            duration_words(level.latency_seconds),
            f"{level.n_files:,.0f}",
            duration_words(level.seconds),
        )
        for level in found.levels
    ]
    head = ("reads in flight", "files/s", "throughput", "latency", "files read", "for")
    return f"The slow store, {found.source}\n" + table(head, rows, n_left=0)


def _node_table(found: _Findings) -> str:
    node, disk, place = found.node, found.disk, found.file_system
    rows = {}
    if disk is not None and place is not None:
        free, size = size_words(place.free_bytes), size_words(place.size_bytes)
        write = size_words(disk.write_bytes_per_second)
        read = size_words(disk.read_bytes_per_second)
        small = (disk.small_write_seconds, disk.small_read_seconds, disk.evict_seconds)
        words = zip(("stage", "read", "evict"), map(duration_words, small), strict=True)
        rows["staging disk"] = f"{place.kind}, {free} of {size} free"
        rows["  large files"] = f"write {write}/s, read {read}/s"
        rows[f"  files of {size_words(disk.small_bytes)}"] = ", ".join(map(" ".join, words))
        rows["  locks, holes"] = f"yes, {'yes' if disk.has_holes else 'no'}"
    rows |= {
        "/dev/shm": f"{size_words(node.shm_bytes)} free" if node.shm_bytes else "none",
        "cores": f"{node.n_cores}",
        "memory": f"{size_words(node.memory_bytes)} available",
        "open files": f"{node.n_descriptors:,} (ulimit -n)" if node.n_descriptors else "no limit",
        "processes": f"{node.n_processes:,} (ulimit -u)" if node.n_processes else "no limit",
        "SQLite": sqlite3.sqlite_version,
    }
    return "This node\n" + table((), [*rows.items()], n_left=2)


def _recommendation(found: _Findings, advised: list[advice.Advice], has_options: bool) -> str:
    rows = [(name if value is None else f"{name} = {value}", why) for name, value, why in advised]
    n_processes, *others = advised
    directory = found.directory or "/path/to/a/disk/of/this/node"
    options = "".join(f", {each.name}={each.value!r}" for each in others if each.value is not None)
    options += ", storage_options=..." if has_options else ""  # of which some are secret
    return "\n".join(
        [
            "Recommended",
            table((), rows, n_left=2, width=_COLUMNS),
            "",
            "  overlapiter.OverlapIterator(",
            f"      train, batch_size, n_processes={n_processes.value},",
            "      staging=overlapiter.Staging(",
            f"          {directory!r}, source={found.source!r}{options}",
            "      ),",
            "  )",
        ]
    )
