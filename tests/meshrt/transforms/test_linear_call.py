"""Linear functions with transposes that their users write, beside JAX's."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest

import meshrt
from tests.meshrt.beside import assert_alike

X = np.linspace(0.2, 0.9, 6).astype(np.float32).reshape(2, 3)


def linear_call(library: Any) -> Any:
    return importlib.import_module(f"{library.__name__}.custom_derivatives").linear_call


def divided(library: Any) -> Any:
    return lambda x: x + linear_call(library)(lambda r, x: x / r, lambda r, ct: ct / r, 3.0, x)


def transposed(library: Any, f: Any, x: Any) -> Any:
    return lambda y: library.linear_transpose(f, x)(y)[0]


def test_values_and_derivatives() -> None:
    assert_alike(lambda lib: divided(lib)(9.0))
    assert_alike(lambda lib: lib.grad(divided(lib))(9.0))
    assert_alike(lambda lib: lib.jvp(divided(lib), (9.0,), (1.0,)))
    assert_alike(lambda lib: transposed(lib, divided(lib), 1.0)(18.0))


def test_the_transpose_of_the_transpose_is_the_function() -> None:
    one = np.float32(1)

    def seven(lib):
        return lambda x: linear_call(lib)(lambda _, x: x, lambda _, ct: lib.numpy.float32(7), (), x)

    assert_alike(lambda lib: transposed(lib, seven(lib), one)(one))
    assert_alike(lambda lib: transposed(lib, transposed(lib, seven(lib), one), one)(one))


def test_pytrees_in_compiled_functions() -> None:
    def loss(lib):
        f, t = (lambda r, x: {"o": x["a"] * r}), (lambda r, ct: {"a": ct["o"] * r * 10})
        return lambda x: linear_call(lib)(f, t, X, {"a": x})["o"].sum()

    assert_alike(lambda lib: lib.jit(lib.grad(loss(lib)))(X))


def test_what_is_refused() -> None:
    f, two = (lambda r, x: x / r), (lambda r, ct: (ct, ct))
    assert_alike(lambda lib: lib.grad(lambda x: linear_call(lib)(f, two, 3.0, x))(9.0))
    with pytest.raises(meshrt.errors.UnsupportedError, match="residuals"):
        meshrt.grad(lambda r: linear_call(meshrt)(f, f, r, 2.0))(9.0)
