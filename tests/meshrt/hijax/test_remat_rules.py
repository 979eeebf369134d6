"""High operations inside of `checkpoint`: by their reverse mode, and by their own `remat` rules."""

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import lax
from meshrt.experimental.hijax import HiPrim, VJPHiPrimitive
from meshrt.experimental.hijax.quantized import quantize, quantized_matmul

X = np.arange(24, dtype=np.float32).reshape(3, 8)


class Known(VJPHiPrimitive):
    """The sine `y` of `x`, whose cosine `c` is known too."""

    def __init__(self, aval):
        self.in_avals, self.out_aval, self.params = (aval,) * 3, aval, {}
        super().__init__()

    def expand(self, x, c, y):
        return y

    def vjp_fwd(self, nonzeros, x, c, y):
        return self(x, c, y), c

    def vjp_bwd_retval(self, c, ct):
        return ct * c, None, None


class Rules:
    def __init__(self, aval):
        self.in_avals, self.out_aval, self.params = (aval,), aval, {}
        super().__init__()

    def expand(self, x):
        return jnp.sin(x)

    def vjp_fwd(self, nonzeros, x):
        return self(x), x

    def vjp_bwd_retval(self, x, ct):
        return (ct * jnp.cos(x),)


class Sine(Rules, VJPHiPrimitive):
    pass


class SavesCosine(Sine):
    asked: list = []

    def remat(self, policy, x):
        self.asked.append(policy)
        y, c = self(x), jnp.cos(x)
        return y, lambda again: Known(meshrt.typeof(again))(again, c, y)


class SavesCosineToo(Rules, HiPrim):
    asked: list = []

    def remat(self, trace, x):
        self.asked.append(trace.policy)
        y = self(x)
        return y, (jnp.cos(x), y), lambda saved, again: Known(meshrt.typeof(again))(again, *saved)


def test_checkpoint_of_an_operation_whose_derivative_is_a_vjp():
    w = quantize(jnp.asarray(X.T), axis=1)
    f = lambda x, w: jnp.sin(quantized_matmul(x, w)).sum()
    want = meshrt.grad(f, argnums=(0, 1))(X, w)
    for policy in (None, meshrt.checkpoint_policies.everything_saveable):
        g = meshrt.checkpoint(f, policy=policy)
        for got, expected in zip(meshrt.jit(meshrt.grad(g, argnums=(0, 1)))(X, w), want):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-4)
    pushed = meshrt.jit(
        lambda x: (meshrt.jvp(lambda x: g(x, w), (x,), (x,))[1], meshrt.linearize(g, x, w)[1](x, 0 * want[1]))
    )(X)
    np.testing.assert_allclose(pushed, [(want[0] * X).sum()] * 2, rtol=1e-4)


@pytest.mark.parametrize("kind", [SavesCosine, SavesCosineToo])
@pytest.mark.parametrize("policy", [None, meshrt.checkpoint_policies.everything_saveable], ids=["none", "all"])
def test_the_rule_says_what_is_saved_and_what_is_differentiated(kind, policy):
    sine = lambda x: kind(meshrt.typeof(x))(x)
    f = meshrt.checkpoint(lambda x: jnp.exp(sine(meshrt.jit(sine)(x))), policy=policy)
    want = meshrt.grad(lambda x: jnp.exp(jnp.sin(jnp.sin(x))))(1.5)
    kind.asked.clear()
    np.testing.assert_allclose(meshrt.grad(f)(1.5), want, rtol=1e-6)
    assert kind.asked == [policy, policy]
    np.testing.assert_allclose(meshrt.jit(meshrt.grad(f))(1.5), want, rtol=1e-6)
    # Cosines are computed forward, twice, and not again: the backward pass has products only.
    forward, *_, backward = [e.params["jaxpr"] for e in meshrt.make_jaxpr(meshrt.grad(f))(1.5).jaxpr.eqns]
    assert [e.primitive.name for e in forward.eqns].count("cos") == 2
    assert not {"cos", "sin"} & {e.primitive.name for e in backward.eqns}
    high = [e.params["_prim"] for e in backward.eqns if e.primitive.name == "call_hi_primitive"]
    assert all(type(p) is Known for p in high)
    mapped = meshrt.vmap(meshrt.grad(lambda s, x: s * f(x), argnums=0), in_axes=(0, None))
    np.testing.assert_allclose(mapped(jnp.arange(2.0), 1.5), [np.exp(np.sin(np.sin(1.5)))] * 2, rtol=1e-6)


def test_operations_without_a_rule_are_computed_again_in_loops_too():
    sine = lambda x: Sine(meshrt.typeof(x))(x)
    f = meshrt.checkpoint(lambda x: lax.fori_loop(0, 2, lambda i, x: sine(x), x))
    np.testing.assert_allclose(meshrt.jit(meshrt.grad(f))(1.5), meshrt.grad(lambda x: jnp.sin(jnp.sin(x)))(1.5))
