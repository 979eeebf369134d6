"""References beside JAX's: reading, writing, control flow, derivatives, mapping, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors
from tests.meshrt.beside import assert_alike
from tests.meshrt.refs.programs import INDICES, PROGRAMS, REFUSED


def name_of(value):
    return getattr(value, "__name__", str(value))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("program", PROGRAMS, ids=name_of)
def test_as_jax(program):
    assert_alike(program)


def test_as_jax_in_64_bits():
    with meshrt.enable_x64(True):
        r = meshrt.new_ref(jnp.zeros(3))
        r[1] = 2.0
        assert r.dtype == np.float64
        np.testing.assert_array_equal(r[...], [0.0, 2.0, 0.0])


@pytest.mark.parametrize("program", REFUSED, ids=name_of)
def test_refused_as_by_jax(program):
    assert_alike(program)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indices(index):
    whole = np.arange(24, dtype=np.float32).reshape(4, 6)

    def program(jax):
        def touch(r):
            part = r[index]
            before = jax.ref.swap(r, index, -part - 1)
            jax.ref.addupdate(r, index, part * 3)
            return part, before, r[index]

        def scalar(x):
            r = jax.new_ref(x * x)
            part = r[index]
            r[index] = jax.numpy.sin(part)
            jax.ref.addupdate(r, index, part)
            return (r[...] ** 2).sum()

        out = []
        for wrap in (lambda f: f, jax.jit):
            r = jax.new_ref(whole)
            out.append((wrap(touch)(r), r[...]))
        stacked = np.stack([whole, whole + 1])
        both = jax.jit(lambda x: (jax.grad(scalar)(x[0]), jax.vmap(jax.grad(scalar))(x)))
        return out, both(stacked)

    assert_alike(program, rtol=1e-4)


def test_second_derivatives():
    """JAX differentiates once."""

    def f(x):
        r = meshrt.new_ref(x)
        r[1] = r[0] ** 3
        meshrt.ref.addupdate(r, 2, r[1] * r[3])
        return (r[...] ** 2).sum()

    def pure(x):
        x = x.at[1].set(x[0] ** 3)
        return (x.at[2].add(x[1] * x[3]) ** 2).sum()

    x = jnp.linspace(0.1, 1.4, 5)
    np.testing.assert_allclose(meshrt.hessian(f)(x), meshrt.hessian(pure)(x), rtol=1e-5)


def test_an_index_given_twice():
    """The last value wins in both directions; JAX's derivative pulls back to both."""
    index = np.array([1, 1, 0])

    def f(x):
        r = meshrt.new_ref(jnp.zeros(3))
        r[index] = x
        return (r[...] * jnp.arange(1.0, 4.0)).sum()

    x = jnp.array([1.0, 2.0, 3.0])
    pure = meshrt.grad(lambda x: (jnp.zeros(3).at[index].set(x) * jnp.arange(1.0, 4.0)).sum())(x)
    np.testing.assert_array_equal(meshrt.grad(f)(x), pure)


def test_traced_slices_that_are_mapped():
    """JAX maps no slices whose starts differ."""

    def f(x, i, j):
        r = meshrt.new_ref(x)
        r[meshrt.ds(i, 2)] = r[meshrt.ds(j, 2)] * 2
        return r[...]

    x, i, j = jnp.arange(15.0).reshape(3, 5), jnp.array([0, 1, 2]), jnp.array([1, 2, 3])
    expected = np.array(x)
    for row, a, b in zip(expected, [0, 1, 2], [1, 2, 3]):
        row[a : a + 2] = row[b : b + 2] * 2
    np.testing.assert_array_equal(meshrt.vmap(f)(x, i, j), expected)


def test_checkpoint_of_a_reference():
    """JAX fails here; values and gradients are those without checkpoint."""

    def f(x):
        r = meshrt.new_ref(x)
        meshrt.lax.fori_loop(0, 3, lambda i, _: r.__setitem__(i, r[i] * jnp.sin(r[i - 1])), None)
        return r[...].sum()

    x = jnp.linspace(0.1, 1.0, 4)
    expected = meshrt.grad(f)(x)
    np.testing.assert_allclose(meshrt.grad(meshrt.checkpoint(f))(x), expected, rtol=1e-5)
    np.testing.assert_allclose(meshrt.jit(meshrt.grad(meshrt.checkpoint(f)))(x), expected, rtol=1e-5)


