"""Functions with derivatives of their own, called with Python's numbers: they and their rules are told the dtype."""

from __future__ import annotations

import copy

import jax
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy
from tests.meshrt.beside import assert_alike

VALUES = [2.0, 3, True, 1j, np.float64(2), np.int64(3), np.ones(2), np.ones(()), {"a": 2.0}]


def _noted(j, kind, value):
    """What function and rule see of the dtypes of their argument, called and differentiated."""
    seen = []

    def note(x):
        leaves = j.tree.leaves(x)
        seen.extend(getattr(leaf, "dtype", type(leaf)) for leaf in leaves)
        return x

    f = getattr(j, kind)(note)
    if kind == "custom_jvp":
        f.defjvp(lambda primals, tangents: (note(primals[0]), tangents[0]))
    else:
        f.defvjp(lambda x: (note(x), None), lambda _, ct: (ct,))
    f(value)
    kinds = [np.result_type(leaf).kind for leaf in j.tree.leaves(value)]
    if all(k == "f" for k in kinds):
        j.vjp(f, value)
    return seen


@pytest.mark.parametrize("kind", ["custom_jvp", "custom_vjp"])
@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_dtypes_that_are_seen(kind, value):
    assert _noted(meshrt, kind, value) == _noted(jax, kind, value)


@pytest.mark.parametrize("kind", ["custom_jvp", "custom_vjp"])
def test_64_bits(kind):
    def seen(j):
        with j.enable_x64(True):
            return [_noted(j, kind, v) for v in (2.0, 3, 1j, np.float32(1))]

    assert seen(meshrt) == seen(jax)


def _same(j, value):
    f = j.custom_jvp(lambda x: x)
    f.defjvp(lambda primals, tangents: (primals[0], tangents[0]))
    return f(value)


WEAK = {
    "+": lambda n, x: x + n.ones(2, np.float16),
    "sin": lambda n, x: n.sin(x),
    "where": lambda n, x: n.where(True, x, n.zeros(2, np.float16)),
    "array": lambda n, x: n.array([x, x]),
    "asarray": lambda n, x: n.asarray(x),
    "power": lambda n, x: x ** n.ones(2, np.float16),
    "set": lambda n, x: n.ones(2, np.float16).at[0].set(x),
    "full": lambda n, x: n.full((2,), x),
}


@pytest.mark.parametrize("use", WEAK.values(), ids=WEAK)
@pytest.mark.parametrize("value", [2.0, 3], ids=repr)
def test_they_are_weak_like_plain_numbers(use, value):
    assert_alike(lambda j: use(j.numpy, _same(j, value)))


def test_they_are_numbers():
    for j in (jax, meshrt):
        x, i = _same(j, 2.0), _same(j, 3)
        assert isinstance(x, float)
        assert type(x * 2) is float
        assert repr(x) == "TypedFloat(2.0, dtype=float32)"
        assert f"{x}" == "2.0"
        assert [0] * i == [0, 0, 0]
        assert copy.deepcopy(x) == 2.0
        assert "2.0:f32[]" in str(j.make_jaxpr(lambda y, x=x: y + x)(1.0))
        with pytest.raises(OverflowError):
            _same(j, 2**40)


def test_rules_branch_on_residuals_that_are_numbers():
    def gradient(j):
        f = j.custom_vjp(lambda x, n: x * n)
        f.defvjp(lambda x, n: (x * n, n), lambda n, ct: (ct * 2 if n > 1 else ct, None))
        return j.grad(f)(3.0, 4)

    assert_alike(gradient)
