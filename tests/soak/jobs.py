"""Three jobs of four ranks on one staging directory smaller than their data, killed at random.

Each job is started by mpiexec, reads the data set in its own scattered orders, and compares every
mini-batch byte for byte with the source. At seeded random moments a killer kills whole jobs, ranks,
supervisors, prefetchers and file readers, and stops some for seconds; jobs that have ended are
started again. A watcher compares what is charged, and what lies on the disk, with the capacity
meanwhile. Then the jobs end in order, another one reads the whole data set, and nothing may be
left. Each thing that is not as it has to be is named::

    SOAK_MINUTES=10 python -m pytest tests/soak -m slow
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import math
import os
import random
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import psutil

from bench.harness.family import send, workers
from bench.harness.isolated import CHECKOUT, Program, call, launch
from tests.soak import watch
from tests.soak.rank import BATCH_SIZE, N_RANKS, Board, Row, make_files, train
from tests.support.leftovers import MARK, marked, memory_files, new_shared_memory

if TYPE_CHECKING:
    from pathlib import Path

#: How often each thing befalls a job, compared with the others.
_WEIGHTS = {"job": 3, "rank": 4, "supervisor": 12, "prefetcher": 30, "reader": 24, "stop": 12}
_STOPPABLE = ("rank", "supervisor", "prefetcher", "reader")
_STOP_SECONDS = (1.0, 4.0)
#: Mini-batches of a rank between two hits of the same kind: two supervisors that die in a row
#: without a mini-batch between them end the run by design, as do three readers on one example.
_CALM_BATCHES = 4
_TICK_SECONDS = 0.01
#: After which nothing may be left of a job that has ended, also of one that was killed.
_GRACE_SECONDS = 20.0
_END_SECONDS = 90.0


@dataclasses.dataclass
class Options:
    """What runs, and what is done to it.

    Attributes:
        minutes: Under fire, from the first mini-batch on.
        seed: What is hit when follows from it, as far as the machine repeats itself.
        jobs: At the same time.
        small_files: Of 0.5 to 40 kB each.
        large_files: Of 1.1 to 1.7 MB each.
        capacity_share: Of the data.
        look_ahead: Mini-batches.
        pause_ms: Mean between hits.
        job_batches: Most of a rank.
        hang_seconds: Without a mini-batch.
    """

    minutes: float
    seed: int = 1
    jobs: int = 3
    small_files: int = 1500
    large_files: int = 20
    capacity_share: float = 0.4
    look_ahead: int = 16
    pause_ms: float = 500.0
    job_batches: int = 400
    hang_seconds: float = 60.0


@dataclasses.dataclass
class Job:
    """A job that was started.

    Attributes:
        number: Which of the jobs.
        mark: What all its processes have in their environment.
        launcher: mpiexec.
        board: Where its ranks show how far they are.
        output: The file with its standard streams.
        started_at: By ``time.monotonic()``, as all times.
        shown: What its ranks showed last, and since when.
        calm_until: For a rank and a kind, at how many mini-batches it may be hit again.
        killed_at: When it, or one of its ranks, was killed; 0 before.
        ended_at: When mpiexec had ended.
    """

    number: int
    mark: str
    launcher: subprocess.Popen
    board: Board
    output: Path
    started_at: float
    shown: list[tuple[Row, float]]
    calm_until: dict[tuple[int, str], int] = dataclasses.field(default_factory=dict)
    killed_at: float = 0.0
    ended_at: float = 0.0


class Soak:
    """All of it, once, in an empty folder."""

    def __init__(self, options: Options, folder: Path) -> None:
        self._options = options
        self._folder = folder
        self._random = random.Random(options.seed)
        self._n_files = options.small_files + options.large_files
        self._stop = folder / "stop"
        self._jobs: list[Job] = []
        self._ended: list[Job] = []
        self._stopped: list[tuple[float, int, psutil.Process]] = []
        self.violations: list[str] = []
        self.kills: collections.Counter[str] = collections.Counter()
        self.counts: collections.Counter[str] = collections.Counter()
        self.longest = {"wait_seconds": 0.0, "start_seconds": 0.0, "end_seconds": 0.0}

    def run(self) -> dict:
        """Return the result."""
        options = self._options
        folders = [self._folder / "source", self._folder / "reference"]
        data_bytes = make_files(folders, options.small_files, options.large_files)
        (self._folder / "tmp").mkdir()
        self._request = {
            **{name: str(self._folder / name) for name in ("source", "reference", "staging")},
            "capacity_bytes": int(data_bytes * options.capacity_share),
        }
        watching = Program(watch.watch, self._request, self._folder)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        watcher = subprocess.Popen(watching.command, cwd=CHECKOUT, text=True, **pipes)
        try:
            watcher.stdout.readline()  # it counts from now on
            self._under_fire()
            self._stop.touch()
            self._wait_for_end()
            self._stop.unlink()
            watcher.communicate()  # what the next job opens is not counted
            watched = watching.answer(watcher.returncode)
            fresh = self._read_all(-(-self._n_files // (N_RANKS * BATCH_SIZE)))
        finally:
            watcher.kill()
            watcher.wait()
            self._kill_all()
        settled = call(watch.settled, self._request)
        self._judge(watched, settled)
        return {
            "data_bytes": data_bytes,
            "capacity_bytes": self._request["capacity_bytes"],
            "kills": dict(self.kills),
            "counts": dict(self.counts),
            "longest": self.longest,
            "watched": watched,
            "settled": settled,
            "fresh_mini_batches": fresh,
            "violations": self.violations,
        }

    # --- jobs ---------------------------------------------------------------------------------

    def _start(self, number: int, n_batches: int) -> None:
        self.counts["jobs"] += 1
        mark = f"{os.getpid()}-{self.counts['jobs']}"
        board, output = (self._folder / f"{mark}.{kind}" for kind in ("board", "txt"))
        request = {
            **self._request,
            "board": str(board),
            "seed": self._options.seed + 1000 * number + self.counts["jobs"],
            "n_files": self._n_files,
            "n_batches": n_batches,
            "look_ahead": self._options.look_ahead,
            "stop": str(self._stop),
        }
        program = Program(train, request, self._folder).command
        variables = {MARK: mark, "TMPDIR": str(self._folder / "tmp"), "OMP_NUM_THREADS": "1"}
        # What Open MPI leaves when it is killed is not ours.
        variables["OMPI_MCA_btl_sm_backing_directory"] = variables["TMPDIR"]
        with output.open("w") as streams:
            launcher = subprocess.Popen(
                launch(program, N_RANKS), cwd=CHECKOUT, env={**os.environ, **variables},
                stdin=subprocess.DEVNULL, stdout=streams, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip
        now = time.monotonic()
        self._jobs.append(
            Job(number, mark, launcher, Board(board), output, now, [(Row(), now)] * N_RANKS)
        )

    def _look_at_jobs(self) -> None:
        """Note how far the ranks are, and which jobs have ended."""
        now = time.monotonic()
        for item in [item for item in self._stopped if now >= item[0]]:
            self._stopped.remove(item)
            send(item[2], signal.SIGCONT)
        stopped = {process.pid for _, _, process in self._stopped}
        for job in list(self._jobs):
            for rank, row in enumerate(job.board.rows()):
                self._look_at_rank(job, rank, row, now, is_stopped=row.pid in stopped)
            if job.launcher.poll() is not None:
                self._note_end(job, now)
            elif job.killed_at and now - job.killed_at > _GRACE_SECONDS:
                self.counts["launchers_killed_late"] += 1  # mpiexec did not see its rank end
                self._kill_job(job)
        for job in list(self._ended):
            self._look_for_rest(job, now)

    def _look_at_rank(self, job: Job, rank: int, row: Row, now: float, *, is_stopped: bool) -> None:
        before, since = job.shown[rank]
        if row == before and (row.has_ended or is_stopped or job.killed_at):
            since = now  # it does not wait
        if before.n_taken:
            self.longest["wait_seconds"] = max(self.longest["wait_seconds"], now - since)
        elif row.n_taken:
            start_seconds = now - job.started_at
            self.longest["start_seconds"] = max(self.longest["start_seconds"], start_seconds)
        job.shown[rank] = row, since if row == before else now
        limit_seconds = self._options.hang_seconds * (1 if before.n_taken else 2)  # for a start
        if now - since > limit_seconds:
            for process in marked(job.mark):
                if process.pid in {row.pid for row in job.board.rows()}:
                    os.kill(process.pid, signal.SIGUSR1)  # prints where it is
            time.sleep(1)
            self._violate(f"job {job.mark}, rank {rank}: none for {now - since:.0f} s", job)
            self._kill_job(job)

    def _note_end(self, job: Job, now: float) -> None:
        rows = job.board.rows()
        n_wrong = sum(row.n_wrong for row in rows)
        self.counts["mini_batches"] += sum(row.n_taken for row in rows)
        self.counts["examples"] += sum(row.n_examples for row in rows)
        self.counts["wrong_mini_batches"] += n_wrong
        status = job.launcher.returncode
        if n_wrong:
            self._violate(f"job {job.mark}: {n_wrong} wrong mini-batches", job)
        if not job.killed_at and (status or not all(row.has_ended for row in rows)):
            self._violate(f"job {job.mark} ended with {status}, though it was not killed", job)
        self.counts["jobs_killed" if job.killed_at else "jobs_not_killed"] += 1
        job.board.close()
        job.ended_at = now
        self._jobs.remove(job)
        self._ended.append(job)

    def _look_for_rest(self, job: Job, now: float) -> None:
        """See all processes of a job end."""
        left, late = marked(job.mark), now - job.ended_at
        if left and late < _GRACE_SECONDS:
            return
        self.longest["end_seconds"] = max(self.longest["end_seconds"], late)
        self._ended.remove(job)
        if left:
            names = ", ".join(map(str, left))
            self._violate(f"job {job.mark}: {late:.0f} s after its end there are {names}", job)
            for process in left:
                send(process, signal.SIGKILL)

    def _violate(self, text: str, job: Job | None = None) -> None:
        self.violations.append(text)
        tail = job.output.read_text(errors="replace")[-6000:] if job else ""
        sys.stderr.write(f"\n{text}\n{tail}\n")

    # --- fire ---------------------------------------------------------------------------------

    def _under_fire(self) -> None:
        fire_at = end = math.inf
        while (now := time.monotonic()) < end:
            running = {job.number for job in self._jobs}
            for number in set(range(self._options.jobs)) - running:
                self._start(number, self._random.randint(20, self._options.job_batches))
            self._look_at_jobs()
            if end == math.inf and any(row.n_taken for job in self._jobs for row, _ in job.shown):
                fire_at, end = now, now + 60 * self._options.minutes  # whatever a start takes
            if now >= fire_at:
                fire_at = now + self._random.expovariate(1e3 / self._options.pause_ms)
                self._fire()
            time.sleep(_TICK_SECONDS)

    def _fire(self) -> None:
        kind = self._random.choices(list(_WEIGHTS), [*_WEIGHTS.values()])[0]
        job = self._random.choice(self._jobs)
        if job.killed_at:
            return
        if kind == "job":
            self.kills["job"] += 1
            self._kill_job(job)
            return
        wanted = self._random.choice(_STOPPABLE) if kind == "stop" else kind
        candidates = self._candidates(job, wanted)
        if not candidates:
            return
        rank, victim = self._random.choice(candidates)
        if not send(victim, signal.SIGSTOP if kind == "stop" else signal.SIGKILL):
            return
        self.kills[f"{wanted} stopped" if kind == "stop" else kind] += 1
        job.calm_until[rank, wanted] = job.shown[rank][0].n_taken + _CALM_BATCHES
        if kind == "rank":
            job.killed_at = time.monotonic()
        elif kind == "stop":
            until = time.monotonic() + self._random.uniform(*_STOP_SECONDS)
            self._stopped.append((until, rank, victim))

    def _candidates(self, job: Job, kind: str) -> list[tuple[int, psutil.Process]]:
        """Return the processes of a kind that may be hit, each with its rank."""
        family = {process.pid: process for process in marked(job.mark)}
        ranks = {row.pid: rank for rank, (row, _) in enumerate(job.shown) if row.n_taken}
        kinds = workers(family.values()) | {family[p]: "rank" for p in ranks if p in family}
        stopped = {process for _, _, process in self._stopped}
        parents, found = {}, []
        for process in family.values():
            with contextlib.suppress(psutil.NoSuchProcess):  # ended just now
                parents[process.pid] = process.ppid()
        for process, name in kinds.items():
            pid = process.pid
            while pid in parents and pid not in ranks:
                pid = parents[pid]
            if name != kind or pid not in ranks or process in stopped:
                continue
            row = job.shown[ranks[pid]][0]
            if not row.has_ended and row.n_taken >= job.calm_until.get((ranks[pid], kind), 0):
                found.append((ranks[pid], process))
        return found

    def _kill_job(self, job: Job) -> None:
        """Kill mpiexec and its ranks; half of the time all other processes of the job, too."""
        job.killed_at = time.monotonic()
        ranks = {row.pid for row in job.board.rows()} if not job.ended_at else set()
        kills_all = self._random.random() < 0.5
        family = marked(job.mark)
        spared = set() if kills_all else {p for p in workers(family) if p.pid not in ranks}
        with contextlib.suppress(ProcessLookupError):
            os.killpg(job.launcher.pid, signal.SIGKILL)
        for process in set(family) - spared:
            send(process, signal.SIGKILL)

    # --- the end ------------------------------------------------------------------------------

    def _wait_for_end(self) -> None:
        deadline = time.monotonic() + _END_SECONDS + self._options.hang_seconds
        while self._jobs or self._ended or self._stopped:
            self._look_at_jobs()
            if self._jobs and time.monotonic() > deadline:
                self._violate(f"job {self._jobs[0].mark} does not end", self._jobs[0])
                self._kill_job(self._jobs[0])
            time.sleep(_TICK_SECONDS)

    def _read_all(self, n_batches: int) -> int:
        """Have one more job read everything; return how many mini-batches that were."""
        before = self.counts["mini_batches"]
        self._start(self._options.jobs, n_batches)
        self._wait_for_end()
        if self.counts["mini_batches"] - before != n_batches * N_RANKS:
            self._violate("the job after the others did not read everything")
        return self.counts["mini_batches"] - before

    def _kill_all(self) -> None:
        """After an error: leave no process behind."""
        for _, _, process in self._stopped:
            send(process, signal.SIGCONT)
        for job in [*self._jobs, *self._ended]:
            self._kill_job(job)
            for process in marked(job.mark):
                send(process, signal.SIGKILL)

    def _judge(self, watched: dict, settled: dict) -> None:
        """Name what is not as it has to be."""
        surplus = settled["disk_bytes"] - settled["total_bytes"]
        is_off = not 0 <= surplus <= settled["tree_bytes"]
        facts = {
            "more than the capacity was charged or on the disk": watched["n_over_capacity"],
            "the total was not the sum of the charges": watched["n_miscounted"],
            "events of the source were lost": watched["n_lost_events"],
            "an index was thrown away": len(watched["generations"]) != 1,
            "the total is not the sum": settled["total_bytes"] != settled["charged_bytes"],
            "at the end the disk has other bytes than are charged": is_off,
        }
        names = ("miscounted", "left", "copying", "going", "wrong_copies", "local_folders")
        facts |= {f"at the end: {name}": settled[f"n_{name}"] for name in names}
        for text, found in facts.items():
            if found:
                self._violate(f"{text} ({int(found)})")


def soak(options: Options, folder: Path) -> dict:
    """Do all of it, once; ``violations`` of the result are to be empty."""
    memory_before = memory_files()
    result = Soak(options, folder).run()
    left = new_shared_memory(memory_before)
    result["violations"] += [f"left in /dev/shm: {name}" for name in left]
    return result
