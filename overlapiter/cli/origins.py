"""Where the files of a source come from, for commands: a mounted directory, or a URL."""

from __future__ import annotations

import argparse
import json
import os

from overlapiter.origins.origin import LocalOrigin, Origin
from overlapiter.urls import is_url

from .console import CommandError

_PATIENCE_SECONDS = 30.0


def add_storage_options(parser: argparse.ArgumentParser) -> None:
    """Declare the argument that names what fsspec is to know."""
    parser.add_argument(
        "--storage-options",
        metavar="FILE",
        help="of a SRC that is a URL: a JSON file of what Staging(storage_options=...) holds; not "
        "needed where credentials are found by themselves, as in ~/.aws",
    )


def storage_options(arguments: argparse.Namespace) -> dict[str, object] | None:
    """Return the options that the command line names; None if it names none.

    Raises:
        CommandError: The file cannot be read, or holds something else.
    """
    name = arguments.storage_options
    if name is None:
        return None
    try:
        with open(name) as file:
            options = json.load(file)
    except (OSError, ValueError) as error:
        raise CommandError(
            f"--storage-options: {name} cannot be read ({error}); name a JSON file", is_usage=True
        ) from error
    if not isinstance(options, dict):
        message = f'--storage-options: {name} holds no object; write {{"key": …}}'
        raise CommandError(message, is_usage=True)
    return options


def origin_of(source: str, options: dict[str, object] | None, n_reads: int) -> Origin:
    """Return what gives the files of a source.

    Args:
        source: The source root, as :func:`~overlapiter.sources.source_root` gives it.
        options: For fsspec.
        n_reads: Files that are read at the same time.

    Raises:
        CommandError: It is a directory that is not there.
        OptionError: It is a URL that cannot be read here.
    """
    if is_url(source):
        # fsspec is not needed for a directory.
        from overlapiter.origins.remote import RemoteOrigin, check_remote

        check_remote(source, options or {})
        return RemoteOrigin(
            source, options or {}, n_connections=n_reads, patience_seconds=_PATIENCE_SECONDS
        )
    if not os.path.isdir(source):
        message = f"{source} is no directory; check the path of the source, and the mount"
        raise CommandError(message, is_usage=True)
    return LocalOrigin()
