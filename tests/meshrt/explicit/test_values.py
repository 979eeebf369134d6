"""Values, gradients and their types on meshes of Explicit axes: JAX's, and never contradicted by propagation."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest

import meshrt
from meshrt import errors
from meshrt.pipeline.propagated import boundary_shardings
from tests.meshrt.explicit.cases import CASES, Case, Library, drawn, libraries

OURS, JAX = libraries()
FLOATS = [c for c in CASES if any(d == np.float32 for _, d in c.operands)]
# Nothing to differentiate, or (clamp) bounds that JAX lets be split in another way than the value.
WITHOUT_GRADIENT = {
    "argmax", "bitcast", "bitcast2", "convert", "sort2", "while", "clamp", "cholesky", "trisolve", "qr", "eigh",
    "svd", "fft", "rfft",
}  # fmt: skip
# XLA's partitioner gives JAX wrong gradients of windows over a split dimension: ours are compared with one device.
JAX_IS_WRONG = {"conv", "redwin2"}


def draw(case: Case) -> list[np.ndarray]:
    rng = np.random.default_rng(len(case.name))
    return [
        rng.integers(0, 2, s).astype(d) if d in (np.int32, np.bool_) else rng.standard_normal(s).astype(d)
        for s, d in case.operands
    ]


def loss(library: Library, case: Case, *xs):
    outs = jax.tree.leaves(case.fun(library, *xs)) if library is JAX else meshrt.tree.leaves(case.fun(library, *xs))
    floats = [o for o in outs if library.np.issubdtype(o.dtype, np.floating)]
    return sum((library.np.sum(library.np.sin(o)) for o in floats), start=np.float32(0))


def splits(case: Case, count: int) -> list[tuple]:
    """Some that we accept."""
    found = []
    for split in drawn(case, 24, seed=3)[::-1]:
        structs = [
            OURS.root.ShapeDtypeStruct(s, d, sharding=OURS.sharding(p)) for (s, d), p in zip(case.operands, split)
        ]
        try:
            with meshrt.set_mesh(OURS.mesh):
                meshrt.jit(functools.partial(case.fun, OURS)).trace(*structs)
        except (errors.ShardingTypeError, TypeError, ValueError):
            continue
        found.append(split)
        if len(found) == count:
            break
    return found


@pytest.mark.sweep(4)
@pytest.mark.parametrize("case", [c for c in FLOATS if c.name not in WITHOUT_GRADIENT], ids=lambda c: c.name)
def test_gradients_are_those_of_one_device(case: Case) -> None:
    xs = draw(case)
    floats = tuple(i for i, (_, d) in enumerate(case.operands) if d == np.float32)
    with jax.default_device(jax.devices()[0]):
        wanted = jax.value_and_grad(functools.partial(loss, JAX, case), argnums=floats)(*xs)
    for split in splits(case, 1):
        with meshrt.set_mesh(OURS.mesh):
            placed = [meshrt.device_put(x, OURS.sharding(p)) for x, p in zip(xs, split)]
            value, grads = meshrt.jit(meshrt.value_and_grad(functools.partial(loss, OURS, case), argnums=floats))(
                *placed
            )
        np.testing.assert_allclose(np.asarray(value), wanted[0], rtol=2e-4, atol=2e-4)
        for i, ours, theirs in zip(floats, grads, wanted[1]):
            np.testing.assert_allclose(np.asarray(ours), theirs, rtol=2e-4, atol=2e-4, err_msg=f"{split}")
            # A cotangent is split as its value is.
            assert meshrt.typeof(ours) is meshrt.typeof(placed[i]), split


# B25: propagation, asked without the types of results, never says anything else than they do.


def axes(entry) -> tuple:
    return () if entry is None else entry if isinstance(entry, tuple) else (entry,)


# What these keep is cut again after a shift of positions, which propagation would leave to them.
RESHARDING = {"fft", "clamp"}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_b25_types_never_contradict_propagation(case: Case) -> None:
    if case.name in RESHARDING:
        return
    auto = meshrt.make_mesh((4, 2), ("x", "y"), axis_types=(meshrt.sharding.AxisType.Auto,) * 2)
    for split in splits(case, 2):
        avals = case.operands
        structs = [meshrt.ShapeDtypeStruct(s, d, sharding=OURS.sharding(p)) for (s, d), p in zip(avals, split)]
        with meshrt.set_mesh(OURS.mesh):
            typed = meshrt.jit(functools.partial(case.fun, OURS)).trace(*structs).jaxpr.out_avals
        free = [
            meshrt.ShapeDtypeStruct(s, d, sharding=meshrt.NamedSharding(auto, meshrt.P(*p)))
            for (s, d), p in zip(avals, split)
        ]
        library = OURS._replace(mesh=auto)
        with meshrt.set_mesh(auto):
            propagated = meshrt.jit(functools.partial(case.fun, library)).lower(*free).propagate()
        for aval, found in zip(typed, boundary_shardings(propagated.result, propagated.lowered)[1]):
            spec = found.spec.padded(aval.ndim)
            mine = (None,) * aval.ndim if aval.explicit is None else aval.explicit.spec.partitions
            for ours, theirs in zip(mine, spec):
                a, b = axes(ours), axes(theirs)
                assert a[: len(b)] == b[: len(a)], f"{case.name} {split}: type {aval}, propagation {found.spec}"


# ----------------------------------------------------------------------------------------------------------------------
# device_put over meshes of both types

MIXED = [("e",), ("a",), (None, "e"), ("e", "a"), (("e", "a"),), ("a", "e"), ()]


def _mixed(lib):
    types = lib.sharding.AxisType.Explicit, lib.sharding.AxisType.Auto
    return lib.make_mesh((2, 4), ("e", "a"), axis_types=types)


@pytest.mark.parametrize("source", [None, (), ("e",), (None, "e"), ("a", "e")])
@pytest.mark.parametrize("spec", MIXED)
def test_device_put_in_a_program_over_both_types_lies_as_outside_of_one(spec, source):
    """Where types are asked for, JAX's say the same; its own programs put such values elsewhere than was said."""

    def types(lib):
        mesh, number = _mixed(lib), np.arange(64, dtype=np.float32).reshape(8, 8)
        place = lambda spec: lib.sharding.NamedSharding(mesh, lib.sharding.PartitionSpec(*spec))
        x = number if source is None else lib.device_put(number, place(source))
        put = lambda x: lib.device_put(2 * x, place(spec))
        return put, x, str(lib.typeof(lib.jit(lambda x: put(x) + 1)(x)))

    put, x, kind = types(meshrt)
    found, alone = meshrt.jit(put)(x), put(x)
    assert kind == types(jax)[2] == str(meshrt.typeof(found))
    np.testing.assert_array_equal(found, alone)
    assert found.sharding.is_equivalent_to(alone.sharding, 2)
    back = meshrt.jit(meshrt.grad(lambda x: (put(x) ** 2).sum()))(x)
    np.testing.assert_array_equal(back, 8 * np.asarray(x))
    assert str(meshrt.typeof(back)) == str(meshrt.typeof(x))


