"""Varying axes in types: what operations give and insert, what control flow asks for, what is said of mistakes."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import meshrt
from meshrt import P, errors, lax
from meshrt import numpy as jnp
from tests.meshrt.shard_map.libraries import ours, same, theirs

A = np.random.RandomState(0).randn(8, 4).astype(np.float32)
W = (np.random.RandomState(1).randn(4, 4) * 0.3).astype(np.float32)


def mapped(body, L=None, **changes):
    L = L or ours()
    settings = {"mesh": L.mesh((4, 2), ("x", "y")), "in_specs": (L.P("x"), L.P()), "out_specs": L.P("x"), **changes}
    return L.shard_map(body, **settings)


def stage(body, L=None, **changes):
    L = L or ours()
    return L.make_jaxpr(mapped(body, L, **changes))(A, W)


VALUES = {
    "argument": lambda L, a, w: a,
    "shared": lambda L, a, w: w,
    "both": lambda L, a, w: a @ w,
    "scaled": lambda L, a, w: a * 2.0,
    "constant": lambda L, a, w: L.np.ones(3),
    "psum": lambda L, a, w: L.lax.psum(a, "x"),
    "pmean": lambda L, a, w: L.lax.pmean(a, "x"),
    "pmax": lambda L, a, w: L.lax.pmax(a, "x"),
    "axis_index": lambda L, a, w: L.lax.axis_index(("x", "y")),
    "pcast": lambda L, a, w: L.lax.pcast(w, ("y",), to="varying"),
    "indexed": lambda L, a, w: w[L.lax.axis_index("x")],
    "reduced": lambda L, a, w: (a * w[0]).sum(),
    "jit": lambda L, a, w: L.jit(lambda a, w: a + w.sum())(a, w),
    "scan": lambda L, a, w: L.lax.scan(lambda c, _: (c @ w, c[0]), a, None, length=2),
    "shared scan": lambda L, a, w: L.lax.scan(lambda c, _: (c @ w, c[0]), w, None, length=2),
    "cond": lambda L, a, w: L.lax.cond(w.sum() > 0, lambda: a * 2, lambda: a),
    "shared cond": lambda L, a, w: L.lax.cond(w.sum() > 0, lambda: w * 2, lambda: w),
    "vmap": lambda L, a, w: L.vmap(lambda r: r + w[0])(a),
    "grad": lambda L, a, w: L.grad(lambda a, w: (a @ w).sum(), argnums=(0, 1))(a, w),
    "zeros like": lambda L, a, w: [L.np.zeros_like(a), L.np.ones_like(a), L.np.empty_like(a), L.np.zeros_like(w)],
    "full like": lambda L, a, w: [L.np.full_like(a, 2), L.lax.full_like(a, 2.0), L.np.full_like(w, a[0, 0])],
    "like it but for the shape": lambda L, a, w: [L.np.zeros_like(a, shape=(3,)), L.np.ones_like(a, dtype=int)],
    "constant grad": lambda L, a, w: L.grad(lambda a, w: (a * 2).sum() + w.sum(), argnums=(0, 1))(a, w),
    "zero grad": lambda L, a, w: L.grad(lambda a: 0.0 * 2)(a),
    "vjp": lambda L, a, w: L.vjp(lambda a: a * 2, a)[1](a),
    "jvp": lambda L, a, w: L.jvp(lambda a: (a * 2, L.np.ones_like(a)), (a,), (a,)),
    "jacobians": lambda L, a, w: [L.jacrev(lambda a: a * 2)(a), L.jacfwd(lambda a: a * 2)(a)],
    "types": lambda L, a, w: [L.eval_shape(lambda a: a * 2, a), L.eval_shape(lambda w: w.sum(), w)],
    "like a type": lambda L, a, w: [
        L.lax.full_like(L.eval_shape(lambda a: a @ w, a), 1),
        L.np.zeros_like(L.ShapeDtypeStruct.like(a)),
        L.eval_shape(lambda t: t + 1, L.eval_shape(lambda a: a.sum(), a)),
    ],
    "carry like an argument": lambda L, a, w: L.lax.scan(
        lambda c, _: (c + a, None), L.np.zeros_like(a), None, length=2
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_what_values_vary_over_is_what_jax_says(name):
    found = {}
    for L in (ours(), theirs()):

        def body(a, w, L=L):
            found[L.api.__name__] = [L.varying(x) for x in L.tree.leaves(VALUES[name](L, a, w))]
            return a

        stage(body, L)
    assert found["meshrt"] == found["jax"]


def test_manual_axis_types_are_those_of_jax():
    found = {}
    for L in (ours(), theirs()):
        made = L.sharding.ManualAxisType
        values = found[L.api.__name__] = []

        def body(a, w, L=L, values=values, made=made):
            mesh = L.sharding.get_abstract_mesh()
            for x in (a, w, L.lax.pcast(w, ("x", "y"), to="varying"), L.lax.pcast(w, "y", to="reduced")):
                mat = L.typeof(x).mat
                assert x.mat == mat and mat == made(varying=mat.varying, reduced=mat.reduced)
                sets = (
                    mat.varying,
                    mat.unreduced,
                    mat.reduced,
                    mat.vur,
                    mat.invarying(mesh),
                    mat.to_ct_mat().unreduced,
                )
                values.append([*map(set, sets), mat.empty])
            values.append(repr(L.typeof(a).mat))
            struct = L.ShapeDtypeStruct.like(a)
            values.append([struct.manual_axis_type == L.typeof(a).mat, set(L.typeof(struct).mat.varying)])
            values.append(
                [hash(struct) == hash(struct.update(shape=(2, 4))), struct == struct.update(manual_axis_type=None)]
            )
            return a

        stage(body, L)
        values.append(L.typeof(A).mat.empty)
        values.append(set(made(varying={"x"}).update(unreduced={"y"}).unreduced))
        values.append(pickle.loads(pickle.dumps(made(varying={"x"}))) == made(varying={"x"}))
        with pytest.raises(ValueError, match="varying and unreduced cannot have common mesh axes"):
            made(varying={"x"}, unreduced={"x"})
        with pytest.raises(TypeError, match="manual_axis_type"):
            L.ShapeDtypeStruct((2,), np.float32, manual_axis_type={"x"})
    assert found["meshrt"] == found["jax"]
    struct = meshrt.ShapeDtypeStruct((2,), np.float32, manual_axis_type=meshrt.sharding.ManualAxisType(varying={"x"}))
    assert "manual_axis_type=ManualAxisType(varying" in repr(struct)
    with pytest.raises(errors.ShardingError, match="should be of type `Manual`"):
        meshrt.typeof(struct)


def test_types_are_printed_with_their_axes():
    seen = []
    stage(lambda a, w: seen.append((str(meshrt.typeof(a)), str(meshrt.typeof(lax.axis_index(("x", "y")))))) or a)
    assert seen == [("float32[2,4]{V:x}", "int32[]{V:(x,y)}")]


def test_a_choice_that_differs_between_devices_makes_results_differ():
    with pytest.raises(errors.ReplicationError, match=r"cond at(.|\n)*axis_index at"):
        stage(lambda a, w: lax.cond(lax.axis_index("x") == 0, lambda: 1.0, lambda: 2.0), out_specs=P())
    with pytest.raises(errors.ReplicationError, match="while at"):
        count = lambda a, w: lax.while_loop(lambda i: i < lax.axis_index("x"), lambda i: i + 1, 0)
        stage(count, out_specs=P())


def test_gradients_of_branches_that_devices_choose_apart_sum_outside_of_them():
    def body(a, w):
        twice = lambda a: lax.scan(lambda c, _: (jnp.sin(c @ w), None), a, None, length=2)[0] * w.sum()
        return lax.cond(lax.axis_index("x") % 2 == 0, lambda a: a @ w, twice, a)

    def plain(a, w):
        rows = [a[2 * i : 2 * i + 2] for i in range(4)]
        return jnp.concatenate(
            [r @ w if i % 2 == 0 else jnp.sin(jnp.sin(r @ w) @ w) * w.sum() for i, r in enumerate(rows)]
        )

    f = mapped(body)
    same(f(A, W), plain(A, W), 1e-4)
    grad = lambda f: meshrt.grad(lambda a, w: (f(a, w) ** 2).sum(), argnums=(0, 1))(A, W)
    same(grad(f), grad(plain), 1e-3)
    assert "psum" not in str(meshrt.make_jaxpr(lambda a, w: grad(f))(A, W)).split("branches")[1].split("]")[0]


def test_constants_of_a_body_need_no_cast():
    assert "pvary" not in str(stage(lambda a, w: jnp.sin(a * 2.0) + 1.0))


WITHOUT_CASTS = {  # whether JAX takes it where auto_pcast is off
    "added": (lambda L, a, w: a + w[0], False),
    "cast and added": (lambda L, a, w: a + L.lax.pcast(w[0], "x", to="varying"), True),
    "put together": (lambda L, a, w: L.np.concatenate([a, w]), False),
    "in a jitted function": (lambda L, a, w: L.jit(lambda a, w: a * w[0])(a, w), False),
    "in a mapped one": (lambda L, a, w: L.vmap(lambda r: r + w[0])(a), False),
    "tangents": (lambda L, a, w: L.jvp(lambda w: a * w[0], (w,), (w,)), False),
    "psum": (lambda L, a, w: L.lax.psum(w, "x"), False),
    "pmax": (lambda L, a, w: L.lax.pmax(w, "x"), False),
    "psum of what varies": (lambda L, a, w: L.lax.psum(a, "x"), True),
    "all_gather": (lambda L, a, w: L.lax.all_gather(w, "x"), False),
    "branches": (lambda L, a, w: L.lax.cond(True, lambda: a[:1], lambda: w[:1]), False),
    "branches that vary": (lambda L, a, w: L.lax.cond(True, lambda: a, lambda: -a), True),
    "result": (lambda L, a, w: w, True),
}


@pytest.mark.parametrize("name", WITHOUT_CASTS)
def test_without_auto_pcast_casts_have_to_be_written(name):
    program, fits = WITHOUT_CASTS[name]
    for L in (ours(), theirs()):

        def body(a, w, L=L):
            program(L, a, w)
            return a

        if name != "branches" or L.api is meshrt:  # JAX never casts these
            stage(body, L)  # what was traced while casts were put in does not count
        with L.api.auto_pcast(False):
            if fits:
                stage(body, L)
                continue
            with pytest.raises(TypeError if name == "branches" else ValueError) as e:
                stage(body, L)
        assert L.api is not meshrt or "write meshrt.lax.pcast(" in str(e.value)


def test_a_region_is_traced_anew_where_casts_are_no_longer_put_in():
    f = meshrt.jit(mapped(lambda a, w: a + w[0]))
    same(f(A, W), A + W[0])
    with meshrt.auto_pcast(False), pytest.raises(ValueError, match="varying manual axes"):
        f(A, W)
    same(meshrt.jit(mapped(lambda a, w: a + w[0], check_vma=False))(A, W), A + W[0])


def test_carries_that_begin_to_vary_are_told_what_to_do():
    loops = {
        "scan": lambda L, a: L.lax.scan(lambda c, _: (c + a, None), L.np.zeros((2, 4)), None, length=2)[0],
        "fori": lambda L, a: L.lax.fori_loop(0, 3, lambda i, c: c + a, L.np.zeros((2, 4))),
        "while": lambda L, a: L.lax.while_loop(lambda c: c.sum() < 3, lambda c: c + a, L.np.zeros((2, 4))),
    }
    for loop in loops.values():
        with pytest.raises(TypeError, match=r"pcast\(\.\.\., \('x',\), to='varying'\)"):
            stage(lambda a, w: loop(theirs(), a), theirs())
        with pytest.raises(TypeError, match=r"pcast\(\.\.\., \('x',\), to='varying'\)"):
            stage(lambda a, w: loop(ours(), a))


def test_carries_that_become_the_same_keep_varying():
    out = stage(lambda a, w: lax.scan(lambda c, _: (jnp.zeros((2, 4)), None), a, None, length=2)[0])
    assert [str(t) for t in out.out_avals] == ["float32[8,4]"]


def test_branches_are_joined():
    f = mapped(lambda a, w: lax.cond(w.sum() > 0, lambda: a, lambda: jnp.zeros((2, 4))))
    same(f(A, W * 0 + 1), A)
    same(meshrt.vmap(f)(A[None], W[None] * 0 - 1), A[None] * 0)


def custom(L, backward):
    @L.custom_vjp
    def h(a, w):
        return a @ w

    h.defvjp(lambda a, w: (a @ w, (a, w)), backward)
    return lambda: L.make_jaxpr(L.grad(lambda a, w: mapped(h, L)(a, w).sum(), argnums=(0, 1)))(A, W)


def test_backward_rules_give_cotangents_of_their_arguments_kind():
    wrong = lambda r, g: (g @ r[1].T, r[0].T @ g)
    for L in (theirs(), ours()):
        with pytest.raises(ValueError, match="do not match"):
            custom(L, wrong)()
    custom(ours(), lambda r, g: (jnp.zeros((2, 4)), jnp.zeros((4, 4))))()
    custom(ours(), lambda r, g: (g @ r[1].T, lax.psum(r[0].T @ g, "x")))()


def test_003_chain_names_each_operation_and_what_to_do():
    """Reference 5.03: the chain by which a value became varying, and the collective that makes it invariant."""

    def body(a, w):
        shifted = a + w.sum()
        return jnp.tanh(shifted) @ w

    with pytest.raises(ValueError) as e:
        stage(body, out_specs=P())
    text = str(e.value)
    assert "out_specs which require replication which can't be statically inferred given the mesh" in text
    steps = [line.split(" at ")[0].strip() for line in text.splitlines() if " at " in line]
    assert steps == ["dot_general", "tanh", "add"]
    assert all(__file__ in line for line in text.splitlines() if " at " in line)
    assert "args[0], which enters with P('x',)" in text and "meshrt.lax.psum(x, 'x')" in text


def ways_into_branches():
    """Functions that trace a part of theirs for the types of what a branch gives them."""
    product = lambda a, w: jnp.sin(a @ w)
    with_rule = meshrt.custom_vjp(product)
    with_rule.defvjp(lambda a, w: (product(a, w), (a, w)), lambda res, ct: meshrt.vjp(product, *res)[1](ct))
    with_tangents = meshrt.custom_jvp(product)
    with_tangents.defjvp(lambda primals, tangents: meshrt.jvp(product, primals, tangents))
    within = lambda a, w: meshrt.grad(lambda w: (product(a, w) ** 2).sum())(w)
    return {
        "closure": product,
        "jit": meshrt.jit(product),
        "checkpoint": meshrt.checkpoint(product),
        "custom_vjp": with_rule,
        "custom_jvp": with_tangents,
        "carry": lambda a, w: lax.scan(lambda c, _: ((product(c[0], c[1]), c[1]), None), (a, w), None, length=2)[0][0],
        "xs": lambda a, w: lax.scan(lambda c, x: (product(c, x), None), a, jnp.stack([w, w]))[0],
        "fori": lambda a, w: lax.fori_loop(0, 2, lambda i, c: (product(*c), c[1]), (a, w))[0],
        "cond": lambda a, w: lax.cond(w.sum() > 1e9, lambda a, w: a, product, a, w),
        "grad": lambda a, w: product(a, within(a, w)),
    }


@pytest.mark.parametrize("way", ways_into_branches())
def test_what_enters_a_branch_that_devices_choose_varies_whatever_takes_it(way):
    """Its cotangents are added up outside: within, some devices would wait for others that never come."""
    part = ways_into_branches()[way]
    f = mapped(lambda a, w: lax.cond(lax.axis_index("x") % 2 == 0, lambda: part(a, w), lambda: a))
    rows = lambda a: [a[2 * i : 2 * i + 2] for i in range(4)]
    plain = lambda a, w: jnp.concatenate([part(r, w) if i % 2 == 0 else r for i, r in enumerate(rows(a))])
    grad = lambda f: meshrt.grad(lambda a, w: (f(a, w) ** 2).sum(), argnums=(0, 1))
    text = str(meshrt.make_jaxpr(grad(f))(A, W))
    assert "psum" not in text.split("branches")[1].split("]")[0]
    same(meshrt.jit(grad(f))(A, W), meshrt.jit(grad(plain))(A, W), 1e-3)


def test_what_enters_a_loop_that_devices_leave_at_different_times_varies():
    """As in branches: the derivative in the body is each device's own, and no sum is waited for there."""

    def body(a, w):
        slope = lambda w: meshrt.grad(lambda w: (a * w).sum())(w)
        step = lambda s: (s[0] + 1, s[1] + slope(w[0, 0]))
        return lax.while_loop(lambda s: s[0] < lax.axis_index("x"), step, (0, jnp.float32(0)))[1][None]

    assert "psum" not in str(stage(body))
    found = meshrt.jit(mapped(body))(A, W)
    same(found, np.array([i * A[2 * i : 2 * i + 2].sum() for i in range(4)]), 1e-4)
