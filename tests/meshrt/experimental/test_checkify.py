"""Errors as values: each program gives the same error and the same result in JAX and in meshrt."""

import jax
import jax.experimental.checkify
import numpy as np
import pytest

import meshrt
import meshrt.experimental.checkify

LIBS = {"jax": jax, "meshrt": meshrt}
CHECKIFY = {"jax": jax.experimental.checkify, "meshrt": meshrt.experimental.checkify}
X, XS = np.float32(2.0), np.array([1.0, -1.0, 2.0], np.float32)


def positive(lib, c):
    def f(x):
        x = lib.numpy.asarray(x)
        c.check(x > 0, "{x} is not {y[0]}", x=x, y=[0 * x + 3])
        c.check(x < 10, "too large")
        return lib.numpy.log(x)

    return f


def counting(lib, c):
    def body(i, x):
        c.check(i < 3, "i is {i}", i=i)
        return x + i

    return lambda n: lib.lax.fori_loop(0, n, body, 0)


def stopping(lib, c):
    def goes_on(i, n):
        c.check(i < 4, "condition at {i}", i=i)
        return i < n

    return lambda n: lib.lax.while_loop(lambda i: goes_on(i, n), lambda i: i + 1, 0)


def branching(lib, c):
    def one(x):
        c.check(x > 100, "in a branch")
        return x

    return lambda x: lib.lax.cond(x > 1, one, lambda x: 2 * x, x)


def scanning(lib, c):
    return lambda xs: lib.lax.scan(lambda s, x: (s + lib.numpy.log(x), 2 * x), np.float32(0), xs)


def again(lib, c):
    def f(x):
        error, out = lib.jit(c.checkify(positive(lib, c)))(x)
        c.check_error(error)
        return out

    return f


def telling_keys(lib, c):
    def f(x):
        c.check(x > 3, "with a key", key=lib.random.key(0))
        return x

    return f


def debugging(lib, c):
    return lambda x: c.debug_check(x > 5, "small")


def divided(lib, c):
    return lambda x: lib.numpy.sin(x) / x


def windowed(lib, c):
    return lambda x: lib.lax.reduce_window(x, lib.numpy.nan, lambda a, b: lib.lax.min(a, b) + 0, (1,), (1,), "VALID")


# name -> (program, arguments, what is looked for)
PROGRAMS = {
    "first of two checks": (positive, (-X,), "user_checks"),
    "second of two checks": (positive, (np.float32(30),), "user_checks"),
    "nothing wrong": (positive, (X,), "all_checks"),
    "not looked for": (positive, (-X,), "index_checks"),
    "nan": (lambda lib, c: lib.numpy.log, (-X,), "nan_checks"),
    "nan of a solver": (lambda lib, c: lambda x: lib.lax.custom_linear_solve(lambda y: x * y, x, lambda f, b: b / x),
                        (XS * 0,), "nan_checks"),
    "nan of a window": (windowed, (XS,), "nan_checks"),
    "division before nan": (divided, (np.float32(0),), "float_checks"),
    "nan of a division": (divided, (np.float32(0),), "nan_checks"),
    "static index": (lambda lib, c: lambda x: x[5], (XS,), "index_checks"),
    "index": (lambda lib, c: lambda x, i: x[i], (np.ones((3, 4), np.float32), np.array([1, 7])), "index_checks"),
    "negative index": (lambda lib, c: lambda x, i: x[i], (XS, np.array([-1, 2])), "all_checks"),
    "written index": (lambda lib, c: lambda x, i: x.at[i].set(2), (XS, np.array([1, -9])), "index_checks"),
    "slice": (lambda lib, c: lambda x, i: lib.lax.dynamic_slice(x, (i,), (2,)), (XS, np.int32(2)), "index_checks"),
    "loop": (counting, (6,), "user_checks"),
    "short loop": (counting, (2,), "user_checks"),
    "condition": (stopping, (7,), "user_checks"),
    "branch taken": (branching, (X,), "user_checks"),
    "branch not taken": (branching, (np.float32(0),), "user_checks"),
    "scan": (scanning, (XS,), "nan_checks"),
    "jit inside": (lambda lib, c: lib.jit(positive(lib, c)), (-X,), "user_checks"),
    "vmap inside": (lambda lib, c: lib.vmap(positive(lib, c)), (XS * -1,), "user_checks"),
    "grad inside": (lambda lib, c: lib.grad(lib.numpy.sqrt), (np.float32(0),), "div_checks"),
    "derivative of one's own": (lambda lib, c: lambda x: lib.nn.relu(lib.numpy.log(x)), (-X,), "nan_checks"),
    "checkpoint": (lambda lib, c: lib.checkpoint(lib.numpy.log), (-X,), "nan_checks"),
    "error made a check": (again, (-X,), "user_checks"),
    "key among what is told": (telling_keys, (X,), "user_checks"),
    "debug check": (debugging, (X,), "user_checks"),
}  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_same_errors_and_results_as_jax(name):
    make, args, kind = PROGRAMS[name]
    found = {}
    for which, lib in LIBS.items():
        c = CHECKIFY[which]
        checked = c.checkify(make(lib, c), errors=getattr(c, kind))
        error, out = checked(*map(lib.numpy.asarray, args))
        compiled, same = lib.jit(checked)(*args)
        assert error.get() == compiled.get()
        lib.tree.map(np.testing.assert_array_equal, out, same)
        found[which] = error.get(), lib.tree.map(np.asarray, out)
    assert found["meshrt"][0] == found["jax"][0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), found["meshrt"][1], found["jax"][1])


