"""Access to a store: its generation is opened anew when another one is in use, or it is damaged."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from . import reclaim
from .generation import clear, discard, generation_of, index_path, make_generation
from .index import Cursor, IndexDamagedError, Patience, StaleError
from .opened import OpenGeneration
from .site import Site

ResultT = TypeVar("ResultT")

#: How often it is opened anew before that is given up.
_MOST_OPENINGS = 3
#: How long to wait before that.
_PAUSE_SECONDS = 0.02
#: How long the end waits for what threads do in the index.
_END_SECONDS = 0.2


class Access:
    """What a process has open of a store. Safe for threads.

    ``introduce`` notes the run, in the transaction that makes this process known. ``note_gone`` is
    called with a generation that was open, and was removed or thrown away.
    """

    def __init__(
        self,
        site: Site,
        run: int,
        introduce: Callable[[Cursor], None],
        warn: Callable[[str], None],
        note_gone: Callable[[str], None],
    ) -> None:
        self._site = site
        self._run = run
        self._introduce = introduce
        self._warn = warn
        self._note_gone = note_gone
        self._gone = ""  # the last one of these
        self._lock = threading.Lock()  # of opening
        self._patience = Patience(), Patience()
        self._opened: OpenGeneration | None = None
        self._idle = threading.Condition()
        self._n_active = 0
        self._has_ended = False

    def on(self, action: Callable[[OpenGeneration], ResultT]) -> ResultT:
        """Return what ``action`` does; done anew on another generation if this one is damaged."""
        with self._idle:
            self._require_run()
            self._n_active += 1
        try:
            return self._on(action)
        finally:
            with self._idle:
                self._n_active -= 1
                if self._has_ended:
                    self._idle.notify_all()

    def _on(self, action: Callable[[OpenGeneration], ResultT]) -> ResultT:
        for _ in range(_MOST_OPENINGS):
            opened = self._current()
            try:
                return action(opened)
            except StaleError:
                pass
            except OSError:
                if not opened.is_gone():
                    raise
            except IndexDamagedError as error:
                if opened.index.is_current():  # else another thread or process has done it
                    self._throw_away(opened.path, error)
            with self._lock:
                if self._opened is opened:
                    self._let_go(opened)
        raise OSError(errno.EIO, "the index is damaged again and again", self._site.directory)

    def _current(self) -> OpenGeneration:
        """Return the generation in use; the one before may have been thrown away meanwhile."""
        opened = self._opened
        if opened is not None and opened.index.is_current():
            return opened
        with self._lock:
            if self._opened is not None and not self._opened.index.is_current():
                self._let_go(self._opened)
            if self._opened is None:
                self._require_run()  # what was closed under this thread is not opened again
                self._opened = self._open()
            return self._opened

    def _require_run(self) -> None:
        if self._has_ended:
            raise OSError(errno.ESHUTDOWN, "the run has ended", self._site.directory)

    def _open(self) -> OpenGeneration:
        failure = OSError(errno.EIO, "the index cannot be made", self._site.directory)
        for _ in range(_MOST_OPENINGS):
            generation = make_generation(self._site.directory, self._gone)
            try:
                opened = OpenGeneration(
                    generation, self._site, self._run, self._introduce, self._patience
                )
            except IndexDamagedError as error:
                if os.path.exists(index_path(generation)):
                    self._throw_away(generation, error)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.EIO):
                    raise
                failure = error  # it may be removed, or thrown away, at this moment
                time.sleep(_PAUSE_SECONDS)
            else:
                if generation_of(self._site.directory) == generation:
                    if self._gone:  # what is left of it counts nowhere
                        with contextlib.suppress(OSError):
                            clear(self._site.directory)
                    return opened
                opened.leave()
        raise failure

    def _throw_away(self, generation: str, error: IndexDamagedError) -> None:
        self._warn(
            f"the index of {self._site.directory} is damaged ({error}): what was staged there is "
            f"thrown away and staged again"
        )
        discard(generation)

    def _let_go(self, opened: OpenGeneration) -> None:
        is_gone = opened.is_gone()
        self._opened = None
        opened.leave()  # from now on it gives no place
        if is_gone:
            self._gone = opened.path
            self._note_gone(opened.path)

    def read(self, work: Callable[[Cursor], ResultT]) -> ResultT:
        """Return what ``work`` selects in the index."""
        return self.on(lambda opened: opened.index.read(work))

    def rows(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """Return the rows that a statement gives."""
        return self.on(lambda opened: opened.index.rows(statement, *values))

    def write(self, work: Callable[[Cursor], ResultT]) -> ResultT:
        """Return what a transaction returns that also writes what is owed."""
        return self.on(lambda opened: opened.write(work))

    @property
    def is_open(self) -> bool:
        """Whether the generation in use is open."""
        return self._opened is not None

    def close(self, *, is_last: bool = False) -> None:
        """Close the generation in use, if it is open.

        It may be opened anew, unless this ``is_last``: then what threads do at this moment is
        waited for, and nothing is done after it.
        """
        if is_last:
            with self._idle:
                self._has_ended = True
                self._idle.wait_for(lambda: not self._n_active, _END_SECONDS)
        with self._lock:
            opened, self._opened = self._opened, None
            if opened is not None:
                opened.wait()  # a place that is given up meanwhile is to be given back
                # Who opens it next meets damage, too, and throws it away.
                with contextlib.suppress(IndexDamagedError, StaleError):
                    reclaim.finish_later(opened, opened.vacant.take_all())
                opened.close()
