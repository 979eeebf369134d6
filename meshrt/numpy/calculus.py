"""Functions of samples: interpolation, differences, gradients, integrals."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from meshrt import dtypes, errors, lax
from meshrt.dispatch import at_once
from meshrt.jit import jit
from meshrt.numpy.arrays import asarray, operand_array, promoted, promoted_inexact
from meshrt.numpy.choose import choose
from meshrt.numpy.cumulative import cumsum, diff
from meshrt.numpy.division import floor_divide, remainder
from meshrt.numpy.joining import concatenate
from meshrt.numpy.logic import logical_and
from meshrt.numpy.operands import ShapeError, canonical_axes, canonical_axis
from meshrt.numpy.reductions import sum as total
from meshrt.numpy.selection import clip
from meshrt.numpy.shapes import moveaxis, ravel
from meshrt.numpy.sorting import searchsorted
from meshrt.numpy.ufuncs import absolute

__all__ = ["ediff1d", "gradient", "interp", "trapezoid", "unwrap"]


def interp(x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None) -> Any:
    """Values at ``x`` of the broken line through the points (``xp``, ``fp``), whose ``xp`` must ascend.

    Args:
      left, right: values outside of ``xp``, by default those at its ends; "extrapolate" prolongs the line.
      period: of the function, in units of ``x``; then ``xp`` need not ascend, and nothing lies outside.

    >>> jnp.interp(1.5, jnp.array([1.0, 2.0]), jnp.array([10.0, 20.0]))
    Array(15., dtype=float32)
    """
    x, xp, fp = (operand_array("interp", v, i) for i, v in enumerate((x, xp, fp)))
    if xp.shape != fp.shape or xp.ndim != 1:
        raise ShapeError("xp and fp must be one-dimensional arrays of equal size")
    for side, value in (("left", left), ("right", right)):
        if isinstance(value, str) and value != "extrapolate":
            known = f"the only valid string value of `{side}` is 'extrapolate'"
            raise errors.ArgumentValueError(f"{known}, but got: {value!r}")
    x, xp = promoted_inexact("interp", x, xp)
    (fp,) = promoted_inexact("interp", fp)
    if dtypes.issubdtype(x.dtype, np.complexfloating):
        raise errors.ArgumentValueError("jnp.interp: complex x values not supported.")
    if period is not None:
        x, xp, fp = _wrapped(x, xp, fp, period)
    out = _on_line(x, xp, fp)
    if period is None and not isinstance(left, str):
        out = choose(x < xp[0], fp[0] if left is None else left, out)
    if period is None and not isinstance(right, str):
        out = choose(x > xp[-1], fp[-1] if right is None else right, out)
    return out


def _wrapped(x: Any, xp: Any, fp: Any, period: Any) -> tuple[Any, Any, Any]:
    """Everything within one period, with a point beyond either end."""
    if np.ndim(period) != 0:
        raise errors.ArgumentValueError(f"interp: period must be a scalar; got {period!r}")
    period = absolute(period)
    xp, fp = lax.sort_key_val(remainder(xp, period), fp)
    xp = concatenate([xp[-1:] - period, xp, xp[:1] + period])
    return remainder(x, period), xp, concatenate([fp[-1:], fp, fp[:1]])


def _on_line(x: Any, xp: Any, fp: Any) -> Any:
    i = clip(searchsorted(xp, x, side="right"), 1, xp.shape[0] - 1)
    low, start = xp[i - 1], fp[i - 1]
    width, rise = xp[i] - low, fp[i] - start
    limit = dtypes.finfo(xp.dtype)
    # Two points at one place: the line there is the first of them.
    steep = absolute(width) <= np.spacing(np.asarray(limit.eps, limit.dtype))
    return choose(steep, start, start + (x - low) / choose(steep, 1, width) * rise)


def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    """Differences of neighbours in the flattened array, between ``to_begin`` and ``to_end``.

    Args:
      ary: an array, or what `asarray` makes one of.
      to_end: values to put behind the result.
      to_begin: values to put before the result.

    >>> jnp.ediff1d(jnp.array([1, 4, 9]))
    Array([3, 5], dtype=int32)
    """
    x = ravel(operand_array("ediff1d", ary))
    parts = [lax.sub(x[1:], x[:-1])]
    if to_begin is not None:
        parts.insert(0, ravel(operand_array("ediff1d", to_begin).astype(x.dtype)))
    if to_end is not None:
        parts.append(ravel(operand_array("ediff1d", to_end).astype(x.dtype)))
    return concatenate(parts)


@at_once(1)
def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int | None = None) -> Any:
    """Slopes of the samples ``f`` along ``axis`` (a list of those along all dimensions by default).

    Inside, they are taken over both neighbours, exactly for parabolas; at the ends over one.

    Args:
      varargs: the distance of samples or a vector of their positions, one for all dimensions or one for each.

    >>> jnp.gradient(jnp.array([1.0, 4.0, 9.0]))
    Array([3., 4., 5.], dtype=float32)
    """
    if edge_order is not None:
        raise errors.UnsupportedError("gradient: the argument 'edge_order' is not supported; leave it out")
    x, *spacing = promoted_inexact("gradient", f, *varargs)
    axes = canonical_axes(axis, x.ndim, "gradient")
    if not axes:
        return []
    if any(x.shape[i] < 2 for i in axes):
        raise ShapeError(
            "Shape of array too small to calculate a numerical gradient, at least 2 elements are required. Got shape "
            f"{x.shape} and axes {axes}"
        )
    if len(spacing) not in (0, 1, len(axes)):
        raise errors.ArgumentTypeError(f"gradient: {len(spacing)} spacings for {len(axes)} axes; give none, one or all")
    distances = spacing if len(spacing) == len(axes) else (spacing or [1.0]) * len(axes)
    slopes = [_slope(x, h, i) for h, i in zip(distances, axes)]
    return slopes[0] if len(axes) == 1 else slopes


def _slope(x: Any, h: Any, axis: int) -> Any:
    part = functools.partial(_between, x, axis)
    first, last = part(1, 2) - part(0, 1), part(-1, None) - part(-2, -1)
    if np.ndim(h) == 0:
        inner = (part(2, None) - part(None, -2)) * 0.5 / h
        return concatenate([first / h, inner, last / h], axis)
    if h.ndim != 1 or h.shape[0] != x.shape[axis]:
        raise ShapeError(
            f"gradient: the positions along axis {axis} must be a number or a vector of {x.shape[axis]} elements, got "
            f"shape {h.shape}"
        )
    place = functools.partial(_between, h.reshape(tuple(-1 if i == axis else 1 for i in range(x.ndim))), axis)
    before, after = place(1, -1) - place(0, -2), place(2, None) - place(1, -1)
    both = before + after
    inner = (
        -after / (before * both) * part(0, -2)
        + (after - before) / (before * after) * part(1, -1)
        + before / (after * both) * part(2, None)
    )
    ends = first / (place(1, 2) - place(0, 1)), last / (place(-1, None) - place(-2, -1))
    return concatenate([ends[0], inner, ends[1]], axis)


def _between(x: Any, axis: int, start: int | None, stop: int | None) -> Any:
    return lax.slice_in_dim(x, start, stop, axis=axis)


@functools.partial(jit, static_argnames=("axis",))
def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """The integral of samples ``y`` along ``axis`` by the trapezoidal rule.

    Args:
      x: the positions of samples, a vector or of the shape of ``y``; without it they are ``dx`` apart.

    >>> jnp.trapezoid(jnp.array([0.0, 1.0, 2.0]))
    Array(2., dtype=float32)
    """
    if x is None:
        (y,) = promoted_inexact("trapezoid", operand_array("trapezoid", y))
        widths = asarray(dx)
        if widths.ndim:
            widths = moveaxis(lax.expand_dims(widths, tuple(range(y.ndim - widths.ndim))), axis, -1)
    else:
        y, x = promoted_inexact("trapezoid", y, x)
        widths = diff(x) if x.ndim == 1 else moveaxis(diff(x, axis=axis), axis, -1)
    y = moveaxis(y, axis, -1)
    if widths.ndim == 0 or widths.shape[-1] == 1:
        width = widths if widths.ndim == 0 else widths[..., 0]
        return width * (total(y, -1) - 0.5 * (y[..., 0] + y[..., -1]))
    return 0.5 * total(widths * (y[..., 1:] + y[..., :-1]), -1)


@at_once(1)
def unwrap(p: Any, discont: Any = None, axis: int = -1, period: Any = 2 * np.pi) -> Any:
    """``p`` with multiples of ``period`` added so that no jump along ``axis`` is larger than half of it.

    Args:
      discont: jumps smaller than this stay as they are.

    >>> jnp.unwrap(jnp.array([0.0, 6.0]))
    Array([ 0.      , -0.283185], dtype=float32)
    """
    p, period = promoted("unwrap", operand_array("unwrap", p), period)
    if dtypes.issubdtype(p.dtype, np.complexfloating):
        raise errors.ArgumentValueError(f"jnp.unwrap does not support complex inputs, got dtype {p.dtype}")
    axis = canonical_axis(axis, p.ndim, "unwrap")
    if p.shape[axis] == 0:
        return p
    discont = period / 2 if discont is None else discont
    half = floor_divide(period, 2) if dtypes.issubdtype(p.dtype, np.integer) else period / 2
    jumps = diff(p, axis=axis)
    small = remainder(jumps + half, period) - half
    small = choose(logical_and(small == -half, jumps > 0), half, small)
    corrections = choose(absolute(jumps) < discont, 0, small - jumps)
    first = lax.slice_in_dim(p, 0, 1, axis=axis)
    return concatenate([first, lax.slice_in_dim(p, 1, p.shape[axis], axis=axis) + cumsum(corrections, axis)], axis)
