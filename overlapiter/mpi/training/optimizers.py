"""What turns a gradient into new weights, on the server or in a worker's local steps.

An update of many weights takes as long as the memory needs to bring them, or longer: NumPy goes
over them once for each operation. So a rule runs as one loop where Numba is installed, and else in
NumPy, by blocks that stay in the cache.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from overlapiter.objective import Vector

from .rules import RULES, Rule, Values

#: What :meth:`ServerOptimizer.state` returns.
State = dict[str, NDArray[Any] | int | float]
#: Applies a step, in place, to weights, gradient and each slot; the constants come last.
Apply = Callable[..., None]

#: So many weights, their gradient, two slots and what NumPy needs besides stay in 1 MiB of cache.
_BLOCK = 32_768


class ServerOptimizer:
    """An optimizer of one flat vector of float32 weights. For one thread at a time.

    Args:
        name: Of its rule.
        learning_rate: Of the first update.
        momentum: Of the rule of that name.
        means: ``"numba"``, ``"numpy"``, or ``"auto"``: Numba where it is installed.

    Attributes:
        learning_rate: Of the next update; a schedule sets it.
        n_updates: How many updates it has made.
    """

    def __init__(
        self, name: str, learning_rate: float, *, momentum: float = 0.9, means: str = "auto"
    ) -> None:
        self.n_updates = 0
        self._rule = RULES[name]
        self._momentum = momentum
        self._apply = _means(means, name)
        self._slots: tuple[Vector, ...] | None = None
        self.learning_rate = learning_rate

    def update(self, weights: Vector, gradient: Vector) -> None:
        """Make one step.

        Args:
            weights: Shape ``(n,)``, float32, contiguous; changed in place. The same ``n`` in each
                call.
            gradient: The same shape and type; not changed.
        """
        if self._slots is None:
            self._slots = tuple(0 * weights for _ in self._rule.slots)
        self.n_updates += 1
        constants = self._rule.constants(self.learning_rate, self.n_updates, self._momentum)
        self._apply(weights, gradient, *self._slots, tuple(map(np.float32, constants)))

    def state(self) -> State:
        """Return what a later run needs to go on exactly; the arrays are copies."""
        slots = zip(self._rule.slots, self._slots or (), strict=False)
        found: State = {name: slot.copy() for name, slot in slots}
        return {**found, "n_updates": self.n_updates, "learning_rate": self.learning_rate}

    def load_state(self, state: State) -> None:
        """Go on from what :meth:`state` returned, of an optimizer of the same rule."""
        self.n_updates = int(state["n_updates"])
        self.learning_rate = float(state["learning_rate"])
        self._slots = None
        if self.n_updates:
            self._slots = tuple(np.array(state[name], np.float32) for name in self._rule.slots)


# --- the means ------------------------------------------------------------------------------------


def _means(name: str, rule: str) -> Apply:
    """Return how a rule is applied to NumPy's arrays."""
    if name == "auto":
        name = "numba" if importlib.util.find_spec("numba") else "numpy"
    return _numba(rule) if name == "numba" else functools.partial(_numpy, RULES[rule])


def _numpy(rule: Rule, weights: Vector, gradient: Vector, *slots_and_constants: Any) -> None:
    """Apply a rule by blocks, whose intermediate results stay in the cache."""
    *slots, constants = slots_and_constants
    for start in range(0, len(weights), _BLOCK):
        part = slice(start, start + _BLOCK)
        olds = (weights[part], *(slot[part] for slot in slots))
        news = rule.step(olds[0], gradient[part], olds[1:], constants)
        for old, new in zip(olds, news, strict=True):
            old[...] = new


@functools.cache
def _numba(name: str) -> Apply:
    """Compile a rule into one loop, which the processor's vector units run; takes about 0.5 s."""
    import numba

    rule = RULES[name]
    # As NumPy: no product and sum in one, and a division by 0 is infinite. It releases the GIL.
    compiled = functools.partial(numba.njit, nogil=True, error_model="numpy", fastmath=False)
    loop: Apply = compiled()(_LOOPS[len(rule.slots)](compiled()(rule.step)))
    one = np.ones(1, np.float32)
    n_constants = len(rule.constants(0.0, 1, 0.0))
    loop(one, one, *[one] * len(rule.slots), (np.float32(0.5),) * n_constants)
    return loop


def _loop_0(step: Callable[..., Any]) -> Callable[..., None]:
    def loop(weights: Vector, gradient: Vector, constants: Values) -> None:
        for i in range(weights.size):
            (weights[i],) = step(weights[i], gradient[i], (), constants)

    return loop


def _loop_1(step: Callable[..., Any]) -> Callable[..., None]:
    def loop(weights: Vector, gradient: Vector, slot: Vector, constants: Values) -> None:
        for i in range(weights.size):
            weights[i], slot[i] = step(weights[i], gradient[i], (slot[i],), constants)

    return loop


def _loop_2(step: Callable[..., Any]) -> Callable[..., None]:
    def loop(weights: Vector, gradient: Vector, a: Vector, b: Vector, constants: Values) -> None:
        for i in range(weights.size):
            weights[i], a[i], b[i] = step(weights[i], gradient[i], (a[i], b[i]), constants)

    return loop


_LOOPS = (_loop_0, _loop_1, _loop_2)
