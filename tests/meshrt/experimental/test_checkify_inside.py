"""checkify beside JAX's: in loops and branches, maps, derivatives, checkpoints and programs of several devices."""

from __future__ import annotations

import importlib
from typing import Any

import jax
import numpy as np
import pytest

import meshrt
from tests.meshrt.beside import assert_alike


def parts(library: Any) -> tuple[Any, Any, Any]:
    return library.numpy, library.lax, importlib.import_module(f"{library.__name__}.experimental.checkify")


def told(program: Any) -> None:
    """Both libraries tell the same of each error that the program gives, and the same results."""

    def outcome(library: Any) -> list[Any]:
        return [x.get() if hasattr(x, "throw") else x for x in program(library, *parts(library))]

    ours, theirs = outcome(meshrt), outcome(jax)
    assert len(ours) == len(theirs)
    for got, want in zip(ours, theirs):
        if isinstance(want, str | bool | type(None)):
            assert got == want
        else:
            plain = meshrt.tree.map(np.asarray, got)
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), plain, want)


def positive(checkify: Any, x: Any) -> Any:
    checkify.check(x > 0, "{x} is not positive", x=x)
    return x


@pytest.mark.parametrize("x", [3.0, 1.0, -1.0, -3.0])
def test_branches(x) -> None:
    def program(lib, jnp, lax, checkify):
        def high(x):
            checkify.check(x > 2, "small")
            return x

        def low(x):
            checkify.check(x < -2, "large {x}", x=x)
            return jnp.sqrt(x)

        f = lambda x: lax.cond(x > 0, high, low, x)
        switched = lambda x: lax.switch(lax.convert_element_type(x, "int32"), [high, low, high], x)
        return [*lib.jit(checkify.checkify(f))(x), checkify.checkify(switched, errors=checkify.all_checks)(x)[0]]

    told(program)


@pytest.mark.parametrize("n, x", [(2, 1.0), (10, 1.0), (0, 200.0), (1, 49.5), (1, 60.0)])
def test_loops(n, x) -> None:
    def program(lib, jnp, lax, checkify):
        def goes_on(s):
            checkify.check(s[1] < 100.0, "cond {}", s[1])
            return s[0] < n

        def body(s):
            checkify.check(s[1] < 50.0, "body {}", s[1])
            return s[0] + 1, s[1] * 2

        reach = lambda x: lax.fori_loop(0, n, lambda i, v: v[i] * v, x)
        error, out = lib.jit(checkify.checkify(lambda x: lax.while_loop(goes_on, body, (0, x))))(x)
        return [error, out[1], checkify.checkify(reach, errors=checkify.index_checks)(jnp.ones(3))[0]]

    told(program)


def test_mapped() -> None:
    def program(lib, jnp, lax, checkify):
        f = lambda x: jnp.log(positive(checkify, x))
        inside = lib.vmap(checkify.checkify(f, errors=checkify.all_checks))
        outside = checkify.checkify(lib.vmap(f), errors=checkify.all_checks)
        x, good = jnp.array([1.0, -2.0, -3.0]), jnp.ones(3)
        kinds = [type(inside(x)[0].get_exception()).__name__, str(inside(good)[0])]
        yield from (inside(x)[0], inside(good)[0], outside(x)[0], outside(good)[0], lib.jit(outside)(x)[0], *kinds)
        yield lib.vmap(inside)(x[None])[0]

    told(lambda *library: list(program(*library)))


def test_differentiated() -> None:
    def program(lib, jnp, lax, checkify):
        f = lambda x: jnp.sqrt(positive(checkify, x))
        slope = checkify.checkify(lib.grad(f), errors=checkify.all_checks)

        def loss(x):
            error, out = checkify.checkify(f, errors=checkify.all_checks)(x)
            return out, error

        inner, error = lib.grad(loss, has_aux=True)(4.0)
        yield from (*slope(4.0), slope(-1.0)[0], slope(0.0)[0], inner, error)
        yield lib.grad(loss, has_aux=True)(-4.0)[1]
        kept = lib.checkpoint(lambda x: jnp.sin(positive(checkify, x)))
        yield from (*checkify.checkify(lib.grad(kept))(4.0), checkify.checkify(lib.grad(kept))(-4.0)[0])

    told(lambda *library: list(program(*library)))


def test_derivatives_of_their_own() -> None:
    def program(lib, jnp, lax, checkify):
        checked = lambda x: jnp.log(positive(checkify, jnp.asarray(x)))
        forward, backward = lib.custom_jvp(checked), lib.custom_vjp(checked)
        forward.defjvp(lambda p, t: (forward(p[0]), 3.0 * t[0]))
        backward.defvjp(lambda x: (backward(x), x), lambda r, g: (g * 5.0,))
        for f in (forward, backward):
            run = checkify.checkify(f, errors=checkify.all_checks)
            yield from (run(1.0)[0], run(-1.0)[0], lib.grad(lambda x, f=f: checkify.checkify(f)(x)[1])(1.0))
            yield from (*checkify.checkify(lib.grad(f))(1.0), checkify.checkify(lib.grad(f))(-1.0)[0])

    told(lambda *library: list(program(*library)))


