"""The data model: what meshes and shardings are equal, what they say of themselves, and what is refused."""

from __future__ import annotations

import copy
import pickle

import pytest

from propagation import errors
from propagation.model import AxisRef, DimSharding, Mesh, OpRule, TensorSharding, factor_symbol

MESH = Mesh("m", (("a", 8), ("b", 4), ("c", 2)))
A, B, C = (MESH.axis(n) for n in "abc")


def part(name: str, pre: int, size: int) -> AxisRef:
    return AxisRef(name, pre, size)


def on(*dims, replicated=(), unreduced=()) -> TensorSharding:
    return TensorSharding(MESH, [DimSharding(axes) for axes in dims], replicated, unreduced)


def test_meshes_are_equal_if_they_number_the_devices_alike():
    assert Mesh("m", [("a", 8), ("b", 4), ("c", 2)], range(64)) is MESH and MESH.device_ids is None
    turned = Mesh("m", MESH.axes, reversed(range(64)))
    assert turned is not MESH and turned.device_ids == tuple(range(63, -1, -1)) and turned.layout != MESH.layout
    assert Mesh("n", MESH.axes).layout == MESH.layout and (MESH.size, MESH.shape) == (64, (8, 4, 2))
    assert MESH.axis_names == ("a", "b", "c") and [MESH.axis_index(n) for n in "abc"] == [0, 1, 2]
    assert MESH.axis("b") is AxisRef("b", 1, 4) and MESH.axis_size("b") == 4
    for kept in (copy.copy(MESH), copy.deepcopy(MESH), pickle.loads(pickle.dumps(MESH))):
        assert kept is MESH


@pytest.mark.parametrize(
    "mesh, kind",
    [
        (MESH, (False, False)),
        (Mesh("e", ()), (False, True)),
        (Mesh("one", (), [0]), (True, False)),  # not the empty mesh, though its device has the usual number
        (Mesh("five", (), [5]), (True, False)),
        (Mesh("t", (("a", 2),), [1, 0]), (False, False)),
    ],
)
def test_maximal_and_empty_meshes(mesh, kind):
    assert (mesh.is_maximal, mesh.is_empty) == kind
    assert mesh.axes or (mesh.size == 1 and mesh.is_maximal == (mesh.device_ids is not None))


@pytest.mark.parametrize(
    "axes, ids, error",
    [
        ([("a", 2), ("a", 2)], None, errors.AxisReuseError),
        ([("a", 0)], None, errors.SubAxisError),
        ([("a", 2), ("b", -1)], None, errors.SubAxisError),
        ([("a", 2)], [0, 0], errors.UnsupportedModuleError),
        ([("a", 2)], [0], errors.UnsupportedModuleError),
        ([("a", 2)], [1, 2], errors.UnsupportedModuleError),
        ([], [0, 1], errors.UnsupportedModuleError),
        ([], [], errors.UnsupportedModuleError),
    ],
)
def test_meshes_that_are_none(axes, ids, error):
    with pytest.raises(error):
        Mesh("m", axes, ids)
    assert Mesh("m", [("a", 1)]).size == 1


def test_axes_are_sorted_by_mesh_then_by_place():
    axes = [A, part("a", 1, 2), part("a", 2, 2), part("a", 2, 4), part("a", 4, 2), B, part("b", 2, 2), C]
    expected = [axes[1], A, axes[2], axes[3], axes[4], B, axes[6], C]
    assert sorted([*axes[3:], *axes[:3]], key=MESH.sort_key) == expected
    with pytest.raises(errors.UnknownAxisError, match="mesh @m has no axis 'z'; it has 'a', 'b', 'c'"):
        MESH.axis_index("z")
    with pytest.raises(errors.UnknownAxisError, match="no axes at all"):
        Mesh("e", ()).axis("a")


