"""What the benchmarks of some epochs over photographs on a slow store have in common."""

from __future__ import annotations

import argparse
import contextlib
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench.isolated import CHECKOUT
from bench.machine import commit_facts, machine_facts
from bench.photographs import make_photographs

if TYPE_CHECKING:
    from collections.abc import Iterator

_PHOTOGRAPHS = CHECKOUT / ".cache/bench/photographs"


def parser_for(description: str | None, name: str, **defaults: float) -> argparse.ArgumentParser:
    """Return a parser for the options that all of them have.

    Args:
        description: What the command line says of itself.
        name: The benchmark, which names its JSON file.
        defaults: For the options that do not have the usual ones.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--examples", type=int, default=3200, help="photographs (%(default)s)")
    add("--batch-size", type=int, default=32, help="examples in a mini-batch (%(default)s)")
    add("--epochs", type=int, default=3, help="epochs, at least 2 (%(default)s)")
    add("--readers", type=int, default=2, help="file reader processes (%(default)s)")
    kinds = ("emulated", "fuse")
    add("--mount", choices=kinds, default=kinds[0], help="the slow store (%(default)s)")
    add("--open-ms", type=float, default=10.0, help="the store's wait per open (%(default)s)")
    add("--bandwidth", type=float, default=100.0, help="the store's MB/s (%(default)s)")
    add("--seed", type=int, default=0, help="the orders follow from it (%(default)s)")
    add("--local", type=Path, help="a folder on the fast disk (that of temporary files)")
    add("--out", type=Path, default=CHECKOUT / f"bench/results/{name}.json")
    parser.set_defaults(**defaults)
    return parser


def parse(parser: argparse.ArgumentParser, arguments: list[str] | None) -> argparse.Namespace:
    """Return the options, once there are enough photographs for them."""
    options = parser.parse_args(arguments)
    if options.epochs < 2:
        parser.error("--epochs: give at least 2")
    make_photographs(_PHOTOGRAPHS, options.examples)
    return options


@contextlib.contextmanager
def scratch(options: argparse.Namespace) -> Iterator[str]:
    """Make a folder on the fast disk for all runs, and remove it after the last one.

    Not after each: ext4 then creates files up to ten times as slowly for a minute.
    """
    with tempfile.TemporaryDirectory(prefix="bench-epochs-", dir=options.local) as folder:
        yield folder


def request_for(
    options: argparse.Namespace,
    loader: str,
    fraction: float | None,
    local: str,
    *,
    is_decoding: bool,
) -> dict:
    """Return what ``bench.epoch_runs`` is asked for; ``local`` is the folder of all runs."""
    return {
        "loader": loader,
        "fraction": fraction,
        "is_decoding": is_decoding,
        "root": str(_PHOTOGRAPHS),
        "pairs": str(_PHOTOGRAPHS / "pairs.txt"),
        "n_examples": options.examples,
        "batch_size": options.batch_size,
        "n_epochs": options.epochs,
        "n_readers": options.readers,
        "seed": options.seed,
        "local": local,
        "mount": options.mount,
        "beside_fraction": 0.0,
        "open_seconds": options.open_ms / 1e3,
        "bytes_per_second": options.bandwidth * 1e6,
    }


def write(options: argparse.Namespace, name: str, **found: object) -> None:
    """Write the JSON file."""
    kept = {key: value for key, value in vars(options).items() if key not in ("out", "local")}
    facts = {"benchmark": name, **commit_facts(), "machine": machine_facts()}
    result = {**facts, "options": kept, **found}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result) + "\n")


def store_label(options: argparse.Namespace) -> str:
    """Return what to write next to a result."""
    kind = "FUSE mount" if options.mount == "fuse" else "emulated store"
    return f"{kind}: {options.open_ms:g} ms per open, {options.bandwidth:g} MB/s"
