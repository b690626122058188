"""The entry point: finds the command, runs it, and turns errors into messages and exit codes.

Exit codes: 0 all is well, 1 it did not work or something is wrong, 2 the command line cannot work,
130 and 143 interrupted by Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Protocol, cast

from overlapiter.errors import OptionError, OverlapError

from .console import CommandError, say
from .interruption import raise_at_interrupt

#: Each command is a module of this package, which is imported only to run it.
COMMANDS = {
    "stage": "copy files to the staging directory ahead of a job",
    "status": "show what is staged, who uses it, how full it is and how well it works",
    "check": "compare staged files with their sources, and mend what is wrong",
    "evict": "remove staged files",
    "doctor": "measure the slow store and this node, and recommend settings",
}

_DESCRIPTION = (
    "Work with overlapiter's staging directory: the copies, on this node's own fast disk, of "
    "training files that live on a slow shared store."
)
_EPILOG = "`overlapiter COMMAND --help` explains a command. More: docs/commands.md"
_USAGE_STATUS = 2


class Command(Protocol):
    """What a module of a command offers; its docstring is the text of ``--help``."""

    EXAMPLES: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""

    def run(self, arguments: argparse.Namespace) -> int:
        """Do it; return the exit code."""


class _CommandParser(argparse.ArgumentParser):
    """Takes options between positional arguments, too: ``evict DIR --source SRC LIST``."""

    _is_mixing = False

    def parse_known_args(  # type: ignore[override]  # one of its overloads is enough
        self,
        args: Sequence[str] | None = None,
        namespace: argparse.Namespace | None = None,
    ) -> tuple[argparse.Namespace, list[str]]:
        if self._is_mixing:
            return super().parse_known_args(args, namespace)
        self._is_mixing = True
        try:
            return self.parse_known_intermixed_args(args, namespace)
        finally:
            self._is_mixing = False


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    words = sys.argv[1:] if words is None else words
    try:
        if not words:
            _parser(words).print_help(sys.stderr)
            return _USAGE_STATUS
        arguments = _parser(words).parse_args(words)
    except SystemExit as request:
        return request.code if isinstance(request.code, int) else _USAGE_STATUS
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    signals: list[int] = []

    def interrupt(number: int, _frame: object) -> None:
        signals.append(number)
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        raise_at_interrupt()
        return _run(arguments)
    except KeyboardInterrupt:
        return 128 + (signals[-1] if signals else signal.SIGINT)
    except BrokenPipeError:  # somebody has seen enough, `| head` for example
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # for the flush at exit
        return 1
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(arguments: argparse.Namespace) -> int:
    name = arguments.command
    try:
        status = _load(name).run(arguments)
        sys.stdout.flush()
    except (OptionError, CommandError) as error:
        is_usage = isinstance(error, OptionError) or error.is_usage
        say(f"overlapiter {name}: {error}")
        return _USAGE_STATUS if is_usage else 1
    except BrokenPipeError:
        raise
    except (OverlapError, OSError) as error:
        say(f"overlapiter {name}: {error}")
        return 1
    return status


def _load(name: str) -> Command:
    return cast("Command", importlib.import_module(f"{__package__}.{name}"))


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("overlapiter", description=_DESCRIPTION, epilog=_EPILOG)
    version = importlib.import_module("overlapiter").__version__  # the façade stands above us
    parser.add_argument("--version", action="version", version=f"overlapiter {version}")
    subparsers = parser.add_subparsers(
        dest="command", metavar="COMMAND", required=True, parser_class=_CommandParser
    )
    for name, summary in COMMANDS.items():
        if name not in words:
            subparsers.add_parser(name, help=summary)
            continue
        module = _load(name)
        subparser = subparsers.add_parser(
            name,
            help=summary,
            description=module.__doc__,
            epilog=module.EXAMPLES,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(subparser)
    return parser
