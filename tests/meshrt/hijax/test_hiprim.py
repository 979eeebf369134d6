"""Operations in the form of JAX 0.12: `HiPrim`, pairs of derived rules, what batch rules are written with."""

from __future__ import annotations

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import lax
from meshrt.experimental import hijax
from meshrt.experimental.hijax import HiPrim

X, Z = jnp.array([0.1, 0.2, 0.3]), jnp.float32(0.5)
plain_or_jitted = pytest.mark.parametrize("wrap", [lambda f: f, meshrt.jit], ids=["plain", "jit"])


def close(got, want):
    np.testing.assert_allclose(np.asarray(got), want, rtol=1e-5, atol=1e-6)


class Sine(HiPrim):
    def __init__(self, aval, scale=1.0):
        self.in_avals, self.out_aval, self.params = (aval,), aval, {"scale": scale, "_hidden": None}
        super().__init__()

    def expand(self, x):
        return self.scale * jnp.sin(x)

    def jvp(self, primals, tangents):
        return self(*primals), self.scale * jnp.cos(primals[0]) * hijax.instantiate_zeros(tangents[0])

    vjp_fwd, vjp_bwd_retval = hijax.vjp_from_jvp
    lin, linearized = hijax.linearize_from_jvp

    def batch(self, axis_data, args, dims):
        (kind,) = hijax.unmap_avals(axis_data, self.in_avals, dims)
        return type(self)(kind, self.scale)(*args), dims[0]


class FromLin(Sine):
    lin = lambda self, nonzeros, x: (self(x), self.scale * jnp.cos(x), nonzeros[0])
    linearized = lambda self, slope, t: slope * hijax.instantiate_zeros(t)
    jvp = hijax.jvp_from_lin
    vjp_fwd, vjp_bwd_retval = hijax.vjp_from_lin


class Structured(Sine):
    """The rules leave residuals of two kinds."""

    lin = lambda self, nonzeros, x: (self(x), jnp.cos(x), nonzeros[0], {"scale": jnp.float32(self.scale)})
    linearized = lambda self, slope, more, t: slope * more["scale"] * t
    jvp = hijax.jvp_from_lin
    vjp_fwd = lin

    def vjp_bwd(self, slope, more, ct, accum):
        accum.accum(ct * slope * more["scale"])


class StructuredFromLin(Structured):
    vjp_fwd, vjp_bwd_retval = hijax.vjp_from_lin
    vjp_bwd = HiPrim.vjp_bwd


class Logs(Sine):
    vjp_fwd = lambda self, nonzeros, x: (self(x), x)
    vjp_bwd_retval_logs = lambda self, x, ct: ((self.scale * ct * jnp.cos(x),), {"cotangent": ct})


class Spread(Sine):
    def batch(self, axis_data, args, dims):
        (xs,) = hijax.bdims_at_front(axis_data, args, dims)
        return Sine(meshrt.typeof(xs), self.scale)(xs), 0


@plain_or_jitted
@pytest.mark.parametrize("cls", [Sine, FromLin, Structured, StructuredFromLin, Logs, Spread])
def test_all_transformations_apply_the_rules(cls, wrap):
    f = lambda x: cls(meshrt.typeof(x), 2.0)(x)
    sin, cos = 2 * np.sin(0.5), 2 * np.cos(0.5)
    close(wrap(f)(Z), sin)
    close(wrap(meshrt.grad(f))(Z), cos)
    close(wrap(lambda x: meshrt.jvp(f, (x,), (x,)))(Z), [sin, cos / 2])
    close(wrap(lambda x: meshrt.linearize(f, x)[1](1.0))(Z), cos)
    close(wrap(meshrt.vmap(f, in_axes=1, out_axes=1))(jnp.stack([X, X])), 2 * np.sin([X, X]))
    close(wrap(meshrt.vmap(meshrt.grad(f)))(X), 2 * np.cos(X))
    close(wrap(meshrt.grad(meshrt.checkpoint(f)))(Z), cos)
    twice = lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0]
    close(wrap(meshrt.grad(twice))(Z), cos * 2 * np.cos(sin))


