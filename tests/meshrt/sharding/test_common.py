"""Programs over several meshes of the same devices, beside JAX; the common mesh keeps every layout."""

import itertools
import math

import jax
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy
from meshrt import errors
from meshrt.runtime import events
from meshrt.sharding import AbstractMesh, Mesh, NamedSharding, P
from meshrt.sharding.common import as_seen_on, common_mesh, over

X = np.arange(64.0, dtype=np.float32).reshape(8, 8)


def _shapes(size, ndim=3):
    return [s for s in itertools.product(range(1, size + 1), repeat=ndim) if math.prod(s) == size]


@pytest.mark.parametrize("size", [8, 12])
def test_layouts_survive_the_common_mesh_and_the_way_back(size):
    for one, other in itertools.product(_shapes(size), repeat=2):
        a, b = AbstractMesh(one, ("a", "b", "c")), AbstractMesh(other, ("p", "q", "r"))
        mesh = common_mesh([a, b])
        steps = [set(np.cumprod(shape[::-1]).tolist()) for shape in (one, other)]
        divides = all(y % x == 0 for x, y in itertools.combinations(sorted(steps[0] | steps[1]), 2))
        assert (mesh is not None) == divides, (one, other)
        for m in (a, b) if mesh is not None else ():
            for spec in (P(m.axis_names[0], m.axis_names[2]), P(None, m.axis_names[1::-1]), P()):
                s = NamedSharding(m, spec)
                there = over(s, mesh)
                assert there.is_equivalent_to(s, 2) and as_seen_on(there, m).is_equivalent_to(s, 2)


def test_the_common_mesh_is_one_of_the_users_if_it_can_be():
    fine, flat, wide = AbstractMesh((4, 2), ("x", "y")), AbstractMesh((8,), ("z",)), AbstractMesh((2, 4), ("a", "b"))
    assert common_mesh([flat, fine]) is fine
    assert common_mesh([fine, wide]).shape_tuple == (("x.0", 2), ("x.1", 2), ("y", 2))
    assert as_seen_on(NamedSharding(fine, P("x")), flat) is None
    assert as_seen_on(NamedSharding(common_mesh([fine, wide]), P(("x.1", "y"))), wide).spec == P("b")


class _Library:
    def __init__(self, lib, sharding):
        self.lib, self.np, self.sharding = lib, lib.numpy, sharding
        devices = np.array(lib.devices())
        self.meshes = {
            "42": sharding.Mesh(devices.reshape(4, 2), ("x", "y")), "8": sharding.Mesh(devices, ("z",)),
            "24": sharding.Mesh(devices.reshape(2, 4), ("a", "b")), "reversed": sharding.Mesh(devices[::-1], ("r",)),
        }  # fmt: skip

    def named(self, mesh, *spec):
        return self.sharding.NamedSharding(self.meshes[mesh], self.sharding.PartitionSpec(*spec))

    def pin(self, x, mesh, *spec):
        return self.lib.lax.with_sharding_constraint(x, self.named(mesh, *spec))

    def put(self, mesh, *spec):
        return self.lib.device_put(X, self.named(mesh, *spec))


def _two_constraints(l):
    return l.lib.jit(lambda x: (l.pin(x * 2, "42", "x", "y"), l.pin(x + 1, "8", "z")))(X)


def _in_context(l):
    with l.lib.set_mesh(l.meshes["42"]):
        return l.lib.jit(lambda x: l.pin(l.lib.lax.with_sharding_constraint(x * 2, l.sharding.PartitionSpec("x")),
                                         "8", None, "z"))(X)  # fmt: skip


PROGRAMS = {
    "two constraints": _two_constraints,
    "in context": _in_context,
    "argument and constraint": lambda l: l.lib.jit(lambda x: l.pin(x * 2, "42", "x", "y"))(l.put("8", "z")),
    "two arguments": lambda l: l.lib.jit(lambda x, y: (x * 2, y * 2))(l.put("8", "z"), l.put("42", "x", "y")),
    "value by value": lambda l: l.put("8", "z") + l.put("42", "x", "y"),
    "in and out": lambda l: l.lib.jit(lambda x: x * 2, in_shardings=l.named("8", "z"),
                                      out_shardings=l.named("24", "a", "b"))(X),
    "donated": lambda l: l.lib.jit(lambda x: l.pin(x * 2, "42", "x", "y"), donate_argnums=0)(l.put("8", "z")),
    "in a scan": lambda l: l.lib.jit(lambda x: l.lib.lax.scan(
        lambda c, _: (l.pin(l.pin(c * 2, "8", "z"), "42", "x", "y"), None), x, None, length=2)[0])(X),
    "gradient": lambda l: l.lib.jit(l.lib.grad(
        lambda x: (l.pin(l.np.sin(l.pin(x / 9, "42", "x", "y")), "24", "a", "b") ** 2).sum()))(X),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_several_meshes_as_in_jax(name):
    ours, theirs = (PROGRAMS[name](_Library(l, l.sharding)) for l in (meshrt, jax))
    for a, b in zip(meshrt.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5)
        if name != "gradient":  # nobody asked for its sharding
            index = lambda v: [s.index for s in sorted(v.addressable_shards, key=lambda s: s.device.id)]
            rows = [[[r.indices(8)[:2] for r in i] for i in index(v)] for v in (a, b)]
            assert rows[0] == rows[1]


def test_results_are_over_the_meshes_that_the_user_knows():
    l = _Library(meshrt, meshrt.sharding)
    f = lambda x: l.pin(l.pin(x * 2, "42", "x", "y"), "24", "a", "b")
    assert meshrt.jit(f)(X).sharding is l.named("24", "a", "b")
    assert meshrt.jit(lambda x: x, out_shardings=l.named("8", "z"))(l.put("42", ("x", "y"))).sharding is l.named(
        "8", "z"
    )


def test_the_same_program_on_other_devices_is_compiled_once():
    l, back = _Library(meshrt, meshrt.sharding), np.array(meshrt.devices())[::-1]
    f = meshrt.jit(lambda x, y: x + y)
    f(l.put("8", "z"), l.put("24", "b"))
    other = [NamedSharding(Mesh(back, ("z",)), P("z")), NamedSharding(Mesh(back.reshape(2, 4), ("a", "b")), P("b"))]
    moved = [meshrt.device_put(X, s) for s in other]
    with events.count("trace", "lower", "propagate", "partition", "compile") as n:
        np.testing.assert_array_equal(np.asarray(f(*moved)), X + X)
    assert n.trace == n.lower == n.propagate == n.partition == n.compile == 0


def test_what_has_no_common_mesh_names_both_places():
    six = np.array(meshrt.devices()[:6])
    one, other = Mesh(six.reshape(2, 3), ("a", "b")), Mesh(six.reshape(3, 2), ("c", "d"))
    x, y = (meshrt.device_put(np.ones((6, 6)), NamedSharding(m, P(m.axis_names[0]))) for m in (one, other))
    with pytest.raises(errors.MeshMismatchError, match=r"argument y of .* argument x of .* 2x3 and 3x2 have no common"):
        meshrt.jit(lambda x, y: x + y)(x, y)
    l = _Library(meshrt, meshrt.sharding)
    with pytest.raises(errors.DeviceAssignmentMismatchError, match="with_sharding_constraint at"):
        meshrt.jit(lambda x: l.pin(l.pin(x, "8", "z"), "reversed", "r"))(X)
