"""Functions that vjp, linearize and linear_transpose return are pytrees of what they hold."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors
from tests.meshrt.beside import assert_alike

F32 = np.float32


def _results(x, y, i):
    """Of four kinds: a product, an input passed on, an integer and a constant."""
    return {"a": x * y * x, "b": y + 1, "c": i, "d": 3.0}


def _leave_and_enter(transform):
    """The function that `transform(library)(x)` gives, made inside a jitted function and called inside another."""

    def program(library):
        made = library.jit(transform(library))(F32(2))
        return library.jit(lambda f, x: f(x))(made, F32(3))

    return program


@pytest.mark.parametrize(
    "transform",
    [
        lambda j: lambda x: j.vjp(j.numpy.sin, x)[1],
        lambda j: lambda x: j.vjp(lambda x: 2.0 * x, x)[1],
        lambda j: lambda x: j.linearize(j.numpy.sin, x)[1],
        lambda j: lambda x: j.linear_transpose(lambda t: x * t, x),
        lambda j: lambda x: j.tree.map(lambda r: r, j.vjp(j.numpy.tanh, x)[1]),
    ],
)
def test_out_of_one_jitted_function_and_into_another(transform):
    assert_alike(_leave_and_enter(transform))


def test_all_kinds_of_results():
    def program(library):
        ct = {"a": np.ones(3, F32), "b": np.arange(3, dtype=F32), "c": np.zeros((), library.float0), "d": F32(1)}
        pull = library.jit(lambda *xs: library.vjp(_results, *xs)[1])(np.arange(3, dtype=F32), np.ones(3, F32), 2)
        return pull(ct)[:2]

    assert_alike(program)


def test_mapped_over_residuals():
    def program(library):
        pulls = library.vmap(lambda x: library.vjp(library.numpy.sin, x)[1])(np.arange(3, dtype=F32))
        return library.vmap(lambda pull, ct: pull(ct)[0])(pulls, np.ones(3, F32))

    assert_alike(program)


@pytest.mark.parametrize("has_aux", [False, True])
@pytest.mark.parametrize("argnums", [0, (0, 1), -1])
def test_forward_and_backward(argnums, has_aux):
    def program(library):
        def f(x, w):
            return (x @ w, x + 1) if has_aux else x @ w

        forward, backward = library.fwd_and_bwd(f, argnums, has_aux)
        y, residuals, *aux = forward(np.ones((2, 3), F32), np.ones((3, 4), F32))
        return y, aux, backward(residuals, np.ones((2, 4), F32))

    assert_alike(program)


def test_the_passes_are_compiled_once():
    forward, backward = meshrt.fwd_and_bwd(lambda x: jnp.sin(x) * x, 0)
    _, residuals = forward(F32(2))
    first = backward(residuals, F32(1))
    with meshrt.no_tracing():
        _, residuals = forward(F32(2))
        again = backward(residuals, F32(1))
    assert again == first


def test_a_map_that_is_only_called_makes_no_program(monkeypatch):
    def refuse(*_):
        raise AssertionError("made a program")

    monkeypatch.setattr(meshrt.transforms.linear.LinearTrace, "to_jaxpr", refuse)
    assert meshrt.vjp(jnp.square, F32(3))[1](F32(1))[0] == 6


@pytest.mark.parametrize("wide", [False, True])
def test_operands_that_are_results_are_as_wide_as_arrays(wide):
    given = np.arange(3.0)
    for library in (meshrt, jax):
        with library.enable_x64(wide):
            (value, same), pull = library.vjp(lambda x: (x * 2, x), given)
            assert same.dtype == value.dtype == (np.float64 if wide else F32)
            assert pull((value, value))[0].dtype == value.dtype
            np.testing.assert_array_equal(np.asarray(same), given)


@pytest.mark.parametrize(
    ("function", "operation"),
    [(lambda x: x * x, "mul"), (lambda x: x @ x.T, "dot_general"), (meshrt.jit(lambda x: x * x), "mul")],
)
def test_a_function_that_is_not_linear_is_named_with_its_operation_and_line(function, operation):
    with pytest.raises(errors.DifferentiationError, match=rf"{operation} of f32\[2,2\], .*{Path(__file__).name}:\d+"):
        meshrt.linear_transpose(function, jnp.ones((2, 2)))(jnp.ones((2, 2)))


def test_integers_made_of_tangents_have_no_cotangents():
    assert_alike(lambda l: l.linear_transpose(lambda t: t.astype("int32").astype("float32"), F32(1))(F32(1)))


def test_the_program_of_a_linearized_function():
    """What tools look for in it: which operations are left, and the residuals that they take."""
    shown = []
    for library in (jax, meshrt):
        mapped = library.linearize(lambda x, sin=library.numpy.sin: sin(sin(x)), library.numpy.ones(2))[1]
        shown.append((str(mapped.func.args[0]), len(mapped.args[0])))
        assert_alike(mapped.func(*mapped.args, np.ones(2, F32)), mapped(np.ones(2, F32)))
    assert shown[0] == shown[1]
