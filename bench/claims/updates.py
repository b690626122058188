"""What one update of a model's weights costs the server of `overlapiter train`."""

import time
from functools import partial

import numpy as np

from bench.harness import isolated
from bench.harness.machine import is_installed
from bench.harness.options import CommonOptions, option
from bench.harness.tables import compared, median_of, missed, table

MEANINGS = {
    "plain": "plain NumPy", "chainer": "Chainer's optimizer", "numpy": "NumPy by blocks",
    "numba": "Numba, one pass"
}  # fmt: skip
#: The learning rates that Chainer takes if it is given none.
RATES = {"sgd": 0.01, "momentum": 0.01, "adam": 0.001, "adadelta": 1.0, "rmsprop": 0.01}
OPTIMIZERS = tuple(RATES)
#: The published gain of NumExpr over NumPy for one update of Adam is 20 ms to 6 ms.
_TARGET = 20 / 6
_MILLION = 1_000_000


class Options(CommonOptions):
    millions: list[float] = option([0.1, 1.0, 5.0, 20.0], "of weights", quick=[0.1])
    optimizers: list[str] = option(list(OPTIMIZERS), "some", quick=["adam"], known=OPTIMIZERS)
    seconds: float = option(0.3, "for which each repeats its updates", quick=0.01)


def take(request: dict) -> dict:
    """Time updates in this process; return ``update_ms``, the median."""
    random, name, means = np.random.default_rng(0), request["optimizer"], request["means"]
    weights = random.standard_normal(request["n"], np.float32)
    gradient = random.standard_normal(request["n"], np.float32) * np.float32(0.01)
    make = {"plain": _plain, "chainer": _of_chainer}.get(means, partial(_of_server, means))
    update = make(name, weights, gradient)
    update()  # the first one may be slower
    times, end = [], time.perf_counter() + request["seconds"]
    while len(times) < 5 or time.perf_counter() < end:
        start = time.perf_counter()
        update()
        times.append(time.perf_counter() - start)
    return {"update_ms": float(np.median(times)) * 1e3}


def _of_server(means, name, weights, gradient):
    from overlapiter.mpi.training.optimizers import ServerOptimizer

    return partial(ServerOptimizer(name, RATES[name], means=means).update, weights, gradient)


def _plain(name, weights, gradient):
    """Return an update as the equations are written: whole arrays, and new ones for all results."""
    from overlapiter.mpi.training.rules import RULES

    rule = RULES[name]
    news, n_updates = (weights, *(0 * weights for _ in rule.slots)), 0

    def update():
        nonlocal news, n_updates
        n_updates += 1
        constants = rule.constants(RATES[name], n_updates, 0.9)
        news = rule.step(news[0], gradient, news[1:], constants)

    return update


def _of_chainer(name, weights, gradient):
    import chainer
    from chainer import optimizers

    names = {"sgd": "SGD", "momentum": "MomentumSGD", "adam": "Adam", "adadelta": "AdaDelta"}
    link = chainer.Link()
    with link.init_scope():
        link.weights = chainer.Parameter(weights)
    link.weights.grad = gradient
    return getattr(optimizers, names.get(name, "RMSprop"))().setup(link).update


def measure(options: Options) -> dict:
    """Do all runs: Adam at every size, the others at the one that is nearest to 5 million."""
    middle = min(options.millions, key=lambda millions: abs(millions - 5))
    points = [
        {"optimizer": name, "means": means, "n": int(millions * _MILLION)}
        for name in options.optimizers
        for millions in (options.millions if name == "adam" else [middle])
        for means in MEANINGS
        if means != "numba" or is_installed("numba")
        if means != "numpy" or name == "adam"
        if means != "chainer" or millions == middle
    ]
    isolated.call_in_turns(points, options.repeats, take, seconds=options.seconds)
    return {"points": points, "targets": targets(points)}


def ms_of(point: dict) -> float:
    return median_of(point, "update_ms")


def rows(result: dict) -> list[list[str]]:
    from overlapiter.mpi.training.rules import RULES

    plain = {(p["optimizer"], p["n"]): p for p in result["points"] if p["means"] == "plain"}

    def rate(point: dict) -> str:
        n_slots = len(RULES[point["optimizer"]].slots)
        return f"{4 * point['n'] * (3 + 2 * n_slots) / ms_of(point) / 1e6:.0f}"

    columns = {
        "optimizer": "{optimizer}", "weights": lambda point: f"{point['n'] / _MILLION:g} M",
        "by": lambda point: MEANINGS[point["means"]], "ms": "{update_ms:.3g}",
        "times as fast": lambda p: f"{ms_of(plain[p['optimizer'], p['n']]) / ms_of(p):.1f}",
        "updates/s": lambda point: f"{1e3 / ms_of(point):,.0f}", "GB/s": rate
    }  # fmt: skip
    return table(result["points"], columns)


def targets(points: list[dict]) -> list[dict]:
    """Return the gain of each means over plain NumPy for Adam; the published one is wanted."""
    runs = {(p["n"], p["means"]): p["runs"] for p in points if p["optimizer"] == "adam"}
    wanted = [
        (f"Adam, {n / _MILLION:g} M, {MEANINGS[means]} / plain NumPy", "",
         _TARGET if (n, means) == (5 * _MILLION, "numba") else None,
         [(n, "plain"), (n, means)], "update_ms")
        for n, means in runs if means != "plain"
    ]  # fmt: skip
    return compared(wanted, runs)


def marks(result: dict) -> list[tuple]:
    title = "One update of Adam on the server, in one thread"
    return [
        (title, MEANINGS[p["means"]], p["n"] / _MILLION, [run["update_ms"] for run in p["runs"]])
        for p in result["points"]
        if p["optimizer"] == "adam"
    ]


TABLES = {"updates": rows}
AXES = {"xlabel": "millions of weights", "ylabel": "ms", "xscale": "log", "yscale": "log"}
faults = missed