def test_branches_chosen_by_each_member():
    """JAX refuses: State effect not supported in vmap-of-cond."""

    def f(x):
        r = meshrt.new_ref(x)
        meshrt.lax.cond(x > 0, lambda: r.__setitem__(..., x * 2), lambda: r.__setitem__(..., -x))
        return r[...]

    x = jnp.array([1.0, -2.0, 3.0])
    np.testing.assert_array_equal(meshrt.vmap(f)(x), [2.0, 2.0, 6.0])
    np.testing.assert_array_equal(meshrt.grad(lambda x: meshrt.vmap(f)(x).sum())(x), [2.0, -1.0, 2.0])


def test_custom_jvp_that_writes_what_it_captured():
    """JAX has no discharge rule for custom_jvp."""
    calls = meshrt.new_ref(0)

    @meshrt.custom_jvp
    def f(x):
        calls[...] += 1
        return x * 2

    f.defjvp(lambda p, t: (f(p[0]), t[0] * 2))
    assert (f(1.0), meshrt.jit(f)(1.0), meshrt.grad(f)(1.0)) == (2.0, 2.0, 2.0)
    assert calls[...] == 3


def test_the_error_names_both_places():
    r = meshrt.new_ref(0.0)
    with pytest.raises(ValueError, match=r"made at .*test_refs\.py.*appeared at both x_ref and y_ref"):
        meshrt.jit(lambda x_ref, y_ref: x_ref[...] + y_ref[...])(r, r)
    with pytest.raises(ValueError, match="closed over and passed as the argument y_ref"):
        meshrt.jit(lambda y_ref: r[...] + y_ref[...])(r)
    with pytest.raises(ValueError, match="appeared at both y_ref and z_ref"):
        meshrt.jit(lambda x: meshrt.jit(lambda y_ref, z_ref: y_ref[...] + z_ref[...])(x, x))(r)


def test_a_freed_reference():
    r = meshrt.new_ref(jnp.zeros(3))
    assert meshrt.free_ref(r) == ()
    with pytest.raises(meshrt.errors.DeletedArrayError, match=r"made at .*test_refs\.py"):
        r[...]


def test_written_in_place():
    """The buffer of a reference is taken over by what it holds afterwards: the compiled program says so."""

    def step(r, x):
        r[...] = r[...] * 2 + x

    r, x = meshrt.new_ref(jnp.zeros((8, 8))), jnp.ones((8, 8))
    compiled = meshrt.jit(step).lower(r, x).compile()
    assert "may-alias" in compiled.as_text() or "must-alias" in compiled.as_text()
    before = r.unsafe_buffer_pointer()
    meshrt.jit(step)(r, x)
    assert r.unsafe_buffer_pointer() == before


def test_a_compiled_function_takes_references():
    captured = meshrt.new_ref(jnp.ones(3))

    @meshrt.jit
    def step(r, x):
        r[...] += x * captured[...]
        captured[0] = 5.0
        return r[1]

    r = meshrt.new_ref(jnp.zeros(3))
    compiled = step.lower(r, jnp.ones(3)).compile()
    assert (compiled(r, jnp.ones(3)), compiled(r, jnp.ones(3))) == (1.0, 2.0)
    np.testing.assert_array_equal(r[...], [6.0, 2.0, 2.0])
    np.testing.assert_array_equal(captured[...], [5.0, 1.0, 1.0])
    with pytest.raises(meshrt.errors.TreeError, match="compiled for arguments"):
        compiled(r)


def test_a_condition_reads_what_the_body_writes():
    """JAX loops for ever."""
    r = meshrt.new_ref(0)
    meshrt.jit(lambda: meshrt.lax.while_loop(lambda _: r[...] < 5, lambda _: r.__setitem__(..., r[...] + 1), None))()
    assert r[...] == 5


