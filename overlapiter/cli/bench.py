"""Run the benchmarks, and draw the figures of their results.

They are in the repository, not in the installed package: run this in a clone of it. What follows
goes to `python -m bench`; without anything, a first look of a minute. --json prints the result, or
where there is none, as of --list and of figures, the lines.

Examples:
  overlapiter bench
  overlapiter bench --list
  overlapiter bench thousand --help
  overlapiter bench startup --quick --json
  overlapiter bench figures bench/results/*.json

exit code: that of the benchmark; 1 if there is no clone here
"""

from __future__ import annotations

import argparse
import os
import sys

from .console import CommandError

#: All words are the benchmark's, options included.
TAKES_ALL = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("words", metavar="WORD", nargs="*", help="for the benchmark")


def run(arguments: argparse.Namespace) -> int:
    """Become the benchmark, so that signals and the exit code are its own."""
    # Python looks for it in both: in the second, as it has found this package there.
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if not any(os.path.isfile(f"{folder}/bench/__main__.py") for folder in (os.curdir, here)):
        raise CommandError(
            "the benchmarks are not here; clone the repository, and run this in the clone"
        )
    words = sorted(arguments.words, key="--json".__eq__)  # the name of the benchmark comes first
    os.execv(sys.executable, [sys.executable, "-m", "bench", *words])
