"""Communicators without MPI: a directory that all ranks see, or a store of ``torch.distributed``.

They do one thing, an ``allgather`` of small values, which is what the rendezvous and
:func:`overlapiter.scatter_order` need.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from overlapiter.errors import OptionError

#: How long ranks are waited for.
PATIENCE_SECONDS = 300.0
_FIRST_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.002, 0.1


class KeyValueStore(Protocol):
    """What is used of ``torch.distributed``'s stores."""

    def add(self, key: str, amount: int) -> int:
        """Add to a number, which is 0 at first, and return what it is then."""

    def set(self, key: str, value: str) -> None:
        """Set a value."""

    def get(self, key: str) -> bytes:
        """Return a value; blocks until it is set."""


class Rendezvous:
    """A communicator of ranks that see one directory, such as one on the slow store.

    What an earlier job has left in the directory does no harm. The files are readable by their
    owner alone.

    Args:
        directory: The directory, made if its parent exists; one for each job that runs.
        rank: Of this process.
        size: The number of ranks.

    Raises:
        OptionError: There is no such rank, the directory cannot be made, or others can write it.
    """

    def __init__(self, directory: str | os.PathLike[str], rank: int, size: int) -> None:
        if not 0 <= rank < size:
            raise OptionError("rank", f"there is no rank {rank} among {size}")
        self.rank = rank
        self.size = size
        self._directory = os.path.abspath(os.fspath(directory))
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self._directory, 0o700)
            found = os.stat(self._directory)
        except OSError as error:
            raise OptionError(
                "peers",
                f"{self._directory} cannot be made or looked at ({error.strerror}); name a "
                "directory whose parent all ranks see, and where you may write",
            ) from error
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            raise OptionError(
                "peers",
                f"{self._directory} can be written by others, who could then give this job data of "
                "their own; name a directory that only you can write",
            )

    def allgather(self, item: Any) -> list[Any]:
        """Return what each rank gives, by rank, as JSON has it. Blocks until all have called it.

        Rank 0 writes a word that is new; the others answer it, so that an answer to an earlier
        job's word is told from theirs; then rank 0 writes all that they gave, and waits until each
        has read that, since the next call uses the same files.

        Raises:
            OptionError: Some ranks did not come within five minutes, or the directory cannot be
                written.
            OSError: The directory cannot be read.
        """
        if self.rank == 0:
            return self._gather(item)
        own, answered, roll = secrets.token_hex(16), None, None
        for _ in self._looks():
            roll = self._read("all")
            if roll is not None and any(answer == own for answer, _ in roll["items"]):
                self._write(f"{self.rank}", {"word": answered, "item": [None, None]})
                return [value for _, value in roll["items"]]
            if roll is not None and roll["word"] != answered:
                answered = roll["word"]
                self._write(f"{self.rank}", {"word": answered, "item": [own, item]})
        raise self._late([0] if roll is None else [])

    def _gather(self, item: Any) -> list[Any]:
        word = secrets.token_hex(16)
        self._write("all", {"word": word, "items": []})
        items = [["", item], *self._answers(lambda answer: answer["word"] == word)]
        self._write("all", {"word": word, "items": items})
        owns = [own for own, _ in items]
        self._answers(lambda answer: answer["item"][0] not in owns)
        return [value for _, value in items]

    def _answers(self, is_wanted: Callable[[Any], bool]) -> list[Any]:
        """Return what each rank but 0 gives in an answer that is wanted; wait for those."""
        found: dict[int, Any] = {}
        for _ in self._looks():
            for rank in set(range(1, self.size)) - found.keys():
                answer = self._read(f"{rank}")
                if answer is not None and is_wanted(answer):
                    found[rank] = answer["item"]
            if len(found) == self.size - 1:
                return [found[rank] for rank in range(1, self.size)]
        raise self._late([rank for rank in range(1, self.size) if rank not in found])

    def _late(self, ranks: list[int]) -> OptionError:
        who = f"ranks {ranks[:8]} have" if ranks else "some rank has"
        return OptionError(
            "peers",
            f"{who} not come to {self._directory} within {PATIENCE_SECONDS:g} s; see whether they "
            f"run, and whether all {self.size} see this directory",
        )

    def _looks(self) -> Iterator[None]:
        """Yield for each look; wait between them, a little longer each time, until it is late."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        pause_seconds = _FIRST_POLL_SECONDS
        while time.monotonic() < deadline:
            os.listdir(self._directory)  # a network file system then looks at the server
            yield
            time.sleep(pause_seconds)
            pause_seconds = min(1.5 * pause_seconds, _LONGEST_POLL_SECONDS)

    def _read(self, name: str) -> Any:
        """Return what a file holds; None if it is not there, or was replaced at this moment.

        None, too, if it is not whole: a file server that fails leaves such files of earlier jobs.
        """
        try:
            with open(os.path.join(self._directory, name), encoding="utf-8") as file:
                return json.load(file)
        except ValueError:
            return None
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ESTALE):  # the latter on NFS
                return None
            raise

    def _write(self, name: str, value: Any) -> None:
        path = os.path.join(self._directory, name)
        part = f"{path}.{secrets.token_hex(4)}"
        try:
            fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with open(fd, "w", encoding="utf-8") as file:
                json.dump(value, file)
            os.replace(part, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise OptionError(
                "peers",
                f"{path} cannot be written ({error.strerror}); name a directory that all ranks "
                "see, where you may write and there is room",
            ) from error


class StoreCommunicator:
    """A communicator of ranks that share a store of ``torch.distributed``.

    The store itself counts the calls of each rank among so many, so that no key is used twice: not
    by other communicators or jobs that use it, and not where a rank evaluates alone.
    """

    def __init__(self, store: KeyValueStore, rank: int, size: int) -> None:
        self._store = store
        self.rank = rank
        self.size = size

    def allgather(self, item: Any) -> list[Any]:
        """Return what each rank gives, by rank. Blocks until all have; see the store's time-out."""
        call = self._store.add(f"overlapiter/{self.size}/{self.rank}", 1)
        keys = [f"overlapiter/{self.size}/{rank}/{call}" for rank in range(self.size)]
        self._store.set(keys[self.rank], json.dumps(item))
        return [json.loads(self._store.get(key)) for key in keys]
