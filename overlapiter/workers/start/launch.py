"""Starting the supervisor from Python's forkserver.

The forkserver is the one of ``multiprocessing``: if the program started it already (before MPI,
as ChainerMN's guide says), the supervisor comes from there and the trainer starts no process at
all; if not, it is started here, by vfork and exec, never by a plain fork.

``multiprocessing.Process`` is not used on top of it, because it always re-imports the program's
``__main__`` in the child. Under ``mpiexec`` that would call MPI_Init as the same rank and bring
the job down, and it costs the start-up time of the user's script. Here ``__main__`` is imported
only if the dataset refers to it, after the launcher's variables have been hidden and a stand-in
has taken the place of MPI (no_mpi.py).
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import pickle
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from multiprocessing import forkserver, resource_tracker, spawn
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

from overlapiter.errors import PipelineError
from overlapiter.workers.ipc.channel import is_ready
from overlapiter.workers.start.no_mpi import WORLD_VARIABLE, install, world_of_this_process
from overlapiter.workers.start.parcel import Parcel
from overlapiter.workers.start.processes import Stops, flush_output

if TYPE_CHECKING:  # the forkserver is asked for before the trainer imports it
    from overlapiter.workers.plan import SupervisorPlan

#: Variables by which an MPI launcher tells a process which rank it is.
LAUNCHER_PREFIXES = ("PMIX_", "OMPI_", "PRTE_", "PMI_", "MPIR_", "HYDRA_", "MV2_", "I_MPI_HYDRA_")

#: Where the library is loaded all the same, ``from mpi4py import MPI`` does not call MPI_Init.
_MPI4PY_SETTINGS = {"MPI4PY_RC_INITIALIZE": "0", "MPI4PY_RC_FINALIZE": "0"}

#: From this size on the C library copies past the processor's caches: an array on its way into a
#: slot, which is in none of them, is then not read before it is overwritten.
_PAST_CACHES = "x86_non_temporal_threshold=0x80000"

#: Settings of libraries that the workers load.
_LIBRARY_SETTINGS = {
    # NumPy's threads wait for work asleep. By default they spin for 0.1 s, from the import on and
    # after each product of matrices, on cores that other workers need.
    "OPENBLAS_THREAD_TIMEOUT": "4",
    "GLIBC_TUNABLES": f"glibc.cpu.{_PAST_CACHES}:glibc.tune.{_PAST_CACHES}",  # tune up to 2.28
}

_has_chainer = find_spec("chainer") is not None
#: What the forkserver is to import: for any dataset, and for those that need Chainer.
PRELOAD = ("overlapiter.workers.supervisor.main", *["overlapiter.chainer.preload"] * _has_chainer)

#: Whatever else the forkserver imports: leaves no socket behind, keeps the MPI library out.
_FIRST_PRELOAD = "overlapiter.workers.start.begin_preload"

#: Ends in the forkserver what :func:`interrupts_held` began.
_LAST_PRELOAD = "overlapiter.workers.start.release_interrupts"

_NO_GUARD = (
    "the script defines the dataset, so a worker process imports it, and it starts its training "
    'there, too; put what starts the training below `if __name__ == "__main__":`, or the dataset '
    "into a module of its own"
)

_NO_MODULE = (
    "the dataset refers to something defined in an interactive session, a notebook, or the "
    "__main__.py of a package or an archive, which other processes cannot import; put the "
    "dataset's class and functions into a module"
)

#: By one of these the child finds the program's ``__main__``.
_OF_MAIN_MODULE = ("init_main_from_name", "init_main_from_path")

#: A forkserver that was killed may take so long to be seen as ended.
_ENDING_SECONDS = 2.0

#: Held where a process is started. A fork waits for it, since its child would wait for ever: for
#: this, or for a lock of multiprocessing's that is held meanwhile, by a thread that is not there.
_start_lock = threading.RLock()
os.register_at_fork(
    before=_start_lock.acquire,
    after_in_parent=_start_lock.release,
    after_in_child=_start_lock.release,
)


class Child:
    """A process from the forkserver, seen from the trainer.

    The forkserver reports the pid and, in the end, the exit code on ``status_fd``.
    """

    def __init__(self, status_fd: int) -> None:
        self._status_fd = status_fd
        self.pid = 0  # the process, once is_forked has seen it; 0 before

    def is_forked(self, timeout_seconds: float) -> bool:
        """Wait until the child is forked; return whether it has been within that time."""
        if not self.pid and is_ready(self._status_fd, select.POLLIN, timeout_seconds):
            # Were the pid lost, the exit code would be taken for it.
            with interrupts_held(), contextlib.suppress(EOFError):  # it will not be forked
                self.pid = forkserver.read_signed(self._status_fd)
        return bool(self.pid)

    def has_ended(self, timeout_seconds: float) -> bool:
        """Wait for the end of a child that was forked; return whether it came within that time."""
        return is_ready(self._status_fd, select.POLLIN, timeout_seconds)

    def kill(self) -> None:
        """Kill the child, if :meth:`is_forked` has seen it and it still lives."""
        if self.pid:  # 0 means this process and its group
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Drop the descriptor; closing twice is fine, as where a signal's handler does it, too."""
        fd, self._status_fd = self._status_fd, -1
        if fd >= 0:
            os.close(fd)


