"""Option classes: frozen, and checked when they are made."""

from __future__ import annotations

import dataclasses
import decimal
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from .errors import OptionError
from .urls import checked_root, is_url

#: Reads of the slow store that all prefetchers of an iterator together keep in flight: what they
#: begin with, and the bounds within which the number tunes itself, unless one is given. The ranks
#: of a node divide these numbers between them.
FIRST_READS_IN_FLIGHT = 64
MIN_READS_IN_FLIGHT = 4
MAX_READS_IN_FLIGHT = 256

#: Stands for the size of a disk where a size is checked before any disk is looked at.
_HUGE_BYTES = 2**60
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_SIZE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([KMGT]?I?B?|%)\s*", re.IGNORECASE)
_SHARE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*%\s*")


def directory_path(directory: str | os.PathLike[str]) -> str:
    """Return the absolute path of a directory of the user's; ``~`` is the home directory."""
    return os.path.abspath(os.path.expanduser(os.fspath(directory)))


def parse_size(option: str, size: int | str, whole_bytes: int) -> int:
    """Return a size in bytes; it is given so, or as ``"200GB"``, ``"1.5 GiB"`` or ``"50%"``.

    Raises:
        OptionError: Of this option; it is no size, or negative, or more than the whole.
    """
    if isinstance(size, bool) or not isinstance(size, (int, str)):
        raise OptionError(option, f"{size!r} is no size; give bytes or a text such as '200GB'")
    if isinstance(size, int) and size < 0:
        raise OptionError(option, f"{size} bytes is negative; give a positive size")
    if isinstance(size, int):
        return size
    match = _SIZE.fullmatch(size)
    number, unit = (match[1], match[2].upper()) if match else ("", "?")
    if unit == "%":
        if float(number) > 100:
            raise OptionError(option, f"{size!r} is more than the whole; give at most '100%'")
        return int(float(number) / 100 * whole_bytes)
    if unit not in _UNITS:
        raise OptionError(option, f"{size!r} is no size; write '200GB', '1.5GiB' or '50%'")
    return int(decimal.Decimal(number) * _UNITS[unit])


def check_count(option: str, value: object, *, minimum: int = 1) -> int:
    """Return ``value`` as an int; raise OptionError unless it is one of at least ``minimum``."""
    try:
        if isinstance(value, bool):
            raise TypeError
        count = value.__index__()  # type: ignore[attr-defined]  # objects without it are refused
    except (AttributeError, TypeError):
        message = f"{value!r} is no whole number; give one of at least {minimum}"
        raise OptionError(option, message) from None
    if count < minimum:
        raise OptionError(option, f"{value!r} is too small; give at least {minimum}")
    return int(count)


def count_or_none(option: str, value: int | None, minimum: int = 1) -> int | None:
    """Return an optional count; OptionError if it is less than ``minimum`` or no integer."""
    return None if value is None else check_count(option, value, minimum=minimum)


@dataclasses.dataclass(frozen=True)
class Skip:
    """Leave out examples that cannot be read, up to a limit.

    Args:
        limit: How many different examples of the dataset may be left out, as a number or as a
            share of the dataset such as ``"1%"``, rounded up.

    Raises:
        OptionError: The limit is neither.
    """

    limit: int | str = "1%"

    def __post_init__(self) -> None:
        """Check the limit."""
        self.max_examples(1)

    def max_examples(self, dataset_size: int) -> int:
        """Return the limit as a number of examples."""
        if not isinstance(self.limit, str):
            return check_count("limit", self.limit, minimum=0)
        match = _SHARE.fullmatch(self.limit)
        if match is None or float(match[1]) > 100:
            raise OptionError("limit", f"{self.limit!r} is no share; write '1%', or a number")
        return math.ceil(decimal.Decimal(match[1]) * dataset_size / 100)


