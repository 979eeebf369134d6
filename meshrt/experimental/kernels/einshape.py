"""`einshape`: dimensions of an array split, reordered and merged, as an equation says: `a(bc)->cab`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt import numpy as jnp
from meshrt.core.tracebacks import boundary
from meshrt.core.types import aval_of
from meshrt.experimental.kernels.chips import Tiling
from meshrt.experimental.kernels.grid import current_frame

__all__ = ["einshape"]


@boundary
def einshape(equation: str, x: Any, assert_is_tile_preserving: bool = False, **sizes: int) -> Any:
    """`x` with its dimensions split, reordered and merged.

    Args:
      equation: a letter per dimension on both sides of `->`. Letters in parentheses are one dimension of the array: on
        the left it is split into them, on the right they are merged.
      x: an array.
      assert_is_tile_preserving: inside of a kernel, refuse what takes tiles of a TPU's registers apart, which is slow.
      sizes: of letters that the shape does not tell; in each split dimension one may be left out.

    >>> x = jnp.zeros((10, 20))
    >>> y = einshape("a(bc)->abc", x, b=4)
    >>> y.shape, einshape("abc->(ba)c", y).shape
    ((10, 4, 5), (40, 5))

    Raises:
      ArgumentValueError: an equation that cannot be read, or that does not fit the shape or the sizes.
      UnsupportedError: letters on one side only.
    """
    left, right = _sides(equation)
    known = _sizes(left, aval_of(x).shape, sizes)
    letters, wanted = ["".join(side) for side in (left, right)]
    for name in wanted:
        if name not in known:
            raise errors.ArgumentValueError(f"Unknown dimension {name} in RHS of {equation!r}: the left side has none")
    if sorted(letters) != sorted(wanted) or len(set(letters)) != len(letters):
        raise errors.UnsupportedError(
            f"einshape {equation!r}: Only reordering/splitting/merging supported (no broadcast yet). Write each letter "
            "once on each side"
        )
    split = [known[name] for name in letters]
    order = [letters.index(name) for name in wanted]
    merged = [math.prod(known[name] for name in group) for group in right]

    def change(value: Any) -> Any:
        return value.reshape(split).transpose(order).reshape(merged)

    if assert_is_tile_preserving and current_frame() is not None:
        _need_whole_tiles(equation, aval_of(x).shape, change)
    return change(x if isinstance(x, np.ndarray) else jnp.asarray(x))


def _sides(equation: str) -> tuple[list[str], list[str]]:
    """The groups of letters on both sides."""
    sides = equation.replace(" ", "").split("->")
    if len(sides) != 2:
        raise errors.ArgumentValueError(f"Equation must contain exactly one '->': {equation!r}")
    for side in sides:
        if not re.fullmatch(r"([^()]|\([^()]*\))*", side):
            raise errors.ArgumentValueError(f"Unmatched parenthesis in {side!r}")
    one, two = [[group.strip("()") for group in re.findall(r"\([^()]*\)|.", side)] for side in sides]
    return one, two


def _sizes(groups: Sequence[str], shape: Sequence[int], given: Mapping[str, int]) -> dict[str, int]:
    """The size of each letter of the left side."""
    if len(groups) != len(shape):
        raise errors.ArgumentValueError(
            f"Equation LHS has {len(groups)} groups but input has {len(shape)} dims. LHS: {groups}, shape: {shape}"
        )
    known: dict[str, int] = {}
    for group, size in zip(groups, shape):
        told = {name: given[name] for name in group if name in given and len(group) > 1}
        open_ = [name for name in group if name not in told]
        product = math.prod(told.values())
        if len(open_) > 1:
            raise errors.ArgumentValueError(
                f"Ambiguous split for {group} with size {size}. Unknowns: {open_}. Provide sizes via kwargs."
            )
        if not open_ and product != size:
            raise errors.ArgumentValueError(f"Size mismatch for group {group}: expected {size}, got {product}")
        if open_ and (product == 0 or size % product):
            raise errors.ArgumentValueError(f"Cannot split size {size} with known sizes {product} in group {group}")
        known.update(told, **dict.fromkeys(open_, size // product))
    return known


def _tiles(values: np.ndarray) -> np.ndarray | None:
    """The elements of each tile of an array, by the first; None where tiles do not divide it."""
    rows, columns = Tiling.COMPACT.shape
    if values.ndim < 2 or values.shape[-2] % rows or values.shape[-1] % columns:
        return None
    height, width = values.shape[-2:]
    cut = (
        values.reshape(-1, height // rows, rows, width // columns, columns).swapaxes(-3, -2).reshape(-1, rows * columns)
    )
    return cut[np.argsort(cut[:, 0])]


def _need_whole_tiles(equation: str, shape: tuple[int, ...], change: Callable[[Any], Any]) -> None:
    """Refuses a change that makes other tiles than there were."""
    elements = np.arange(math.prod(shape)).reshape(shape)
    before, after = _tiles(elements), _tiles(change(elements))
    if before is None or after is None or not np.array_equal(before, after):
        raise errors.ArgumentValueError(
            f"Tile preserving check failed for einshape {equation!r} of an array of shape {shape}: tiles of "
            f"{'x'.join(map(str, Tiling.COMPACT.shape))} elements are taken apart. Leave the last two dimensions in "
            "place, or drop assert_is_tile_preserving"
        )
