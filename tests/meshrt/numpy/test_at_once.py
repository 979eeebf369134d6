"""Functions of arrays that run as one program when they are called eagerly: which calls do, and what they give."""

import math

import jax
import jax.numpy as jnp_of_jax
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt.dispatch import at_once
from meshrt.runtime import events

X = np.linspace(-2, 3, 12, dtype=np.float32).reshape(3, 4)
N = np.arange(12, dtype=np.int32).reshape(3, 4)


def counted(call):
    """What `call` gives, and how many launches it makes that were not made before."""
    with events.count("dispatch_miss") as misses:
        out = call()
    return out, misses.dispatch_miss


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "call",
    [
        lambda np, x, n: np.mean(x),
        lambda np, x, n: x.mean(axis=1, keepdims=True),
        lambda np, x, n: n.mean(0),
        lambda np, x, n: np.var(x, axis=(0, 1), ddof=1),
        lambda np, x, n: np.sum(n, dtype="float32"),
        lambda np, x, n: np.argmax(x, axis=-1),
        lambda np, x, n: np.where(n > 3, x, n),
        lambda np, x, n: np.where(x > 0, x, -0.0),
        lambda np, x, n: np.where(x > 0, 1, n),
        lambda np, x, n: np.sin(n),
        lambda np, x, n: x @ x.T,
        lambda np, x, n: x + n,
        lambda np, x, n: x * 2,
        lambda np, x, n: 1 - x,
        lambda np, x, n: n / 2,
        lambda np, x, n: n + 1.5,
        lambda np, x, n: x / -0.0,
        lambda np, x, n: x / 0.0,
        lambda np, x, n: (x > 0) + 1,
        lambda np, x, n: x + math.nan,
        lambda np, x, n: x % 2,
        lambda np, x, n: -2 % (n + 1),
        lambda np, x, n: n % -2.5,
        lambda np, x, n: n.astype("int8") // 3,
        lambda np, x, n: n.astype("uint8") % 3,
        lambda np, x, n: np.fmod(x, -0.7),
        lambda np, x, n: np.copysign(n, -1),
        lambda np, x, n: np.copysign(x, -0.0),
        lambda np, x, n: np.arctan2(n, 2),
        lambda np, x, n: n << 2,
        lambda np, x, n: n >> 1,
        lambda np, x, n: np.clip(x, -1, 2),
        lambda np, x, n: np.clip(n, 2.5, 7),
        lambda np, x, n: np.clip(x, None, 0),
        lambda np, x, n: np.clip(x, min=-0.0, max=0.0),
        lambda np, x, n: np.take(x, n % 3, axis=1),
        lambda np, x, n: np.roll(x, 2, axis=0),
        lambda np, x, n: np.roll(x, n[0, 1]),
        lambda np, x, n: np.linspace(0, 1, 5),
        lambda np, x, n: np.linspace(2, -1.5, 4, endpoint=False, dtype=int),
        lambda np, x, n: np.linspace(x[0], 1, 3, axis=-1),
        lambda np, x, n: np.allclose(x, x + 1e-9),
        lambda np, x, n: np.isclose(x, 1.0, 0.5),
        lambda np, x, n: np.unique(n % 5),
        lambda np, x, n: np.unique(n % 5, return_inverse=True)[1],
        lambda np, x, n: np.unique(n % 5, size=7, fill_value=-1, return_counts=True)[1],
        lambda np, x, n: np.isin(n, np.array([3, 5]), invert=True),
        lambda np, x, n: np.pad(x, ((1, 0), (0, 2)), mode="edge"),
        lambda np, x, n: np.tile(x, (2, 1)),
        lambda np, x, n: np.argsort(x, descending=True),
        lambda np, x, n: np.linalg.norm(x, ord=math.inf, axis=1),
    ],
)
def test_as_in_jax(call):
    values = []
    for library, place in ((jnp, meshrt.device_put), (jnp_of_jax, jax.device_put)):
        x, n = place(X), place(N)
        outs = [call(library, x, n) for _ in range(3)]  # compiled, made short, short
        for out in outs[1:]:
            np.testing.assert_array_equal(out, outs[0])
        values.append(outs[-1])
    ours, theirs = values
    assert (ours.dtype, ours.weak_type, ours.shape) == (theirs.dtype, theirs.weak_type, theirs.shape)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    np.testing.assert_array_equal(np.signbit(ours), np.signbit(theirs))


def test_one_program_for_a_function_and_its_choices():
    x = meshrt.device_put(np.arange(7, dtype=np.float32))
    meshrt.clear_caches()
    for call in (
        lambda: jnp.mean(x),
        lambda: jnp.mean(x, axis=0),
        lambda: jnp.mean(x, 0, keepdims=True),
        lambda: jnp.std(x),
        lambda: jnp.where(x, x, x),
        lambda: jnp.roll(x, 3),
        lambda: jnp.allclose(x, x),
        lambda: jnp.linspace(0, 2.0, 9),
        lambda: jnp.pad(x, 2),
    ):
        assert counted(call)[1] == 1
        assert counted(call)[1] == counted(call)[1] == 0
    meshrt.clear_caches()
    assert counted(lambda: jnp.mean(x))[1] == 1


