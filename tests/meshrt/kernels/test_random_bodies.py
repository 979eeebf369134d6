"""Random kernels of random operations: the module for GPUs, the loop, the simulator, and the operations themselves."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import meshrt
from meshrt import lax
from tests.meshrt.kernels.programs import OURS
from tests.meshrt.kernels.test_evaluated import evaluated

pl, jnp, pltpu = OURS.pl, OURS.np, OURS.pltpu

DTYPES = ("float32", "bfloat16", "int32", "int8", "uint8")


def factors(random, size):
    """A random shape of so many elements."""
    divisors = [n for n in range(1, size + 1) if size % n == 0]
    first = int(random.choice(divisors))
    return (first, size // first) if random.rand() < 0.7 else (size,)


def with_product(x):
    x = x.reshape(x.shape[0], -1)
    return jnp.dot(x, x.T, preferred_element_type=np.float32 if x.dtype.kind not in "iu" else np.int32)


def over_rows(x):
    return lax.scan(lambda c, row: (c + row, c - row), x[0], x)[1]


def counted_rows(x):
    return lax.while_loop(lambda c: jnp.any(c[0] < 3), lambda c: (c[0] + 1, c[1] + c[1]), (abs(x).max() * 0, x))[1]


def scattered(x):
    places = jnp.arange(x.shape[0] + 1, dtype=np.int32) * 2 - 1
    return x.at[places].add(jnp.ones((x.shape[0] + 1, *x.shape[1:]), x.dtype), mode="drop")


def step(random, rank, axis):
    """A random operation on a value of so many dimensions, one of which is `axis`."""
    other = int(random.randint(rank))
    order, shift = tuple(random.permutation(rank).tolist()), int(random.randint(-3, 4))
    low, high, between = random.randint(0, 3, 3).tolist()
    padding = [(low, high, between) if d == axis else (0, 0, 0) for d in range(rank)]
    every = tuple(slice(None, None, 2) if d == axis else slice(None) for d in range(rank))
    return [
        lambda x: jnp.flip(x, axis), lambda x: jnp.roll(x, shift, axis), lambda x: jnp.sort(x, axis),
        lambda x: jnp.argsort(x, axis), lambda x: jnp.cumsum(x, axis, dtype=x.dtype),
        lambda x: lax.cummax(x, axis=axis, reverse=shift > 0), lambda x: x.reshape(factors(random, x.size)),
        lambda x: jnp.transpose(x, order), lambda x: jnp.concatenate([x, x * 2], axis),
        lambda x: lax.pad(x, np.asarray(3, x.dtype)[()], padding), lambda x: x[every],
        lambda x: x - x.max(axis, keepdims=True), lambda x: jnp.stack([x, -x], other),
        lambda x: jnp.take(x, abs(jnp.arange(4, dtype=np.int32) - 2), axis=axis, mode="clip"),
        lambda x: jnp.where(x > 1, x, jnp.flip(x, other)), lambda x: x.astype(np.float32) * 0.5,
        lambda x: lax.top_k(x, 1)[1], with_product, over_rows, scattered, counted_rows,
        lambda x: jnp.repeat(x, 2, axis), lambda x: x.sum(axis, keepdims=True, dtype=x.dtype),
        lambda x: jnp.take_along_axis(x, jnp.argsort(x, axis), axis), lambda x: lax.argmax(x, axis, np.int32)[None],
        lambda x: lax.reduce(x, np.asarray(0, x.dtype)[()], lambda a, b: a + b + 0, (axis,))[None],
    ][random.randint(26)]  # fmt: skip


def body_of(random, kind):
    """(a random function of a block, the type of its result)."""
    steps = []
    for _ in range(random.randint(1, 5)):
        rank = len(kind.shape)
        f = step(random, rank, int(random.randint(rank)))
        state = random.get_state()

        def again(x, f=f, state=state):  # a step may draw when it is applied
            random.set_state(state)
            return f(x)

        found = meshrt.eval_shape(again, kind)
        if found.shape and math.prod(found.shape) <= 512 and len(found.shape) <= 4:
            kind = found
            steps.append(again)

    def body(x):
        for f in steps:
            x = f(x)
        return x

    return body, kind


def drawn(seed):
    """(operand, block, which dimension of the grid walks along which of the array, body, type of its result)."""
    random = np.random.RandomState(seed)
    rank = random.randint(1, 4)
    block, counts = random.randint(1, 7, rank).tolist(), random.randint(1, 3, rank).tolist()
    dtype = jnp.dtype(random.choice(DTYPES))
    x = random.randint(-3 if dtype.kind != "u" else 0, 5, [b * n for b, n in zip(block, counts)]).astype(dtype)
    order = random.permutation(rank).tolist()
    body, kind = body_of(random, meshrt.ShapeDtypeStruct(tuple(block), dtype))
    return x, block, counts, order, body, kind


@pytest.mark.parametrize("seed", range(16))
def test_random_bodies(seed):
    x, block, counts, order, body, kind = drawn(seed)
    grid = tuple(counts[d] for d in order)

    def index_map(*indices):
        at = dict(zip(order, indices))
        return tuple(counts[d] - 1 - at[d] for d in range(len(block)))

    def kernel(x_ref, o_ref):
        o_ref[...] = body(x_ref[...])

    out = pl.BlockSpec((*[None] * len(grid), *kind.shape), lambda *at: (*at, *[0] * len(kind.shape)))
    call = lambda **how: pl.pallas_call(
        kernel, meshrt.ShapeDtypeStruct((*grid, *kind.shape), kind.dtype), grid=grid,
        in_specs=[pl.BlockSpec(tuple(block), index_map)], out_specs=out, **how,
    )  # fmt: skip
    wanted = np.zeros((*grid, *kind.shape), kind.dtype)
    alone = meshrt.jit(body)
    for point in itertools.product(*map(range, grid)):
        where = [slice(i * b, (i + 1) * b) for i, b in zip(index_map(*point), block)]
        wanted[point] = alone(x[tuple(where)])
    found = {"loop": meshrt.jit(call())(x), "gpu": evaluated("cuda", call(), [x])[0]}
    if seed % 4 == 0:
        found["simulator"] = meshrt.jit(call(interpret=pltpu.InterpretParams()))(x)
    for value in found.values():
        np.testing.assert_allclose(
            np.asarray(value, np.float64),
            np.asarray(wanted, np.float64),
            rtol=3e-2 if kind.dtype == "bfloat16" else 1e-5,
        )


def simulated(f, *args):
    out = meshrt.eval_shape(f, *args)

    def kernel(*refs):
        refs[-1][...] = f(*[r[...] for r in refs[:-1]])

    how = pltpu.InterpretParams()
    return np.asarray(pl.pallas_call(kernel, meshrt.ShapeDtypeStruct(out.shape, out.dtype), interpret=how)(*args))


def test_the_simulator_computes_what_xla_does():
    """Reductions by functions of two elements, of bits; remainders by zero; ties, and what is nearly one."""
    x = np.float32([[0.49999997, -0.5, 2.5], [5, -0.0, np.inf]])
    bits = np.int32([[6, 3], [12, 5]])
    for f, args in (
        (lambda x: lax.reduce(x, np.float32(2), lambda a, b: jnp.maximum(a, b) + 0, (1,)), [x[:, :2]]),
        (lambda x: lax.reduce_window(x, np.float32(0), lambda a, b: a + b + 0, (1, 2), (1, 1), "VALID"), [x[:, :2]]),
        (lambda x: lax.reduce_and(x, (1,)), [bits]), (lambda x: lax.reduce_or(x, (0, 1))[None], [bits]),
        (lambda x: lax.rem(x, x * 0), [x]), (lax.round, [x]),
    ):  # fmt: skip
        wanted = np.asarray(meshrt.jit(f)(*args))
        np.testing.assert_array_equal(simulated(f, *args), wanted)
        np.testing.assert_array_equal(
            np.signbit(simulated(f, *args)) & ~np.isnan(wanted), np.signbit(wanted) & ~np.isnan(wanted)
        )
