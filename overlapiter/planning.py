"""From the user's options to the plan of the supervisor: absolute paths, bytes, counts."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import itertools
import os
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from overlapiter.errors import OptionError, StagingError, StagingWarning, warn
from overlapiter.node import this_node
from overlapiter.options import Staging, Tier, parse_size
from overlapiter.redirection import added_readers
from overlapiter.scatter import ScatteredOrder
from overlapiter.sources import declared_paths, paths_below, source_root, source_roots
from overlapiter.store.generation import old_store, prepare
from overlapiter.store.segments import aligned
from overlapiter.store.site import Site
from overlapiter.urls import is_url
from overlapiter.workers.plan import StagingPlan, SupervisorPlan
from overlapiter.workers.start.parcel import Parcel

if TYPE_CHECKING:  # nothing that the first mini-batch would have to wait for
    from overlapiter.peers.rendezvous import Joined

#: What a file takes of a disk is a multiple of this, and more where the blocks are larger.
_BLOCK_BYTES = 4096
#: A capacity of so many mini-batches, were all files as large as the first one, is ample.
_AMPLE = 100
#: What says that a disk is full or has failed; anything else is a mistake in the options.
_ILLNESSES = {errno.EROFS, errno.EIO, errno.ENOSPC, errno.EDQUOT}
#: What the supervisor keeps of an example: where its files lie, and when it is read next.
_EXAMPLE_BYTES = 100


def names_source(parcel: Parcel, source: str) -> bool:
    """Return whether a dataset has paths below the source in it: texts, of pathlib, or of NumPy."""
    return (
        parcel.mentions(source)
        or (parcel.mentions("pathlib") and parcel.mentions(os.path.basename(source)))
        or parcel.has_texts_below(source)
    )


def staging_plan(
    staging: Staging, dataset: Any, first_indices: list[int], *, is_training: bool = True
) -> StagingPlan:
    """Check the options against the disk and the dataset, and make the staging directory.

    The first mini-batch must fit. A training goes on if only the disk is the matter: its
    prefetchers report that, and try again. Without training (``is_training``) that is an error.

    Raises:
        OptionError: A value cannot work here.
        StagingError: The staging directory cannot be made or written.
    """
    check_size(len(dataset))
    source = _find_source(staging, dataset)
    imports = _check_access(staging, source)
    check_apart(source, [os.fspath(tier.directory) for tier in staging.all_tiers()])
    sites = tuple(_site_of(tier, staging.keep_free) for tier in staging.all_tiers())
    first_paths = _first_paths(source, dataset, first_indices)
    node = this_node()
    plan = StagingPlan(
        sites=sites,
        source=source,
        real_source="" if is_url(source) else os.path.realpath(source),
        validate=staging.validate,
        n_prefetchers=staging.n_prefetchers or default_prefetchers(node.cores),
        reads_in_flight=staging.reads_in_flight,
        n_sharers=node.local_size,
        n_cores=node.cores,
        storage_options=dict(staging.storage_options or {}),
        retry_seconds=staging.retry_seconds,
        imports=imports,
        readers=added_readers(),
    )
    if plan.capacity_bytes is not None:
        _check_capacity(plan.capacity_bytes, first_paths)
    for site in sites:
        _prepare(site.directory, is_training=is_training)
    return plan


def check_size(dataset_size: int) -> None:
    """Raise OptionError if a dataset has more examples than a supervisor can keep account of."""
    memory_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if dataset_size * _EXAMPLE_BYTES > memory_bytes:
        raise OptionError(
            "staging",
            f"takes {_EXAMPLE_BYTES} bytes of memory for each example, and the dataset's __len__ "
            f"says {dataset_size}: more than this machine has; have it return the number of "
            f"examples, or leave staging out",
        )


def planned(
    make: Callable[[], tuple[Parcel, SupervisorPlan]],
    staging: Staging | None,
    dataset: Any,
    first_indices: list[int],
    *,
    sampler: object = None,
    joined: Joined | None = None,
) -> tuple[Parcel, SupervisorPlan, Joined | None]:
    """Pickle a dataset and plan how its files are staged; collective where there are to be peers.

    ``make`` returns the parcel and the plan without staging; what it raises other ranks are told.
    With what an earlier call has returned as ``joined`` none of them is asked.

    Returns:
        The parcel; the plan; and what the ranks have agreed on, whose listener is the caller's, or
        None without peers.

    Raises:
        OptionError: A value cannot work here, the order of other ranks is not known, they have
            other data, or they cannot be reached.
        StagingError: The staging directory cannot be made or written.
    """
    #: The one that was made, once it is; closed where another step, or another rank, fails.
    made: list[tuple[Parcel, SupervisorPlan]] = []

    def prepare() -> str:
        made.append(make())
        parcel, plan = made[0]
        if staging is None:
            return ""
        staged = staging_plan(staging, dataset, first_indices)
        names = names_source(parcel, staged.source)
        made[0] = parcel, dataclasses.replace(plan, staging=staged, names_source=names)
        root = f"{staged.real_source or staged.source} {staged.place}".rstrip()
        return f"{plan.dataset_size} examples below {root}"

    peers = None if staging is None else staging.peers
    try:
        if peers is None:
            joined = None
        if peers is None or joined is not None:
            prepare()
        else:
            joined = _join_peers(peers, prepare, sampler, len(dataset))
    except BaseException:
        for parcel, _ in made:
            parcel.close()
        raise
    parcel, plan = made[0]
    if joined is not None and plan.staging is not None:
        staged = dataclasses.replace(plan.staging, peers=joined.peers)
        plan = dataclasses.replace(plan, staging=staged)
    return parcel, plan, joined


def _join_peers(
    peers: object, prepare: Callable[[], str], sampler: object, dataset_size: int
) -> Joined:
    """Prepare staging on all ranks, or on none, and have the nodes of the job find each other.

    What preparing returns has to be the same on all ranks: they compute from it who reads what.
    """
    if not isinstance(sampler, ScatteredOrder):
        raise OptionError(
            "peers",
            "needs the orders of all ranks; give overlapiter.scatter_order(comm) as order_sampler, "
            "or as the sampler of a DataLoader, where a DistributedSampler will do, too",
        )
    from overlapiter.peers.rendezvous import communicator_of, from_all, join

    comm = communicator_of(peers, sampler.rank, sampler.size)
    found = from_all(comm, prepare)
    kinds = [*dict.fromkeys(found)]
    if len(kinds) > 1:
        shown = ", ".join(f"rank {found.index(kind)} has {kind}" for kind in kinds[:8])
        raise OptionError(
            "peers",
            f"the ranks do not have the same data: {shown}; give all of them the same dataset, and "
            f"a source whose path without symbolic links, and whose storage_options for the server "
            f"or archive of a URL, are the same on all nodes",
        )
    return join(comm, sampler, dataset_size)


def default_prefetchers(n_cores: int) -> int:
    """Return how many prefetcher processes to have, by the cores that are this rank's part.

    Copying takes CPU time mostly under the interpreter's lock, so a process copies some thousand
    small files a second, however many reads it has in flight. Decoding takes a multiple of that
    time, so one process for four cores keeps up, and eight copy more than a store delivers.
    """
    return min(n_cores, max(2, min(n_cores // 4, 8)))


def _site_of(tier: Tier, keep_free: int | str) -> Site:
    """Look at the directory of a tier, which may not be there yet, and how large its disk is."""
    directory = os.fspath(tier.directory)
    parent = os.path.dirname(directory)
    if not os.path.isdir(parent):
        raise StagingError(directory, f"its parent {parent} does not exist; make it first")
    if os.path.exists(directory) and not os.path.isdir(directory):
        raise StagingError(directory, "is a file, not a directory; choose another one")
    disk = os.statvfs(directory if os.path.exists(directory) else parent)
    disk_bytes = disk.f_blocks * disk.f_frsize
    kept_bytes = parse_size("keep_free", keep_free, disk_bytes)
    if 0 < disk_bytes <= kept_bytes:
        raise OptionError(
            "keep_free",
            f"{keep_free} leaves no room on the disk of {directory}, of {disk_bytes} bytes; give "
            f"less",
        )
    return Site(
        directory,
        None if tier.capacity is None else parse_size("capacity", tier.capacity, disk_bytes),
        kept_bytes,
    )


def _find_source(staging: Staging, dataset: Any) -> str:
    if staging.source is not None:
        return source_root(os.fspath(staging.source))
    roots = source_roots(dataset)
    if len(roots) != 1:
        found = f"several were found ({', '.join(sorted(roots))})" if roots else "none is known"
        raise OptionError(
            "source",
            f"is needed, since of the roots of this dataset {found}; name the directory on "
            f"the slow store below which the files lie",
        )
    return roots.pop()


def _check_access(staging: Staging, source: str) -> tuple[str, ...]:
    """Check that the source can be read, as far as no slow store is asked; return what to import.

    Workers find out whether the store of a URL answers: they alone connect to it.
    """
    if is_url(source):
        from overlapiter.origins.remote import check_remote  # takes a while, for URLs alone

        module = check_remote(source, staging.storage_options or {})
        return (module, "overlapiter.origins.direct")
    if staging.storage_options:
        raise OptionError("storage_options", f"is for URLs, but {source} is a directory")
    if not os.path.isdir(source):
        raise OptionError("source", f"{source} is no directory; check the path and the mount")
    return ()


def _first_paths(source: str, dataset: Any, first_indices: list[int]) -> set[str]:
    """Return the files of the first mini-batch below the source, as far as they are declared.

    Refuse a source below which none of them lies; warn where few do.
    """
    paths = [path for index in first_indices for path in declared_paths(dataset, index) or []]
    below = dict(paths_below(source, paths))
    outside = [path for path in paths if path not in below]
    if not outside:
        return {*below.values()}
    shown = outside[0] if is_url(outside[0]) else os.path.abspath(outside[0])
    if not below:
        alias = " by its name, which leads there through a symbolic link: give both by one name"
        is_alias = not is_url(source) and not is_url(shown) and _is_within(shown, source)
        raise OptionError(
            "source",
            f"no file of the first mini-batch lies below {source}, for example "
            f"{shown} does not{alias * is_alias}; name the directory that holds the files",
        )
    if len(outside) > len(paths) / 2:
        warn(
            f"{len(outside)} of the {len(paths)} files of the first mini-batch do not lie below "
            f"the source {source} and are not staged, {shown} for example; name a directory "
            f"above all of them as Staging.source",
            StagingWarning,
        )
    return {*below.values()}


def check_apart(source: str, directories: list[str]) -> None:
    """Raise OptionError if a directory lies in another one or in the source, or holds it."""
    for directory in directories:
        if not is_url(source) and _is_within(directory, source):
            raise OptionError(
                "directory",
                f"{directory} lies below the source {source}; choose one on another disk",
            )
        if not is_url(source) and _is_within(source, directory):
            raise OptionError(
                "directory",
                f"{directory} holds the source {source}; choose one on another disk, or beside it",
            )
    for directory, other in itertools.permutations(directories, 2):
        if _is_within(directory, other):
            raise OptionError(
                "tiers", f"{directory} is, or lies in, {other}; give each tier one of its own"
            )


def _is_within(path: str, folder: str) -> bool:
    """Return whether a path leads to a directory or below it, by name or through links."""
    return any(
        os.path.join(resolved(path), "").startswith(os.path.join(resolved(folder), ""))
        for resolved in (os.path.abspath, os.path.realpath)
    )


def _prepare(directory: str, *, is_training: bool) -> None:
    try:
        prepare(directory)
    except StagingError as error:
        if not is_training or getattr(error.__cause__, "errno", None) not in _ILLNESSES:
            raise
    if old_store(directory):
        warn(
            f"{directory} holds files that an earlier version of overlapiter staged, in a form "
            f"that this one does not read: they are left alone; `overlapiter evict {directory} "
            f"--old` removes them",
            StagingWarning,
        )


def _check_capacity(capacity_bytes: int, paths: Collection[str]) -> None:
    """Refuse a capacity that does not hold the files of one mini-batch, in whole blocks."""
    needed_bytes = 0
    for path in paths:
        with contextlib.suppress(OSError, ValueError):  # it is missing, or a URL
            needed_bytes += aligned(os.stat(path).st_size, _BLOCK_BYTES)
        if capacity_bytes > _AMPLE * len(paths) * needed_bytes > 0:
            return  # to ask a slow store for each of them would take seconds
    needed_bytes = max(needed_bytes, _BLOCK_BYTES)
    if capacity_bytes < needed_bytes:
        raise OptionError(
            "capacity",
            f"{capacity_bytes} bytes are less than the files of one mini-batch take "
            f"({needed_bytes} bytes at least, in whole blocks of {_BLOCK_BYTES}); give room for "
            f"some mini-batches",
        )
