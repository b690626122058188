"""``python -m overlapiter`` is the command ``overlapiter``."""

import sys

from overlapiter.cli.main import main

if __name__ == "__main__":  # not when a worker process imports the program's main module
    sys.exit(main())
