"""Updates are those of Chainer's optimizers, by whatever means they are computed."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import chainer
import numpy as np
import pytest

from overlapiter.mpi.training.optimizers import ServerOptimizer
from overlapiter.mpi.training.rules import RULES

CHAINERS = {
    "sgd": lambda rate: chainer.optimizers.SGD(lr=rate),
    "momentum": lambda rate: chainer.optimizers.MomentumSGD(lr=rate),
    "adam": lambda rate: chainer.optimizers.Adam(alpha=rate),
    "rmsprop": lambda rate: chainer.optimizers.RMSprop(lr=rate),
    "adadelta": lambda _rate: chainer.optimizers.AdaDelta(),
}
RATES = {"adadelta": 1.0}
MEANS = ("numpy", "numba")


@pytest.fixture(params=MEANS)
def means(request) -> str:
    if request.param == "numba":
        pytest.importorskip("numba")
    return request.param


def problem(n: int = 70_001, n_updates: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Return weights and one gradient for each update, more than the block of the cache."""
    random = np.random.default_rng(0)
    gradients = random.standard_normal((n_updates, n)) * 10 ** random.uniform(-6, 1, n)
    gradients[:, :100] = 0  # weights that no example touches
    return random.standard_normal(n).astype(np.float32), gradients.astype(np.float32)


def trained_by_chainer(name: str, rate: float) -> np.ndarray:
    """Return the weights after all updates by Chainer's own optimizer."""
    weights, gradients = problem()
    link = chainer.Link()
    with link.init_scope():
        link.w = chainer.Parameter(weights)
    optimizer = CHAINERS[name](rate).setup(link)
    for gradient in gradients:
        link.w.grad = gradient
        optimizer.update()
    return link.w.array


def in_float64(name: str, rate: float) -> np.ndarray:
    """Return the weights after all updates, straight from the equations of the papers."""
    weights, gradients = problem()
    x, a, b = weights.astype(float), np.zeros(len(weights)), np.zeros(len(weights))
    for t, g in enumerate(gradients.astype(float), 1):
        if name == "sgd":
            x = x - rate * g
        elif name == "momentum":
            a = 0.9 * a - rate * g
            x = x + a
        elif name == "adam":
            a, b = 0.9 * a + 0.1 * g, 0.999 * b + 0.001 * g**2
            step = rate * np.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            x = x - step * a / (np.sqrt(b) + 1e-8)
        elif name == "adadelta":
            a = 0.95 * a + 0.05 * g**2
            d = np.sqrt(b + 1e-6) / np.sqrt(a + 1e-6) * g
            x, b = x - rate * d, 0.95 * b + 0.05 * d**2
        else:
            a = 0.99 * a + 0.01 * g**2
            x = x - rate * g / (np.sqrt(a) + 1e-8)
    return x


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(
    ("expected", "tolerance"), [(trained_by_chainer, 2e-6), (in_float64, 2e-5)]
)
def test_updates_are_those_of_chainer_and_of_the_published_equations(
    name: str, means: str, expected: Callable[[str, float], np.ndarray], tolerance: float
) -> None:
    rate = RATES.get(name, 0.02)
    weights, gradients = problem()
    optimizer = ServerOptimizer(name, rate, means=means)
    for gradient in gradients:
        optimizer.update(weights, gradient)
    np.testing.assert_allclose(weights, expected(name, rate), rtol=tolerance, atol=tolerance / 10)


@pytest.mark.parametrize("name", RULES)
def test_numba_and_numpy_agree_to_the_last_bit(name: str) -> None:
    pytest.importorskip("numba")
    results = []
    for means in MEANS:
        weights, gradients = problem()
        optimizer = ServerOptimizer(name, 0.02, means=means)
        for gradient in gradients:
            optimizer.update(weights, gradient)
        results.append(weights)
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("n_before", [0, 2])
def test_a_resumed_optimizer_goes_on_exactly(name: str, n_before: int) -> None:
    weights, gradients = problem()
    whole, first, second = (ServerOptimizer(name, 0.02, means="numpy") for _ in range(3))
    expected = weights.copy()
    for gradient in gradients:
        whole.update(expected, gradient)
    for gradient in gradients[:n_before]:
        first.update(weights, gradient)
    second.load_state(pickle.loads(pickle.dumps(first.state())))
    for gradient in gradients[n_before:]:
        second.update(weights, gradient)
    np.testing.assert_array_equal(weights, expected)


def test_a_saved_state_does_not_change_with_later_updates() -> None:
    weights, gradients = problem(10)
    optimizer = ServerOptimizer("adam", 0.02, means="numpy")
    optimizer.update(weights, gradients[0])
    state = optimizer.state()
    before = state["mean"].copy()
    optimizer.update(weights, gradients[1])
    np.testing.assert_array_equal(state["mean"], before)


def test_a_schedule_changes_the_learning_rate_of_the_next_update() -> None:
    weights, gradient = np.ones(3, np.float32), np.ones(3, np.float32)
    optimizer = ServerOptimizer("sgd", 0.5, means="numpy")
    optimizer.update(weights, gradient)
    optimizer.learning_rate = 0.25
    optimizer.update(weights, gradient)
    assert weights.tolist() == [0.25] * 3
