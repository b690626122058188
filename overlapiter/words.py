"""Numbers as people write them. Pure."""

from __future__ import annotations


def size_words(size_bytes: float) -> str:
    """Write a size as people do, in powers of 1000: ``12.3 MB``."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(size) < 999.5 or unit == "TB":
            break
        size /= 1000
    return f"{size:,.0f} {unit}" if unit == "B" or abs(size) >= 99.5 else f"{size:.1f} {unit}"


def duration_words(seconds: float) -> str:
    """Write a duration as people do: ``1 h 20 min``."""
    if seconds < 0.9995:
        return f"{seconds * 1e3:.2g} ms" if seconds < 0.00995 else f"{seconds * 1e3:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {minutes} min" if hours < 48 else f"{hours // 24} days"


def count_words(n: int, thing: str) -> str:
    """Write a number of things: ``1 file``, ``1,200 files``."""
    return f"{n:,} {thing}{'' if n == 1 else 's'}"