def preparation() -> dict[str, Any]:
    """Return what a child takes over of this process as it is now: its directory, ``sys.path``, ...

    Raises:
        PipelineError: The working directory is gone; or this is a child that is being started.
    """
    if is_importing_main():
        raise PipelineError(_NO_GUARD)
    with _undecided_start_method():
        try:
            return spawn.get_preparation_data("overlapiter supervisor")
        except FileNotFoundError as error:
            raise PipelineError(
                f"the working directory was removed, so no process can be started in it ({error}); "
                f"change to one that is there before the iterator is made"
            ) from error


def launch(
    plan: SupervisorPlan, fds: Sequence[int], prepared: dict[str, Any], *, needs_main_module: bool
) -> Child:
    """Ask the forkserver for a supervisor. Does not wait for it.

    Its ``main`` is called with the descriptors, with a function that imports the program's
    ``__main__`` where needed, and with the plan.

    Args:
        plan: What it is to do; the forkserver imports the same modules, if it is started here.
        fds: Descriptors to duplicate into the child; they stay the caller's.
        prepared: What :func:`preparation` has returned.
        needs_main_module: Whether the child has to import it.

    Raises:
        PipelineError: It must, but cannot; or there is no forkserver.
    """
    buffer = io.BytesIO()
    data = dict(prepared)
    # Where it was removed since, or this user may not enter it, it is where the forkserver is.
    if not os.access(data["dir"], os.X_OK):
        del data["dir"]
    main_module = {key: data.pop(key) for key in _OF_MAIN_MODULE if key in data}
    main_path = main_module.get("init_main_from_path", "")
    main_name = main_module.get("init_main_from_name", "__main__")
    if not needs_main_module:
        main_module = {}
    elif main_name.split(".")[-1] == "__main__" and not os.path.exists(main_path):
        raise PipelineError(_NO_MODULE)
    # The start method of this program is none of the child's business; unpickling the first entry
    # makes the child deaf to Ctrl-C and hides the launcher, before anything of the user's runs.
    data.pop("start_method", None)
    data["authkey"] = bytes(data["authkey"])  # for connections that a dataset may open
    ForkingPickler(buffer).dump({"overlapiter": _Shield(), **data})
    ForkingPickler(buffer).dump(_ChildMain(main_module, plan))

    with _forkserver_running(plan.imports), _explained():
        return Child(_request(list(fds), buffer.getvalue()))


def _request(fds: list[int], data: bytes) -> int:
    """Send the forkserver what a child needs; return the descriptor on which it reports.

    One that has just been killed is replaced as soon as it is seen as ended.
    """
    pause_seconds = 0.002
    while True:
        status_fd = -1
        try:
            status_fd, data_fd = forkserver.connect_to_new_process(fds)
            with open(data_fd, "wb") as pipe:
                pipe.write(data)
            return status_fd
        except ConnectionError:
            if status_fd >= 0:
                os.close(status_fd)
            if pause_seconds > _ENDING_SECONDS / 2:
                raise
            time.sleep(pause_seconds)
            pause_seconds *= 2


