"""Formats of compiled programs, beside JAX's of the same programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import layout as jax_layout

import meshrt
from meshrt import errors
from meshrt import numpy as mnp
from meshrt.experimental.layout import Format, Layout
from meshrt.sharding import SingleDeviceSharding
from meshrt.xla import jaxlib_api, jaxlib_executables


def parts(layout):
    return (layout.major_to_minor, layout.tiling, layout.sub_byte_element_size_in_bits)


def function(numpy):
    return lambda params, x, unused, *, scale: {"y": (x @ params["w"]).T * scale, "n": numpy.sum(x)}


@pytest.mark.smoke
def test_formats_of_one_device_are_those_of_jax():
    args = {"w": np.ones((8, 2), np.float32)}, np.ones((4, 8), np.float32), np.ones(3, np.float32)
    ours = meshrt.jit(function(mnp)).lower(*args, scale=np.float32(2)).compile()
    theirs = jax.jit(function(jnp)).lower(*args, scale=np.float32(2)).compile()
    for mine, want in ((ours.input_formats, theirs.input_formats), (ours.output_formats, theirs.output_formats)):
        mine, tree = meshrt.tree.flatten(mine)
        want, want_tree = jax.tree.flatten(want)
        assert str(tree).removeprefix("PyTreeDef") == str(want_tree).removeprefix("PyTreeDef")
        assert [None if f.layout is None else parts(f.layout) for f in mine] == [
            None if f.layout is None else parts(f.layout) for f in want
        ]
        assert [f.sharding is None for f in mine] == [f.sharding is None for f in want]
    (_, x, unused), kwargs = ours.input_formats
    assert x == Format(Layout((0, 1), ()), SingleDeviceSharding(meshrt.devices()[0])) and unused == Format()
    assert list(kwargs) == ["scale"]
    assert repr(x.layout) == repr(theirs.input_formats[0][1].layout)


@pytest.mark.parametrize("spec", [("data",), (None, "data"), ()])
def test_formats_over_a_mesh_hold_its_shardings(spec):
    def compiled(J, numpy, P, NamedSharding, mesh):
        x = J.device_put(np.ones((16, 8), np.float32), NamedSharding(mesh, P(*spec)))
        return J.jit(lambda x: numpy.swapaxes(x, 0, 1) + numpy.arange(16.0)).lower(x).compile()

    auto = lambda m: {"axis_types": (m.AxisType.Auto,) * 2}
    sharding = jax.sharding
    theirs_mesh = jax.make_mesh((4, 2), ("data", "model"), **auto(sharding))
    theirs = compiled(jax, jnp, sharding.PartitionSpec, sharding.NamedSharding, theirs_mesh)
    sharding = meshrt.sharding
    mesh = meshrt.make_mesh((4, 2), ("data", "model"), **auto(sharding))
    ours = compiled(meshrt, mnp, sharding.PartitionSpec, sharding.NamedSharding, mesh)
    ((x,), _), ((want,), _) = ours.input_formats, theirs.input_formats
    assert parts(x.layout) == parts(want.layout) and tuple(x.sharding.spec) == tuple(want.sharding.spec)
    assert x.sharding.mesh is mesh and ours.output_formats.sharding == ours.output_shardings
    assert parts(ours.output_formats.layout) == parts(theirs.output_formats.layout)
    moved = ours.lowered.compile(device_assignment=meshrt.devices()[::-1])
    assert moved.input_formats[0][0].layout == x.layout
    assert list(moved.input_formats[0][0].sharding.mesh.devices.flat) == meshrt.devices()[::-1]


def test_packed_elements_say_their_size():
    x = np.ones(8, np.float32)
    ours = meshrt.jit(lambda x: x.astype(mnp.int4)).lower(x).compile().output_formats.layout
    assert parts(ours) == parts(jax.jit(lambda x: x.astype(jnp.int4)).lower(x).compile().output_formats.layout)


def test_a_runtime_that_tells_no_layouts(monkeypatch):
    def silent(_):
        raise jaxlib_api.XlaError("UNIMPLEMENTED: GetParameterLayouts")

    compiled = meshrt.jit(lambda x: x + 1).lower(np.ones(2, np.float32)).compile()
    monkeypatch.setattr(jaxlib_executables, "parameter_layouts", silent)
    with pytest.raises(
        errors.UnsupportedError, match=r"of cpu does not tell the layouts.*GetParameterLayouts.*as_text"
    ):
        _ = compiled.input_formats


def test_without_devices_there_are_no_formats():
    mesh = meshrt.sharding.AbstractMesh((2,), ("x",), axis_types=(meshrt.sharding.AxisType.Auto,))
    x = meshrt.ShapeDtypeStruct((4,), np.float32, sharding=meshrt.sharding.NamedSharding(mesh, meshrt.P("x")))
    compiled = meshrt.jit(lambda x: x + 1).lower(x).compile()
    with pytest.raises(errors.MeshContextError, match="AbstractMesh"):
        _ = compiled.output_formats


def test_values_compare_and_refuse_what_they_are_not():
    one = SingleDeviceSharding(meshrt.devices()[0])
    assert Layout([1, 0], [[8, 128]]) == Layout((1, 0), ((8, 128),)) and hash(Layout((0,))) == hash(Layout([0]))
    assert Format(Layout((0,)), one) == Format(Layout((0,)), one) != Format(None, one)
    with pytest.raises(ValueError, match=r"names each dimension once.*\(0, 2\)"):
        Layout((0, 2))
    with pytest.raises(ValueError, match="Sharding has to be concrete"):
        Format(Layout((0,)))
    with pytest.raises(TypeError, match=r"Invalid value received for the layout argument"):
        Format(3, one)
    with pytest.raises(TypeError, match="Invalid value received for the sharding argument"):
        Format(None, "x")
    with pytest.raises(TypeError):  # JAX's are others
        Format(jax_layout.Layout((0,)), one)


@pytest.mark.parametrize("asked", [(0, 1), (1, 0)])
@pytest.mark.parametrize("given", [(0, 1), (1, 0)])
def test_a_compiled_program_takes_arguments_of_its_layouts(asked, given):
    """One that lies otherwise is refused with both layouts, whether the program's was asked for or an array's."""

    def program(lib, formats):
        place = lib.sharding.SingleDeviceSharding(lib.devices()[0])
        format = lambda order: formats.Format(formats.Layout(order), place)
        x = lib.device_put(np.arange(6, dtype=np.float32).reshape(2, 3), format(given))
        like = lib.device_put(np.zeros((2, 3), np.float32), format(asked))
        lowered = [
            lib.jit(lambda x: x * 2, in_shardings=format(asked)).lower(lib.ShapeDtypeStruct((2, 3), np.float32)),
            lib.jit(lambda x: x * 2).lower(like),
        ]
        out = []
        for compiled in (station.compile() for station in lowered):
            (found,), _ = compiled.input_formats
            try:
                out.append((found.layout.major_to_minor, np.asarray(compiled(x)).tolist()))
            except ValueError as e:
                assert "compiled for input layouts that disagree with the layouts of arguments" in str(e)
                assert "Argument x with shape" in str(e) and f"Required layout: Layout(major_to_minor={asked}" in str(e)
                out.append((found.layout.major_to_minor, None))
        return out

    from meshrt.experimental import layout

    assert program(meshrt, layout) == program(jax, jax_layout)


def test_layouts_of_arguments_are_saved_with_a_program():
    place = SingleDeviceSharding(meshrt.devices()[0])
    column = Format(Layout((1, 0)), place)
    x = meshrt.device_put(np.ones((2, 3), np.float32), column)
    compiled = meshrt.stages.load(meshrt.jit(lambda x: x + 1, in_shardings=column).lower(x).compile().serialize())
    np.testing.assert_array_equal(compiled(x), np.full((2, 3), 2))
    with pytest.raises(errors.ShardingError, match="input layouts that disagree"):
        compiled(meshrt.device_put(np.ones((2, 3), np.float32), place))


@pytest.mark.parametrize("devices", [1, 4])
def test_donated_arrays_in_another_layout_are_gone_as_in_jax(devices):
    for library, (format_, layout) in ((meshrt, (Format, Layout)), (jax, (jax_layout.Format, jax_layout.Layout))):
        kinds = library.sharding
        mesh = kinds.Mesh(np.array(library.devices()[:devices]).reshape(-1, 1), ("data", "model"))
        columns = format_(layout((1, 0)), kinds.NamedSharding(mesh, kinds.PartitionSpec("data", "model")))
        x = library.device_put(np.arange(32, dtype=np.float32).reshape(8, 4), columns)
        y = library.jit(lambda x: x * x, in_shardings=columns, out_shardings=columns, donate_argnums=0)(x)
        assert x.is_deleted() and float(y[7, 3]) == 31.0**2 and y.format.layout.major_to_minor == (1, 0)


def test_what_is_known_of_results_has_their_layout():
    def infos(lib, numpy, formats):
        place = lib.sharding.SingleDeviceSharding(lib.devices()[0])
        column = formats.Format(formats.Layout((1, 0)), place)
        args = np.ones((4, 2), np.float32)
        found = []
        for out in (None, column):
            compiled = lib.jit(lambda x: {"y": x * 2, "n": numpy.sum(x)}, out_shardings={"y": out, "n": None})
            info = compiled.lower(args).compile().out_info
            found += [str(info["n"]), info["y"].format.layout.major_to_minor, info["y"].sharding == place]
            again = lib.jit(lambda y: y + 1).lower(info["y"]).compile()
            found.append(again.input_formats[0][0].layout.major_to_minor)
        return found

    from meshrt.experimental import layout

    assert infos(meshrt, mnp, layout) == infos(jax, jnp, jax_layout)
    keys = meshrt.jit(lambda: meshrt.random.key(0)).lower().compile().out_info
    assert keys.layout is None and keys.sharding is not None


@pytest.mark.parametrize("where", ["device", "mesh"])
def test_a_struct_with_a_layout_stands_for_an_array_in_it(where):
    def program(lib, formats):
        mesh = lib.make_mesh((4, 2), ("x", "y"), axis_types=(lib.sharding.AxisType.Auto,) * 2)
        place = lib.sharding.SingleDeviceSharding(lib.devices()[0])
        place = place if where == "device" else lib.NamedSharding(mesh, lib.P("x"))
        column = formats.Format(formats.Layout((1, 0)), place)
        struct = lib.ShapeDtypeStruct((8, 4), np.float32, sharding=column)
        compiled = lib.jit(lambda x: x * 2).lower(struct).compile()
        x = np.arange(32, dtype=np.float32).reshape(8, 4)
        with pytest.raises(ValueError, match="input layouts that disagree"):
            compiled(lib.device_put(x, place))
        (found,), _ = compiled.input_formats
        return found.layout.major_to_minor, np.asarray(compiled(lib.device_put(x, column))).tolist()

    from meshrt.experimental import layout

    assert program(meshrt, layout) == program(jax, jax_layout)
