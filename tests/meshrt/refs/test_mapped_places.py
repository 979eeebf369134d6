"""References that `vmap` maps along another dimension than the first, beside the function applied column by column."""

import jax
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import lax
from meshrt.core.jaxpr import subjaxprs

X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)


def over_elements(r):
    total, _ = lax.scan(lambda c, x: (c + x[...], x.__setitem__(..., c)), 0.0, r)
    r[0] = total


def branches(r):
    lax.cond(r[0] > 0, lambda: r.__setitem__(1, 9.0), lambda: r.__setitem__(2, r[0]))


def counted(r, last=3):
    """A loop of unknown length, of references and an array."""
    last = jnp.asarray(last)
    return lax.fori_loop(0, last, lambda i, c: (meshrt.ref.addupdate(r, i, c + r[i + 1]), c * 2)[1], jnp.float32(0.5))


def until(r):
    """Each member stops at its own turn."""
    lax.while_loop(lambda c: (c < 2) & (r[c] < 1), lambda c: (r.__setitem__(c, r[c + 1]), c + 1)[1], 0)


def shared_branches(r, last=3):
    """Members take one branch."""
    lax.cond(jnp.asarray(last) > 2, lambda: r.__setitem__(1, 9.0), lambda: r.__setitem__(2, r[0]))


def nested(r, last=3):
    def outer(i, c):
        meshrt.checkpoint(lambda: shared_branches(r, last))()
        return c + meshrt.jit(lambda: lax.fori_loop(0, last, lambda k, c: (r.__setitem__(k, r[i] * c), c + 1)[1], c))()

    lax.fori_loop(0, 2, outer, jnp.float32(0.5))


BODIES = {
    "set": lambda r: r.__setitem__(slice(1, 3), r[0:2]),
    "whole": lambda r: r.__setitem__(..., r[...] * 2),
    "addupdate": lambda r: meshrt.ref.addupdate(r, jnp.array([1, 1]), jnp.ones(2)),
    "swap": lambda r: r.__setitem__(0, meshrt.ref.swap(r, 3, r[1])),
    "loop": lambda r: lax.fori_loop(0, 3, lambda i, _: r.__setitem__(i, r[i] + r[i + 1]), None),
    "xs of a scan": over_elements,
    "branches": branches,
    "shared branches": shared_branches,
    "counted": counted,
    "until": until,
    "nested": nested,
    "checkpoint": lambda r: meshrt.checkpoint(lambda: r.__setitem__(0, jnp.sin(r[1])))(),
    "jit": lambda r: meshrt.jit(lambda r: r.__setitem__(0, r[1] * 2))(r),
    "vmap": lambda r: meshrt.vmap(lambda e, i: e.__setitem__(..., e[...] * i))(r, jnp.arange(4.0)),
}


@pytest.mark.parametrize("name", BODIES)
def test_references_mapped_along_any_dimension(name):
    body, wanted = BODIES[name], X.copy()
    for k in range(3):
        column = meshrt.new_ref(jnp.asarray(X[:, k]))
        body(column)
        wanted[:, k] = column[...]
    for wrap in (lambda f: f, meshrt.jit):
        for place, given, found in ((1, X, wanted), (0, X.T, wanted.T)):
            ref = meshrt.new_ref(jnp.asarray(given))
            wrap(meshrt.vmap(body, in_axes=place))(ref)
            np.testing.assert_allclose(ref[...], found, rtol=1e-6)


INSIDE = {
    "jit": BODIES["jit"], "checkpoint": BODIES["checkpoint"], "loop": BODIES["loop"], "counted": counted,
    "shared branches": shared_branches, "nested": nested, "xs of a scan": over_elements,
}  # fmt: skip


def equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in subjaxprs(eqn.params):
            yield from equations(inner)


@pytest.mark.parametrize("name", INSIDE)
def test_operations_with_programs_inside_leave_them_in_place(name):
    """Nothing but parts is turned around: not the reference before, nor what they wrote after."""
    whole = np.random.default_rng(1).normal(size=(4, 3, 2)).astype(np.float32)
    ref = meshrt.new_ref(jnp.asarray(whole))
    f = meshrt.vmap(meshrt.vmap(INSIDE[name], in_axes=1), in_axes=2)
    found = list(equations(meshrt.make_jaxpr(f)(ref).jaxpr))
    assert not [e for e in found if e.primitive.name == "new_ref"]
    assert not [e for e in found if e.primitive.name == "transpose" and e.invars[0].aval.size >= whole.size]
    f(ref)
    member = meshrt.new_ref(jnp.asarray(whole[:, 2, 1]))
    INSIDE[name](member)
    np.testing.assert_allclose(ref[:, 2, 1], member[...], rtol=1e-6)


