"""Traces: what each process and thread did when, as Chrome trace events.

https://ui.perfetto.dev and chrome://tracing open the files. The pipeline and training over MPI have
one format and one clock: times are those of the node's wall clock when the trace was begun, counted
on by its monotonic clock, so that the files of several ranks open together.

A file is a JSON array with one event in each line. Every process of a rank appends whole lines to
the same file, so it can be read at any moment, and after any process was killed: what is missing
then is the closing bracket, which the readers of this format do without.

Its size has a bound. The first quarter of the bytes holds everything; from there on, with each
further sixteenth, half as many steps are recorded: every second mini-batch, every fourth, and so
on, each with all that belongs to it. So a trace covers 500 times as long as everything would fit,
and what was left out is counted.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import dataclasses
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence

from overlapiter.errors import OptionError
from overlapiter.node import launched_rank
from overlapiter.tracelines import Event, Lasting, Lines, Value

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
#: Bound of a file: that of a rank. Those of 16 ranks join to 256 MiB, which web browsers open.
MAX_BYTES = 16 << 20
#: A process keeps so many events, or events for so long, before it writes them.
_MOST_KEPT = 128
_FLUSH_AFTER_NS = 500_000_000
#: What they are taken to need in the file: more than they do.
_KEPT_BYTES = 32 << 10


@dataclasses.dataclass(frozen=True)
class TraceFile:
    """The trace of one rank; picklable, so that each process of it opens the same file.

    Attributes:
        path: Absolute path of the file.
        rank: Of the process that began it.
        offset_ns: What is added to ``time.monotonic_ns()`` for a time of the trace.
        max_bytes: Bound of its size.
        heading: What the name of each process begins with.
    """

    path: str
    rank: int
    offset_ns: int
    max_bytes: int = MAX_BYTES
    heading: str = ""


def begin_trace(
    path: str | os.PathLike[str],
    process_name: str = "main",
    *,
    rank: int | None = None,
    max_bytes: int = MAX_BYTES,
) -> Trace:
    """Make a trace file, in place of one that is there, and return its trace for this process.

    The rows of this process are headed by ``process_name``; the rest is as for :func:`trace`, but
    that a rank of None stands for a job of one.

    Raises:
        OSError: It cannot be made.
    """
    begun_ns = time.time_ns() - time.monotonic_ns()
    stem, ending = os.path.splitext(os.path.abspath(path))
    own_path = f"{stem}.rank{rank}{ending}" if rank else f"{stem}{ending}"
    heading = "" if rank is None else f"rank {rank}: "
    file = TraceFile(own_path, rank or 0, begun_ns, max_bytes, heading)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(file.path)  # a process of an earlier trace goes on writing to that one
    fd = os.open(file.path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(fd, b"[\n")
    return Trace(file, fd, process_name)


class Trace:
    """The trace of this process: safe for threads, not for forked children: these open their own.

    What happened is only noted; lines are made of it when many of them are written, which costs the
    program less than a line at a time.

    ``key`` is the number of the mini-batch or step that something belongs to: a long trace leaves
    out whole steps. Without one, everything of the same name is numbered. A failure to write ends
    the trace, not the program.

    Args:
        file: The file.
        fd: Its descriptor, which the trace takes over.
        process_name: What the rows of this process are headed by.
        order: Processes of a rank are shown in this order.

    Attributes:
        file: For the other processes of this rank.
        is_on: Whether it still records.
        n_dropped: Events that were left out so far.
    """

    def __init__(self, file: TraceFile, fd: int, process_name: str, order: int = 0) -> None:
        self.file = file
        self.is_on = True
        self.n_dropped = 0
        self._fd = fd
        self._lines = Lines(file.rank, file.offset_ns)
        self._owner_pid = os.getpid()
        self._lock = threading.RLock()
        self._events: collections.deque[Event] = collections.deque()
        self._flushed_ns = time.monotonic_ns()
        self._numbers: dict[str, int] = {}
        self._stride = 0
        self._key: int | None = None  # of the latest event, and of the step amid which that changed
        self._cut_key: int | None = None
        _open_traces.add(self)
        begun_ns, heading = self._flushed_ns, file.heading + process_name
        place = {"sort_index": file.rank * 1000 + order}
        self._put("M", "process_name", "", begun_ns, "", {"name": heading})
        self._put("M", "process_sort_index", "", begun_ns, "", place)
        self._look_at_size()

    # --- recording ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def span(
        self, name: str, category: str, key: int | None = None, /, **args: Value
    ) -> Iterator[None]:
        """Record how long the block takes, in the row of this thread."""
        begin_ns = time.monotonic_ns()
        try:
            yield
        finally:
            # Not by add, of which what the user tells of a span may have the names of arguments.
            lasting = time.monotonic_ns(), None, (), "t"
            self._add(name, category, begin_ns, key, lasting, args)

    def add(
        self,
        name: str,
        category: str,
        begin_ns: int,
        end_ns: int,
        key: int | None = None,
        /,
        *,
        row: str | None = None,
        flows: Sequence[int] = (),
        phase: str = "t",
        **args: Value,
    ) -> None:
        """Record what lasted from one ``time.monotonic_ns()`` to another.

        Args:
            name: What it was.
            category: What kind of work.
            begin_ns: From when.
            end_ns: Until when.
            key: Of the mini-batch or step.
            row: What rows of this kind are called; it gets the first that is free for so long.
                The row of this thread if None, in which what is recorded is nested, or apart.
            flows: The numbers, which are keys, of flows: arrows that link spans of several rows.
            phase: Whether they start here, ``"s"``, go on, ``"t"``, or end, ``"f"``.
            args: What else is shown.
        """
        self._add(name, category, begin_ns, key, (end_ns, row, flows, phase), args)

    def _add(
        self,
        name: str,
        category: str,
        begin_ns: int,
        key: int | None,
        lasting: Lasting,
        args: Mapping[str, Value],
    ) -> None:
        if self._stride != 1:
            end_ns, row, flows, phase = lasting
            lasting = end_ns, row, [n for n in flows if self._is_chosen("flow", n)], phase
            if not self._is_chosen(name, key):
                return
            args = {**args, "recorded_1_of": self._stride}
        self._put("X", name, category, begin_ns, lasting, args)

    def instant(self, name: str, category: str, key: int | None = None, /, **args: Value) -> None:
        """Record that something happened now."""
        if self._is_chosen(name, key):
            self._put("i", name, category, time.monotonic_ns(), ',"s":"t"', args)

    def counter(self, name: str, /, **values: float) -> None:
        """Record values at this time; each is a curve."""
        if self._is_chosen(name, None):
            self._put("C", name, "counter", time.monotonic_ns(), "", values)

    def name_row(self, name: str) -> None:
        """Give the row of this thread a name."""
        self._put("M", "thread_name", "", self._flushed_ns, "", {"name": name})

    # --- writing ------------------------------------------------------------------------------

    def _is_chosen(self, name: str, key: int | None) -> bool:
        stride = self._stride
        if stride == 1:
            self._key = key
            return True
        if key is None:
            key = self._numbers[name] = self._numbers.get(name, -1) + 1
        if stride and (key % stride == 0 or key == self._cut_key):
            self._key = key
            return True
        self.n_dropped += 1
        return False

    def _put(
        self,
        phase: str,
        name: str,
        category: str,
        at_ns: int,
        more: str | Lasting,
        args: Mapping[str, Value],
    ) -> None:
        row = threading.get_native_id()
        self._events.append((phase, name, category, at_ns, row, more, args))
        if len(self._events) >= _MOST_KEPT or at_ns - self._flushed_ns > _FLUSH_AFTER_NS:
            self.flush()

    def flush(self) -> None:
        """Write what has been kept."""
        with self._lock:
            self._flushed_ns = time.monotonic_ns()
            n_events = len(self._events)  # other threads may add some meanwhile
            text = self._lines.of([self._events.popleft() for _ in range(n_events)])
            if not text or not self.is_on or os.getpid() != self._owner_pid:
                return
            self._write(text)
            self._look_at_size()

    def _write(self, text: str) -> None:
        """Write lines: at once, so that those of other processes come before or after them."""
        data = text.encode()
        try:
            if os.write(self._fd, data) < len(data):  # the disk is full: mend the cut line
                os.write(self._fd, b"\n")
        except OSError:
            self.is_on, self._stride = False, 0

    def _look_at_size(self) -> None:
        """Choose how much to record by the space that is left."""
        if not self.is_on:
            return
        left = 1 - (os.fstat(self._fd).st_size + _KEPT_BYTES) / self.file.max_bytes
        stride = 0
        if left > 0:
            stride = 1 if left >= 0.75 else 2 ** (1 + int((0.75 - left) * 16))
        before, self._stride = self._stride, stride
        if stride != before:
            self._cut_key = self._key
        if stride > before > 0:
            words = f"from here on, 1 of {stride} is recorded"
            self._put("i", words, "trace", time.monotonic_ns(), ',"s":"p"', {})

    def close(self) -> None:
        """Write what has been kept, say how much was left out, and end this process's part."""
        with self._lock:
            if self._fd < 0 or os.getpid() != self._owner_pid:
                return
            self._stride = 1
            if self.n_dropped:
                self.instant("events were left out", "trace", None, left_out=self.n_dropped)
            self.flush()
            self.is_on, self._stride = False, 0
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        if sys is not None and not sys.is_finalizing():  # else it was closed before
            self.close()

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


