"""shard_map and its transformations against JAX: values and derivatives of the same programs, and both partitioners."""

from __future__ import annotations

import numpy as np
import pytest

from tests.meshrt.shard_map.libraries import Library, ours, same, theirs

A = np.random.RandomState(0).randn(8, 4).astype(np.float32)
W = (np.random.RandomState(1).randn(4, 4) * 0.3).astype(np.float32)

PROGRAMS = {}


def program(make):
    PROGRAMS[make.__name__] = make
    return make


def over(L: Library, f, **kwargs):
    return L.shard_map(f, mesh=L.mesh((4, 2), ("x", "y")), **kwargs)


@program
def contraction(L):
    P = L.P
    return over(L, lambda a, w: L.lax.psum(a @ w, "y"), in_specs=(P("x", "y"), P("y", None)), out_specs=P("x", None))


@program
def shared_operand(L):
    P = L.P
    body = lambda a, w: L.np.tanh(a @ w) * L.lax.psum(a.sum(), "x")
    return over(L, body, in_specs=(P("x"), P()), out_specs=P("x"))


@program
def captured(L):
    P = L.P
    return lambda a, w: over(L, lambda a: L.np.sin(a @ w), in_specs=(P("x"),), out_specs=P("x"))(a)


@program
def scan_inside(L):
    P = L.P

    def body(a, w):
        def step(c, _):
            c = L.np.tanh(c @ w)
            return c, c.sum()

        c, ys = L.lax.scan(step, a, None, length=3)
        return c, L.lax.psum(ys, "x")

    return over(L, body, in_specs=(P("x"), P()), out_specs=(P("x"), P()))


@program
def scan_with_one_carry(L):
    P = L.P

    def body(a, w):
        step = lambda c, r: (L.np.tanh(c @ w) + L.lax.psum(r.sum(), "x"), c.sum())
        return L.lax.scan(step, w, a)

    return over(L, body, in_specs=(P("x"), P()), out_specs=(P(), P()))


@program
def scan_around(L):
    P = L.P

    def run(a, w):
        body = lambda c, w: L.np.tanh(c @ w) - L.lax.pmean(c, "x")
        step = lambda c, _: (over(L, body, in_specs=(P("x"), P()), out_specs=P("x"))(c, w), None)
        return L.lax.scan(step, a, None, length=3)[0]

    return run


@program
def loop_inside(L):
    P = L.P
    body = lambda a, w: L.lax.fori_loop(0, 3, lambda i, c: L.np.tanh(c @ w) + i, a)
    return over(L, body, in_specs=(P("x"), P()), out_specs=P("x"))


@program
def branches_that_all_devices_take(L):
    P = L.P
    body = lambda a, w: L.lax.cond(w.sum() > 0, lambda a, w: a @ w, lambda a, w: a * w.sum(), a, w)
    return over(L, body, in_specs=(P("x"), P()), out_specs=P("x"))


@program
def remat_inside(L):
    P = L.P
    body = lambda a, w: L.checkpoint(lambda a, w: L.lax.psum(L.np.sin(L.np.tanh(a @ w)), "y"))(a, w)
    return over(L, body, in_specs=(P("x", "y"), P("y")), out_specs=P("x"))


@program
def remat_around(L):
    P = L.P
    body = lambda a, w: L.np.sin(L.np.tanh(a @ w))
    return L.checkpoint(over(L, body, in_specs=(P("x"), P()), out_specs=P("x")))


@program
def remat_with_a_policy(L):
    P = L.P
    f = over(L, lambda a, w: L.np.sin(L.np.tanh(a @ w)).sum()[None], in_specs=(P("x"), P()), out_specs=P("x"))
    return L.checkpoint(f, policy=L.checkpoint_policies.dots_saveable)


@program
def custom_vjp_inside(L):
    P = L.P

    @L.custom_vjp
    def h(a, w):
        return a @ w

    h.defvjp(lambda a, w: (a @ w, (a, w)), lambda r, g: (2 * g @ r[1].T, r[0].T @ g))
    body = lambda a, w: h(a, L.lax.pcast(w, ("x",), to="varying"))
    return over(L, body, in_specs=(P("x"), P()), out_specs=P("x"))


@program
def custom_jvp_inside(L):
    P = L.P

    @L.custom_jvp
    def h(a, w):
        return a @ w

    h.defjvp(lambda p, t: (p[0] @ p[1], 2 * (t[0] @ p[1] + p[0] @ t[1])))
    return over(L, lambda a, w: h(a, w), in_specs=(P("x"), P()), out_specs=P("x"))


@program
def jit_inside(L):
    P = L.P
    h = L.jit(lambda a, w: L.lax.psum(a @ w, "x"))
    return over(L, lambda a, w: h(a, w) + h(a * 2, w), in_specs=(P("x"), P()), out_specs=P())


