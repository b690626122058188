"""The prefetcher: stage 2 of the pipeline. Has the files of examples staged.

Waiting for the slow store costs no CPU, so a prefetcher is one process with many threads, each of
which has one read in flight.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Set
from typing import TYPE_CHECKING, NoReturn

from overlapiter.board import Counter, Row
from overlapiter.errors import described
from overlapiter.origins.bulk import bulk_of
from overlapiter.sources import declared_paths, paths_below
from overlapiter.store.extents import Extent
from overlapiter.store.outcome import Answer, Done, Outcome, Staged
from overlapiter.store.site import Run
from overlapiter.store.slowstore import CHUNK_BYTES
from overlapiter.store.stager import Stager
from overlapiter.store.store import Wanted
from overlapiter.tracing import open_trace
from overlapiter.workers.ipc.channel import Channel, ChannelClosedError
from overlapiter.workers.plan import SupervisorPlan
from overlapiter.workers.reader.face import Face
from overlapiter.workers.start.processes import keep_freed_memory
from overlapiter.workers.usage import Usage

from .discovery import Discovery, Stage
from .evictor import Evictor, RoomForTask
from .tasks import ExampleAtHand, StageTask, TaskAtHand
from .threads import Threads

if TYPE_CHECKING:
    from overlapiter.peers.client import Peers

#: How often to show which example a prefetcher is at, while it has work, and to report what is
#: settled of a task that a file holds up.
_SHOW_AFTER_SECONDS = 0.1
#: A prefetcher that has had no work for so long gives back what it has reserved; if the disk or the
#: index does not let it, it tries again as long after.
_REST_AFTER_SECONDS = 1.0
#: How often it looks then whether the directory was removed.
_LOOK_AFTER_SECONDS = 3.0
#: So many files of an example are found by running the dataset again for each. To reach further
#: ones it waits for the copy inside its ``open``, where that takes less time: no other example is
#: asked for meanwhile.
_FIRST_FILES = 2
#: How long a thread keeps the interpreter's lock while others want it, one of which may be in the
#: middle of a transaction.
_SWITCH_SECONDS = 0.001


class Prefetcher:
    """Stages the files of the tasks that come over a channel, until it closes."""

    def __init__(
        self, channel: Channel, face: Face, plan: SupervisorPlan, run: Run, row: Row
    ) -> None:
        assert plan.staging is not None
        self._number = row.number - plan.n_readers
        self._channel = channel
        self._face, self._dataset = face, face.dataset
        self._run_plan, self._plan = plan, plan.staging
        self._row = row
        self._trace = open_trace(plan.trace, f"prefetcher {self._number}", 100 + self._number)
        self._usage = Usage(row)
        self._threads = Threads(self._guarded)
        self._stores = self._plan.stores(run, self._warn, self._note_gone)
        self._key_of = self._stores[0].key_of
        self._peers = self._peers_of_job()
        origin = self._plan.origin()
        self._bulk = bulk_of(origin, CHUNK_BYTES)
        self._stager = Stager(
            self._stores,
            origin,
            self._plan.validate,
            self._threads.put,
            self._warn,
            self._note_answers,
            self._peers,
            self._bulk,
        )
        count_evicted = functools.partial(self._count, Counter.FILES_EVICTED)
        self._evictor = Evictor(face.dataset, self._stager, count_evicted)
        self._lock = threading.Lock()
        self._user_code = threading.Lock()
        self._discovery: Discovery | None = None
        self._asked: dict[int, int] = {}  # the examples that user code is asked for, by thread
        self._at_hand: dict[int, TaskAtHand] = {}  # by task, in the order in which they were begun
        self._has_first = False
        self._found_last: dict[Wanted, None] = {}  # as many files as an example opens
        self._n_files = 1
        self._warned: set[str] = set()
        self._is_at_rest = True

    def _peers_of_job(self) -> Peers | None:
        if self._plan.peers is None:
            return None
        from overlapiter.peers.client import Peers  # sockets, for these alone

        count_fault = functools.partial(self._count, Counter.PEER_FAULTS, 1)
        return Peers(self._plan.peers, count_fault, self._crash)

    def run(self) -> None:
        """Serve until the end; ChannelClosedError is raised where the channel is closed."""
        keep_freed_memory()
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._resize(self._plan.reads_per_prefetcher)
        self._begin_bulk()
        if not self._number:  # one prefetcher of an iterator does
            self._threads.put(self._mend)
        while True:
            while not self._channel.is_readable(self._patience_seconds()):
                if self._at_hand:
                    self._threads.look()
                    self._show_current()
                    self._report_settled()
                    self._trace.flush()
                else:
                    self._rest()
            self._usage.note()
            kind, *values = self._channel.receive()[0]
            if kind == "reads":
                self._resize(values[0])
            elif kind == "uses":
                self._begin_thread(functools.partial(self._evictor.tell_uses, *values))
            elif kind == "end":
                self._end(*values)
                return
            else:
                self._accept(StageTask(*values))
                self._threads.do_waiting()

    def _patience_seconds(self) -> float:
        if self._at_hand:
            return _SHOW_AFTER_SECONDS
        return _LOOK_AFTER_SECONDS if self._is_at_rest else _REST_AFTER_SECONDS

    def _rest(self) -> None:
        self._is_at_rest = True
        self._trace.flush()
        for store in self._stores:
            try:
                store.rest()  # which opens another generation if this one was removed
            except OSError:  # it stays reserved for now
                self._is_at_rest = False

    def _note_gone(self, generation: str) -> None:
        """Let go of a generation that was removed or thrown away, and have all others do so."""
        self._stager.close_segments()
        self._channel.send(("gone", generation))

    def _resize(self, n_reads: int) -> None:
        self._threads.resize(n_reads)
        if self._bulk is not None and len(self._threads):  # else there is a lack of threads
            self._bulk.resize(len(self._threads))
        self._row.put(Counter.READS_IN_FLIGHT, max(1, len(self._threads)))

    def _begin_bulk(self) -> None:
        """Have a thread take what is read in bulk; where threads are scarce, do without."""
        if self._bulk is None:
            return
        if self._bulk.has_threads and self._begin_thread(self._take_read):
            return
        self._bulk.resize(0)
        self._bulk = None

    def _begin_thread(self, work: Callable[[], None]) -> bool:
        """Have a thread do what takes no turn among the reads; False at the limit of threads."""
        try:
            threading.Thread(target=self._guarded, args=[work], daemon=True).start()
        except RuntimeError:
            return False
        return True

    def _take_read(self) -> None:
        assert self._bulk is not None
        while True:
            self._stager.take_read(self._bulk.wait())

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except ChannelClosedError:  # the end of this process
            return
        except BaseException:  # so that the supervisor gives the tasks to another process
            self._crash(traceback.format_exc())

    def _crash(self, text: str) -> NoReturn:
        """End this process, after it has told the supervisor why."""
        with contextlib.suppress(ChannelClosedError):
            self._channel.send(("crashed", text))
        os._exit(1)

    def _mend(self) -> None:
        """Mend what dead processes left, and say that a directory holds more than it may."""
        for store in self._stores:
            with contextlib.suppress(OSError):  # the next copy meets the same
                store.sweep()
                excess_bytes = store.excess_bytes()
                if excess_bytes and store.site.capacity_bytes is not None:
                    self._warn(
                        f"{store.site.directory} holds "
                        f"{store.site.capacity_bytes + excess_bytes:,} bytes, more than the "
                        f"capacity of {store.site.capacity_bytes:,}: a job evicts the files that "
                        f"it needs last, a few at a time; to free room now, run `overlapiter evict "
                        f"{store.site.directory} --to-free {excess_bytes}`"
                    )

    def _end(self, ending: str, counters: dict[str, float] | None) -> None:
        """Note the end of the run, if this prefetcher is to, and give back what is reserved."""
        self._threads.end()
        if counters is not None:
            for store in self._stores:
                with contextlib.suppress(OSError):  # nothing depends on it
                    store.record_end(ending, counters)
        self._stager.close(is_last=True)
        self._trace.close()

    # --- tasks --------------------------------------------------------------------------------

    def _accept(self, task: StageTask) -> None:
        work = TaskAtHand(task, RoomForTask(self._evictor, task.victims))
        self._is_at_rest = False
        with self._lock:
            self._at_hand[task.task_id] = work
        self._threads.put(functools.partial(self._begin, work))

    def _begin(self, work: TaskAtHand) -> None:
        """Find out which files the examples of a task read, and have them staged."""
        wanted: dict[int, Wanted] = {}
        for index in work.task.indices:
            example = ExampleAtHand(index)
            work.examples.append(example)
            if index in work.task.avoid:
                example.is_complete, example.is_followed = False, True
                continue
            self._ask(index)
            self._look(example, wanted)
            work.note_files(index, example.keys)
        self._asked.pop(threading.get_ident(), None)
        with self._lock:
            undeclared = [example for example in work.examples if not example.is_followed]
            work.n_waiting += len(undeclared)
        self._show_current()
        for example in undeclared:
            self._threads.put(functools.partial(self._discover, work, example))
        take, note = functools.partial(self._take, work), functools.partial(self._note, work)
        self._stage(work, wanted, take, note)

    def _stage(
        self, work: TaskAtHand, files: dict[int, Wanted], done: Done, partly: Done | None = None
    ) -> None:
        """Have files of a task staged, see :meth:`.Stager.stage`."""
        for store in self._stores:
            with contextlib.suppress(OSError):  # looking the files up meets it
                store.neighbours.want(files)
        self._stager.stage(
            [*files.values()],
            done,
            work.make_room,
            work.suspects,
            work.trusted,
            partly,
            work.holders,
        )

    def _look(self, example: ExampleAtHand, wanted: dict[int, Wanted]) -> None:
        try:
            declared = declared_paths(self._dataset, example.index)
            if declared is None:
                return
            for _, absolute in paths_below(self._plan.source, declared):
                try:
                    key = self._key_of(absolute)
                except UnicodeEncodeError:  # no file can have that path: the dataset says so
                    example.is_complete = False
                    continue
                example.keys.append(key)
                wanted[key] = Wanted(key, absolute)
        except BaseException as error:  # user code, or a path that no file can have
            self._give_up(example, error)
        example.is_followed = True

    def _give_up(self, example: ExampleAtHand, error: BaseException) -> None:
        """Leave an example to the file reader, which goes to the source."""
        example.is_complete = False
        self._warn(
            f"example {example.index} cannot be staged ({described(error)[0]}): it is read from "
            f"the source, and so is each further one of which the dataset cannot say what it reads",
            "unknown files",
        )

    def _take(self, work: TaskAtHand, answers: dict[int, Staged]) -> None:
        """Take answers for files; after the last ones of a task, send it back to the supervisor."""
        self._note(work, answers)
        with self._lock:
            work.n_waiting -= 1
            if work.n_waiting:
                return
            del self._at_hand[work.task.task_id]
        if work.task.victims is not None:
            work.room.shrink()
        findings = [work.finding(example) for example in work.examples]
        self._channel.send(("staged", work.task.task_id, findings, work.room.moved))
        self._trace_task(work)
        if not self._at_hand:
            self._show_current()

    def _trace_task(self, work: TaskAtHand) -> None:
        key, flows, n = work.task.batches[0], work.task.batches, len(work.task.indices)
        times, row = (work.begun_ns, time.monotonic_ns()), "task"
        self._trace.add(
            "stage", "staging", *times, key, row=row, flows=flows, examples=n, mini_batch=key
        )

    def _note(self, work: TaskAtHand, answers: dict[int, Staged]) -> None:
        with self._lock:
            work.take(answers, self._row)

    def _report_settled(self) -> None:
        """Send back the settled examples of tasks that a file holds up."""
        if self._bulk is not None:
            self._stager.take_read(self._bulk.take())
        self._stager.flush()
        news = []
        with self._lock:
            for work in self._at_hand.values():
                settled = [example for example in work.examples if work.is_settled(example)]
                if work.n_reported < len(settled) < len(work.examples):
                    findings = [work.finding(example) for example in settled]
                    news.append(("staged", work.task.task_id, findings, None))
                work.n_reported = len(settled)
        for message in news:
            self._channel.send(message)

    def _count(self, counter: Counter, n: int) -> None:
        with self._lock:
            self._row.add(counter, n)

    def _note_answers(self, what: str, answers: list[Answer]) -> None:
        """Count answers of the slow store, and what tells by what it is limited."""
        self._threads.note_answers([took_ns for _, took_ns, _ in answers])
        for path, took_ns, _ in answers if self._trace.is_on else ():
            if path:  # in one of the rows of the reads in flight
                now_ns, file = time.monotonic_ns(), os.path.basename(path)
                times = now_ns - took_ns, now_ns
                self._trace.add(what, "staging", *times, row="I/O slot", file=file)
        given = [(took_ns, n_bytes) for _, took_ns, n_bytes in answers if n_bytes]
        if self._peers is not None:
            for took_ns, _ in given:
                self._peers.note_store(took_ns / 1e9)
        if given:
            with self._lock:
                self._row.add_answers(given)

    # --- examples whose files are not declared ------------------------------------------------

    def _discover(self, work: TaskAtHand, example: ExampleAtHand) -> None:
        """Find and stage the files of an example, one after the other."""
        answers: dict[int, Staged] = {}
        try:
            self._discover_files(work, example, answers)
        except BaseException as error:  # user code, or a path that no file can have
            self._give_up(example, error)
        example.is_followed = True
        self._take(work, answers)

    def _discover_files(
        self, work: TaskAtHand, example: ExampleAtHand, answers: dict[int, Staged]
    ) -> None:
        # The first example is followed to its end, to learn how many files an example opens.
        is_first, self._has_first = not self._has_first, True
        staged: dict[int, Extent] = {}
        absent: set[int] = set()
        staging_seconds = 0.0
        inside: Stage | None = None

        def stage(path: str) -> bool:
            """Stage a file that was found; return whether a further one is to be found."""
            nonlocal staging_seconds
            file = self._wanted(path)
            if file.key in answers:  # its copy cannot be read, or it was the last one
                return False
            n_last = max(self._n_files, len(example.keys) + 1)
            self._found_last[file] = None
            n_more = max(0, len(self._found_last) - n_last)
            for oldest in [*itertools.islice(self._found_last, n_more)]:
                self._found_last.pop(oldest, None)
            begun = time.monotonic()
            outcome, extent, *_ = self._stage_found(work, example, file, answers)
            staging_seconds = time.monotonic() - begun
            if extent is None:
                # It is not there: the dataset may have another one to read instead.
                is_absent = outcome is Outcome.SOURCE_FAILED and not os.path.exists(file.path)
                absent.update([file.key] * is_absent)
                return is_absent
            staged[file.key] = extent
            return is_first or len(staged) < max(work.task.n_files, self._n_files)

        while True:
            found, seconds = self._next_path(example.index, staged, inside, absent)
            if found is None or not stage(found):
                break
            if len(staged) >= _FIRST_FILES and seconds > staging_seconds:
                inside = stage
        self._n_files = max(self._n_files, len(staged))
        if not example.keys:  # it may read what the dataset keeps open here alone
            for file in [*self._found_last]:
                self._stage_found(work, example, file, answers)

    def _wanted(self, path: str) -> Wanted:
        _, absolute = next(paths_below(self._plan.source, [path]), (path, ""))
        if not absolute:
            raise ValueError(f"{path} has a part that names no file below the source")
        return Wanted(self._key_of(absolute), absolute)

    def _next_path(
        self, index: int, staged: dict[int, Extent], stage: Stage | None, absent: Set[int]
    ) -> tuple[str | None, float]:
        """Ask the dataset for an example, one thread at a time; that may kill this process.

        Returns the next path, and how many seconds that took.
        """
        with self._user_code:
            begun = time.monotonic()
            self._ask(index)
            try:
                if self._discovery is None:
                    self._discovery = self._begin_discovery()
                found = self._discovery.next_path(index, staged, stage, absent)
                if words := self._discovery.complaint():
                    self._warn(words, "files not found")
                return found, time.monotonic() - begun
            finally:
                del self._asked[threading.get_ident()]
                self._show_current()

    def _begin_discovery(self) -> Discovery:
        plan, n_readers = self._run_plan, self._run_plan.n_readers
        with contextlib.suppress(BaseException):  # user code: a file reader reports it
            self._face.begin(self._number % n_readers, n_readers)
        return Discovery(
            self._dataset,
            self._plan,
            plan.index_type,
            n_examples=plan.dataset_size,
            names_source=plan.names_source,
        )

    def _stage_found(
        self, work: TaskAtHand, example: ExampleAtHand, file: Wanted, answers: dict[int, Staged]
    ) -> Staged:
        """Have one file staged; that takes no other thread, so it has been done on return."""
        example.keys.append(file.key)
        example.is_discovered = True
        work.note_files(example.index, [file.key])
        self._stage(work, {file.key: file}, answers.update)
        return answers[file.key]

    # --- what others see ----------------------------------------------------------------------

    def _ask(self, index: int) -> None:
        """Show which example the dataset's code is asked for: that may kill this process."""
        self._asked[threading.get_ident()] = index
        self._row.put(Counter.CURRENT, index + 1)

    def _show_current(self) -> None:
        """Show at which example this process is: the one that it has waited for the longest."""
        asked = [*self._asked.values()]
        self._row.put(Counter.CURRENT, (asked[0] if asked else self._oldest()) + 1)

    def _oldest(self) -> int:
        with self._lock:
            key = self._stager.oldest_read()
            for example in [e for each in self._at_hand.values() for e in each.examples]:
                if key in example.keys:
                    return example.index
            return -1  # to name any would blame it if this process dies

    def _warn(self, text: str, subject: str = "") -> None:
        """Have the user warned, once of each subject.

        By default that is the text up to a bracket: a disk that is sick fails in several ways.
        """
        subject = subject or text.partition(" (")[0]
        with self._lock:
            is_news = subject not in self._warned
            self._warned.add(subject)
        if is_news:
            self._channel.send(("trouble", text, subject))
