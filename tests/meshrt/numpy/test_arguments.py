"""What arguments of array functions may be, and what is refused with which class of error: beside JAX."""

from __future__ import annotations

import copy
import pickle
import sys

import jax
import numpy as np
import pytest

import meshrt
from tests.meshrt.beside import assert_alike

A = np.arange(6, dtype=np.float32).reshape(2, 3)
I = A.astype(np.int32)
C = np.complex64([1 + 2j, 2 - 1j, -3j, 2 + 4j])
WIDTHS = ((1, 2), (2, 1))
MODES = [
    ("linear_ramp", {}), ("linear_ramp", {"end_values": (1, 2)}), ("linear_ramp", {"end_values": ((1, 2), (3, 4))}),
    ("median", {}), ("median", {"stat_length": 2}), ("mean", {"stat_length": 0}), ("maximum", {"stat_length": 99}),
    ("edge", {}), ("wrap", {}), ("empty", {}), ("constant", {"constant_values": 3}), ("no mode", {}),
    ("edge", {"constant_values": 1}), ("reflect", {"reflect_type": "odd"}), ("symmetric", {"reflect_type": "odd"}),
]  # fmt: skip
ODD = [("reflect", 1), ("symmetric", 1), ("reflect", 2), ("symmetric", 2), ("reflect", 3), ("symmetric", 3)]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("mode, arguments", MODES)
def test_borders(mode, arguments):
    for x in (A, I, A.astype("bfloat16")):
        assert_alike(
            lambda l, x=x: l.numpy.pad(x, WIDTHS, mode=mode, **arguments), rtol=1e-2 if x.dtype.kind == "V" else None
        )


@pytest.mark.parametrize("mode, n", ODD)
def test_odd_reflections_of_any_width(mode, n):
    for x in (A[:, :n], np.int8([[100, -100, 3]])[:, :n]):
        assert_alike(lambda l, x=x: l.numpy.pad(x, ((0, 0), (7, 8)), mode=mode, reflect_type="odd"))


def fill(row, width, axis, kwargs):
    return row.at[: width[0]].set(7.0).at[-width[1] :].set(kwargs.get("end", 8.0))


