"""Random functions of random types and symbolic shapes through files, ours and JAX's in both directions: against the
functions themselves, called directly."""

from __future__ import annotations

import random
from types import SimpleNamespace

import jax
import jax.export
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy
from meshrt import export

OURS = SimpleNamespace(jit=meshrt.jit, np=meshrt.numpy, lax=meshrt.lax, nn=meshrt.nn, export=export, grad=meshrt.grad,
                       vmap=meshrt.vmap, random=meshrt.random, spec=meshrt.ShapeDtypeStruct)  # fmt: skip
JAX = SimpleNamespace(jit=jax.jit, np=jax.numpy, lax=jax.lax, nn=jax.nn, export=jax.export, grad=jax.grad,
                      vmap=jax.vmap, random=jax.random, spec=jax.ShapeDtypeStruct)  # fmt: skip
DTYPES = ("float32", "float16", "bfloat16", "int32", "uint8", "int8", "int16", "uint32", "bool", "complex64",
          "float8_e4m3fn", "float8_e5m2", "int4")  # fmt: skip
NARROW = ("float8", "int4")
SHAPES = (
    "a, 3",
    "2*a, b",
    "b, a + 1",
    "a, b, 2",
    "b, max(a, 2), a",
    "a, floordiv(b + 3, 2), b",
    "3*a, mod(b, 3) + 1, b",
)


def is_float(x):
    return x.dtype.kind == "f" or x.dtype.name == "bfloat16"


def of_floats(f, otherwise=lambda m, x: x):
    """A step for floats; other types take another one."""
    return lambda m, x: f(m, x) if is_float(x) else otherwise(m, x)


def real(f):
    return lambda m, x: x if x.dtype.kind == "c" else f(m, x)


