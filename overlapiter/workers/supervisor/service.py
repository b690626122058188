"""What the trainer holds of the supervisor's process; the rest is imported in that alone."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import socket
import sys
from typing import Any

from overlapiter.errors import PipelineError
from overlapiter.workers.ipc.channel import Channel, ChannelClosedError, Message
from overlapiter.workers.plan import SupervisorPlan
from overlapiter.workers.start.launch import (
    Child,
    interrupts_held,
    kill_stopped_forkserver,
    launch,
    preparation,
)
from overlapiter.workers.start.parcel import Parcel
from overlapiter.workers.start.processes import Stops

#: How long ending waits for each of: the supervisor is forked, it ends by itself, it is killed.
#: All of them together are less than the 2 s within which finalizing is to end every process.
_END_SECONDS = 0.6
#: While its messages are not read, how often to look whether it can still work.
_LOOK_AFTER_SECONDS = 1.0
#: Supervisors lost in a row, without a mini-batch in between, after which it is given up.
_MAX_DEATHS = 4
#: The same if none ever got as far as reading the dataset: the next one will not either.
_MAX_DEATHS_AT_START = 2


class Service:
    """The supervisor process with everything needed to start it again. Ends what it started."""

    def __init__(
        self,
        parcel: Parcel,
        plan: SupervisorPlan,
        board_fd: int,
        listener: socket.socket | None = None,
    ) -> None:
        self.owner_pid = os.getpid()  # the process that made it
        self._parcel = parcel
        self._plan = dataclasses.replace(
            plan, trainer_pid=self.owner_pid, run_number=secrets.randbits(62)
        )
        self._board_fd = board_fd
        self._listener = listener
        self._child: Child | None = None
        #: Of the first supervisor; another one finds files by relative paths where that did.
        self._prepared: dict[str, Any] | None = None
        self._stops, self._server_stops = Stops(), Stops()
        #: Supervisors lost in a row; its owner sets it to 0 where one has done something.
        self.n_deaths = 0
        #: Whether a supervisor, at any time, has read the dataset; its owner sets it.
        self.was_ready = False
        self.channel = Channel.closed()

    @interrupts_held()  # else a child might be lost
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
        self._stops = Stops()
        self._prepared = self._prepared or preparation()
        parcel = self._parcel
        # In a process that multiprocessing has spawned it has another name, too.
        main_names = {"__main__", sys.modules["__main__"].__name__}
        listener_fds = [] if self._listener is None else [self._listener.fileno()]
        try:
            self._child = launch(
                self._plan,
                [theirs.fileno(), parcel.fd, self._board_fd, *listener_fds],
                self._prepared,
                needs_main_module=any(map(parcel.mentions, main_names)),
            )
        finally:
            theirs.close()

    def restart(self) -> None:
        """Start another supervisor in the place of one that was lost.

        Raises:
            PipelineError: Too many were lost in a row.
        """
        self.n_deaths += 1
        if self.n_deaths >= (_MAX_DEATHS if self.was_ready else _MAX_DEATHS_AT_START):
            raise PipelineError(
                f"the supervisor process ended {self.n_deaths} times in a row{self._why_it_ended()}"
            )
        self.end()
        self.start()

    def _why_it_ended(self) -> str:
        if self._child is None or not self._child.is_forked(_END_SECONDS):
            return (
                ", or could not be forked at all; look at what Python's forkserver has printed, at "
                "`ulimit -u`, the limit of processes of the container (pids), and memory"
            )
        if self.was_ready:
            return ": look for 'ovl-supervisor' or 'out of memory' in the system log of this node"
        return (
            " before it had read the dataset. If your dataset's class is in the script itself, the "
            "script is imported in that process: what starts the training must stand below "
            '`if __name__ == "__main__":`. What the process printed stands above'
        )

    def send(self, message: Message) -> None:
        """Send a message; blocks while there is no room, but not for a supervisor that is stopped.

        Raises:
            ChannelClosedError: The supervisor is gone.
        """
        while True:
            try:
                self.channel.send(message, wait=False)
                return
            except BlockingIOError:
                if not self.channel.has_room(_LOOK_AFTER_SECONDS):
                    self.look()

    def receive(self, timeout_seconds: float) -> tuple[Message, list[int]] | None:
        """Return the next message and its descriptors; None if none has come within that time.

        Raises:
            ChannelClosedError: The supervisor is gone.
        """
        with contextlib.suppress(BlockingIOError):  # mostly it has come already
            return self.channel.receive(wait=False)
        return self.channel.receive() if self.channel.is_readable(timeout_seconds) else None

    def look(self) -> None:
        """Kill a supervisor that is stopped, as it was at the last look. Does not block.

        If it is not forked yet, that may be because the forkserver is stopped.
        """
        child = self._child
        if child is None:
            return
        if not child.is_forked(0):
            kill_stopped_forkserver(self._server_stops)
        elif self._stops.is_still_stopped(child.pid):
            child.kill()

    def end(self) -> None:
        """End the supervisor and with it its workers; kill it if it does not end by itself."""
        child = self._child
        if child is None:
            self.channel.close()
            return
        try:
            with contextlib.suppress(ChannelClosedError, BlockingIOError):
                self.channel.send(("close",), wait=False)
            self.channel.close()
            # A forkserver that is still importing forks it later; it then finds its channel closed.
            if child.is_forked(_END_SECONDS) and not child.has_ended(_END_SECONDS):
                child.kill()
                child.has_ended(_END_SECONDS)
        except BaseException:
            if child.is_forked(0) and not child.has_ended(0):  # an interrupt has ended the wait
                child.kill()
            raise
        finally:
            self._child = None
            child.close()
            self.channel.close()

    def close(self) -> None:
        """End the processes and drop every descriptor; in a forked child drop nothing but these."""
        try:
            if os.getpid() == self.owner_pid:
                self.end()
            else:
                self.channel.close()
        finally:  # an interrupt ends the wait, and nothing else
            os.close(self._board_fd)
            if self._listener is not None:
                self._listener.close()
            self._parcel.close()
