"""Resharding by exact pieces: every device is sent what it lacks, and nothing else.

Where the cheapest sequence of collectives sends more than a device lacks, the tensor can be cut along both layouts at
once, into boxes of one shape (in a dimension of p old and q new pieces, as many as their least common multiple). Each
box that a device does not hold itself comes from one of the holders of that old piece. The messages are dealt into
rounds in which nobody sends or receives twice (a colouring of the edges of a bipartite graph, which takes as many
colours as its largest degree: Kőnig 1916), and each round is one collective permute of a box.

Such a plan is offered where senders can share the work so evenly that it takes no more rounds than the busiest receiver
has boxes to get: then its bytes are the lower bound.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ..heuristics import BOXES_PER_ROUND, EXACT_DEVICES, EXACT_ROUNDS
from ..layout import Dims

__all__ = ["Pieces", "fewest", "involved", "pieces_between", "positions"]


class PieceRound(NamedTuple):
    """One collective permute, by device number over the atoms involved.

    sender    i64[devices]: who sends to each device; -1: it receives nothing
    cut_at    i64[devices, rank]: where each device cuts the box that it sends, in boxes
    put_at    i64[devices, rank]: where each device puts the box that it gets, in boxes
    """

    sender: np.ndarray
    cut_at: np.ndarray
    put_at: np.ndarray


class Pieces(NamedTuple):
    """How boxes travel.

    atoms     the atoms involved, in the order in which `PieceRound` numbers devices
    grid      boxes per piece of the target, by dimension
    units     boxes in the whole tensor, by dimension
    rounds    the permutes
    own       what devices keep, one box of each at a time: `sender` is the device itself, or -1 where it keeps no more
    """

    atoms: tuple[int, ...]
    grid: tuple[int, ...]
    units: tuple[int, ...]
    rounds: tuple[PieceRound, ...]
    own: tuple[PieceRound, ...]


class _Lacking(NamedTuple):
    """Which boxes devices lack: see `Pieces`.

    old     pieces of the source, by dimension
    have    i64[devices, rank]: the piece of the source that each device has
    puts    i64[boxes, rank]: where the boxes of a target's piece are in it
    wanted  i64[devices, boxes, rank]: the piece of the source that each box of a device's piece is of
    cut     the same: where it is there
    kept    bool[devices, boxes]: whether the device has it
    most    how many boxes the device lacks that lacks most: as many permutes as it takes
    """

    atoms: tuple[int, ...]
    grid: tuple[int, ...]
    units: tuple[int, ...]
    old: Sequence[int]
    have: np.ndarray
    puts: np.ndarray
    wanted: np.ndarray
    cut: np.ndarray
    kept: np.ndarray
    most: int


def fewest(source: Dims, target: Dims, sizes: tuple[int, ...]) -> tuple[int, tuple[int, ...]] | None:
    """(permutes, boxes in the whole tensor by dimension) that an exact exchange takes at least; None where there is
    none within the limits. Much quicker than to find it."""
    found = _lacking(source, target, sizes)
    return None if found is None else (found.most, found.units)


@functools.lru_cache(64)
def _lacking(source: Dims, target: Dims, sizes: tuple[int, ...]) -> _Lacking | None:
    atoms = involved(source, target)
    count = math.prod(sizes[a] for a in atoms)
    old = [math.prod(sizes[a] for a in d) for d in source]
    new = [math.prod(sizes[a] for a in d) for d in target]
    units = tuple(math.lcm(p, q) for p, q in zip(old, new))
    grid = tuple(n // q for n, q in zip(units, new))
    if count > EXACT_DEVICES or math.prod(grid) > BOXES_PER_ROUND * EXACT_ROUNDS:
        return None
    position = positions(atoms, sizes, count)
    have = np.stack([position(d) for d in source], axis=1) if source else np.zeros((count, 0), np.int64)
    want = np.stack([position(d) for d in target], axis=1) if target else have
    inside = [n // p for n, p in zip(units, old)]  # boxes per old piece
    puts = np.array(list(itertools.product(*map(range, grid))), np.int64).reshape(-1, len(grid))
    box = want[:, None] * np.array(grid, np.int64) + puts  # i64[devices, boxes, rank], in boxes of the whole tensor
    wanted, cut = np.divmod(box, np.array(inside, np.int64))
    kept = (wanted == have[:, None]).all(axis=2)
    most = int((~kept).sum(axis=1).max())
    if not 0 < most <= EXACT_ROUNDS:
        return None
    return _Lacking(atoms, grid, units, old, have, puts, wanted, cut, kept, most)


@functools.lru_cache(4096)
def pieces_between(source: Dims, target: Dims, sizes: tuple[int, ...]) -> Pieces | None:
    """The exact exchange between two layouts; None where there is none within the limits. `sizes` are of all atoms."""
    found = _lacking(source, target, sizes)
    if found is None:
        return None
    atoms, grid, units, old, have, puts, wanted, cut, kept, most = found
    count = len(have)
    holders: dict[int, list[int]] = {}
    for device, tile in enumerate(_number(have, old).tolist()):
        holders.setdefault(tile, []).append(device)
    receivers, at = np.nonzero(~kept)
    choices = [holders[tile] for tile in _number(wanted[receivers, at], old).tolist()]
    senders = _share(choices, most, count)
    if senders is None:
        return None
    colours = _colour(list(zip(senders, receivers.tolist())), most, count)
    rounds = tuple(_empty(count, len(grid)) for _ in range(most))
    for receiver, put, sender, colour in zip(receivers.tolist(), at.tolist(), senders, colours):
        rounds[colour].sender[receiver] = sender
        rounds[colour].cut_at[sender] = cut[receiver, put]
        rounds[colour].put_at[receiver] = puts[put]
    return Pieces(atoms, grid, units, rounds, _own(kept, cut, puts))


def _own(kept: np.ndarray, cut: np.ndarray, puts: np.ndarray) -> tuple[PieceRound, ...]:
    """What devices keep, one box of each at a time: `kept` are flags by device and box."""
    nth = kept.cumsum(axis=1)
    own = []
    for n in range(1, int(nth[:, -1].max()) + 1):
        devices, at = np.nonzero(kept & (nth == n))
        round_ = _empty(len(kept), puts.shape[1])
        round_.sender[devices] = devices
        round_.cut_at[devices] = cut[devices, at]
        round_.put_at[devices] = puts[at]
        own.append(round_)
    return tuple(own)


def _number(tiles: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """One number for the position of each tile (the last dimension of `tiles`)."""
    out = np.zeros(tiles.shape[:-1], np.int64)
    for d, n in enumerate(counts):
        out = out * n + tiles[..., d]
    return out


def _empty(count: int, rank: int) -> PieceRound:
    zeros = lambda: np.zeros((count, rank), np.int64)
    return PieceRound(np.full(count, -1, np.int64), zeros(), zeros())


def involved(source: Dims, target: Dims) -> tuple[int, ...]:
    """The atoms of either layout, in the order in which they stand there: what is found for devices numbered along
    them does not depend on the atoms' names."""
    return tuple(dict.fromkeys(a for d in (*source, *target) for a in d))


