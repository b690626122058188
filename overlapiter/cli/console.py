"""Speaking to the user: results on standard output, everything else on standard error."""

from __future__ import annotations

import argparse
import contextlib
import errno
import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import IO, TYPE_CHECKING, Literal

from overlapiter.newfile import replaced
from overlapiter.store.index import IndexBusyError, IndexDamagedError
from overlapiter.words import count_words, size_words

if TYPE_CHECKING:
    from tqdm import tqdm

_QUIET_SECONDS = 60.0
#: Some thirty years; what the system can wait for is less than ten times as long.
_LONGEST_SECONDS = 1e9
#: For terminals that do not say how large they are.
_SHAPE = {"ncols": 80, "nrows": 24}
_SHOWN_NAMES = 3
_SHOWN_REASONS = 5
#: A table is never cut off.
_WIDEST = 10_000
_OWNER = "run the command as the user whose directory it is"
#: What to do about errors that say no more than what they are.
_ADVICE = {
    errno.EACCES: _OWNER,
    errno.EPERM: _OWNER,
    errno.EROFS: "it is read-only; see its modes (ls -l), or whether its disk has failed (dmesg)",
    errno.ENOSPC: "remove something else from that disk",
    errno.EDQUOT: "remove something else from that disk",
    errno.EIO: "the disk fails (dmesg); use another",
    errno.EMFILE: "raise the limit of open files (ulimit -n), or lower --reads-in-flight",
    errno.ENOENT: "check the path, and whether its disk is mounted",
    errno.ENOTDIR: "something else has the name of a directory; move it away",
}


class CommandError(Exception):
    """Something that the user can mend; the message says what is wrong, and what to do next."""


class UsageError(CommandError):
    """It is the command line that has to change."""


def say(text: str) -> None:
    """Print to standard error."""
    print(text, file=sys.stderr, flush=True)


def at_least(least: int) -> Callable[[str], int]:
    """Return the type of an argument that is a count of at least so many."""

    def count(text: str) -> int:
        try:
            number = int(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} is no count") from error
        if number < least:
            raise argparse.ArgumentTypeError(f"{text} is too small; give at least {least}")
        return number

    return count


def above_0(text: str, limit: float = 1e15) -> float:
    """Return a number that is more than 0, and less than a limit: the type of an argument."""
    try:
        number = float(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from error
    if not 0 < number < limit:
        raise argparse.ArgumentTypeError(f"give more than 0, and less than {limit:g}")
    return number


def seconds(text: str) -> float:
    """Return a time for which a thread can wait: the type of an argument."""
    return above_0(text, _LONGEST_SECONDS)


def add_figure(parser: argparse.ArgumentParser, more: str = "") -> None:
    """Declare that a command draws."""
    words = f"draw into this file, .png, .svg or .pdf{more}"
    parser.add_argument("--output", "--to", metavar="IMAGE", help=words)


def tell(arguments: argparse.Namespace, text: str, **facts: object) -> None:
    """Print a result: a line for people, or its facts for machines."""
    print(json.dumps(facts) if arguments.json else text, flush=True)


def written(path: str) -> contextlib.AbstractContextManager[IO[bytes]]:
    """Give what writes to a name of the user's, for the length of a ``with`` block.

    A file is replaced, as by :func:`replaced`, where a link leads to it; a device or a FIFO is
    written to.

    Raises:
        OSError: It cannot be written.
    """
    if os.path.exists(path) and not os.path.isfile(path):
        return open(path, "wb")
    return replaced(os.path.realpath(path))


def error_words(error: OSError | IndexDamagedError) -> str:
    """Write an error of the disk or the index with what to do about it."""
    if isinstance(error, IndexBusyError):
        return (
            f"another process keeps the index locked ({error}); try again, and if that does not "
            f"help, see whether a job of this node was stopped"
        )
    if isinstance(error, IndexDamagedError):
        return f"the index is damaged ({error}); `overlapiter check DIR --repair` begins a new one"
    if error.errno not in _ADVICE:
        return str(error)
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror}; {_ADVICE[error.errno]}"


