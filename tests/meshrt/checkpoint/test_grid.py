"""Arrays are cut without gaps and overlaps, and what touches a part is found."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshrt.checkpoint import grid as grids
from meshrt.checkpoint.elements import pack, size_of, unpack


@st.composite
def cuts(draw):
    shape = tuple(draw(st.lists(st.integers(0, 9), max_size=3)))
    grid = grids.even_grid(shape, [draw(st.integers(1, 4)) for _ in shape])
    return shape, grids.finer(grid, shape, draw(st.integers(1, 3)))


def filled(boxes, shape):
    """How often each element is in one of the boxes."""
    out = np.zeros(shape, int)
    for box in boxes:
        out[tuple(slice(*b) for b in box)] += 1
    return out


@given(cuts(), st.data())
def test_pieces_and_tiles_cover_an_array_once_and_parts_find_theirs(cut, data):
    shape, grid = cut
    pieces = list(grids.pieces(grid, shape))
    assert (filled(pieces, shape) == 1).all() and len(pieces) == grids.count_pieces(grid)
    tile = tuple(data.draw(st.integers(1, 4)) for _ in shape)
    for piece in pieces:
        tiles = list(grids.tiles(piece, tile))
        inside = filled(
            [tuple((s - o, e - o) for (s, e), (o, _) in zip(t, piece)) for t in tiles], grids.extents(piece)
        )
        assert (inside == 1).all() and all(grids.inside(t, piece) for t in tiles)
    ends = [sorted([data.draw(st.integers(0, n)), data.draw(st.integers(0, n))]) for n in shape]
    part = tuple((s, e) for s, e in ends)
    found = dict(grids.touching(grid, shape, part))
    assert all(pieces[number] == piece for number, piece in found.items())
    met = [both for piece in found.values() if (both := grids.meet(piece, part)) is not None]
    assert (filled(met, shape) == filled([part], shape)).all()


@given(st.lists(st.integers(0, 40), max_size=3), st.sampled_from([2, 4, 8, 16, 32, 64]))
def test_tiles_are_small_enough_and_not_much_smaller(shape, bits):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grids, "CHECKPOINT_TILE_BYTES", 64)
        tile = grids.tile_shape(shape, bits)
    size = math.prod(tile) * bits
    assert size <= 8 * 64 and all(1 <= t <= max(n, 1) for t, n in zip(tile, shape))
    assert tile == tuple(max(n, 1) for n in shape) or size * 2 ** (len(shape) + 1) > 8 * 64


@given(
    st.integers(0, 33), st.sampled_from(["int2", "uint2", "int4", "uint4", "float4_e2m1fn", "int8", "bool", "<M8[s]"])
)
def test_elements_as_bytes_and_back(count, name):
    value = np.arange(-4, count - 4).astype(np.int64 if name == "<M8[s]" else np.int8).astype(name)
    data = pack(value)
    assert data.dtype == np.uint8 and data.size == size_of(value.shape, value.dtype)
    back = unpack(data.tobytes(), value.shape, value.dtype)
    assert back.dtype == value.dtype and (numbers(back) == numbers(value)).all()


def numbers(value):
    return value.view("i8") if value.dtype.kind == "M" else value.astype(np.float32)
