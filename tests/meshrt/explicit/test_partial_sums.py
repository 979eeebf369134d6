"""Partial sums beside functions: cotangents that `vjp` and transposes are given, and sums that functions close over."""

from __future__ import annotations

import jax
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy
from meshrt import errors

X = np.random.RandomState(0).randn(8, 4).astype(np.float32)
W = np.random.RandomState(1).randn(4, 2).astype(np.float32)


def made(lib):
    """Over a mesh in context: a function that gives partial sums, and its arguments."""
    mesh = lib.make_mesh((4,), ("x",), axis_types=(lib.sharding.AxisType.Explicit,), devices=lib.devices()[:4])
    x = lib.device_put(X, lib.NamedSharding(mesh, lib.P(None, "x")))
    w = lib.device_put(W, lib.NamedSharding(mesh, lib.P("x")))
    return mesh, lambda x, w: lib.numpy.dot(x, w, out_sharding=lib.P(unreduced={"x"})), x, w


@pytest.mark.parametrize("lib", [meshrt, jax], ids=["meshrt", "jax"])
def test_the_cotangent_of_a_partial_sum_is_reduced(lib):
    mesh, f, x, w = made(lib)
    with lib.set_mesh(mesh):
        y, pull = lib.vjp(f, x, w)
        whole = lib.reshard(y, lib.P())
        ct = lib.reshard(whole, lib.P(None, None, reduced={"x"}))
        dx, dw = pull(ct)
        assert [str(lib.typeof(t)) for t in (y, ct, dx, dw)] == [
            "float32[8,2]{U:x}", "float32[8,2]{R:x}", "float32[8,4@x]", "float32[4@x,2]",
        ]  # fmt: skip
        np.testing.assert_allclose(np.asarray(dx), X @ W @ W.T, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(np.asarray(dw), X.T @ X @ W, rtol=1e-5, atol=1e-5)
        with pytest.raises(ValueError, match=r"got float32\[8,2\]\{U:x\}, but expected float32\[8,2\]\{R:x\} because"):
            pull(y)
        kinds = [lib.typeof(t).to_ct_aval() for t in (y, ct, x)]
        assert [str(k) for k in kinds] == ["float32[8,2]{R:x}", "float32[8,2]{U:x}", "float32[8,4@x]"]


def test_what_to_do_with_addends_is_told():
    mesh, f, x, w = made(meshrt)
    with meshrt.set_mesh(mesh):
        y, pull = meshrt.vjp(f, x, w)
        with pytest.raises(errors.ArgumentValueError, match=r"devices hold addends .* add it up with meshrt.reshard"):
            pull(y)
        with pytest.raises(TypeError, match=r"cotangent type does not match function output"):
            meshrt.linear_transpose(lambda w: f(x, w), w)(y)


# Functions that close over a partial sum `u`, and how many of it they give. JAX refuses to close over one.
CLOSED = {
    "moved": (lambda u: lambda: u, 1),
    "added": (lambda u: lambda: u + u, 2),
    "the first of a scan": (lambda u: lambda: meshrt.lax.scan(lambda c, _: (c, None), u, None, length=3)[0], 1),
    "added by a scan": (lambda u: lambda: meshrt.lax.scan(lambda c, _: (c + u, None), u, None, length=3)[0], 4),
    "added by a loop": (lambda u: lambda: meshrt.lax.fori_loop(0, 3, lambda i, c: c + u, u), 4),
    "chosen": (lambda u: lambda: meshrt.lax.cond(u.shape[0] > 9, lambda: u, lambda: u * 2), 2),
}


@pytest.mark.parametrize("partitioner", ["meshrt", "xla"])
@pytest.mark.parametrize("name", CLOSED)
def test_functions_close_over_partial_sums(name, partitioner):
    make, times = CLOSED[name]
    mesh, f, x, w = made(meshrt)
    with meshrt.set_mesh(mesh), meshrt.config.override(partitioner=partitioner):
        jitted = meshrt.jit(make(f(x, w)))
        for out in (jitted(), jitted.lower().compile()()):
            assert str(meshrt.typeof(out)) == "float32[8,2]{U:x}"
            np.testing.assert_allclose(np.asarray(meshrt.reshard(out, meshrt.P())), times * X @ W, rtol=1e-4, atol=1e-4)


def test_copies_that_functions_close_over_have_partial_sums_for_cotangents():
    mesh, _, x, _ = made(meshrt)
    with meshrt.set_mesh(mesh):
        copies = meshrt.reshard(meshrt.numpy.asarray(W), meshrt.P(reduced={"x"}))
        rows = meshrt.reshard(x, meshrt.P("x"))
        out = meshrt.jit(meshrt.grad(lambda a: meshrt.numpy.dot(a, copies).sum()))(rows)
        np.testing.assert_allclose(np.asarray(out), np.ones((8, 2)) @ W.T, rtol=1e-5)


def test_addends_that_a_program_captures_are_in_no_file():
    mesh, f, x, w = made(meshrt)
    with meshrt.set_mesh(mesh):
        u = f(x, w)
        compiled = meshrt.jit(lambda: meshrt.reshard(u, meshrt.P())).lower().compile()
    with pytest.raises(errors.SavedProgramError, match=r" an array of type f32\[8,2\]\{U:x\}.*devices hold addends"):
        compiled.serialize()