@program
def unchecked(L):
    P = L.P
    body = lambda a, w: L.lax.psum(L.np.sin(a) @ w, "y")
    return over(L, body, in_specs=(P("x", "y"), P("y", None)), out_specs=P("x", None), check_vma=False)


@program
def unchecked_with_two_results(L):
    P = L.P
    body = lambda a, w: (L.np.sin(a) @ w, w * L.lax.psum(a.sum(), ("x", "y")))
    return over(L, body, in_specs=(P("x"), P()), out_specs=(P("x"), P()), check_vma=False)


@program
def some_axes_only(L):
    P = L.P
    body = lambda a, w: L.np.sin(a) @ w + L.lax.psum(a.sum(), "x")
    return over(L, body, in_specs=(P("x"), P()), out_specs=P("x"), axis_names={"x"})


@program
def pytrees(L):
    P = L.P
    f = over(
        L, lambda d, t: {"o": d["a"] @ t[0], "s": (L.lax.pmean(d["a"], "x"),)},
        in_specs=(P("x"), (P(),)), out_specs={"o": P("x"), "s": P()},
    )  # fmt: skip
    return lambda a, w: f({"a": a}, (w,))


def loss_of(L, f):
    def weighted(out):
        return (L.np.sin(out) * (1 + L.np.arange(out.size).reshape(out.shape))).sum()

    return lambda *args: sum(weighted(o) for o in L.tree.leaves(f(*args)))


def squares(L, tree):
    return sum((x**2).sum() for x in L.tree.leaves(tree))


B = (np.stack([A, A * 2]), np.stack([W, W * 2]))


SECOND_ORDER = ("contraction", "shared_operand", "custom_jvp_inside", "unchecked", "some_axes_only", "remat_inside")


def everything(L, f, has_jvp, is_second):
    """Values, derivatives and maps of `f`, in one program."""

    @L.jit
    def run(a, w, b, v):
        grad = lambda a, w: L.grad(loss_of(L, f), argnums=(0, 1))(a, w)
        return {
            "value": f(a, w),
            "grad": grad(a, w),
            "jvp": L.jvp(f, (a, w), (a * 0.5, w * 0.5)) if has_jvp else (),
            "vmap": L.vmap(f)(b, v),
            "grad of grad": L.grad(lambda *x: squares(L, grad(*x)), argnums=(0, 1))(a, w) if is_second else (),
            "grad of vmap": L.grad(lambda *x: squares(L, L.vmap(f)(*x)), argnums=(0, 1))(b, v),
            "vmap of grad": L.vmap(grad)(b, v),
        }

    return run(A, W, *B)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_values_and_derivatives_are_those_of_jax(name):
    mine, judge = ours(), theirs()
    f, g = PROGRAMS[name](mine), PROGRAMS[name](judge)
    has_jvp = name != "custom_vjp_inside"
    got, want = (everything(L, h, has_jvp, name in SECOND_ORDER) for L, h in ((mine, f), (judge, g)))
    for mode, value in want.items():
        same(got[mode], value, 3e-4)
    same(f(A, W), want["value"], 3e-4)


@pytest.mark.parametrize("name", ["contraction", "scan_with_one_carry", "remat_inside", "some_axes_only", "unchecked"])
def test_both_partitioners_agree(name):
    L = ours()
    make = lambda: L.jit(L.value_and_grad(loss_of(L, PROGRAMS[name](L)), argnums=(0, 1)))(A, W)
    mine = make()
    with L.api.config.override(partitioner="xla"):
        same(make(), mine, 3e-4)


@pytest.mark.parametrize("checked", [True, False])
def test_gradients_mapped_along_an_axis_that_the_function_leaves_alone(checked):
    found = []
    for L in (ours(), theirs()):
        P, settings = L.P, {"axis_names": {"x", "y"}, "check_vma": checked}
        f = over(L, lambda a: L.lax.psum(L.np.sin(a).sum(), "y"), in_specs=P("y"), out_specs=P(), **settings)
        grad = L.grad(lambda a: L.np.sin(L.jit(f)(a)))
        found.append([L.jit(L.vmap(g, spmd_axis_name="x"))(A) for g in (grad, L.grad(L.checkpoint(f)))])
        assert all(g.sharding.spec == P("x", "y") for g in found[-1])
    same(*found)


def test_a_dimension_split_over_an_explicit_axis_may_be_named_too():
    L = ours()
    mesh = L.mesh((4, 2), ("x", "y"), "Explicit")
    a = L.device_put(A, L.NamedSharding(mesh, L.P("x", "y")))
    f = L.shard_map(lambda a: a * 2, mesh=mesh, in_specs=L.P("y"), out_specs=L.P("y"))
    assert L.jit(L.vmap(f, spmd_axis_name="x"))(a).sharding.spec == L.P("x", "y")
    with pytest.raises(ValueError, match="Only one of spmd_axis_name"):
        L.jit(L.vmap(f, spmd_axis_name="y"))(a)
