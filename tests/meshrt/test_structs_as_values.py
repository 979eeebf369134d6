"""A ShapeDtypeStruct where a program has a value: a constant of a known type, with which nothing can run; as JAX."""

import jax
import numpy as np
import pytest

import meshrt

BOTH = pytest.mark.parametrize("lib", [jax, meshrt], ids=["jax", "meshrt"])


TYPES = {
    "a result": lambda lib, s: lib.eval_shape(lambda: s),
    "a result beside one": lambda lib, s: lib.eval_shape(lambda x: (x, [s]), s),
    "of a jitted function": lambda lib, s: lib.eval_shape(lib.jit(lambda x: s), s),
    "of a jitted function within": lambda lib, s: lib.eval_shape(lambda x: lib.jit(lambda: s)() + x, s),
    "an operand": lambda lib, s: lib.eval_shape(lambda x: lib.lax.mul(x, s), s),
    "of a mapped function": lambda lib, s: lib.eval_shape(lib.vmap(lambda x: s), s),
    "stacked by a loop": lambda lib, s: lib.eval_shape(lambda x: lib.lax.scan(lambda c, _: (c, s), x, None, 3), s),
    "a Jaxpr's constant": lambda lib, s: lib.make_jaxpr(lambda: lib.lax.sin(s))().out_avals,
    "weakly typed": lambda lib, s: lib.eval_shape(lambda: lib.ShapeDtypeStruct((), np.float32, weak_type=True)),
    "linearized": lambda lib, s: lib.linearize(lambda x: s, np.ones(2, np.float32))[0],
}


@pytest.mark.parametrize("case", TYPES)
def test_types_are_those_of_jax(case):
    ours, theirs = (
        lib.tree.map(lambda x: (x.shape, str(x.dtype), x.weak_type), TYPES[case](lib, lib.ShapeDtypeStruct((2,), "f4")))
        for lib in (meshrt, jax)
    )
    assert ours == theirs


RUN = {
    "an argument": lambda lib, s: lib.jit(lambda x: x)(s),
    "a result": lambda lib, s: lib.jit(lambda: s)(),
    "a constant": lambda lib, s: lib.jit(lambda: lib.lax.sin(s))(),
    "an operand": lambda lib, s: lib.lax.sin(s),
    "put on a device": lambda lib, s: lib.device_put(s),
    "mapped": lambda lib, s: lib.vmap(lambda x: s)(np.ones(2, np.float32)),
    "differentiated": lambda lib, s: lib.grad(lambda x: x.sum())(s),
}


@BOTH
@pytest.mark.parametrize("case", RUN)
def test_nothing_runs_with_one(lib, case):
    with pytest.raises(TypeError, match=r"does not have a value|not a valid JAX type"):
        RUN[case](lib, lib.ShapeDtypeStruct((2,), np.float32))
