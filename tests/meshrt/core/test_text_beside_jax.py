"""How programs, types and traced values are printed, and how weak derivatives are: as by JAX."""

from __future__ import annotations

import jax
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy
from tests.meshrt.beside import assert_alike

F32 = np.float32
A = np.arange(6, dtype=F32).reshape(2, 3)


def _custom(j, kind):
    function = getattr(j, kind)(lambda x: x * 2)
    if kind == "custom_jvp":
        function.defjvp(lambda p, t: (p[0] * 2, t[0] * 2))
    else:
        function.defvjp(lambda x: (x, ()), lambda r, g: (g,))
    return function


PROGRAMS = {
    "product": lambda j: (lambda x: j.numpy.sin(x) @ x.T, A),
    "slice": lambda j: (lambda x: x[:, 1:], A),
    "mean": lambda j: (lambda x: j.numpy.mean(x, 0), A),
    "filled": lambda j: (lambda x: j.numpy.full((2,), x), 1.0),
    "weak beside strong": lambda j: (lambda x, y: x * y, 1.0, A),
    "scan": lambda j: (lambda x: j.lax.scan(lambda c, y: (c + y, c * y), 0.0, x), A[0]),
    "iota": lambda j: (lambda x: j.lax.iota(np.int32, 3), A),
    "checkpoint": lambda j: (j.checkpoint(j.numpy.sin), 1.0),
    "custom_jvp": lambda j: (_custom(j, "custom_jvp"), 1.0),
    "custom_vjp": lambda j: (_custom(j, "custom_vjp"), 1.0),
    "pulled back": lambda j: (j.vjp(lambda x: j.numpy.sin(x) * x, 1.0)[1], 1.0),
    "convolution": lambda j: (lambda x: j.lax.conv_general_dilated(x, x, (1, 1), "SAME"), np.ones((1, 1, 3, 3), F32)),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_programs(program):
    ours, theirs = (str(j.make_jaxpr(*program(j)[:1])(*program(j)[1:])) for j in (meshrt, jax))
    assert ours == theirs


TRACED = {
    "jit": lambda j, f: j.jit(f)(1.0),
    "vmap": lambda j, f: j.vmap(f)(A),
    "grad": lambda j, f: j.grad(lambda x: f(x) or x)(1.0),
    "jvp": lambda j, f: j.jvp(lambda x: f(x) or x, (A,), (A,)),
    "vmap of grad": lambda j, f: j.vmap(j.grad(lambda x: f(x) or x))(A[0]),
}


@pytest.mark.parametrize("run", TRACED.values(), ids=TRACED.keys())
def test_traced_values(run):
    shown = []
    for j in (meshrt, jax):
        seen: list[str] = []
        run(j, lambda x, seen=seen: seen.append(repr(x)))
        shown.append(seen)
    assert shown[0] == shown[1]


def test_types():
    for x in (1.0, A):
        ours, theirs = (j.make_jaxpr(lambda x: x)(x).jaxpr.invars[0].aval for j in (meshrt, jax))
        assert ours.str_short() == theirs.str_short()
        assert ours.str_short(short_dtypes=True) == theirs.str_short(short_dtypes=True)


WEAK = {
    "of a strong cotangent": lambda j: j.vjp(j.numpy.sin, 1.0)[1](F32(1)),
    "of a weak cotangent": lambda j: j.vjp(j.numpy.sin, 1.0)[1](1.0),
    "of a strong product": lambda j: j.vjp(lambda x: x * F32(2), 1.0)[1](F32(1)),
    "gradient": lambda j: j.grad(lambda x: j.numpy.sin(x) * 2)(1.0),
    "gradient of a strong value": lambda j: j.grad(lambda x: x * F32(2))(1.0),
    "of no dependence": lambda j: j.grad(lambda x: F32(3))(1.0),
    "pushed": lambda j: j.linearize(j.numpy.sin, 1.0)[1](F32(1)),
    "jvp": lambda j: j.jvp(j.numpy.sin, (1.0,), (F32(1),)),
    "jacrev": lambda j: j.jacrev(lambda x: x * 2.0)(1.0),
    "hessian": lambda j: j.hessian(lambda x: x**3)(1.0),
    "transposed": lambda j: j.linear_transpose(lambda x: x * 2, 1.0)(F32(1)),
    "median of a number": lambda j: j.numpy.median(2.0, keepdims=True),
}


@pytest.mark.parametrize("program", WEAK.values(), ids=WEAK.keys())
def test_weak_derivatives(program):
    assert_alike(program)
