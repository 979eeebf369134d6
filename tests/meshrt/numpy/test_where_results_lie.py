"""Functions whose result's size depends on values, and those that sort: on the devices of their array, as in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy

from ..beside import assert_alike, outcome


def _array(library: Any, kind: str, spec: tuple[str | None, ...]) -> Any:
    types = (getattr(library.sharding.AxisType, kind),) * 2
    mesh = library.make_mesh((4, 2), ("x", "y"), axis_types=types)
    value = (np.arange(32).reshape(8, 4) % 3).astype(np.float32)
    return library.device_put(value, library.NamedSharding(mesh, library.P(*spec)))


def _place(x: Any) -> tuple[Any, ...]:
    entries = list(x.sharding.spec)
    while entries and entries[-1] is None:
        entries.pop()
    return x.committed, sorted(d.id for d in x.devices()), [str(e) for e in entries]


_SIZED_BY_VALUES = {
    "nonzero": lambda jnp, x: jnp.nonzero(x),
    "method": lambda jnp, x: x.nonzero(),
    "flatnonzero": lambda jnp, x: jnp.flatnonzero(x),
    "argwhere": lambda jnp, x: jnp.argwhere(x),
    "where": lambda jnp, x: jnp.where(x),
    "unique": lambda jnp, x: jnp.unique(x, return_index=True, return_inverse=True, return_counts=True),
    "union": lambda jnp, x: jnp.union1d(x, x + 1),
    "intersection": lambda jnp, x: jnp.intersect1d(x, x + 1, return_indices=True),
    "difference": lambda jnp, x: jnp.setdiff1d(x, x + 1),
    "mask": lambda jnp, x: x[np.array([True] * 2 + [False] * 6)],
}


@pytest.mark.parametrize("kind, spec", [("Auto", ("x", "y")), ("Auto", ()), ("Explicit", ())])
@pytest.mark.parametrize("name", _SIZED_BY_VALUES)
def test_results_sized_by_values_stay_on_the_mesh(name, kind, spec):
    run = _SIZED_BY_VALUES[name]
    program = lambda library: run(library.numpy, _array(library, kind, spec))
    assert_alike(program)
    ours, theirs = program(meshrt), program(jax)
    for got, want in zip(meshrt.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert _place(got) == _place(want)


@pytest.mark.parametrize("name", ["nonzero", "argwhere", "where"])
def test_positions_along_explicit_axes_are_refused_as_with_a_size(name):
    assert_alike(lambda library: _SIZED_BY_VALUES[name](library.numpy, _array(library, "Explicit", ("x",))))


@pytest.mark.parametrize("spec", [("x",), ("x", "y"), (None, "y")])
@pytest.mark.parametrize("axis", [0, 1])
def test_eager_sorting_along_explicit_axes(spec, axis):
    assert_alike(lambda library: library.numpy.argsort(_array(library, "Explicit", spec), axis))
    assert_alike(lambda library: library.numpy.lexsort((_array(library, "Explicit", spec),) * 2, axis))


def test_sorting_along_explicit_axes_operation_by_operation():
    x = _array(meshrt, "Explicit", ("x",))
    with meshrt.disable_jit():
        found = meshrt.numpy.argsort(x, 1), meshrt.numpy.lexsort((x, x), 1)
    for positions in found:
        np.testing.assert_array_equal(positions, np.argsort(np.asarray(x), 1, kind="stable"))
        assert _place(positions) == _place(x)


def test_a_polynomial_at_points_that_explicit_axes_split():
    program = lambda library: library.numpy.polyval(np.ones(3, np.float32), _array(library, "Explicit", ("x", "y")))
    assert_alike(program)
    assert str(meshrt.typeof(program(meshrt))) == "float32[8@x,4@y]"


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("index", [0, slice(1, 3), np.array([0, 1]), ..., None], ids=str)
def test_indexing_says_first_that_an_array_is_gone(kind, index):
    def program(library):
        x = _array(library, kind, ("x", "y"))
        x.delete()
        return x[index]

    assert_alike(program)
    assert "Array has been deleted" in str(outcome(program, meshrt))


@pytest.mark.parametrize("name", ["intersect1d", "setxor1d"])
def test_sets_that_are_traced_name_what_takes_a_size(name):
    for library in (jax, meshrt):
        function = getattr(library.numpy, name)
        with pytest.raises(library.errors.ConcretizationTypeError, match=r"argument.* of jnp\.unique"):
            library.jit(lambda x: function(x, x))(np.ones(3))
