"""Shardings at the boundary of manual computations: without their manual axes inside, with them outside."""

from __future__ import annotations

import itertools

import pytest

from propagation.dataflow import add_manual, remove_manual
from propagation.errors import UnsupportedModuleError
from propagation.model import DimSharding, Mesh, TensorSharding

MESH = Mesh("m", (("a", 2), ("b", 2), ("c", 2), ("d", 2)))
MANUAL = ("a", "b")


def on(*dims: str, replicated: str = "", unreduced: str = "", priority: int | None = None) -> TensorSharding:
    split = [DimSharding(map(MESH.axis, d.rstrip("?")), d.endswith("?"), priority) for d in dims]
    return TensorSharding(MESH, split, [*map(MESH.axis, replicated)], [*map(MESH.axis, unreduced)])


@pytest.mark.parametrize("sharding", [on("a?", ""), on("c", "d?"), None], ids=["manual", "free", "none"])
def test_without_manual_axes_or_a_sharding_both_sides_are_alike(sharding):
    other = on("ac", "b")
    assert remove_manual(sharding, ()) is sharding and add_manual(sharding, other, ()) is sharding
    assert remove_manual(None, MANUAL) is add_manual(None, None, MANUAL) is add_manual(None, other, MANUAL) is None
    assert add_manual(sharding, None, MANUAL) is sharding and add_manual(sharding, None, ()) is sharding


def test_manual_axes_are_dropped_wherever_they_are():
    assert remove_manual(on("ac?", "b"), MANUAL) is on("c?", "")
    assert remove_manual(on("ac", "", priority=2), MANUAL).dims[0] is DimSharding([MESH.axis("c")], False, 2)
    assert remove_manual(on("c", "", replicated="bd", unreduced="a"), MANUAL) is on("c", "", replicated="d")
    assert remove_manual(on("c", "", unreduced="bd"), MANUAL) is on("c", "", unreduced="d")
    assert remove_manual(on("c?", "d"), MANUAL) is on("c?", "d")


def test_what_comes_out_has_the_manual_axes_in_front():
    for first, second, marks in itertools.product(["", "a", "ac", "ab"], ["", "d"], ["", "?"]):
        outer = on(first + marks, second)
        assert add_manual(remove_manual(outer, MANUAL), outer, MANUAL) is outer
    grown = on("cd?", "")
    assert add_manual(grown, on("a?", "b"), MANUAL) is on("acd?", "b")
    assert add_manual(grown, on("a", "b", replicated="", unreduced="d"), MANUAL) is on("acd?", "b", unreduced="d")
    assert add_manual(on("", "", replicated="c"), on("a", "", replicated="d"), MANUAL) is on("a", "", replicated="d")


def test_a_manual_axis_inside_is_refused():
    with pytest.raises(UnsupportedModuleError, match="inside a manual computation over a, b"):
        add_manual(on("c", "b"), on("a", ""), MANUAL)
