"""What is said of classes of operations that lack something, or have too much: what JAX says is part of it."""

from __future__ import annotations

import jax
import jax.experimental.hijax
import numpy as np
import pytest

import meshrt
import meshrt.experimental.hijax

X = np.float32(2.0)
WITHOUT = {
    "expand": lambda lib, f: f(X),
    "vjp_fwd": lambda lib, f: lib.grad(f)(X),
    "jvp": lambda lib, f: lib.jvp(f, (X,), (X,)),
    "lin": lambda lib, f: lib.linearize(f, X),
    "batch": lambda lib, f: lib.vmap(f)(np.ones(3, np.float32)),
}


def words(lib, run):
    with pytest.raises((NotImplementedError, AttributeError)) as caught:
        run(lib)
    kind = AttributeError if isinstance(caught.value, AttributeError) else NotImplementedError
    return kind, str(caught.value).replace("meshrt", "jax")


def bare(lib, *left_out, **methods):
    def init(self, aval):
        given = {"in_avals": (aval,), "out_aval": aval, "params": {}}
        self.__dict__.update({k: v for k, v in given.items() if k not in left_out})
        super(kind, self).__init__()

    kind = type("Bare", (lib.experimental.hijax.VJPHiPrimitive,), {"__init__": init, **methods})
    return lambda x: kind(lib.typeof(x))(x)


def agree(run):
    (kind, ours), (theirs, said) = words(meshrt, run), words(jax, run)
    assert kind is theirs and said.rstrip(".") in ours


@pytest.mark.parametrize("method", WITHOUT)
def test_what_a_class_lacks(method):
    agree(lambda lib: WITHOUT[method](lib, bare(lib)))


def test_a_backward_rule():
    agree(lambda lib: lib.grad(bare(lib, vjp_fwd=lambda self, nonzeros, x: (x, None)))(X))


@pytest.mark.parametrize("name", ["in_avals", "out_aval", "params"])
def test_attributes(name):
    agree(lambda lib: bare(lib, name)(X))


def test_two_backward_rules():
    rules = {"vjp_bwd": lambda self, *_: None, "vjp_bwd_retval": lambda self, *_: None}
    agree(lambda lib: bare(lib, **rules)(X))
