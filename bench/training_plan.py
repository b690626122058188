"""Which runs of data-parallel training there are, in which order, and what each is asked for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from bench.isolated import CHECKOUT
from bench.photographs import make_photographs
from bench.training_spec import TrainingSpec

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from pathlib import Path


class Point(NamedTuple):
    """One group of lines of the table; ``n_ranks`` and ``n_readers`` are per node and per rank."""

    n_nodes: int
    n_ranks: int
    loader: str
    n_readers: int


class Sources(NamedTuple):
    """Where the images are, and what they are."""

    root: str
    local_root: str
    pairs: str
    label: str


def points_of(options: argparse.Namespace) -> list[Point]:
    """Return what is run on this machine, in this order."""
    n_cores = len(os.sched_getaffinity(0))
    return [
        Point(n_nodes, n_ranks, loader, options.readers or max(1, n_cores // (n_nodes * n_ranks)))
        for n_nodes in options.nodes
        for n_ranks in options.ranks
        for loader in options.loaders
    ]


def interleaved(points: Sequence[Point], n_repeats: int) -> Iterator[tuple[int, Point]]:
    """Yield each point with its number, ``n_repeats`` times.

    There and back, so that a drift of the machine's speed favours nobody.
    """
    for repeat in range(n_repeats):
        yield from list(enumerate(points))[:: (-1) ** repeat]


def sources_of(options: argparse.Namespace, scratch: Path) -> Sources:
    """Make the images or find them; blocks until they are all there."""
    if options.pairs:
        root = str((options.source or options.root).resolve())
        local = str(scratch / "local") if options.source else root
        label = f"{options.examples} files of the user's own"
        return Sources(root, local, str(options.pairs.resolve()), label)
    made = make_photographs(CHECKOUT / ".cache/bench/photographs", options.examples)
    root = str(made.root.resolve())
    label = f"{options.examples} different JPEG files of {made.mean_bytes / 1e3:.1f} kB on average"
    return Sources(root, root, os.path.join(root, "pairs.txt"), label)


def spec_of(
    point: Point, options: argparse.Namespace, sources: Sources, staging: Path, store: Path | None
) -> TrainingSpec:
    """Return what all ranks of a run are asked for."""
    return TrainingSpec(
        loader=point.loader,
        model=options.model,
        pairs=sources.pairs,
        n_examples=options.examples,
        root=sources.root,
        local_root=sources.local_root,
        staging=str(staging),
        store=None if store is None else str(store),
        batch_size=options.batch_size,
        n_epochs=options.epochs,
        n_readers=point.n_readers,
        order=options.order,
        seed=options.seed,
        communicator=options.communicator,
    )