def pickled(
    dataset: Any,
    kind: type[pickle.Pickler],
    face_of: Callable[[Any], object | None] = lambda _dataset: None,
) -> tuple[Parcel, tuple[str, ...]]:
    """Pickle a dataset, and start the forkserver meanwhile: it imports what the workers need.

    Args:
        dataset: The dataset.
        kind: The pickler.
        face_of: Gives the face that is pickled in the place of the dataset; None for none.

    Returns:
        The pickled dataset, and the modules that its workers import: Chainer's only if the dataset
        needs them. That is so for a user's own subclass of ``DatasetMixin``, too, whose pickle
        names the user's module alone; otherwise each new supervisor would import Chainer anew.

    Raises:
        DatasetPicklingError: The dataset cannot be pickled.
        PipelineError: The forkserver cannot be started.
    """
    is_chainers = start_for(dataset)
    face = face_of(dataset)
    parcel = Parcel(face or dataset, kind, name="" if face else "dataset")
    return parcel, PRELOAD if is_chainers or parcel.mentions("chainer") else PRELOAD[:1]


def start_for(dataset: object) -> bool:
    """Start the forkserver, if the dataset's class says that it imports Chainer; return whether.

    Raises:
        PipelineError: It cannot be started.
    """
    is_chainers = any(kind.__module__.split(".")[0] == "chainer" for kind in type(dataset).__mro__)
    if is_chainers:
        start_forkserver(PRELOAD)
    return is_chainers


def start_forkserver(preload: Sequence[str]) -> None:
    """Start the forkserver, unless it runs. Does not wait for its imports.

    Does nothing in a child that imports the program's ``__main__``, at the top of which it stands.

    Raises:
        PipelineError: It cannot be started.
    """
    if not is_importing_main():
        with _forkserver_running(preload):
            pass


@contextlib.contextmanager
def _forkserver_running(preload: Sequence[str]) -> Iterator[None]:
    """Start the forkserver, unless it runs; meanwhile Ctrl-C is held back, the launcher hidden."""
    with interrupts_held(), hidden_launcher(), _undecided_start_method():
        with _explained():
            _ensure_forkserver(preload)
        yield


