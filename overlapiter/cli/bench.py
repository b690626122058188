"""Run the benchmarks, and draw the figures of their results.

They are in the repository, not in the installed package: run this in a clone of it. What follows
goes to `python -m bench`; without anything, a first look of a minute.

Examples:
  overlapiter bench
  overlapiter bench --list
  overlapiter bench thousand --help
  overlapiter bench figures bench/results/*.json

exit code: that of the benchmark; 1 if there is no clone here
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from .console import CommandError

#: All words are the benchmark's, options included.
TAKES_ALL = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("words", metavar="WORD", nargs=argparse.REMAINDER, help="for the benchmark")


def run(arguments: argparse.Namespace) -> int:
    """Run; return the exit code."""
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    for folder in (os.getcwd(), here):
        if os.path.isfile(os.path.join(folder, "bench", "__main__.py")):
            break
    else:
        raise CommandError(
            "the benchmarks are not here; clone the repository, and run this in the clone"
        )
    words = [sys.executable, "-m", "bench", *arguments.words]
    return subprocess.run(words, cwd=folder, check=False).returncode
