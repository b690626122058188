"""Progress bars, in a terminal only."""

from __future__ import annotations

from tqdm import tqdm


def progress_bar(total: int, unit: str) -> tqdm:
    """Return a bar on standard error, which shows nothing where that is no terminal."""
    tqdm.monitor_interval = 0  # no thread beside what is measured
    return tqdm(total=total, unit=unit, disable=None)
