"""Types of results on meshes of Explicit axes: JAX's, for functions of every family split in many ways."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

import meshrt
from meshrt import errors
from tests.meshrt.explicit.cases import CASES, Case, Library, drawn, libraries

OURS, JAX = libraries()

# Where we take what JAX 0.10.2 refuses, or refuse what it takes, on purpose.
MORE = {
    "select": "a type does not tell zeros that nobody has split from values that are meant to be whole",
    "selects": "the same",
    "cholesky": "JAX's own select for the lower triangle refuses a batch that is split",
    "scatadd": "JAX fails in a check of its own",
}
MORE |= dict.fromkeys(
    ("window_set", "window_max", "window_row"),
    "JAX scatters; a window along a dimension that it still divides is a dynamic_update_slice, which both take",
)
LESS = {
    "trisolve": "JAX does not look at what splits matrices",
    "where": "a mask and values split along different dimensions",
}


def types(library: Library, case: Case, split: tuple) -> list[str] | Exception:
    """The types of the results as they are printed, or why there are none."""
    structs = [
        library.root.ShapeDtypeStruct(s, d, sharding=library.sharding(p)) for (s, d), p in zip(case.operands, split)
    ]
    with library.root.set_mesh(library.mesh):
        try:
            traced = library.root.jit(lambda *xs: case.fun(library, *xs)).trace(*structs)
        except (TypeError, ValueError, NotImplementedError, jax.errors.JAXTypeError) as e:
            return e
        except Exception as e:
            if type(e).__name__ in ("ShardingTypeError", "DuplicateSpecError"):
                return e
            raise
    return [str(t) for t in traced.jaxpr.out_avals]


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_types_are_those_of_jax(case: Case) -> None:
    for split in drawn(case, 8):
        ours, theirs = types(OURS, case, split), types(JAX, case, split)
        if isinstance(theirs, Exception) and not isinstance(ours, Exception):
            assert case.name in MORE, f"{case.name} {split}: JAX refuses ({theirs}), we do not: {ours}"
        elif isinstance(ours, Exception) and not isinstance(theirs, Exception):
            assert case.name in LESS, f"{case.name} {split}: JAX gives {theirs}, we refuse: {ours}"
        elif not isinstance(ours, Exception):
            assert ours == theirs, f"{case.name} {split}"


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_refusals_say_what_to_do(case: Case) -> None:
    for split in drawn(case, 6, seed=1):
        ours = types(OURS, case, split)
        if isinstance(ours, errors.ShardingTypeError) and "vmap" not in str(ours):
            assert "reshard" in str(ours) and "auto_axes" in str(ours) and "cases.py" in str(ours)


def test_typeof_is_complete() -> None:
    with meshrt.set_mesh(OURS.mesh):
        x = meshrt.device_put(meshrt.numpy.ones((8, 4)), OURS.sharding(("x",)))
        assert str(meshrt.typeof(x)) == "float32[8@x,4]"
        assert meshrt.typeof(x).sharding.spec == meshrt.P("x", None)
        assert meshrt.typeof(x).sharding.mesh is OURS.mesh.abstract_mesh
        whole = meshrt.typeof(meshrt.numpy.ones((2, 3)))
        assert str(whole) == "float32[2,3]" and whole.sharding.spec == meshrt.P(None, None)
    both = meshrt.device_put(meshrt.numpy.ones((8, 4)), OURS.sharding((("x", "y"),)))
    assert str(meshrt.typeof(both)) == "float32[8@(x,y),4]"
    assert str(meshrt.typeof(meshrt.numpy.ones(3)).sharding) == str(jax.typeof(jax.numpy.ones(3)).sharding)


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_typeof_names_the_mesh(kind: str) -> None:
    def seen(l: Any) -> list[str]:
        mesh = l.make_mesh((4, 2), ("x", "y"), axis_types=(l.sharding.AxisType[kind],) * 2)
        told: list[Any] = []
        with l.set_mesh(mesh):
            x = l.numpy.ones((8, 4))
            l.jit(lambda a: told.append(l.typeof(a)))(x)
            told += map(l.typeof, (x, np.ones(3), 1.0))
        return [f"{t} {t.sharding.spec} {t.sharding.mesh.shape_tuple} {t.sharding.mesh.axis_types}" for t in told]

    assert seen(meshrt) == seen(jax)


def test_typeof_of_what_describes_an_array() -> None:
    assert str(meshrt.typeof(meshrt.ShapeDtypeStruct((3,), "float32"))) == "float32[3]"
    with meshrt.set_mesh(OURS.mesh):
        described = meshrt.eval_shape(lambda x: x * 2, meshrt.ShapeDtypeStruct((8, 4), "float32"))
        assert str(meshrt.typeof(described)) == "float32[8,4]"
    split = meshrt.ShapeDtypeStruct((8, 4), "float32", sharding=OURS.sharding(("x",)))
    assert str(meshrt.typeof(split)) == "float32[8@x,4]"


@pytest.mark.parametrize(
    "operands",
    [
        [((8,), ("x",)), ((1,), (None,))],
        [((8,), ("x",)), ((), ())],
        [((8, 1), ("x", None)), ((1, 4), (None, "y"))],
        [((8,), ("x",)), ((8,), (None,))],
        [((8, 1), ("x", None)), ((1, 4), (None, "x"))],
        [((8, 4), (None, "y")), ((4,), ("x",))],
        [((8, 1), ("x", None)), ((8, 4), ("y", None))],
    ],
    ids=str,
)
def test_arrays_broadcast_together_are_split_alike(operands: Any) -> None:
    def seen(l: Any, refusals: type[Exception]) -> list[str] | str:
        mesh = l.make_mesh((4, 2), ("x", "y"), axis_types=(l.sharding.AxisType.Explicit,) * 2)
        with l.set_mesh(mesh):
            xs = [l.device_put(np.ones(shape, np.float32), l.P(*spec)) for shape, spec in operands]
            try:
                return [str(l.typeof(x)) for x in l.numpy.broadcast_arrays(*xs)]
            except refusals:
                return "refused"

    # Two axes in one place, or one in two: JAX has no common class for these.
    assert seen(meshrt, errors.ShardingTypeError) == seen(jax, Exception)
