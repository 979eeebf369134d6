"""Programs over references, for both libraries: each takes the library and returns arrays, or raises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

PROGRAMS: list[Callable[[Any], Any]] = []
REFUSED: list[Callable[[Any], Any]] = []


def program(fun: Callable[[Any], Any]) -> Callable[[Any], Any]:
    PROGRAMS.append(fun)
    return fun


def refused(fun: Callable[[Any], Any]) -> Callable[[Any], Any]:
    REFUSED.append(fun)
    return fun


def both(jax, make, *args):
    """Results of a function of references, eagerly and jitted, with what the references hold afterwards."""
    out = []
    for wrap in (lambda f: f, jax.jit):
        refs = [jax.new_ref(a) for a in args]
        out.append((wrap(make)(*refs), [r[...] for r in refs]))
    return out


def derivatives(jax, f, x):
    """A scalar function of an array under all that derives and maps it."""
    x, stacked = jax.numpy.asarray(x), jax.numpy.stack([x, x + 1])
    gradients = jax.jit(lambda x, stacked: (jax.grad(f)(x), jax.vmap(jax.grad(f))(stacked)))
    return f(x), jax.grad(f)(x), gradients(x, stacked), jax.jvp(f, (x,), (jax.numpy.cos(x),))


ROW = np.linspace(0.1, 1.4, 5, dtype=np.float32)


@program
def reads_and_writes(jax):
    def f(x, z):
        x[...] += 1.0
        x[0] += 1
        z[1, :] = x[1:3]
        jax.ref.addupdate(z, 0, x[:2])
        return x[...] * 2, jax.ref.swap(z, (0, 1), 5.0), z[...]

    return both(jax, f, np.zeros(3, np.float32), np.ones((2, 2), np.float32))


@program
def captured_and_nested(jax):
    captured = jax.new_ref(np.zeros(3, np.float32))

    @jax.jit
    def inner(y, z):
        captured[...] += 1.0
        captured[0] += 1
        y[2] += 7
        return z + 9

    y = jax.new_ref(np.zeros(3, np.float32))
    return [(jax.jit(inner)(y, 1), captured[...], y[...]) for _ in range(2)]


@program
def made_inside_of_a_scan(jax):
    def body(_, x):
        r = jax.new_ref(x)
        r[...] += 2
        return (), r[...]

    run = lambda: jax.lax.scan(body, (), np.arange(5, dtype=np.int32))
    return run(), jax.jit(run)()


@program
def captured_by_a_scan(jax):
    total = jax.new_ref(np.int32(0))

    def body(_, x):
        total[...] += x
        return (), total[...]

    run = lambda: jax.lax.scan(body, (), np.arange(5, dtype=np.int32))
    return run(), jax.jit(run)(), total[...]


@program
def sliced_by_a_scan(jax):
    r = jax.new_ref(np.arange(5, dtype=np.int32))

    def body(_, slices):
        index, x = slices
        x[...] += index
        return (), x[...]

    run = lambda: jax.lax.scan(body, (), (np.arange(5, dtype=np.int32), r))
    return run(), jax.jit(run)(), r[...]


@program
def while_loops(jax):
    def f(r, n):
        def body(i):
            r[i] += i * 1.0
            n[...] += 1
            return i + 1

        return jax.lax.while_loop(lambda i: i < 3, body, 0)

    return both(jax, f, np.zeros(4, np.float32), np.int32(0))


@program
def branches_that_write(jax):
    r = jax.new_ref(np.float32(0))

    def f(pred):
        jax.lax.cond(pred, lambda: r.__setitem__((), 1.0), lambda: r.__setitem__((), 2.0))
        return r[...]

    return f(True), f(False), jax.jit(f)(True), jax.jit(f)(False)


@program
def derivatives_of_a_loop(jax):
    def f(x):
        r = jax.new_ref(x * 0)

        def body(i, _):
            r[i] = jax.numpy.sin(x[i] * i) * r[i - 1] + x[0]
            return i + 1, None

        jax.lax.scan(body, 0, None, length=5)
        return (r[...] ** 2).sum()

    return derivatives(jax, f, ROW)


@program
def derivatives_of_a_fori_loop(jax):
    def f(x):
        r = jax.new_ref(x)
        jax.lax.fori_loop(0, 3, lambda i, _: r.__setitem__(i, r[i] * 2 + r[0] * r[i]), None)
        return r[...].sum()

    return derivatives(jax, f, ROW)


@program
def derivatives_of_branches(jax):
    def f(x):
        r = jax.new_ref(x)
        sin = lambda: r.__setitem__(..., jax.numpy.sin(r[...]) * x)
        jax.lax.cond(x > 0.5, sin, lambda: jax.ref.addupdate(r, ..., x * x))
        return r[...] * x

    both = jax.jit(lambda x: (f(x), jax.grad(f)(x)))
    return both(np.float32(0.3)), both(np.float32(0.7)), jax.grad(f)(np.float32(0.3))


@program
def derivatives_of_a_jitted_part(jax):
    def f(x):
        r = jax.new_ref(x)

        @jax.jit
        def part(y):
            r[...] = r[...] * y
            return r[1:]

        return part(x).sum() * part(2 * x).sum()

    return derivatives(jax, f, ROW)


@program
def freezing(jax):
    r = jax.new_ref(np.arange(3.0, dtype=np.float32))
    r[0] = 5.0
    return jax.freeze(r), jax.jit(lambda x: jax.freeze(jax.new_ref(x)))(np.ones(2, np.float32))


@program
def mapped_references(jax):
    r = jax.new_ref(np.zeros(3, np.float32))

    def f(r, x):
        r[...] += x
        return x * r[...]

    x = np.arange(3, dtype=np.float32)
    return jax.vmap(f)(r, x), jax.jit(jax.vmap(f))(r, x), r[...]


def _stash(jax):
    @jax.custom_vjp
    def stash(kept, x):
        return x

    def bwd(kept, g):
        kept[...] = g
        return None, g

    stash.defvjp(lambda kept, x: (x, kept), bwd)
    return stash


@program
def cotangents_written_to_a_reference(jax):
    stash, out = _stash(jax), []
    for wrap in (lambda f: f, jax.jit):
        kept = jax.new_ref(np.float32(0))
        f = wrap(lambda kept, x: jax.numpy.sin(stash(kept, jax.numpy.sin(x))))
        out.append((jax.grad(f, 1)(kept, np.float32(1)), kept[...]))
    return out


@program
def cotangents_written_from_a_scan(jax):
    stash, out = _stash(jax), []
    for wrap in (lambda f: f, jax.jit):
        kept = jax.new_ref(np.float32(0))

        def f(kept, x):
            body = lambda x, _: (jax.numpy.sin(stash(kept, jax.numpy.sin(x))), ())
            return jax.lax.scan(body, x, None, length=2)[0]

        out.append((jax.grad(wrap(f), 1)(kept, np.float32(1)), kept[...]))
    return out


@program
def views_of_views(jax):
    def f(r):
        a = r.at[1].at[jax.ds(2, 3)][...]
        r.at[0, 1:3][0] = 7.0
        return a, r.at[2:4].at[:, 1][...]

    return both(jax, jax.jit(f), np.arange(24, dtype=np.float32).reshape(4, 6))


@refused
def returned_by_jit(jax):
    jax.jit(jax.new_ref)(np.arange(3))


@refused
def argument_returned_by_jit(jax):
    jax.jit(lambda x_ref: {"hi": x_ref})(jax.new_ref(np.arange(3)))


@refused
def capture_returned_by_jit(jax):
    r = jax.new_ref(np.arange(3))
    jax.jit(lambda: r)()


@refused
def given_twice_to_jit(jax):
    r = jax.new_ref(0.0)
    jax.jit(lambda x_ref, y_ref: x_ref[...] + y_ref[...])(r, r)


@refused
def given_and_captured_by_jit(jax):
    r = jax.new_ref(0.0)
    jax.jit(lambda y_ref: r[...] + y_ref[...])(r)


@refused
def returned_by_scan(jax):
    jax.lax.scan(lambda c, x: (jax.new_ref(c), x), 0, np.arange(3))


@refused
def given_twice_to_scan(jax):
    r = jax.new_ref(0.0)
    jax.lax.scan(lambda c, _: (None, None), (r, r), None, length=1)


@refused
def given_and_captured_by_scan(jax):
    r = jax.new_ref(0.0)
    jax.lax.scan(lambda y_ref, _: (r[...] + y_ref[...], None), r, None, length=1)


@refused
def returned_by_cond(jax):
    jax.lax.cond(True, lambda: jax.new_ref(1.0), lambda: jax.new_ref(2.0))


@refused
def given_twice_to_cond(jax):
    r = jax.new_ref(0.0)
    jax.lax.cond(True, lambda x1, x2: ..., lambda x1, x2: ..., r, r)


@refused
def given_and_captured_by_cond(jax):
    r = jax.new_ref(0.0)
    jax.lax.cond(True, lambda y: r[...] + y[...], lambda y: r[...] + y[...], r)


@refused
def returned_by_a_custom_vjp_function(jax):
    f = jax.custom_vjp(lambda ref: ref)
    f.defvjp(lambda ref: ..., lambda *_: ...)
    f(jax.new_ref(0.0))


@refused
def given_twice_to_a_custom_vjp_function(jax):
    f = jax.custom_vjp(lambda x_ref, y_ref: None)
    f.defvjp(lambda x_ref, y_ref: (None, None), lambda _, g: (None, None))
    r = jax.new_ref(0.0)
    f(r, r)


@refused
def a_reference_in_a_reference(jax):
    jax.new_ref(0.0)[...] = jax.new_ref(1.0)


@refused
def another_shape(jax):
    jax.new_ref(np.zeros(3, np.float32))[...] = np.zeros(2, np.float32)


@refused
def another_dtype(jax):
    jax.new_ref(np.zeros(3, np.float32))[...] = np.zeros(3, np.int32)


@refused
def a_scalar_for_all(jax):
    jax.new_ref(np.zeros(3, np.float32))[...] = 1.0


@refused
def an_operation_on_a_reference(jax):
    jax.jit(lambda r: jax.numpy.sin(r))(jax.new_ref(np.zeros(3, np.float32)))


@refused
def an_operator_on_a_reference(jax):
    jax.new_ref(np.zeros(3, np.float32)) + 1


@refused
def out_of_bounds(jax):
    jax.new_ref(np.zeros(3, np.float32))[3]


@refused
def out_of_bounds_by_an_array(jax):
    """Whose number is at hand outside of programs: a write would go to another place."""
    jax.new_ref(np.zeros(3, np.float32))[jax.numpy.int32(3)] = np.float32(1)


@refused
def out_of_bounds_under_a_gradient(jax):
    jax.grad(lambda x: jax.new_ref(x)[np.asarray(7)])(np.zeros(3, np.float32))


@refused
def a_slice_out_of_bounds_by_an_array(jax):
    jax.new_ref(np.zeros(3, np.float32))[jax.ds(jax.numpy.int32(2), 2)]


@refused
def a_slice_that_begins_in_front_of_all(jax):
    jax.new_ref(np.zeros(3, np.float32))[jax.ds(jax.numpy.int32(-1), 2)]


@refused
def too_many_indices(jax):
    jax.new_ref(np.zeros(3, np.float32))[0, 0]


@refused
def two_ellipses(jax):
    jax.new_ref(np.zeros((3, 3), np.float32))[..., ...]


@refused
def a_mask(jax):
    jax.new_ref(np.zeros(3, np.float32))[np.array([True, False, True])]


@refused
def a_reversed_slice(jax):
    jax.new_ref(np.zeros(3, np.float32))[::-1]


INDICES: list[Any] = [
    0, -1, (0, 1), (slice(1, 3),), (slice(None), 2), (slice(0, 4, 2), slice(1, 5, 3)), (np.array([0, 2]),),
    (np.array([0, 2]), 1), (slice(None), np.array([3, 0, 5])), (np.array([[0], [1]]), np.array([[1, 2]])), (..., 1),
    (np.array([1, 2]), slice(0, 2)), (), Ellipsis, (slice(1, 4, 2), np.array([-1, 2])),
]  # fmt: skip
