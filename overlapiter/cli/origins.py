"""Where the files of a source come from, for commands: a mounted directory, or a URL."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from overlapiter.options import FIRST_READS_IN_FLIGHT, Staging
from overlapiter.origins.origin import Origin
from overlapiter.urls import is_url
from overlapiter.workers.plan import StagingPlan

from .console import UsageError, at_least, seconds

TIMEOUT_SECONDS = 60.0


def source_name(text: str) -> str:
    """Return the name of a source: the type of an argument."""
    if not text:  # of a variable that is not set: never the working directory
        raise argparse.ArgumentTypeError("is empty; name the root of the files on the slow store")
    return text


def add_storage_options(parser: argparse.ArgumentParser) -> None:
    """Declare the argument that names what fsspec is to know."""
    parser.add_argument(
        "--storage-options",
        metavar="FILE",
        type=json_object,
        default={},
        help="of a SRC that is a URL: a JSON file of what Staging(storage_options=...) holds; not "
        "needed where credentials are found by themselves, as in ~/.aws",
    )


def json_object(name: str) -> dict[str, object]:
    """Return what a JSON file holds: the type of an argument."""
    try:
        found = json.loads(Path(name).read_bytes())
    except (OSError, ValueError) as error:
        message = f"{name} cannot be read ({error}); name a JSON file"
        raise argparse.ArgumentTypeError(message) from error
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f'{name} holds no object; write {{"key": …}}')
    return found


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Declare how a source is read, besides its options."""
    add = parser.add_argument
    reads = "files to ask the source for at the same time (default: %(default)s)"
    n_reads = FIRST_READS_IN_FLIGHT
    add("--reads-in-flight", metavar="N", type=at_least(1), default=n_reads, help=reads)
    text = "leave out a file for which the source has no answer in so long (default: %(default)g s)"
    add("--timeout", metavar="S", type=seconds, default=TIMEOUT_SECONDS, help=text)


def origin_of(
    source: str, options: dict[str, object], n_reads: int, place: str | None = None
) -> Origin:
    """Return what gives the files of a source, which was found staged from a ``place``, if any.

    Raises:
        UsageError: The options are for another store than the one at this place.
        OptionError: It is a URL that cannot be read here.
    """
    plan = StagingPlan((), source, "never", 1, n_reads, options, Staging.retry_seconds)
    if is_url(source):
        if place not in (None, plan.place):
            raise UsageError(
                f"{source} was staged from another store ({place or 'without options'}); name "
                f"--source and the --storage-options of that one"
            )
        from overlapiter.origins.remote import check_remote  # and with it fsspec, for URLs alone

        check_remote(source, options)
    return plan.origin()
