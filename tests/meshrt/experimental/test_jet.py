"""Taylor polynomials beside JAX's."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import meshrt
from tests.meshrt.beside import assert_alike

X = np.linspace(0.2, 0.9, 6).astype(np.float32).reshape(2, 3)
TERMS = (X * 2, X * 3, X * 0.5)


def jet(library: Any) -> Any:
    return importlib.import_module(f"{library.__name__}.experimental.jet").jet


@pytest.mark.parametrize("name", ["sin", "exp", "log", "tanh", "sqrt", "reciprocal"])
def test_functions(name) -> None:
    assert_alike(lambda lib: jet(lib)(getattr(lib.numpy, name), (X,), (TERMS,)), rtol=1e-4)


@pytest.mark.parametrize("value", [1.0, np.float32(1)], ids=repr)
def test_results_are_as_weak_as_arguments(value: Any) -> None:
    def types(lib: Any) -> list[Any]:
        out, slopes = jet(lib)(lambda x: lib.numpy.sin(x) * 2 + x**3, (value,), ([1.0, 0.5, 0.0],))
        return [(str(x.dtype), x.weak_type) for x in (out, *slopes)]

    assert types(meshrt) == types(importlib.import_module("jax"))


PROGRAMS = {
    "two arguments": lambda lib: jet(lib)(lambda x, y: x * y + lib.numpy.sin(x) / y, (X, X + 1), (TERMS, TERMS)),
    "products": lambda lib: jet(lib)(lambda x, y: x @ y.T, (X, X), (TERMS, TERMS)),
    "coefficients": lambda lib: jet(lib)(lib.numpy.exp, (X,), (TERMS,), factorial_scaled=False),
    "trees": lambda lib: jet(lib)(lambda x: {"a": x * x, "b": [x.sum()]}, (X,), (TERMS,)),
    "compiled": lambda lib: lib.jit(lambda x: jet(lib)(lambda x: lib.nn.softmax(x**3), (x,), ((x, x),)))(X),
    "constant": lambda lib: jet(lib)(lambda x: lib.numpy.ones(3), (X,), (TERMS,)),
    "other lengths": lambda lib: jet(lib)(lambda x, y: x, (X, X), (TERMS, TERMS[:1])),
    "a tree": lambda lib: jet(lib)(lambda x: x, ([X],), (TERMS,)),
    "a tree of terms": lambda lib: jet(lib)(lambda x: x, (X,), (([X],),)),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_programs(program) -> None:
    assert_alike(program, rtol=1e-4)


def test_differentiated() -> None:
    third = lambda lib: lambda x: jet(lib)(lambda x: x**4, (x,), ((1.0, 0.0, 0.0),))[1][2]
    assert meshrt.grad(third(meshrt))(2.0) == pytest.approx(24.0)
