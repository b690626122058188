"""Ctrl-C at any moment: KeyboardInterrupt in the trainer, and nothing from the workers."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from overlapiter import OverlapIterator
from overlapiter.workers.supervisor.service import Service
from tests.chainer.iterator_datasets import Slow, indices_of
from tests.chainer.scripts import Program, are_gone

PROGRAM = """
    import sys, time
    import overlapiter
    from tests.chainer.iterator_datasets import Gated, Slow

    def main():
        {before}
        try:
            print("ready", flush=True)
            while True:
                {during}
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        {after}
        sys.exit(5)

    if __name__ == "__main__":
        main()
"""

MAKE = "it = overlapiter.OverlapIterator({dataset}, 4, n_processes=2)"
STUCK = MAKE.format(dataset="Gated(8, 0, 'never')")
STEADY = MAKE.format(dataset="Slow(40)")

MOMENTS = {
    "start-up": ("it = None", STEADY, "del it"),
    "the first mini-batch": (STUCK, "next(it)", "it.finalize()"),
    "the steady state": (f"{STEADY}; next(it)", "next(it)", "it.finalize()"),
    "the trainer's own work": (f"{STEADY}; next(it)", "time.sleep(1)", "next(it); it.finalize()"),
    "no finalize": (f"{STEADY}; next(it)", "next(it)", "pass"),
    "the end": (STEADY, f"it.finalize(); {STEADY}; next(it)", "it.finalize(); it.finalize()"),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_ctrl_c_ends_the_program_as_it_asks_for_and_no_worker_speaks(
    tmp_path: Path, moment: str
) -> None:
    before, during, after = MOMENTS[moment]

    with Program(tmp_path, PROGRAM.format(before=before, during=during, after=after)) as program:
        program.wait_for("ready")
        children = program.descendants()
        program.interrupt()
        program.wait_for("interrupted")
        children += program.descendants()
        status = program.wait()
        assert are_gone(children)
        assert (status, program.errors()) == (5, "")


def test_ctrl_c_that_nobody_catches_shows_one_traceback(tmp_path: Path) -> None:
    body = f"""
    import overlapiter
    from tests.chainer.iterator_datasets import Gated

    if __name__ == "__main__":
        {STUCK}
        print("ready", flush=True)
        next(it)
    """
    with Program(tmp_path, body) as program:
        program.wait_for("ready")
        children = program.descendants()
        program.interrupt()
        status = program.wait()
        assert are_gone(children)
        assert status == -signal.SIGINT
        assert program.errors().count("Traceback") == 1
        assert program.errors().splitlines()[-1] == "KeyboardInterrupt"


def test_ctrl_c_reaches_processes_that_the_program_itself_gets_from_the_forkserver(
    tmp_path: Path,
) -> None:
    body = """
    import multiprocessing, time
    import overlapiter
    from tests.chainer.iterator_datasets import Pixels

    def wait(connection):
        try:
            connection.send("waiting")
            while True:
                time.sleep(1)
        except KeyboardInterrupt:
            connection.send("interrupted")

    if __name__ == "__main__":
        it = overlapiter.OverlapIterator(Pixels(4), 2, n_processes=1)
        next(it)
        context = multiprocessing.get_context("forkserver")
        ours, theirs = context.Pipe()
        process = context.Process(target=wait, args=(theirs,))
        process.start()
        ours.recv()
        try:
            print("ready", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            print(ours.recv(), flush=True)
    """
    with Program(tmp_path, body) as program:
        program.wait_for("ready")
        program.interrupt()
        program.wait_for("interrupted")
        assert (program.wait(), program.errors()) == (0, "")


def test_interrupts_at_many_moments_lose_no_mini_batch() -> None:
    def expected(number: int) -> list[int]:
        return [4 * number % 40 + k for k in range(4)]

    taken = []
    is_over = threading.Event()
    is_taking = False

    def interrupt_often() -> None:
        while not is_over.wait(0.03):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def interrupt(*_: object) -> None:
        nonlocal is_taking
        if is_taking:  # else the test itself would be interrupted
            is_taking = False
            raise KeyboardInterrupt

    with OverlapIterator(Slow(40), 4, shuffle=False, n_processes=2) as iterator:
        next(iterator)
        iterator.reset()
        before = signal.signal(signal.SIGINT, interrupt)
        thread = threading.Thread(target=interrupt_often)
        thread.start()
        n_interrupts = 0
        try:
            while len(taken) < 100 or n_interrupts <= 10:
                try:
                    is_taking = True
                    batch = next(iterator)
                    is_taking = False
                    taken.append(indices_of(batch))
                except KeyboardInterrupt:
                    n_interrupts += 1
                    # The interrupt may have come after the mini-batch was taken.
                    position = iterator.epoch * 40 + iterator.current_position
                    if position == 4 * (len(taken) + 1):
                        taken.append(expected(len(taken)))
        finally:
            is_over.set()
            thread.join()
            signal.signal(signal.SIGINT, before)

    assert taken == [expected(number) for number in range(len(taken))]


def test_an_interrupt_that_loses_the_first_message_holds_up_no_mini_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    receive = Service.receive

    def receive_and_lose(service: Service, timeout_seconds: float) -> None:
        if receive(service, timeout_seconds) is not None:
            monkeypatch.undo()
            raise KeyboardInterrupt

    with OverlapIterator(Slow(8), 4, shuffle=False, n_processes=1) as iterator:
        monkeypatch.setattr(Service, "receive", receive_and_lose)
        with pytest.raises(KeyboardInterrupt):
            next(iterator)
        assert indices_of(next(iterator)) == [0, 1, 2, 3]
