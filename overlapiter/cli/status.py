"""Show what a staging directory holds, who uses it, how full it is and how well it works.

Hit rates are those of opens of training files: from the staging directory, of all.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from collections.abc import Mapping, Sequence

from overlapiter.options import check_count
from overlapiter.staging.records import runs

from .console import duration_words, printable, progress, size_words, table
from .place import add_directory, check_is_staging, existing_directory
from .survey import Disk, Holding, User, disk_of, holdings, users

EXAMPLES = """\
examples:
  overlapiter status /nvme/me
  overlapiter status /nvme/me --json | jq .holdings

exit code: 0, or 1 if it is no staging directory, or cannot be read"""

_SHOWN_RUNS = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_directory(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, all sizes in bytes")
    parser.add_argument(
        "--runs",
        metavar="N",
        type=int,
        default=_SHOWN_RUNS,
        help="how many of the last runs to show (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Show; return the exit code."""
    check_count("--runs", arguments.runs, minimum=0)
    directory = existing_directory(arguments.directory)
    check_is_staging(directory)
    with progress(None, "files") as shown:
        held = holdings(directory, shown.advance)
    present = users(directory)
    ended = runs(directory)[-arguments.runs :] if arguments.runs > 0 else []
    disk = disk_of(directory)
    if arguments.json:
        facts = {
            "directory": directory,
            "holdings": [holding._asdict() for holding in held],
            "users": [user.facts() for user in present],
            "disk": disk._asdict(),
            "runs": ended,
        }
        print(json.dumps(facts, indent=2))
        return 0
    print(f"{printable(directory)}\n")
    print("\n\n".join([_held(held), _users(present), _disk(disk, held, present), _runs(ended)]))
    return 0


def _held(held: Sequence[Holding]) -> str:
    held = [holding for holding in held if holding.n_files or holding.n_partial]
    if not held:
        return "Nothing is staged."
    rows = [
        (
            printable(holding.source or f"? ({holding.name})"),
            f"{holding.n_files:,}",
            size_words(holding.size_bytes),
            f"{holding.n_partial:,}" if holding.n_partial else "",
        )
        for holding in held
    ]
    return "What is staged\n" + table(("source", "files", "size", "being copied"), rows)


def _users(present: Sequence[User]) -> str:
    if not present:
        return "Who uses it: nobody now."
    rows = [
        (
            user.state,
            printable(" ".join(filter(None, (user.name, user.job)))),
            printable(f"{user.host} {user.pid}"),
            printable(user.command),
            duration_words(max(0.0, time.time() - user.started_seconds)),
            _hit_rate(user.counters),
            _count(user.counters, "files_staged"),
        )
        for user in present
    ]
    head = ("", "user", "process", "program", "for", "from staging", "files staged")
    return "Who uses it\n" + table(head, rows, n_left=4)


def _disk(disk: Disk, held: Sequence[Holding], present: Sequence[User]) -> str:
    staged_bytes = sum(holding.size_bytes for holding in held)
    capacities = sorted({user.capacity_bytes for user in present if user.capacity_bytes})
    lines = ["How full it is"]
    for capacity_bytes in capacities:
        share = staged_bytes / capacity_bytes
        lines.append(f"  capacity   {share:4.0%} used of {size_words(capacity_bytes)}")
    used = 1 - disk.free_bytes / max(disk.size_bytes, 1)
    free = f"{size_words(disk.free_bytes)} of {size_words(disk.size_bytes)} free"
    lines.append(f"  disk       {used:4.0%} used, {free}")
    if disk.n_inodes:
        used = 1 - disk.n_free_inodes / disk.n_inodes
        lines.append(f"  inodes     {used:4.0%} used, {disk.n_free_inodes:,} free")
    return "\n".join(lines)


def _runs(ended: Sequence[Mapping[str, object]]) -> str:
    if not ended:
        return "No run has ended yet."
    rows = []
    for facts in reversed(ended):
        raw = facts.get("counters")
        counters: Mapping[str, object] = raw if isinstance(raw, dict) else {}
        started, last = _number(facts.get("started_seconds")), _number(facts.get("ended_seconds"))
        rows.append(
            (
                datetime.datetime.fromtimestamp(last).strftime("%m-%d %H:%M") if last else "?",
                printable(str(facts.get("command") or "?"))[-40:],
                str(facts.get("end", "?")),
                duration_words(max(0.0, last - started)),
                _hit_rate(counters),
                _count(counters, "files_found_staged"),
                _count(counters, "files_staged"),
                _count(counters, "files_refused"),
            )
        )
    head = (
        "ended",
        "program",
        "how",
        "took",
        "from staging",
        "times found",
        "staged",
        "not staged",
    )
    return "The last runs\n" + table(head, rows, n_left=3)


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _hit_rate(counters: Mapping[str, object]) -> str:
    hits, misses = (_number(counters.get(n)) for n in ("opens_staged", "opens_source"))
    return f"{hits / (hits + misses):.1%}" if hits + misses else "-"


def _count(counters: Mapping[str, object], name: str) -> str:
    return f"{_number(counters[name]):,.0f}" if name in counters else "-"