def test_the_array_it_was_made_from_stays():
    x = jnp.arange(3.0)
    r = meshrt.new_ref(x)
    y = r[...]
    meshrt.jit(lambda r: r.__setitem__(..., r[...] + 1))(r)
    np.testing.assert_array_equal(x, [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(y, [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(r[...], [1.0, 2.0, 3.0])


@pytest.mark.parametrize(
    ("narrow", "shape"), [(lambda r: r.at[1:4], (3,)), (lambda r: r.reshape(2, 3).at[1:, :2], (1, 2))]
)
def test_a_part_of_what_an_index_given_twice_shows(narrow, shape):
    at, held = np.int32([1, 1, 2, 1, -1, 9]), np.float32([5, 6, 7, 8, 9])  # what is beyond the end is dropped
    numbers = narrow(meshrt.new_ref(np.int32([1, 1, 2, 1, 4, -1])))[...].reshape(-1)
    values = np.arange(1, 1 + np.prod(shape), dtype=np.float32).reshape(shape)
    taken = numbers >= 0
    wanted = held.copy()
    np.add.at(wanted, numbers[taken], values.reshape(-1)[taken])
    r = meshrt.new_ref(held)
    meshrt.ref.addupdate(narrow(r.at[at]), ..., values)
    np.testing.assert_array_equal(r[...], wanted)
    wanted[numbers[taken]] = 3
    narrow(r.at[at])[...] = np.full(shape, 3, np.float32)
    np.testing.assert_array_equal(r[...], wanted)


def test_an_instance_is_one_traced_or_not():
    r = meshrt.new_ref(0.0)
    assert isinstance(r, meshrt.Ref)
    assert not isinstance(jnp.zeros(3), meshrt.Ref)
    assert meshrt.jit(lambda r: jnp.asarray(isinstance(r, meshrt.Ref)))(r)


def test_one_reference_is_not_two_arguments():
    def f(a, b):
        a[...] = 2 * b[...]
        return a[...].sum()

    r = meshrt.new_ref(jnp.ones((3, 2)))
    whole = meshrt.shard_map(f, mesh=meshrt.make_mesh((1,), ("x",)), in_specs=meshrt.P(), out_specs=meshrt.P())
    calls = {
        "vmap": meshrt.vmap(f), "checkpoint": meshrt.checkpoint(f), "shard_map": whole,
        "jit": meshrt.make_jaxpr(f), "vmap of a part": meshrt.jit(lambda r: meshrt.vmap(f)(r, r)),
    }  # fmt: skip
    for what, call in calls.items():
        with pytest.raises(errors.ArgumentValueError) as caught:
            call(r) if what == "vmap of a part" else call(r, r)
        assert f"when tracing f for {what.split()[0]} " in str(caught.value)
        assert "Ref{float32[3,2]}" in str(caught.value) and "appeared at both a and b" in str(caught.value)
    np.testing.assert_array_equal(r[...], np.ones((3, 2)))


def test_views_as_other_elements_of_what_indices_name_twice():
    """All updates of an element count, and of two writes one; elements that the view leaves out stay."""
    x, at = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([1, 1, 3, -3, 9])

    @meshrt.jit
    def f(x):
        ref = meshrt.new_ref(x)
        view = ref.at[at].bitcast(np.int32)
        meshrt.ref.addupdate(view.at[:, 1:], ..., jnp.ones((5, 2), np.int32))
        view.at[2].bitcast(np.uint32)[0] = np.uint32(7)
        return ref[...]

    wanted = x.copy()
    for i in (1, 1, 3, 1):
        wanted.view(np.int32)[i, 1:] += 1
    wanted.view(np.uint32)[3, 0] = 7
    np.testing.assert_array_equal(f(x).view(np.int32), wanted.view(np.int32))


def test_what_a_number_names_is_a_static_slice():
    """As of an array: the gradient of a loop adds up over devices once, behind it, not in each turn."""
    mesh = meshrt.make_mesh((2,), ("d",), (meshrt.sharding.AxisType.Auto,))
    batch = meshrt.device_put(jnp.ones((8, 4)), meshrt.NamedSharding(mesh, meshrt.P("d")))

    def loss(w, x, of_ref):
        read = meshrt.new_ref(w) if of_ref else w
        return meshrt.lax.scan(lambda c, _: (jnp.tanh(c @ read[0]), None), x, None, length=3)[0].sum()

    rows = []
    for of_ref in (False, True):
        gradient = meshrt.jit(meshrt.grad(lambda w, x: loss(w, x, of_ref)))
        weights = meshrt.device_put(jnp.ones((6, 4, 4)), meshrt.NamedSharding(mesh, meshrt.P()))
        plan = gradient.trace(weights, batch).lower().propagate().partition().plan
        rows.append(plan.counts)
    assert rows == [{"all_reduce": 1}] * 2


def test_updates_through_views_as_elements_of_another_width_of_what_indices_name_are_refused():
    """One of two copies would be lost. Reads and writes may, and so may updates of what a slice gives."""

    def f(x, at, how):
        ref = meshrt.new_ref(x)
        how(ref.at[at].bitcast(np.int16))
        return ref[...]

    add = lambda view: meshrt.ref.addupdate(view, ..., jnp.ones(view.shape, np.int16))
    x, at = np.arange(8, dtype=np.int32).reshape(4, 2), np.array([1, 1])
    with pytest.raises(errors.UnsupportedError, match="int32 elements viewed as int16 behind an array of indices"):
        meshrt.jit(lambda x: f(x, at, add))(x)
    wanted = x.copy()
    wanted[:2].view(np.int16)[...] += 1
    np.testing.assert_array_equal(meshrt.jit(lambda x: f(x, slice(0, 2), add))(x), wanted)