SOUND = {
    "whole axes": on((A, B), (C,)),
    "halves apart": on((part("a", 1, 2),), (part("a", 4, 2),), replicated=(part("a", 2, 2),)),
    "minor before major": on((part("a", 2, 4), part("a", 1, 2))),
    "neighbours of two axes": on((part("a", 1, 2), part("b", 2, 2))),  # the one ends at 2, where the other begins
    "halves in two lists": on((part("b", 1, 2),), unreduced=(part("b", 2, 2),)),
    "nothing": on((), ()),
}
Unknown, Reuse, Overlap = errors.UnknownAxisError, errors.AxisReuseError, errors.OverlappingAxesError
BROKEN = {
    "no such axis": (on((part("z", 1, 2),)), Unknown),
    "an axis in two dimensions": (on((A,), (A,)), Reuse),
    "an axis twice in one": (on((A, A)), Reuse),
    "an axis sharded and replicated": (on((A,), replicated=(A,)), Reuse),
    "an axis replicated and unreduced": (on((), replicated=(A,), unreduced=(A,)), Reuse),
    "an axis and its part": (on((A,), (part("a", 2, 2),)), Overlap),
    "parts that overlap": (on((part("a", 1, 4),), (part("a", 2, 4),)), Overlap),
    "adjacent parts": (on((part("a", 1, 2), part("a", 2, 2))), Overlap),
    "pre 0": (on((part("a", 0, 2),)), errors.SubAxisError),
    "size 1": (on((part("a", 2, 1),)), errors.SubAxisError),
    "beyond the end": (on((part("a", 4, 4),)), errors.SubAxisError),
    "no divisor": (on((part("a", 1, 3),)), errors.SubAxisError),
    "larger than the axis": (on((part("c", 1, 4),)), errors.SubAxisError),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_shardings_are_returned(name):
    assert SOUND[name].check() is SOUND[name] and SOUND[name].check(SOUND[name].rank) is SOUND[name]


@pytest.mark.parametrize("name", BROKEN)
def test_broken_shardings_are_refused_with_the_error_that_fits(name):
    sharding, error = BROKEN[name]
    with pytest.raises(error, match=r"f\.py:3") as found:
        sharding.check(where="f.py:3")
    assert type(found.value) is error


def test_a_sharding_has_the_rank_of_its_value_but_on_one_device():
    with pytest.raises(errors.RankMismatchError, match="has 1 dimensions, the value has 2"):
        on((A,)).check(2)
    single = TensorSharding(Mesh("one", (), [3]), ())
    assert single.check(2) is single


def test_what_a_sharding_says_of_itself():
    full = TensorSharding(
        MESH, [DimSharding((A, C), True, 1), DimSharding(), DimSharding((part("b", 1, 2),))], (part("b", 2, 2),), ()
    )
    assert full.to_text() == '#sdy.sharding<@m, [{"a", "c", ?}p1, {}, {"b":(1)2}], replicated={"b":(2)2}>'
    assert full.to_text() == full.to_text() == f"#sdy.sharding{full.body_text()}"
    assert full.axes == (A, C, part("b", 1, 2)) and [full.dim_factor(d) for d in range(3)] == [16, 1, 2]
    assert (full.rank, full.is_fully_closed, full.is_fully_replicated) == (3, False, False)
    assert full.shard_shape((33, 5, 7)) == (3, 5, 4) and full.shard_shape((0, 1, 1)) == (0, 1, 1)
    with pytest.raises(errors.RankMismatchError, match="has rank 3, the value has shape"):
        full.shard_shape((4, 4))
    partial = on((A,), (), unreduced=(B,))
    assert partial.closed() is partial and partial.is_fully_closed and not partial.is_fully_replicated
    assert full.closed() is on((A, C), (), (part("b", 1, 2),))
    assert partial.with_dims([DimSharding((C,))]) is on((C,), unreduced=(B,))
    none, opened = TensorSharding.replicated_on(MESH, 2), TensorSharding.open_on(MESH, 2)
    assert none is on((), ()) and none.is_fully_closed and none.is_fully_replicated and opened.is_fully_replicated
    assert opened.dims == (DimSharding((), True),) * 2 and opened.closed() is none
    assert on((), unreduced=(A,)).is_fully_replicated  # partial sums are not looked at


def test_rules_are_printed_as_shardy_does():
    assert [factor_symbol(i) for i in (0, 1, 17, 18, 19)] == ["i", "j", "z", "z_1", "z_2"]
    rule = OpRule((8, 16, 4, 2), (((0,), (2, 3)), ((2, 3), (1,))), (((0,), (1,)),), (0, 0, 1, 2), (1, 0), True)
    text = "([i, kl], [kl, j])->([i, j]) {i=8, j=16, k=4, l=2} reduction={k} need_replication={l}"
    assert str(rule) == rule.to_text() == f"{text} blocked_propagation={{i, j}}, custom"
    assert OpRule((), ((), ()), ((),)).to_text() == "([], [])->([])"
    assert OpRule((3,), (((0,),),), (((0,),),), (3,)).to_text() == "([i])->([i]) {i=3} permutation={i}"
    assert rule.num_factors == 4 and rule.factors_of_type(0) == (0, 1) and rule.factors_of_type(2) == (3,)
