"""Print what makes a shell complete `overlapiter` commands, their options and paths.

Examples:
  eval "$(overlapiter completion bash)"       in ~/.bashrc
  overlapiter completion zsh > ~/.zfunc/_overlapiter

exit code: 0
"""

from __future__ import annotations

import argparse

from .console import tell
from .origins import json_object

_SHELLS = ("bash", "zsh", "tcsh")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("shell", choices=_SHELLS, help="the shell")


def run(arguments: argparse.Namespace) -> int:
    """Print; return the exit code."""
    import shtab

    from .main import whole_parser

    parser = whole_parser()
    (commands,) = (each.choices for each in parser._actions if isinstance(each.choices, dict))
    for action in [action for command in commands.values() for action in command._actions]:
        if action.nargs != 0 and action.type in (None, str, json_object) and not action.choices:
            action.complete = shtab.FILE  # the shell's own completion does not come after this one
    script = shtab.complete(parser, arguments.shell)
    tell(arguments, script, shell=arguments.shell, script=script)
    return 0
