"""The serving stage of the supervisor: the process that gives other nodes what is staged here."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Callable

from overlapiter.board import Row
from overlapiter.workers.ipc.channel import Channel, Message
from overlapiter.workers.plan import StagingPlan
from overlapiter.workers.supervisor.schedule import Part
from overlapiter.workers.supervisor.team import Death, Team, Worker


class ServingStage:
    """Keeps the server running; it is given no parts. Without peers the team is empty."""

    def __init__(self, team: Team, warn: Callable[[str], None]) -> None:
        self.team = team
        self._warn = warn
        self.is_given_up = False

    def give_up(self, reason: str) -> None:
        """Serve nothing any more: other nodes read what this one holds from the source."""
        self.is_given_up = True
        self._warn(
            f"other nodes are given no staged files any more, and read the source instead: {reason}"
        )

    def hear(self, _worker: Worker, _message: Message) -> bool:
        """Take note that the server listens; return True."""
        return True

    def redo(self, _parts: list[Part], _death: Death) -> None:
        """Do nothing: who had asked the server that died asks another one, or the source."""


def serve(staging: StagingPlan | None, listener_fd: int, channel: Channel, _row: Row) -> None:
    """Be the server for other nodes, until the channel closes."""
    assert staging is not None
    plan = staging.peers
    assert plan is not None
    from overlapiter.peers.catalogue import Catalogue
    from overlapiter.peers.server import Server

    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))  # it waits in epoll
    catalogue = Catalogue(staging.sites, staging.source, staging.real_source, staging.place)
    with socket.socket(fileno=os.dup(listener_fd)) as listener:
        server = Server(listener, plan.secret, catalogue, plan.since)

        def let_go() -> None:
            channel.receive()  # that something was removed; else its end, which ends this process
            server.let_go()

        server.watch(channel.fileno(), let_go)
        channel.send(("serving",))
        while True:
            server.take_turn()
