"""The forkserver and Ctrl-C, while workers are started and ended."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chainer.scripts import run_script

#: Programs begin with it.
BEGIN = """
        import contextlib, os, shutil, signal, threading, time
        from multiprocessing import forkserver
        import psutil
        import overlapiter

        def iterate():
            return overlapiter.OverlapIterator(list(range(80)), 4, shuffle=False, n_processes=1)

        def supervisor():
            for each in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if each.name() == "ovl-supervisor":
                        return each

        def descriptors():
            return len(os.listdir("/proc/self/fd"))
"""
BREAKS = {
    "killed": "os.kill(server._forkserver_pid, signal.SIGKILL)",
    "stopped": "os.kill(server._forkserver_pid, signal.SIGSTOP)",
    "without its socket": "os.unlink(server._forkserver_address)",
    "without its folder": "shutil.rmtree(os.path.dirname(server._forkserver_address))",
}


@pytest.mark.parametrize("how", BREAKS)
def test_a_forkserver_that_is_of_no_use_is_replaced(tmp_path: Path, how: str) -> None:
    body = f"""
        if __name__ == "__main__":
            iterator, server = iterate(), forkserver._forkserver
            print(next(iterator))
            child = supervisor()
            {BREAKS[how]}
            child.kill()
            print([next(iterator)[0] for _ in range(4)])
            print(next(iterate()))
    """
    done = run_script(tmp_path, BEGIN + body)
    assert done.stdout.splitlines() == ["[0, 1, 2, 3]", "[4, 8, 12, 16]", "[0, 1, 2, 3]"]
    assert done.stderr == ""


def test_interrupts_amid_the_start_of_workers_leave_nothing_half_done(tmp_path: Path) -> None:
    """There is a second thread, and the kernel gives the signal to that."""
    body = """
        def interrupt_next(n):
            ask, left = forkserver.connect_to_new_process, [None] * n

            def interrupt_and_ask(fds):
                if left:
                    left.pop()
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(0.01)
                return ask(fds)

            forkserver.connect_to_new_process = interrupt_and_ask

        def attempt(call):
            while True:
                try:
                    return call()
                except KeyboardInterrupt:
                    print("interrupted")

        if __name__ == "__main__":
            threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
            iterator = iterate()
            print(next(iterator), threading.active_count() > 1)
            interrupt_next(5)
            before = descriptors()
            supervisor().kill()
            for _ in range(6):
                print(attempt(lambda: next(iterator)))
            print(descriptors() - before)
            print(next(attempt(iterate)))
    """
    done = run_script(tmp_path, BEGIN + body)
    lines = done.stdout.splitlines()
    assert [line for line in lines if line != "interrupted"] == [
        "[0, 1, 2, 3] True", *(str([*range(4 * n, 4 * n + 4)]) for n in range(1, 7)), "0",
        "[0, 1, 2, 3]",
    ]  # fmt: skip
    assert lines[: lines.index("0")].count("interrupted") == 1  # then the supervisor was there
    assert lines.count("interrupted") == 5
    assert done.stderr == ""


def test_an_interrupt_amid_finalize_leaves_nothing(tmp_path: Path) -> None:
    body = """
        if __name__ == "__main__":
            iterator = iterate()
            next(iterator)  # else its supervisor may be forked later, and taken for the other's
            iterator.finalize()
            before = descriptors()
            iterator = iterate()
            next(iterator)
            child = supervisor()
            child.suspend()  # so that its end is waited for
            signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            try:
                iterator.finalize()
            except KeyboardInterrupt:
                print("interrupted")
            iterator.finalize()
            print(descriptors() - before)
            print(psutil.wait_procs([child], 10)[1])
    """
    done = run_script(tmp_path, BEGIN + body)
    assert (done.stdout.splitlines(), done.stderr) == (["interrupted", "0", "[]"], "")


def test_an_interrupt_before_the_end_is_waited_for_leaves_nothing(tmp_path: Path) -> None:
    body = """
        from overlapiter.workers.ipc.channel import Channel

        def interrupted(*_, **__):
            Channel.send = send
            raise KeyboardInterrupt

        if __name__ == "__main__":
            iterator = iterate()
            next(iterator)
            child = supervisor()
            child.suspend()  # so that it does not end by itself
            send, Channel.send = Channel.send, interrupted
            try:
                iterator.finalize()
            except KeyboardInterrupt:
                print("interrupted")
            print(psutil.wait_procs([child], 10)[1])
    """
    done = run_script(tmp_path, BEGIN + body)
    assert (done.stdout.splitlines(), done.stderr) == (["interrupted", "[]"], "")
