"""Remove staged files, and nothing that overlapiter did not make.

Give one of: --all, --older-than, --to-free, or a LIST of files. Nothing is lost: whoever needs a
removed file reads it from the source again, and running jobs stage it anew. So it is safe while
jobs use the directory, which only become slower for a while; the command says so.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import re
import time
from collections.abc import Callable

from overlapiter.errors import OptionError
from overlapiter.options import parse_size
from overlapiter.staging.inventory import (
    Entry,
    Kind,
    Subdirectory,
    entries,
    remove_empty_folders,
    remove_if_empty,
)
from overlapiter.staging.process_id import Life
from overlapiter.staging.records import present
from overlapiter.staging.tree import counted_bytes
from overlapiter.staging.usage import BusyError

from .console import (
    SHOWN_NAMES,
    CommandError,
    count_words,
    is_confirmed,
    is_terminal,
    names_words,
    progress,
    say,
    size_words,
)
from .filelist import read_list
from .place import add_directory, chosen, existing_directory, is_in_use
from .usage import forgetting, free, recount, sweep

EXAMPLES = """\
examples:
  overlapiter evict /nvme/me --to-free 50GB
  overlapiter evict /nvme/me --older-than 7d --dry-run
  overlapiter evict /nvme/me --source /lustre/imagenet --all --yes

