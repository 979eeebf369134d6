"""custom_vmap and sequential_vmap beside JAX's, under every transformation and their nestings."""

import jax
import jax.custom_batching
import numpy as np
import pytest

import meshrt
import meshrt.custom_batching
from tests.meshrt.beside import assert_alike

X, Y = np.arange(3, dtype=np.float32) + 1, np.arange(12, dtype=np.float32).reshape(3, 4)


def marked(lib, seen=None):
    """sin(x) * y whose rule computes cos(x) * y, so that results tell which of them ran."""

    @lib.custom_batching.custom_vmap
    def f(x, y):
        return {"out": lib.numpy.sin(x) * y}

    @f.def_vmap
    def rule(axis_size, in_batched, x, y):
        if seen is not None:
            seen.append((axis_size, in_batched))
        xb, yb = in_batched
        if xb and not yb:
            y = lib.numpy.broadcast_to(y, (axis_size, *lib.numpy.shape(y)))
        if yb and not xb:
            x = lib.numpy.broadcast_to(x, (axis_size, *lib.numpy.shape(x)))
        return {"out": lib.numpy.cos(x) * y}, {"out": xb or yb}

    return f


PROGRAMS = {
    "call": lambda lib, f: f(2.0, y=3.0),
    "jit": lambda lib, f: lib.jit(f)(2.0, 3.0),
    "vmap": lambda lib, f: lib.vmap(f)(X, X),
    "vmap of one": lambda lib, f: [lib.vmap(f, (0, None))(X, 2.0), lib.vmap(f, (None, 1))(2.0, X[None])],
    "out_axes": lambda lib, f: lib.jit(lib.vmap(f, (1, 1), 1))(Y, Y),
    "vmap of vmap": lambda lib, f: lib.vmap(lib.vmap(f, (0, None)))(Y, X),
    "vmap of jit": lambda lib, f: lib.vmap(lib.jit(f))(X, X),
    "jvp": lambda lib, f: lib.jvp(f, (2.0, 3.0), (1.0, 0.5)),
    "jvp of vmap": lambda lib, f: lib.jvp(lib.vmap(f), (X, X), (X, 2 * X)),
    "vmap of jvp": lambda lib, f: lib.vmap(lambda x, y, t: lib.jvp(f, (x, y), (t, 2 * t)))(X, 2 * X, X),
    "primals mapped": lambda lib, f: lib.vmap(lambda x: lib.jvp(f, (x, 2.0), (1.0, 0.5)))(X),
    "tangents mapped": lambda lib, f: lib.vmap(lambda t: lib.jvp(f, (3.0, 2.0), (t, 0.5)))(X),
    "vmap of vmap of jvp": lambda lib, f: lib.vmap(lib.vmap(lambda x: lib.jvp(f, (x, x), (x, 2 * x))))(Y),
    "jvp of jvp mapped": lambda lib, f: lib.vmap(
        lambda x: lib.jvp(lambda x: lib.jvp(f, (x, x), (x, x)), (x,), (x,)))(X),
    "grad of vmap": lambda lib, f: lib.grad(lambda x: lib.vmap(f)(x, x)["out"].sum())(X),
    "hessian of vmap": lambda lib, f: lib.hessian(lambda x: lib.vmap(f)(x, x)["out"].sum())(X),
    "scan": lambda lib, f: lib.vmap(lambda x: lib.lax.scan(lambda c, y: (c + y, f(c, y)), x, X))(X),
    "captured": lambda lib, f: lib.jit(
        lambda z: lib.vmap(_closing(lib, z))(X))(2.0),
}  # fmt: skip


def _closing(lib, z):
    f = lib.custom_batching.custom_vmap(lambda x: x * z)
    f.def_vmap(lambda n, batched, x: (x * z + 1, batched[0]))
    return f


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name):
    assert_alike(lambda lib: PROGRAMS[name](lib, marked(lib)))


def test_a_rule_is_told_what_is_batched():
    told = []
    for lib in (meshrt, jax):
        seen = []
        f = marked(lib, seen)
        for name in ("vmap", "vmap of one", "primals mapped", "tangents mapped", "jvp of vmap"):
            PROGRAMS[name](lib, f)
        told.append(seen)
    assert told[0] == told[1]


def test_argument_and_tangent_mapped_unlike():
    def program(f):
        return meshrt.vmap(lambda x, y, t: meshrt.jvp(f, (x, y), (1.0, t)), (0, 0, 0))(X, 2 * X, 3 * X)

    mapped = lambda x, y: {"out": meshrt.numpy.cos(x) * y}
    for got, wanted in zip(program(marked(meshrt)), program(mapped)):
        np.testing.assert_allclose(np.asarray(got["out"]), np.asarray(wanted["out"]), 1e-6)


@pytest.mark.parametrize("outer", ["custom_vjp", "custom_jvp"])
def test_with_derivatives_of_its_own(outer):
    def program(lib):
        f = getattr(lib, outer)(lib.custom_batching.custom_vmap(lambda x: lib.numpy.sin(x)))
        f.def_vmap(lambda n, batched, x: (lib.numpy.cos(x), batched[0]))
        if outer == "custom_vjp":
            f.defvjp(lambda x: (f(x), x), lambda x, g: (3 * g * x,))
        else:
            f.defjvp(lambda p, t: (f(*p), 3 * t[0] * p[0]))
        both = lib.value_and_grad(f)
        return both(2.0), lib.vmap(both)(X), lib.jit(lib.vmap(f))(X)

    assert_alike(program)


def test_sequential():
    def program(lib):
        f = lib.custom_batching.sequential_vmap(lambda x, y: (x["a"] * y, lib.numpy.sin(y)))
        over = lambda x, y: f({"a": x}, y)
        yield lib.vmap(over)(X, X), lib.vmap(over, (0, None))(X, 2.0)
        yield lib.jit(lib.vmap(lib.vmap(over, (0, None)), (0, 0), 1))(Y, X)
        yield lib.grad(lambda x: lib.vmap(over)(x, X)[0].sum())(X)

    assert_alike(lambda lib: list(program(lib)))


def _ruled(lib, rule):
    f = lib.custom_batching.custom_vmap(lambda x: x * 2)
    f.def_vmap(rule)
    return f


@pytest.mark.parametrize(
    "program",
    [
        lambda lib: lib.custom_batching.custom_vmap(lambda x: x)(1.0), lambda lib: marked(lib)(1.0),
        lambda lib: lib.vmap(_ruled(lib, lambda n, b, x: (x, (True,))))(X),
        lambda lib: lib.vmap(_ruled(lib, lambda n, b, x: ([x], [True])))(X),
        lambda lib: lib.grad(_ruled(lib, lambda n, b, x: (x, True)))(1.0), lambda lib: marked(lib)("a", 1.0),
        lambda lib: lib.custom_jvp(lambda x: x).def_vmap,
    ],
)  # fmt: skip
def test_what_is_refused(program):
    assert_alike(program)


def test_arguments_that_do_not_fit_are_told_once():
    with pytest.raises(TypeError, match="missing a required argument: 'y'") as e:
        marked(meshrt)(1.0)
    assert str(e.value).startswith("The input arguments to the custom_vmap-decorated function f could not be resolved")
