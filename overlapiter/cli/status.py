"""Show what a staging directory holds, who uses it, how full it is and how well it works.

Hit rates are those of opens of training files: from the staging directory, of all.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import json
import os
import time
from collections.abc import Mapping, Sequence

from overlapiter.options import check_count
from overlapiter.stats import StatsBoard
from overlapiter.store.inventory import Holding, Inventory, RunRow

from .console import duration_words, printable, size_words, table
from .place import add_directory, opened

EXAMPLES = """\
examples:
  overlapiter status /nvme/me
  overlapiter status /nvme/me --json | jq .holdings

exit code: 0, or 1 if it is no staging directory, or cannot be read"""

_SHOWN_RUNS = 10

#: What JSON gives for an object.
Facts = Mapping[str, object]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_directory(parser, "")
    parser.add_argument("--json", action="store_true", help="print JSON, all sizes in bytes")
    runs = "how many of the last runs to show (default: %(default)s)"
    parser.add_argument("--runs", metavar="N", type=int, default=_SHOWN_RUNS, help=runs)


def run(arguments: argparse.Namespace) -> int:
    """Show; return the exit code."""
    check_count("--runs", arguments.runs, minimum=0)
    with opened(arguments.directory) as inventory:
        held, space = inventory.holdings(), _space(inventory)
        runs = inventory.runs(arguments.runs)
    users = [_user(run, inventory.directory) for run in runs if run.ended_seconds is None]
    ended = [_ended(run) for run in runs if run.ended_seconds is not None]
    if arguments.json:
        holdings = [holding._asdict() for holding in held]
        facts = {"directory": inventory.directory, "holdings": holdings, "users": users}
        print(json.dumps({**facts, "disk": space, "runs": ended}, indent=2))
        return 0
    parts = [_held(held, space), _users(users), _full(space, users), _runs(ended)]
    print("\n\n".join([printable(inventory.directory), *parts]))
    return 0


# --- facts ----------------------------------------------------------------------------------------


def _space(inventory: Inventory) -> dict[str, int]:
    disk = os.statvfs(inventory.directory)
    return {
        "used_bytes": inventory.total_bytes(),
        "n_copying": inventory.n_copying(),
        "size_bytes": disk.f_blocks * disk.f_frsize,
        "free_bytes": disk.f_bavail * disk.f_frsize,
        "n_inodes": disk.f_files,  # 0 where the file system has no fixed number
        "n_free_inodes": disk.f_favail,
    }


def _user(run: RunRow, directory: str) -> Facts:
    tiers = _staging(run.facts).get("tiers")
    capacities = [
        tier.get("capacity_bytes")
        for tier in (tiers if isinstance(tiers, list) else [])
        if isinstance(tier, dict) and tier.get("directory") == directory
    ]
    return {
        **run.facts,
        "state": "running" if run.is_running else "killed",
        "started_seconds": run.started_seconds,
        "capacity_bytes": capacities[0] if capacities else None,
        "counters": _live_counters(run.facts) if run.is_running else {},
    }


def _ended(run: RunRow) -> Facts:
    times = {"started_seconds": run.started_seconds, "ended_seconds": run.ended_seconds}
    return {**run.facts, **times, "end": run.end, "counters": run.counters}


def _staging(facts: Facts) -> Facts:
    staging = facts.get("staging")
    return staging if isinstance(staging, dict) else {}


def _live_counters(facts: Facts) -> Facts:
    """Read the counters where the trainer keeps them: in memory that it holds open."""
    pid, inode, n_readers = (facts.get(n) for n in ("trainer_pid", "board_inode", "n_readers"))
    n_prefetchers = _staging(facts).get("n_prefetchers")
    if not isinstance(n_readers, int) or not isinstance(n_prefetchers, int):
        return {}
    with contextlib.suppress(OSError, ValueError):  # it has ended, or is in another container
        for name in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{name}"
            with contextlib.suppress(OSError):
                if os.stat(path).st_ino == inode and "memfd:overlapiter" in os.readlink(path):
                    return _counters(path, n_readers, n_prefetchers)
    return {}


def _counters(path: str, n_readers: int, n_prefetchers: int) -> Facts:
    with open(path, "r+b", buffering=0) as memory:
        if os.fstat(memory.fileno()).st_size != StatsBoard.size_bytes(n_readers, n_prefetchers):
            return {}  # of another version
        board = StatsBoard(memory.fileno(), n_readers, n_prefetchers)
    return dataclasses.asdict(board.snapshot(time.monotonic_ns()))


# --- words ----------------------------------------------------------------------------------------


def _held(held: Sequence[Holding], space: Mapping[str, int]) -> str:
    rows = [(printable(root), f"{n:,}", size_words(size_bytes)) for root, n, size_bytes in held]
    text = "Nothing is staged."
    if rows:
        text = "What is staged\n" + table(("source", "files", "size"), rows)
    if space["n_copying"]:
        text += f"\n  files being copied: {space['n_copying']:,}"
    return text


def _users(users: Sequence[Facts]) -> str:
    if not users:
        return "Who uses it: no run at present."
    rows = [
        (
            str(user["state"]),
            printable(f"{user.get('user', '')} {user.get('job', '')}".strip() or "-"),
            printable(f"{user.get('host', '')} {user.get('trainer_pid', '?')}".strip()),
            printable(str(user.get("command") or "?")),
            duration_words(max(0.0, time.time() - _number(user["started_seconds"]))),
            _hit_rate(user),
            _count(user, "files_staged"),
        )
        for user in users
    ]
    head = ("", "user", "process", "program", "for", "from staging", "files staged")
    return "Who uses it\n" + table(head, rows, n_left=4)


def _full(space: Mapping[str, int], users: Sequence[Facts]) -> str:
    lines = ["How full it is", f"  staged     {size_words(space['used_bytes'])} of the disk"]
    for capacity_bytes in sorted({_number(user["capacity_bytes"]) for user in users} - {0.0}):
        share = space["used_bytes"] / capacity_bytes
        lines.append(f"  capacity   {share:4.0%} used of {size_words(capacity_bytes)}")
    free = f"{size_words(space['free_bytes'])} of {size_words(space['size_bytes'])} free"
    used = 1 - space["free_bytes"] / max(space["size_bytes"], 1)
    lines.append(f"  disk       {used:4.0%} used, {free}")
    if space["n_inodes"]:
        used = 1 - space["n_free_inodes"] / space["n_inodes"]
        lines.append(f"  inodes     {used:4.0%} used, {space['n_free_inodes']:,} free")
    return "\n".join(lines)


def _runs(ended: Sequence[Facts]) -> str:
    if not ended:
        return "No run has ended yet."
    rows = []
    for run in ended:
        started, last = _number(run["started_seconds"]), _number(run["ended_seconds"])
        names = ("files_found_staged", "files_staged", "files_refused")
        rows.append(
            (
                datetime.datetime.fromtimestamp(last).strftime("%m-%d %H:%M"),
                printable(str(run.get("command") or "?"))[-40:],
                str(run["end"]),
                duration_words(max(0.0, last - started)),
                _hit_rate(run),
                *(_count(run, name) for name in names),
            )
        )
    head = ("ended", "program", "how", "took", "from staging", "times found", "staged")
    return "The last runs\n" + table((*head, "not staged"), rows, n_left=3)


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _hit_rate(run: Facts) -> str:
    hits, misses = (_number(_counter(run, name)) for name in ("opens_staged", "opens_source"))
    return f"{hits / (hits + misses):.1%}" if hits + misses else "-"


def _count(run: Facts, name: str) -> str:
    value = _counter(run, name)
    return "-" if value is None else f"{_number(value):,.0f}"


def _counter(run: Facts, name: str) -> object:
    counters = run["counters"]
    return counters.get(name) if isinstance(counters, Mapping) else None