PROGRAMS = {
    "borders by a function": lambda l: l.numpy.pad(A, WIDTHS, mode=fill, end=9.0),
    "borders differentiated": lambda l: l.grad(lambda x: (l.numpy.pad(x, 2, "reflect", reflect_type="odd") ** 2).sum())(
        A
    ),
    "ramps differentiated": lambda l: l.grad(lambda x: (l.numpy.pad(x, 2, mode="linear_ramp") ** 2).sum())(A),
    "weak borders": lambda l: [l.numpy.pad(l.numpy.full(2, 2.0), 1, mode=m) for m in ("median", "linear_ramp", "mean")],
    "negative widths": lambda l: l.numpy.pad(A, -1),
    "fractions of widths": lambda l: l.numpy.pad(A, 1.5),
    "ragged widths": lambda l: l.numpy.pad(A, ((1, 2), (3,))),
    "too many widths": lambda l: l.numpy.pad(A, ((1, 2), (3, 4), (5, 6))),
    "widths of a dict": lambda l: l.numpy.pad(A, {0: (1, 2), -1: 1}),
    "borders of a scalar": lambda l: l.numpy.pad(np.float32(1), 1),
    "borders of nothing": lambda l: l.numpy.pad(A[:0], 1, mode="edge"),
    # rolls
    "traced shift": lambda l: l.jit(lambda s: l.numpy.roll(A, s))(2),
    "traced shifts": lambda l: l.jit(lambda s: l.numpy.roll(A, s, axis=(0, 1)))(np.int32([1, 2])),
    "shifts of one axis": lambda l: l.numpy.roll(A, l.numpy.asarray([1, 2]), axis=1),
    "one traced shift of two": lambda l: l.jit(lambda s: l.numpy.roll(A, (s, 1), axis=(0, 1)))(1),
    "shifts of no axis": lambda l: l.numpy.roll(A, (1, 2)),
    "too many shifts": lambda l: l.numpy.roll(A, (1, 2, 3), axis=(0, 1)),
    "matrix of shifts": lambda l: l.numpy.roll(A, np.ones((2, 2), int)),
    # numbers of elements that depend on values
    "extract": lambda l: l.jit(lambda c: l.numpy.extract(c, A, size=4, fill_value=1))(A > 2),
    "compress": lambda l: l.jit(lambda c: l.numpy.compress(c, A, axis=1, size=2, fill_value=7))(
        np.array([False, True, False])
    ),
    "compress without a size": lambda l: l.jit(lambda c: l.numpy.compress(c, A, axis=1))(
        np.array([False, True, False])
    ),
    "compress beyond the end": lambda l: l.numpy.compress(np.ones(9, bool), A, axis=1),
    "compress by a matrix": lambda l: l.numpy.compress(np.ones((2, 3), bool), A),
    "compress to a large size": lambda l: l.numpy.compress(np.ones(2, bool), A, axis=1, size=9),
    "compress by a list": lambda l: l.numpy.compress([0, 1], A, axis=0),
    "delete": lambda l: l.jit(lambda i: l.numpy.delete(np.arange(5), i, assume_unique_indices=True))(np.array([1, 2])),
    "delete of an axis": lambda l: l.jit(lambda i: l.numpy.delete(A, i, axis=1, assume_unique_indices=True))(
        np.array([-1, 0])
    ),
    "delete of what is traced": lambda l: l.jit(lambda i: l.numpy.delete(np.arange(5), i))(np.array([1, 2])),
    "delete the last": lambda l: l.numpy.delete(np.arange(5), -1),
    "delete twice": lambda l: l.numpy.delete(A, np.array([0, 0]), axis=0),
    "delete beyond the end": lambda l: l.numpy.delete(np.arange(5), 7),
    "delete positions beyond the end": lambda l: l.numpy.delete(np.arange(5), np.array([1, 9])),
    "delete by a mask": lambda l: l.numpy.delete(np.arange(4), np.array([True, False, True, False])),
    "delete a list": lambda l: l.numpy.delete(np.arange(5), [1, 2]),
    # the order of complex numbers: real parts, then imaginary ones
    "largest": lambda l: [l.numpy.max(C), l.lax.reduce_max(C, (0,)), l.numpy.nanmax(C), l.lax.cummax(C)],
    "largest and smallest of nothing": lambda l: [l.lax.reduce_max(C[:0], (0,)), l.lax.reduce_min(C[:0], (0,))],
    "smallest": lambda l: [l.numpy.min(C), l.lax.reduce_min(C, (0,)), l.lax.cummin(C, reverse=True)],
    "largest of rows": lambda l: l.vmap(l.numpy.max)(C.reshape(2, 2)),
    "largest of some": lambda l: l.numpy.max(C, where=np.array([True, False, True, False]), initial=0),
    "largest, differentiated": lambda l: l.grad(lambda x: l.numpy.real(l.numpy.max(x)))(C),
    "windows": lambda l: l.lax.reduce_window(C, np.complex64(-np.inf), l.lax.max, (2,), (1,), "VALID"),
    "range of complex numbers": lambda l: l.numpy.ptp(C),
    "position of the largest": lambda l: l.numpy.argmax(C),
    "clipped": lambda l: l.numpy.clip(C, 0, 1),
    "positions in narrow integers": lambda l: [
        l.lax.argmax(l.numpy.array([1, 15, 3], d), 0, i) for d in ("uint4", "int4") for i in (np.int32, l.numpy.uint4)
    ],
    "positions as floats": lambda l: l.lax.argmax(A, 0, np.float32),
    # Python's protocols
    "bytes": lambda l: bytes(l.numpy.ones(2)),
    "pickled structure": lambda l: str(pickle.loads(pickle.dumps(l.tree_util.tree_structure({"a": (1, [2, None])})))),
    "no target": lambda l: l.device_put(A, "cpu"),
    # what is known while a function is traced
    "a power that is an array": lambda l: equations(l, l.numpy.power, l.numpy.int32(2)),
    "a power in another dtype": lambda l: l.numpy.int8(3) ** l.numpy.int32(2),
    "as many parts as a known float": lambda l: l.jvp(lambda n: l.numpy.split(A, n)[1], (2.0,), (1.0,))[0],
    "as many parts as a traced float": lambda l: l.jit(lambda n: l.numpy.split(A, n))(2.0),
    "positions in a traced shape": lambda l: l.jit(l.numpy.unravel_index)(np.arange(7), (2, 3)),
    # grids and ranges
    "grids of floats and integers": lambda l: strictly(l, lambda: l.numpy.mgrid[1:6:8j, 2:4]),
    "a quantile in more bits": lambda l: strictly(l, lambda: l.numpy.quantile(A.astype(np.float16), np.float32(0.5))),
    "a grid without an end": lambda l: [l.numpy.mgrid[:], l.numpy.ogrid[:], l.numpy.arange(3, None, 2)],
    "a range of complex numbers": lambda l: l.numpy.arange(1 + 2j, 5 + 3j),
    # refusals
    "records": lambda l: l.numpy.array(3, [("a", "<i4")]),
    "a position outside, taken": lambda l: l.numpy.choose(np.array([5]), [A, A]),
    "a position outside, raveled": lambda l: l.numpy.ravel_multi_index((np.array([5]),), (2,)),
    "a shape in two arguments": lambda l: l.numpy.ones(2, 3),
    # positions
    "nonzero, filled by a traced value": lambda l: l.jit(lambda x, n: l.numpy.nonzero(x, size=9, fill_value=n))(A, 7),
    "nonzero, filled by a list": lambda l: l.numpy.nonzero(A, size=9, fill_value=[1, 2]),
    "nonzero, filled by too few": lambda l: l.numpy.nonzero(A, size=9, fill_value=(1,)),
    "where a scalar is not zero": lambda l: [l.numpy.argwhere(x) for x in (0, 1, A[:, :0])],
    "where a scalar is not zero, sized": lambda l: l.jit(lambda x: l.numpy.argwhere(x, size=3))(1),
    "without traced positions": lambda l: l.jit(l.numpy.delete)(A[0], I[0]),
    "without distinct traced positions": lambda l: l.jit(lambda x, i: l.numpy.delete(x, i, assume_unique_indices=True))(
        A[0], I[0, :2]
    ),
    # functions of positions
    "a table of a function of scalars": lambda l: l.numpy.fromfunction(lambda i, j: (i + j) * np.arange(3), (2, 4)),
    "a table of integers": lambda l: l.numpy.fromfunction(lambda i, k: i + k, 3, dtype=int, k=np.arange(3)),
    "a table without positions": lambda l: l.numpy.fromfunction(lambda: l.numpy.ones(2), ()),
    # bytes
    "bytes in the other order": lambda l: [
        l.numpy.asarray(x).byteswap() for x in (A, I, C, I.astype(np.int8), A > 2, A.astype("bfloat16"), I[0, 1])
    ],
    # functions of the library have the methods of jitted ones
    "a function of the library, traced": lambda l: l.numpy.sin.trace(A).jaxpr.out_avals[0].shape,
    "a function of the library, lowered with a choice": lambda l: l.numpy.cumsum.lower(A, axis=1).compile()(A),
    "a function around one of the library": lambda l: [
        hasattr(f, "lower") for f in (l.vmap(l.numpy.sin), l.grad(l.numpy.sin), l.checkpoint(l.numpy.sin))
    ],
    "a jitted function of the library, lowered": lambda l: l.jit(l.numpy.sin, donate_argnums=0).lower(A).donate_argnums,
    # the rest
    "a remainder of what is no number": lambda l: l.numpy.polydiv(np.ones(3), np.zeros(2), trim_leading_zeros=True),
    "the upper triangle of keys": lambda l: l.random.key_data(l.numpy.triu(l.random.split(l.random.key(0), (3, 3)))),
    "an integral in bfloat16": lambda l: l.numpy.trapezoid(A.astype("bfloat16"), A[0].astype("bfloat16")),
}