@pytest.mark.parametrize("which", LIBS)
def test_transformed_and_raised(which):
    lib, c = LIBS[which], CHECKIFY[which]
    error, _ = lib.vmap(c.checkify(positive(lib, c)))(XS)
    assert error.get() == "at mapped index 1: -1.0 is not 3.0 (`check` failed)"
    with pytest.raises(c.JaxRuntimeError, match=r"^-1\.0 is not 3"):
        error.throw()
    value = lambda x: c.checkify(lib.nn.relu, errors=c.all_checks)(x)[1]  # the rule of relu at 0 stays
    assert (lib.grad(value)(2.0), lib.grad(value)(0.0)) == (1, 0)
    assert c.checkify(lambda x: 3 if x > 1 else 4)(2)[1] == 3  # what is known stays known
    assert lib.jit(debugging(lib, c))(2.0) is None
    c.checkify(positive(lib, c))(lib.numpy.asarray(X))[0].throw()


@pytest.mark.parametrize("at", [(-1, 2, 100), (100, -1, 2), (1, 100, 7), (-1, -9, 4), (100, 2, -2)])
def test_which_error_of_a_batch_is_raised(at):
    def raised(which):
        lib, c = LIBS[which], CHECKIFY[which]

        def f(x, i):
            c.check(i != -1, "index {i} is taken", i=i)
            y = x[i]
            c.check(i > -9, "index is low")
            return y / i

        error, _ = lib.vmap(c.checkify(f, errors=c.all_checks))(np.ones((3, 5), np.float32), np.array(at))
        with pytest.raises(c.JaxRuntimeError) as found:
            error.throw()
        return str(found.value)

    assert raised("meshrt") == raised("jax")
    meshrt.vmap(CHECKIFY["meshrt"].checkify(lambda x: x))(XS)[0].throw()  # nothing can go wrong


@pytest.mark.parametrize("which", LIBS)
def test_refusals(which):
    lib, c = LIBS[which], CHECKIFY[which]
    f = positive(lib, c)
    with pytest.raises(c.JaxRuntimeError, match=r"-2\.0 is not 3") as raised:
        f(-X)
    assert isinstance(raised.value, ValueError)
    with pytest.raises(ValueError, match="not functionalized"):
        lib.jit(f)(-X)
    with pytest.raises(TypeError, match="takes a scalar pred as argument"):
        c.check(1, "x")
    with pytest.raises(TypeError, match="need to be PyTrees of arrays"):
        c.check(True, "x", 3)
    with pytest.raises(TypeError, match="takes an Error as argument"):
        c.check_error(3)


def test_indices_outside_where_ranks_must_agree():
    f = meshrt.experimental.checkify.checkify(lambda x, i: x[i, i], errors=meshrt.experimental.checkify.index_checks)
    with meshrt.numpy_rank_promotion("raise"):
        error, _ = f(meshrt.numpy.ones((2, 3)), meshrt.numpy.array([0, 2]))
    assert "index 2 is out of bounds for axis 0 with size 2" in error.get()
