"""What a boot may have done to an index: it is checked, and its sums are computed anew."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from pathlib import Path

from .index import Cursor, Index, IndexDamagedError
from .tables import lower, number_of, surpluses

#: The kernel draws it at each boot. Some containers hide it.
BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"
#: Where the kernel tells when it was booted; a clock that is set may change that, which costs no
#: more than to verify what is there.
STAT_PATH = "/proc/stat"


def check(index: Index, block_bytes: int, disk_bytes: int) -> Callable[[Cursor], int]:
    """Check an index, if this is the first process that opens it since the node was booted.

    Returns:
        What notes the boot, and gives how many there were.

    Raises:
        IndexDamagedError: The index is damaged.
        OSError: The boot is not known, with ENOSYS.
    """
    boot = _boot_id()
    surplus: dict[int, int] = {}
    if index.value("SELECT value FROM fact WHERE name='boot'") not in (boot, ""):
        from concurrent.futures import ThreadPoolExecutor  # takes a while to load

        # Side by side: SQLite does both without Python's lock.
        with ThreadPoolExecutor(1) as pool:
            counted = pool.submit(index.read, lambda cursor: surpluses(cursor, block_bytes))
            index.check()
            surplus = counted.result()

    def note(cursor: Cursor) -> int:
        odd = f"NOT charged BETWEEN 0 AND {disk_bytes}"
        if cursor.execute(f"SELECT 1 FROM segment WHERE {odd} LIMIT 1").fetchone():
            raise IndexDamagedError("a segment is charged for more than the disk has")
        select = "SELECT value FROM fact WHERE name=?"
        boots = number_of(cursor.execute(select, ("boots",)).fetchone())
        if cursor.execute(select, ("boot",)).fetchone() != (boot,):  # else it has been noted
            boots += 1
            cursor.execute("UPDATE fact SET value=? WHERE name='boot'", (boot,))
            cursor.execute("UPDATE fact SET value=? WHERE name='boots'", (boots,))
            cursor.execute("DELETE FROM wanted")  # the clock begins anew
            lower(cursor, surplus)
        return boots

    return note


def _boot_id() -> str:
    """Return what is another text after each boot."""
    for path, beginning in ((BOOT_ID_PATH, ""), (STAT_PATH, "btime ")):
        with contextlib.suppress(FileNotFoundError, PermissionError, NotADirectoryError):
            for line in Path(path).read_text().splitlines():
                if line.startswith(beginning):
                    return line
    text = f"neither {BOOT_ID_PATH} nor {STAT_PATH} tells which boot of the node this is"
    raise OSError(errno.ENOSYS, text)
