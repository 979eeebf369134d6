"""What `jit` is told beside its function: where it runs, how it stands in other programs, what it refuses; as JAX."""

import json
import warnings

import jax
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding as JaxSingle

import meshrt
import meshrt.numpy as jnp
from meshrt import errors, lax
from meshrt.experimental.layout import Format, Layout
from meshrt.sharding import AxisType, Mesh, NamedSharding, SingleDeviceSharding
from meshrt.sharding import PartitionSpec as P
from tests.meshrt.beside import assert_alike

X = np.arange(16, dtype=np.float32).reshape(8, 2)


def mesh_of(count, names=("x",), first=0, **kwargs):
    shape = (count,) if len(names) == 1 else (2, count // 2)
    return Mesh(np.array(meshrt.devices()[first : first + count]).reshape(shape), names, **kwargs)


@pytest.mark.parametrize("where", ["device", "backend"])
def test_where_a_function_runs_is_deprecated_as_in_jax(where):
    for lib in (meshrt, jax):
        value = {"device": lib.devices()[0], "backend": "cpu"}[where]
        with pytest.warns(DeprecationWarning, match="backend and device argument on jit is deprecated") as told:
            lib.jit(lambda x: x, **{where: value})
        assert [w.filename for w in told] == [__file__]


def test_a_device_takes_arguments_from_anywhere():
    def devices_of(lib, single, mesh):
        here = lib.devices()[1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the peer calls it deprecated
            f, nested = lib.jit(lambda x: x @ x.T, device=here), lib.jit(lambda x: 2 * x, device=here)
        spread = lib.sharding.NamedSharding(mesh, lib.sharding.PartitionSpec("x", "y"))
        out = []
        for x in (X, lib.device_put(X, lib.devices()[3]), lib.device_put(X, spread), lib.device_put(X, single(here))):
            out += [f(x), f(x), lib.vmap(nested)(x), lib.jit(lambda x: nested(x) + 1, device=here)(x)]
        return [(o.devices() == {here}, o.committed, np.asarray(o).tolist()) for o in out]

    theirs = jax.sharding.Mesh(np.array(jax.devices()[:4]).reshape(2, 2), ("x", "y"))
    ours = devices_of(meshrt, SingleDeviceSharding, mesh_of(4, ("x", "y")))
    found = devices_of(jax, JaxSingle, theirs)
    assert [(o[0], o[2]) for o in ours] == [(o[0], o[2]) for o in found]


def test_results_of_what_was_placed_are_committed():
    single = SingleDeviceSharding(meshrt.devices()[0])
    assert meshrt.jit(lambda x: x, out_shardings=single)(X).committed
    assert meshrt.jit(lambda x: x, in_shardings=single)(X).committed
    assert meshrt.jit(lambda x: lax.with_sharding_constraint(x, single) + 1)(X).committed
    assert not meshrt.jit(lambda x: x)(X).committed


@pytest.mark.parametrize("where", ["given", "committed elsewhere", "split", "inside"])
def test_a_backend_is_its_first_device_as_in_jax(where):
    def program(lib):
        x = np.arange(4, dtype=np.float32)
        f = lib.jit(lambda x: x + 1, backend="cpu")
        if where == "committed elsewhere":
            x = lib.device_put(x, lib.devices()[1])
        elif where == "split":
            mesh = lib.make_mesh((4,), ("x",), axis_types=(lib.sharding.AxisType.Auto,))
            x = lib.device_put(x, lib.sharding.NamedSharding(mesh, lib.P("x")))
        elif where == "inside":
            f = lib.jit(lambda x, inner=f: inner(x) * 2)
        out = f(x)
        return [out, [d.id for d in out.devices()], out.committed or where == "inside"]

    assert_alike(program)


@pytest.mark.parametrize("around", [lambda lib, f: f, lambda lib, f: lib.jit(lambda x: f(x))])
def test_a_backend_that_is_not_here_is_refused_as_in_jax(around):
    assert_alike(lambda lib: around(lib, lib.jit(lambda x: x + 1, backend="nowhere"))(X))


def test_what_excludes_one_another():
    single = SingleDeviceSharding(meshrt.devices()[0])
    for option in ("in_shardings", "out_shardings"):
        for place in ({"device": meshrt.devices()[0]}, {"backend": "cpu"}):
            with pytest.raises(errors.ArgumentValueError, match=f"If backend or device .*{option} should not be"):
                meshrt.jit(lambda x: x, **{option: single}, **place)
        with pytest.raises(errors.ArgumentTypeError, match=f"{option} leaf specifications .* but got x"):
            meshrt.jit(lambda x: x, **{option: "x"})
        with pytest.raises(TypeError, match="but got 3"):
            meshrt.jit(lambda x: x, **{option: ({"a": P()}, 3)})
    with pytest.raises(errors.ArgumentValueError, match="both a device and a backend"):
        meshrt.jit(lambda x: x, device=meshrt.devices()[0], backend="cpu")
    with pytest.raises(errors.ShardingError, match="Unconstrained dims are not allowed when passed to in_shardings"):
        meshrt.jit(lambda x: x, in_shardings=NamedSharding(mesh_of(2), P(P.UNCONSTRAINED, "x")))
    with pytest.raises(errors.ArgumentValueError, match="does not support kwargs when in_shardings is specified"):
        meshrt.jit(lambda x: x, in_shardings=single)(x=X)
    with pytest.raises(RuntimeError, match="requires a non-empty mesh in context"):
        meshrt.jit(lambda x: x, in_shardings=P("x"))(X)


@pytest.mark.parametrize("inline", [False, True])
def test_inline(inline):
    f = meshrt.jit(lambda x, y: jnp.sin(x) * y["a"], inline=inline)
    g = lambda x: f(x, {"a": 2.0}) + f(1.0, {"a": x})
    assert ("jit" in str(meshrt.make_jaxpr(g)(X))) is not inline
    assert ("call" in meshrt.jit(g).lower(X).as_text()) is not inline
    np.testing.assert_allclose(meshrt.jit(g)(X), np.sin(X) * 2 + np.sin(1.0) * X, rtol=1e-5)
    np.testing.assert_allclose(meshrt.grad(lambda x: g(x).sum())(X), np.cos(X) * 2 + np.sin(1.0), rtol=1e-5)
    np.testing.assert_allclose(meshrt.vmap(g)(X), np.sin(X) * 2 + np.sin(1.0) * X, rtol=1e-5)
    literal = meshrt.jit(lambda x: meshrt.jit(lambda x: jnp.array(1), inline=inline)(x).shape == () and x)
    assert literal(0) == 0


def test_options_of_the_compiler_are_those_of_a_whole_program():
    inner = meshrt.jit(lambda x: x * 2, compiler_options={"xla_cpu_enable_fast_math": True})
    assert inner(2.0) == 4
    with pytest.raises(errors.ArgumentValueError, match=r"can only be passed to top-level .*test_jit_options.py"):
        meshrt.jit(lambda x: inner(x + 2))(X)


def test_names_of_static_arguments_need_not_be_interned():
    name = json.loads(json.dumps("foobar"))
    assert meshrt.jit(lambda foobar: foobar, static_argnames=[name])(foobar=2) == 2


# -- constraints -------------------------------------------------------------------------------------------------------


def test_constraints_to_one_device():
    single, other = (SingleDeviceSharding(d) for d in meshrt.devices()[:2])
    moved = lambda s: lambda x: lax.with_sharding_constraint(x, s) * 2
    for f in (moved(single), meshrt.jit(moved(single)), meshrt.jit(meshrt.vmap(moved(single)))):
        assert f(X).sharding == single
    assert meshrt.jit(moved(other))(X).devices() == {meshrt.devices()[1]}
    assert meshrt.grad(lambda x: meshrt.jit(moved(other))(x).sum())(X).devices() == {meshrt.devices()[1]}
    with pytest.raises(errors.DeviceAssignmentMismatchError, match="with_sharding_constraint"):
        meshrt.jit(moved(other))(meshrt.device_put(X, single))
    for f in (
        meshrt.vmap(moved(single), spmd_axis_name="x"),
        meshrt.jit(meshrt.vmap(moved(single), spmd_axis_name="x")),
    ):
        with pytest.raises(ValueError, match="spmd_axis_name"):
            f(X)


def test_outside_of_programs_a_constraint_keeps_to_the_devices():
    mesh = mesh_of(2)
    turned = Mesh(np.array(meshrt.devices()[:2][::-1]), ("x",))
    x = meshrt.device_put(X, NamedSharding(mesh, P()))
    assert lax.with_sharding_constraint(x, NamedSharding(mesh, P("x"))).sharding.spec == P("x")
    for where in (turned, mesh_of(4), mesh_of(2, first=2)):
        with pytest.raises(errors.DeviceAssignmentMismatchError, match=r"Received incompatible devices.*device_put"):
            lax.with_sharding_constraint(x, NamedSharding(where, P("x")))
    for free in (X, jnp.asarray(X)):
        assert lax.with_sharding_constraint(free, NamedSharding(turned, P("x"))).sharding.mesh is turned


def test_shuffles_asked_for_are_no_transfers():
    mesh, turned = mesh_of(4, ("x", "y")), Mesh(np.array(meshrt.devices()[3::-1]).reshape(2, 2), ("x", "y"))
    x = meshrt.device_put(X, NamedSharding(mesh, P("x", "y")))
    with meshrt.transfer_guard("disallow_explicit"):
        out = meshrt.device_put(x, NamedSharding(turned, P("x")))
        with pytest.raises(errors.TransferGuardError):
            meshrt.device_put(x, NamedSharding(mesh_of(4, first=4), P("x")))
    np.testing.assert_array_equal(out, X)


# -- ShapeDtypeStruct --------------------------------------------------------------------------------------------------


def test_structs_say_the_dtype_they_were_given():
    def named(lib):
        given = [np.float64, "int64", float, complex, bool, "bfloat16", lib.numpy.float32, lib.random.key(0).dtype]
        return [str(lib.ShapeDtypeStruct((2,), d).dtype) for d in given]

    assert named(meshrt) == named(jax)
    for lib in (meshrt, jax):  # values of it are as wide as arrays are
        wide = lib.ShapeDtypeStruct((2,), np.float64)
        assert lib.eval_shape(lambda x: x * 2, wide).dtype == np.float32 and wide.dtype == np.float64
    for bad in (None, "no dtype", object()):
        with pytest.raises((TypeError, ValueError), match="dtype"):
            meshrt.ShapeDtypeStruct((2,), bad)


def test_structs_with_layouts_and_specs():
    mesh = mesh_of(2)
    split, whole = NamedSharding(mesh, P("x")), NamedSharding(mesh, P())
    plain = meshrt.ShapeDtypeStruct((2, 2), np.int32)
    assert plain.update(shape=(4, 2), weak_type=True) == meshrt.ShapeDtypeStruct((4, 2), np.int32, weak_type=True)
    laid = meshrt.ShapeDtypeStruct((2, 2), np.int32, sharding=Format(Layout((0, 1)), whole))
    assert laid.sharding == whole and laid.format == Format(Layout((0, 1)), whole) != plain.format
    other = Format(Layout((1, 0)), split)
    assert laid.update(sharding=other).format == other and laid.update(shape=(4, 2)).format == laid.format
    with pytest.raises(ValueError, match="updating ShapeDtypeStruct"):
        laid.update(sharding=split)
    for bad in (Format(Layout.AUTO), 3):
        with pytest.raises(TypeError, match="ShapeDtypeStruct"):
            meshrt.ShapeDtypeStruct((2, 2), np.int32, sharding=bad)
    spec = meshrt.ShapeDtypeStruct((8, 2), np.float32, sharding=P("x"))
    with pytest.raises(TypeError, match="context mesh cannot be empty"):
        meshrt.jit(lambda x: x * 2).lower(spec)
    with meshrt.set_mesh(mesh):
        assert spec.sharding == split
        compiled = meshrt.jit(lambda x: x * 2).lower(spec).compile()
        assert compiled(meshrt.device_put(X, P("x"))).sharding == split


def test_arrays_like_a_struct_over_the_mesh_in_context():
    mesh = mesh_of(2, axis_types=(AxisType.Explicit,))
    like = meshrt.ShapeDtypeStruct((32,), np.float32, sharding=NamedSharding(mesh.abstract_mesh, P("x")))
    with meshrt.set_mesh(mesh):
        assert jnp.zeros_like(like).sharding == NamedSharding(mesh, P("x"))
    assert jnp.zeros_like(like).sharding.num_devices == 1


def test_a_format_that_says_nothing_leaves_an_argument_where_it_is():
    x = meshrt.device_put(X, NamedSharding(mesh_of(4, ("x", "y")), P("x", "y")))
    f = meshrt.jit(lambda x: x.T, in_shardings=Format(), out_shardings=Format())
    for out in (f(x), f.lower(x).compile()(x)):
        assert out.sharding.is_equivalent_to(NamedSharding(x.sharding.mesh, P("y", "x")), 2)
        np.testing.assert_array_equal(out, X.T)
    with pytest.raises(ValueError, match="Got jit layout: AUTO"):
        meshrt.jit(lambda x: x.T, in_shardings=Format(Layout.AUTO))(x)


@pytest.mark.parametrize("option", ["in_shardings", "out_shardings"])
def test_no_dimension_stays_open_at_the_boundary(option):
    for lib in (meshrt, jax):
        mesh, spec = lib.make_mesh((8,), ("x",), (lib.sharding.AxisType.Auto,)), lib.sharding.PartitionSpec
        for given in (spec(spec.UNCONSTRAINED), lib.sharding.NamedSharding(mesh, spec(spec.UNCONSTRAINED))):
            with (
                lib.set_mesh(mesh),
                pytest.raises(ValueError, match=f"Unconstrained dims are not allowed when passed to {option}"),
            ):
                lib.jit(lambda x: x, **{option: given})(X)


@pytest.mark.parametrize("placed", [False, True])
def test_gradients_of_integers_leave_programs(placed):
    """What holds nothing: the cotangent of an integer."""

    def program(lib):
        mesh = lib.make_mesh((8,), ("x",), (lib.sharding.AxisType.Auto,))
        spread = lib.sharding.NamedSharding(mesh, lib.sharding.PartitionSpec("x"))
        x, i = X[:, 0], np.arange(8)
        if placed:
            x, i = lib.device_put((x, i), spread)
        g = lib.grad(lambda x, i: (x * i).sum(), argnums=(0, 1), allow_int=True)
        repeated = lambda x, i: lib.lax.scan(lambda c, _: (c, g(x, i)), 0, length=2)[1]
        found = [
            lib.jit(g)(x, i),
            lib.jit(g, out_shardings=spread)(x, i),
            lib.jit(repeated)(x, i),
            lib.jit(lib.jit(g))(x, i),
        ]
        return [(np.asarray(a).tolist(), b.shape, b.dtype == jax.dtypes.float0) for a, b in found]

    assert program(meshrt) == program(jax)


def test_types_of_results_on_one_device_say_so():
    """What `out_shardings` name, as JAX has it."""
    for lib in (meshrt, jax):
        there = lib.sharding.SingleDeviceSharding(lib.devices()[1])
        double = lib.jit(lambda x: {"y": x * 2, "n": x.sum()}, out_shardings={"y": there, "n": None})
        shape = lib.ShapeDtypeStruct((3,), np.float32)
        for out in (lib.eval_shape(double, shape), double.lower(shape).out_info):
            assert out["y"].sharding == there and out["n"].sharding is None, lib