def test_device_put_in_a_program_splits_over_explicit_axes_first():
    where = meshrt.NamedSharding(_mixed(meshrt), meshrt.P(("a", "e")))
    assert meshrt.device_put(np.zeros(8), where).sharding == where
    with pytest.raises(errors.UnsupportedError, match=r"split over Explicit ones first, as in \('e', 'a'\)"):
        meshrt.jit(lambda x: meshrt.device_put(x, where))(np.zeros(8))


@pytest.mark.parametrize("target", ["mixed", "explicit", "other"])
@pytest.mark.parametrize("source", [None, "mixed", "explicit"])
@pytest.mark.parametrize("dim", [0, 1])
def test_members_of_a_batch_are_put_over_another_mesh(target, source, dim):
    """By vmap alone, without a program. Along dimension 0 JAX splits the batch as was said of a member."""

    def program(lib):
        explicit = lib.sharding.AxisType.Explicit
        meshes = {
            "mixed": _mixed(lib),
            "explicit": lib.make_mesh((2, 4), ("x", "y"), axis_types=(explicit,) * 2),
            "other": lib.make_mesh((8,), ("z",), axis_types=(explicit,)),
        }
        x = np.arange(64, dtype=np.float32).reshape(8, 8)
        if source is not None:
            x = lib.device_put(
                x,
                lib.sharding.NamedSharding(
                    meshes[source], lib.sharding.PartitionSpec(None, meshes[source].axis_names[0])
                ),
            )
        where = lib.sharding.NamedSharding(meshes[target], lib.sharding.PartitionSpec(meshes[target].axis_names[0]))
        out = lib.vmap(lambda x: lib.device_put(x, where), in_axes=dim)(x)
        return np.asarray(out), out.sharding.mesh.axis_names, tuple(out.sharding.spec)

    found, axes, spec = program(meshrt)
    wanted, names, along_batch = program(jax)
    np.testing.assert_array_equal(found, wanted)
    assert axes == names
    assert spec == (along_batch if dim else (None, *along_batch))
