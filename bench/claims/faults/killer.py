"""The killer: hits the workers of one trainer at seeded random moments, and sees them replaced.

It is a process of its own, started by the trainer, so that its clock does not depend on what the
trainer does. It looks at the processes about every millisecond.
"""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import os
import random
import signal
import struct
import sys
import threading
import time
from pathlib import Path

from bench.claims.faults.data import N_FILES, file_name
from bench.harness.family import Family, Process, is_running, usage, workers
from bench.harness.store_access import store_in
from overlapiter.store.index import IndexBusyError

_TICK_SECONDS = 0.001
_EVICT_SECONDS = 0.005
_SAMPLE_SECONDS = 0.5
#: How likely one process of a kind is hit, compared with one of another.
_WEIGHTS = {"reader": 2.0, "prefetcher": 1.5, "supervisor": 0.5}
#: SIGSTOP is rarer, because it takes up to two seconds to be noticed, by design.
_SIGNALS = {signal.SIGKILL: 5, signal.SIGSEGV: 4, signal.SIGSTOP: 1}
#: One volley in so many hits several processes at once, up to all of them.
_VOLLEY_SHARE = 0.2
#: After so many of the volleys with a stop in them nobody is hit until it has been noticed, so that
#: most of the other hits are not beside one.
_HOLD_SHARE = 0.75
#: Mini-batches between the replacement of a supervisor and the next hit of one: the pipeline gives
#: up when two in a row are lost before any has been delivered, so as not to try for ever.
_CALM_STEPS = 4


class Progress:
    """How many mini-batches the trainer has taken, in a file that both map.

    Args:
        path: The file; made if need be.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(fd, 8)
        self._memory = mmap.mmap(fd, 8)
        os.close(fd)

    def put(self, n_taken: int) -> None:
        """Tell the other process."""
        struct.pack_into("=q", self._memory, 0, n_taken)

    def get(self) -> int:
        """Return what was told last."""
        return struct.unpack_from("=q", self._memory, 0)[0]

    def close(self) -> None:
        """Drop the mapping."""
        self._memory.close()


@dataclasses.dataclass
class Hit:
    """One signal that hit a live process.

    Attributes:
        kind: ``"reader"``, ``"prefetcher"`` or ``"supervisor"``.
        signal: Its name.
        volley: Those with the same number were sent together.
        hit_at: ``time.monotonic()`` just before it was sent.
        replaced_at: The same when a new process was first seen in its place; None if never.
    """

    kind: str
    signal: str
    volley: int
    hit_at: float
    replaced_at: float | None
    victim: Process

    def as_json(self) -> dict:
        """Return all but the victim, which is nobody's business later."""
        return {k: v for k, v in vars(self).items() if k != "victim"}


class Ledger:
    """Finds out which new process stands in the place of which victim. Pure.

    The supervisor reaps a victim before it forks the new process, and the trainer likewise; so a
    new process belongs to the earliest victim of its kind that is gone.
    """

    def __init__(self) -> None:
        self.hits: list[Hit] = []
        self._seen_at: dict[tuple[int, int], float] = {}
        self._unmatched: dict[tuple[int, int], str] = {}

    def see(self, found: dict[Process, str], now: float) -> None:
        """Take note of the workers that exist now."""
        for process, kind in found.items():
            if process.identity not in self._seen_at and not process.has_ended:
                self._seen_at[process.identity] = now
                self._unmatched[process.identity] = kind
        alive = {process.identity for process in found if not process.has_ended}
        for hit in self.pending():
            if hit.victim.identity in alive:
                continue
            for identity, kind in self._unmatched.items():
                if kind == hit.kind and self._seen_at[identity] > hit.hit_at:
                    hit.replaced_at = self._seen_at[identity]
                    del self._unmatched[identity]
                    break

    def pending(self) -> list[Hit]:
        """Return the hits whose victims have not been replaced."""
        return [hit for hit in self.hits if hit.replaced_at is None]


