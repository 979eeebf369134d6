"""The order of devices in a mesh: JAX's `mesh_utils` is the judge, on devices that only look like hardware."""

import itertools
import math
import random
from dataclasses import dataclass

import numpy as np
import pytest
from jax._src import mesh_utils as theirs
from jax._src.sharding_impls import make_mesh as their_make_mesh

from meshrt import errors
from meshrt.experimental import mesh_utils as ours
from meshrt.sharding import AxisType, Mesh, NamedSharding, make_mesh
from meshrt.sharding import PartitionSpec as P


@dataclass(frozen=True)
class Chip:
    id: int
    platform: str
    device_kind: str
    process_index: int
    coords: tuple
    core_on_chip: int
    slice_index: int = 0


@dataclass(frozen=True)
class Gpu:
    id: int
    platform: str = "gpu"
    device_kind: str = "H100"
    process_index: int = 0


def chips(extents, kind, cores=1, slice_index=0, first=0, origin=(0, 0, 0)):
    """A torus, z slowest, one process per host of 2x2 chips."""
    ids = itertools.count(first)
    return [
        Chip(next(ids), "tpu", kind, (z * 64 + y // 2) * 64 + x // 2, tuple(np.add(origin, (x, y, z)).tolist()), core,
             slice_index)
        for z in range(extents[2]) for y in range(extents[1]) for x in range(extents[0]) for core in range(cores)
    ]  # fmt: skip


SYSTEMS = {
    "v2": (((2, 2, 1), (4, 4, 1)), "TPU v2", 2),
    "v3": (((2, 2, 1), (4, 4, 1), (8, 8, 1)), "TPU v3", 2),
    "v4": (((2, 2, 1), (2, 2, 4), (4, 4, 4), (4, 4, 16), (4, 8, 8)), "TPU v4", 1),
    "v4i": (((2, 2, 1), (4, 2, 1)), "TPU v4 lite", 1),
    "v5e": (((1, 1, 1), (2, 2, 1), (4, 2, 1), (2, 4, 1), (2, 2, 2), (4, 4, 1), (16, 16, 1)), "TPU v5 lite", 1),
    "v5p": (((2, 2, 1), (2, 2, 2), (2, 2, 4), (4, 4, 8), (8, 8, 8)), "TPU v5p", 1),
    "v5p cores": (((2, 2, 2), (2, 2, 4)), "TPU v5p", 2),
    "v6e": (((2, 2, 1), (4, 2, 1), (4, 4, 1), (8, 8, 1), (6, 4, 1)), "TPU v6 lite", 1),
    "7x": (((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4)), "TPU7x", 2),
    "8i": (((2, 2, 1), (4, 2, 1)), "TPU8i", 1),
}  # fmt: skip


def shapes(n, rng, count):
    """Ways to write n as a product, with ones between."""
    found = {(n,), (1, n), (n, 1)}
    for _ in range(count):
        left, shape = n, []
        while left > 1 and len(shape) < 3:
            d = rng.choice([d for d in range(1, left + 1) if left % d == 0])
            shape.append(d)
            left //= d
        shape.append(left)
        rng.shuffle(shape)
        found.add(tuple(shape))
    return sorted(found)


def outcome(call):
    """The ids of a mesh, or what kind of error there was."""
    try:
        return [d.id for d in np.asarray(call()).flat]
    except NotImplementedError:
        return NotImplementedError
    except AssertionError:
        return AssertionError
    except ValueError:
        return ValueError


@pytest.mark.parametrize("system", SYSTEMS)
def test_orders_equal_jax(system):
    every, kind, cores = SYSTEMS[system]
    rng, seen = random.Random(7), 0
    for extents in every:
        devices = chips(extents, kind, cores)
        for shape in shapes(len(devices), rng, 12):
            for options in ({}, {"allow_split_physical_axes": True}, {"contiguous_submeshes": True}):
                ask = lambda m: m.create_device_mesh(shape, devices, **options)
                assert outcome(lambda: ask(ours)) == outcome(lambda: ask(theirs)), (extents, shape, options)
                seen += 1
            made, want = outcome(lambda: make_mesh(shape, range(len(shape)), devices=devices).devices), None
            want = outcome(lambda: their_make_mesh(shape, tuple(range(len(shape))), devices=devices).devices)
            assert made == want, (extents, shape)
    assert seen > 20


def test_devices_in_another_order_and_elsewhere_equal_jax():
    rng = random.Random(3)
    for kind, extents in itertools.product(
        ("TPU v4", "TPU v5 lite", "TPU v5p", "TPU v6 lite"), ((2, 2, 1), (4, 2, 2), (4, 4, 1))
    ):
        devices = chips(extents, kind, origin=(2, 0, 4) if kind == "TPU v4" else (0, 0, 0))
        rng.shuffle(devices)
        for shape in shapes(len(devices), rng, 6):
            ask = lambda m: m.create_device_mesh(shape, devices, allow_split_physical_axes=True)
            assert outcome(lambda: ask(ours)) == outcome(lambda: ask(theirs)), (kind, extents, shape)


def test_gpus_stand_by_id():
    devices = [Gpu(i) for i in (3, 1, 0, 2)]
    assert outcome(lambda: ours.create_device_mesh((2, 2), devices)) == [0, 1, 2, 3]
    assert outcome(lambda: ours.create_device_mesh((2, 2), devices)) == outcome(
        lambda: theirs.create_device_mesh((2, 2), devices)
    )


def test_contiguous_submeshes_are_blocks():
    for extents, shape in (((4, 4, 4), (16, 4)), ((4, 8, 8), (64, 4)), ((8, 8, 8), (64, 1, 8))):
        made = ours.create_device_mesh(shape, chips(extents, "TPU v4"), contiguous_submeshes=True)
        assert made.shape == shape
        got = [d.id for d in made.flat]
        want = theirs.create_device_mesh(shape, chips(extents, "TPU v4"), contiguous_submeshes=True)
        assert got == [d.id for d in want.flat]


@pytest.mark.parametrize("by_process", [False, True])
@pytest.mark.parametrize("sort", [False, True])
def test_hybrid_orders_equal_jax(by_process, sort):
    slices = [chips((2, 2, 2), "TPU v4", slice_index=i, first=100 * i) for i in (1, 0, 3, 2)]
    if by_process:
        slices = [[Chip(**{**vars(c), "process_index": c.slice_index}) for c in s] for s in slices]
    devices = [c for s in slices for c in s]
    for inner, outer in (
        ((2, 4), (4, 1)),
        ((2, 4), (2, 2)),
        ((8, 1, 1), (1, 2, 2)),
        ((4, 2), (1, 4)),
        ((4, 2), (3, 1)),
    ):
        ask = lambda m: m.create_hybrid_device_mesh(
            inner, outer, devices, process_is_granule=by_process, should_sort_granules_by_key=sort
        )
        assert outcome(lambda: ask(ours)) == outcome(lambda: ask(theirs)), (inner, outer)


def test_make_mesh_lays_axes_across_slices():
    devices = [c for i in range(2) for c in chips((2, 2, 2), "TPU v4", slice_index=i, first=8 * i)]
    made = make_mesh((4, 4), ("data", "model"), devices=devices, dcn_axes="data")
    assert made.devices.shape == (4, 4)
    assert [d.id for d in made.devices.flat] == [
        d.id for d in theirs.create_hybrid_device_mesh((2, 4), (2, 1), devices).flat
    ]
    assert made is make_mesh((4, 4), ("data", "model"), devices=devices, dcn_axes={"data": 2})
    assert all(len({d.slice_index for d in row}) == 1 for row in made.devices)
    three = make_mesh((2, 2, 4), ("slice", "data", "model"), devices=devices, dcn_axes=("slice",))
    assert [{d.slice_index for d in part.flat} for part in three.devices] == [{0}, {1}]
    for axes, text in (
        (None, "say which axes lie across"),
        ("tensor", "not one of"),
        ({"data": 4}, "asks for 4 slices, but the devices are of 2"),
        ({"data": 3}, "do not divide it"),
        (("data", "model"), "asks for 16 slices"),
        ({"data": True}, "positive ints"),
    ):
        with pytest.raises(ValueError, match=text):
            make_mesh((4, 4), ("data", "model"), devices=devices, dcn_axes=axes)
    with pytest.raises(errors.MeshError, match="different numbers"):
        make_mesh((4, 3), ("data", "model"), devices=devices, dcn_axes="data")


def test_processes_stand_for_slices_where_there_are_none():
    devices = [Gpu(i, process_index=i // 4) for i in range(8)]
    made = make_mesh((2, 4), ("node", "gpu"), devices=devices, dcn_axes="node")
    assert [{d.process_index for d in row} for row in made.devices] == [{0}, {1}]


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda m: m.create_device_mesh((4, 3), chips((2, 2, 2), "TPU v4")), ValueError, "must equal the product"),
        (lambda m: m.create_device_mesh((2, 2, 2), chips((8, 1, 1), "TPU v4")), NotImplementedError,
         "Failed to find assignment for logical_axis_index 2 of size 2"),
        (lambda m: m.create_device_mesh((3,), [c for c in chips((2, 2, 1), "TPU v4") if c.id != 2]), AssertionError,
         "devices"),
        (lambda m: m.create_device_mesh((4, 2), chips((2, 2, 1), "TPU v4", cores=2)), AssertionError,
         "requires one device per chip"),
        (lambda m: m.create_device_mesh((4, 2), chips((4, 2, 1), "TPU v4"), contiguous_submeshes=True), ValueError,
         "cannot create contiguous submeshes for physical mesh topology"),
        (lambda m: m.create_device_mesh((8, 8), chips((4, 4, 4), "TPU v4"), contiguous_submeshes=True), ValueError,
         "Available mesh_shapes"),
        (lambda m: m.create_hybrid_device_mesh((4,), (2,), chips((2, 2, 1), "TPU v4")), ValueError,
         "Number of slices 1 must equal the product of dcn_mesh_shape"),
        (lambda m: m.create_hybrid_device_mesh((4,), (1,), [Gpu(i) for i in range(4)]), ValueError,
         "does not have attribute slice_index"),
    ],
)  # fmt: skip
def test_errors_are_of_the_kinds_of_jax(make, kind, text):
    with pytest.raises(kind, match=text):
        make(theirs)
    with pytest.raises(kind, match=text) as e:
        make(ours)
    assert isinstance(e.value, errors.MeshrtError)
    assert not isinstance(e.value, errors.PhysicalMeshError) or isinstance(e.value, errors.MeshError)


