"""``python -m overlapiter`` is the command ``overlapiter``."""

import os
import signal
import sys


def main() -> int:
    """Load and run the command line; return the exit code."""
    # Nothing is to be ended yet; an exception from within an import would show its traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    from overlapiter.cli.main import main as run  # takes a while

    return run()


if __name__ == "__main__":  # not when a worker process imports the program's main module
    sys.exit(main())