class Killer:
    """Hits until it has hit often enough and all victims are replaced.

    Args:
        request: ``trainer_pid``, ``progress`` (a path), ``seed``, ``kills``, ``pause_ms``,
            ``calm_batches`` before the first, and ``hang_seconds``.
    """

    def __init__(self, request: dict) -> None:
        self._request = request
        self._random = random.Random(request["seed"])
        self._family = Family(request["trainer_pid"])
        self._progress = Progress(request["progress"])
        self._ledger = Ledger()
        self._samples: list[dict] = []
        self._n_volleys = 0
        self._fire_at = 0.0
        self._is_holding = False
        self._sample_at = 0.0
        self._supervisor_since = 0  # mini-batches taken when the present one was first needed
        self._last_progress = (0, time.monotonic())

    def run(self) -> dict:
        """Return ``hits``, ``samples`` and ``is_hung``."""
        while os.getppid() == self._request["trainer_pid"]:
            found = workers(self._family.look())
            now = time.monotonic()
            self._ledger.see(found, now)
            n_taken = self._progress.get()
            if self._is_hung(n_taken, now):
                break
            if n_taken >= self._request["calm_batches"] and now >= self._sample_at:
                self._sample_at = now + _SAMPLE_SECONDS
                self._sample(found, now)
            if len(self._ledger.hits) >= self._request["kills"]:
                if not self._ledger.pending():
                    return self._answer(is_hung=False)
            elif n_taken >= self._request["calm_batches"]:
                self._fire_when_due(found, n_taken)
            time.sleep(_TICK_SECONDS)
        return self._answer(is_hung=True)

    def _answer(self, *, is_hung: bool) -> dict:
        hits = [hit.as_json() for hit in self._ledger.hits]
        return {"hits": hits, "samples": self._samples, "is_hung": is_hung}

    # --- hitting ------------------------------------------------------------------------------

    def _fire_when_due(self, found: dict[Process, str], n_taken: int) -> None:
        pending = self._ledger.pending()
        if any(hit.kind == "supervisor" for hit in pending):
            self._supervisor_since = n_taken
        now = time.monotonic()
        self._is_holding &= any(hit.signal == "SIGSTOP" for hit in pending)
        if not self._fire_at or self._is_holding:
            self._fire_at = now + self._pause()
        if now < self._fire_at:
            return
        self._fire_at = now + self._pause()
        self._is_holding = self._random.random() < _HOLD_SHARE
        hit_already = {hit.victim.identity for hit in pending}
        candidates = {
            process: kind
            for process, kind in found.items()
            if not process.has_ended
            and process.identity not in hit_already
            and (kind != "supervisor" or n_taken >= self._supervisor_since + _CALM_STEPS)
        }
        self._fire(self._choose(candidates), found)

    def _pause(self) -> float:
        return self._random.expovariate(1e3 / self._request["pause_ms"])

    def _choose(self, candidates: dict[Process, str]) -> list[Process]:
        """Return the victims of a volley, mostly one."""
        n_wanted = 1
        if self._random.random() < _VOLLEY_SHARE:
            n_wanted = self._random.randint(2, max(2, len(candidates)))
        n_left = self._request["kills"] - len(self._ledger.hits)
        left, chosen = dict(candidates), []
        while left and len(chosen) < min(n_wanted, n_left):
            weights = [_WEIGHTS[kind] for kind in left.values()]
            chosen += self._random.choices(list(left), weights)
            del left[chosen[-1]]
        return chosen

    def _fire(self, victims: list[Process], kinds: dict[Process, str]) -> None:
        """Send a signal to each victim, one right after the other."""
        numbers = [*self._random.choices(list(_SIGNALS), [*_SIGNALS.values()], k=len(victims))]
        self._n_volleys += bool(victims)
        with contextlib.ExitStack() as stack:
            aims = []
            for victim, number in zip(victims, numbers, strict=True):
                with contextlib.suppress(ProcessLookupError):
                    handle = os.pidfd_open(victim.pid)  # means no other process from now on
                    stack.callback(os.close, handle)
                    if is_running(victim):
                        aims.append((handle, victim, number))
            for handle, victim, number in aims:
                hit_at = time.monotonic()
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, number)
                    name, kind = signal.Signals(number).name, kinds[victim]
                    self._ledger.hits.append(Hit(kind, name, self._n_volleys, hit_at, None, victim))

    # --- looking ------------------------------------------------------------------------------

    def _sample(self, found: dict[Process, str], now: float) -> None:
        """Note the memory and the descriptors of the trainer and its supervisor."""
        sample: dict = {"at": now}
        pids = {"trainer": self._request["trainer_pid"]}
        pids |= {kind: p.pid for p, kind in found.items() if kind == "supervisor"}
        for who, pid in pids.items():
            with contextlib.suppress(OSError):  # ended meanwhile
                sample[who] = usage(pid)
        self._samples.append(sample)

    def _is_hung(self, n_taken: int, now: float) -> bool:
        """Return whether nothing has happened for too long; says then who was at what."""
        pending = self._ledger.pending()
        if n_taken != self._last_progress[0]:
            self._last_progress = n_taken, now
        since = min([self._last_progress[1], *(hit.hit_at for hit in pending)])
        if now - since < self._request["hang_seconds"]:
            return False
        print(f"no progress after {n_taken} mini-batches; hits pending: {pending}", file=sys.stderr)
        for process in self._family.look():
            wait = Path(f"/proc/{process.pid}/wchan").read_text()
            print(f"{process} waits in {wait}", file=sys.stderr, flush=True)
            if process.pid != os.getpid():
                os.kill(process.pid, signal.SIGUSR1)  # prints where it is
        os.kill(self._request["trainer_pid"], signal.SIGUSR1)
        time.sleep(1)
        os.kill(self._request["trainer_pid"], signal.SIGKILL)
        return True


class Evictor(threading.Thread):
    """Evicts one staged file after another, as another run does, so that staging never ends.

    Args:
        request: ``staging``, the directory; ``source``; ``seed``.

    Attributes:
        n_evicted: How many it has evicted.
    """

    def __init__(self, request: dict) -> None:
        super().__init__(daemon=True)
        self.n_evicted = 0
        self._random = random.Random(request["seed"])
        self._store = store_in(request["staging"], request["source"])
        paths = [os.path.join(request["source"], file_name(i)) for i in range(N_FILES)]
        self._keys = [self._store.key_of(path) for path in paths]
        self._has_ended = threading.Event()

    def run(self) -> None:
        """Evict until the end."""
        while not self._has_ended.wait(_EVICT_SECONDS):
            # A process that was stopped in a transaction has it until it is killed or goes on.
            with contextlib.suppress(IndexBusyError):
                self.n_evicted += len(self._store.evict([self._random.choice(self._keys)]))

    def end(self) -> None:
        """Stop evicting."""
        self._has_ended.set()
        self.join()
        self._store.close()


def kill(request: dict) -> dict:
    """Hit and evict; return what :class:`Killer` does, and ``n_removed`` staged files."""
    evictor = Evictor(request) if request["staging"] else None  # this process starts no others
    if evictor is not None:
        evictor.start()
    answer = Killer(request).run()
    if evictor is not None:
        evictor.end()
    return {**answer, "n_removed": evictor.n_evicted if evictor else 0}