def test_second_derivatives():
    f = lambda x: Sine(meshrt.typeof(x), 2.0)(x)
    for second in (meshrt.grad(meshrt.grad(f)), meshrt.hessian(f), meshrt.jacfwd(meshrt.grad(f))):
        close(second(Z), -2 * np.sin(0.5))


class Both(HiPrim):
    """Sums and products of a tree, mapped by what it expands to."""

    def __init__(self, aval):
        self.in_avals, self.out_aval, self.params = ((aval, {"b": aval}),), {"sum": aval, "product": aval}, {}
        super().__init__()

    def expand(self, pair):
        return {"sum": pair[0] + pair[1]["b"], "product": pair[0] * pair[1]["b"]}

    def vjp_fwd(self, nonzeros, pair):
        return self(pair), pair

    def vjp_bwd_retval(self, pair, ct):
        of_sum, of_product = map(hijax.instantiate_zeros, (ct["sum"], ct["product"]))
        return ((of_sum + of_product * pair[1]["b"], {"b": of_sum + of_product * pair[0]}),)

    def batch(self, axis_data, args, dims):
        return hijax.vmap_rule(axis_data, self.expand, dims, 0)(*args), {"sum": 0, "product": 0}


def test_operations_on_trees():
    f = lambda a, b: Both(meshrt.typeof(a))((a, {"b": b}))
    close(meshrt.grad(lambda a, b: f(a, b)["product"], (0, 1))(Z, Z + 1), [1.5, 0.5])
    close(meshrt.vmap(f, in_axes=(0, None))(X, Z)["sum"], np.asarray(X) + 0.5)
    close(meshrt.jit(lambda x: f(x, x)["product"])(Z), 0.25)


def test_zeros_pass_through_mapped_rules():
    found = []

    def rule(x, t):
        found.append(t.aval.shape)
        return x, t

    class Probe(Sine):
        def batch(self, axis_data, args, dims):
            zero = hijax.Zero(meshrt.typeof(args[0]).to_tangent_aval())
            _, t = hijax.vmap_rule(axis_data, rule, (dims[0], dims[0]), (0, 0))(args[0], zero)
            found.append(t.aval.shape)
            return args[0], dims[0]

    meshrt.vmap(lambda x: Probe(meshrt.typeof(x))(x))(jnp.ones((3, 2)))
    assert found == [(2,), (3, 2)]


def test_what_is_missing_or_not_asked_is_refused():
    class Bare(HiPrim):
        def __init__(self, aval):
            self.in_avals, self.out_aval, self.params = (aval,), aval, {}
            super().__init__()

    f = lambda x: Bare(meshrt.typeof(x))(x)
    for run, method in (
        (lambda: f(Z), "expand"), (lambda: meshrt.grad(f)(Z), "vjp_fwd"), (lambda: meshrt.vmap(f)(X), "batch"),
        (lambda: meshrt.jvp(f, (Z,), (Z,)), "jvp"), (lambda: meshrt.linearize(f, Z), "lin"),
    ):  # fmt: skip
        with pytest.raises(NotImplementedError, match=f"Bare'> must implement `{method}`"):
            run()

    class Staging(Bare):
        staging = lambda self, trace, source, *args: None

    class Circle(Sine):
        lin, linearized = hijax.linearize_from_jvp
        jvp = hijax.jvp_from_lin

    with pytest.raises(NotImplementedError, match="Staging has a `staging` rule"):
        Staging(meshrt.typeof(Z))
    with pytest.raises(TypeError, match="each is derived from the other"):
        meshrt.jvp(lambda x: Circle(meshrt.typeof(x))(x), (Z,), (Z,))
    assert repr(Sine(meshrt.typeof(Z), 2.0)) == "Sine[scale=2.0]"
