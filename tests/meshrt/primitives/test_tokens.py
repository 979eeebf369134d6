"""Tokens: functions take and give them, beside JAX where JAX does."""

from __future__ import annotations

import pytest

import meshrt
from meshrt import errors, lax
from tests.meshrt.beside import assert_alike

ALIKE = {
    "its class": lambda L: type(L.lax.create_token()).__name__,
    "results": lambda L: (lambda y, t: (y, type(t).__name__))(
        *L.jit(lambda x: (x + 1, L.lax.after_all(L.lax.create_token(x), L.lax.create_token())))(1.0)
    ),
    "arguments": lambda L: L.jit(lambda t, x: (L.lax.after_all(t), x * 2)[1])(L.lax.create_token(), 2.0),
    "what is no token": lambda L: L.lax.after_all(1.0),
    "derivatives beside": lambda L: L.grad(lambda x: (L.lax.create_token(x), x * x)[1])(3.0),
    "a batch beside": lambda L: L.vmap(lambda x: (L.lax.create_token(x), x * x)[1])(L.numpy.ones(3)),
    "operations": lambda L: [
        str(e.primitive)
        for e in L.make_jaxpr(lambda: L.lax.after_all(L.lax.create_token(), L.lax.create_token()))().jaxpr.eqns
    ],
    "types": lambda L: [
        str(v.aval) for v in L.make_jaxpr(lambda t: L.lax.after_all(t))(L.lax.create_token()).jaxpr.invars
    ],
    "operations by their names": lambda L: type(L.lax.after_all_p.bind(L.lax.create_token_p.bind())).__name__,
    "derivatives through functions with tokens": lambda L: L.grad(
        lambda x: L.jit(lambda t, y: (L.lax.after_all(t), y * y))(L.lax.create_token(), x)[1]
    )(3.0),
    "a batch of functions with tokens": lambda L: L.vmap(
        lambda x: L.jit(lambda t, y: (L.lax.after_all(t), y * y))(L.lax.create_token(), x)[1]
    )(L.numpy.ones(3)),
    "leaves": lambda L: len(L.tree.leaves(L.lax.create_token())),
}


@pytest.mark.parametrize("name", ALIKE)
def test_tokens_beside_jax(name):
    assert_alike(ALIKE[name])


def test_tokens_in_loops_branches_and_ahead_of_time():
    token = lax.create_token()
    looped, _ = lax.scan(lambda t, _: (lax.after_all(t, token), None), token, None, length=2)
    chosen = lax.cond(True, lambda t: lax.after_all(t), lambda t: t, looped)
    compiled = meshrt.jit(lambda t: t).lower(chosen).compile()
    assert repr(compiled(chosen)) == "Token()" and meshrt.typeof(token).str_short() == "Tok"
    assert compiled(chosen).block_until_ready() is not None
    with pytest.raises(errors.ArgumentTypeError, match=r"Arguments to after_all must be.*number 1 is of type i32"):
        lax.after_all(token, 3)
