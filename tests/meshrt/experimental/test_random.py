"""The generator with a state, beside JAX."""

from __future__ import annotations

from typing import Any

import jax.experimental.random  # noqa: F401  (programs name it)
import numpy as np
import pytest

import meshrt
import meshrt.experimental.random
from tests.meshrt.beside import assert_alike

PROGRAMS = {
    "floats": lambda l, g: [g.random(), g.random(4), g.uniform(1, [2.0, 3.0]), g.uniform(size=(2, 2), dtype="float16")],
    "normal floats": lambda l, g: [g.normal(), g.normal(np.float32([1, 2]), 2), g.normal(size=3, dtype="bfloat16")],
    "integers": lambda l, g: [g.integers(10), g.integers(2, 9, size=(2,)), g.integers(0, [3, 4])],
    "keys": lambda l, g: [l.random.key_data(k) for k in (g.key(), g.key(2), g.key((2, 3)))],
    "children": lambda l, g: [child.uniform() for child in g.spawn(2)],
    "mapped": lambda l, g: l.vmap(lambda g, x: g.normal(x), in_axes=(0, None))(g.split(3), 1.0),
    "split, not mapped": lambda l, g: g.split(3).uniform(),
    "in jit": lambda l, g: [l.jit(g.uniform)(), l.jit(lambda g: g.normal())(g), g.uniform()],
    "in a loop": lambda l, g: l.lax.scan(lambda c, _: (c, g.uniform()), 0, None, length=3)[1],
    "made in jit": lambda l, g: l.jit(lambda seed: made(l, seed).uniform())(3),
    "made in jit without a seed": lambda l, g: l.jit(lambda: made(l).uniform())(),
    "returned from jit": lambda l, g: l.jit(lambda: made(l, 0))(),
    "another algorithm": lambda l, g: made(l, 3, impl="rbg").integers(100),
    "text": lambda l, g: [repr(g), str(l.tree_util.tree_structure(g))],
    "a key of words": lambda l, g: type(g)(l.random.PRNGKey(0), l.new_ref(0)),
    "a counter that is no reference": lambda l, g: type(g)(l.random.key(0), 0),
    "a size that is no integer": lambda l, g: g.uniform(size=2.5),
}


def made(l: Any, *seed: int, **options: Any) -> Any:
    return l.experimental.random.stateful_rng(*seed, **options)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_jax(name):
    assert_alike(lambda l: PROGRAMS[name](l, made(l, 42)))


def test_without_a_seed_generators_differ():
    first, second = (meshrt.experimental.random.stateful_rng().key() for _ in range(2))
    assert (meshrt.random.key_data(first) != meshrt.random.key_data(second)).any()