def test_002_26_meshes_of_mock_devices():
    devices = chips((2, 2, 1), "TPU v4")
    mesh = Mesh(np.array(devices).reshape(2, 2), ("x", "y"))
    assert Mesh(np.array(devices).reshape(2, 2), ("x", "y")) is mesh and hash(mesh) == hash(mesh) and {mesh: 1}[mesh]
    sharding = NamedSharding(mesh, P("x"))
    assert sharding.shard_shape((8, 3)) == (4, 3) and sharding.device_set == set(devices)
    assert sharding.devices_indices_map((8,))[devices[2]] == (slice(4, 8),)
    assert sharding.is_equivalent_to(NamedSharding(mesh, P("x", None)), 2)
    named = Mesh(["a", "b"], "x")
    assert named.size == 2 and named.abstract_mesh.shape_tuple == (("x", 2),)
    with pytest.raises(TypeError, match="hashable"):
        Mesh([[1], [2]][:0] + [{}], "x")
    with pytest.raises(TypeError, match="no device of a runtime"):
        mesh._internal_device_list


def test_002_27_meshes_are_interned():
    devices = chips((2, 2, 1), "TPU v4")
    one = Mesh(np.array(devices).reshape(2, 2), ("x", "y"))
    assert one is Mesh([devices[:2], devices[2:]], ["x", "y"], (AxisType.Auto,) * 2)
    for other in (
        Mesh(np.array(devices).reshape(4, 1), ("x", "y")),
        Mesh(np.array(devices).reshape(2, 2), ("y", "x")),
        Mesh(np.array(devices[::-1]).reshape(2, 2), ("x", "y")),
        Mesh(np.array(devices).reshape(2, 2), ("x", "y"), AxisType.Explicit),
    ):
        assert other is not one and other != one


def test_every_prefix_of_the_devices_may_be_used():
    devices = chips((4, 4, 4), "TPU v4")
    for n in (1, 2, 4, 16, 32):
        made = make_mesh((n,), ("x",), devices=devices)
        assert {d.id for d in made.devices.flat} == set(range(n))
    assert math.prod(make_mesh((1, 1), ("x", "y"), devices=devices).devices.shape) == 1
