"""Random programs over references, beside the same programs over arrays: values and gradients, and JAX's values."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

import meshrt

SIZE = 4
# A step changes the references (or arrays) of a program: `steps(draw)` gives a function of an accessor.
Step = Callable[[Any], None]


class Written:
    """References: what a step reads and writes."""

    def __init__(self, library: Any, values: list[Any]):
        self.library, self.jnp = library, library.numpy
        self.refs = [library.new_ref(v) for v in values]

    def get(self, k: int, index: Any) -> Any:
        return self.refs[k][index]

    def set(self, k: int, index: Any, value: Any) -> None:
        self.refs[k][index] = value

    def add(self, k: int, index: Any, value: Any) -> None:
        self.library.ref.addupdate(self.refs[k], index, value)

    def loop(self, count: int, body: Callable[[Any, Any], None]) -> None:
        self.library.lax.fori_loop(0, count, lambda i, _: body(self, i), None)

    def branch(self, taken: Any, then: Step, otherwise: Step) -> None:
        self.library.lax.cond(taken, lambda: then(self), lambda: otherwise(self))

    def call(self, step: Step) -> None:
        self.library.jit(lambda: step(self))()

    def values(self) -> list[Any]:
        return [r[...] for r in self.refs]


class Pure:
    """Arrays that are replaced: the same steps, unrolled."""

    def __init__(self, library: Any, values: list[Any]):
        self.library, self.jnp, self.arrays = library, library.numpy, list(values)

    def get(self, k: int, index: Any) -> Any:
        return self.arrays[k][index]

    def set(self, k: int, index: Any, value: Any) -> None:
        self.arrays[k] = self.arrays[k].at[index].set(value)

    def add(self, k: int, index: Any, value: Any) -> None:
        self.arrays[k] = self.arrays[k].at[index].add(value)

    def loop(self, count: int, body: Callable[[Any, Any], None]) -> None:
        for i in range(count):
            body(self, i)

    def branch(self, taken: Any, then: Step, otherwise: Step) -> None:
        before = list(self.arrays)
        then(self)
        yes, self.arrays = self.arrays, before
        otherwise(self)
        self.arrays = [self.jnp.where(taken, a, b) for a, b in zip(yes, self.arrays)]

    def call(self, step: Step) -> None:
        step(self)

    def values(self) -> list[Any]:
        return self.arrays


def simple(draw: random.Random) -> Step:
    k, j = draw.randrange(2), draw.randrange(2)
    one, other = draw.randrange(SIZE), draw.randrange(SIZE)
    part = slice(draw.randrange(2), SIZE - draw.randrange(2))
    chosen = np.array(draw.sample(range(SIZE), 2), np.int32)
    steps: list[Step] = [
        lambda s: s.set(k, one, s.jnp.sin(s.get(j, other)) + s.get(k, one)),
        lambda s: s.add(k, other, s.get(j, one) * s.get(k, other)),
        lambda s: s.set(k, part, s.get(k, part) * s.get(j, part)),
        lambda s: s.add(k, chosen, s.jnp.cos(s.get(j, chosen))),
        lambda s: s.set(k, ..., s.get(j, ...) * 0.5 + s.get(k, ...)),
    ]
    return draw.choice(steps)


def step(draw: random.Random, depth: int) -> Step:
    kind = draw.choice(["simple", "simple", "loop", "branch", "call"]) if depth else "simple"
    if kind == "simple":
        return simple(draw)
    if kind == "loop":
        k, inner = draw.randrange(2), step(draw, depth - 1)

        def body(s: Any, i: Any) -> None:
            s.add(k, i, s.get(1 - k, i) * 0.3)
            inner(s)

        return lambda s: s.loop(SIZE - 1, body)
    if kind == "branch":
        k, one, two = draw.randrange(2), step(draw, depth - 1), step(draw, depth - 1)
        return lambda s: s.branch(s.get(k, 0) > 0.4, one, two)
    inner = step(draw, depth - 1)
    return lambda s: s.call(inner)


def program(steps: list[Step], kind: Any, library: Any) -> Callable[[Any], Any]:
    def run(x: Any) -> Any:
        state = kind(library, [x, library.numpy.flip(x) * 2])
        for one in steps:
            one(state)
        first, second = state.values()
        return (first * second).sum() + first[0]

    return run


@pytest.mark.sweep(2)
@pytest.mark.parametrize("seed", range(8))
def test_random_programs(seed):
    draw = random.Random(seed)
    steps = [step(draw, 2) for _ in range(4)]
    x = np.linspace(0.1, 0.9, SIZE, dtype=np.float32)
    written, pure = (program(steps, kind, meshrt) for kind in (Written, Pure))
    value, gradient = meshrt.jit(meshrt.value_and_grad(written))(x)
    expected, expected_gradient = meshrt.jit(meshrt.value_and_grad(pure))(meshrt.numpy.asarray(x))
    np.testing.assert_allclose(value, expected, rtol=1e-4)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(jax.jit(program(steps, Written, jax))(jax.numpy.asarray(x)), expected, rtol=1e-4)
    stacked = meshrt.numpy.stack([x, x * 1.1])
    mapped = meshrt.jit(meshrt.vmap(written))(stacked)
    np.testing.assert_allclose(mapped, meshrt.jit(meshrt.vmap(pure))(stacked), rtol=1e-4)
