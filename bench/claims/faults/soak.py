"""A trainer whose workers are killed, and the same one left in peace."""

from __future__ import annotations

import collections
import faulthandler
import hashlib
import os
import resource
import signal
import subprocess
import time
import warnings

import numpy as np

import overlapiter
from bench.claims.faults.data import Augmented
from bench.claims.faults.killer import Progress, kill
from bench.harness import isolated
from bench.harness.family import MARK, Belongings, Family, leftovers, usage, workers
from bench.harness.store_access import half_copied

BATCH_SIZE = 16
N_READERS = 3
N_PREFETCHERS = 2
N_PREFETCH = 2
#: Mini-batches that count as following a replacement.
FOLLOWING = 3
#: Mini-batches after the last worker was replaced.
SETTLE_BATCHES = 100
_KEPT_BATCHES = 3


def digest(batch: list) -> str:
    """Return a hash of all bytes of a mini-batch, with every kind of thing, shape and dtype."""
    value = hashlib.blake2b(str(len(batch)).encode(), digest_size=8)
    for example in batch:
        for element in example:
            array = np.ascontiguousarray(element)
            value.update(f"{type(element).__name__} {np.shape(element)} {array.dtype.str}".encode())
            value.update(array.data)
    return value.hexdigest()


class Trainer:
    """Takes mini-batches, keeps each for a while, and notes what it got and when.

    Args:
        iterator: To take them from.
        progress: To tell the killer.
        compute_ms: How long to compute on each.

    Attributes:
        digests: What each mini-batch was.
        states: Epoch, position and whether an epoch ended, after each.
        changed: Positions of those that were another thing when they were let go.
        taken_at: When each call of ``next`` began, by ``time.monotonic()``.
        next_seconds: How long it took.
    """

    def __init__(
        self, iterator: overlapiter.OverlapIterator, progress: Progress, compute_ms: float
    ) -> None:
        self._iterator = iterator
        self._progress = progress
        self._compute_seconds = compute_ms / 1e3
        self._kept: collections.deque[tuple[int, list]] = collections.deque()
        self.digests: list[str] = []
        self.states: list[tuple[int, int, bool]] = []
        self.changed: list[int] = []
        self.taken_at: list[float] = []
        self.next_seconds: list[float] = []

    def take(self, n_batches: int) -> None:
        """Take so many mini-batches."""
        for _ in range(n_batches):
            start = time.monotonic()
            batch = next(self._iterator)
            self.next_seconds.append(round(time.monotonic() - start, 6))
            self.taken_at.append(start)
            it = self._iterator
            self.states.append((it.epoch, it.current_position, it.is_new_epoch))
            self.digests.append(digest(batch))
            self._kept.append((len(self.digests) - 1, batch))
            del batch
            if len(self._kept) > _KEPT_BATCHES:
                self._let_go()
            self._progress.put(len(self.digests))
            if self._compute_seconds:
                time.sleep(self._compute_seconds)

    def let_go(self) -> None:
        """Let go what is kept."""
        while self._kept:
            self._let_go()

    def _let_go(self) -> None:
        position, batch = self._kept.popleft()
        if digest(batch) != self.digests[position]:
            self.changed.append(position)


def measure(request: dict) -> dict:
    """Train in this process.

    Args:
        request: ``source``, ``staging`` (a new folder, or None), ``n_readers``, ``seed``,
            ``compute_ms``, and either ``n_batches`` or what the killer needs: ``kills``,
            ``pause_ms``, ``calm_batches`` and ``hang_seconds``, with a ``folder`` for its files.

    Returns:
        What :class:`Trainer` noted; with a killer also what that noted, ``usage`` before and after,
        ``finalize_seconds`` with ``ended_seconds`` (until all workers were gone), ``leftovers`` and
        ``warnings``.
    """
    _prepare()
    dataset = Augmented(request["source"])
    with overlapiter.OverlapIterator(dataset, 1, n_processes=1) as iterator:
        next(iterator)  # the forkserver, and the libraries: what then exists is not left over
    progress = Progress(os.path.join(request["folder"], "progress"))
    before = Belongings.now()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        iterator = _open(request, dataset)
        trainer = Trainer(iterator, progress, request["compute_ms"])
        try:
            if "kills" in request:
                answer = _train_under_fire(request, trainer)
            else:
                trainer.take(request["n_batches"])
                answer = {}
            trainer.let_go()
        finally:
            ended = _finalize(iterator)
    names = ("digests", "states", "changed", "taken_at", "next_seconds")
    answer |= {name: getattr(trainer, name) for name in names}
    left = leftovers(before)
    left["partial_files"] = half_copied(request["staging"]) if request["staging"] else []
    texts = [f"{warning.category.__name__}: {warning.message}" for warning in caught]
    return {**answer, **ended, "leftovers": left, "warnings": texts}


