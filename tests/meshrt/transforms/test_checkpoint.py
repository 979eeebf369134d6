"""checkpoint: what each policy saves, against JAX; results; second derivatives; refusals."""

import jax
import jax.ad_checkpoint
import jax.numpy as jnp
import numpy as np
import pytest

import meshrt
import meshrt.ad_checkpoint
import meshrt.numpy as mnp
from meshrt import errors
from meshrt.transforms import checkpoint
from tests.meshrt.control.test_against_jax import jit
from tests.meshrt.control.test_residuals import saved, saved_by_jax

W = np.random.default_rng(0).normal(size=(4, 3, 3)).astype(np.float32)
X = np.random.default_rng(1).normal(size=(2, 3)).astype(np.float32)

POLICIES = {
    "default": lambda p: None,
    "everything": lambda p: p.everything_saveable,
    "nothing": lambda p: p.nothing_saveable,
    "dots": lambda p: p.dots_saveable,
    "checkpoint_dots": lambda p: p.checkpoint_dots,
    "no batch": lambda p: p.dots_with_no_batch_dims_saveable,
    "only h": lambda p: p.save_only_these_names("h"),
    "not t": lambda p: p.save_any_names_but_these("t"),
    "anything but h": lambda p: p.save_anything_except_these_names("h"),
    "both": lambda p: p.save_from_both_policies(p.dots_saveable, p.save_only_these_names("t")),
}


def programs(jx, np_, name, policy):
    named = jx.ad_checkpoint.checkpoint_name
    dense = jx.jit(lambda h, w: h @ w)

    def layer(h, w):
        y = named(np_.tanh(named(dense(h, w), "h")), "t")
        scores = np_.einsum("bi,bj->bij", y, y)
        return np_.einsum("bij,bj->bi", np_.sin(scores), dense(y, w)), None

    block = jx.checkpoint(layer, policy=policy)
    scanned = lambda w, x: jx.lax.scan(block, x, w)[0]
    called = lambda w, x: block(block(x, w[0])[0], w[1])[0]
    return {"scanned": scanned, "called": called}


@pytest.mark.parametrize("policy", list(POLICIES))
def test_policy(policy):
    mine = programs(meshrt, mnp, policy, POLICIES[policy](meshrt.checkpoint_policies))
    theirs = programs(jax, jnp, policy, POLICIES[policy](jax.checkpoint_policies))
    for kind, f in mine.items():
        g = theirs[kind]
        a, b = saved(f, W, X), saved_by_jax(g, W, X)
        size = lambda found: sum(int(np.prod(shape)) for _, shape in found)
        assert size(a) <= size(b), (kind, a, b)
        if policy in ("default", "nothing", "dots", "only h"):
            assert [np.prod(s) for _, s in a] == [np.prod(s) for _, s in b], (kind, a, b)
    f, g = mine["scanned"], theirs["scanned"]
    got = jit(meshrt, meshrt.grad(lambda w, x: mnp.sum(f(w, x) ** 2), (0, 1)))(W, X)
    want = jit(jax, jax.grad(lambda w, x: jnp.sum(g(w, x) ** 2), (0, 1)))(W, X)
    for p, q in zip(got, want, strict=True):
        np.testing.assert_allclose(np.asarray(p), np.asarray(q), rtol=1e-3, atol=1e-4)


def test_the_policy_sees_operations_with_types_and_parameters():
    seen = []

    def policy(primitive, *avals, **params):
        seen.append((str(primitive), [a.shape for a in avals], sorted(params)))
        return False

    f = meshrt.checkpoint(lambda x, w: mnp.sin(x @ w), policy=policy)
    meshrt.grad(lambda x: mnp.sum(f(x, W[0])))(X)
    assert ("dot_general", [(2, 3), (3, 3)], ["dimension_numbers", "precision", "preferred_element_type"]) in seen


