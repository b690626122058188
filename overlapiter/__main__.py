"""``python -m overlapiter`` is the command ``overlapiter``."""

import io
import os
import signal
import sys


def main() -> int:
    """Load and run the command line; return the exit code."""
    # Nothing is to be ended yet; an exception from within an import would show its traceback.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, lambda *_: os._exit(128 + signal.SIGINT))
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # the caller has closed it
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):  # names may be of any bytes, and locales of a few
        sys.stdout.reconfigure(errors="backslashreplace")
    from overlapiter.cli.main import main as run  # takes a while

    return run()


if __name__ == "__main__":  # not when a worker process imports the program's main module
    sys.exit(main())
