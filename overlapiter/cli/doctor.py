"""Measure the slow store and this node, and recommend settings, with the reasons.

Reads files below --source that were not read before, with 1, 2, 4 … 128 reads in flight, each for
a second or two; writes to and reads from the staging disk; looks at the limits of this process.
What it writes it removes. Run it on a compute node, for login nodes have other disks and limits.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from overlapiter.options import check_count, directory_path
from overlapiter.origins.origin import Origin
from overlapiter.sources import source_root
from overlapiter.staging.inventory import Kind, entries, subdirectories
from overlapiter.urls import is_url

from .advice import (
    Advice,
    capacity_advice,
    knee,
    prefetchers_advice,
    processes_advice,
    reads_advice,
    warnings,
)
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
from .probe_node import (
    DiskSpeed,
    FileSystem,
    Node,
    file_system_of,
    look_at_node,
    measure_disk,
    scratch,
)
from .probe_source import READS_IN_FLIGHT, Level, Sample, find_files, measure

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
    parser.add_argument(
        "list",
        metavar="LIST",
        nargs="?",
        help="files to measure with, as for stage (default: what is found below SRC)",
    )
    parser.add_argument(
        "--source", metavar="SRC", required=True, help="root of the files on the slow store"
    )
    parser.add_argument("--to", metavar="DIR", help="the staging directory, to measure its disk")
    add_storage_options(parser)
    parser.add_argument(
        "--ranks",
        metavar="N",
        type=int,
        default=1,
        help="training processes on this node, which share cores and reads (default: 1)",
    )
    parser.add_argument(
        "--seconds",
        metavar="S",
        type=float,
        default=_SECONDS,
        help="how long to measure, about (default: %(default)g)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


class Findings(NamedTuple):
    """All that was measured."""

    source: str
    directory: str | None
    n_files: int
    is_whole: bool
    levels: list[Level]
    disk: DiskSpeed | None
    place: FileSystem | None
    node: Node
    staged_bytes: int
    n_ranks: int

    @property
    def dataset_bytes(self) -> float | None:
        """Size of the data set, estimated from the files that were read."""
        n_files = sum(level.n_files for level in self.levels)
        n_bytes = sum(level.n_bytes for level in self.levels)
        return n_bytes / max(n_files, 1) * self.n_files if self.is_whole else None

    def advice(self) -> list[Advice]:
        """Return what to set."""
        best = knee(self.levels)
        return [
            processes_advice(self.node, self.n_ranks),
            prefetchers_advice(best, self.disk, self.node, self.n_ranks),
            reads_advice(self.levels, self.n_ranks),
            capacity_advice(self.place, self.staged_bytes, self.dataset_bytes),
        ]

    def warnings(self) -> list[str]:
        """Return what is in the way."""
        return warnings(self.levels, self.disk, self.place, self.node)


def run(arguments: argparse.Namespace) -> int:
    """Measure and recommend; return the exit code."""
    check_count("--ranks", arguments.ranks)
    if not arguments.seconds > 0:
        raise CommandError("--seconds: give more than 0", is_usage=True)
    findings = _examine(arguments)
    if arguments.json:
        print(json.dumps(_facts(findings), indent=2))
    else:
        print(_report(findings))
    return 0


def _examine(arguments: argparse.Namespace) -> Findings:
    source = source_root(arguments.source)
    origin = origin_of(source, storage_options(arguments), READS_IN_FLIGHT[-1])
    if is_url(source) and arguments.list is None:
        raise CommandError("for a source that is a URL, name a LIST of files", is_usage=True)
    sample = _sample(arguments.list, source, arguments.seconds * _FINDING_SHARE)
    levels = _measured(origin, sample.paths, arguments.seconds * _SOURCE_SHARE)
    directory = None if arguments.to is None else directory_path(arguments.to)
    disk, place, staged_bytes = None, None, 0
    if directory is not None:
        small_bytes = max(1, round(knee(levels).file_bytes))
        try:
            with scratch(directory) as folder:
                _say_at("the staging disk")
                place = file_system_of(directory)
                disk = measure_disk(folder, small_bytes, arguments.seconds * _DISK_SHARE)
                staged_bytes = _staged_bytes(directory)
        except OSError as error:
            raise CommandError(
                f"the staging disk at {directory} cannot be measured ({error.strerror or error}); "
                f"name a directory that you may write, whose parent exists"
            ) from error
        finally:
            _say_at("")
    return Findings(
        source=source,
        directory=directory,
        n_files=len(sample.paths),
        is_whole=sample.is_whole,
        levels=levels,
        disk=disk,
        place=place,
        node=look_at_node(),
        staged_bytes=staged_bytes,
        n_ranks=arguments.ranks,
    )


def _sample(name: str | None, source: str, seconds: float) -> Sample:
    if name is None:
        _say_at("files below the source")
        sample = find_files(source, seconds)
    else:
        sample = Sample(read_list(name, source).paths, is_whole=True)
        random.shuffle(sample.paths)
    if not sample.paths:
        raise CommandError(f"no file is found below {source}; check --source and LIST")
    return sample


def _measured(origin: Origin, paths: Sequence[str], seconds: float) -> list[Level]:
    def begin(n_reads: int) -> None:
        _say_at(f"the slow store with {count_words(n_reads, 'read')} in flight")

    try:
        levels = list(measure(origin, paths, seconds, begin))
    finally:
        _say_at("")
    if not levels:
        raise CommandError(f"none of the files can be read, for example {paths[0]}; check LIST")
    return levels


def _staged_bytes(directory: str) -> int:
    return sum(
        entry.found.st_size
        for sub in subdirectories(directory)
        for entry in entries(sub)
        if entry.kind is Kind.FILE
    )


def _say_at(text: str) -> None:
    """Show what is being measured, in a terminal, in the place of what was."""
    if is_terminal():
        print(f"\r\033[Kmeasuring {text}" if text else "\r\033[K", end="", file=sys.stderr)
        sys.stderr.flush()


# --- the report -------------------------------------------------------------------------------


def _facts(findings: Findings) -> dict[str, object]:
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
        "dataset_bytes": findings.dataset_bytes,
        "recommended": {advice.name: advice.value for advice in findings.advice()},
        "reasons": {advice.name: advice.reason for advice in findings.advice()},
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
    rows = []
    if disk is not None and place is not None:
        free = f"{size_words(place.free_bytes)} of {size_words(place.size_bytes)} free"
        rows += [
            ("staging disk", f"{place.kind}, {free}"),
            ("  large files", f"write {size_words(disk.write_bytes_per_second)}/s, "
                              f"read {size_words(disk.read_bytes_per_second)}/s"),
            (f"  files of {size_words(disk.small_bytes)}",
             f"write {duration_words(disk.small_write_seconds)}, "
             f"read {duration_words(disk.small_read_seconds)}"),
        ]  # fmt: skip
    rows += [
        ("/dev/shm", f"{size_words(node.shm_bytes)} free" if node.shm_bytes else "none"),
        ("cores", f"{node.n_cores}"),
        ("memory", f"{size_words(node.memory_bytes)} available"),
        ("open files", f"{node.n_descriptors:,} (ulimit -n)" if node.n_descriptors else "no limit"),
        ("processes", f"{node.n_processes:,} (ulimit -u)" if node.n_processes else "no limit"),
    ]
    width = max(len(name) for name, _ in rows)
    return "This node\n" + "\n".join(f"  {name:{width}}   {text}" for name, text in rows)


def _recommendation(findings: Findings) -> str:
    advice = findings.advice()
    width = max(len(f"{item.name} = {item.value}") for item in advice) + 5
    lines = [
        textwrap.fill(
            item.reason,
            _COLUMNS,
            initial_indent=f"  {item.name} = {item.value}".ljust(width),
            subsequent_indent=" " * width,
        )
        for item in advice
    ]
    values = {item.name: item.value for item in advice}
    n_processes = values.pop("n_processes")
    directory = findings.directory or "/path/to/a/disk/of/this/node"
    options = "".join(f", {name}={value!r}" for name, value in values.items() if value is not None)
    return "\n".join(
        [
            "Recommended",
            *lines,
            "",
            "  overlapiter.OverlapIterator(",
            f"      train, batch_size, n_processes={n_processes},",
            "      staging=overlapiter.Staging(",
            f"          {directory!r}, source={findings.source!r}{options}",
            "      ),",
            "  )",
        ]
    )