#: Closed when the interpreter ends.
_open_traces: weakref.WeakSet[Trace] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for each in [*_open_traces]:
        each.close()


_NOTHING = contextlib.nullcontext()


class NoTrace:
    """Has the methods of a trace, and records nothing."""

    is_on = False
    file = None

    def span(self, *_: object, **__: object) -> contextlib.AbstractContextManager[object]:
        """Record nothing."""
        return _NOTHING

    def add(self, *_: object, **__: object) -> None:
        """Record nothing."""

    instant = counter = name_row = flush = close = __exit__ = add

    def __enter__(self) -> NoTrace:
        return self


Tracing = Trace | NoTrace

#: For those who do not trace.
OFF = NoTrace()


#: Those of the ``with`` blocks of :func:`trace`, in this process.
_begun: list[Trace] = []


@contextlib.contextmanager
def trace(
    path: str | os.PathLike[str], *, rank: int | None = None, max_bytes: int = MAX_BYTES
) -> Iterator[Trace]:
    """Record what the iterators do that are made in this ``with`` block, and what you add.

    ``with overlapiter.trace("out.json") as trace: ...`` makes a file for https://ui.perfetto.dev;
    see :class:`Trace` for what can be added. It ends with the block.

    Args:
        path: Where. A rank above 0 puts its number before the ending: ``out.rank3.json``.
        rank: Of this process in the job; None takes it from the variables of the launcher.
        max_bytes: Bound of the file's size, 16 MiB by default. The first quarter holds everything,
            the rest fewer and fewer mini-batches, each of them whole.

    Raises:
        OSError: The file cannot be made.
    """
    rank = launched_rank() if rank is None else rank
    with begin_trace(path, "trainer", rank=rank, max_bytes=max_bytes) as begun:
        _begun.append(begun)
        try:
            yield begun
        finally:
            _begun.remove(begun)


def chosen_trace(wanted: str | os.PathLike[str] | Trace | None) -> tuple[Tracing, bool]:
    """Return the trace for an iterator, and whether it is the iterator's own.

    Raises:
        OptionError: The file cannot be made.
    """
    if wanted is None:
        return (_begun[-1] if _begun else OFF), False
    if isinstance(wanted, Trace):
        return wanted, False
    try:
        return begin_trace(wanted, "trainer", rank=launched_rank()), True
    except OSError as error:
        raise OptionError("trace", f"{error}; name a file in a directory that exists") from error


def open_trace(file: TraceFile | None, process_name: str, order: int) -> Tracing:
    """Return the trace for a process that is not its rank's first; :data:`OFF` where there is none.

    So it is, too, where the file is gone, or cannot be written: what the others record remains. See
    :class:`Trace` for the arguments.
    """
    if file is None:
        return OFF
    try:
        return Trace(file, os.open(file.path, _FLAGS), process_name, order)
    except OSError:
        return OFF
