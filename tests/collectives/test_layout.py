"""Atoms: how axes are cut, who is in a group, and that names and numbers say the same."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from collectives.errors import MeshMismatchError, UnsupportedShardingError
from collectives.heuristics import MAX_DEVICES
from collectives.layout import Atoms, count_of, local_shape, replicated
from propagation.model import AxisRef, DimSharding, Mesh, TensorSharding

MESH = Mesh("m", (("a", 12), ("b", 1), ("c", 4)))


def test_axes_are_cut_into_primes():
    for n in range(1, 200):
        atoms = Atoms(Mesh("m", (("a", n),)))
        assert math.prod(atoms.sizes) == n == atoms.count
        assert all(all(p % q for q in range(2, p)) and p > 1 for p in atoms.sizes)
        assert list(atoms.sizes) == sorted(atoms.sizes)
    assert Atoms(Mesh("m", (("a", 2 * 7919),))).sizes == (2, 7919)


def test_axes_are_cut_where_they_are_used_first():
    assert Atoms(MESH).sizes == (2, 2, 3, 2, 2)
    third = Atoms(MESH, [AxisRef("a", 3, 2)])
    assert third.sizes == (3, 2, 2, 2, 2) and third.of_axis(AxisRef("a", 3, 2)) == (1,)
    assert third.names == [("a", 1, 3), ("a", 3, 2), ("a", 6, 2), ("c", 1, 2), ("c", 2, 2)]
    assert third.of_axis(AxisRef("a", 1, 12)) == (0, 1, 2) and third.of_axis(AxisRef("c", 1, 4)) == (3, 4)
    assert third.of_axis(AxisRef("b", 1, 1)) == () and third.of_axis(AxisRef("c", 2, 2)) == (4,)
    with pytest.raises(UnsupportedShardingError, match="boundaries divide each other"):
        third.of_axis(AxisRef("a", 1, 2))
    with pytest.raises(UnsupportedShardingError, match="boundaries divide each other"):
        Atoms(MESH, [AxisRef("a", 2, 2), AxisRef("a", 3, 2)]).of_axis(AxisRef("a", 3, 2))


@pytest.mark.parametrize("used", [[], [AxisRef("a", 3, 2)], [AxisRef("a", 2, 6), AxisRef("c", 1, 2)]])
def test_groups_differ_in_their_atoms_and_are_ordered_by_them(used):
    atoms = Atoms(MESH, used)
    every = np.unravel_index(np.arange(atoms.count), atoms.sizes)
    numbers = range(len(atoms.sizes))
    for some in itertools.chain.from_iterable(itertools.permutations(numbers, k) for k in range(4)):
        groups, coordinate = atoms.groups(some), atoms.coordinate(some)
        assert sorted(groups.flat) == list(range(atoms.count)) and groups.shape[1] == atoms.product(some)
        assert (coordinate[groups] == np.arange(groups.shape[1])).all()
        for a in set(numbers) - set(some):
            assert (every[a][groups] == every[a][groups][:, :1]).all()
        assert atoms.groups(list(some)) is groups  # remembered
    assert [(every[a] == 1).argmax() for a in numbers] == list(atoms.strides)


def test_atoms_and_axes_are_names_of_each_other():
    atoms = Atoms(MESH, [AxisRef("a", 2, 2)])
    for some in itertools.chain.from_iterable(itertools.permutations(range(5), k) for k in range(6)):
        axes = atoms.axes(some)
        assert atoms.of_axes(axes) == some
        assert all(x.name != y.name or x.end != y.pre for x, y in itertools.pairwise(axes))
    assert atoms.axes_text((0, 1, 2, 4)) == "a,c:(2)2" and atoms.axes_text((1, 0)) == "a:(2)2,a:(1)2"
    assert atoms.text((2048, 256, 3), "f32", ((3, 4, 0), (), (1,))) == "f32[2048@c,a:(1)2,256,3@a:(2)2]"


def test_the_layout_of_a_sharding():
    atoms = Atoms(MESH)
    a, c = MESH.axis("a"), MESH.axis("c")
    sharding = TensorSharding(MESH, [DimSharding((c, AxisRef("a", 1, 2))), DimSharding()], (), (AxisRef("a", 2, 6),))
    assert atoms.dims(sharding) == ((3, 4, 0), ()) and replicated(2) == ((), ())
    other = Mesh("other", MESH.axes, reversed(range(48)))
    assert atoms.dims(TensorSharding(other, [DimSharding((a,))])) == ((0, 1, 2),)
    assert atoms.dims(TensorSharding(Mesh("empty", ()), [DimSharding()])) == ((),)
    with pytest.raises(MeshMismatchError, match="use one mesh shape per program"):
        atoms.dims(TensorSharding(Mesh("m", (("a", 12), ("c", 4))), [DimSharding()]))
    assert (
        local_shape((7, 5, 3), ((0, 2), (), (3, 4)), atoms.sizes)
        == (2, 5, 1)
        == tuple(-(-n // count_of(d, atoms.sizes)) for n, d in zip((7, 5, 3), ((0, 2), (), (3, 4))))
    )


def test_meshes_of_as_many_devices_as_programs_can_name():
    assert Atoms(Mesh("m", (("a", MAX_DEVICES),))).count == MAX_DEVICES
    with pytest.raises(UnsupportedShardingError, match=f"at most {MAX_DEVICES} are partitioned over"):
        Atoms(Mesh("m", (("a", MAX_DEVICES + 1),)))


def test_a_mesh_of_one_device_has_no_atoms():
    atoms = Atoms(Mesh("m", (("a", 1),)))
    assert (atoms.sizes, atoms.names, atoms.count) == ((), [], 1)
    assert atoms.groups(()).tolist() == [[0]] and atoms.coordinate(()).tolist() == [0]
