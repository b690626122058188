"""Print what makes a shell complete `overlapiter` commands, their options and paths.

Examples:
  eval "$(overlapiter completion bash)"       in ~/.bashrc
  overlapiter completion zsh > ~/.zfunc/_overlapiter

exit code: 0
"""

from __future__ import annotations

import argparse

from .console import tell

_SHELLS = ("bash", "zsh", "tcsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("shell", choices=_SHELLS, help="the shell")


def run(arguments: argparse.Namespace) -> int:
    """Print; return the exit code."""
    import shtab

    from .main import whole_parser

    script = shtab.complete(whole_parser(), arguments.shell)
    tell(arguments, script, shell=arguments.shell, script=script)
    return 0
