"""The entry point: finds the command, runs it, and turns errors into messages and exit codes.

Exit codes: 0 all is well, 1 it did not work or something is wrong, 2 the command line cannot work,
129, 130 and 143 interrupted by SIGHUP (the terminal was closed), Ctrl-C or SIGTERM.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from types import ModuleType

from overlapiter.errors import OptionError, OverlapError
from overlapiter.store.index import IndexDamagedError

from .console import CommandError, UsageError, error_words, say

#: Each command is a module of this package, which is imported only to run it. Its docstring is what
#: ``--help`` says; it has ``add_arguments(parser)``, and ``run(arguments)`` returns the exit code.
COMMANDS = {
    "top": "show how the trainings of this node load their data, live, and what to change",
    "trace": "sum up traces, say what they show, and join those of several ranks",
    "plot": "draw a trace",
    "bench": "run the benchmarks and draw their figures, in a clone of the repository",
    "completion": "print what makes a shell complete these commands",
    "stage": "copy files to the staging directory ahead of a job",
    "status": "show what is staged, who uses it, how full it is and how well it works",
    "ls": "list staged files",
    "check": "look whether staged files are right, and mend what is not",
    "evict": "remove staged files",
    "export": "copy staged files out, to a tree like that of their source",
    "train": "train a model on many processes, with MPI or without",
    "search": "search good settings for train",
    "doctor": "measure the slow store and this node, and recommend settings",
    "plan": "forecast a job from a profile of doctor: times, misses, what more room would bring",
    "simulate": "simulate a training run under different ways to feed it data",
}
_DESCRIPTION = (
    "See how trainings load their data, and work with overlapiter's staging directory: the\n"
    "copies, on this node's own fast disk, of training files of a slow shared store.\n\n"
)
_STYLE = argparse.RawDescriptionHelpFormatter
_EPILOG = "`overlapiter COMMAND --help` explains a command. More: docs/commands.md"
_ENDS = (
    "any command: 2 if the command line cannot work, 129 after SIGHUP, 130 after Ctrl-C, 143 after "
    "SIGTERM"
)
_USAGE_STATUS = 2
#: Launchers, and impatient users, send several signals at once, which are one wish.
_AT_ONCE_SECONDS = 1.0


def main(words: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    words = sys.argv[1:] if words is None else words
    try:
        command, arguments = _parsed(words)
    except SystemExit as request:
        return request.code if isinstance(request.code, int) else _USAGE_STATUS
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    signals: list[int] = [signal.SIGINT]  # also if the user's code raises KeyboardInterrupt
    quiet_until_seconds = 0.0

    def interrupt(number: int, _frame: object) -> None:
        nonlocal quiet_until_seconds
        signals.append(number)
        if time.monotonic() >= quiet_until_seconds:
            quiet_until_seconds = time.monotonic() + _AT_ONCE_SECONDS
            raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)  # but what nohup or `&` ignores
    heard = [each for each in numbers if signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        return _run(words[0], command, arguments)
    except KeyboardInterrupt:
        return 128 + signals[-1]
    except BrokenPipeError:  # the reader of the output has gone, `| head` for example
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # for the flush at exit
        return 1
    finally:
        quiet_until_seconds = math.inf
        for number, handler in before.items():
            signal.signal(number, handler)


def _parsed(words: Sequence[str]) -> tuple[ModuleType, argparse.Namespace]:
    """Return the command and its arguments; raises SystemExit after help and mistakes."""
    if not words or words[0] not in COMMANDS:
        parser = _front_parser()
        parser.add_argument("command", metavar="COMMAND", choices=COMMANDS)
        if not words:
            parser.print_help(sys.stderr)
            raise SystemExit(_USAGE_STATUS)
        parser.parse_args(words)
        parser.error("name the COMMAND first")
    make = functools.partial(argparse.ArgumentParser, f"overlapiter {words[0]}")
    command, parser = _declared(words[0], make)
    if getattr(command, "TAKES_ALL", False) and words[1:2] not in (["-h"], ["--help"]):
        return command, argparse.Namespace(words=[*words[1:]])
    return command, parser.parse_intermixed_args(words[1:])


def _front_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line up to the command."""
    listed = "".join(f"  {name:10} {summary}\n" for name, summary in COMMANDS.items())
    parser = argparse.ArgumentParser(
        "overlapiter", description=_DESCRIPTION + listed, epilog=_EPILOG, formatter_class=_STYLE
    )
    version = importlib.import_module("overlapiter").__version__  # the façade stands above us
    parser.add_argument("--version", action="version", version=f"overlapiter {version}")
    return parser


def whole_parser() -> argparse.ArgumentParser:
    """Return a parser that knows all commands at once, which takes a while."""
    parser = _front_parser()
    commands = parser.add_subparsers(metavar="COMMAND")
    for name, summary in COMMANDS.items():
        _declared(name, functools.partial(commands.add_parser, name, help=summary))
    return parser


def _declared(
    name: str, make: Callable[..., argparse.ArgumentParser]
) -> tuple[ModuleType, argparse.ArgumentParser]:
    """Return a command, and its parser, which is made with what the command says of itself."""
    command = importlib.import_module(f"{__package__}.{name}")
    description, _, examples = str(command.__doc__).partition("\n\nExamples:")
    epilog = f"examples:{examples}{_ENDS}"
    parser = make(description=description, epilog=epilog, formatter_class=_STYLE)
    command.add_arguments(parser)
    words = "print JSON, sizes in bytes and times in seconds"
    parser.add_argument("--json", action="store_true", help=words)
    return command, parser


def _run(name: str, command: ModuleType, arguments: argparse.Namespace) -> int:
    status = 1
    try:
        status = command.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except (OverlapError, CommandError) as error:
        say(f"overlapiter {name}: {error}")
        status = _USAGE_STATUS if isinstance(error, (OptionError, UsageError)) else 1
    except (OSError, IndexDamagedError) as error:
        say(f"overlapiter {name}: {error_words(error)}")
    except MemoryError as error:
        say(f"overlapiter {name}: this node has too little memory for that ({error})")
    return status
