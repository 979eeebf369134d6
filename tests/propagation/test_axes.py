"""The algebra of axes against sets: a part of an axis is the set of the stretches between the cuts that lie in it."""

from __future__ import annotations

import itertools

import pytest

from propagation.axes import (
    EQUAL,
    NOT_PREFIX,
    STRICT_PREFIX,
    can_coexist,
    contains,
    difference,
    is_prefix,
    is_strict_prefix,
    list_prefix,
    list_size,
    merged,
    overlaps,
    prefix_without,
    suffix_without,
)
from propagation.model import AxisRef, Mesh


def parts(size: int, name: str = "a") -> list[AxisRef]:
    """Every part of an axis, the whole one included: `(pre, size)` of which pre * size divides the axis."""
    divisors = [d for d in range(1, size + 1) if size % d == 0]
    return [AxisRef(name, low, high // low) for low, high in itertools.combinations(divisors, 2) if high % low == 0]


def stretches(axis: AxisRef | None, cuts: list[int]) -> list[tuple[int, int]]:
    """The stretches of `axis` between neighbouring cuts, major to minor."""
    if axis is None:
        return []
    return [(low, high) for low, high in itertools.pairwise(cuts) if axis.pre <= low and high <= axis.end]


def joined(axes, cuts: list[int]) -> list[tuple[int, int]]:
    return [stretch for axis in axes for stretch in stretches(axis, cuts)]


@pytest.mark.parametrize("size", [8, 12, 36])
def test_pairs_of_parts_behave_as_sets(size):
    for a, b in itertools.product(parts(size), repeat=2):
        cuts = sorted({a.pre, a.end, b.pre, b.end})
        chain = all(high % low == 0 for low, high in itertools.pairwise(cuts))
        assert can_coexist(a, b) == chain, (a, b)
        if not chain:
            assert prefix_without(a, b) is suffix_without(a, b) is None
            continue
        mine, others = stretches(a, cuts), stretches(b, cuts)
        shared = [s for s in mine if s in others]
        assert overlaps(a, b) == bool(shared), (a, b)
        assert contains(a, b) == (set(others) <= set(mine)), (a, b)
        assert is_prefix(a, b) == (mine == others[: len(mine)]), (a, b)
        assert is_strict_prefix(a, b) == (mine == others[: len(mine)] and a is not b)
        before = mine[: mine.index(shared[0])] if shared else mine
        behind = mine[mine.index(shared[-1]) + 1 :] if shared else mine
        assert stretches(prefix_without(a, b), cuts) == before, (a, b)
        assert stretches(suffix_without(a, b), cuts) == behind, (a, b)
        assert joined(difference([a], [b]), cuts) == [s for s in mine if s not in shared]


def test_parts_of_different_axes_have_nothing_to_do_with_each_other():
    for a, b in itertools.product(parts(12), parts(12, "b")):
        assert can_coexist(a, b) and not overlaps(a, b) and not contains(a, b) and not is_prefix(a, b)
        assert prefix_without(a, b) is suffix_without(a, b) is a
        assert difference([a, b], [b]) == (a,) and merged([a, b]) == (a, b)


def test_differences_of_lists_and_what_is_joined_again():
    """Of an axis of size 16 everything is kept that is not removed; joining the rest gives as few parts as can be."""
    cuts = [1, 2, 4, 8, 16]
    whole = AxisRef("a", 1, 16)
    atoms = [AxisRef("a", low, 2) for low in cuts[:-1]]
    for removed in itertools.chain.from_iterable(itertools.permutations(atoms, k) for k in range(len(atoms) + 1)):
        rest = [a for a in atoms if a not in removed]
        assert joined(difference([whole], removed), cuts) == joined(rest, cuts)
        assert difference([whole], removed) == merged(rest)
        assert list_size(difference([whole], removed)) == 2 ** len(rest)
    assert merged(atoms[::-1]) == tuple(atoms[::-1])
    assert merged([atoms[0], AxisRef("b", 2, 4), atoms[1]]) == (atoms[0], AxisRef("b", 2, 4), atoms[1])


def test_prefixes_of_lists():
    a, b, head, tail = AxisRef("a", 1, 4), AxisRef("b", 1, 2), AxisRef("a", 1, 2), AxisRef("a", 2, 2)
    table = {
        ((), ()): EQUAL, ((a, b), (a, b)): EQUAL,
        ((), (a,)): STRICT_PREFIX, ((a,), (a, b)): STRICT_PREFIX, ((head,), (a,)): STRICT_PREFIX,
        ((b, head), (b, a)): STRICT_PREFIX, ((head,), (a, b)): STRICT_PREFIX,
        ((a,), ()): NOT_PREFIX, ((a, b), (a,)): NOT_PREFIX, ((a,), (head,)): NOT_PREFIX, ((tail,), (a,)): NOT_PREFIX,
        ((head, b), (a, b)): NOT_PREFIX, ((b,), (a, b)): NOT_PREFIX,
    }  # fmt: skip
    for (first, second), expected in table.items():
        assert list_prefix(first, second) == expected, (first, second)


def test_whole_axes_and_parts_are_told_apart():
    mesh = Mesh("m", (("a", 8), ("b", 2)))
    texts = {axis.to_text(mesh): axis.is_full(mesh) for axis in parts(8)}
    assert texts == {
        '"a":(1)2': False, '"a":(1)4': False, '"a"': True, '"a":(2)2': False, '"a":(2)4': False, '"a":(4)2': False,
    }  # fmt: skip
