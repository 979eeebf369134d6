"""Exact exchanges of any sizes, carried out in NumPy: who holds what afterwards, and how much room it takes."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from collectives.layout import Atoms, local_shape
from collectives.reshard.boxes import boxes_between, fewest_between
from collectives.reshard.tiles import _cut, exchange, lacking, tiles
from propagation.model import Mesh

SIZES = {"6": (2, 3), "8": (2, 2, 2), "4": (4,)}


def layouts(count: int, rank: int):
    """Every layout of `rank` dimensions over some of `count` atoms, at most two in a dimension."""
    lists = [t for k in range(3) for t in itertools.permutations(range(count), k)]
    for dims in itertools.product(lists, repeat=rank):
        if len({a for d in dims for a in d}) == sum(map(len, dims)):
            yield dims


def pieces(x: np.ndarray, dims, atoms: Atoms) -> list[np.ndarray]:
    """What each device holds; beyond the end of the tensor stands -2."""
    piece = local_shape(x.shape, dims, atoms.sizes)
    padded = np.full([n + p * atoms.count for n, p in zip(x.shape, piece)], -2)
    padded[tuple(map(slice, x.shape))] = x
    starts = np.stack([atoms.coordinate(d) * p for d, p in zip(dims, piece)], axis=1)
    return [padded[tuple(slice(s, s + p) for s, p in zip(start, piece))] for start in starts.tolist()]


def window(corner, extents) -> tuple[slice, ...]:
    return tuple(slice(c, c + n) for c, n in zip(corner, extents))


@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("shape", [(7, 5), (12, 8), (9, 2), (24, 1)])
def test_every_device_ends_up_with_its_piece_and_margins_are_what_windows_need(name, shape):
    sizes = SIZES[name]
    atoms = Atoms(Mesh("m", tuple((f"a{i}", n) for i, n in enumerate(sizes))))
    assert atoms.sizes == sizes or name == "4"
    x = np.arange(math.prod(shape)).reshape(shape)
    some = list(layouts(len(atoms.sizes), len(shape)))[:: 3 * len(atoms.sizes) - 3]
    exchanged = 0
    for source, target in itertools.product(some, repeat=2):
        found = boxes_between(shape, source, target, atoms.sizes)
        if found is None:
            continue
        exchanged += 1
        old, new = pieces(x, source, atoms), pieces(x, target, atoms)
        room = np.array(new[0].shape) + found.low + found.high
        got = [np.full(room, -1) for _ in new]
        puts = (*found.rounds, *found.own)
        for put in found.rounds:
            senders = put.sender[put.sender >= 0].tolist()
            assert len(set(senders)) == len(senders) and not (put.sender == np.arange(len(put.sender))).any()
        for put, devices in itertools.product(puts, atoms.groups(found.atoms)):
            assert (put.cut_at >= 0).all() and (put.cut_at + put.box <= old[0].shape).all()
            assert (put.put_at >= 0).all() and (put.put_at + put.box <= room).all()
            for receiver, sender in enumerate(put.sender.tolist()):
                if sender >= 0:
                    part = old[devices[sender]][window(put.cut_at[sender], put.box)]
                    got[devices[receiver]][window(put.put_at[receiver], put.box)] = part
        inside = window(found.low, new[0].shape)
        for a, b in zip(got, new):
            np.testing.assert_array_equal(a[inside][b != -2], b[b != -2])
        low = np.array([p.put_at[p.sender >= 0].min(axis=0) for p in puts]).min(axis=0)
        high = np.array([(p.put_at + p.box)[p.sender >= 0].max(axis=0) for p in puts]).max(axis=0)
        assert not low[np.array(found.low) > 0].any()  # no margin wider than the window that needs it
        assert (high == room)[np.array(found.high) > 0].all()
        assert found.elements == sum(math.prod(p.box) for p in found.rounds)
    assert exchanged > len(some)


def test_what_is_said_of_an_exchange_before_it_is_found():
    sizes, said = (2, 3), 0
    for source, target in itertools.product(layouts(2, 2), repeat=2):
        found = fewest_between((12, 18), source, target, sizes)
        if found is not None:
            boxes = boxes_between((12, 18), source, target, sizes)
            assert boxes is not None and found == (len(boxes.rounds), boxes.elements)
            said += 1
    assert said > 20


def cells(low, extents) -> set[tuple[int, ...]]:
    return set(itertools.product(*[range(b, b + n) for b, n in zip(low, extents)]))


def test_boxes_that_are_cut_in_two_are_the_boxes_that_they_were():
    """Whatever is cut, each receiver is sent the same positions of the same parts, and none of them twice."""
    receivers, parts = np.array([0, 1, 1, 2]), np.array([3, 3, 0, 1])
    low = np.array([[0, 0], [2, 1], [4, 0], [5, 5]])
    extents = np.array([[2, 3], [1, 1], [4, 3], [2, 8]])
    found = list(_cut((receivers, parts, low, extents)))
    whole = {(r, p): cells(b, n) for r, p, b, n in zip(*(x.tolist() for x in (receivers, parts, low, extents)))}
    for boxes in found:
        again: dict[tuple[int, int], list] = {}
        for r, p, b, n in zip(*(x.tolist() for x in boxes)):
            again.setdefault((r, p), []).extend(cells(b, n))
        assert {k: set(v) for k, v in again.items()} == whole
        assert all(len(set(v)) == len(v) for v in again.values())
    assert [len(boxes[0]) for boxes in found] == [4, *[4 + n for n in (3, 1, 3, 1)]]


@pytest.mark.parametrize("shape", [(7, 5), (12, 6)])
def test_an_exchange_brings_everybody_what_it_lacks_and_no_more(shape):
    atoms = Atoms(Mesh("m", (("a", 2), ("b", 3))))
    for source, target in itertools.product(list(layouts(2, 2))[::2], list(layouts(2, 2))[1::2]):
        old, new = tiles(shape, source, (), atoms), tiles(shape, target, (), atoms)
        found = exchange(old, new)
        assert found is not None
        held = [cells(b, np.array(h) - b) for b, h in zip(old.low.tolist(), old.high.tolist())]
        wanted = [cells(b, np.array(h) - b) for b, h in zip(new.low.tolist(), new.high.tolist())]
        sent: list[list] = [[] for _ in held]
        for round_ in found.rounds:
            assert len(set(round_.senders.tolist())) == len(round_.senders)
            assert len(set(round_.receivers.tolist())) == len(round_.receivers)
            extents = round_.high - round_.low
            assert (extents > 0).all() and round_.box == tuple(extents.max(axis=0).tolist())
            for s, r, b, n in zip(*(x.tolist() for x in (round_.senders, round_.receivers, round_.low, extents))):
                assert cells(b, n) <= held[s]
                sent[r] += cells(b, n)
        assert [set(x) for x in sent] == [w - h for w, h in zip(wanted, held)]
        assert all(len(set(x)) == len(x) for x in sent)
        assert found.elements >= lacking(old, new) == max(len(w - h) for w, h in zip(wanted, held))
        assert exchange(old, new, len(found.rounds)) is not None
        if found.rounds:
            assert exchange(old, new, 0) is None
