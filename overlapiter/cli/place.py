"""The staging directory that a command is about: how it is named, looked into and changed."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping

from overlapiter.options import directory_path
from overlapiter.sources import source_root
from overlapiter.store.generation import old_store, root_of
from overlapiter.store.inventory import Inventory, Listing, Source
from overlapiter.store.site import Run, Site
from overlapiter.store.store import Store
from overlapiter.urls import is_url

from .console import CommandError, Names, UsageError, error_words, printable, say
from .crew import answered
from .origins import TIMEOUT_SECONDS, add_storage_options, source_name


def add_directory(parser: argparse.ArgumentParser, what: str) -> None:
    """Declare an existing staging directory, and of which source root to ``what`` the files."""
    parser.add_argument("directory", metavar="DIR", help="the staging directory")
    if what:
        text = f"{what} only what comes from this source root"
        parser.add_argument("--source", metavar="SRC", type=source_name, help=text)
        add_storage_options(parser)


def existing_directory(name: str, *, tells_old: bool = True) -> str:
    """Return the absolute path of a directory that exists; tell what an earlier version left there.

    Raises:
        UsageError: The name is empty.
        CommandError: There is none, or it is another user's.
    """
    directory = _named("DIR", name)
    try:
        is_own = os.stat(directory).st_uid == os.geteuid() or not os.geteuid()
        old = [os.path.basename(path) for path in old_store(directory)]
    except FileNotFoundError:
        raise CommandError(
            f"there is no {directory}: the first job that uses it makes it, or `overlapiter stage`"
        ) from None
    except NotADirectoryError:
        raise CommandError(f"{directory} is no directory; check DIR") from None
    if not is_own:
        raise CommandError(f"{directory} is another user's; staging directories are private")
    if old and tells_old:
        say(
            f"note: {directory} holds what an earlier version staged ({Names(old)}), in a form "
            f"that this one does not read: `overlapiter evict {directory} --old` removes it"
        )
    return directory


def new_directory(option: str, name: str) -> str:
    """Return the absolute path of a directory that is there, or can be made.

    Raises:
        UsageError: The name is empty, or that of something else, or its parent is missing.
    """
    directory = _named(option, name)
    if not os.path.isdir(directory) and os.path.lexists(directory):
        raise UsageError(f"{option}: {directory} is no directory; name another one")
    parent = os.path.dirname(directory)
    if not os.path.isdir(parent):
        raise UsageError(f"{option}: {parent}, its parent, does not exist; make it first")
    return directory


def _named(option: str, name: str) -> str:
    if not name:  # of a variable that is not set: never the working directory
        raise UsageError(f"{option}: the name is empty; name a directory")
    return directory_path(name)


@contextlib.contextmanager
def opened(name: str) -> Iterator[Inventory]:
    """Give what is staged in a directory, for the length of a ``with`` block.

    Raises:
        CommandError: It is no staging directory, or nothing was ever staged there.
    """
    directory = existing_directory(name)
    if not os.path.lexists(root_of(directory)):
        raise CommandError(
            f"{directory} is no staging directory; name the one that was given to Staging, or "
            f"to `overlapiter stage --to`"
        )
    try:
        inventory = Inventory(directory)
    except FileNotFoundError:
        raise CommandError(f"nothing has been staged in {directory} yet") from None
    with contextlib.closing(inventory):
        yield inventory


def chosen(
    inventory: Inventory, arguments: argparse.Namespace, timeout_seconds: float | None = None
) -> list[Source]:
    """Return the source roots of which files are staged, or the one that is named.

    Where nothing is staged of them any more, they are those of which files were. A command that
    reads the source says how long that may take to answer.

    Raises:
        UsageError: There are options, and no source that they are of, though none is read.
        CommandError: There is none, or the source does not answer.
    """
    source, options = arguments.source, arguments.storage_options
    if options and source is None and timeout_seconds is None:
        raise UsageError("--storage-options: name the --source that they are of, too")
    found = inventory.sources()
    wanted = None if source is None else source_root(source)
    if wanted is not None and wanted not in {each.root for each in found} and not is_url(wanted):
        real_path = functools.partial(os.path.realpath, wanted)
        wanted = answered(wanted, real_path, timeout_seconds or TIMEOUT_SECONDS)
    matching = [each for each in found if wanted in (None, each.root)]
    if wanted is not None and is_url(wanted) and options:
        from overlapiter.origins.remote import place_of  # and with it fsspec, for URLs alone

        matching = [each for each in matching if each.place == place_of(options)]
    if not matching:
        what = f"{source or 'any source'}{' with these options' if options else ''}"
        others = f", only from {_words_of(found)}" if found else ""
        raise (UsageError if source else CommandError)(
            f"nothing in {inventory.directory} comes from {what}{others}"
        )
    held = {number for (number,) in inventory.select("SELECT DISTINCT source FROM staged")}
    return [each for each in matching if each.number in held] or matching


def only_one(sources: list[Source]) -> Source:
    """Return the only source root; raise CommandError if there are more."""
    if len(sources) > 1:
        is_one_name = len({source.root for source in sources}) == 1
        add = "--storage-options" if is_one_name else "--source"
        raise UsageError(f"add {add} to say which one is meant: {_words_of(sources)}")
    return sources[0]


def _words_of(sources: list[Source]) -> str:
    return ", ".join(source_words(each.root, each.place) for each in sources)


def source_words(root: str, place: str) -> str:
    """Write a source root, with what tells it from others of its name."""
    return printable(f"{root} {place}" if place else root)


def listed(
    inventory: Inventory, sources: list[Source], arguments: argparse.Namespace, pattern: str
) -> Listing:
    """List the files of a pattern, in which the source may stand as it is named."""
    if arguments.source is not None:  # by a link, under which the inventory does not know it
        root = os.path.join(source_root(arguments.source), "")
        pattern = "*" if os.path.join(pattern, "") == root else pattern.removeprefix(root)
    return inventory.files(sources, pattern=pattern)


def store_of(inventory: Inventory, source: Source, command: str) -> Store:
    """Return what changes that which is staged; it is opened when it is first used.

    Raises:
        CommandError: Nothing can be changed.
    """
    if inventory.is_read_only:
        raise CommandError(
            f"{inventory.directory} is read-only: see its modes and owner (ls -l), or whether its "
            f"disk is mounted read-only, perhaps since it has failed (dmesg)"
        )
    run, site = Run.of_command(command, {"source": source.root}), Site(inventory.directory)
    return Store(site, source.root, run, place=source.place, warn=say)


@contextlib.contextmanager
def recorded(
    store: Store, counters: Callable[[], Mapping[str, float]], used: Iterable[int] = ()
) -> Iterator[None]:
    """Note in a store how a ``with`` block ends, and what it has done; then close the store.

    ``used`` are the keys of files that were listed for a job to come: they stay for a day.
    """
    ending = "failed"
    try:
        yield
        ending = "closed"
    except KeyboardInterrupt:
        ending = "interrupted"
        raise
    finally:
        try:
            store.record_end(ending, counters())
            if ending == "closed":
                store.neighbours.tell_uses(sorted(used))
        except OSError as error:
            if ending == "closed":  # else the same error has ended it
                say(f"note: status will not show how this ended ({error_words(error)})")
        store.close()
