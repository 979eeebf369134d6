"""Functions with a rule for reverse mode only under forward mode: fine where nobody uses their tangents, as in JAX."""

import pytest

from tests.meshrt.beside import assert_alike


def _sine(lib):
    @lib.custom_vjp
    def f(x):
        return lib.numpy.sin(x)

    f.defvjp(lambda x: (lib.numpy.sin(x), lib.numpy.cos(x)), lambda cos, g: (cos * g,))
    return f


def _pushed(part, wrap=lambda lib, f: f):
    """The `part` (0: value, 1: tangent) of forward mode through `wrap(lib, f)`, compiled."""

    def program(lib):
        x = lib.numpy.float32(1.5)
        fun = wrap(lib, _sine(lib))
        return lib.jit(lambda x: lib.jvp(fun, (x,), (x,))[part])(x)

    return program


def _zeros(lib, *given):
    """A rule with symbolic zeros, which says in its result whether its first argument is differentiated."""

    @lib.custom_vjp
    def f(x, y):
        return x * y

    f.defvjp(lambda x, y: (x.value * y.value * (1 + x.perturbed), None), lambda _, g: (g, None), symbolic_zeros=True)
    return lib.jit(lambda x: lib.jvp(lambda x: f(*[x if g is None else g for g in given]), (x,), (x,))[0])(
        lib.numpy.float32(3.0)
    )


_UNUSED = {
    "value": _pushed(0),
    "stopped": _pushed(0, lambda lib, f: lambda x: lib.lax.stop_gradient(f(x)) * x),
    "stopped tangent": _pushed(1, lambda lib, f: lambda x: lib.lax.stop_gradient(f(x)) * x),
    "jit": _pushed(0, lambda lib, f: lib.jit(f)),
    "checkpoint": _pushed(0, lambda lib, f: lib.checkpoint(f)),
    "cond": _pushed(0, lambda lib, f: lambda x: lib.lax.cond(x > 0, f, lib.numpy.cos, x)),
    "carry": _pushed(
        0, lambda lib, f: lambda x: lib.lax.scan(lambda c, _: (f(c), None), x, None, length=3)[0]
    ),
    "stacked": _pushed(
        1, lambda lib, f: lambda x: lib.lax.scan(lambda c, _: (2 * c, f(c)), x, None, length=3)[0]
    ),
    "mapped": _pushed(0, lambda lib, f: lambda x: lib.vmap(f)(lib.numpy.stack([x, 2 * x]))),
    "types": lambda lib: [
        x.shape for x in lib.eval_shape(lambda x: lib.jvp(_sine(lib), (x,), (x,)), lib.numpy.float32(1))
    ],
    "perturbed": lambda lib: _zeros(lib, None, 2.0),
    "not perturbed": lambda lib: _zeros(lib, 2.0, None),
    "transposed": lambda lib: lib.linear_transpose(
        lambda t: lib.jvp(_sine(lib), (lib.numpy.float32(1.5),), (t,))[1], lib.numpy.float32(1)
    )(lib.numpy.float32(2)),
}  # fmt: skip


@pytest.mark.parametrize("case", _UNUSED)
def test_forward_mode_whose_tangent_nobody_uses(case):
    assert_alike(_UNUSED[case])


_USED = {
    "tangent": _pushed(1),
    "eager": lambda lib: lib.jvp(_sine(lib), (1.5,), (1.0,))[0],
    "carry": _pushed(1, lambda lib, f: lambda x: lib.lax.scan(lambda c, _: (f(c), None), x, None, length=3)[0]),
    "members": lambda lib: lib.jit(lib.vmap(lambda x: lib.jvp(_sine(lib), (x,), (x,))[1]))(lib.numpy.ones(2)),
    "linearized": lambda lib: lib.jit(lambda x: lib.linearize(_sine(lib), x)[1](x))(1.5),
}


@pytest.mark.parametrize("case", _USED)
def test_a_tangent_that_is_used_is_refused(case):
    assert_alike(_USED[case])
