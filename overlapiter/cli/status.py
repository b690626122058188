"""Show what a staging directory holds, who uses it, how full it is and how well it works.

"waited" is the share of its time for which a training waited for data, its start included. Hit
rates are those of opens of training files: from the staging directory, of all.

Examples:
  overlapiter status /nvme/me
  overlapiter status /nvme/me --json | jq .holdings

exit code: 0, or 1 if it is no staging directory, or cannot be read
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import time

from overlapiter.stats import snapshot
from overlapiter.store.inventory import Facts, Inventory
from overlapiter.words import duration_words, size_words

from .console import at_least, printable, table, tell
from .jobs import boards_of
from .place import add_directory, opened, source_words

_SHOWN_RUNS = 10
_PROGRAM_LETTERS = 40


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_directory(parser, "")
    runs = "how many of the last runs to show (default: %(default)s)"
    parser.add_argument("--runs", metavar="N", type=at_least(0), default=_SHOWN_RUNS, help=runs)


def run(arguments: argparse.Namespace) -> int:
    """Show; return the exit code."""
    n_runs = min(arguments.runs, sys.maxsize)
    with opened(arguments.directory) as inventory:
        held, disk, runs = inventory.holdings(), _disk(inventory), inventory.runs(n_runs)
    users = [_user(run, inventory.directory) for run in runs if run["ended_seconds"] is None]
    ended = [run for run in runs if run["ended_seconds"] is not None]
    parts = [printable(inventory.directory), _held(held, disk), _users(users), _full(disk, users)]
    parts += [_runs(ended)] if n_runs else []
    facts = {"directory": inventory.directory, "holdings": held, "users": users}
    tell(arguments, "\n\n".join(parts), **facts, disk=disk, runs=ended)
    return 0


# --- facts ----------------------------------------------------------------------------------------


def _disk(inventory: Inventory) -> Facts:
    disk = os.statvfs(inventory.directory)
    ((n_copying,),) = inventory.select("SELECT COUNT(*) FROM copying")
    return {
        "staged_bytes": inventory.total_bytes(),
        "n_copying": n_copying,
        "size_bytes": disk.f_blocks * disk.f_frsize,
        "free_bytes": disk.f_bavail * disk.f_frsize,
        "n_inodes": disk.f_files,  # 0 where the file system has no fixed number
        "n_free_inodes": disk.f_favail,
    }


def _user(run: Facts, directory: str) -> Facts:
    """Return a run that goes on, with its capacity, and with its counters at this moment."""
    user = {**run, "state": run["end"], "capacity_bytes": None}
    with contextlib.suppress(KeyError, TypeError):  # it is a command, or of another version
        for tier in run["staging"]["tiers"]:
            if tier["directory"] == directory:
                user["capacity_bytes"] = tier["capacity_bytes"]
        for board, inode in boards_of(run["trainer_pid"]):
            if inode == run["board_inode"]:
                user["counters"] = snapshot(board).as_dict()
    return user


# --- words ----------------------------------------------------------------------------------------


def _held(held: list[Facts], disk: Facts) -> str:
    text = "Nothing is staged."
    if held:
        rows = []
        for each in held:
            n_files, size = f"{each['n_files']:,}", size_words(each["size_bytes"])
            rows.append((source_words(each["source"], each["place"]), n_files, size))
        text = "What is staged\n" + table(("source", "files", "size"), rows)
    return text + (f"\n  files being copied: {disk['n_copying']:,}" if disk["n_copying"] else "")


def _users(users: list[Facts]) -> str:
    if not users:
        return "Who uses it: no run at present."
    rows = []
    for user in users:
        who = _text(user, "user", "job"), _text(user, "host", "trainer_pid"), _program(user)
        waited, hit_rate, _, n_staged, _ = _counted(user)
        rows.append((user["state"], *who, _took(user, time.time()), waited, hit_rate, n_staged))
    head = ("", "user", "process", "program", "for", "waited", "from staging", "files staged")
    return "Who uses it\n" + table(head, rows, n_left=4)


def _full(disk: Facts, users: list[Facts]) -> str:
    rows = [("staged", f"{size_words(disk['staged_bytes'])} of the disk")]
    capacities = {user["capacity_bytes"] for user in users}
    for capacity_bytes in sorted(each for each in capacities if isinstance(each, int) and each):
        share = disk["staged_bytes"] / capacity_bytes
        rows.append(("capacity", f"{share:4.0%} used of {size_words(capacity_bytes)}"))
    used = 1 - disk["free_bytes"] / max(disk["size_bytes"], 1)
    free = f"{size_words(disk['free_bytes'])} of {size_words(disk['size_bytes'])} free"
    rows.append(("disk", f"{used:4.0%} used, {free}"))
    if disk["n_inodes"]:
        used = 1 - disk["n_free_inodes"] / disk["n_inodes"]
        rows.append(("inodes", f"{used:4.0%} used, {disk['n_free_inodes']:,} free"))
    return "How full it is\n" + table((), rows, n_left=2)


def _runs(ended: list[Facts]) -> str:
    if not ended:
        return "No run has ended yet."
    rows = []
    for run in ended:
        at_seconds = run["ended_seconds"]
        at = time.strftime("%m-%d %H:%M", time.localtime(at_seconds))
        took = _took(run, at_seconds)
        rows.append((at, _program(run), run["end"], took, *_counted(run)))
    head = ("ended", "program", "how", "took", "waited", "from staging", "times found", "staged")
    return "The last runs\n" + table((*head, "times refused"), rows, n_left=3)


def _text(run: Facts, *names: str) -> str:
    return printable(" ".join(f"{run[name]}" for name in names if run.get(name))) or "-"


def _program(run: Facts) -> str:
    """Return what runs, without the folders; what is left out stands at the end."""
    words = " ".join(os.path.basename(word) for word in _text(run, "command").split())
    return words if len(words) <= _PROGRAM_LETTERS else f"{words[:_PROGRAM_LETTERS]}…"


def _took(run: Facts, until_seconds: float) -> str:
    return duration_words(max(0.0, until_seconds - run["started_seconds"]))


def _counted(run: Facts) -> tuple[str, ...]:
    """Write how long a run has waited, the share of hits, and files found, staged, refused."""
    counters = {name: n for name, n in run["counters"].items() if isinstance(n, (int, float))}
    hits, misses = counters.get("opens_staged", 0), counters.get("opens_source", 0)
    hit_rate = "no open seen" if counters.get("examples_unseen") else "-"
    if hits + misses:
        hit_rate = f"{hits / (hits + misses):.1%}"
    waited = f"{counters['wait_share']:.0%}" if "wait_share" in counters else "-"
    names = ("files_found_staged", "files_staged", "files_refused")
    return waited, hit_rate, *(f"{counters[n]:,.0f}" if n in counters else "-" for n in names)
