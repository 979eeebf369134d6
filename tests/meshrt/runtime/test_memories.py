"""Kinds of memory, and layouts of elements within it: placement, compiled functions and their boundaries, as JAX on a
CPU, which has three kinds and follows row- and column-major layouts."""

import copy
import importlib

import jax
import jax.experimental.layout as jax_layout
import jax.numpy as xnp
import numpy as np
import pytest

import meshrt
import meshrt.numpy as jnp
from meshrt import errors
from meshrt.experimental import layout
from meshrt.experimental.layout import Format, Layout, with_layout_constraint
from meshrt.sharding import NamedSharding, SingleDeviceSharding, make_mesh
from meshrt.sharding import PartitionSpec as P

VALUE = np.arange(16, dtype=np.float32).reshape(8, 2)
KINDS = ("device", "pinned_host", "unpinned_host", None)


def rows(kind=None, spec=None):
    return NamedSharding(make_mesh((8,), ("x",)), P("x") if spec is None else spec, memory_kind=kind)


def one(kind=None, device=0):
    return SingleDeviceSharding(meshrt.devices()[device], memory_kind=kind)


def there(kind, spec=("x",)):
    mesh = jax.make_mesh((8,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec), memory_kind=kind)


@pytest.mark.parametrize("kind", KINDS)
def test_device_put_to_kinds_of_memory(kind):
    for value in (
        VALUE,
        jnp.asarray(VALUE),
        meshrt.device_put(VALUE, rows()),
        meshrt.device_put(VALUE, one("pinned_host")),
    ):
        for target in (rows(kind), rows(kind, P()), rows(kind, P(None, None)), one(kind), one(kind, 3)):
            x = meshrt.device_put(value, target)
            assert x.sharding is target
            np.testing.assert_array_equal(np.asarray(x), VALUE)
            for shard in x.addressable_shards:
                np.testing.assert_array_equal(np.asarray(shard.data), VALUE[shard.index])
                assert shard.data.sharding.memory_kind == (kind or "device")
            np.testing.assert_array_equal(np.asarray(meshrt.jit(lambda a: a * 2)(x)), VALUE * 2)
            np.testing.assert_array_equal(np.asarray(copy.copy(x) + 1), VALUE + 1)


@pytest.mark.parametrize("dtype", ["int4", "uint4", "bfloat16", "bool"])
def test_narrow_types_in_kinds_of_memory(dtype):
    value = np.arange(8).astype(jnp.dtype(dtype))
    x = meshrt.device_put(value, rows("pinned_host"))
    np.testing.assert_array_equal(np.asarray(x), value)
    np.testing.assert_array_equal(np.asarray(x.addressable_data(3)), value[3:4])