def equations(l, f, *known):
    return [e.primitive.name for e in l.make_jaxpr(lambda x: f(x, *known))(1).jaxpr.eqns]


def strictly(l, f):
    with l.numpy_dtype_promotion("strict"):
        return f()


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_jax(name):
    assert_alike(PROGRAMS[name])


def test_pieces_are_traced_once():
    traced = []

    def piece(v):
        traced.append(v)
        return v

    x = meshrt.numpy.arange(4.0)
    for _ in range(3):
        assert meshrt.numpy.piecewise(x, [x < 2], [piece, 0.0]).tolist() == [0, 1, 0, 0]
    assert len(traced) == 1


def test_objects_in_a_file_stay_numpys(tmp_path):
    given = np.array([1, "a"], dtype=object)
    meshrt.numpy.save(tmp_path / "a.npy", given)
    read = meshrt.numpy.load(tmp_path / "a.npy", allow_pickle=True)
    assert type(read) is np.ndarray and read.tolist() == given.tolist()


def test_structures_are_copied():
    structure = meshrt.tree_util.tree_structure({"a": (1, [2, None])})
    assert copy.deepcopy(structure) == pickle.loads(pickle.dumps(structure)) == structure


def test_the_largest_complex_number_of_a_sharded_array(mesh):
    sharding = meshrt.NamedSharding(mesh, meshrt.P(("data", "model")))
    x = meshrt.device_put(np.concatenate([C, C * 1j]), sharding)
    assert meshrt.jit(meshrt.numpy.max)(x) == 3


