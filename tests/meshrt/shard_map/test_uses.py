"""Other uses of shard_map: kinds of values and arguments, what stands around it, what stands inside."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import meshrt
from meshrt import P, lax
from meshrt import numpy as jnp
from tests.meshrt.shard_map.libraries import ours, same

A = np.random.RandomState(0).randn(8, 4).astype(np.float32)


SPLIT = P("x")


def over(f, in_specs=SPLIT, out_specs=SPLIT, **settings):
    return meshrt.shard_map(f, mesh=ours().mesh((4, 2), ("x", "y")), in_specs=in_specs, out_specs=out_specs, **settings)


class Scaled:
    factor = 2.0

    def __call__(self, a):
        return a * self.factor

    def method(self, a):
        return a * self.factor


VALUES = {
    "empty": (lambda a: a * 2, np.zeros((0, 4), np.float32), np.zeros((0, 4), np.float32)),
    "bool": (lambda a: ~a, np.ones(4, bool), np.zeros(4, bool)),
    "complex": (lambda a: a * 2j, np.ones(4, np.complex64), np.full(4, 2j, np.complex64)),
    "integer": (lambda a: lax.psum(a, "x") + a, np.arange(4, dtype=np.int32), np.arange(4, dtype=np.int32) + 6),
    "a method": (Scaled().method, A, A * 2),
    "an object": (Scaled(), A, A * 2),
    "a partial": (functools.partial(lambda k, a: a * k, 3.0), A, A * 3),
    "a jitted function": (meshrt.jit(lambda a: a + 1), A, A + 1),
}


@pytest.mark.parametrize("name", VALUES)
def test_values_and_functions_of_all_kinds(name):
    f, value, want = VALUES[name]
    same(over(f)(value), want)
    same(meshrt.jit(over(f))(value), want)


def test_arguments_and_results_of_no_arrays():
    assert over(lambda a: (a, None), out_specs=(P("x"), None))(A)[1] is None
    same(over(lambda a, nothing: a, (P("x"), P()))(A, None), A)
    same(over(lambda: lax.axis_index("x")[None], ())(), np.arange(4, dtype=np.int32))
    same(meshrt.shard_map(mesh=ours().mesh((8,), ("x",)), in_specs=P("x"), out_specs=P("x"))(lambda a: a)(A), A)


def test_keys_are_split_like_arrays():
    keys = meshrt.random.split(meshrt.random.key(0), 4)
    draw = lambda k: meshrt.random.normal(k[0], (2,))
    want = np.concatenate([meshrt.random.normal(k, (2,)) for k in keys])
    same(over(draw)(keys), want)
    grad = meshrt.grad(lambda x: over(lambda x, k: x * draw(k), (P("x"), P("x")))(x, keys).sum())
    same(grad(np.ones(8, np.float32)), want)


def test_loops_and_branches_around():
    total = over(lambda a: lax.psum(a, "x"), out_specs=P())
    want = A.reshape(4, 2, 4).sum(0)
    same(meshrt.jit(lambda p, a: lax.cond(p > 0, total, lambda a: a[:2], a))(1.0, A), want, 1e-5)
    grown = over(lambda a: a + lax.psum(a, "x").sum())
    loop = meshrt.jit(lambda a: lax.while_loop(lambda c: c.sum() < 100.0, grown, a))
    assert float(loop(np.abs(A)).sum()) >= 100.0


def test_derivatives_of_derivatives():
    f = over(lambda v: lax.psum((jnp.sin(v) * v).sum(), "x"), out_specs=P())
    v = np.linspace(0, 1, 4).astype(np.float32)
    np.testing.assert_allclose(meshrt.hessian(f)(v), np.diag(2 * np.cos(v) - v * np.sin(v)), rtol=1e-4, atol=1e-5)
    g = over(lambda v: jnp.sin(v) * lax.psum(v.sum(), "x"))
    want = np.diag(np.cos(v) * v.sum()) + np.sin(v)[:, None]
    np.testing.assert_allclose(meshrt.jacfwd(g)(v), want, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(meshrt.jacrev(g)(v), want, rtol=1e-4, atol=1e-5)
    back = meshrt.linear_transpose(over(lambda a: lax.psum(a * 2, "x"), out_specs=P()), A)
    same(back(np.ones((2, 4), np.float32))[0], np.full((8, 4), 2, np.float32))


def test_derivatives_inside():
    """A derivative by a value that all devices share is the sum over them; by one of its own, a device's own."""
    shared = over(lambda a, w: meshrt.grad(lambda w: (a * w).sum())(w), (P("x"), P()), P())
    same(shared(A, np.float32(1)), A.sum(), 1e-4)
    own = lambda a, w: meshrt.grad(lambda w: (a * w).sum())(lax.pcast(w, "x", to="varying"))[None]
    same(over(own, (P("x"), P()))(A, np.float32(1)), A.reshape(4, -1).sum(1), 1e-4)


def test_names_of_mapped_dimensions_beside_those_of_meshes():
    mean = A.mean()
    inside = over(lambda a: meshrt.vmap(lambda r: r - lax.pmean(r.mean(), ("b", "x")), axis_name="b")(a))
    same(inside(A), A - mean, 1e-4)
    outside = meshrt.vmap(lambda r: over(lambda r: r - lax.pmean(r.mean(), ("b", "x")))(r), axis_name="b")
    same(outside(A), A - mean, 1e-4)


def test_a_policy_saves_inside():
    def body(a):
        return jnp.sin(meshrt.ad_checkpoint.checkpoint_name(jnp.cos(a), "c"))

    policy = meshrt.checkpoint_policies.save_only_these_names("c")
    f = meshrt.checkpoint(over(body), policy=policy)
    again = lambda f: str(meshrt.make_jaxpr(meshrt.grad(lambda a: f(a).sum()))(A)).count("name[")
    assert (again(f), again(meshrt.checkpoint(over(body)))) == (1, 2)
    same(meshrt.grad(lambda a: f(a).sum())(A), -np.sin(A) * np.cos(np.cos(A)), 1e-4)


def test_ordered_effects_leave_the_region_in_order():
    seen = []

    def body(a):
        meshrt.debug.callback(lambda v: seen.append(("first", float(v))), a.sum(), ordered=True)
        meshrt.debug.callback(lambda v: seen.append(("second", float(v))), a.sum(), ordered=True)
        return a

    over(body)(A).block_until_ready()
    meshrt.effects_barrier()
    assert len(seen) == 16
    for value in {v for _, v in seen}:
        assert [name for name, v in seen if v == value].index("second") > 0


def test_unused_parts_are_removed():
    f = over(lambda a: (a * 2, lax.psum(jnp.exp(a), "x")), out_specs=(P("x"), P()))
    assert "exponential" not in meshrt.jit(lambda a: f(a)[0]).lower(A).as_text()


def test_cotangents_of_what_a_loop_shares_are_summed_over_devices_once():
    w = (np.random.RandomState(1).randn(4, 4) * 0.3).astype(np.float32)

    def body(a, w):
        return lax.scan(lambda c, _: (jnp.tanh(c @ w) + c @ w, None), a, None, length=5)[0]

    grad = meshrt.grad(lambda w: (over(body, (P("x"), P()))(A, w) ** 2).sum())
    same(grad(w), meshrt.grad(lambda w: (body(A, w) ** 2).sum())(w), 1e-3)
    plan = meshrt.jit(grad).lower(w).partition().plan
    assert [(e.kind, e.times) for e in plan] == [("all_reduce", 1)]
