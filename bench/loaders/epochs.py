"""What the benchmarks of some epochs over photographs on a slow store have in common."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.loaders.sources import add_source_options, check_source_options, spec_of

if TYPE_CHECKING:
    import argparse

    from bench.loaders.sources import Sources
    from bench.loaders.spec import RunSpec


def add_epoch_options(parser: argparse.ArgumentParser, **defaults: object) -> None:
    """Add the options of source and epochs; ``defaults`` are those that are not the usual ones."""
    add = parser.add_argument
    add_source_options(parser)
    add("--examples", type=int, default=3200, help="photographs (%(default)s)")
    add("--batch-size", type=int, default=32, help="examples in a mini-batch (%(default)s)")
    add("--epochs", type=int, default=3, help="epochs, at least 2 (%(default)s)")
    add("--readers", type=int, default=2, help="file reader processes (%(default)s)")
    parser.set_defaults(**defaults)


def check_epochs(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """End the program if there are too few epochs, or contradictions."""
    if options.epochs < 2:
        parser.error("--epochs: give at least 2: the first one has the start of the workers")
    if "source" in options:
        check_source_options(options, parser)


def epochs_of(
    options: argparse.Namespace,
    sources: Sources,
    loader: str,
    fraction: float | None,
    **others: object,
) -> RunSpec:
    """Return some epochs with a staging directory for a part of the data set, or all if None."""
    usual = {
        "n_examples": options.examples,
        "batch_size": options.batch_size,
        "n_epochs": options.epochs,
        "n_readers": options.readers,
        "order": "own",
        "capacity": sources.capacity_of(fraction, options.examples),
    }
    return spec_of(options, sources, loader, **{**usual, **others})