def test_the_derivative_through_them():
    def f(x):
        ref = meshrt.new_ref(x)
        meshrt.vmap(BODIES["loop"], in_axes=1)(ref)
        return (ref[...] ** 2).sum()

    def plain(x):
        for i in range(3):
            x = x.at[i].add(x[i + 1])
        return (x**2).sum()

    np.testing.assert_allclose(meshrt.grad(f)(X), meshrt.grad(plain)(X), rtol=1e-5)


# What is written is seen by every name of the reference at once: nothing is a copy of it.


def put(r, index, value):
    r[index] = value
    return r


def written_by_the_member(lib, e, r):
    put(e, ..., lib.numpy.ones(e.shape))
    return r[...].sum()


def read_through_both(lib, e, r):
    return e[...].sum() * r[0, 0] + e[1]


def inner_maps(lib, e, r):
    return lib.vmap(lambda f: (put(f, ..., f[...] + 1), r[...].sum())[1])(e)


def shared_by_members(lib, e, r):
    return lib.vmap(lambda x: e[...].sum() * x)(lib.numpy.arange(3.0))


def swapped(lib, e, r):
    return lib.ref.swap(e, ..., lib.numpy.arange(4.0)) + r[0, 0]


def added(lib, e, r):
    lib.ref.addupdate(e, ..., e[...])
    lib.ref.addupdate(e, lib.numpy.array([1, 1]), lib.numpy.ones(2))
    return r[...].sum()


ALIASES = [written_by_the_member, read_through_both, inner_maps, shared_by_members, swapped, added]


@pytest.mark.parametrize("body", ALIASES, ids=lambda f: f.__name__)
def test_every_name_sees_what_is_written(body):
    def both(lib, wrap, given, place):
        r = lib.new_ref(lib.numpy.asarray(given))
        return wrap(lambda: lib.vmap(lambda e: body(lib, e, r), in_axes=place)(r))(), r[...]

    for ours, wrap in ((lambda f: f, lambda f: f), (meshrt.jit, jax.jit)):
        for got, wanted in zip(both(meshrt, ours, X, 1), both(jax, wrap, X, 1)):
            np.testing.assert_allclose(got, wanted, rtol=1e-6)
        for got, wanted in zip(both(meshrt, ours, X, 1), both(meshrt, ours, X.T, 0)):
            np.testing.assert_allclose(got if got.shape != (4, 3) else got.T, wanted, rtol=1e-6)


def test_what_is_written_through_the_whole_stays():
    r = meshrt.new_ref(jnp.zeros((2, 2)))
    out = meshrt.vmap(lambda e: (put(r, (0, 0), 5.0), e[...].sum())[1], in_axes=1)(r)
    np.testing.assert_array_equal(out, [5, 0])
    np.testing.assert_array_equal(r[...], [[5, 0], [0, 0]])


def test_a_reference_that_all_members_share_is_mapped_in_each():
    r = meshrt.new_ref(jnp.asarray(X))
    out = meshrt.vmap(lambda x: meshrt.vmap(lambda e: e[...].sum() * x, in_axes=1)(r))(jnp.arange(3.0))
    np.testing.assert_allclose(out, np.arange(3)[:, None] * X.sum(0), rtol=1e-6)
    with pytest.raises(meshrt.errors.ArgumentValueError, match="unbatched array reference"):
        meshrt.vmap(lambda x: meshrt.vmap(lambda e: put(e, ..., x), in_axes=1)(r))(jnp.arange(3.0))
    np.testing.assert_array_equal(r[...], X)


@pytest.mark.parametrize("place", [0, 1])
def test_what_was_written_before_an_error_stays(place):
    r = meshrt.new_ref(jnp.zeros((2, 3)))

    def body(e):
        e[0] = 1.0
        raise KeyError("stopped")

    with pytest.raises(KeyError, match="stopped"):
        meshrt.vmap(body, in_axes=place)(r)
    assert r[...].sum() == (3 if place else 2)


