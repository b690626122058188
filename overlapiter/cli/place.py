"""The staging directory that a command is about."""

from __future__ import annotations

import argparse
import os
import stat

from overlapiter.options import directory_path
from overlapiter.sources import source_root
from overlapiter.staging.inventory import Subdirectory, is_staging_directory, subdirectories
from overlapiter.staging.process_id import Life
from overlapiter.staging.records import present

from .console import CommandError


def add_directory(parser: argparse.ArgumentParser) -> None:
    """Declare the argument that names an existing staging directory."""
    parser.add_argument("directory", metavar="DIR", help="the staging directory")


def existing_directory(name: str) -> str:
    """Return the absolute path of a staging directory that exists.

    Raises:
        CommandError: It is none, or somebody else's.
    """
    directory = directory_path(name)
    try:
        found = os.stat(directory)
        is_ours = found.st_uid == os.geteuid()
        os.listdir(directory)
    except FileNotFoundError:
        raise CommandError(
            f"there is no {directory}: the first job that uses it makes it, or `overlapiter stage`"
        ) from None
    except OSError as error:
        raise CommandError(f"{directory} cannot be read ({error.strerror}); check DIR") from error
    except ValueError as error:
        raise CommandError(f"{name!r} is no path; check DIR", is_usage=True) from error
    if not stat.S_ISDIR(found.st_mode):
        raise CommandError(f"{directory} is no directory; check DIR")
    if not is_ours and os.geteuid():
        raise CommandError(f"{directory} is somebody else's; staging directories are private")
    return directory


def check_is_staging(directory: str) -> None:
    """Raise CommandError unless overlapiter has used a directory."""
    if not is_staging_directory(directory):
        raise CommandError(
            f"{directory} is no staging directory; name the one that was given to Staging, or "
            f"to `overlapiter stage --to`"
        )


def chosen(directory: str, source: str | None) -> list[Subdirectory]:
    """Return the subdirectories of a directory, or the one that mirrors ``source``.

    There are none where everything was evicted.

    Raises:
        CommandError: It is no staging directory, or mirrors other sources only.
    """
    check_is_staging(directory)
    found = subdirectories(directory)
    if source is None or not found:
        return found
    wanted = source_root(source)
    matching = [sub for sub in found if sub.source == wanted]
    if not matching:
        known = ", ".join(sub.source or os.path.basename(sub.path) for sub in found)
        raise CommandError(
            f"nothing in {directory} comes from {source}, only from {known}", is_usage=True
        )
    return matching


def is_in_use(directory: str) -> bool:
    """Return whether a run uses the directory, or may do so on another node."""
    return any(run.owner.life() is not Life.ENDED for run in present(directory))