class Progress:
    """A progress bar in a terminal; elsewhere a line each minute.

    ``n_left`` is how many things are to be done yet; the bar ends with the last one.
    """

    def __init__(self, total: int, unit: str = "files") -> None:
        self._bar = _bar(total, unit) if sys.stderr.isatty() else None
        self._unit = unit
        self._total, self.n_left, self._bytes = total, total, 0
        self._started = time.monotonic()
        self._say_at = self._started + _QUIET_SECONDS

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def advance(self, size_bytes: int = 0, n: int = 1) -> None:
        """Count things, and the bytes that they took."""
        self.n_left -= n
        self._bytes += size_bytes
        speed = self._bytes / max(time.monotonic() - self._started, 1e-3)
        words = f"{size_words(self._bytes)}, {size_words(speed)}/s" if self._bytes else ""
        if self._bar is not None:
            self._bar.set_postfix_str(words, refresh=not self.n_left)
            self._bar.update(n)
            if self.n_left <= 0:
                self._bar.close()
        elif time.monotonic() >= self._say_at:
            self._say_at = time.monotonic() + _QUIET_SECONDS
            n_done = self._total - self.n_left
            say(f"{n_done:,} of {self._total:,} {self._unit}{words and ', '}{words}")


def _bar(total: int, unit: str) -> tqdm:
    from tqdm import tqdm  # takes a while, for terminals alone

    tqdm.monitor_interval = 0  # no thread for it
    shape: dict[str, int | bool] = {"dynamic_ncols": True}
    with contextlib.suppress(OSError, ValueError):
        if not os.get_terminal_size(sys.stderr.fileno()).columns:
            shape = {**_SHAPE}
    return tqdm(total=total, unit=f" {unit}", smoothing=0.05, **shape)


def is_terminal() -> bool:
    """Return whether there is a user who can answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def is_confirmed(question: str) -> bool:
    """Ask in a terminal, where anything but y or yes is a no; a script is not asked."""
    if not is_terminal():
        return True
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    say("nothing is removed")
    return False


# --- words ----------------------------------------------------------------------------------------


class Names:
    """How many things there are, and the names of the first few."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._n = 0
        self._first: list[str] = []
        for name in names:
            self.add(name)

    def add(self, name: str) -> None:
        """Count a thing."""
        self._n += 1
        if len(self._first) < _SHOWN_NAMES:
            self._first.append(printable(name))

    def __str__(self) -> str:
        more = self._n - len(self._first)
        return ", ".join(self._first) + (f" and {more:,} more" if more else "")


def first_few(reasons: Sequence[str]) -> list[str]:
    """Return the first few reasons, and how many more there are."""
    n_left = len(reasons) - _SHOWN_REASONS
    more = [f"and {count_words(n_left, 'more reason')}"] if n_left > 0 else []
    return [*reasons[:_SHOWN_REASONS], *more]


def printable(name: str) -> str:
    """Return a name without what a terminal might obey."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)


def table(
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    n_left: int = 1,
    width: int = _WIDEST,
) -> str:
    """Lay out a table; all columns but the first ``n_left`` are aligned to the right.

    Without a head it has none. The last column is wrapped where it would be wider than all may be.
    """
    from rich.console import Console  # takes a while
    from rich.table import Table
    from rich.text import Text

    laid = Table(box=None, padding=(0, 3, 0, 0), pad_edge=False, show_header=bool(head))
    names = head or [""] * len(rows[0])
    for number, name in enumerate(names, 1):
        side: Literal["left", "right"] = "left" if number <= n_left else "right"
        laid.add_column(Text(name), justify=side, no_wrap=number < len(names))
    for row in rows:
        laid.add_row(*map(Text, row))
    shown = io.StringIO()
    Console(file=shown, width=width - 2, color_system=None).print(laid)
    return "\n".join(f"  {line.rstrip()}" for line in shown.getvalue().splitlines())
