"""Run the benchmarks, and draw the figures of their results.

They are in the repository, not in the installed package: run this in a clone of it. What follows
goes to `python -m bench`; without anything, a first look of a minute. --json prints the result, or
where there is none, as of --list, the lines.

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
import json
import os
import subprocess
import sys
import tempfile

from .console import CommandError, say

#: All words are the benchmark's, options included.
TAKES_ALL = True
#: What makes no result of its own.
_NO_RESULT = ("--all", "--list", "figures", "tables")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("words", metavar="WORD", nargs="*", help="for the benchmark")


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
    if "--json" not in words:
        return subprocess.run(words, cwd=folder, check=False).returncode
    words.remove("--json")
    with tempfile.TemporaryDirectory() as scratch:
        result = os.path.join(scratch, "result.json")
        words += [] if words[3:4] and words[3] in _NO_RESULT else ["--out", result]
        done = subprocess.run(words, cwd=folder, check=False, stdout=subprocess.PIPE, text=True)
        if os.path.exists(result):
            say(done.stdout)
            with open(result) as file:
                print(file.read(), end="")
        else:
            print(json.dumps({"lines": done.stdout.splitlines()}))
    return done.returncode