def positions(atoms: tuple[int, ...], sizes: Sequence[int], count: int) -> Callable[[Sequence[int]], np.ndarray]:
    """Each device's position along a list of atoms, devices numbered along `atoms`, the first most major."""
    strides, stride = {}, 1
    for a in reversed(atoms):
        strides[a] = stride
        stride *= sizes[a]
    ids = np.arange(count, dtype=np.int64)

    def position(dim: Sequence[int]) -> np.ndarray:
        out = np.zeros(count, np.int64)
        for a in dim:
            out = out * sizes[a] + ids // strides[a] % sizes[a]
        return out

    return position


def _share(choices: Sequence[Sequence[int]], most: int, count: int) -> list[int] | None:
    """A sender for every message, nobody sending more than `most`; None if that cannot be.

    Least loaded first; a message that finds all its holders busy moves others along an augmenting path.
    """
    load = [0] * count
    chosen = [-1] * len(choices)
    sent: list[set[int]] = [set() for _ in range(count)]  # messages of each sender

    def give(message: int, sender: int) -> None:
        chosen[message] = sender
        sent[sender].add(message)

    for message, holders in enumerate(choices):
        sender = min(holders, key=lambda h: load[h])
        if load[sender] < most:
            give(message, sender)
            load[sender] += 1
            continue
        came: dict[int, tuple[int, int] | None] = dict.fromkeys(holders)  # sender -> (sender before, message to move)
        queue, end = list(holders), None
        while queue and end is None:
            s = queue.pop(0)
            if load[s] < most:
                end = s
                break
            for other in sent[s]:
                for h in choices[other]:
                    if h not in came:
                        came[h] = (s, other)
                        queue.append(h)
        if end is None:
            return None
        load[end] += 1
        while (step := came[end]) is not None:
            before, moved = step
            sent[before].discard(moved)
            give(moved, end)
            end = before
        give(message, end)
    return chosen


def _colour(edges: Sequence[tuple[int, int]], colours: int, count: int) -> list[int]:
    """A colour below `colours` for each edge (sender, receiver) so that no two of a device's sends, and no two of its
    receipts, agree; possible as no device has more than `colours` of either."""
    at = [[-1] * colours for _ in range(2 * count)]  # at[vertex][colour] = edge; receivers come after senders
    free = [(1 << colours) - 1] * (2 * count)  # the colours that a vertex has not, as bits
    out = [-1] * len(edges)
    for e, (s, r) in enumerate(edges):
        u, v = s, count + r
        both = free[u] & free[v]
        if not both:
            a, b = _lowest(free[u]), _lowest(free[v])
            _swap(edges, at, free, out, v, a, b, count)
            both = 1 << a
        colour = _lowest(both)
        at[u][colour] = at[v][colour] = e
        free[u] &= ~(1 << colour)
        free[v] &= ~(1 << colour)
        out[e] = colour
    return out


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _swap(
    edges: Sequence[tuple[int, int]], at: list[list[int]], free: list[int], out: list[int], start: int, a: int, b: int,
    count: int,
) -> None:  # fmt: skip
    """Exchanges the colours along the path of edges a, b, a, ... from `start`, which has a and not b: b is then taken
    there and a free. The path never reaches the vertex on the other side that lacks a."""
    path, vertex, colour = [], start, a
    while (edge := at[vertex][colour]) >= 0:
        path.append(edge)
        sender, receiver = edges[edge][0], count + edges[edge][1]
        vertex = receiver if vertex == sender else sender
        colour = b if colour == a else a
    for edge in path:
        for end in (edges[edge][0], count + edges[edge][1]):
            at[end][out[edge]] = -1
    for edge in path:
        out[edge] = b if out[edge] == a else a
        for end in (edges[edge][0], count + edges[edge][1]):
            at[end][out[edge]] = edge
    for end in (start, vertex):  # inside the path both colours stay taken; it has an edge, as a is taken at its start
        free[end] ^= (1 << a) | (1 << b)
