"""Speaking to the user: results on standard output, everything else on standard error."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator, Sequence

from tqdm import tqdm

_QUIET_SECONDS = 60.0
_COLUMNS, _ROWS = 80, 24
#: So many of many names are told.
SHOWN_NAMES = 3


class CommandError(Exception):
    """Something that the user can mend; the message says how.

    Args:
        message: What is wrong, and what to do next.
        is_usage: Whether the command line is what has to change.
    """

    def __init__(self, message: str, *, is_usage: bool = False) -> None:
        super().__init__(message)
        self.is_usage = is_usage


def say(text: str) -> None:
    """Print to standard error."""
    print(text, file=sys.stderr, flush=True)


class Progress:
    """A progress bar in a terminal; elsewhere a line each minute.

    Args:
        total: How many things there are to do; None if nobody knows.
        unit: What they are, in the plural.
    """

    def __init__(self, total: int | None, unit: str) -> None:
        self._bar = tqdm(
            total=total,
            unit=f" {unit}",
            disable=None,  # where standard error is no terminal
            **_shape(),
            smoothing=0.05,
        )
        self._total, self._unit = total, unit
        self._done = 0
        self._started = time.monotonic()
        self._bytes = 0
        self._say_at = self._started + _QUIET_SECONDS

    def advance(self, size_bytes: int = 0) -> None:
        """Count one thing, and the bytes that it took."""
        self._done += 1
        self._bytes += size_bytes
        if not self._bar.disable:
            self._bar.set_postfix_str(self._words(), refresh=False)
            self._bar.update()
        elif time.monotonic() >= self._say_at:
            self._say_at = time.monotonic() + _QUIET_SECONDS
            of = f" of {self._total:,}" if self._total is not None else ""
            say(f"{self._done:,}{of} {self._unit}, {self._words()}")

    def _words(self) -> str:
        seconds = max(time.monotonic() - self._started, 1e-3)
        return f"{size_words(self._bytes)}, {size_words(self._bytes / seconds)}/s"

    def close(self) -> None:
        """Leave the bar as it is and go to the next line."""
        if not self._bar.disable:
            self._bar.set_postfix_str(self._words(), refresh=False)
        self._bar.close()


@contextlib.contextmanager
def progress(total: int | None, unit: str) -> Iterator[Progress]:
    """Show progress for the length of a ``with`` block; see :class:`Progress`."""
    tqdm.monitor_interval = 0  # no thread for it
    shown = Progress(total, unit)
    try:
        yield shown
    finally:
        shown.close()


def _shape() -> dict[str, int | bool]:
    """Return how wide the bar is to be; some terminals do not say how wide they are."""
    with contextlib.suppress(OSError, ValueError):
        if not os.get_terminal_size(sys.stderr.fileno()).columns:
            return {"ncols": _COLUMNS, "nrows": _ROWS}
    return {"dynamic_ncols": True}


def is_terminal() -> bool:
    """Return whether somebody can be asked."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


def is_confirmed(question: str) -> bool:
    """Ask; anything but y or yes is a no."""
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


# --- words ------------------------------------------------------------------------------------


def size_words(size_bytes: float) -> str:
    """Write a size as people do, in powers of 1000: ``12.3 MB``."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(size) < 999.5 or unit == "TB":
            break
        size /= 1000
    if unit == "B" or abs(size) >= 99.5:
        return f"{size:,.0f} {unit}"
    return f"{size:.1f} {unit}"


def duration_words(seconds: float) -> str:
    """Write a duration as people do: ``1 h 20 min``."""
    if seconds < 0.9995:
        return f"{seconds * 1e3:.2g} ms" if seconds < 0.00995 else f"{seconds * 1e3:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} days"


def count_words(n: int, thing: str, things: str | None = None) -> str:
    """Write a number of things: ``1 file``, ``1,200 files``."""
    return f"{n:,} {thing if n == 1 else things or thing + 's'}"


def names_words(names: Sequence[str], n: int | None = None) -> str:
    """Write the first few names of ``n``; what a terminal might obey is escaped."""
    n = len(names) if n is None else n
    shown = [printable(name) for name in names[:SHOWN_NAMES]]
    more = n - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")


def printable(name: str) -> str:
    """Return a name without what a terminal might obey."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], *, n_left: int = 1) -> str:
    """Lay out a table; all columns but the first ``n_left`` are aligned to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = []
    for row in [head, *rows]:
        cells = [
            cell.ljust(width) if i < n_left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "   ".join(cells).rstrip())
    return "\n".join(lines)
