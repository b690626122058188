"""The serving stage of the supervisor: the process that gives other nodes what is staged here."""

from __future__ import annotations

from collections.abc import Callable

from overlapiter.workers.ipc.channel import Message
from overlapiter.workers.supervisor.deaths import Death
from overlapiter.workers.supervisor.schedule import Part
from overlapiter.workers.supervisor.team import Team, Worker


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