def _prepare() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no file for each SIGSEGV
    faulthandler.register(signal.SIGUSR1)
    os.environ[MARK] = str(os.getpid())


def _open(request: dict, dataset: Augmented) -> overlapiter.OverlapIterator:
    return overlapiter.OverlapIterator(
        dataset,
        BATCH_SIZE,
        n_processes=request["n_readers"],
        n_prefetch=N_PREFETCH,
        seed=request["seed"],
        staging=staging_options(request["staging"], request["source"]),
    )


def staging_options(
    directory: str | None, source: str, look_ahead: int = 32
) -> overlapiter.Staging | None:
    """Return the options of staging; None for none."""
    if directory is None:
        return None
    return overlapiter.Staging(
        directory,
        source=source,
        n_prefetchers=N_PREFETCHERS,
        keep_free=0,
        look_ahead=look_ahead,
    )


# --- under fire -------------------------------------------------------------------------------


def _train_under_fire(request: dict, trainer: Trainer) -> dict:
    """Train until the killer has finished, and for a while longer."""
    own = {"trainer_pid": os.getpid(), "progress": os.path.join(request["folder"], "progress")}
    program = isolated.Program(kill, {**request, **own}, request["folder"])
    process = subprocess.Popen(program.command, cwd=isolated.CHECKOUT, stdin=subprocess.DEVNULL)
    try:
        trainer.take(request["calm_batches"])
        usage_before = _usage()
        while process.poll() is None:
            trainer.take(1)
    finally:
        process.kill()
        process.wait()
    answer = program.answer(process.returncode)
    trainer.take(SETTLE_BATCHES)
    note_recovery(answer["hits"], trainer.taken_at, trainer.next_seconds)
    return {**answer, "usage": {"before": usage_before, "after": _usage()}}


def note_recovery(hits: list[dict], taken_at: list[float], next_seconds: list[float]) -> None:
    """Add to each hit what it cost.

    * ``notice_seconds``: from the signal until a new process was seen in the victim's place;
    * ``recover_seconds``: the longest of the calls of ``next()`` that were under way at some time
      between these two moments, or among the three calls after that;
    * ``beside``: ``"supervisor"`` or ``"stop"`` if another hit of the supervisor, or another stop,
      had to be recovered from at the same time, so that the times tell little of this hit alone;
    * ``had_supervisor``: whether there was one, not hit itself, all the time until the replacement.
    """
    ends = np.add(taken_at, next_seconds)
    spans = []
    for hit in hits:
        first = int(np.searchsorted(ends, hit["hit_at"]))
        last = int(np.searchsorted(taken_at, hit["replaced_at"])) + FOLLOWING
        hit["notice_seconds"] = hit["replaced_at"] - hit["hit_at"]
        hit["recover_seconds"] = max(next_seconds[first:last])
        start = min(hit["hit_at"], taken_at[first])
        spans.append((start, hit["hit_at"], max(hit["replaced_at"], float(ends[:last][-1]))))
    for hit, (start, _, end) in zip(hits, spans, strict=True):
        others = [
            other
            for other, (_, other_start, other_end) in zip(hits, spans, strict=True)
            if other is not hit and other_start < end and other_end > start
        ]
        hit["had_supervisor"] = not any(
            other["kind"] == "supervisor"
            and other["hit_at"] < hit["replaced_at"]
            and other["replaced_at"] > hit["hit_at"]
            for other in others
        )
        is_beside_stop = any(other["signal"] == "SIGSTOP" for other in others)
        is_beside_supervisor = any(other["kind"] == "supervisor" for other in others)
        hit["beside"] = "supervisor" if is_beside_supervisor else "stop" if is_beside_stop else ""


def _usage() -> dict[str, dict[str, int]]:
    """Return what the trainer and its supervisor take."""
    found = workers(Family(os.getpid()).look())
    pids = {kind: process.pid for process, kind in found.items() if kind == "supervisor"}
    return {who: usage(pid) for who, pid in {"trainer": os.getpid(), **pids}.items()}


def _finalize(iterator: overlapiter.OverlapIterator) -> dict[str, float]:
    family = Family(os.getpid())
    start = time.monotonic()
    iterator.finalize()
    finalize_seconds = time.monotonic() - start
    while workers(family.look()) and time.monotonic() - start < 10:
        time.sleep(0.001)
    return {"finalize_seconds": finalize_seconds, "ended_seconds": time.monotonic() - start}