@pytest.mark.skipif(sys.version_info < (3, 12), reason="classes of Python have no buffers before 3.12")
def test_views_of_memory():
    assert memoryview(meshrt.numpy.asarray([True, False])).tolist() == [True, False]


@pytest.mark.parametrize("name", ["zeros", "ones", "arange", "eye", "asarray", "full_like"])
def test_a_device_for_what_a_program_makes(name):
    arguments = {"asarray": (A,), "full_like": (A, 1)}.get(name, (3,))
    device = meshrt.devices()[1]
    made = meshrt.jit(lambda: getattr(meshrt.numpy, name)(*arguments, device=device))()
    assert made.devices() == {device}


@pytest.mark.parametrize("counts", [[1, 2], (2, 0), [3]], ids=str)
def test_counts_of_repeat_are_arrays(counts):
    for lib in (meshrt, jax):
        for apply in (lambda f: f, lib.jit):
            with pytest.raises(TypeError, match="requires ndarray or scalar arguments, got <class"):
                apply(lambda x, lib=lib: lib.numpy.repeat(x, counts))(lib.numpy.ones(2))


@pytest.mark.parametrize("name", ["vecdot", "matvec", "vecmat"])
@pytest.mark.parametrize("shapes", [((1,), (2, 3, 4)), ((2, 3), (1,)), ((2, 1), (2, 2, 3))], ids=str)
def test_what_is_summed_over_does_not_broadcast(name, shapes):
    assert_alike(lambda l: getattr(l.numpy, name)(*(l.numpy.ones(s) for s in shapes)))


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("order", [None, 1, 2, np.inf, -np.inf])
def test_norms_of_integers_have_the_dtype_of_their_sum(wide, order):
    def program(l):
        with l.enable_x64(wide):
            return l.numpy.linalg.vector_norm(np.array([3, -4, 0], np.int32), ord=order)

    assert_alike(program)
