"""How long the children of a program live on when it finalizes, is interrupted or is killed.

Each measurement runs a program of its own, in a process group of its own, with workers that

* ``idle``: have built all that they may, and wait;
* ``loading``: build one mini-batch after the other, and the trainer takes them;
* ``stuck readers``: wait inside ``get_example`` for what never comes;
* ``stuck prefetchers``: wait for a file of the slow store that never comes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import overlapiter
from bench.claims.faults import soak
from bench.claims.faults.data import Augmented, Stuck
from bench.harness import isolated
from bench.harness.family import KINDS, MARK, Process, is_running, marked, new_shared_memory
from bench.harness.store_access import half_copied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Each way to end, with the seconds within which all children are to be gone.
LIMIT_SECONDS = {"finalize": 2.0, "interrupt": 2.0, "kill": 5.0}
WORKERS = ("idle", "loading", "stuck readers", "stuck prefetchers")
_PATIENCE_SECONDS = 30.0
_POLL_SECONDS = 0.001


# --- the program ------------------------------------------------------------------------------


def run_program(request: dict) -> None:
    """Be the program: come into the state that is asked for, say so, and wait for the end."""
    faulthandler.dump_traceback_later(2 * _PATIENCE_SECONDS, exit=True)
    folder, state = Path(request["folder"]), request["workers"]
    iterator = _open(request, folder)
    if request["ending"] == "start":
        next(iterator)
        iterator.finalize()
        return
    next(iterator)
    if state != "loading":
        _await_idle(iterator)
    if state.startswith("stuck"):
        Path(folder, "signs", Stuck.SIGN).touch()
        next(iterator)  # is there already, and gives the workers another one to do
        _await_stuck(state, folder)
    print("ready", flush=True)
    if request["ending"] != "finalize":
        _train(iterator, is_waiting=state == "idle")
    while not _is_told():
        if state == "loading":
            next(iterator)
    start = time.monotonic()
    iterator.finalize()
    print("finalized", start, time.monotonic(), flush=True)
    sys.stdin.readline()


def _open(request: dict, folder: Path) -> overlapiter.OverlapIterator:
    dataset = Augmented(request["source"])
    if request["workers"].startswith("stuck") and request["ending"] != "start":
        is_source = request["workers"] == "stuck prefetchers"
        dataset = Stuck(request["source"], request["pipe"], is_source, str(folder / "signs"))
    # Looking ahead no farther than needed, so that each mini-batch taken gives all of them work.
    staging = soak.staging_options(str(folder / "staging"), request["source"], look_ahead=1)
    return overlapiter.OverlapIterator(
        dataset,
        soak.BATCH_SIZE,
        n_processes=soak.N_READERS,
        n_prefetch=soak.N_PREFETCH,
        staging=staging,
    )


def _await_idle(iterator: overlapiter.OverlapIterator) -> None:
    """Wait until nothing has been staged or read for a while."""
    n_quiet, before = 0, None
    while n_quiet < 50:
        stats = iterator.stats()
        now = stats.examples_read, stats.files_staged, stats.files_found_staged
        n_quiet = n_quiet + 1 if now == before else 0
        before = now
        time.sleep(0.005)


def _await_stuck(state: str, folder: Path) -> None:
    while not _has_stuck(state, folder):
        time.sleep(0.005)


def _has_stuck(state: str, folder: Path) -> bool:
    if state == "stuck readers":
        # Readers beyond the cores may have nothing to do.
        n_busy = min(soak.N_READERS, len(os.sched_getaffinity(0)))
        return len(list(folder.glob("signs/reader-*"))) >= n_busy
    return bool(half_copied(str(folder / "staging")))


def _train(iterator: overlapiter.OverlapIterator, *, is_waiting: bool) -> NoReturn:
    while True:
        if is_waiting:
            time.sleep(60)
        else:
            next(iterator)


def _is_told() -> bool:
    return bool(select.select([sys.stdin], [], [], 0)[0] and sys.stdin.readline())


# --- the measurement --------------------------------------------------------------------------


def measure_all(source: Path, repeats: int, update: Callable[[], object]) -> list[dict]:
    """Measure every way to end, with workers in every state; an empty list for no repeats."""
    points = [
        {"ending": ending, "workers": state, "limit_seconds": limit_seconds, "runs": []}
        for ending, limit_seconds in LIMIT_SECONDS.items()
        for state in WORKERS
    ] * bool(repeats)
    for point in points * repeats:
        request = {name: point[name] for name in ("ending", "workers")}
        point["runs"].append(measure({**request, "source": str(source)}))
        update()
    return points


def measure(request: dict) -> dict:
    """Run a program and end it.

    Args:
        request: ``source`` (made by ``make_files``), ``ending`` and ``workers``.

    Returns:
        ``children_seconds`` until all children were gone (after ``finalize`` all workers, after
        the others also the helpers of ``multiprocessing``), None if some never went;
        ``trainer_seconds`` until the trainer was done; and what is left over: ``n_children``,
        ``n_partial_files``, the same ``after_next_start``, and the ``shared_memory``.
    """
    shared_memory = set(os.listdir("/dev/shm"))
    pipe = Path(request["source"], "pipe")
    with tempfile.TemporaryDirectory(prefix="bench-ending-") as folder:
        if request["workers"] == "stuck readers":
            pipe = Path(folder, "pipe")
        Path(folder, "signs").mkdir()
        request = {**request, "folder": folder, "pipe": str(pipe)}
        with _held_back(pipe):
            answer = _end(request)
        staging = str(Path(folder, "staging"))
        answer["n_partial_files"] = len(half_copied(staging))
        if answer["n_partial_files"]:
            subprocess.run(
                _command({**request, "ending": "start"}), cwd=isolated.CHECKOUT, check=True
            )
        answer["n_partial_files_after_next_start"] = len(half_copied(staging))
    return {**answer, "shared_memory": new_shared_memory(shared_memory)}


@contextlib.contextmanager
def _held_back(path: Path) -> Iterator[None]:
    """Have every open of a file wait, by a lease; for 45 s, unless fs.lease-break-time is less."""
    path.touch()
    fd = os.open(path, os.O_RDWR)
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)  # sent when a process wants to open it
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield
    finally:
        os.close(fd)
        signal.signal(signal.SIGIO, before)


def _command(request: dict) -> list[str]:
    return isolated.Program(run_program, request, request["folder"]).command


def _end(request: dict) -> dict:
    """Start the program, end it and watch its children end."""
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    program = subprocess.Popen(
        _command(request),
        cwd=isolated.CHECKOUT,
        env={**os.environ, MARK: mark},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # Ctrl-C that nobody catches shows a traceback
        text=True,
        start_new_session=True,
    )
    with program:
        try:
            if program.stdout.readline().strip() != "ready":
                raise RuntimeError(f"the program did not start for {request}")
            children = [process for process in marked(mark) if process.pid != program.pid]
            answer = _end_and_watch(request["ending"], program, children)
            answer["n_children"] = len([p for p in marked(mark) if p.pid != program.pid])
            if request["ending"] == "finalize":
                answer["n_children"] -= sum(p.name not in KINDS for p in children)
        finally:
            for process in marked(mark):
                if process.pid != program.pid:
                    os.kill(process.pid, signal.SIGKILL)
            program.kill()
    return answer


def _end_and_watch(ending: str, program: subprocess.Popen, children: list[Process]) -> dict:
    start = time.monotonic()
    if ending == "finalize":
        children = [process for process in children if process.name in KINDS]
        program.stdin.write("finalize\n")
        program.stdin.flush()
    elif ending == "interrupt":
        os.killpg(program.pid, signal.SIGINT)
    else:
        program.kill()
    trainer_end = None
    while children and time.monotonic() < start + _PATIENCE_SECONDS:
        children = [process for process in children if is_running(process)]
        if trainer_end is None and program.poll() is not None:
            trainer_end = time.monotonic()
        time.sleep(_POLL_SECONDS)
    children_end = None if children else time.monotonic()
    if ending == "finalize":  # it says when it began and when it was done
        words = program.stdout.readline().split()
        start, trainer_end = float(words[1]), float(words[2])
    elif trainer_end is None:
        program.wait(_PATIENCE_SECONDS)
        trainer_end = time.monotonic()
    children_seconds = None if children_end is None else max(0.0, children_end - start)
    return {"children_seconds": children_seconds, "trainer_seconds": trainer_end - start}