def is_importing_main() -> bool:
    """Return whether this is a child that imports the program's ``__main__``.

    What stands at the top of it is the program's business.
    """
    return getattr(multiprocessing.current_process(), "_inheriting", False)


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PipelineError(
            f"the forkserver cannot be started or reached ({error}); look at the limits of the "
            f"job for processes and descriptors (ulimit -u, ulimit -n), and at TMPDIR, which must "
            f"be there and have a short path"
        ) from error


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C back: nothing is left half-done here, and the forkserver starts without it.

    The kernel may give the signal to another thread of this process, of NumPy for example, and
    Python then runs its handler in the main one all the same: so another handler stands in for it.
    """
    with _start_lock, _explained():
        resource_tracker.ensure_running()  # would end the hold, were it started inside
    came: list[tuple[Any, ...]] = []
    pid, handler = os.getpid(), signal.getsignal(signal.SIGINT)
    is_main_thread = threading.current_thread() is threading.main_thread()
    replaced = handler if is_main_thread and callable(handler) else None

    def note(*arguments: Any) -> None:
        if replaced is not None and os.getpid() != pid:  # another thread has forked meanwhile
            replaced(*arguments)
        came.append(arguments)

    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        if replaced is not None:
            signal.signal(signal.SIGINT, note)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        yield
    finally:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        finally:  # the handler of another signal may raise
            if replaced is not None:
                signal.signal(signal.SIGINT, replaced)
        if replaced is not None and came:
            replaced(*came[0])


@contextlib.contextmanager
def _undecided_start_method() -> Iterator[None]:
    """Leave the program free to set its start method later; preparing a child decides it."""
    vars(sys.modules["__main__"]).setdefault("__spec__", None)  # as scripts have it, but not in pdb
    is_undecided = multiprocessing.get_start_method(allow_none=True) is None
    try:
        yield
    finally:
        if is_undecided:
            multiprocessing.set_start_method(None, force=True)


def _ensure_forkserver(preload: Sequence[str]) -> None:
    server: Any = forkserver._forkserver
    if server._forkserver_pid is not None and not _can_be_asked(server):
        os.close(server._forkserver_alive_fd)  # it ends once nothing has that open
        if folder := os.path.dirname(server._forkserver_address):  # where Python puts the next one
            os.makedirs(folder, 0o700, exist_ok=True)
        server._forkserver_pid = server._forkserver_address = None
        server._forkserver_alive_fd = None
    if server._forkserver_pid is None and server._forkserver_address is None:
        # From 3.13.8 on Python would run the program in there, be it guarded or not, and with MPI.
        wanted = [name for name in server._preload_modules if name != "__main__"]
        added = [m for m in (*preload, _LAST_PRELOAD) if m not in wanted]
        forkserver.set_forkserver_preload([_FIRST_PRELOAD, *wanted, *added])
        for wrong in [each for each in sys.path if isinstance(each, os.PathLike)]:
            raise PipelineError(
                f"sys.path holds {wrong!r}, with which Python's forkserver cannot start, and where "
                f"Python finds no module; put str(...) of it there"
            )
    forkserver.ensure_running()


def _can_be_asked(server: Any) -> bool:
    """Return whether a forkserver is a child of this process, and its socket has not been removed.

    The socket lies in TMPDIR, where something may tidy up while a training lasts for days.
    """
    try:
        os.waitid(os.P_PID, server._forkserver_pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # that of the process from which this one was forked
        return False
    address = server._forkserver_address
    return address.startswith("\0") or os.path.exists(address)


def kill_stopped_forkserver(stops: Stops) -> None:
    """Kill a forkserver that is stopped, as it was at the last look, so that another one starts."""
    pid: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    if pid is not None and stops.is_still_stopped(pid):
        with contextlib.suppress(ChildProcessError, ProcessLookupError):
            # It fails where the program has waited for all its children: the pid may be another's.
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def hidden_launcher() -> Iterator[None]:
    """Hide the launcher from processes that are started meanwhile, and give them their settings."""
    with _start_lock:  # the environment is for one at a time
        settings = {**_LIBRARY_SETTINGS, **_child_settings()}
        hidden = {name: os.environ.pop(name) for name in launcher_variables()}
        added = {k: v for k, v in settings.items() if k not in os.environ}
        os.environ.update(added)
        try:
            yield
        finally:
            for name in added:
                os.environ.pop(name, None)
            os.environ.update(hidden)


def _child_settings() -> dict[str, str]:
    """Return what the environment of a child has besides."""
    return {**_MPI4PY_SETTINGS, WORLD_VARIABLE: world_of_this_process()}


def launcher_variables() -> list[str]:
    """Return the names of the launcher's variables in this process's environment."""
    return [name for name in os.environ if name.startswith(LAUNCHER_PREFIXES)]


class _Shield:
    """Shields the child while it is unpickled there; needs nothing but the standard library."""

    def __reduce__(self) -> tuple[Any, ...]:
        expression = (
            "(__import__('signal').signal(2, __import__('signal').SIG_IGN),"
            " [__import__('os').environ.pop(n) for n in list(__import__('os').environ)"
            f" if n.startswith({LAUNCHER_PREFIXES!r})],"
            f" __import__('os').environ.update({_child_settings()!r}))"
        )
        return eval, (expression,)


class _ChildMain:
    """What the child does after its preparation; takes the place of a ``Process`` object."""

    def __init__(self, main_module: dict[str, str], plan: SupervisorPlan) -> None:
        self._main_module = main_module
        self._plan = plan

    def _bootstrap(self, parent_sentinel: int) -> int:
        os.close(parent_sentinel)
        fds = forkserver.get_inherited_fds() or []
        install()  # the forkserver may be the program's own
        try:
            from overlapiter.workers.supervisor.main import main  # the trainer does without it

            return main(fds, self._import_main_module, self._plan)
        finally:
            flush_output()

    def _import_main_module(self) -> None:
        process: Any = multiprocessing.current_process()
        process._inheriting = True  # a script that starts its training in here is refused
        try:
            spawn.prepare(self._main_module)
        finally:
            del process._inheriting