def test_on_a_mesh() -> None:
    def program(lib, jnp, lax, checkify):
        mesh = lib.make_mesh((4,), ("i",), axis_types=(lib.sharding.AxisType.Auto,))
        spec = lib.sharding.PartitionSpec("i")

        def f(x):
            checkify.check(jnp.all(x > 0), "device has {x}", x=x[0])
            return jnp.log(x)

        mapped = lib.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec)
        run = lib.jit(checkify.checkify(mapped, errors=checkify.all_checks))
        split = lib.device_put(jnp.array([1.0, -2, 1, 1]), lib.sharding.NamedSharding(mesh, spec))
        whole = lib.jit(checkify.checkify(jnp.log, errors=checkify.nan_checks))(split)[0]
        return [*run(jnp.ones(4)), run(jnp.array([1.0, -2, 1, 1]))[0], whole]

    told(program)


def test_errors_are_checked_again() -> None:
    def program(lib, jnp, lax, checkify):
        def again(x):
            error, out = checkify.checkify(lambda x: positive(checkify, x))(jnp.asarray(x))
            checkify.check_error(error)
            return out

        def all_of(xs):
            error, out = lib.vmap(checkify.checkify(lambda x: positive(checkify, x)))(xs)
            error.throw()
            return out

        inner = lambda x: checkify.checkify(lambda x: lib.jit(lambda y: positive(checkify, y))(x))(x)
        outer, (error, _) = checkify.checkify(inner, errors=checkify.all_checks)(-1.0)
        checked = [checkify.checkify(again)(x)[0] for x in (-1.0, 1.0)]
        return [*checked, lib.jit(checkify.checkify(all_of))(jnp.array([1.0, -3.0, -4.0]))[0], outer, error]

    told(program)


def test_what_is_raised() -> None:
    checkify = lambda lib: parts(lib)[2]
    f = lambda lib: lambda x: positive(checkify(lib), x)
    assert_alike(lambda lib: f(lib)(lib.numpy.float32(-1)))
    assert_alike(lambda lib: lib.jit(f(lib))(-1.0))
    assert_alike(lambda lib: lib.jit(checkify(lib).checkify(f(lib)))(-1.0)[0].throw())
    assert_alike(lambda lib: checkify(lib).check_error(3))
    assert_alike(lambda lib: checkify(lib).check(lib.numpy.ones(2) > 0, "x"))
    assert_alike(lambda lib: checkify(lib).check(1, "x"))
    assert_alike(lambda lib: checkify(lib).check(np.bool_(False), "x"))
    assert_alike(lambda lib: checkify(lib).check(False, "{}", 3))
    assert_alike(lambda lib: checkify(lib).check(False, "{}", "three"))
    assert_alike(lambda lib: checkify(lib).debug_check("x", "three"))
    assert_alike(lambda lib: lib.jit(lambda x: (checkify(lib).debug_check(x > 0, "x"), x)[1])(-1.0))
    with pytest.raises(parts(meshrt)[2].JaxRuntimeError, match=r"-1\.0 is not positive") as caught:
        f(meshrt)(meshrt.numpy.float32(-1))
    assert type(caught.value.__cause__).__name__ == "FailedCheckError"


def _logged(lib, x):
    """A NaN first, then a check of the user's that fails."""
    y = lib.numpy.log(x)
    lib.experimental.checkify.check(x > 0, "x = {x}", x=x)
    return y


@pytest.mark.parametrize("wrap", ["plain", "jit", "vmap", "scan", "cond"])
def test_what_users_check_comes_before_a_nan(wrap):
    def message(lib):
        checkify, run = lib.experimental.checkify, lambda x: _logged(lib, x)
        wrapped = {
            "plain": run,
            "jit": lib.jit(run),
            "vmap": lambda x: lib.vmap(run)(lib.numpy.stack([x, x])),
            "scan": lambda x: lib.lax.scan(lambda c, _: (c, run(c)), x, None, length=2),
            "cond": lambda x: lib.lax.cond(x < 1, run, lambda x: x, x),
        }[wrap]
        error, _ = checkify.checkify(wrapped, errors=checkify.user_checks | checkify.nan_checks)(lib.numpy.float32(-1))
        return error.get().partition(" (")[0]

    assert message(meshrt) == message(jax)
    assert message(meshrt).startswith("x = -1.0")


UNLOOKED = {
    "jit": lambda lib, lax, f: lib.jit(f), "twice": lambda lib, lax, f: lib.jit(lib.jit(f)),
    "cond": lambda lib, lax, f: lambda x: lax.cond(x > 0, f, lambda x: x, x),
    "scan": lambda lib, lax, f: lambda x: lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0],
    "while": lambda lib, lax, f: lambda x: lax.while_loop(lambda c: c < 1.5, lambda c: f(c) + 1, x),
    "checkpoint": lambda lib, lax, f: lib.checkpoint(f),
}  # fmt: skip


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("where", UNLOOKED)
def test_checks_of_users_that_are_not_looked_for_are_dropped(where: str, compiled: bool) -> None:
    def program(lib: Any, numpy: Any, lax: Any, checkify: Any) -> Any:
        f = UNLOOKED[where](lib, lax, lambda x: positive(checkify, x - 5) + 5)
        checked = checkify.checkify(lambda x: numpy.log(f(x) - 9), errors=checkify.float_checks)
        error, out = (lib.jit(checked) if compiled else checked)(1.0)
        return [(error.get() or "").split(" at ")[0].split(".")[0], numpy.isnan(out)]

    told(program)
    assert "nan" in program(meshrt, *parts(meshrt))[0]
