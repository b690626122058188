"""What a boot may have done to an index: it is checked, and its sums are computed anew."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

from .index import Cursor, Index, IndexDamagedError
from .tables import lower, number_of, surpluses

#: The kernel draws it at each boot. Some containers hide it.
BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"
#: Where the kernel tells when it was booted; a clock that is set may change that, which costs no
#: more than to verify what is there.
STAT_PATH = "/proc/stat"


class Boot:
    """The boot that this process runs in, as the index of a generation has it.

    Args:
        index: The index; checked if this is the first process since the node was booted.
        block_bytes: As of the store.
        disk_bytes: The size of the disk.

    Raises:
        IndexDamagedError: The index is damaged.
        OSError: The boot is not known, with ENOSYS.
    """

    def __init__(self, index: Index, block_bytes: int, disk_bytes: int) -> None:
        self._disk_bytes = disk_bytes
        self._id = _boot_id()
        self._surplus: dict[int, int] = {}
        if index.value("SELECT value FROM fact WHERE name='boot'") not in (self._id, ""):
            index.check()
            self._surplus = index.read(lambda cursor: surpluses(cursor, block_bytes))

    def note(self, cursor: Cursor) -> int:
        """Note the boot; return how many there were."""
        odd = f"NOT charged BETWEEN 0 AND {self._disk_bytes}"
        if cursor.execute(f"SELECT 1 FROM segment WHERE {odd} LIMIT 1").fetchone():
            raise IndexDamagedError("a segment is charged for more than the disk has")
        select = "SELECT value FROM fact WHERE name=?"
        boots = number_of(cursor.execute(select, ("boots",)).fetchone())
        known = cursor.execute(select, ("boot",)).fetchone()
        if known != (self._id,):  # else another process has noted it meanwhile
            boots += 1
            cursor.execute("UPDATE fact SET value=? WHERE name='boot'", (self._id,))
            cursor.execute("UPDATE fact SET value=? WHERE name='boots'", (boots,))
            cursor.execute("DELETE FROM wanted")  # the clock begins anew
            lower(cursor, self._surplus)
        return boots


def _boot_id() -> str:
    """Return what is another text after each boot."""
    for path, beginning in ((BOOT_ID_PATH, ""), (STAT_PATH, "btime ")):
        with contextlib.suppress(FileNotFoundError, PermissionError, NotADirectoryError):
            for line in Path(path).read_text().splitlines():
                if line.startswith(beginning):
                    return line
    text = f"neither {BOOT_ID_PATH} nor {STAT_PATH} tells which boot of the node this is"
    raise OSError(errno.ENOSYS, text)
