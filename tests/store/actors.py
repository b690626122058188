"""Processes for what opens an index: one that forks, as pytest does, must never do so."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

import pytest

#: A process, stopped inside a generator function.
Steps = Callable[[], Iterator[Any]]


class Actor:
    """A forked process that runs a generator function, one step whenever it is asked to.

    Args:
        steps: The function; what it yields can be pickled.
    """

    def __init__(self, steps: Steps) -> None:
        orders_fd, self._orders_fd = os.pipe()
        self._answers_fd, answers_fd = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.close(self._orders_fd)
            with open(answers_fd, "wb") as answers:
                _play(steps, orders_fd, answers)
            os._exit(0)
        os.close(orders_fd)
        os.close(answers_fd)
        self._answers = open(self._answers_fd, "rb")  # noqa: SIM115  # closed by end()

    def begin(self) -> None:
        """Have the next step done; see :meth:`answer`."""
        os.write(self._orders_fd, b".")

    def answer(self) -> Any:
        """Wait for the step that was begun, and return what it yields.

        Returns:
            None after the last step.

        Raises:
            EOFError: The process has been killed.
        """
        kind, value = pickle.load(self._answers)
        if kind == "failed":
            pytest.fail(f"in process {self.pid}:\n{value}", pytrace=False)
        return value

    def step(self) -> Any:
        """Have the next step done, and return what it yields."""
        self.begin()
        return self.answer()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; wait until the process has stopped, if it is SIGSTOP."""
        os.kill(self.pid, number)
        if number == signal.SIGSTOP:
            os.waitpid(self.pid, os.WUNTRACED)

    def kill(self) -> None:
        """Kill the process, if it has not ended; once is enough."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            os.close(self._orders_fd)
            self._answers.close()
            self.pid = 0

    def __enter__(self) -> Actor:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Kill it."""
        self.kill()


@contextlib.contextmanager
def stopped(actors: Sequence[Actor]) -> Iterator[None]:
    """Stop processes wherever they are, so that what they have done can be looked at."""
    for actor in actors:
        actor.signal(signal.SIGSTOP)
    yield
    for actor in actors:
        actor.signal(signal.SIGCONT)


def _play(steps: Steps, orders_fd: int, answers: BinaryIO) -> None:
    """Do a step for each order, until there are no more of either."""
    try:
        play = steps()
        while os.read(orders_fd, 1):
            try:
                answer = "done", next(play, None)
            except BaseException:
                answer = "failed", traceback.format_exc()
            pickle.dump(answer, answers)
            answers.flush()
    finally:
        os._exit(0)


def apart(function: Callable[[], Any]) -> Any:
    """Return what a function returns in a process of its own."""

    def steps() -> Iterator[Any]:
        yield function()

    with Actor(steps) as actor:
        return actor.step()


def in_a_process(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test in a process of its own, which may open an index since it does not fork."""

    @functools.wraps(test)
    def wrapper(**fixtures: Any) -> None:
        apart(lambda: test(**fixtures))

    return wrapper