exit code: 0, or 1 if you said no, or something could not be removed"""

_AGE = re.compile(r"([0-9]*\.?[0-9]+)\s*(s|min|h|d|w)")
_SECONDS = {"s": 1, "min": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_directory(parser)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--all", action="store_true", help="remove all staged files")
    which.add_argument(
        "--older-than",
        metavar="AGE",
        help="remove what was neither staged nor read for so long: 30min, 12h, 7d, 2w (disks note "
        "reads only about once a day, some never)",
    )
    which.add_argument(
        "--to-free",
        metavar="SIZE",
        help="remove so much, what was not used for the longest time first: 50GB, or 10%% of "
        "what is staged",
    )
    parser.add_argument(
        "list",
        metavar="LIST",
        nargs="?",
        help="remove the files that this list names, as for stage",
    )
    parser.add_argument(
        "--source", metavar="SRC", help="remove only what comes from this source root"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask, in a terminal")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")


#: Says whether a staged file is to go.
Rule = Callable[[Entry], bool]


class Amount:
    """A number of files.

    Attributes:
        n_files: How many.
        size_bytes: What they take.
        names: The first few.
    """

    def __init__(self) -> None:
        self.n_files = 0
        self.size_bytes = 0
        self.names: list[str] = []

    def add(self, entry: Entry) -> None:
        """Count a file."""
        self.n_files += 1
        self.size_bytes += entry.found.st_size
        if len(self.names) < SHOWN_NAMES:
            self.names.append(entry.name)

    def __str__(self) -> str:
        text = f"{count_words(self.n_files, 'file')}, {size_words(self.size_bytes)}"
        return f"{text} ({names_words(self.names, self.n_files)})" if self.names else text


def run(arguments: argparse.Namespace) -> int:
    """Evict; return the exit code."""
    options = (arguments.older_than, arguments.to_free, arguments.list)
    if arguments.all + sum(option is not None for option in options) != 1:
        raise CommandError(
            "say what to remove: one of --all, --older-than, --to-free, and a LIST", is_usage=True
        )
    directory = existing_directory(arguments.directory)
    subs = chosen(directory, arguments.source)
    rules = _rules(subs, arguments) if subs else {}
    wanted, kept = Amount(), Amount()
    for sub, rule in rules.items():
        for entry in filter(rule, entries(sub)):
            (wanted if _is_ours(entry) else kept).add(entry)
    if kept.n_files:
        say(f"not made by overlapiter, and kept: {kept}")
    if not wanted.n_files:
        print("nothing to remove: no such file is staged")
        if arguments.all and not arguments.dry_run:
            _remove_emptied(directory, subs)
        return 0
    if arguments.dry_run:
        print(f"would remove {wanted}")
        return 0
    _say_in_use(directory)
    if not arguments.yes and is_terminal() and not is_confirmed(f"remove {wanted}?"):
        say("nothing is removed")
        return 1
    removed = Amount()
    try:
        with progress(wanted.n_files, "files") as shown:
            for sub, rule in rules.items():
                _remove(directory, sub, rule, removed, shown.advance)
        if arguments.all:
            _remove_emptied(directory, subs)
    finally:
        print(f"removed {count_words(removed.n_files, 'file')}, {size_words(removed.size_bytes)}")
    return 0


def _rules(subs: list[Subdirectory], arguments: argparse.Namespace) -> dict[Subdirectory, Rule]:
    """Return what is to go of each subdirectory."""
    if arguments.all:
        return dict.fromkeys(subs, _is_any)
    if arguments.older_than is not None:
        limit_seconds = time.time() - _age_seconds(arguments.older_than)
        return {sub: lambda entry: _used_seconds(entry) < limit_seconds for sub in subs}
    if arguments.to_free is not None:
        names = _least_recent(subs, arguments.to_free)
    else:
        names = {_only(subs): _listed(_only(subs), arguments.list)}
    return {sub: functools.partial(_is_named, found) for sub, found in names.items()}


def _is_any(_entry: Entry) -> bool:
    return True


def _is_named(names: set[str], entry: Entry) -> bool:
    return entry.name in names


def _age_seconds(text: str) -> float:
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise OptionError("--older-than", f"{text!r} is no age; write 30min, 12h, 7d or 2w")
    return float(match[1]) * _SECONDS[match[2]]


def _used_seconds(entry: Entry) -> float:
    """Return when a file was staged or, as far as the disk notes it, read last."""
    return max(entry.found.st_ctime, entry.found.st_atime)


def _least_recent(subs: list[Subdirectory], amount: str) -> dict[Subdirectory, set[str]]:
    """Return the files that were not used for the longest time, so many as take that much.

    A share is one of what is staged.
    """
    found = sorted(
        (_used_seconds(entry), number, entry.name, entry.found.st_size)
        for number, sub in enumerate(subs)
        for entry in entries(sub)
        if _is_ours(entry)
    )
    staged_bytes = sum(file_bytes for *_, file_bytes in found)
    size_bytes = parse_size("--to-free", amount, staged_bytes)
    names: dict[Subdirectory, set[str]] = {sub: set() for sub in subs}
    for _, number, name, file_bytes in found:
        if size_bytes <= 0:
            break
        names[subs[number]].add(name)
        size_bytes -= file_bytes
    return names


def _only(subs: list[Subdirectory]) -> Subdirectory:
    if len(subs) > 1:
        known = ", ".join(sub.source or os.path.basename(sub.path) for sub in subs)
        raise CommandError(f"add --source to say which one the list is of: {known}", is_usage=True)
    return subs[0]


def _listed(sub: Subdirectory, name: str) -> set[str]:
    if sub.source is None:
        raise CommandError(
            f"nobody knows the source of {sub.path}: run `overlapiter check --repair --source SRC`"
        )
    if name == "-" and is_terminal():
        say("reading the list from the keyboard; end it with Ctrl-D")
    files = read_list(name, sub.source)
    return {os.path.relpath(path, sub.source) for path in files.paths}


def _is_ours(entry: Entry) -> bool:
    return entry.kind is Kind.FILE and entry.is_private


def _say_in_use(directory: str) -> None:
    n = sum(run.owner.life() is not Life.ENDED for run in present(directory))
    if n:
        say(
            f"{count_words(n, 'run')} may be using {directory}: what is removed is read from the "
            f"source, or staged anew, when it is needed"
        )


def _remove_emptied(directory: str, subs: list[Subdirectory]) -> None:
    """Remove what is left of sources nothing of which is staged, unless somebody uses them."""
    for sub in subs:
        remove_empty_folders(sub)
        if not is_in_use(directory):
            sweep(directory, sub)
            remove_if_empty(sub)


def _remove(
    directory: str,
    sub: Subdirectory,
    rule: Rule,
    removed: Amount,
    advance: Callable[[int], None],
) -> None:
    interrupts = []
    counted = []
    forget = forgetting(directory, sub)

    def remove() -> int:
        try:
            for entry in filter(rule, entries(sub)):
                if _is_ours(entry) and entry.remove():
                    forget(entry.name)
                    removed.add(entry)
                    counted.append(counted_bytes(entry.found))
                    advance(entry.found.st_size)
        except KeyboardInterrupt as interrupt:  # what has gone is to be counted nevertheless
            interrupts.append(interrupt)
        return sum(filter(None, counted))

    free(directory, remove)
    if None in counted:  # written to since they were staged
        with contextlib.suppress(BusyError):  # done when there is no room
            recount(directory)
    if interrupts:
        raise KeyboardInterrupt
    remove_empty_folders(sub)
