"""Arrays from parts, judged by JAX: values, what is asked of the callback, classes and texts of errors."""

import importlib

import jax
import ml_dtypes
import numpy as np
import pytest

import meshrt
from meshrt import errors
from meshrt.sharding import NamedSharding, SingleDeviceSharding, make_mesh
from meshrt.sharding import PartitionSpec as P

VALUE = np.arange(64, dtype=np.float32).reshape(8, 8)
MESH = ((4, 2), ("x", "y"))
JMESH = jax.make_mesh(*MESH, axis_types=(jax.sharding.AxisType.Auto,) * 2)


def ours(spec, **kw):
    return NamedSharding(make_mesh(*MESH), spec, **kw)


def theirs(spec):
    return jax.sharding.NamedSharding(JMESH, jax.sharding.PartitionSpec(*spec))


@pytest.mark.parametrize("spec", [P(), P("x"), P(None, ("y", "x")), P("y", "x"), P(("x", "y"))], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.int8, bool, ml_dtypes.bfloat16, np.float64, ml_dtypes.int4])
def test_callback_equals_jax(spec, dtype):
    value = VALUE.astype(dtype)
    asked = []
    x = meshrt.make_array_from_callback((8, 8), ours(spec), lambda i: asked.append(i) or value[i])
    y = jax.make_array_from_callback((8, 8), theirs(spec), lambda i: value[i])
    assert (x.shape, x.dtype, x.committed, x.weak_type) == (y.shape, y.dtype, True, False)
    assert len(asked) == len({str(i) for i in asked})  # once per part, where JAX asks once per device
    np.testing.assert_array_equal(np.asarray(x), np.asarray(y))
    for a, b in zip(x.addressable_shards, y.addressable_shards):
        assert (a.device.id, a.index) == (b.device.id, b.index)
        np.testing.assert_array_equal(np.asarray(a.data), np.asarray(b.data))


@pytest.mark.parametrize("give", [lambda v: 3, lambda v: 2.5, lambda v: True, lambda v: np.float64(v.sum())])
def test_scalars_from_callbacks(give):
    x = meshrt.make_array_from_callback((), ours(P()), lambda i: give(VALUE))
    y = jax.make_array_from_callback((), theirs(P()), lambda i: give(VALUE))
    assert x.dtype == y.dtype and np.asarray(x) == np.asarray(y)


def test_values_that_are_arrays_already():
    on = [meshrt.device_put(VALUE, d) for d in meshrt.devices()]
    x = meshrt.make_array_from_callback((8, 8), ours(P("x")), lambda i: on[i[0].start][i])
    np.testing.assert_array_equal(np.asarray(x), VALUE)
    keys = meshrt.random.split(meshrt.random.key(0), 8)
    placed = meshrt.make_array_from_callback((8,), ours(P("x")), lambda i: keys[i])
    np.testing.assert_array_equal(meshrt.random.key_data(placed), meshrt.random.key_data(keys))


def fails_alike(call, their_call, match):
    with pytest.raises((ValueError, TypeError, RuntimeError)) as wanted:
        their_call()
    with pytest.raises(errors.MeshrtError, match=match) as got:
        call()
    base = next(c for c in type(wanted.value).__mro__ if c.__module__ == "builtins")
    assert isinstance(got.value, base), (type(got.value), type(wanted.value), wanted.value)


def both(name, *args):
    """A call of the function `name` of each library; `args` are functions of (library, sharding maker)."""
    mine = lambda: getattr(meshrt, name)(
        *[a(meshrt, ours) if callable(a) and not isinstance(a, type) else a for a in args]
    )
    other = lambda: getattr(jax, name)(
        *[a(jax, theirs) if callable(a) and not isinstance(a, type) else a for a in args]
    )
    return mine, other


def rows(lib, s):
    return s(P("x"))


