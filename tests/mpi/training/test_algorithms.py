"""Each algorithm does what its published equations say, in any order of arrivals."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest

from overlapiter.mpi.training.algorithms import (
    make_server_side,
    make_worker_side,
    mean_of,
    take_quorum,
)
from overlapiter.mpi.training.optimizers import ServerOptimizer
from overlapiter.mpi.training.settings import Settings

N, N_STATE = 12, 3
RATE = 0.05
#: Which worker takes its next mini-batch; each is as likely to be slow as fast.
SCHEDULES = {
    1: [0] * 24,
    3: [0, 1, 2, 2, 0, 2, 2, 1, 1, 1, 1, 0, 0, 2, 1, 0, 2, 1, 2, 0, 1, 0, 2, 0],
}


def initial() -> np.ndarray:
    return np.random.default_rng(1).standard_normal(N + N_STATE).astype(np.float32)


def gradient_at(weights: np.ndarray, step: int) -> np.ndarray:
    """Return a gradient that depends on weights and mini-batch, and the statistics after it."""
    target = np.random.default_rng(step).standard_normal(N + N_STATE)
    gradient = weights - target  # of half the squared distance
    gradient[N:] = 0.9 * weights[N:] + 0.1 * target[N:]  # as BatchNormalization does it
    return gradient.astype(weights.dtype)


def sides(name: str, n_workers: int, sync_every: int, **more) -> tuple:
    """Return a server and its workers, which have begun."""
    chosen = {"optimizer": "sgd", "learning_rate": RATE, "sync_every": sync_every, **more}
    settings = Settings(algorithm=name, **chosen)
    server = make_server_side(settings, n_workers, N_STATE)
    server.begin(initial())
    workers = [make_worker_side(settings, n_workers, N_STATE) for _ in range(n_workers)]
    for worker in workers:
        worker.begin(server.weights)
    return server, workers


def exchange(server, worker, message) -> None:
    """Carry messages and replies until neither has any more."""
    while message is not None:
        message = worker.receive(server.apply(message))


def run(server, workers, schedule: list[int], first: int = 0) -> None:
    """Train with a fixed order of arrivals."""
    for step, rank in enumerate(schedule, first):
        message = workers[rank].step(gradient_at(workers[rank].weights, step))
        exchange(server, workers[rank], message)


# --- the equations, in float64, as plainly as can be ----------------------------------------------


def downpour_reference(schedule: list[int], n_workers: int, tau: int) -> tuple:
    c = initial().astype(float)
    x = [c.copy() for _ in range(n_workers)]
    total = [np.zeros(N + N_STATE) for _ in range(n_workers)]
    count = [0] * n_workers
    for step, i in enumerate(schedule):
        g = gradient_at(x[i], step)
        total[i][:N] += g[:N]
        x[i][:N] -= RATE * g[:N]
        x[i][N:] = g[N:]
        count[i] += 1
        if count[i] % tau == 0:
            c[:N] -= RATE * total[i][:N]
            c[N:] += (x[i][N:] - c[N:]) / n_workers
            x[i], total[i] = c.copy(), np.zeros(N + N_STATE)
    return c, x


def take_step(x: np.ndarray, step: int) -> None:
    """Take one local step of plain SGD."""
    g = gradient_at(x, step)
    x[:N] -= RATE * g[:N]
    x[N:] = g[N:]


def easgd_reference(schedule: list[int], n_workers: int, tau: int, beta: float = 0.9) -> tuple:
    alpha = beta / n_workers
    c = initial().astype(float)
    x = [c.copy() for _ in range(n_workers)]
    count = [0] * n_workers
    for step, i in enumerate(schedule):
        take_step(x[i], step)
        count[i] += 1
        if count[i] % tau == 0:
            old_x, old_c = x[i].copy(), c.copy()
            x[i] = old_x - alpha * (old_x - old_c)
            c = old_c - alpha * (old_c - old_x)
    return c, x


def gem_reference(schedule: list[int], n_workers: int, tau: int, eta: float = 0.01) -> tuple:
    c = initial().astype(float)
    x, before, last = ([c.copy() for _ in range(n_workers)] for _ in range(3))
    m = [np.zeros(N) for _ in range(n_workers)]
    count = [0] * n_workers
    for step, i in enumerate(schedule):
        take_step(x[i], step)
        count[i] += 1
        if count[i] % tau == 0:
            delta = -eta * (before[i][:N] - x[i][:N])
            m[i] = 0.9 * m[i] + delta
            v = c[:N] - last[i][:N]
            pi = np.clip((2 * np.abs(m[i]) - np.abs(v)) / np.abs(delta + 1e-12), 0, 5)
            last[i] = c.copy()
            c[:N] += pi * delta
            c[N:] += (x[i][N:] - c[N:]) / n_workers
            x[i], before[i] = c.copy(), c.copy()
    return c, x


REFERENCES = {
    "downpour": downpour_reference,
    "easgd": easgd_reference,
    "gem": gem_reference,
}


@pytest.mark.parametrize("tau", [1, 3])
@pytest.mark.parametrize("n_workers", SCHEDULES)
@pytest.mark.parametrize("name", REFERENCES)
def test_weights_follow_the_equations(name: str, n_workers: int, tau: int) -> None:
    schedule = SCHEDULES[n_workers]
    server, workers = sides(name, n_workers, tau)
    run(server, workers, schedule)
    centre, others = REFERENCES[name](schedule, n_workers, tau)
    np.testing.assert_allclose(server.weights, centre, rtol=1e-4, atol=1e-5)
    for worker, expected in zip(workers, others, strict=True):
        np.testing.assert_allclose(worker.weights, expected, rtol=1e-4, atol=1e-5)


def test_gem_follows_its_equations_where_workers_disagree() -> None:
    # With eta = 1 the centre moves as far as the momentum allows: the clipping binds.
    server, workers = sides("gem", 3, 2, gem_eta=1.0)
    run(server, workers, SCHEDULES[3])
    centre, _ = gem_reference(SCHEDULES[3], 3, 2, eta=1.0)
    np.testing.assert_allclose(server.weights, centre, rtol=1e-3, atol=1e-4)
    assert np.abs(server.weights - initial()).max() > 0.1


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
def test_downpour_with_one_worker_is_plain_training(kind: str) -> None:
    server, workers = sides("downpour", 1, 1, optimizer=kind)
    run(server, workers, SCHEDULES[1])
    weights, optimizer = initial(), ServerOptimizer(kind, RATE)
    for step in range(len(SCHEDULES[1])):
        gradient = gradient_at(weights, step)
        optimizer.update(weights[:N], gradient[:N])
        weights[N:] = gradient[N:]
    np.testing.assert_array_equal(server.weights[:N], weights[:N])
    np.testing.assert_allclose(server.weights[N:], weights[N:], rtol=1e-6)


def test_one_worker_moves_the_server_as_far_as_its_own_steps_led() -> None:
    server, (worker,) = sides("downpour", 1, 4)
    for step in range(3):
        worker.step(gradient_at(worker.weights, step))
    own = worker.weights.copy()
    own[:N] -= RATE * gradient_at(own, 3)[:N]
    exchange(server, worker, worker.step(gradient_at(worker.weights, 3)))
    np.testing.assert_allclose(server.weights[:N], own[:N], rtol=1e-5)


@pytest.mark.parametrize("name", REFERENCES)
def test_what_tau_has_not_completed_is_flushed(name: str) -> None:
    server, (worker,) = sides(name, 1, 5)
    assert worker.flush() is None
    assert worker.step(gradient_at(worker.weights, 0)) is None
    exchange(server, worker, worker.flush())
    assert worker.flush() is None
    centre, _ = REFERENCES[name]([0], 1, 1)
    np.testing.assert_allclose(server.weights, centre, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", REFERENCES)
def test_a_resumed_run_goes_on_exactly(name: str) -> None:
    schedule = SCHEDULES[3]
    expected, workers = sides(name, 3, 2, optimizer="adam")
    run(expected, workers, schedule)
    one, workers = sides(name, 3, 2, optimizer="adam")
    run(one, workers, schedule[:11])
    states = pickle.loads(pickle.dumps([one.state(), *(worker.state() for worker in workers)]))
    other, others = sides(name, 3, 2, optimizer="adam")
    for side, state in zip((other, *others), states, strict=True):
        side.load_state(state)
    assert other.n_updates == one.n_updates > 0
    run(other, others, schedule[11:], 11)
    np.testing.assert_array_equal(other.weights, expected.weights)


@pytest.mark.parametrize("name", REFERENCES)
def test_an_empty_message_fetches_the_centre(name: str) -> None:
    server, workers = sides(name, 3, 1)
    run(server, workers, [1])
    n_updates = server.n_updates
    np.testing.assert_array_equal(server.apply(np.empty(0, np.float32)), server.weights)
    assert server.n_updates == n_updates == 1


@pytest.mark.parametrize("name", REFERENCES)
def test_after_a_pause_only_downpour_takes_the_weights_of_the_server(name: str) -> None:
    server, workers = sides(name, 3, 2)
    run(server, workers, [0, 0])
    own = workers[1].weights.copy()
    workers[1].refresh(server.weights)
    expected = server.weights if name == "downpour" else own
    np.testing.assert_array_equal(workers[1].weights, expected)


def test_steps_that_are_still_to_be_sent_outlast_a_pause() -> None:
    server, (worker,) = sides("downpour", 1, 2)
    worker.step(gradient_at(worker.weights, 0))
    own = worker.weights.copy()
    worker.refresh(server.weights)
    np.testing.assert_array_equal(worker.weights, own)


# --- synchronous ----------------------------------------------------------------------------------


def ones(value: float) -> np.ndarray:
    return np.full(N + N_STATE, value, np.float32)


class Together:
    """A synchronous server, with what waits for it."""

    def __init__(self, n_workers: int, quorum: float = 1.0) -> None:
        more = {"synchronous": True, "quorum": quorum}
        self.side, self.workers = sides("downpour", n_workers, 1, **more)
        self.n_workers = n_workers
        self.quorum = quorum
        self.waiting: dict[int, np.ndarray] = {}

    def take(self, rank: int, message: np.ndarray) -> list[int]:
        """Take a message; return the ranks whose mean is applied now."""
        self.waiting[rank] = message.copy()
        return self.settle(self.n_workers)

    def settle(self, n_workers: int) -> list[int]:
        """Apply what waits, if that is enough of some number of workers; return its ranks."""
        self.n_workers, ranks = n_workers, sorted(self.waiting)
        ready = take_quorum(self.waiting, self.quorum, n_workers)
        if ready:
            self.side.apply(mean_of(ready))
        return ranks if ready else []


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_the_mean_is_applied_when_all_are_there(order: tuple[int, ...]) -> None:
    server = Together(3)
    side, workers = server.side, server.workers
    for step in range(4):
        gradients = [gradient_at(worker.weights, 10 * step + i) for i, worker in enumerate(workers)]
        before = side.weights.copy()
        for rank in order[:-1]:
            assert not server.take(rank, workers[rank].step(gradients[rank]))
            np.testing.assert_array_equal(side.weights, before)
        assert server.take(order[-1], workers[order[-1]].step(gradients[order[-1]])) == [0, 1, 2]
        mean = (gradients[0] + gradients[1] + gradients[2]) / np.float32(3)
        np.testing.assert_array_equal(side.weights[:N], before[:N] - np.float32(RATE) * mean[:N])
        np.testing.assert_array_equal(side.weights[N:], mean[N:])
        for worker in workers:
            worker.receive(side.weights)
    assert side.n_updates == 4


def test_equal_workers_in_synchronous_mode_are_one_worker() -> None:
    one, (single,) = sides("downpour", 1, 1)
    three = Together(3)
    for step in range(5):
        exchange(one, single, single.step(gradient_at(single.weights, step)))
        for rank, worker in enumerate(three.workers):
            three.take(rank, worker.step(gradient_at(worker.weights, step)))
        for worker in three.workers:
            worker.receive(three.side.weights)
    np.testing.assert_allclose(three.side.weights, one.weights, rtol=1e-5)


def test_a_quorum_does_not_wait_for_stragglers_whose_gradients_join_the_next_mean() -> None:
    server = Together(3, quorum=0.6)
    before = server.side.weights.copy()
    assert server.take(0, ones(1)) == []
    assert server.take(2, ones(3)) == [0, 2]
    np.testing.assert_allclose(server.side.weights[:N], before[:N] - RATE * 2, rtol=1e-6)
    assert server.take(1, ones(5)) == []  # too late for that mean
    assert server.take(0, ones(7)) == [0, 1]
    np.testing.assert_allclose(server.side.weights[:N], before[:N] - RATE * 8, rtol=1e-6)


@pytest.mark.parametrize(("share", "n_workers"), [(0.95, 20), (0.95, 4), (1.0, 7), (0.1, 3)])
def test_the_quorum_is_its_share_of_the_workers_rounded_up(share: float, n_workers: int) -> None:
    server = Together(n_workers, quorum=share)
    needed = max(1, math.ceil(share * n_workers))
    assert [bool(server.take(rank, ones(1))) for rank in range(needed)][-2:] == (
        [False, True] if needed > 1 else [True]
    )


def test_workers_that_have_left_are_not_waited_for() -> None:
    server = Together(3)
    assert server.take(0, ones(1)) == []
    assert server.take(1, ones(3)) == []
    assert server.settle(2) == [0, 1]
    assert server.take(1, ones(3)) == []
    assert server.settle(0) == [1]
    assert server.settle(0) == []
    assert server.side.n_updates == 2


def test_the_message_of_a_worker_that_died_is_not_part_of_the_mean() -> None:
    server = Together(3)
    before = server.side.weights.copy()
    server.take(0, ones(100))
    server.take(1, ones(2))
    del server.waiting[0]
    assert server.settle(2) == []
    assert server.take(2, ones(4)) == [1, 2]
    np.testing.assert_allclose(server.side.weights[:N], before[:N] - RATE * 3, rtol=1e-6)