def test_spaces():
    space, theirs = meshrt.memory.Space, jax.memory.Space
    assert [repr(s) for s in space] == [repr(s) for s in theirs]
    for value, other in ((jnp.asarray(VALUE), xnp.asarray(VALUE)), (VALUE, VALUE),
                         (meshrt.device_put(VALUE, rows()), jax.device_put(VALUE, there(None)))):  # fmt: skip
        x, y = meshrt.device_put(value, space.Host), jax.device_put(other, theirs.Host)
        assert x.sharding.memory_kind == y.sharding.memory_kind == "pinned_host"
        assert x.sharding.num_devices == y.sharding.num_devices
        back = meshrt.device_put(x, space.Device)
        assert back.sharding.is_in_default_memory and np.array_equal(np.asarray(back), VALUE)
    assert meshrt.device_put(x, space.Any).sharding is x.sharding
    inside = meshrt.jit(lambda a: meshrt.device_put(a, space.Device) + 1)(x)
    np.testing.assert_array_equal(np.asarray(inside), VALUE + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_results_in_kinds_of_memory(kind):
    x, theirs = meshrt.device_put(VALUE, rows()), jax.device_put(VALUE, there(None))
    f = meshrt.jit(lambda a: (a * 2, a.sum()), out_shardings=(rows(kind), None))
    want = jax.jit(lambda a: (a * 2, a.sum()), out_shardings=(there(kind), None))(theirs)
    for _ in range(4):
        y, total = f(x)
        assert y.sharding is rows(kind) and total.sharding.memory_kind == "device"
        assert y.sharding.memory_kind == want[0].sharding.memory_kind
        np.testing.assert_array_equal(np.asarray(y), np.asarray(want[0]))
    compiled = f.lower(x).compile()
    assert compiled.output_shardings[0] is rows(kind) and compiled(x)[0].sharding is rows(kind)
    single = meshrt.jit(lambda a: a * 2, out_shardings=one(kind))(jnp.asarray(VALUE))
    assert single.sharding.memory_kind == (kind or "device")


def fails_alike(call, their_call, match):
    with pytest.raises(Exception) as wanted:
        their_call()
    base = next(c for c in type(wanted.value).__mro__ if c.__module__ == "builtins")
    with pytest.raises(base, match=match) as got:
        call()
    assert isinstance(got.value, errors.MeshrtError)


@pytest.mark.parametrize("lib", [meshrt, jax], ids=["meshrt", "jax"])
@pytest.mark.parametrize("way", ["made", "changed"])
def test_kinds_that_no_device_has(lib, way):
    mesh = lib.sharding.AbstractMesh((4,), ("x",))
    make = {
        "made": lambda kind: lib.NamedSharding(mesh, lib.P("x"), memory_kind=kind),
        "changed": lib.NamedSharding(mesh, lib.P("x")).with_memory_kind,
    }[way]
    for kind in ("device", "pinned_host", "unpinned_host"):
        assert make(kind).memory_kind == kind
    with pytest.raises(
        ValueError, match=r"invalid memory kind: vmem. Valid .* are: device, pinned_host, unpinned_host"
    ):
        make("vmem")


def test_kinds_that_do_not_fit():
    fails_alike(
        lambda: meshrt.device_put(VALUE, rows("vmem")), lambda: jax.device_put(VALUE, there("vmem")),
        "can address the following memory kinds: device, pinned_host, unpinned_host. Got memory kind: vmem",
    )  # fmt: skip
    x, theirs = meshrt.device_put(VALUE, rows()), jax.device_put(VALUE, there(None))
    f = lambda a: a + 1
    fails_alike(
        lambda: meshrt.jit(f, in_shardings=rows("pinned_host"))(x),
        lambda: jax.jit(f, in_shardings=there("pinned_host"))(theirs),
        "Memory kinds passed to jax?.?jit does not match|Got jit memory kind: pinned_host, arg memory kind: device",
    )
    fails_alike(
        lambda: meshrt.jit(f, in_shardings=rows("pinned_host"))(jnp.asarray(VALUE)),
        lambda: jax.jit(f, in_shardings=there("pinned_host"))(xnp.asarray(VALUE)),
        "Got jit memory kind: pinned_host, arg memory kind: device",
    )
    host = meshrt.device_put(VALUE, rows("pinned_host"))
    with pytest.raises(errors.ShardingError, match="Got jit memory kind: device, arg memory kind: pinned_host"):
        meshrt.jit(f, in_shardings=rows())(host)
    for value in (host, VALUE):
        got = meshrt.jit(f, in_shardings=rows("pinned_host"))(value)
        np.testing.assert_array_equal(np.asarray(got), VALUE + 1)


# ---------------------------------------------------------------------------------------------------------------------
# Layouts

COLUMNS = Layout((1, 0))


def columns(lib_layout, sharding):
    return lib_layout.Format(lib_layout.Layout((1, 0)), sharding)


def test_device_put_to_a_layout():
    for sharding, their in ((one(), jax.sharding.SingleDeviceSharding(jax.devices()[0])), (rows(), there(None))):
        x = meshrt.device_put(VALUE, Format(COLUMNS, sharding))
        y = jax.device_put(VALUE, columns(jax_layout, their))
        assert repr(x.format.layout) == repr(y.format.layout)
        np.testing.assert_array_equal(np.asarray(x), VALUE)
        for shard in x.addressable_shards:
            np.testing.assert_array_equal(np.asarray(shard.data), VALUE[shard.index])
        # Wherever it goes, it has the same value.
        np.testing.assert_array_equal(np.asarray(meshrt.jit(lambda a: a * 2)(x)), VALUE * 2)
        np.testing.assert_array_equal(np.asarray(x + x), VALUE * 2)
        np.testing.assert_array_equal(np.asarray(x.T), VALUE.T)
        np.testing.assert_array_equal(np.asarray(meshrt.device_put(x, rows(spec=P()))), VALUE)
        np.testing.assert_array_equal(
            np.asarray(meshrt.jit(lambda a: a + 1, donate_argnums=0)(copy.copy(x))), VALUE + 1
        )
        assert copy.copy(x).layout.major_to_minor == (1, 0) and x.copy().layout.major_to_minor == (0, 1)
        assert meshrt.device_put(x, Format(Layout((0, 1)), sharding)).layout.major_to_minor == (0, 1)
    np.testing.assert_array_equal(np.from_dlpack(meshrt.device_put(VALUE, Format(COLUMNS, one()))), VALUE)
    assert meshrt.device_put(VALUE, Format(None, rows())).sharding is rows()


def test_layouts_of_results():
    x = meshrt.device_put(VALUE, rows())
    y = meshrt.jit(lambda a: a * 2, out_shardings=Format(COLUMNS, rows()))(x)
    theirs = jax.jit(lambda a: a * 2, out_shardings=columns(jax_layout, there(None)))(
        jax.device_put(VALUE, there(None))
    )
    assert repr(y.format.layout) == repr(theirs.format.layout) and y.sharding is rows()
    np.testing.assert_array_equal(np.asarray(y), VALUE * 2)
    compiled = meshrt.jit(lambda a: a * 2, out_shardings=Format(COLUMNS, rows())).lower(x).compile()
    assert compiled.output_formats == Format(COLUMNS, rows()) and compiled(x).layout.major_to_minor == (1, 0)
    for both in (lambda f: meshrt.jit(lambda a: a * 2, out_shardings=f)(x), lambda f: meshrt.device_put(VALUE, f)):
        with pytest.raises(errors.UnsupportedError, match="leave out the layout, or the memory kind"):
            both(Format(COLUMNS, rows("pinned_host")))


def test_saved_programs_deliver_as_asked(tmp_path):
    x = meshrt.device_put(VALUE, rows())
    for asked, value in ((Format(COLUMNS, rows()), x), (Format(COLUMNS, one()), jnp.asarray(VALUE)),
                         (rows("pinned_host"), x), (one("pinned_host"), jnp.asarray(VALUE))):  # fmt: skip
        compiled = meshrt.jit(lambda a: a * 2, out_shardings=asked).lower(value).compile()
        compiled.save(tmp_path / "program")
        y = meshrt.stages.load(tmp_path / "program")(value)
        wanted = asked if isinstance(asked, Format) else Format(None, asked)
        assert y.layout.major_to_minor == ((1, 0) if wanted.layout else (0, 1))
        assert y.sharding.memory_kind == wanted.sharding.memory_kind
        np.testing.assert_array_equal(np.asarray(y), VALUE * 2)


def test_auto_layouts():
    spec = meshrt.ShapeDtypeStruct((4, 4), np.float32)
    compiled = meshrt.jit(lambda a: a @ a.T, in_shardings=Format(Layout.AUTO)).lower(spec).compile()
    (found,), _ = compiled.input_formats
    assert isinstance(found.layout, Layout) and repr(Layout.AUTO) == "AUTO"
    x = meshrt.device_put(np.eye(4, dtype=np.float32), found)
    np.testing.assert_array_equal(np.asarray(compiled(x)), np.eye(4))
    y = meshrt.jit(lambda a: a + 1, out_shardings=Format(Layout.AUTO))(x)
    assert y.layout.major_to_minor == (0, 1)


BAD = [
    lambda lib, lay, s: lib.jit(lambda a: a, in_shardings=lay.Layout((1, 0))),
    lambda lib, lay, s: lib.jit(lambda a: a, out_shardings=lay.Layout.AUTO),
    lambda lib, lay, s: lib.jit(lambda a: a, in_shardings=lay.Format(lay.Layout.AUTO)).lower(lib.device_put(VALUE, s)),
    lambda lib, lay, s: lib.device_put(VALUE, lay.Layout((1, 0))),
    lambda lib, lay, s: lib.device_put(VALUE, "cpu"),
    lambda lib, lay, s: lib.device_put(VALUE, lay.Format(lay.Layout.AUTO, s)),
    lambda lib, lay, s: lib.device_put(VALUE, lay.Format(lay.Layout((1, 0, 2)), s)),
    lambda lib, lay, s: lib.jit(lambda a: a, out_shardings=lay.Format(lay.Layout((1, 0, 2)), s))(VALUE),
    lambda lib, lay, s: lib.jit(lambda a: a, in_shardings=lay.Format(lay.Layout((1, 0)), s))(lib.device_put(VALUE, s)),
    lambda lib, lay, s: lib.jit(lambda a: a, in_shardings=lay.Format(lay.Layout((0, 1)), s))(
        lib.device_put(VALUE, lay.Format(lay.Layout((1, 0)), s))
    ),
    lambda lib, lay, s: lay.with_layout_constraint(VALUE, "rows"),
    lambda lib, lay, s: lay.with_layout_constraint(lib.numpy.asarray(VALUE), lay.Layout((1, 0, 2))),
    lambda lib, lay, s: lay.Format(lay.Layout((1, 0)), None),
    lambda lib, lay, s: lay.Format(3, s),
]
TEXTS = [
    "does not accept device-local layouts directly", "does not accept device-local layouts directly",
    "Layout passed to jit does not match the layout on the respective arg. Got jit layout: AUTO",
    "only accepts `None`", "only accepts `None`",
    "should be concrete. Got layout",
    "Length of major_to_minor and the rank of the value should match", "Length of major_to_minor",
    "Layout passed to jit does not match the layout on the respective arg. Got jit layout",
    "Layout passed to jit does not match", "must be of type `Layout`", "One of with_layout_constraint arguments is",
    "Sharding has to be concrete when layout is of type", "Invalid value received for the layout argument",
]  # fmt: skip


@pytest.mark.parametrize(("call", "text"), list(zip(BAD, TEXTS, strict=True)))
def test_bad_layouts(call, text):
    import meshrt.experimental.layout as our_layout

    other = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    fails_alike(lambda: call(meshrt, our_layout, one()), lambda: call(jax, jax_layout, other), text)


def test_arrays_from_callbacks_have_the_layout_that_was_asked_for():
    x = meshrt.make_array_from_callback(VALUE.shape, Format(COLUMNS, rows()), lambda index: VALUE[index])
    theirs = jax_layout.Format(jax_layout.Layout((1, 0)), there(None))
    y = jax.make_array_from_callback(VALUE.shape, theirs, lambda index: VALUE[index])
    assert x.format.layout.major_to_minor == y.format.layout.major_to_minor == (1, 0)
    np.testing.assert_array_equal(np.asarray(x), VALUE)


def test_results_lie_as_they_were_constrained():
    def orders(lib, lay, np_):
        def f(x):
            rows, columns = lay.Layout((0, 1)), lay.Layout((1, 0))
            laid = lay.with_layout_constraint
            return laid(x.T, columns), laid(x.T + 3, rows), laid(x * 2, columns) + 1, {"a": laid(x * 2, columns)}, x

        x = np_.asarray(VALUE)
        out = lib.tree.leaves(lib.jit(f)(x))
        formats = lib.tree.leaves(lib.jit(f).lower(x).compile().output_formats)
        assert not any(y.committed for y in out)
        assert [y.format.layout.major_to_minor for y in out] == [at.layout.major_to_minor for at in formats]
        return [(y.format.layout.major_to_minor, np.asarray(y).tolist()) for y in out]

    assert orders(meshrt, layout, jnp) == orders(jax, jax_layout, jax.numpy)


@pytest.mark.parametrize("name", ["meshrt", "jax"])
def test_a_format_constrains_sharding_and_layout(name):
    lib, lay = importlib.import_module(name), importlib.import_module(f"{name}.experimental.layout")
    mesh = lib.make_mesh((2, 2), ("x", "y"), axis_types=(lib.sharding.AxisType.Auto,) * 2)
    split = lib.NamedSharding(mesh, lib.P("x"))
    for asked in (lay.Format(lay.Layout((0, 1)), split), lay.Format(None, split)):
        out = lib.jit(lambda x: lib.lax.with_sharding_constraint(x.T, asked))(np.ones((4, 8), np.float32))
        assert out.format.layout.major_to_minor == (0, 1) and out.sharding.is_equivalent_to(split, 2)
    columns = lib.jit(
        lambda x: lib.lax.with_sharding_constraint(x * 2, lay.Format(lay.Layout((1, 0)), split))
    ).lower(np.ones((4, 8), np.float32))  # fmt: skip
    assert "dense<[0, 1]>" in columns.as_text()


def test_with_layout_constraint():
    x = with_layout_constraint({"a": jnp.asarray(VALUE), "b": VALUE}, COLUMNS)
    for leaf in x.values():
        assert leaf.layout.major_to_minor == (1, 0) and not leaf.committed
        np.testing.assert_array_equal(np.asarray(leaf), VALUE)
    f = lambda a: (with_layout_constraint(a * 2, COLUMNS) ** 2).sum()
    text = meshrt.jit(f).lower(jnp.asarray(VALUE)).as_text()
    assert "@LayoutConstraint" in text and "dense<[0, 1]>" in text
    g = lambda a: (jax_layout.with_layout_constraint(a * 2, jax_layout.Layout((1, 0))) ** 2).sum()
    np.testing.assert_allclose(np.asarray(meshrt.jit(f)(VALUE)), np.asarray(jax.jit(g)(VALUE)))
    np.testing.assert_allclose(np.asarray(meshrt.jit(meshrt.grad(f))(VALUE)), np.asarray(jax.jit(jax.grad(g))(VALUE)))
    batch = np.stack([VALUE, VALUE + 1])
    np.testing.assert_allclose(np.asarray(meshrt.jit(meshrt.vmap(f))(batch)), np.asarray(jax.jit(jax.vmap(g))(batch)))
    split = meshrt.device_put(VALUE, rows())  # each device's part lies as asked
    np.testing.assert_allclose(np.asarray(meshrt.jit(f)(split)), np.asarray(jax.jit(g)(VALUE)))
    laid = meshrt.jit(lambda a: with_layout_constraint(a * 2, COLUMNS))(split)
    assert laid.layout.major_to_minor == (1, 0) and laid.sharding.is_equivalent_to(split.sharding, 2)
    np.testing.assert_array_equal(np.asarray(laid), VALUE * 2)
