"""Interpolation: names and signatures are those of ``jax.scipy.interpolate``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

import meshrt.numpy as jnp
from meshrt import dtypes, errors
from meshrt.numpy.names import missing as _missing
from meshrt.numpy.operands import operand
from meshrt.scipy.operands import separate
from meshrt.tree_util import register_pytree_node_class

__all__ = ["RegularGridInterpolator"]
__getattr__ = _missing(__name__, __all__)

_METHODS = ("linear", "nearest")


@register_pytree_node_class
class RegularGridInterpolator:
    """Interpolates values that are known on a grid, at any points: `RegularGridInterpolator(points, values)(xi)`.

    Args:
      points: one increasing array [m_i] per dimension of the grid.
      values: [m_1, ..., m_n, ...], of floating or complex dtype (integers become floating).
      method: "linear", or "nearest" for the nearest point of the grid.
      bounds_error: must be False: values are not looked at.
      fill_value: the value outside the grid, NaN by default; None to extrapolate.

    A call takes points [..., n], or a tuple of n arrays that broadcast, and gives values [..., *values.shape[n:]].

    Raises:
      ArgumentValueError: an unknown method, more points than dimensions of the values, a fill_value of another kind,
        points of another dimension.
      UnsupportedError: bounds_error.

    >>> import meshrt.numpy as mnp, meshrt.scipy as msp
    >>> grid = mnp.array([0.0, 1.0, 3.0])
    >>> msp.interpolate.RegularGridInterpolator((grid,), grid**2)(mnp.array([[0.5], [2.0], [4.0]]))
    Array([0.5, 5. , nan], dtype=float32)
    """

    def __init__(
        self,
        points: Sequence[Any],
        values: Any,
        method: str = "linear",
        bounds_error: bool = False,
        fill_value: Any = np.nan,
    ):
        self.method = _known(method)
        self.bounds_error = bounds_error
        if bounds_error:
            raise errors.UnsupportedError("RegularGridInterpolator: `bounds_error` takes no effect under JIT")
        (self.values,) = separate("RegularGridInterpolator", values)
        if len(points) > self.values.ndim:
            raise errors.ArgumentValueError(
                f"there are {len(points)} point arrays, but values has {self.values.ndim} dimensions"
            )
        if fill_value is not None:
            fill_value = jnp.asarray(operand("RegularGridInterpolator", fill_value))
            if fill_value.dtype.kind == "c" and self.values.dtype.kind != "c":
                raise errors.ArgumentValueError(
                    "fill_value must be either 'None' or of a type compatible with values, got "
                    f"{fill_value.dtype} for values of {self.values.dtype}"
                )
        self.fill_value = fill_value
        self.grid = tuple(jnp.asarray(operand("RegularGridInterpolator", p, i)) for i, p in enumerate(points))

    def tree_flatten(self) -> tuple[Any, Any]:
        return (self.grid, self.values, self.fill_value), (self.method, self.bounds_error)

    @classmethod
    def tree_unflatten(cls, choices: Any, children: Any) -> RegularGridInterpolator:
        new = object.__new__(cls)
        new.grid, new.values, new.fill_value = children
        new.method, new.bounds_error = choices
        return new

    def __call__(self, xi: Any, method: str | None = None) -> Any:
        method = _known(self.method if method is None else method)
        rank = len(self.grid)
        points = _points(xi, rank)
        if points.shape[-1] != rank:
            raise errors.ArgumentValueError(
                f"the requested sample points xi have dimension {points.shape[-1]}, but this RegularGridInterpolator "
                f"has dimension {rank}"
            )
        flat = points.reshape(-1, rank)
        cells = [_cell(flat[:, i], g) for i, g in enumerate(self.grid)]
        out = self._linear(cells) if method == "linear" else self._nearest(cells)
        if self.fill_value is not None:
            outside = jnp.zeros(flat.shape[:1], bool)
            for i, g in enumerate(self.grid):
                outside = outside | (flat[:, i] < g[0]) | (flat[:, i] > g[-1])
            out = jnp.where(outside.reshape(-1, *[1] * (out.ndim - 1)), self.fill_value, out)
        return out.reshape(points.shape[:-1] + self.values.shape[rank:])

    def _linear(self, cells: list[tuple[Any, Any]]) -> Any:
        trailing = (slice(None),) + (None,) * (self.values.ndim - len(cells))
        total: Any = 0.0
        for corner in itertools.product((0, 1), repeat=len(cells)):
            weight: Any = 1.0
            for upper, (_, share) in zip(corner, cells):
                weight = weight * (share if upper else 1 - share)
            total = total + self.values[tuple(i + c for c, (i, _) in zip(corner, cells))] * weight[trailing]
        return total

    def _nearest(self, cells: list[tuple[Any, Any]]) -> Any:
        return self.values[tuple(jnp.where(share <= 0.5, i, i + 1) for i, share in cells)]


def _known(method: str) -> str:
    if method not in _METHODS:
        raise errors.ArgumentValueError(f"method {method!r} is not defined; use one of {', '.join(_METHODS)}")
    return method


def _points(xi: Any, rank: int) -> Any:
    """Points as one array [..., rank]."""
    if isinstance(xi, tuple) and len(xi) == 1:
        (xi,) = xi
    if isinstance(xi, tuple):
        arrays = jnp.broadcast_arrays(*(jnp.asarray(x) for x in xi))
        return jnp.stack([a.astype(dtypes.result_type(*arrays, float)) for a in arrays], -1)
    points = jnp.asarray(operand("RegularGridInterpolator", xi))
    return points.reshape(-1, rank) if points.ndim == 1 else points


def _cell(x: Any, grid: Any) -> tuple[Any, Any]:
    """The cell of the grid that x lies in, the last one and the first one reaching to infinity, and how far in it."""
    index = jnp.clip(jnp.searchsorted(grid, x) - 1, 0, max(0, grid.size - 2))
    return index, (x - grid[index]) / (grid[index + 1] - grid[index])
