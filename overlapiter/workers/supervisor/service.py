"""What the trainer holds of the supervisor's process; the rest is imported in that alone."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import select
import socket
from collections.abc import Sequence
from typing import Protocol

from overlapiter.errors import PipelineError
from overlapiter.workers.ipc.channel import Channel, ChannelClosedError
from overlapiter.workers.plan import SupervisorPlan
from overlapiter.workers.start.launch import Child, launch
from overlapiter.workers.start.parcel import Parcel
from overlapiter.workers.start.processes import is_stopped

#: How long ending waits for each of: the supervisor is forked, it ends by itself, it is killed.
#: All of them together are less than the 2 s within which finalizing is to end every process.
_END_SECONDS = 0.6
_LONGEST_POLL_MS = 2**31 - 1


class HasFileno(Protocol):
    """Something to wait on."""

    def fileno(self) -> int:
        """Return its descriptor."""


def is_readable(source: HasFileno, timeout_seconds: float) -> bool:
    """Return whether there is something to read from ``source``, or its end, in time."""
    return _is_ready(source, select.POLLIN, timeout_seconds)


def is_writable(source: HasFileno, timeout_seconds: float) -> bool:
    """Return whether there is room to write to ``source``, or its other end closed, in time."""
    return _is_ready(source, select.POLLOUT, timeout_seconds)


def _is_ready(source: HasFileno, event: int, timeout_seconds: float) -> bool:
    poller = select.poll()
    poller.register(source, event)
    return bool(poller.poll(min(timeout_seconds * 1000, _LONGEST_POLL_MS)))


class Service:
    """The supervisor process with everything needed to start it again. Ends what it started."""

    def __init__(
        self,
        parcel: Parcel,
        plan: SupervisorPlan,
        board_fd: int,
        preload: Sequence[str],
        listener: socket.socket | None = None,
    ) -> None:
        self.owner_pid = os.getpid()
        self._parcel = parcel
        self._plan = dataclasses.replace(plan, run_number=secrets.randbits(62))
        self._preload = preload
        self._board_fd = board_fd
        self._listener = listener
        self._child: Child | None = None
        self._was_stopped = False
        self.channel = Channel.closed()

    def start(self) -> None:
        """Start a supervisor; does not wait for it.

        Raises:
            PipelineError: A limit of the process is in the way.
        """
        try:
            ours, theirs = Channel.pair()
        except OSError as error:
            raise PipelineError(
                f"no channel to the supervisor can be made ({error}); look at the limit of open "
                f"files (ulimit -n)"
            ) from error
        self.channel = ours
        self._was_stopped = False
        parcel = self._parcel
        listener_fds = [] if self._listener is None else [self._listener.fileno()]
        try:
            self._child = launch(
                "overlapiter.workers.supervisor.main",
                (dataclasses.replace(self._plan, trainer_pid=os.getpid()), parcel.size_bytes),
                [theirs.fileno(), parcel.fd, self._board_fd, *listener_fds],
                preload=self._preload,
                needs_main_module=parcel.mentions("__main__"),
            )
        finally:
            theirs.close()

    def look(self) -> None:
        """Kill a supervisor that is stopped, as it was at the last look. Does not block."""
        child = self._child
        if child is None or not (child.pid or (is_readable(child, 0) and child.is_forked())):
            return
        was_stopped, self._was_stopped = self._was_stopped, is_stopped(child.pid)
        if was_stopped and self._was_stopped:
            child.kill()

    def end(self) -> None:
        """End the supervisor and with it its workers; kill it if it does not end by itself."""
        if self._child is None:
            self.channel.close()
            return
        with contextlib.suppress(ChannelClosedError, BlockingIOError):
            self.channel.send(("close",), wait=False)
        self.channel.close()
        # A forkserver that is still importing forks it later; it then finds its channel closed.
        is_there = self._child.pid or (
            is_readable(self._child, _END_SECONDS) and self._child.is_forked()
        )
        if is_there and not is_readable(self._child, _END_SECONDS):
            self._child.kill()
            is_readable(self._child, _END_SECONDS)
        self._child.close()
        self._child = None

    def close(self) -> None:
        """End the processes and drop every descriptor; in a forked child drop nothing but these."""
        if os.getpid() == self.owner_pid:
            self.end()
        else:
            self.channel.close()
        os.close(self._board_fd)
        if self._listener is not None:
            self._listener.close()
        self._parcel.close()
