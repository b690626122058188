"""Records of the runs that use a staging directory; this module owns their format.

::

    overlapiter.users/node7-4711-0.json   one for each run that is going on (presence)
    overlapiter.runs.jsonl                one line for each run that has ended, the last ones

Records inform people, and tell which source roots are in use. They are written without waiting for
anybody, and what cannot be read is passed by. All have mode 0600, and links are not followed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pwd
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from overlapiter.staging.process_id import Life, ProcessId

USERS_FOLDER = "overlapiter.users"
RUNS_FILE = "overlapiter.runs.jsonl"

_VERSION = 1
#: At this size the older half of the records of runs is dropped.
_MOST_RUNS_BYTES = 256 << 10
_MOST_PRESENCE_BYTES = 16 << 10
_JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PJM_JOBID", "JOB_ID")

#: What JSON gives for an object.
Facts = dict[str, object]


class Presence(NamedTuple):
    """The record of a run that is going on, or was killed.

    Attributes:
        path: Of the record.
        owner: The process that wrote it.
        facts: All that it wrote.
    """

    path: str
    owner: ProcessId
    facts: Facts


@contextlib.contextmanager
def recorded_run(
    directory: str,
    facts: Mapping[str, object],
    counters: Callable[[], Mapping[str, float]],
    tell: Callable[[str], None],
) -> Iterator[None]:
    """Record a run: its presence as long as it goes on, then what it has done.

    Runs that were killed are recorded in their place. No disk makes it raise.

    Args:
        directory: The staging directory.
        facts: What the run uses it for; see :func:`described`.
        counters: Returns what it has done; called at the end.
        tell: Called with what the user should know, if it cannot be recorded.
    """
    owner = ProcessId.this_process()
    record = {**described(owner), **facts}
    path = None
    try:
        bury(directory)
        path = _announce(directory, owner, record)
    except OSError as error:
        tell(
            f"this run is not shown by `overlapiter status`: its record in {directory} cannot be "
            f"written ({error.strerror or error}); staging is not affected"
        )
    end = "failed"
    try:
        yield
        end = "closed"
    except KeyboardInterrupt:
        end = "interrupted"
        raise
    finally:
        with contextlib.suppress(OSError):  # there is nobody left to be told
            add_run(directory, record, end, dict(counters()))
        if path is not None:
            with contextlib.suppress(OSError):
                os.unlink(path)


def described(owner: ProcessId) -> Facts:
    """Return what can be said of a run by this process whatever it does: who, since when."""
    job = next((f"{n}={os.environ[n]}" for n in _JOB_VARIABLES if os.environ.get(n)), "")
    return {
        "version": _VERSION,
        "owner": owner.facts(),
        "user": _user_name(os.geteuid()),
        "job": job,
        "started_seconds": time.time(),
    }


def _user_name(number: int) -> str:
    try:
        return pwd.getpwuid(number).pw_name
    except KeyError:  # a container may have no such user
        return str(number)


def _announce(directory: str, owner: ProcessId, record: Facts) -> str:
    folder = os.path.join(directory, USERS_FOLDER)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    if not stat.S_ISDIR(os.lstat(folder).st_mode):
        raise NotADirectoryError(20, "something else is in its place", folder)
    number = 0
    while True:
        path = os.path.join(folder, f"{owner.host}-{owner.pid}-{number}.json")
        try:
            _write(path, record, os.O_EXCL)
        except FileExistsError:
            number += 1
        else:
            return path


def is_presence_of(name: str, pid: int) -> bool:
    """Return whether a file in the folder of presences was named by the process ``pid``."""
    return name.rsplit("-", 2)[1:-1] == [str(pid)]


def _write(path: str, record: Mapping[str, object], flags: int) -> None:
    flags |= os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
    fd = os.open(path, flags, 0o600)
    try:
        if os.fstat(fd).st_nlink > 1:  # somebody's precious file
            raise OSError(errno.EMLINK, os.strerror(errno.EMLINK), path)
        os.write(fd, json.dumps(record, default=str).encode() + b"\n")
    finally:
        os.close(fd)


def _read(path: str, most_bytes: int) -> bytes:
    """Return the end of a file that is no link; nothing if it is no regular file."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return b""
        return os.pread(fd, most_bytes, max(0, found.st_size - most_bytes))
    finally:
        os.close(fd)


def _parse(text: bytes) -> Facts | None:
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return facts if isinstance(facts, dict) else None


def present(directory: str) -> list[Presence]:
    """Return the records of runs that are going on, or were killed; see :meth:`ProcessId.life`."""
    found = []
    folder = os.path.join(directory, USERS_FOLDER)
    with contextlib.suppress(OSError):
        names = sorted(os.listdir(folder)) if stat.S_ISDIR(os.lstat(folder).st_mode) else []
        for path in (os.path.join(folder, name) for name in names):
            with contextlib.suppress(OSError):
                facts = _parse(_read(path, _MOST_PRESENCE_BYTES))
                owner = ProcessId.from_facts(facts["owner"]) if facts and "owner" in facts else None
                if facts is not None and owner is not None:
                    found.append(Presence(path, owner, facts))
    return found


def bury(directory: str) -> int:
    """Record those runs as killed that have left their presence behind; return how many."""
    dead = [run for run in present(directory) if run.owner.life() is Life.ENDED]
    buried = 0
    for run in dead:
        with contextlib.suppress(OSError):
            os.unlink(run.path)  # first: whoever removes it records it
            add_run(directory, run.facts, "killed", {})
            buried += 1
    return buried


def add_run(
    directory: str, record: Mapping[str, object], end: str, counters: Mapping[str, float]
) -> None:
    """Add a run that has ended; the older half is dropped when there are many.

    Raises:
        OSError: The disk failed.
    """
    path = os.path.join(directory, RUNS_FILE)
    line = {**record, "ended_seconds": time.time(), "end": end, "counters": dict(counters)}
    _write(path, line, os.O_APPEND)
    if os.lstat(path).st_size > _MOST_RUNS_BYTES:
        _halve(path)


def _halve(path: str) -> None:
    kept = _read(path, _MOST_RUNS_BYTES // 2).partition(b"\n")[2]
    new = f"{path}.{os.getpid()}"
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, kept)
    finally:
        os.close(fd)
    os.rename(new, path)  # a line that somebody added meanwhile is lost, and missed by nobody


def runs(directory: str) -> list[Facts]:
    """Return the runs that have ended, the oldest first, as far as they are remembered."""
    try:
        text = _read(os.path.join(directory, RUNS_FILE), 2 * _MOST_RUNS_BYTES)
    except OSError:
        return []
    return [facts for facts in map(_parse, text.splitlines()) if facts is not None]
