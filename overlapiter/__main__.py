"""``python -m overlapiter`` is the command ``overlapiter``."""

import sys

from overlapiter.cli.interruption import exit_at_interrupt


def main() -> int:
    """Load and run the command line; return the exit code."""
    exit_at_interrupt()
    from overlapiter.cli.main import main as run  # takes a while

    return run()


if __name__ == "__main__":  # not when a worker process imports the program's main module
    sys.exit(main())
