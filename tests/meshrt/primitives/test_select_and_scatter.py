"""select_and_scatter, bound by its name: beside JAX's, and its windows split over devices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meshrt
from meshrt import errors
from meshrt.sharding import NamedSharding, PartitionSpec
from tests.meshrt.beside import assert_alike

SHAPE = (16, 9)


def program(library: Any, dtype: str, select: str, scatter: str, window: Any, strides: Any, padding: Any) -> Any:
    """A function of an operand and a source, and these."""
    zero = np.zeros((), dtype)
    computation = lambda f: library.make_jaxpr(f)(zero, zero).jaxpr
    drawn = np.random.default_rng(0)
    operand = drawn.permutation(SHAPE[0] * SHAPE[1]).reshape(SHAPE).astype(dtype)
    positions = [(n + sum(p) - w) // s + 1 for n, p, w, s in zip(SHAPE, padding, window, strides)]
    source = drawn.integers(1, 9, positions).astype(dtype)
    params = dict(
        select_jaxpr=computation(getattr(library.lax, select)), select_consts=(),
        scatter_jaxpr=computation(getattr(library.lax, scatter)), scatter_consts=(),
        window_dimensions=window, window_strides=strides, padding=padding,
    )  # fmt: skip
    return lambda x, s: library.lax.select_and_scatter_p.bind(x, s, zero, **params), operand, source


CASES = {
    "windows side by side": ("float32", "ge", "add", (2, 3), (2, 3), ((0, 0), (0, 0))),
    "of integers": ("int32", "le", "add", (2, 3), (2, 3), ((0, 0), (0, 0))),
    "overlapping": ("float32", "ge", "add", (3, 3), (1, 2), ((0, 0), (0, 0))),
    "padded": ("float32", "ge", "add", (3, 3), (2, 2), ((1, 1), (1, 1))),
    "another combination": ("float32", "gt", "max", (2, 2), (2, 2), ((0, 0), (0, 1))),
}


@pytest.mark.parametrize("name", CASES)
def test_beside_jax(name):
    def run(library):
        fun, operand, source = program(library, *CASES[name])
        return library.jit(fun)(operand, source), fun(operand, source)

    assert_alike(run)


@pytest.mark.parametrize("spec", [("x",), (None, "x"), (("x", "y"),), ("x", "y")], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_on_many_devices_as_on_one(name, spec):
    fun, operand, source = program(meshrt, *CASES[name])
    mesh = meshrt.make_mesh((2, 4), ("x", "y"), devices=meshrt.devices()[:8])
    if any(n % mesh.shape.get(a, 8) for n, a in zip(SHAPE, spec) if a):
        spec = (spec[0], None)
    split = meshrt.device_put(operand, NamedSharding(mesh, PartitionSpec(*spec)))
    np.testing.assert_array_equal(meshrt.jit(fun)(split, source), fun(operand, source))


def test_what_is_refused():
    fun, operand, source = program(meshrt, *CASES["padded"])
    with pytest.raises(errors.ArgumentTypeError, match=r"needs a source of shape \(8, 5\)"):
        fun(operand, source[1:])
    with pytest.raises(errors.ArgumentTypeError, match="both of its dtype"):
        fun(operand.astype(np.int32), source)
    with pytest.raises(errors.UnsupportedError, match="select_and_scatter_add"):
        meshrt.grad(lambda x: fun(x, source).sum())(meshrt.numpy.asarray(operand))
    assert str(meshrt.make_jaxpr(fun)(operand, source).jaxpr.eqns[-1].primitive) == "select_and_scatter"
