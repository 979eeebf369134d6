"""Scalars and NumPy arrays of a traced function are constants of its program, as in JAX's: no equations make them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy
from meshrt.core.trace import Tracer
from tests.meshrt.beside import assert_alike

CASES: dict[str, Callable[[Any, Any], Any]] = {
    "asarray": lambda np_, x: np_.asarray(3.0) + x,
    "with dtype": lambda np_, x: np_.array(3, np.int8) * x,
    "scalar type": lambda np_, x: np_.float32(2) * x,
    "zeros": lambda np_, x: np_.zeros(()) + x,
    "full": lambda np_, x: np_.full((), 2.0) * x,
    "list": lambda np_, x: np_.array([1.0, 2.0]) + x,
    "list with a tracer": lambda np_, x: np_.array([x, 2.0]),
    "NumPy array": lambda np_, x: np_.asarray(np.ones(2, np.float32)) * x,
    "result": lambda np_, x: np_.asarray(True),
    "weak result": lambda np_, x: (np_.asarray(1), x),
    "random": lambda np_, x: np_.bfloat16(1),
}


@pytest.mark.parametrize("name", CASES)
def test_programs_have_the_equations_of_jax(name: str) -> None:
    ours, theirs = (lib.make_jaxpr(lambda x, n=lib.numpy: CASES[name](n, x))(1.0) for lib in (meshrt, jax))
    assert str(ours) == str(theirs)


@pytest.mark.parametrize("name", CASES)
def test_values_and_derivatives(name: str) -> None:
    program = lambda lib: lambda x: lib.numpy.sum(sum(lib.tree_util.tree_leaves(CASES[name](lib.numpy, x)))) * 1.0
    assert_alike(lambda lib: lib.jit(program(lib))(1.5))
    assert_alike(lambda lib: lib.jit(lib.grad(program(lib)))(1.5))
    assert_alike(lambda lib: lib.vmap(program(lib))(lib.numpy.arange(3.0)))


def test_a_constant_is_a_tracer() -> None:
    seen = []
    meshrt.jit(lambda x: seen.append(isinstance(meshrt.numpy.asarray(2.0), Tracer)) or x)(1.0)
    assert seen == [True]