def test_static_arguments():
    def f(x, flag, *, power=2):
        return np_power(x, power) if flag else -x

    np_power = lambda x, n: x**n
    g = meshrt.checkpoint(f, static_argnums=(1,), static_argnames=("power",))
    np.testing.assert_allclose(meshrt.grad(lambda x: mnp.sum(g(x, True, power=3)))(X), 3 * X**2, rtol=1e-5)
    np.testing.assert_allclose(meshrt.grad(lambda x: mnp.sum(g(x, False)))(X), -np.ones_like(X))


def test_keyword_arguments_and_pytrees():
    f = meshrt.checkpoint(lambda p, *, scale: {"out": mnp.sin(p["x"]) * scale})
    grads = meshrt.grad(lambda p, s: mnp.sum(f(p, scale=s)["out"]), (0, 1))({"x": X}, 2.0)
    np.testing.assert_allclose(grads[0]["x"], 2 * np.cos(X), rtol=1e-5)
    np.testing.assert_allclose(float(grads[1]), np.sin(X).sum(), rtol=1e-5)


def test_print_saved_residuals(capsys):
    meshrt.ad_checkpoint.print_saved_residuals(lambda w: mnp.sum(mnp.sin(w["a"]) * 2.0), {"a": X})
    out = capsys.readouterr().out
    assert "f32[2,3] output of cos from" in out and "test_checkpoint.py" in out


REFUSED = {
    "concrete": (lambda: meshrt.checkpoint(mnp.sin, concrete=True), NotImplementedError, "static_argnums"),
    "policy": (lambda: meshrt.checkpoint(mnp.sin, policy="dots"), TypeError, "must be a function"),
    "argument": (lambda: meshrt.checkpoint(lambda x, s: x)(X, "a"), TypeError, "can be made static"),
    "cse": (lambda: meshrt.checkpoint(mnp.sin, prevent_cse=(True,)), NotImplementedError, "one bool"),
}


@pytest.mark.parametrize("name", list(REFUSED))
def test_refusal(name):
    call, kind, part = REFUSED[name]
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, errors.MeshrtError) and part in str(caught.value)


def test_what_can_only_be_evaluated_is_evaluated():
    """A library's own primitive without a lowering, as in JAX, and single operations where those are asked for."""
    seen = []
    with_value_p = meshrt.extend.core.Primitive("with_value")
    with_value_p.def_impl(lambda x: seen.append(float(x)) or x)
    with_value_p.def_abstract_eval(lambda x: x)
    meshrt.interpreters.ad.deflinear(with_value_p, lambda ct: [ct])
    f = meshrt.checkpoint(lambda x: mnp.sin(with_value_p.bind(x)))
    assert float(f(3.0)) == pytest.approx(np.sin(3.0)) and seen == [3.0]
    assert float(meshrt.grad(f)(3.0)) == pytest.approx(np.cos(3.0))
    with pytest.raises(NotImplementedError, match="with_value"):
        meshrt.jit(f)(3.0)
    del seen[:]
    with meshrt.disable_jit():
        np.testing.assert_array_equal(meshrt.lax.map(with_value_p.bind, X[0]), X[0])
    np.testing.assert_array_equal(seen, X[0])


@pytest.mark.parametrize("kept_first", [True, False])
def test_a_body_is_pruned_with_and_without_its_arguments(kept_first):
    closed = meshrt.make_jaxpr(meshrt.checkpoint(lambda x, y: (x * 2, y * 3)))(1.0, 2.0)
    (eqn,) = closed.eqns
    prune = {
        True: lambda: checkpoint._without_results(eqn.params["jaxpr"], 1),
        False: lambda: checkpoint._dce(eqn, [False, True]).params["jaxpr"],
    }
    pruned = {keeps: prune[keeps]() for keeps in (kept_first, not kept_first)}
    assert [len(pruned[keeps].invars) for keeps in (True, False)] == [2, 1]
    assert all(len(p.eqns) == len(p.outvars) == 1 for p in pruned.values())