def test_values_are_no_choices():
    """A program is not made for each value of an argument."""
    x = meshrt.device_put(np.arange(3, dtype=np.float32))
    for call in (lambda i: jnp.sum(x, initial=i), lambda i: x + i, lambda i: jnp.where(x > 0, x, i),
                 lambda i: x % i, lambda i: jnp.clip(x, 0, i), lambda i: jnp.linspace(i, 5.0, 4)):  # fmt: skip
        call(1), call(2)
        assert counted(lambda call=call: call(3))[1] == 0


def test_choices_are_told_apart_by_their_types():
    x = meshrt.device_put(X)
    for _ in range(3):
        assert jnp.sum(x, axis=1).shape == jnp.sum(x, axis=(1,)).shape == (3,)
    for axis in (1.0, (1.0,)):
        with pytest.raises(TypeError):
            jnp.sum(x, axis=axis)
    with pytest.raises(TypeError):
        jnp.sum(x, axis=[1.5])


def test_arrays_on_several_devices_and_traced_ones_are_left_to_the_function():
    seen = []

    @at_once(1)
    def double(x, axis=None):
        seen.append(type(x))
        return x + x

    mesh = meshrt.make_mesh((8,), ("a",))
    split = meshrt.device_put(np.arange(8.0), meshrt.NamedSharding(mesh, meshrt.P("a")))
    assert double(split).sharding == split.sharding and seen.pop() is type(split)
    with meshrt.config.override(disable_jit=True):
        assert double(jnp.ones(2)).shape == (2,) and seen.pop() is type(split)
    assert double(np.ones(2)).shape == (2,) and seen.pop() is np.ndarray
    assert meshrt.grad(lambda x: double(x, axis=3).sum())(jnp.ones(2)).tolist() == [2.0, 2.0]
    seen.clear()
    for _ in range(4):
        assert double(jnp.ones(2)).tolist() == [2.0, 2.0]
    assert len(seen) == 1 and seen[0] is not type(split)


def test_whose_nan_it_is_is_still_said():
    x = jnp.zeros(3)
    jnp.log(x), jnp.log(x), jnp.log(x)
    with meshrt.config.override(debug_nans=True), pytest.raises(FloatingPointError, match="log"):
        jnp.log(x - 1)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("number", [0.0, -0.0, 0, 2.5])
def test_a_number_beside_complex_ones(number):
    z = np.array([1 - 2j, -0.0 + 0j], np.complex64)
    ours, theirs = jnp.asarray(z), jnp_of_jax.asarray(z)
    for _ in range(3):
        for call in (lambda a: a + number, lambda a: number * a):
            out, expected = np.asarray(call(ours)), np.asarray(call(theirs))
            np.testing.assert_array_equal(out, expected)
            np.testing.assert_array_equal(np.signbit(out.real), np.signbit(expected.real))
            np.testing.assert_array_equal(np.signbit(out.imag), np.signbit(expected.imag))


def test_a_wide_number_is_refused_whatever_was_allowed_before():
    x = meshrt.device_put(np.zeros(3, np.int32))
    with meshrt.enable_x64(True):
        assert (x + 2**40).tolist() == [0, 0, 0]
    with pytest.raises(OverflowError):
        x + 2**40


def test_functions_of_arrays_along_auto_axes_are_one_program_too():
    """Propagation sees the whole: `roll` puts its result together of parts of sizes that no axis divides."""
    for library in (jax, meshrt):
        kinds = (library.sharding.AxisType.Auto,) * 2
        mesh = library.make_mesh((4, 2), ("x", "y"), axis_types=kinds)
        x = library.device_put(np.arange(16.0).reshape(8, 2), library.sharding.NamedSharding(mesh, library.P("x", "y")))
        found = library.numpy.roll(x, 1, 0), library.numpy.roll(x, (1, 1), (0, 1))
        assert [str(f.sharding.spec) for f in found] == ["P('x', 'y')"] * 2
        np.testing.assert_array_equal(found[1], np.roll(np.asarray(x), (1, 1), (0, 1)))


def test_repeat_keeps_a_split_that_no_mesh_in_context_asks_about():
    for library in (jax, meshrt):
        mesh = library.make_mesh((4,), ("x",), axis_types=(library.sharding.AxisType.Explicit,))
        split = library.sharding.NamedSharding(mesh, library.P("x"))
        x = library.device_put(np.arange(8.0), split)
        assert library.numpy.repeat(x, 2, 0).sharding == split
        with library.set_mesh(mesh), pytest.raises(ValueError, match="via `out_sharding` parameter"):
            library.numpy.repeat(x, 2, 0)