@pytest.mark.parametrize("place", [1, 2])
@pytest.mark.parametrize(
    "index",
    [1, slice(0, 3, 2), (slice(None), 1), (np.array([2, 0]), 1), (slice(1, 2), np.array([1, 1])), (..., 0)],
    ids=str,
)
def test_forms_of_indices(place, index):
    whole = np.random.default_rng(1).normal(size=(3, 4, 5)).astype(np.float32)
    front = np.moveaxis(whole, place, 0)

    def body(e, x):
        old = meshrt.ref.swap(e, index, e[index] * x)
        meshrt.ref.addupdate(e, index, x + jnp.zeros(old.shape))
        return old

    outs = []
    for given, at in ((whole, place), (front, 0)):
        r = meshrt.new_ref(jnp.asarray(given))
        size = given.shape[at]
        outs.append((meshrt.vmap(body, in_axes=(at, 0))(r, jnp.arange(1.0, size + 1)), np.moveaxis(r[...], at, 0)))
    for got, wanted in zip(*outs):
        np.testing.assert_allclose(got, wanted, rtol=1e-6)


def only_reads(e):
    return lax.scan(lambda c, x: (c + x[...], None), 0.0, e)[0]


def test_what_is_only_read_is_not_written():
    r = meshrt.new_ref(jnp.asarray(X))
    for body in (lambda e: e[...].sum(), only_reads, meshrt.jit(lambda e: e[...].sum())):
        closed = meshrt.make_jaxpr(lambda r, body=body: meshrt.vmap(body, in_axes=1)(r))(r)
        assert not any(type(e).__name__ == "WriteEffect" for e in closed.effects)
        np.testing.assert_allclose(meshrt.vmap(body, in_axes=1)(r), X.sum(0), rtol=1e-6)


TWO_NAMES = {
    "jit": lambda e, r: meshrt.jit(lambda: (put(e, 0, 1.0), r[...].sum())[1])(),
    "fori_loop": lambda e, r: lax.fori_loop(0, 2, lambda i, c: (put(e, i, 1.0), c + r[...].sum())[1], 0.0),
    "while_loop": lambda e, r: lax.while_loop(lambda c: c < 3, lambda c: (put(r, (0, 0), 1.0), c + e[0])[1], 0.0),
    "cond": lambda e, r: lax.cond(e[0] == 0, lambda: (put(e, 0, 1.0), r[...].sum())[1], lambda: 0.0),
    "scan": lambda e, r: lax.scan(lambda c, x: (c + r[0, 0], put(x, ..., c)[...]), 0.0, e)[0],
}


@pytest.mark.parametrize("name", TWO_NAMES)
def test_two_names_in_one_operation(name):
    """What a loop, branch or call has of each name stands apart in it: it would not see what the other writes."""
    for wrap in (lambda f: f, meshrt.jit):
        for place in (0, 1):
            r = meshrt.new_ref(jnp.zeros((2, 3)))
            mapped = meshrt.vmap(lambda e, r=r: TWO_NAMES[name](e, r), in_axes=place)
            with pytest.raises(meshrt.errors.ArgumentValueError, match="by two names: closed over"):
                wrap(lambda mapped=mapped, r=r: mapped(r))()
            assert not np.any(r[...])


def test_an_operation_may_read_by_two_names():
    r = meshrt.new_ref(jnp.asarray(X))
    other = meshrt.new_ref(jnp.zeros(()))

    def body(e):
        return lax.fori_loop(0, 2, lambda i, c: c + e[i] * r[0, 0] + other[...], 0.0)

    np.testing.assert_allclose(meshrt.vmap(body, in_axes=1)(r), X[:2].sum(0) * X[0, 0], rtol=1e-5)


def test_the_derivative_by_two_names():
    def f(x, lib):
        r = lib.new_ref(x)
        out = lib.vmap(lambda e: (put(e, 0, e[1] * e[2]), r[0].sum() * e[3])[1], in_axes=1)(r)
        return (out**2).sum()

    np.testing.assert_allclose(meshrt.grad(f)(X, meshrt), jax.grad(f)(X, jax), rtol=1e-4)


def test_of_a_reference_that_explicit_axes_split():
    mesh = meshrt.make_mesh((2,), ("x",), axis_types=(meshrt.sharding.AxisType.Explicit,))
    with meshrt.set_mesh(mesh):
        for spec in (meshrt.P(None, "x"), meshrt.P("x", None)):
            r = meshrt.new_ref(meshrt.device_put(jnp.arange(8.0).reshape(2, 4), spec))
            split = meshrt.typeof(r[...])
            out = meshrt.vmap(lambda e, r=r: (put(e, ..., e[...] * 2), r[...])[1], in_axes=1, out_axes=None)(r)
            assert meshrt.typeof(r[...]) == split
            np.testing.assert_array_equal(out, 2 * np.arange(8.0).reshape(2, 4))
