"""The pipeline of a loader, from its options; it is used again as long as these are the same."""

from __future__ import annotations

import contextlib
import os
import socket
import time
import weakref
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.utils import data
from torch.utils.data import default_collate

from overlapiter.torch.collation import Collation
from overlapiter.torch.face import Renewal, TorchFace, fetches_whole
from overlapiter.torch.memory import FacePickler
from overlapiter.torch.orders import size_of
from overlapiter.torch.pinned import TorchLocker
from overlapiter.torch.presence import is_needed
from overlapiter.tracing import chosen_trace
from overlapiter.workers.start.launch import start_forkserver
from overlapiter.workers.start.parcel import Parcel, digest_of, pickled_pieces

if TYPE_CHECKING:  # nothing that the start of the workers would have to wait for
    from overlapiter.peers.rendezvous import Joined
    from overlapiter.pipeline import Pipeline

_PRELOAD = ("overlapiter.workers.supervisor.main", "overlapiter.torch.face")


def preload_of(loader: data.DataLoader[Any]) -> tuple[str, ...]:
    """Return what the forkserver is to import, so that the processes forked from it need not."""
    things = [loader.dataset, loader.worker_init_fn, _collate_fn_of(loader)]
    if fetches_whole(loader.dataset):
        things.append(loader.collate_fn)
    return (*_PRELOAD, *["torch", "overlapiter.torch.memory"] * is_needed(things))


class Feed(NamedTuple):
    """A pipeline and what it was made for."""

    pipeline: Pipeline
    purpose: tuple[Any, ...]  # the loader's options, and a digest of the pickled dataset


class Shelf:
    """Where a loader keeps a feed that no iterator uses, and what its ranks have agreed on."""

    def __init__(self) -> None:
        self._feed: Feed | None = None
        self.joined: Joined | None = None
        self.is_closed = False
        self.latest: Pipeline | None = None  # that an epoch began with, for its counters

    def put(self, feed: Feed) -> None:
        """Keep a feed for the next iterator; end it if there is one, or the loader was closed."""
        if self._feed is None and not self.is_closed:
            self._feed = feed
        else:
            feed.pipeline.close()

    def take(self) -> Feed | None:
        """Return the feed; the shelf is then empty, and open."""
        self.is_closed = False
        feed, self._feed = self._feed, None
        return feed

    def close(self) -> None:
        """End the feed, if there is one, and those that iterators bring back until the next."""
        feed = self.take()
        self.is_closed = True
        if feed is not None:
            feed.pipeline.close()

    def keep(self, joined: Joined) -> Joined:
        """Keep what the ranks have agreed on; return it with a listener that is a feed's to close.

        Each rank makes new feeds when it has to, while the others train. The servers of several
        feeds listen on one port, and any of them answers.
        """
        if self.joined is None:
            self.joined = joined
            if joined.listener is not None:
                weakref.finalize(self, joined.listener.close)
        if joined.listener is None:
            return joined
        # Its own dup() would have those wait in accept() that listen now.
        listener = socket.socket(fileno=os.dup(joined.listener.fileno()))
        return joined._replace(listener=listener)


def begin(loader: data.DataLoader[Any], renewal: Renewal, first_indices: list[int]) -> Feed:
    """Return a feed for an epoch of a loader: that on its shelf, or a new one.

    Its file readers are fresh processes in either case, with the dataset as it is now. Making the
    first one with peers is collective.

    They are told the renewal. The first mini-batch must fit into the staging directory.

    Raises:
        DatasetPicklingError: The dataset, or a function of the loader, cannot be pickled.
        OptionError: A value cannot work here.
        StagingError: The staging directory cannot be used.
    """
    face = TorchFace(
        loader.dataset,
        _collate_fn_of(loader),
        loader.worker_init_fn,
        is_batched=loader._auto_collation,
        deals_in_turn=loader.seed is None,
    )
    is_pinned = bool(loader.pin_memory) and torch.cuda.is_available()
    trace = chosen_trace(None)[0]  # workers record in the one that they begin with
    options = (
        *(loader.num_workers, loader.prefetch_factor, loader.batch_size, loader.seed),
        *(loader.bad_examples, loader.staging, is_pinned, trace),
        os.getpid(),  # in a forked process it is dead
    )
    old: Feed | None = loader._shelf.take()
    if old is not None:
        with contextlib.suppress(Exception):  # explained below
            if old.purpose == (options, digest_of(pickled_pieces(face, FacePickler))):
                old.pipeline.reset(renewal)
                loader._shelf.latest = old.pipeline
                return old
        old.pipeline.close()
    feed = _new_feed(loader, face, options, renewal, first_indices)
    if is_pinned:
        feed.pipeline.lock_pages(TorchLocker())
    loader._shelf.latest = feed.pipeline
    return feed


def _collate_fn_of(loader: data.DataLoader[Any]) -> Any:
    """Return what makes a mini-batch of examples; None for PyTorch's default."""
    if not loader._auto_collation or loader.collate_fn is not default_collate:
        return loader.collate_fn
    collation = Collation()
    return None if collation.is_pytorchs else collation  # what a program registers runs in workers


def _new_feed(
    loader: data.DataLoader[Any],
    face: TorchFace,
    options: tuple[Any, ...],
    renewal: Renewal,
    first_indices: list[int],
) -> Feed:
    created_ns = time.monotonic_ns()
    from overlapiter.pipeline import Pipeline  # while the forkserver starts
    from overlapiter.planning import planned
    from overlapiter.torch.batches import view_tensors, view_whole
    from overlapiter.workers.plan import SupervisorPlan

    def make() -> tuple[Parcel, SupervisorPlan]:
        imports = preload_of(loader)
        start_forkserver(imports)
        return Parcel(face, FacePickler, name=""), SupervisorPlan(
            n_readers=loader.num_workers,
            n_build_ahead=loader.prefetch_factor * loader.num_workers,
            batch_size=loader.batch_size or 1,
            dataset_size=max(0, size_of(loader.dataset)),
            index_type="O",  # as they come
            seed=loader.seed,
            is_skipping=loader.bad_examples != "raise",
            max_parts_per_reader=None,
            imports=imports,
            renewal=renewal,
        )

    shelf = loader._shelf
    parcel, plan, joined = planned(
        make,
        loader.staging,
        loader.dataset,
        first_indices,
        sampler=loader._order,
        joined=shelf.joined,
    )
    purpose = options, parcel.digest
    if joined is not None:
        joined = shelf.keep(joined)
    view = view_whole if face.collates else view_tensors
    pipeline = Pipeline(parcel, plan, created_ns, view=view, joined=joined)
    return Feed(pipeline, purpose)
