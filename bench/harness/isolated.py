"""A function in a process of its own, or in ranks, so that starts are cold and memory is clean.

Request and answer are files: an orphan that kept a pipe open would block its parent.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
#: Called before each of the runs that take turns.
before_runs: list[Callable[[], None]] = [os.sync]  # what is not written yet would slow a run down
#: What a run that is asked to end has for that.
_PATIENCE_SECONDS = 30


class RunFailedError(Exception):
    """A run ended without a result. Its own messages are on standard error."""


class Program:
    """A process that is to call a function, at the top of a module, with a request.

    The function returns what JSON can hold, or None for no answer; ``command`` starts it.
    """

    def __init__(self, function: Callable, request: object, folder: str | os.PathLike[str]) -> None:
        self.name = f"{function.__module__}:{function.__name__}"
        own = Path(tempfile.mkdtemp(prefix=f"{function.__name__}-", dir=folder))
        asked, self._answer = own / "request", own / "answer"
        asked.write_bytes(pickle.dumps((function, request)))
        module = [sys.executable, "-W", "ignore", "-m", "bench.harness.isolated"]
        self.command = [*module, str(asked), str(self._answer)]

    def answer(self, status: int) -> dict:
        """Return what the function returned, once its process has ended well, with this status."""
        if status != 0 or not self._answer.exists():
            raise RunFailedError(f"{self.name} ended with {status}: {' '.join(self.command)}")
        return json.loads(self._answer.read_text())


def call(
    function: Callable, request: object, launcher: Callable = list, *,
    most_seconds: float | None = None, **environment: str,
) -> dict:  # fmt: skip
    """Call a function in a fresh process and return its answer, see :class:`Program`.

    The launcher makes of its command another one, of several ranks for example. The environment is
    what is added to that of this process. A RunFailedError says that it did not end well, or took
    more than ``most_seconds``.
    """
    with tempfile.TemporaryDirectory(prefix="bench-run-") as folder:
        program, variables = Program(function, request, folder), {**os.environ, **environment}
        command = launcher(program.command)
        process = subprocess.Popen(command, cwd=CHECKOUT, env=variables, stdin=subprocess.DEVNULL)
        try:
            return program.answer(process.wait(most_seconds))
        except subprocess.TimeoutExpired as error:
            raise RunFailedError(f"{program.name} took more than {most_seconds:g} s") from error
        finally:  # a launcher that is killed leaves its ranks behind, so it is asked to end
            process.terminate()
            try:
                process.wait(_PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def launch(
    program: list[str], n_ranks: int, n_nodes: int = 1, options: Sequence[str] = ()
) -> list[str]:
    """Return the command of Open MPI's mpiexec; each node is a group of ranks with a name."""
    beside = Path(sys.executable).with_name("mpiexec")
    as_root = ["--allow-run-as-root"] * (os.geteuid() == 0)
    # Unbound: the workers of a rank would be confined to its one core.
    usual = [*as_root, "--oversubscribe", "--bind-to", "none"]
    command = [str(beside) if beside.exists() else "mpiexec", *usual, *options]
    for number in range(n_nodes):
        name = ["env", f"OVERLAPITER_NODE=node-{number}"] if n_nodes > 1 else []
        command += [":"] * (number > 0) + ["-n", str(n_ranks), *name, *program]
    return command


def name_of(point: dict) -> str:
    """Return how a point is called in short; empty if it has no name."""
    return point.get("name") or point.get("loader", "")


def take_turns(points: list[dict], n_repeats: int, run: Callable[[dict], object]) -> list[dict]:
    """Run every point so many times; return them with what each run gave, added to their ``runs``.

    There and back, so that a drift of the machine's speed favours no point.
    """
    from tqdm import tqdm  # not in the workers, which import this module, too

    tqdm.monitor_interval = 0  # no thread beside what is measured
    n_runs = len(points) * n_repeats
    print(f"{n_runs} runs follow", file=sys.stderr, flush=True)  # there may be no progress bar
    with tqdm(total=n_runs, unit="run", disable=None) as progress:
        for repeat in range(n_repeats):
            for point in points[:: (-1) ** repeat]:
                progress.set_description(name_of(point))
                for prepare in before_runs:
                    prepare()
                point.setdefault("runs", []).append(run(point))
                progress.update()
    return points


def call_in_turns(
    points: list[dict], n_repeats: int, function: Callable[[dict], dict], **common: object
) -> list[dict]:
    """Call a function in turns with a point and ``common``, each time in a process of its own."""
    return take_turns(points, n_repeats, lambda p: call(function, {**common, **p, "runs": None}))


class EndedError(SystemExit):
    """SIGTERM has come, which is to end the program, whatever it is doing."""


def end_in_order() -> None:
    """Have SIGTERM, by which a batch system ends a job, end what this program has begun, too."""

    def end(number: int, _frame: object) -> None:
        raise EndedError(128 + number)

    signal.signal(signal.SIGTERM, end)
    # Pools of other loaders end their workers by it, at once.
    os.register_at_fork(after_in_child=lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL))


if __name__ == "__main__":
    end_in_order()
    asked, answer = map(Path, sys.argv[1:])
    function, request = pickle.loads(asked.read_bytes())
    found = function(request)
    if found is not None:
        answer.write_text(json.dumps(found))
