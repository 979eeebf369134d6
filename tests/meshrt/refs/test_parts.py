"""What the body of a `core_map` sees of a reference that is split over the mesh: the device's part, in all that it may
do with it. Judged by NumPy on each part."""

from __future__ import annotations

import numpy as np
import pytest

import meshrt
from meshrt import P, errors, lax
from meshrt.experimental import pallas as pl
from meshrt.experimental.hijax.tuples import element, tuple_of
from meshrt.experimental.kernels import core_map
from meshrt.sharding import AxisType, NamedSharding

CHIPS, EACH = 4, 3


def counted(r):
    lax.fori_loop(0, EACH, lambda i, c: (r.__setitem__(i, r[i] * i + c), c + 1)[1], 0)


def chosen(r):
    lax.cond(lax.axis_index("x") > 1, lambda: r.__setitem__(0, 9.0), lambda: r.__setitem__(-1, 8.0))


def scanned(r):
    def turn(carry, x):
        view = r.at[1:]
        view[0] = view[1] * x
        return carry, None

    lax.scan(turn, 0, np.arange(1, 3, dtype=np.float32))


def mapped(r):
    r[...] = meshrt.vmap(lambda i: r[i] * r[-1])(np.arange(EACH))


def by_numpy_scanned(r, i):
    for x in (1, 2):
        r[1] = r[2] * x


# What a body does with a reference, and what that is for the part of device `i`.
BODIES = {
    "from the end": (lambda r: r.__setitem__(-2, 50.0), lambda r, i: r.__setitem__(-2, 50)),
    "a slice": (
        lambda r: r.__setitem__(slice(1, None), r[1:] * 10),
        lambda r, i: r.__setitem__(slice(1, 3), r[1:] * 10),
    ),
    "a stride": (lambda r: meshrt.ref.addupdate(r, slice(None, None, 2), r[::2]), lambda r, i: r[::2].__iadd__(r[::2])),
    "indices": (lambda r: r.__setitem__(np.array([0, -1]), np.float32([5, 6])), lambda r, i: r.put([0, -1], [5, 6])),
    "a view": (lambda r: r.at[-2:].at[0].__setitem__(..., 7.0), lambda r, i: r.put(-2, 7)),
    "a place of the device's": (
        lambda r: r.__setitem__(pl.ds(lax.axis_index("x") % 2, 2), r[pl.ds(1, 2)]),
        lambda r, i: r.__setitem__(slice(i % 2, i % 2 + 2), r[1:].copy()),
    ),
    "a loop": (counted, lambda r, i: r.__setitem__(slice(None), r * np.arange(3) + np.arange(3))),
    "a branch": (chosen, lambda r, i: r.put(0, 9) if i > 1 else r.put(-1, 8)),
    "a scan": (scanned, by_numpy_scanned),
    "a call": (lambda r: meshrt.jit(lambda: r.__setitem__(..., r[...].cumsum()))(), lambda r, i: r.cumsum(out=r)),
    "members": (mapped, lambda r, i: r.__setitem__(slice(None), r * r[-1])),
}  # fmt: skip


def split(kind, x):
    mesh = meshrt.make_mesh((CHIPS,), ("x",), axis_types=(kind,))
    return mesh, meshrt.device_put(x, NamedSharding(mesh, P("x")))


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit], ids=["auto", "explicit"])
@pytest.mark.parametrize("name", BODIES)
def test_indices_are_of_the_device_s_part(name, kind):
    body, by_numpy = BODIES[name]
    whole = np.arange(CHIPS * EACH, dtype=np.float32)
    mesh, x = split(kind, whole)

    def run(r):
        @core_map(mesh)
        def _():
            body(r)

    expected = whole.copy().reshape(CHIPS, EACH)
    for i, part in enumerate(expected):
        by_numpy(part, i)
    for call in (run, meshrt.jit(run)):
        r = meshrt.new_ref(x)
        call(r)
        np.testing.assert_array_equal(r[...], expected.reshape(-1))


def test_references_to_high_values():
    mesh, x = split(AxisType.Explicit, np.arange(8, dtype=np.float32))
    r = meshrt.new_ref(tuple_of(x, 2 * x))

    @core_map(mesh)
    def _():
        lax.cond(lax.axis_index("x") > 1, lambda: r.__setitem__(..., tuple_of(element(r[...], 1), x0())), lambda: None)

    np.testing.assert_array_equal(element(r[...], 0), [0, 1, 2, 3, 8, 10, 12, 14])
    np.testing.assert_array_equal(element(r[...], 1), [0, 2, 4, 6, 0, 0, 0, 0])


def x0():
    return meshrt.numpy.zeros(2, np.float32)


REFUSED = {
    "beyond the part": (lambda r, view: r[5], "Out of bound indexer: idx=5, dim=3"),
    "a view of the whole": (lambda r, view: view[0], r"Make the view in the body"),
    "an argument": (lambda r, view: meshrt.jit(lambda q: q.__setitem__(0, 1.0))(r), "Each device has a part of it"),
    "a mapped argument": (lambda r, view: meshrt.vmap(lambda q: q[...])(r), "Each device has a part of it"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_part(name):
    body, said = REFUSED[name]
    mesh, x = split(AxisType.Auto, np.arange(CHIPS * EACH, dtype=np.float32))
    r = meshrt.new_ref(x)
    view = r.at[3:6]
    with pytest.raises(errors.ArgumentValueError, match=said):
        core_map(mesh)(lambda: body(r, view))
