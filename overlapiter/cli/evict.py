"""Remove staged files, or what an earlier version of overlapiter has staged.

Say which: --all, --older-than, --to-free, --matching, or a LIST of files. Nothing is lost: who
needs a removed file reads it from the source again, and running jobs stage it anew. So it is safe
while jobs use the directory, which only become slower for a while; the command says so.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import time

from overlapiter.errors import OptionError
from overlapiter.options import parse_size
from overlapiter.store.extents import key_of
from overlapiter.store.generation import old_store
from overlapiter.store.inventory import Inventory, Listing, Source
from overlapiter.store.segments import aligned

from .console import (
    CommandError,
    Names,
    Progress,
    count_words,
    is_confirmed,
    is_terminal,
    say,
    size_words,
)
from .crew import parts_of
from .filelist import read_list
from .place import (
    add_directory,
    chosen,
    existing_directory,
    only_one,
    opened,
    recorded,
    store_of,
)

EXAMPLES = """\
examples:
  overlapiter evict /nvme/me --to-free 50GB
  overlapiter evict /nvme/me --older-than 7d --dry-run
  overlapiter evict /nvme/me --source /lustre/imagenet --all --yes
  overlapiter evict /nvme/me --old

exit code: 0, or 1 if you said no, or something could not be removed"""

_AGE = re.compile(r"([0-9]*\.?[0-9]+)\s*(s|min|h|d|w)")
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_AT_ONCE = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_directory(parser, "remove")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="remove all staged files")
    which.add_argument(
        "--older-than",
        metavar="AGE",
        help="remove what was staged so long ago: 30min, 12h, 7d, 2w",
    )
    which.add_argument(
        "--to-free",
        metavar="SIZE",
        help="remove so much, first what no job uses and what was staged the longest ago: 50GB, or "
        "10%% of what is staged",
    )
    which.add_argument(
        "--matching", metavar="PATTERN", help="remove the files of this pattern, as for ls"
    )
    which.add_argument(
        "--old",
        action="store_true",
        help="remove what an earlier version of overlapiter has staged there, and nothing else",
    )
    listed = "remove the files that this list names, as for stage"
    parser.add_argument("list", metavar="LIST", nargs="?", help=listed)
    parser.add_argument("--yes", action="store_true", help="do not ask, in a terminal")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")


def run(arguments: argparse.Namespace) -> int:
    """Evict; return the exit code."""
    options = (arguments.older_than, arguments.to_free, arguments.matching, arguments.list)
    if arguments.all + arguments.old + sum(option is not None for option in options) != 1:
        raise CommandError(
            "say what to remove: one of --all, --older-than, --to-free, --matching, --old, and a "
            "LIST",
            is_usage=True,
        )
    if arguments.old:
        return _remove_old(existing_directory(arguments.directory), arguments)
    with opened(arguments.directory) as inventory:
        sources = chosen(inventory, arguments.source)
        files = _listing(inventory, sources, arguments)
        keys, size_bytes, names = _victims(files, arguments.to_free, inventory.block_bytes)
        if not keys:
            print("nothing to remove: no such file is staged")
            return 0
        what = f"{count_words(len(keys), 'file')}, {size_words(size_bytes)}"
        if arguments.dry_run:
            print(f"would remove {what} ({names})")
            return 0
        n_running = sum(run.is_running for run in inventory.runs(0))
        if n_running:
            say(
                f"{count_words(n_running, 'run')} may be using {inventory.directory}: what is "
                f"removed is read from the source, or staged anew, when it is needed"
            )
        if not arguments.yes and not is_confirmed(f"remove {what} ({names})?"):
            return 1
        _remove(inventory, sources[0], keys)
    return 0


def _listing(inventory: Inventory, sources: list[Source], arguments: argparse.Namespace) -> Listing:
    """Return the files among which to choose."""
    if arguments.older_than is not None:
        limit_seconds = time.time() - _age_seconds(arguments.older_than)
        return inventory.files(sources, staged_before=limit_seconds)
    if arguments.list is None:
        order = "path" if arguments.to_free is None else "age"
        return inventory.files(sources, pattern=arguments.matching or "*", order=order)
    source = only_one(sources)
    if arguments.list == "-" and is_terminal():
        say("reading the list from the keyboard; end it with Ctrl-D")
    paths = read_list(arguments.list, source.root).paths
    return inventory.files([source], keys=[key_of(path, source.seed) for path in paths])


def _age_seconds(text: str) -> float:
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise OptionError("--older-than", f"{text!r} is no age; write 30min, 12h, 7d or 2w")
    return float(match[1]) * _SECONDS[match[2]]


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


def _remove(inventory: Inventory, source: Source, keys: list[int]) -> None:
    n_files = size_bytes = 0
    store = store_of(inventory, source, "evict")
    try:
        with (
            recorded(store, lambda: {"files_evicted": n_files}),
            Progress(len(keys)) as shown,
        ):
            store.sweep()
            for some in parts_of(keys, _AT_ONCE):
                gone = store.evict(some)
                n_files += len(gone)
                size_bytes += sum(gone.values())
                shown.advance(sum(gone.values()), len(some))
    finally:
        print(f"removed {count_words(n_files, 'file')}, {size_words(size_bytes)}")


def _remove_old(directory: str, arguments: argparse.Namespace) -> int:
    """Remove what the store of an earlier version left; links are not followed."""
    paths = old_store(directory)
    named = Names(os.path.basename(path) for path in paths)
    if not paths:
        print("nothing to remove: no earlier version has staged anything here")
        return 0
    if arguments.dry_run:
        print(f"would remove {named}")
        return 0
    if not arguments.yes and not is_confirmed(f"remove {named}, and all that is in there?"):
        return 1
    for path in paths:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)  # a link itself, not what it leads to
    print(f"removed {named}")
    return 0
