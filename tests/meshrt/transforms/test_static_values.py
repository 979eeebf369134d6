"""Static arguments: what shares a trace and what does not."""

from __future__ import annotations

import math
from collections import namedtuple

import jax
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt.transforms.arguments import StaticValue

Pair = namedtuple("Pair", "a b")
NAN = float("nan")

DIFFERENT = [
    (0.0, -0.0), (1, True), (1, 1.0), (0j, complex(0.0, -0.0)), (np.float32(0), np.float32(-0.0)),
    (np.float32(1), 1.0), (np.int32(1), np.int64(1)), ((0.0,), (-0.0,)), (((1,),), ((True,),)),
    (Pair(0.0, 1), Pair(-0.0, 1)), (Pair(1, 2), (1, 2)), (frozenset([1]), frozenset([True])), (None, False),
    (slice, range), (np.dtype("f4"), np.dtype("f8")),
]  # fmt: skip
SAME = [
    (NAN, float("nan")), ((NAN, 1), (float("nan"), 1)), (complex(NAN, 0), complex(float("nan"), 0)),
    (np.float32("nan"), np.float32("nan")), ("a" * 3, "aaa"), (range(3), range(3)), (Pair(1, 2), Pair(1, 2)),
    ((1, ("x", None)), (1, ("x", None))), (1 << 70, 1 << 70), (np.float64(0.5), np.float64(0.5)),
]  # fmt: skip


def traces(*values):
    seen = []
    f = meshrt.jit(lambda x, s: seen.append(s) or x, static_argnums=1)
    for v in values:
        f(1.0, v)
        f(1.0, v)
    return len(seen)


@pytest.mark.parametrize("pair", DIFFERENT, ids=str)
def test_what_a_trace_sees_the_difference_of(pair):
    assert StaticValue(pair[0]) != StaticValue(pair[1]) and traces(*pair) == 2


@pytest.mark.parametrize("pair", SAME, ids=str)
def test_what_shares_a_trace(pair):
    a, b = map(StaticValue, pair)
    assert a == b and hash(a) == hash(b) and traces(*pair) == 1


def test_the_sign_of_zero_reaches_the_result():
    f = meshrt.jit(lambda x, s: jnp.copysign(x, s), static_argnums=1)
    assert (float(f(2.0, 0.0)), float(f(2.0, -0.0))) == (2.0, -2.0)
    assert float(f(2.0, -NAN)) == math.copysign(2.0, -NAN)


def test_by_name_and_inside_another_jit():
    f = meshrt.jit(lambda x, s: jnp.copysign(x, s), static_argnames="s")
    assert (float(f(2.0, s=0.0)), float(f(2.0, s=-0.0))) == (2.0, -2.0)
    outer = meshrt.jit(lambda x: (f(x, s=0.0), f(x, s=-0.0)))
    assert tuple(map(float, outer(2.0))) == (2.0, -2.0)


@pytest.mark.parametrize("values", [(1, 1.0, True), (0.0, -0.0)])
@pytest.mark.parametrize("kind", ["custom_vjp", "custom_jvp", "checkpoint"])
def test_functions_with_fixed_arguments(kind, values):
    def make(lib):
        if kind == "checkpoint":
            return lib.checkpoint(lambda x, n: lib.numpy.copysign(x, n) * n, static_argnums=1)
        f = getattr(lib, kind)(lambda x, n: lib.numpy.copysign(x, n) * n, nondiff_argnums=(1,))
        if kind == "custom_vjp":
            f.defvjp(lambda x, n: (f(x, n), None), lambda n, r, ct: (ct * n,))
        else:
            f.defjvp(lambda n, p, t: (f(p[0], n), t[0] * n))
        return f

    ours = make(meshrt)
    for n in values:
        theirs = make(jax)  # a new one each time: JAX's checkpoint takes 1 and 1.0 for the same
        a, b = ours(jnp.int32(2), n), theirs(jax.numpy.int32(2), n)
        assert (a.dtype, a.weak_type) == (b.dtype, b.weak_type)
        assert math.copysign(1, float(ours(2.0, n))) == math.copysign(1, float(theirs(2.0, n)))
        np.testing.assert_array_equal(
            np.asarray(meshrt.grad(lambda x: ours(x, n))(2.0)), np.asarray(jax.grad(lambda x: theirs(x, n))(2.0))
        )