# Steps keep the type, and at least two dimensions.
STEPS = {
    "tanh": of_floats(lambda m, x: m.np.tanh(x)),
    "softmax": of_floats(lambda m, x: m.nn.softmax(x, axis=-1)),
    "normalise": of_floats(lambda m, x: (x - x.mean(0)) / (1 + x.std(0))),
    "gelu": of_floats(lambda m, x: m.nn.gelu(x)),
    "logsumexp": of_floats(lambda m, x: x + m.nn.logsumexp(x, axis=0, keepdims=True)),
    "product": of_floats(lambda m, x: m.np.einsum("i...,i...->i...", x, x[::-1]) / x.shape[0]),
    "matmul": of_floats(lambda m, x: x.reshape(x.shape[0], -1) @ x.reshape(x.shape[0], -1).T / 8),
    "by its size": lambda m, x: x + m.np.asarray(x.shape[0] % 3, "int32").astype(x.dtype),
    "roll": lambda m, x: m.np.roll(x, x.shape[0] // 2, axis=0),
    "reverse": lambda m, x: x[::-1],
    "every second": lambda m, x: x[::2],
    "join": lambda m, x: m.np.concatenate([x, x[:1], x[-1:]]),
    "cut": lambda m, x: x[: x.shape[0] // 2 + 1],
    "sum": lambda m, x: x + m.np.sum(x, axis=-1, keepdims=True).astype(x.dtype),
    "largest": real(lambda m, x: m.np.maximum(x, x.max(0, keepdims=True))),
    "where it is": real(lambda m, x: x + m.np.argmax(x, axis=0, keepdims=True).astype(x.dtype)),
    "cumulate": lambda m, x: m.np.cumsum(x, axis=0).astype(x.dtype),
    "choose": lambda m, x: m.np.where(x == x[:1], x, m.np.zeros_like(x)),
    "pad": lambda m, x: m.np.pad(x, [(1, 2)] + [(0, 0)] * (x.ndim - 1)),
    "stack": lambda m, x: m.np.stack([x, x], 1).reshape(x.shape[0], -1),
    "turn": lambda m, x: m.np.swapaxes(x, 0, 1),
    "repeat": lambda m, x: m.np.repeat(x, 2, axis=0),
    "gather": lambda m, x: x[m.np.arange(x.shape[0])[::-1] // 2],
    "scatter": lambda m, x: x.at[m.np.arange(x.shape[0]) // 2].set(x),
    "add at": lambda m, x: x if x.dtype == bool else x.at[0].add(x[-1]),
    "loop": lambda m, x: m.lax.fori_loop(0, x.shape[0], lambda i, c: c + x[:1], x),
    "scan": lambda m, x: m.lax.scan(lambda c, row: (c + row, c), x[0], x)[1],
    "branch": lambda m, x: m.lax.cond(m.np.asarray(x.shape[0]) > 2, lambda x: x + x, lambda x: x, x),
    "map": lambda m, x: m.vmap(lambda row: row + row)(x),
    "sort": real(lambda m, x: m.np.sort(x, axis=0)),
    "triangle": lambda m, x: m.np.triu(x.reshape(x.shape[0], -1)),
    "dynamic slice": lambda m, x: m.lax.dynamic_slice_in_dim(x, x.shape[0] // 2, 1, 0) + x,
    "iota": lambda m, x: x + m.lax.broadcasted_iota("int32", x.shape, 0).astype(x.dtype),
    "flags": lambda m, x: m.np.where((x != 0).any(0), x, m.np.ones_like(x)),
    "round trip": lambda m, x: x.astype("float32").astype(x.dtype) if x.dtype.kind != "c" else m.np.conj(x),
}


def written(names, m):
    def function(x, scale):
        for name in names:
            x = STEPS[name](m, x)
        return {"x": x, "sum": (x.astype("float32") if x.dtype.kind != "c" else x).sum() * scale}

    return function


def drawn(seed):
    rng = random.Random(seed)
    names = rng.choices(list(STEPS), k=rng.randrange(1, 4))
    return names, rng.choice(DTYPES), rng.choice(SHAPES)


def inputs(seed, symbolic, dtype):
    for a, b in ((2, 1), (1, 5), (4, 3)):
        sizes = [n if isinstance(n, int) else int(n.evaluate({"a": a, "b": b})) for n in symbolic]
        values = np.random.default_rng(seed).integers(0, 3, sizes)
        if dtype.startswith(("float", "bfloat", "complex")):
            values = values + np.random.default_rng(seed + 1).uniform(-1, 1, sizes)
        yield f"a = {a}, b = {b}", values.astype(np.dtype(dtype))


def same(found, expected, said, dtype):
    wide = np.complex64 if dtype.startswith("complex") else np.float32
    tolerance = 2e-4 if dtype in ("float32", "complex64") else 0.2 if dtype.startswith(NARROW) else 3e-2
    for key in ("x", "sum"):
        one, other = np.asarray(found[key]), np.asarray(expected[key])
        assert (one.dtype, one.shape) == (other.dtype, other.shape), f"{key}: {said}"
        one, other = one.astype(wide), other.astype(wide)
        atol = tolerance * max(1.0, float(np.abs(other[np.isfinite(other)]).max(initial=0)))
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=atol, err_msg=f"{key}: {said}")


def differences(seed):
    """Exports a random function with meshrt and with JAX, lets each read the other's file, and compares calls."""
    names, dtype, shape = drawn(seed)
    # (A loop of symbolic length has no derivative.)
    order = 1 if dtype in ("float32", "float16", "bfloat16") and "loop" not in names else 0
    made = []
    for m in (OURS, JAX):
        specs = m.spec(m.export.symbolic_shape(shape), np.dtype(dtype)), m.spec((), np.dtype("float32"))
        jitted = m.jit(written(names, m))
        made.append((jitted, m.export.export(jitted, platforms=["cpu"])(*specs)))
    (ours, exported), (theirs, their_exported) = made
    roads = {
        "ours": export.deserialize(exported.serialize(vjp_order=order)),
        "ours, read by JAX": jax.export.deserialize(export.to_jax(exported, vjp_order=order)),
        "JAX's, read by us": export.from_jax(their_exported.serialize(vjp_order=order), trusted=True),
    }
    scale = np.float32(0.5)
    for sizes, x in inputs(seed, export.symbolic_shape(shape), dtype):
        expected = ours(x, scale)
        for road, found in roads.items():
            said = f"{road}: {names} of {dtype}[{shape}], {sizes}, seed {seed}"
            same(found.call(x, scale), expected, said, dtype)
            if order:
                grad = (jax if "by JAX" in road else meshrt).grad(lambda x: found.call(x, scale)["sum"])
                slope, wanted = grad(x), meshrt.grad(lambda x: ours(x, scale)["sum"])(x)
                same({"x": slope, "sum": 0}, {"x": wanted, "sum": 0}, f"slope of {said}", dtype)
        same(theirs(x, scale), expected, f"JAX: {names} of {dtype}[{shape}], {sizes}, seed {seed}", dtype)


@pytest.mark.parametrize("seed", range(8))
def test_random_round_trips(seed):
    differences(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(8, 208, 10))
def test_more_random_round_trips(first):
    for seed in range(first, first + 10):
        differences(seed)
