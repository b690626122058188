"""The equations by which optimizers change weights, each written once for NumPy and Numba.

A rule is elementwise. It takes a weight, its gradient, what is remembered of it (its slots) and
the constants of the step, all float32, and returns the new weight and slots. It works on numbers as
on arrays, so NumPy runs it on blocks, and Numba compiles it into a loop.
They are Chainer's rules, in the order of its operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

# Numbers of NumPy or Numba, or arrays of NumPy.
Value = Any
Values = tuple[Value, ...]


def _sgd(weight: Value, gradient: Value, _slots: Values, constants: Values) -> Values:
    (rate,) = constants
    return (weight - rate * gradient,)


def _momentum(weight: Value, gradient: Value, slots: Values, constants: Values) -> Values:
    (velocity,) = slots
    momentum, rate = constants
    velocity = momentum * velocity - rate * gradient
    return weight + velocity, velocity


def _adam(weight: Value, gradient: Value, slots: Values, constants: Values) -> Values:
    mean, square = slots
    gain1, gain2, rate, epsilon = constants
    mean = mean + gain1 * (gradient - mean)
    square = square + gain2 * (gradient * gradient - square)
    return weight - rate / (np.sqrt(square) + epsilon) * mean, mean, square


def _adadelta(weight: Value, gradient: Value, slots: Values, constants: Values) -> Values:
    square, square_step = slots
    rho, gain, rate, epsilon = constants
    square = rho * square + gain * gradient * gradient
    step = np.sqrt((square_step + epsilon) / (square + epsilon)) * gradient
    return weight - rate * step, square, rho * square_step + gain * step * step


def _rmsprop(weight: Value, gradient: Value, slots: Values, constants: Values) -> Values:
    (square,) = slots
    rho, gain, rate, epsilon = constants
    square = rho * square + gain * gradient * gradient
    return weight - rate * gradient / (np.sqrt(square) + epsilon), square


def _adam_constants(rate: float, n: int, _momentum: float) -> tuple[float, ...]:
    """Return the constants of the ``n``-th update: the first ones are corrected for the zeros."""
    beta1, beta2 = 0.9, 0.999
    return 1 - beta1, 1 - beta2, rate * math.sqrt(1 - beta2**n) / (1 - beta1**n), 1e-8


class Rule(NamedTuple):
    """An optimizer's equation."""

    step: Callable[[Value, Value, Values, Values], Values]  # the elementwise function
    slots: tuple[str, ...]  # the names of what it remembers for each weight; zero at first
    #: Takes the learning rate, the number of the update, counted from 1, and the momentum; returns
    #: the constants of the step. What is no argument is as in Chainer.
    constants: Callable[[float, int, float], tuple[float, ...]]


#: Sources: Adam, Kingma and Ba, arXiv 1412.6980, section 2, last paragraph; AdaDelta, Zeiler, arXiv
#: 1212.5701, algorithm 1 (with a learning rate, which is 1 there); RMSProp, Tieleman and Hinton,
#: Neural Networks for Machine Learning, lecture 6.5.
RULES = {
    "sgd": Rule(_sgd, (), lambda rate, _n, _momentum: (rate,)),
    "momentum": Rule(_momentum, ("velocity",), lambda rate, _n, momentum: (momentum, rate)),
    "adam": Rule(_adam, ("mean", "square"), _adam_constants),
    "adadelta": Rule(
        _adadelta,
        ("square", "square_step"),
        lambda rate, _n, _momentum: (0.95, 1 - 0.95, rate, 1e-6),
    ),
    "rmsprop": Rule(
        _rmsprop, ("square",), lambda rate, _n, _momentum: (0.99, 1 - 0.99, rate, 1e-8)
    ),
}
