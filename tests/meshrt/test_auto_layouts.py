"""`Layout.AUTO`: the compiler chooses how arguments and results lie, as JAX on the same programs says it does."""

import importlib

import numpy as np
import pytest

import meshrt
from meshrt import errors
from meshrt.runtime import events
from meshrt.xla import jaxlib_api, jaxlib_executables
from tests.meshrt.beside import assert_alike

# XLA's Cholesky factorisation of a CPU wants a column-major matrix: its choice differs from what arrays have.
MATRIX = np.eye(4, dtype=np.float32) + 0.01 * np.arange(16, dtype=np.float32).reshape(4, 4)
MATRICES = np.stack([MATRIX @ MATRIX.T * (i + 1) for i in range(8)])


def _layouts(lib):
    return importlib.import_module(f"{lib.__name__}.experimental.layout")


def _auto(lib, sharding=None):
    return _layouts(lib).Format(_layouts(lib).Layout.AUTO, sharding)


def _split(lib):
    mesh = lib.make_mesh((4,), ("i",), axis_types=(lib.sharding.AxisType.Auto,))
    return lib.sharding.NamedSharding(mesh, lib.sharding.PartitionSpec("i"))


def _factor(lib, **options):
    return lib.jit(lambda x: lib.numpy.linalg.cholesky(x.swapaxes(-1, -2)), **options)


def _said(array):
    return [np.asarray(array), array.format.layout.major_to_minor]


def _formats(lib, compiled):
    is_leaf = lambda x: isinstance(x, _layouts(lib).Format)
    found = lib.tree.leaves((compiled.input_formats, compiled.output_formats), is_leaf=is_leaf)
    return [f.layout.major_to_minor for f in found]


def _on_a_mesh(lib):
    """What was chosen for a mesh, and a call with an array that was brought into it."""
    place = _split(lib)
    like = lib.ShapeDtypeStruct(MATRICES.shape, MATRICES.dtype, sharding=place)
    compiled = _factor(lib, in_shardings=_auto(lib, place), out_shardings=_auto(lib, place)).lower(like).compile()
    x = lib.device_put(MATRICES, compiled.input_formats[0][0])
    y = compiled(x)
    return [_formats(lib, compiled), _said(x), _said(y), _said(y.addressable_shards[1].data), _said(y + 1)]


def _donating(lib, auto_in, auto_out):
    options = {"in_shardings": _auto(lib)} if auto_in else {}
    options |= {"out_shardings": _auto(lib)} if auto_out else {}
    fun = lib.jit(lambda x: x.T + 1, donate_argnums=0, **options)
    compiled = fun.lower(lib.ShapeDtypeStruct((4, 4), np.float32)).compile()
    x = lib.device_put(MATRIX, compiled.input_formats[0][0])
    return [_formats(lib, compiled), _said(compiled(x)), x.is_deleted()]


def _transposed(lib):
    """An array in the layout that its program chose. (Of an uncommitted one JAX forgets the layout.)"""
    return lib.jit(lambda x: x.T + 1, out_shardings=_auto(lib))(lib.device_put(MATRIX, lib.devices()[0]))


def _mixed(lib):
    fun = lib.jit(lambda x, y: (x + y, x.T), in_shardings=(_auto(lib), None), out_shardings=(None, _auto(lib)))
    return [_said(x) for x in fun(MATRIX, MATRIX)]


_PROGRAMS = {
    "formats": lambda lib: _formats(
        lib, _factor(lib, in_shardings=_auto(lib), out_shardings=_auto(lib)).lower(MATRICES[0]).compile()
    ),
    "called": lambda lib: _said(_factor(lib, in_shardings=_auto(lib), out_shardings=_auto(lib))(MATRICES[0])),
    "mesh": _on_a_mesh,
    "mesh, called": lambda lib: _said(_factor(lib, in_shardings=_auto(lib, _split(lib)))(MATRICES)),
    "result": lambda lib: _said(_transposed(lib)),
    "mixed": _mixed,
    "donated": lambda lib: _donating(lib, True, True),
    "donated, argument only": lambda lib: _donating(lib, True, False),
    "donated, result only": lambda lib: _donating(lib, False, True),
    "convolution": lambda lib: _said(
        lib.jit(lambda x, k: lib.lax.conv(x, k, (1, 1), "SAME"), in_shardings=_auto(lib), out_shardings=_auto(lib))(
            np.ones((2, 3, 8, 8), np.float32), np.ones((4, 3, 3, 3), np.float32)
        )
    ),
    "in a program": lambda lib: _said(lib.jit(lambda x: _factor(lib, in_shardings=_auto(lib))(x) * 2)(MATRICES[0])),
    "committed": lambda lib: _factor(lib, in_shardings=_auto(lib))(lib.device_put(MATRICES[0], lib.devices()[0])),
    "committed to another": lambda lib: (
        _factor(lib, in_shardings=_auto(lib))
        .lower(MATRICES[0])
        .compile()(lib.device_put(MATRICES[0], lib.devices()[0]))
    ),
    "put back": lambda lib: _said(lib.device_put(_transposed(lib), lib.devices()[0])),
    "put elsewhere": lambda lib: _said(lib.device_put(_transposed(lib), lib.devices()[1])),
    "split": lambda lib: _said(lib.device_put(_transposed(lib), _split(lib))),
    "sliced": lambda lib: [_said(_transposed(lib)[1:]), _said(_transposed(lib).copy())],
}


