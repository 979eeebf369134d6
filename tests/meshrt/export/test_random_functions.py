"""Random functions of random types and symbolic shapes: exported, through a file, against the function itself."""

from __future__ import annotations

import random

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import export, lax

DTYPES = (np.float32, np.float16, jnp.bfloat16, np.int32, np.uint8, np.int8, np.bool_, np.complex64)
SHAPES = ("a", "a, 3", "2*a, b", "b, a + 1", "a, b, 2")
# Each keeps the rank, so that they follow one another in any order.
STEPS = {
    "negate": lambda x: jnp.logical_not(x) if x.dtype == bool else -x,
    "add": lambda x: x + x,
    "scale": lambda x: x * jnp.asarray(2, x.dtype),
    "by its size": lambda x: x + jnp.asarray(x.shape[0], np.int32).astype(x.dtype),
    "reverse": lambda x: x[::-1],
    "join": lambda x: jnp.concatenate([x, x[:1]]),
    "cut": lambda x: x[: x.shape[0] // 2 + 1],
    "sum over the last": lambda x: x + jnp.sum(x, axis=-1, keepdims=True).astype(x.dtype),
    "cumulate": lambda x: x if x.dtype == bool else jnp.cumsum(x, axis=0).astype(x.dtype),
    "choose": lambda x: jnp.where(x == x[:1], x, jnp.zeros_like(x)),
    "pad": lambda x: jnp.pad(x, [(1, 0)] + [(0, 0)] * (x.ndim - 1)),
    "flatten and back": lambda x: x.reshape(-1).reshape(x.shape),
    "turn": lambda x: x.T.T,
    "repeat": lambda x: jnp.repeat(x, 2, axis=0),
    "gather": lambda x: x[jnp.array([0, 0])],
    "loop": lambda x: lax.fori_loop(0, x.shape[0], lambda i, c: c + x[:1], x),
    "map": lambda x: meshrt.vmap(lambda row: row + row)(x),
    "sort": lambda x: x if x.dtype.kind == "c" else jnp.sort(x, axis=0),
}


def differences(seed):
    """Exports one random function, and compares calls with several sizes."""
    rng = random.Random(seed)
    names = rng.choices(list(STEPS), k=rng.randrange(1, 5))
    dtype, shape = np.dtype(rng.choice(DTYPES)), rng.choice(SHAPES)

    def function(x):
        for name in names:
            x = STEPS[name](x)
        return x

    symbolic = export.symbolic_shape(shape)
    exported = export.export(meshrt.jit(function))(meshrt.ShapeDtypeStruct(symbolic, dtype))
    exported = export.deserialize(exported.serialize())
    for a, b in ((1, 1), (2, 5), (4, 3)):
        sizes = [n if isinstance(n, int) else int(n.evaluate({"a": a, "b": b})) for n in symbolic]
        x = np.random.default_rng(seed).integers(0, 3, sizes).astype(dtype)
        found, expected = exported.call(x), function(jnp.asarray(x))
        said = f"{names} of {dtype.name}[{shape}], a = {a}, b = {b}"
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape), said
        wide = np.complex64 if dtype.kind == "c" else np.float32
        np.testing.assert_allclose(
            np.asarray(found).astype(wide), np.asarray(expected).astype(wide), rtol=2e-2, err_msg=said
        )


@pytest.mark.parametrize("seed", range(6))
def test_random_functions(seed):
    differences(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(6, 306, 10))
def test_more_random_functions(first):
    for seed in range(first, first + 10):
        differences(seed)