CALLBACK_ERRORS = [
    (rows, lambda lib, s: lambda i: np.ones((1, 1)), None, r"Expected shard shape \(2, 8\)"),
    (rows, lambda lib, s: lambda i: VALUE[i], np.int32, "it must match the dtype of the addressable"),
    (rows, lambda lib, s: lambda i: VALUE[i].astype([np.int8, np.int32][(i[0].start // 2) % 2]), None,
     "must have matching dtypes"),
    ("x", lambda lib, s: lambda i: VALUE[i], None, "sharding should be an instance of"),
    (rows, lambda lib, s: lambda i: np.full((2, 8), None), None, "dtype object"),
    (rows, lambda lib, s: lambda i: np.full((2, 8), "a"), None, "dtype <U1"),
    (rows, lambda lib, s: lambda i: np.full((2, 8), 1, np.longdouble), None, "dtype float128"),
    (rows, lambda lib, s: lambda i: "a", None, "has dtype <U1"),
]  # fmt: skip


@pytest.mark.parametrize(("sharding", "callback", "dtype", "match"), CALLBACK_ERRORS)
def test_callback_errors(sharding, callback, dtype, match):
    fails_alike(*both("make_array_from_callback", (8, 8), sharding, callback, dtype), match)


def test_callback_with_traced_values():
    def f(lib, s):
        return lambda: lib.jit(lambda v: lib.make_array_from_callback((8, 8), s(P("x")), lambda i: v[:2]))(VALUE)

    fails_alike(f(meshrt, ours), f(jax, theirs), "within a traced context")


def test_indivisible_callbacks():
    fails_alike(
        *both("make_array_from_callback", (7, 8), lambda lib, s: s(P("x")), lambda lib, s: lambda i: VALUE[i]),
        "uneven=True",
    )
    x = meshrt.make_array_from_callback((7, 8), ours(P("x"), uneven=True), lambda i: VALUE[i])
    np.testing.assert_array_equal(np.asarray(x), VALUE[:7])
    with pytest.raises(errors.ArgumentValueError, match=r"Expected shard shape \(1, 8\)"):
        meshrt.make_array_from_callback((7, 8), ours(P("x"), uneven=True), lambda i: np.ones((2, 8), np.float32))


def test_process_local_data():
    for spec in (P(), P("x"), P("y", "x")):
        x = meshrt.make_array_from_process_local_data(ours(spec), VALUE)
        assert x.sharding is ours(spec)
        np.testing.assert_array_equal(np.asarray(x), VALUE)
    tree = meshrt.make_array_from_process_local_data(ours(P("x")), {"a": VALUE, "b": (VALUE[:, 0],)})
    np.testing.assert_array_equal(np.asarray(tree["b"][0]), VALUE[:, 0])
    with meshrt.set_mesh(make_mesh(*MESH)):
        assert meshrt.make_array_from_process_local_data(P("x"), VALUE).sharding is ours(P("x"))
    fails_alike(
        *both("make_array_from_process_local_data", lambda lib, s: s(P("x")), VALUE, (16, 8)),
        "on a single process, global_shape should be None or equal",
    )


def local_wishes(lib, s):
    """What may be said of where local data goes, beside shardings."""
    layouts = importlib.import_module(f"{lib.__name__}.experimental.layout")
    form = lambda *order: layouts.Format(layouts.Layout(order), s(P("x")))
    return {
        "a device": lib.devices()[2],
        "column-major": form(1, 0),
        "row-major": form(0, 1),
        "no layout": layouts.Format(None, s(P("x"))),
        "another rank": form(0),
    }


@pytest.mark.parametrize("shape", [None, (8, 8), (16, 8), 8], ids=str)
@pytest.mark.parametrize("name", ["a device", "column-major", "row-major", "no layout", "another rank"])
def test_process_local_data_in_a_layout_and_on_a_device(name, shape):
    found = []
    for lib, s in ((meshrt, ours), (jax, theirs)):
        try:
            x = lib.make_array_from_process_local_data(local_wishes(lib, s)[name], VALUE, shape)
        except (ValueError, TypeError) as e:
            found.append(next(k.__name__ for k in type(e).__mro__ if k.__module__ == "builtins"))
        else:
            order = x.format.layout.major_to_minor
            found.append((order, sorted(d.id for d in x.devices()), x.committed, np.asarray(x).tolist()))
    assert found[0] == found[1]


def test_process_local_data_has_a_layout_that_is_named():
    layouts = importlib.import_module("meshrt.experimental.layout")
    with pytest.raises(errors.ArgumentTypeError, match=r"Layout.AUTO.*`make_array_from_process_local_data`"):
        meshrt.make_array_from_process_local_data(layouts.Format(layouts.Layout.AUTO, ours(P("x"))), VALUE)


def parts_on(lib, s):
    return [shard.data for shard in lib.device_put(VALUE, s(P("x"))).addressable_shards]


SINGLE_ERRORS = [
    (lambda lib, s: parts_on(lib, s)[:3], (8, 8), "Expected 8 per-device arrays"),
    (lambda lib, s: [parts_on(lib, s)[0]] * 8, (8, 8), "must be from distinct devices"),
    (lambda lib, s: parts_on(lib, s), (16, 8), r"Expected shard shape \(4, 8\) doesn't match the single device array"),
    (lambda lib, s: parts_on(lib, s)[:7] + [lib.device_put(np.ones((2, 8), np.int32), lib.devices()[7])], (8, 8),
     "matching dtypes"),
    (lambda lib, s: iter(parts_on(lib, s)), (8, 8), "must be a list or tuple"),
]  # fmt: skip


@pytest.mark.parametrize(("arrays", "shape", "match"), SINGLE_ERRORS)
def test_single_device_array_errors(arrays, shape, match):
    fails_alike(
        *both("make_array_from_single_device_arrays", shape, lambda lib, s: s(P("x")), arrays), match
    )  # fmt: skip


def test_single_device_arrays_on_other_devices():
    def call(lib, sharding):
        return lambda: lib.make_array_from_single_device_arrays(
            (2,), sharding, [lib.device_put(np.ones(1, np.float32), d) for d in lib.devices()[2:4]]
        )

    small = make_mesh((2,), ("x",), devices=meshrt.devices()[:2])
    jsmall = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("x",))
    fails_alike(
        call(meshrt, NamedSharding(small, P("x"))),
        call(jax, jax.sharding.NamedSharding(jsmall, jax.sharding.PartitionSpec("x"))),
        r"contains devices \{0, 1\} that are not present.*contain devices \{2, 3\}",
    )


def test_traced_single_device_arrays():
    def f(lib, s):
        return lambda: lib.jit(
            lambda v: lib.make_array_from_single_device_arrays((8, 8), s(P("x")), [v] * 8)
        )(VALUE)  # fmt: skip

    fails_alike(f(meshrt, ours), f(jax, theirs), "list of concrete arrays")


def test_single_device_arrays_share_memory():
    """Donating the parts, or the whole, leaves the other as it was."""
    parts = parts_on(meshrt, ours)
    x = meshrt.make_array_from_single_device_arrays((8, 8), ours(P("x")), parts)
    meshrt.jit(lambda v: v + 1, donate_argnums=0)(parts[0])
    np.testing.assert_array_equal(np.asarray(x), VALUE)
    y = meshrt.make_array_from_single_device_arrays((8, 8), ours(P("x")), parts_on(meshrt, ours)[::-1])
    z = meshrt.jit(lambda v: v + 1, donate_argnums=0)(y)
    np.testing.assert_array_equal(np.asarray(z), VALUE + 1)


def test_uneven_single_device_arrays():
    x = meshrt.device_put(VALUE[:7], ours(P("x", "y"), uneven=True))
    parts = [s.data for s in x.addressable_shards]
    assert {p.shape for p in parts} == {(2, 4), (1, 4)}
    again = meshrt.make_array_from_single_device_arrays((7, 8), x.sharding, parts[::-1])
    np.testing.assert_array_equal(np.asarray(again), VALUE[:7])


def test_no_copy_of_one_large_part():
    x = meshrt.device_put(VALUE, SingleDeviceSharding(meshrt.devices()[1]))
    one = make_mesh((1,), ("x",), devices=[meshrt.devices()[1]])
    y = meshrt.make_array_from_single_device_arrays((8, 8), NamedSharding(one, P("x")), [x])
    assert y.unsafe_buffer_pointer() == x.unsafe_buffer_pointer()


def test_large_values_are_copied_by_threads_and_their_memory_is_used_again():
    value = np.arange(2048 * 1024, dtype=np.float32).reshape(2048, 1024)
    for _ in range(4):
        x = meshrt.device_put(value, ours(P("x", "y")))
        y = meshrt.make_array_from_callback(value.shape, ours(P(("x", "y"))), lambda i: value[i])
        value += 1  # later changes are not seen
        np.testing.assert_array_equal(np.asarray(x), value - 1)
        np.testing.assert_array_equal(np.asarray(y), value - 1)
        view = np.asarray(x.addressable_data(0))
        del x, y
        z = meshrt.device_put(np.zeros_like(value), ours(P("x", "y")))
        np.testing.assert_array_equal(view, (value - 1)[:512, :512])
        del z