@pytest.mark.parametrize("case", _PROGRAMS)
def test_as_in_jax(case):
    assert_alike(_PROGRAMS[case])


@pytest.mark.smoke
def test_what_was_chosen_moves_to_other_devices_and_to_files():
    """The layouts belong to the compiled code: nothing is compiled for a second device set, nor from a file."""
    fun = _factor(meshrt, in_shardings=_auto(meshrt), out_shardings=_auto(meshrt))
    lowered = fun.lower(MATRICES[1])
    compiled = lowered.compile()
    want = np.asarray(compiled(MATRICES[1]))
    with events.count("compile") as counts:
        moved = lowered.compile(device_assignment=meshrt.devices()[3:4])
        loaded = meshrt.stages.load(compiled.serialize())
        for other in (moved, loaded):
            assert other.input_formats[0][0].layout == compiled.input_formats[0][0].layout
            assert other.input_formats[0][0].layout.major_to_minor == (1, 0)
            x = meshrt.device_put(MATRICES[1], other.input_formats[0][0])
            np.testing.assert_array_equal(other(x), want)
            with pytest.raises(errors.ShardingError, match="input layouts that disagree"):
                other(meshrt.device_put(MATRICES[1], x.sharding))
    assert counts["compile"] == 0


@pytest.mark.parametrize("partitioner", ["meshrt", "xla"])
def test_both_partitioners_leave_the_choice_to_the_compiler(partitioner):
    before = meshrt.config.settings.partitioner
    meshrt.config.update("partitioner", partitioner)
    try:
        found = _on_a_mesh(meshrt)
    finally:
        meshrt.config.update("partitioner", before)
    assert found[0][0] == (0, 2, 1)
    np.testing.assert_allclose(found[2][0], np.linalg.cholesky(MATRICES), rtol=1e-5)


def test_a_chosen_layout_is_no_matter_to_other_programs():
    x, want = meshrt.jit(lambda x: x.T + 1, out_shardings=_auto(meshrt))(MATRIX), MATRIX.T + 1
    assert not x.committed
    assert x.format.layout.major_to_minor == (1, 0)
    np.testing.assert_array_equal(meshrt.jit(lambda x: x * 2)(x), want * 2)
    np.testing.assert_array_equal(meshrt.jit(lambda: x * 2)(), want * 2)
    np.testing.assert_array_equal(x[1:] + 0, want[1:])


def test_a_message_about_donation_names_the_argument_and_what_to_give():
    with pytest.raises(ValueError, match=r"argument x of <lambda>.*Give result Format\(Layout.AUTO\) in out_shardings"):
        _donating(meshrt, True, False)
    with pytest.raises(ValueError, match=r"argument x of <lambda>.*Give x Format\(Layout.AUTO\) in in_shardings"):
        _donating(meshrt, False, True)


def test_a_platform_that_tells_no_layouts_is_named(monkeypatch):
    def silent(*_):
        raise jaxlib_api.XlaError("UNIMPLEMENTED: GetDefaultLayout")

    monkeypatch.setattr(jaxlib_executables, "default_layout", silent)
    lowered = _factor(meshrt, in_shardings=_auto(meshrt)).lower(MATRICES[1] * 3)
    with pytest.raises(errors.UnsupportedError, match=r"cpu does not tell in what layout .*f32\[4,4\].*Layout.AUTO"):
        lowered.compile()
