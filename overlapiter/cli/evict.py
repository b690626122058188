"""Remove staged files, or what an earlier version of overlapiter has staged.

Say which: --all, --older-than, --to-free, --matching, or a LIST of files. Nothing is lost: who
needs a removed file reads it from the source again, and running jobs stage it anew. So it is safe
while jobs use the directory, which only become slower for a while; the command says so.

Examples:
  overlapiter evict /nvme/me --to-free 50GB
  overlapiter evict /nvme/me --older-than 7d --dry-run
  overlapiter evict /nvme/me --source /lustre/imagenet --all --yes
  overlapiter evict /nvme/me --old

exit code: 0, or 1 if you said no, or something could not be removed
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import time

from overlapiter.options import parse_size
from overlapiter.sources import source_root
from overlapiter.store.extents import keys_of
from overlapiter.store.generation import old_store
from overlapiter.store.inventory import Inventory, Listing, Source
from overlapiter.store.segments import aligned
from overlapiter.words import count_words, size_words

from . import place
from .console import Names, Progress, UsageError, is_confirmed, say, tell
from .crew import parts_of
from .filelist import add_list, read_list

_AGE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*(s|min|h|d|w)\s*")
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_AT_ONCE = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    place.add_directory(parser, "remove")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="remove all staged files")
    older = "remove what was staged so long ago: 30min, 12h, 7d, 2w"
    which.add_argument("--older-than", metavar="AGE", type=_age, help=older)
    which.add_argument(
        "--to-free",
        metavar="SIZE",
        help="remove so much, first what no job uses and what was used the longest ago: 50GB, or "
        "10%% of what is staged",
    )
    matching = "remove the files of this pattern, as for ls"
    which.add_argument("--matching", metavar="PATTERN", help=matching)
    old = "remove what an earlier version of overlapiter has staged there, and nothing else"
    which.add_argument("--old", action="store_true", help=old)
    add_list(parser, "remove the files that this list names, as for stage", "?")
    parser.add_argument("--yes", action="store_true", help="do not ask, in a terminal")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")


def _age(text: str) -> float:
    """Return an age in seconds: the type of an argument."""
    match = _AGE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no age; write 30min, 12h, 7d or 2w")
    return float(match[1]) * _SECONDS[match[2]]


def run(arguments: argparse.Namespace) -> int:
    """Evict; return the exit code."""
    chosen = (arguments.older_than, arguments.to_free, arguments.matching, arguments.list)
    if arguments.all + arguments.old + sum(option is not None for option in chosen) != 1:
        raise UsageError(
            "say what to remove: one of --all, --older-than, --to-free, --matching, --old, and a "
            "LIST"
        )
    if arguments.old and arguments.source is not None:
        raise UsageError("--old: leave out --source; what an earlier version left goes as a whole")
    if arguments.old:
        directory = place.existing_directory(arguments.directory, tells_old=False)
        return _remove_old(directory, arguments)
    with place.opened(arguments.directory) as inventory:
        sources = place.chosen(inventory, arguments)
        files = _listing(inventory, sources, arguments)
        keys, size_bytes, names = _victims(files, arguments.to_free, inventory.block_bytes)
        if not keys:
            tell(arguments, "nothing to remove: no such file is staged", n_removed=0)
            return 0
        n_running = sum(run["end"] == "running" for run in inventory.runs(0))
        if n_running:
            say(
                f"{count_words(n_running, 'run')} may be using {inventory.directory}: what is "
                f"removed is read from the source, or staged anew, when it is needed"
            )
        what = f"{count_words(len(keys), 'file')}, {size_words(size_bytes)} ({names})"
        if (status := _asked(what, arguments)) is not None:
            return status
        _remove(inventory, sources[0], keys, arguments)
    return 0


def _asked(what: str, arguments: argparse.Namespace) -> int | None:
    """Say what would be removed, or ask; return the exit code if that is all."""
    if arguments.dry_run:
        tell(arguments, f"would remove {what}", would_remove=what)
        return 0
    return None if arguments.yes or is_confirmed(f"remove {what}?") else 1


def _listing(inventory: Inventory, sources: list[Source], arguments: argparse.Namespace) -> Listing:
    """Return the files among which to choose."""
    if arguments.older_than is not None:
        return inventory.files(sources, staged_before=time.time() - arguments.older_than)
    if arguments.to_free is not None:
        return inventory.files(sources, order="age")
    if arguments.list is None:
        pattern = "*" if arguments.matching is None else arguments.matching
        return place.listed(inventory, sources, arguments, pattern)
    source = place.only_one(sources)
    given = source.root if arguments.source is None else source_root(arguments.source)
    key_of = keys_of(given, source.place, source.root)

    def is_staged(path: str) -> bool:
        return bool(inventory.select("SELECT 1 FROM staged WHERE key=?", key_of(path)))

    paths = read_list(arguments.list, given, is_null=arguments.null, is_file=is_staged).paths
    return inventory.files([source], keys=[*map(key_of, paths)])


def _victims(files: Listing, to_free: str | None, block_bytes: int) -> tuple[list[int], int, Names]:
    """Return the files to remove: their keys, what they take of the disk, and their names."""
    wanted_bytes = files.size_bytes
    if to_free is not None:
        wanted_bytes = parse_size("--to-free", to_free, files.size_bytes)
    keys, size_bytes, names = [], 0, Names()
    for file in files:
        if size_bytes >= wanted_bytes:
            break
        keys.append(file.extent.key)
        size_bytes += aligned(file.extent.size, block_bytes)
        names.add(file.name)
    return keys, size_bytes, names


def _remove(
    inventory: Inventory, source: Source, keys: list[int], arguments: argparse.Namespace
) -> None:
    n_files = size_bytes = 0
    store = place.store_of(inventory, source, "evict")
    try:
        recorded = place.recorded(store, lambda: {"files_evicted": n_files})
        with recorded, Progress(len(keys)) as shown:
            store.sweep()
            for some in parts_of(keys, _AT_ONCE):
                gone = store.evict(some)
                n_files, size_bytes = n_files + len(gone), size_bytes + sum(gone.values())
                shown.advance(sum(gone.values()), len(some))
    finally:
        text = f"removed {count_words(n_files, 'file')}, {size_words(size_bytes)}"
        tell(arguments, text, n_removed=n_files, size_bytes=size_bytes)


def _remove_old(directory: str, arguments: argparse.Namespace) -> int:
    """Remove what the store of an earlier version left; links are not followed."""
    paths = old_store(directory)
    named = Names(map(os.path.basename, paths))
    if not paths:
        text = "nothing to remove: no earlier version has staged anything here"
        tell(arguments, text, n_removed=0)
        return 0
    if (status := _asked(f"{named}", arguments)) is not None:
        return status
    for path in paths:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)  # a link itself, not what it leads to
    tell(arguments, f"removed {named}", n_removed=len(paths))
    return 0
