"""The moves of the reshard planner: what each does, which there are, and that only divisibility counts."""

from __future__ import annotations

import itertools
import math

import pytest

from collectives.reshard.moves import ReshardStep, _fill, successors

SIZES = (2, 3, 2)


def layouts(rank: int, without: tuple[int, ...] = ()):
    """Every layout of `rank` dimensions over some of the atoms."""
    atoms = [a for a in range(len(SIZES)) if a not in without]
    lists = [t for k in range(len(atoms) + 1) for t in itertools.permutations(atoms, k)]
    for dims in itertools.product(lists, repeat=rank):
        if len({a for d in dims for a in d}) == sum(map(len, dims)):
            yield dims


def with_dim(dims, d, atoms):
    return (*dims[:d], tuple(atoms), *dims[d + 1 :])


def pieces(dims) -> list[int]:
    return [math.prod(SIZES[a] for a in d) for d in dims]


def check_step(step: ReshardStep, dims, unreduced, target) -> None:
    """What the step says of itself is what it does."""
    if step.kind in ("slice", "reduce_scatter"):
        after = with_dim(dims, step.dim, step.after[step.dim])
        added = step.after[step.dim][len(dims[step.dim]) :]
        assert step.after == after and after[step.dim][: len(dims[step.dim])] == dims[step.dim]
        used = {a for d in dims for a in d}
        if step.kind == "slice":
            assert step.atoms == added and not used & set(added) and step.unreduced == unreduced
        else:
            assert set(step.atoms) <= set(added) and set(step.atoms) <= set(unreduced)
            assert step.unreduced == tuple(u for u in unreduced if u not in step.atoms)
        return
    if step.kind == "all_gather":
        assert dims[step.dim] == step.after[step.dim] + step.atoms and step.atoms
        assert step.after == with_dim(dims, step.dim, step.after[step.dim]) and step.unreduced == unreduced
    elif step.kind == "all_reduce":
        assert (step.after, step.dim) == (dims, -1) and set(unreduced) == {*step.atoms, *step.unreduced}
    elif step.kind == "all_to_all":
        out = [list(d) for d in dims]
        for move in step.moves:
            left = len(out[move.source]) - len(move.atoms)
            assert set(move.atoms) <= set(dims[move.source]) and move.source != move.target and left >= 0
        for d in {m.source for m in step.moves}:
            gone = {a for m in step.moves if m.source == d for a in m.atoms}
            assert set(out[d][len(out[d]) - len(gone) :]) == gone
            out[d] = out[d][: len(out[d]) - len(gone)]
        for move in step.moves:
            out[move.target] += move.atoms
        assert step.after == tuple(map(tuple, out)) and step.dim == -1 and step.unreduced == unreduced
        assert sorted(step.atoms) == sorted(a for m in step.moves for a in m.atoms)
    else:
        assert step.kind == "collective_permute" and pieces(step.after) == pieces(dims) and step.after != dims
        assert set(step.atoms) == {a for layout in (dims, step.after) for d in layout for a in d}
        assert not {a for d in step.after for a in d} & set(unreduced) and step.unreduced == unreduced


def cut_next(dims, target):
    """What can be cut at once, as the target wants it: (dimension, its new atoms)."""
    used = {a for d in dims for a in d}
    for d, (s, t) in enumerate(zip(dims, target)):
        new = len(s)
        while t[: len(s)] == s and new < len(t) and t[new] not in used:
            new += 1
        if new > len(s):
            yield d, t[:new]


