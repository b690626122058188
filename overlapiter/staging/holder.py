"""Who holds something, as a part of a file name: for file systems without locks.

There the kernel does not say when a holder dies, so its tag has to.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import itertools
import os

from overlapiter.staging.process_id import Life, ProcessId

#: What a file system without locks answers to ``flock`` or ``fcntl``.
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
#: A holder of whom nobody here can say whether it lives, in another container perhaps, is taken
#: for dead when its files have not changed for so long.
PATIENCE_SECONDS = 60.0

_SEPARATOR = "~"
_numbers = itertools.count()


def new_tag() -> str:
    """Return a tag of this process that nobody else has, nor had."""
    return f"{next(_numbers)}{_SEPARATOR}{_own_tag(os.getpid())}"


def is_stale(tag: str, age_seconds: float) -> bool:
    """Return whether the process that made a tag is dead, as far as can be known.

    Args:
        tag: Anything; of what :func:`new_tag` did not make, the age alone counts.
        age_seconds: Since when its files have not changed.
    """
    holder = _parsed(tag)
    life = Life.UNKNOWN if holder is None else holder.life()
    return life is Life.ENDED or (life is Life.UNKNOWN and age_seconds > PATIENCE_SECONDS)


@functools.lru_cache(maxsize=1)
def boot_number() -> int:
    """Return a number, not 0, that the next boot of this machine will not have."""
    boot_id = ProcessId.this_process().boot_id
    digest = hashlib.blake2b(boot_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1 or 1


@functools.lru_cache(maxsize=1)
def _own_tag(_pid: int) -> str:  # a forked child is another process
    own = ProcessId.this_process()
    numbers = (own.pid, own.start_ticks, own.pid_namespace)
    return _SEPARATOR.join([*map(str, numbers), own.boot_id, own.host.replace("/", "_")])


def _parsed(tag: str) -> ProcessId | None:
    words = tag.split(_SEPARATOR, 5)
    if len(words) != 6 or not all(word.isdecimal() for word in words[:4]):
        return None
    _, pid, ticks, namespace = map(int, words[:4])
    return ProcessId(words[5], words[4], namespace, pid, ticks)
