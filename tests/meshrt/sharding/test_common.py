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
from meshrt.sharding.common import as_seen_on, common_mesh, is_refinement, joint_mesh, over, parts_over, with_parts
from meshrt.sharding.spec import axes_of

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


def test_other_orders_of_devices_name_both_places():
    l = _Library(meshrt, meshrt.sharding)
    with pytest.raises(errors.DeviceAssignmentMismatchError, match="with_sharding_constraint at"):
        meshrt.jit(lambda x: l.pin(l.pin(x, "8", "z"), "reversed", "r"))(X)


# ---------------------------------------------------------------------------------------------------------------------
# Without a common refinement

Z = np.arange(36.0, dtype=np.float32).reshape(6, 6)


@pytest.mark.parametrize("size", [6, 12, 24])
def test_layouts_survive_parts_of_a_joint_mesh_and_the_way_back(size):
    for one, other in itertools.product(_shapes(size), repeat=2):
        a, b = AbstractMesh(one, ("a", "b", "c")), AbstractMesh(other, ("p", "q", "r"))
        mesh = joint_mesh([a, b])
        assert mesh.size == size
        assert (common_mesh([a, b]) is None) or is_refinement(common_mesh([a, b]), a)
        for m in (a, b):
            for spec in (P(m.axis_names[0], m.axis_names[2]), P(None, m.axis_names[:2]), P(m.axis_names), P()):
                s = NamedSharding(m, spec)
                dims = [parts_over(axes_of(e), m, mesh) for e in spec.partitions]
                assert all(
                    math.prod(mesh.shape[n] for n in {p[0] for p in d}) % math.prod(p[2] for p in d) == 0 for d in dims
                )
                there = with_parts(mesh, dims)
                assert there.is_equivalent_to(s, 2) and as_seen_on(there, m).is_equivalent_to(s, 2)


def _two_meshes(shapes):
    six = np.array(meshrt.devices()[:6])
    return [Mesh(six.reshape(s), names) for s, names in zip(shapes, (("a", "b"), ("c", "d")))]


@pytest.mark.parametrize("partitioner", ["meshrt", "xla"])
@pytest.mark.parametrize(
    "specs", [(P("a", "b"), P("c", "d")), (P("b"), P(("d", "c"))), (P(None, "a"), P("c")), (P(), P("d"))]
)
def test_meshes_without_a_common_refinement_share_a_program(specs, partitioner):
    one, other = _two_meshes([(2, 3), (3, 2)])
    x, y = meshrt.device_put(Z, NamedSharding(one, specs[0])), meshrt.device_put(Z + 1, NamedSharding(other, specs[1]))
    f = meshrt.jit(lambda x, y: (x @ y, x * 2, y - 1, x.T + y, meshrt.numpy.sum(y, 1)))
    with meshrt.config.override(partitioner=partitioner):
        found = f(x, y)
        pinned = meshrt.jit(
            lambda x, y: meshrt.lax.with_sharding_constraint(x + y, NamedSharding(other, P(("c", "d")))),
            out_shardings=NamedSharding(one, P(None, "b")),
        )(x, y)
    for got, want in zip(found, (Z @ (Z + 1), Z * 2, Z, Z.T + Z + 1, np.sum(Z + 1, 1)), strict=True):
        np.testing.assert_allclose(got, want)
    assert found[1].sharding.is_equivalent_to(x.sharding, 2) and found[2].sharding.is_equivalent_to(y.sharding, 2)
    assert found[1].sharding.mesh is one
    np.testing.assert_array_equal(pinned, 2 * Z + 1)
    assert pinned.sharding == NamedSharding(one, P(None, "b"))
    compiled = f.lower(x, y).compile()
    assert [s.mesh for s in compiled.input_shardings[0]] == [one, other] or not specs[0].axes
    assert "AxisRef(" not in f.lower(x, y).propagate().explain("result[0]:0")


def test_such_programs_move_to_other_devices_too():
    one, other = _two_meshes([(2, 3), (3, 2)])
    f = meshrt.jit(lambda x, y: x + y)
    f(meshrt.device_put(Z, NamedSharding(one, P("a"))), meshrt.device_put(Z, NamedSharding(other, P("c"))))
    six = np.array(meshrt.devices()[2:8])
    args = [
        meshrt.device_put(Z, NamedSharding(Mesh(six.reshape(m.axis_sizes), m.axis_names), P(m.axis_names[0])))
        for m in (one, other)
    ]
    before = events.totals()
    np.testing.assert_array_equal(f(*args), Z + Z)
    done = {k for k, n in events.totals().items() if n != before.get(k, 0)}
    assert not done & {"trace", "lower", "propagate", "partition", "compile"}


def test_meshes_of_several_sizes_and_manual_parts_are_refused():
    one, other = _two_meshes([(2, 3), (3, 2)])
    x, y = (meshrt.device_put(Z, NamedSharding(m, P(m.axis_names[0]))) for m in (one, other))
    inside = meshrt.shard_map(lambda x: x * 2, mesh=one, in_specs=P("a"), out_specs=P("a"), axis_names={"a"})
    with pytest.raises(
        errors.MeshMismatchError, match=r"axes 'a' of .* are parts of the axis .* whole axes are needed"
    ):
        meshrt.jit(lambda x, y: inside(x) + y)(x, y)