def expected(dims, target) -> set:
    """(kind, atoms, dimension, layout) of the gathers, cuts and exchanges out of one dimension that there must be."""
    used, place = {a for d in dims for a in d}, {a: d for d, t in enumerate(target) for a in t}
    found = set()
    for d, s in enumerate(dims):
        common = next(k for k in itertools.count() if k >= len(s) or k >= len(target[d]) or s[k] != target[d][k])
        for k in range(common, len(s)):
            found.add(("all_gather", s[k:], d, with_dim(dims, d, s[:k])))
            if all(place.get(a, d) != d for a in s[k:]):
                after = with_dim(dims, d, s[:k])
                for e in {place[a] for a in s[k:]}:
                    moved = sorted((a for a in s[k:] if place[a] == e), key=target[e].index)
                    after = with_dim(after, e, (*after[e], *moved))
                atoms = tuple(a for e in sorted({place[a] for a in s[k:]}) for a in after[e][len(dims[e]) :])
                found.add(("all_to_all", atoms, -1, after))
        for a in set(place) - used:
            found.add(("slice", (a,), d, with_dim(dims, d, (*s, a))))
    return found


def test_all_moves_between_layouts_that_divide():
    """Of every pair: one cut where it is certainly right; else all gathers, cuts and exchanges, and what is sound."""
    shape = (12, 12)
    for dims, target in itertools.product(layouts(2), repeat=2):
        steps = successors(shape, dims, (), target, SIZES)
        for step in steps:
            check_step(step, dims, (), target)
        certain = list(cut_next(dims, target))
        if certain:
            d, new = certain[0]
            assert steps == [ReshardStep("slice", new[len(dims[d]) :], d, (), with_dim(dims, d, new), ())]
            continue
        found = {(s.kind, s.atoms, s.dim, s.after) for s in steps}
        assert expected(dims, target) <= found, (dims, target)
        simple = {f for f in found if f[0] in ("all_gather", "slice")}
        assert simple == {f for f in expected(dims, target) if f[0] in ("all_gather", "slice")}


@pytest.mark.parametrize("unreduced", [(), (1,), (0, 2)])
@pytest.mark.parametrize("anywhere", [False, True])
def test_only_divisibility_counts(unreduced, anywhere):
    """Dimensions as large as there are devices have the moves of dimensions ten times as large."""
    for dims, target in itertools.product(layouts(2, unreduced), layouts(2)):
        steps = successors((12, 12), dims, unreduced, target, SIZES, anywhere)
        assert steps == successors((120, 120), dims, unreduced, target, SIZES, anywhere)
        for step in steps:
            check_step(step, dims, unreduced, target)


def test_partial_sums_are_reduced_or_scattered():
    kinds = lambda dims, unreduced, target, **k: {
        (s.kind, s.atoms, s.dim, s.unreduced) for s in successors((12, 12), dims, unreduced, target, SIZES, **k)
        if s.reduces
    }  # fmt: skip
    # What the target is sharded over next is scattered there, and nothing else is tried.
    assert kinds(((), ()), (0,), ((0,), ())) == {("reduce_scatter", (0,), 0, ())}
    assert kinds(((0,), ()), (1, 2), ((0, 1, 2), ())) == {("reduce_scatter", (1, 2), 0, ())}
    # What it is not sharded over is summed, or scattered to be gathered again.
    assert kinds(((), ()), (0,), ((), ())) == {("all_reduce", (0,), -1, ())}
    assert kinds(((), ()), (0,), ((), ()), anywhere=True) == {
        ("all_reduce", (0,), -1, ()), ("reduce_scatter", (0,), 0, ()), ("reduce_scatter", (0,), 1, ()),
    }  # fmt: skip
    # Of two, one wanted behind an atom that lies elsewhere: both ways, and the other one by itself.
    found = kinds(((), (1,)), (0, 2), ((1, 0), ()))
    assert found == {
        ("all_reduce", (2,), -1, (0,)), ("all_reduce", (0, 2), -1, ()), ("reduce_scatter", (0,), 0, (2,)),
        ("reduce_scatter", (0,), 1, (2,)),
    }  # fmt: skip


