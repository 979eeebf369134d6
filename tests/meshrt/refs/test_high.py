"""References to values of high types, against the same functions without references."""

from __future__ import annotations

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import lax
from meshrt.experimental.hijax import Box
from meshrt.experimental.hijax.quantized import (
    QArray,
    QSpec,
    dequantize,
    quantize,
    quantized_add,
    quantized_matmul,
    transposed,
)
from meshrt.experimental.hijax.tuples import element, tuple_of

W = np.random.RandomState(0).randn(4, 4).astype(np.float32)
X = np.random.RandomState(1).randn(2, 4).astype(np.float32)
plain_or_jitted = pytest.mark.parametrize("wrap", [lambda f: f, meshrt.jit], ids=["plain", "jit"])


def close(got, want):
    np.testing.assert_allclose(np.asarray(got), np.asarray(want), rtol=1e-5, atol=1e-5)


def double(k):
    k[...] = quantized_add(k[...], k[...])


def straight(w, x):
    k = meshrt.new_ref(quantize(w))
    double(k)
    k[...] = transposed(transposed(k[...]))
    return quantized_matmul(x, meshrt.freeze(k)).sum()


def scanned(w, x):
    k = meshrt.new_ref(quantize(w))

    def body(total, _):
        double(k)
        return total + quantized_matmul(x, k[...]).sum(), None

    return lax.scan(body, jnp.float32(0), None, length=2)[0]


def looped(w, x):
    k = meshrt.new_ref(quantize(w))
    lax.fori_loop(0, 2, lambda i, _: double(k), None)
    return quantized_matmul(x, k[...]).sum()


def chosen(w, x):
    k = meshrt.new_ref(quantize(w))
    lax.cond(x.sum() > -100, lambda: double(k), lambda: None)
    return quantized_matmul(x, k[...]).sum()


PROGRAMS = {straight: 2, scanned: 2 + 4, looped: 4, chosen: 2}


@pytest.mark.sweep(2)
@plain_or_jitted
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_programs_over_references_of_quantized_weights(program, wrap):
    times = PROGRAMS[program]
    near = np.asarray(dequantize(quantize(W)))
    f = wrap(program)
    close(f(W, X), times * (X @ near).sum())
    ones = np.ones((2, 4), np.float32)
    by_w, by_x = meshrt.grad(f, (0, 1))(W, X)  # also after a call, whose program has no high types any more
    close(by_w, times * X.T @ ones)
    close(by_x, times * ones @ near.T)
    close(meshrt.jvp(f, (W, X), (W, np.zeros_like(X)))[1], times * (X @ W).sum())
    close(meshrt.grad(meshrt.checkpoint(f))(W, X), times * X.T @ ones)
    batch = np.stack([W, W])
    close(meshrt.vmap(f, in_axes=(0, None))(batch, X), [times * (X @ near).sum()] * 2)


@plain_or_jitted
def test_a_reference_is_an_argument_and_captured(wrap):
    q = quantize(W)
    near = np.asarray(dequantize(q))
    ref = meshrt.new_ref(q)
    assert isinstance(ref, meshrt.Ref) and str(meshrt.typeof(ref)) == "Ref{q8[4,4]}"

    def step(k, x, more):
        y = quantized_matmul(x, k[...])
        k[...] = quantized_add(k[...], more)
        return y

    again = wrap(step)
    for i in range(1, 4):
        close(again(ref, X, q), i * X @ near)
    close(dequantize(ref[...]), 4 * near)
    captured = wrap(lambda x: step(ref, x, ref[...]))
    close(captured(X), 4 * X @ near)
    close(dequantize(meshrt.ref.swap(ref, ..., q)), 8 * near)
    assert type(ref[...]) is QArray
    close(q.values, quantize(W).values)  # what the references were made of is as it was
    close(meshrt.grad(lambda x: step(ref, x, q).sum())(X), np.ones((2, 4)) @ near.T)


def test_a_compiled_program_takes_the_reference():
    ref = meshrt.new_ref(quantize(W))
    compiled = meshrt.jit(double).lower(ref).compile()
    compiled(ref)
    close(dequantize(ref[...]), 2 * np.asarray(dequantize(quantize(W))))


@plain_or_jitted
def test_tuples_are_added_to(wrap):
    def f(x):
        k = meshrt.new_ref(tuple_of(x, 2 * x))
        meshrt.ref.addupdate(k, ..., tuple_of(x, x))
        return element(k[...], 0) * element(k[...], 1)

    assert wrap(f)(3.0) == 54.0 and meshrt.grad(wrap(f))(3.0) == 36.0
    close(meshrt.vmap(wrap(f))(jnp.arange(3.0)), [0, 6, 24])


def test_each_device_works_on_its_part():
    mesh = meshrt.make_mesh((2,), ("x",), (meshrt.sharding.AxisType.Auto,))
    ref = meshrt.new_ref(quantize(W))
    near = np.asarray(dequantize(ref[...]))

    def body(k, x):
        double(k)
        return lax.psum(quantized_matmul(x, k[...]), "x")

    specs = (QSpec("x"), meshrt.P(None, "x"))
    close(meshrt.shard_map(body, mesh=mesh, in_specs=specs, out_specs=meshrt.P())(ref, X), 2 * X @ near)
    close(dequantize(ref[...]), 2 * near)


def test_what_references_of_high_values_refuse():
    ref = meshrt.new_ref(quantize(W))
    with pytest.raises(NotImplementedError, match="read and written as a whole"):
        ref[0]
    for wrap in (lambda f: f, meshrt.jit):
        with pytest.raises(ValueError, match="Invalid type for `swap`"):
            wrap(lambda: meshrt.ref.set(ref, ..., X))()
    with pytest.raises(ValueError, match="Invalid type for `swap`"):
        ref[...] = quantize(W, axis=1)
    with pytest.raises(NotImplementedError, match="vspace_add"):
        meshrt.ref.addupdate(ref, ..., quantize(W))
    with pytest.raises(NotImplementedError, match="can be written to itself"):
        meshrt.new_ref(Box(1.0))
    meshrt.free_ref(ref)
    with pytest.raises(RuntimeError, match="was freed"):
        ref[...]
