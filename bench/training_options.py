"""The command line of ``bench.data_parallel``."""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.isolated import CHECKOUT
from bench.training_models import MODELS
from bench.training_spec import LOADERS, ORDERS

_USUAL_LOADERS = {"data": "overlap,slow,local"}


def parse(description: str | None, arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the checked options; ends the program if they cannot work.

    Args:
        description: What the command line says of itself.
        arguments: Of the command line; None for those of this process.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    _add_what_is_trained(parser)
    _add_where(parser)
    options = parser.parse_args(arguments)
    options.loaders = options.loaders or _USUAL_LOADERS.get(options.model, "overlap,synthetic")
    options.loaders = options.loaders.split(",")
    unknown = sorted(set(options.loaders) - set(LOADERS))
    if unknown:
        parser.error(f"--loaders: unknown: {unknown}; there are {', '.join(LOADERS)}")
    if options.source and options.root:
        parser.error("--source is the place of the files; --root is for an emulated slow store")
    if bool(options.source or options.root) != bool(options.pairs):
        parser.error("own data need --pairs, and either --root or --source")
    if options.in_job and not options.source:
        parser.error("--in-job needs --source and --pairs: the emulated store is for one machine")
    if options.epochs < 2:
        parser.error("--epochs: give at least 2: the first one has the start of the workers")
    options.staging = (options.staging or CHECKOUT / ".cache/bench").resolve()
    return options


def _add_what_is_trained(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--ranks", type=_counts, default=[1, 2, 4], help="per node (1,2,4)")
    add("--nodes", type=_counts, default=[1], help="groups of ranks that share a directory (1)")
    add("--loaders", help=f"of {','.join(LOADERS)} (what the model is for)")
    add("--model", choices=MODELS, default="data", help="data: next to no computing (%(default)s)")
    add("--order", choices=ORDERS, default="global", help="of the examples (%(default)s)")
    add("--examples", type=int, default=4096, help="images (%(default)s)")
    add("--batch-size", type=int, default=32, help="images of a rank's mini-batch (%(default)s)")
    add("--epochs", type=int, default=2, help="epochs (%(default)s)")
    add("--readers", type=int, help="file readers of a rank (its share of the cores)")
    add("--repeats", type=int, default=3, help="interleaved runs of each (%(default)s)")
    add("--seed", type=int, default=0, help="orders and weights follow from it (%(default)s)")


def _add_where(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--open-ms", type=float, default=10.0, help="emulated latency (%(default)s)")
    add("--mb-per-s", type=float, default=100.0, help="emulated bandwidth (%(default)s)")
    add("--source", type=Path, help="directory of the files on a real slow store: no emulation")
    add("--root", type=Path, help="directory of the files on the local disk, for emulation")
    add("--pairs", type=Path, help="list file of 'path label' lines (default: made images)")
    add("--staging", type=Path, help="directory on the local disk (below .cache/bench)")
    add("--in-job", action="store_true", help="this is a rank of a job that a launcher started")
    add("--communicator", default="naive", help="ChainerMN's name; GPUs unless %(default)s")
    add("--mpiexec", help="the launcher and its options (Open MPI's mpiexec)")
    add("--out", type=Path, default=CHECKOUT / "bench/results/data-parallel.json", help="JSON file")


def _counts(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]