def test_dimensions_that_do_not_divide_change_as_a_whole():
    """7 elements over 2 and 3 devices: pieces of 4 and of 2 are not nested."""
    shape, cut = (7, 12), lambda s: (s.kind, s.atoms, s.dim, s.after)
    assert [*map(cut, successors(shape, ((), ()), (), ((0, 1), ()), SIZES))] == [("slice", (0, 1), 0, ((0, 1), ()))]
    assert {*map(cut, successors(shape, ((0,), ()), (), ((0, 1), ()), SIZES))} >= {("all_gather", (0,), 0, ((), ()))}
    for step in successors(shape, ((0, 1), ()), (), ((), (1, 0)), SIZES):
        assert len(step.after[0]) != 1, step
    everything = successors(shape, ((0, 1), ()), (), ((0, 1), ()), SIZES)
    assert all(s.kind != "all_gather" for s in everything)  # it is where the target wants it


def test_pieces_that_are_not_nested_are_never_made_of_each_other():
    """Dimensions of 7 and 13 elements: whole to what the target wants, or back to whole; by one move or another."""
    for shape in ((7, 12, 12), (7, 13, 12)):
        uneven = [d for d, n in enumerate(shape) if n % 12]
        pairs = [
            (((0, 1), (), ()), ((), (0,), (1,))), (((), (0,), (1,)), ((0, 1), (), ())),
            (((0,), (), (1, 2)), ((), (0,), ())), (((1,), (), (0, 2)), ((1, 0), (), (2,))),
            (((), (0, 1), ()), ((0,), (), ())), (((2,), (0,), ()), ((0,), (2,), (1,))),
        ]  # fmt: skip
        for dims, target in [*pairs, *itertools.product(list(layouts(3))[::9], list(layouts(3))[::17])]:
            for step in successors(shape, dims, (), target, SIZES):
                check_step(step, dims, (), target)
                for d in uneven:
                    if step.after[d] != dims[d] and step.kind != "collective_permute":
                        assert not step.after[d] or (not dims[d] and step.after[d] == target[d]), (dims, target, step)
    kinds = lambda *k: {(s.kind, s.atoms) for s in successors((7, 12, 12), *k, SIZES)}
    assert ("all_to_all", (0,)) in kinds(((0,), (), ()), (), ((), (0,), ()))
    assert ("all_to_all", (0, 1)) in kinds(((0, 1), (), ()), (), ((), (0,), (1,)))
    assert ("all_to_all", (1, 2)) in kinds(((), (1, 2), ()), (), ((1, 2), (), ()))
    assert ("all_to_all", (2,)) not in kinds(((), (1, 2), ()), (), ((1, 2), (), ()))


def test_atoms_that_fill_a_room():
    """The first in order whose sizes multiply to it, if any do."""
    for sizes in itertools.product((2, 3, 4), repeat=4):
        for room in (1, 2, 4, 6, 8, 12, 24, 36):
            subsets = [[*c] for k in range(5) for c in itertools.combinations(range(4), k)]
            fitting = [c for c in subsets if math.prod(sizes[a] for a in c) == room]
            assert _fill(room, [0, 1, 2, 3], sizes) == min(fitting, default=None)
    assert _fill(2, [2, 0], (2, 3, 2)) == [2]


def test_few_elements_on_many_devices_may_be_added_up_instead_of_gathered():
    """Of 2 elements over 12 devices most have none: an all-reduce of zeros and the elements sends less."""
    kinds = [(s.kind, s.atoms) for s in successors((2, 12), ((0, 1, 2), ()), (), ((), ()), SIZES)]
    assert ("all_reduce", (0, 1, 2)) in kinds and ("all_gather", (0, 1, 2)) in kinds
    for size in (6, 12):
        kinds = [s.kind for s in successors((size, 12), ((0, 1, 2), ()), (), ((), ()), SIZES)]
        assert "all_reduce" not in kinds


def test_a_step_over_other_atoms():
    (step,) = successors((12, 12), ((), ()), (), ((1, 2), ()), SIZES)
    renamed = step.rename(lambda a: (10 * a, 10 * a + 1))
    assert renamed == ReshardStep("slice", (10, 11, 20, 21), 0, (), ((10, 11, 20, 21), ()), ())
    assert not step.reduces and ReshardStep("reduce_scatter", (0,), 0, (), ((0,),), ()).reduces
    assert not ReshardStep("pieces", (0,), -1, (), ((0,),), (), 3).reduces
