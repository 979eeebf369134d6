"""checkpoint: policies hold inside of branches, loops and calls; operations of the derivative, counted against JAX."""

import collections

import jax
import jax.ad_checkpoint
import jax.numpy as jnp
import numpy as np
import pytest

import meshrt
import meshrt.ad_checkpoint
import meshrt.numpy as mnp
from tests.meshrt.control.test_residuals import saved, saved_by_jax

X = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
COUNTED = ("sin", "cos", "exp", "tanh", "dot_general")

POLICIES = {
    "nothing": lambda p: p.nothing_saveable,
    "only a": lambda p: p.save_only_these_names("a"),
    "names but a": lambda p: p.save_any_names_but_these("a"),
    "anything but a": lambda p: p.save_anything_except_these_names("a"),
    "dots": lambda p: p.dots_saveable,
    "both": lambda p: p.save_from_both_policies(p.dots_saveable, p.save_only_these_names("a")),
}


def programs(jx, np_):
    name, lax = jx.ad_checkpoint.checkpoint_name, jx.lax
    by_jvp = jx.custom_jvp(lambda x: np_.sin(x))
    by_jvp.defjvp(lambda p, t: (by_jvp(*p), np_.cos(p[0]) * t[0]))
    by_vjp = jx.custom_vjp(lambda x: np_.sin(x))
    by_vjp.defvjp(lambda x: (np_.sin(x), np_.cos(x)), lambda r, g: (r * g,))

    def named(f):
        return lambda x: np_.sin(name(f(x), "a"))

    def either(f, g):
        return lambda x: lax.cond(np_.sum(x) > 0, f, g, x)

    def loop(f):
        return lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=3)[0]

    double = lambda x: x * 2
    return {
        "cond": either(named(np_.sin), double),
        "residuals of two types": either(
            named(np_.sin), lambda x: np_.tile(np_.exp(name(np_.tanh(x[0]), "a")), (3, 1))
        ),
        "switch": lambda x: lax.switch(np_.int32(np_.sum(x) > 0), [named(np_.sin), lambda x: x, named(np_.exp)], x),
        "custom_jvp in cond": either(named(by_jvp), double),
        "custom_vjp in cond": either(named(by_vjp), double),
        "jit in cond": either(jx.jit(named(np_.sin)), double),
        "cond in jit": jx.jit(either(named(np_.sin), double)),
        "cond in cond": either(either(named(np_.sin), lambda x: x + 1), double),
        "scan": loop(named(np_.sin)),
        "loop-invariant": lambda x: loop(lambda c: np_.sin(c * name(np_.sin(name(np_.exp(x), "b")), "a")))(x),
        "ys": lambda x: lax.scan(lambda c, _: (np_.tanh(c), np_.sin(name(np_.sin(c), "a"))), x, None, length=3)[1],
        "cond in scan": loop(either(named(np_.sin), double)),
        "scan in cond": either(loop(named(np_.sin)), double),
        "scan in scan": loop(loop(named(np_.sin))),
        "matmul in cond": either(lambda x: np_.tanh(np_.sin(x) @ x), double),
        "matmul in scan": lambda x: loop(lambda c: np_.tanh(np_.sin(c) @ x))(x),
    }


def count(jaxpr):
    found = collections.Counter()
    for eqn in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        found[str(eqn.primitive)] += str(eqn.primitive) in COUNTED
        for value in eqn.params.values():
            for inner in value if isinstance(value, tuple | list) else [value]:
                if hasattr(getattr(inner, "jaxpr", inner), "eqns"):
                    found += count(inner)
    return +found


@pytest.mark.sweep(2)
@pytest.mark.parametrize("program", list(programs(jax, jnp)))
def test_a_policy_holds_inside(program):
    for name, policy in POLICIES.items():
        f = meshrt.checkpoint(programs(meshrt, mnp)[program], policy=policy(meshrt.checkpoint_policies))
        g = jax.checkpoint(programs(jax, jnp)[program], policy=policy(jax.checkpoint_policies))
        mine, theirs = meshrt.grad(lambda x, f=f: mnp.sum(f(x))), jax.grad(lambda x, g=g: jnp.sum(g(x)))
        a, b = count(meshrt.make_jaxpr(mine)(X)), count(jax.make_jaxpr(theirs)(X))
        assert a <= b, (name, a, b)
        size = lambda found: sum(int(np.prod(shape)) for kind, shape in found if kind == "f32")
        assert size(saved(f, X)) <= size(saved_by_jax(g, X)), name
        if name in ("only a", "both"):
            np.testing.assert_allclose(np.asarray(mine(X)), np.asarray(theirs(X)), rtol=1e-4, atol=1e-5)