@dataclasses.dataclass(frozen=True)
class Tier:
    """One level of a staging directory: a directory on a disk, or in RAM.

    Args:
        directory: Its directory, not within that of another tier; made, with mode 0700, if its
            parent exists.
        capacity: Most bytes that staged files may take in it, in the forms of
            :class:`Staging`; None for no limit of its own.

    Raises:
        OptionError: A value cannot work.
    """

    directory: str | os.PathLike[str]
    capacity: int | str | None = None

    def __post_init__(self) -> None:
        """Check every value that can be checked without touching the disk."""
        if not os.fspath(self.directory):
            raise OptionError("directory", "is empty; name a directory on the node's own disk")
        if self.capacity is not None and parse_size("capacity", self.capacity, _HUGE_BYTES) == 0:
            raise OptionError("capacity", "is zero; give room for some mini-batches, or None")
        object.__setattr__(self, "directory", directory_path(self.directory))


@dataclasses.dataclass(frozen=True)
class Staging:
    """Where and how files are staged.

    Relative paths are meant from the working directory in which it is made: a program may change
    that before its first mini-batch.

    Args:
        directory: The staging directory, on the node's own fast disk. It is made, with mode 0700,
            if its parent exists; one that exists keeps its mode. ``~`` is the home directory.
            Several iterators, ranks and jobs may share it. May be left out where there are
            ``tiers``.
        source: Root of the files on the slow store; only files below it are staged. A directory,
            or a URL that fsspec reads, such as ``"s3://bucket/train"``. None takes the root of the
            data set where it is known.
        storage_options: Of a source that is a URL: what fsspec is to know, such as credentials,
            where it does not find them by itself. They are not shown, and go to the workers only.
        retry_seconds: Of a source that is a URL: how long a file is tried again while the store
            cannot be reached, or answers that it is overloaded.
        n_prefetchers: Most prefetcher processes. Waiting for the slow store costs no CPU, so a few
            are enough: None takes one for four cores, at least 2 and at most 8, or 1 on a single
            core. More than cores are started only where ``reads_in_flight`` is given, too, or the
            dataset does not declare its files, so that its code has to be asked for them.
        reads_in_flight: Files that all prefetchers together read at the same time. None begins
            with 64 and tunes the number between 4 and 256 by the throughput that it measures: more
            while the trainer waits and more reads bring more, fewer where fewer bring as much. The
            ranks of a node divide 64, 4 and 256 between them; a number that is given is each one's.
        capacity: Most bytes that staged files may take, in whole blocks of the disk, as bytes,
            ``"200GB"`` or ``"50%"`` of the disk; None for no limit of its own. When it is reached,
            or the disk is full, the files whose next use is farthest make room.
        keep_free: Free space that is left on each disk, in the same forms.
        validate: ``"mtime"`` reuses a staged file only while size and mtime of its source still
            match; ``"checksum"`` also has the prefetchers read each staged file once in a run, to
            replace damaged ones early; ``"never"`` does not ask the source. Every read of a staged
            file is verified by its checksum in any case.
        look_ahead: Mini-batches whose files are staged ahead of the trainer; fewer where they
            would take more than a 16th of the capacity, which the ranks of a node divide.
        tiers: Directories on disks of different speed, the fastest first, for example
            ``[Tier("/dev/shm/me", "8GB"), Tier("/nvme/me", "200GB")]``. Files enter at the first
            one that has room, move down if their next use is far, and move up to the first one
            while that has free room. A ``directory`` that is none of them comes last.
        peers: How the ranks of a job find each other, so that their nodes give each other what
            they have staged: the communicator that ``scatter_order`` was given, a directory that
            all ranks see, or a store of ``torch.distributed``. Needs ``scatter_order``, or a
            ``DistributedSampler`` of PyTorch's. Making the iterator is collective then; of a
            ``DataLoader`` its first iteration is. None reads from the source what is not staged on
            this node.

    Raises:
        OptionError: A value cannot work.
    """

    directory: str | os.PathLike[str] | None = None
    _: dataclasses.KW_ONLY
    source: str | os.PathLike[str] | None = None
    storage_options: Mapping[str, object] | None = dataclasses.field(
        default=None, repr=False, hash=False
    )
    retry_seconds: float = 30.0
    n_prefetchers: int | None = None
    reads_in_flight: int | None = None
    capacity: int | str | None = None
    keep_free: int | str = "5%"
    validate: Literal["mtime", "checksum", "never"] = "mtime"
    look_ahead: int = 32
    tiers: Sequence[Tier] = ()
    peers: Any = dataclasses.field(default=None, repr=False, hash=False, compare=False)

    def all_tiers(self) -> list[Tier]:
        """Return all tiers, the fastest first; one of them is the ``directory``, if given."""
        tiers = list(self.tiers)
        if self.directory is not None:
            own = Tier(self.directory, self.capacity)
            if own.directory not in [tier.directory for tier in tiers]:
                tiers.append(own)
        return tiers

    def __post_init__(self) -> None:
        """Check every value that can be checked without touching the disk."""
        if not all(isinstance(tier, Tier) for tier in self.tiers):
            raise OptionError("tiers", f"{self.tiers!r} are not all overlapiter.Tier")
        tiers = self.all_tiers()
        if not tiers:
            raise OptionError("directory", "is missing; name a directory on the node's own disk")
        if len({tier.directory for tier in tiers}) < len(tiers):
            raise OptionError("tiers", "name a directory twice; each needs one of its own")
        if self.directory is not None:
            object.__setattr__(self, "directory", directory_path(self.directory))
        if self.capacity is not None and len(tiers) == len(self.tiers):
            raise OptionError("capacity", "belongs to one of the tiers; give it to that Tier")
        self._check_source()
        count_or_none("n_prefetchers", self.n_prefetchers)
        count_or_none("reads_in_flight", self.reads_in_flight)
        check_count("look_ahead", self.look_ahead)
        if parse_size("keep_free", self.keep_free, _HUGE_BYTES) == _HUGE_BYTES:  # 100% of it
            raise OptionError("keep_free", "100% leaves no room for staged files; give less")
        if self.validate not in ("mtime", "checksum", "never"):
            advice = "use 'mtime', 'checksum' or 'never'"
            raise OptionError("validate", f"{self.validate!r} is unknown; {advice}")

    def _check_source(self) -> None:
        source = "" if self.source is None else checked_root(os.fspath(self.source))
        if self.source is not None and not source:
            raise OptionError("source", "is empty; name the root of the files on the slow store")
        if source and not is_url(source):
            object.__setattr__(self, "source", os.path.abspath(source))
        if self.storage_options is not None and not isinstance(self.storage_options, Mapping):
            raise OptionError("storage_options", "is no mapping; give a dict of fsspec's options")
        if self.storage_options and source and not is_url(source):
            raise OptionError("storage_options", f"is for URLs, but {source} is a directory")
        if not 0 <= self.retry_seconds < math.inf:
            raise OptionError("retry_seconds", f"{self.retry_seconds!r} s is no time; 0 for never")


BadExamples = Literal["raise", "skip"] | Skip


def check_staging(staging: Staging | None) -> Staging | None:
    """Return the argument; OptionError if it is neither None nor a Staging."""
    if staging is not None and not isinstance(staging, Staging):
        raise OptionError("staging", f"{staging!r} is no overlapiter.Staging")
    return staging


def skip_limit(bad_examples: BadExamples, dataset_size: int) -> int | None:
    """Return how many examples may be left out; None if none is ever left out.

    Raises:
        OptionError: The value is unknown.
    """
    if bad_examples == "raise":
        return None
    if bad_examples == "skip":
        bad_examples = Skip()
    if not isinstance(bad_examples, Skip):
        raise OptionError(
            "bad_examples",
            f"{bad_examples!r} is unknown; use 'raise', 'skip' or overlapiter.Skip(limit=...)",
        )
    return bad_examples.max_examples(dataset_size)
