"""Real Fourier transforms along a split dimension: between the half of the spectrum that `fft._SixStep` computes
and the half that RFFT returns.

The spectrum X of n = n1 n2 real numbers is Hermitian: X[n - k] is the conjugate of X[k]. As a matrix with k = k1 + k2
n1, `_SixStep` computes its rows k1 <= n1 / 2, while RFFT returns the elements k <= n / 2, which are (nearly) the
columns k2 < n2 / 2. The second half of each computed row, conjugated and reversed, holds the columns' missing rows; so
both halves of the rows are stacked, moved by one all-to-all, and put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..halo.exchange import assemble
from ..ir.operations import attributes
from ..ir.program import LocalValue
from ..layout import Dims
from ..layouts.state import Run

if TYPE_CHECKING:
    from .fft import _SixStep

__all__ = ["half_of", "whole_of"]


def half_of(two: _SixStep, x: LocalValue, rows: int) -> LocalValue:
    """The elements k <= n / 2, in the pieces of a split dimension of n / 2 + 1, from the first `rows` rows of the
    spectrum, which are split."""
    ctx, at, half = two.ctx, two.lead, two.n2 // 2
    cut = lambda y, d, start, stop: ctx.realiser.cut(ctx.region, y, at + d, start, stop, ctx.loc)
    low, high = cut(x, 1, 0, half), _conjugate(two, _reverse(two, cut(x, 1, half, 2 * half), 1))
    both = _stack(two, low, high)
    both = ctx.reshard(
        (*two.batch, 2, rows, half), both, _behind(two, two.rows), _behind(two, two.columns), cause="transform"
    )
    low, high = (two.reshape(cut(both, 0, i, i + 1), rows, both.shape[-1]) for i in range(2))
    inner = _reverse(two, cut(high, 0, 1, rows - 1), 0)
    main = two.flat(two.turned(_join(two, low, inner, 0)))
    end = cut(cut(high, 0, 0, 1), 1, high.shape[-1] - 1, high.shape[-1])
    n = two.n1 * two.n2
    runs = [Run(0, 0, 0, n // 2), Run(1, two.p - 1, n // 2, 1)]
    return assemble(ctx, at, two.atoms, [main, two.flat(end)], [n // 2, two.p], n // 2 + 1, runs, None)


def whole_of(two: _SixStep, x: LocalValue, rows: int) -> LocalValue:
    """The first `rows` rows of the spectrum, split, from pieces of the elements k <= n / 2."""
    ctx, at, half = two.ctx, two.lead, two.n2 // 2
    cut = lambda y, d, start, stop: ctx.realiser.cut(ctx.region, y, at + d, start, stop, ctx.loc)
    n, piece = two.n1 * two.n2, two.n1 * two.n2 // 2 // two.p
    main = assemble(ctx, at, two.atoms, [x], [n // 2 + 1], n // 2, [Run(0, 0, 0, n // 2)], None)
    behind = assemble(ctx, at, two.atoms, [x], [n // 2 + 1], two.p, [Run(0, piece, 0, two.p, piece)], None)
    columns = half // two.p
    main = two.reshape(main, columns, two.n1)
    first = _join(two, cut(cut(main, 1, 0, 1), 0, 1, columns), two.reshape(behind, 1, 1), 0)
    high = _join(two, first, _reverse(two, cut(main, 1, rows - 1, two.n1), 1), 1)
    both = _stack(two, two.turned(cut(main, 1, 0, rows)), two.turned(_conjugate(two, high)))
    both = ctx.reshard(
        (*two.batch, 2, rows, half), both, _behind(two, two.columns), _behind(two, two.rows), cause="transform"
    )
    low, high = (two.reshape(cut(both, 0, i, i + 1), both.shape[at + 1], half) for i in range(2))
    return _join(two, low, _reverse(two, high, 1), 1)


def _behind(two: _SixStep, layout: Dims) -> Dims:
    """The layout of a stack of two matrices, by that of each."""
    return (*layout[: two.lead], (), *layout[two.lead :])


def _stack(two: _SixStep, a: LocalValue, b: LocalValue) -> LocalValue:
    first, second = (two.reshape(x, 1, *x.shape[two.lead :]) for x in (a, b))
    return _join(two, first, second, 0)


def _join(two: _SixStep, a: LocalValue, b: LocalValue, d: int) -> LocalValue:
    d += two.lead
    if 0 in (a.shape[d], b.shape[d]):
        return a if b.shape[d] == 0 else b
    shape = (*a.shape[:d], a.shape[d] + b.shape[d], *a.shape[d + 1 :])
    return two.ctx.emit("stablehlo.concatenate", (a, b), shape, a.dtype, attributes("stablehlo.concatenate", d))


def _reverse(two: _SixStep, x: LocalValue, d: int) -> LocalValue:
    return two.ctx.emit("stablehlo.reverse", (x,), x.shape, x.dtype, attributes("stablehlo.reverse", (two.lead + d,)))


def _conjugate(two: _SixStep, x: LocalValue) -> LocalValue:
    ctx, real = two.ctx, two.transform.real
    parts = [ctx.emit(f"stablehlo.{part}", (x,), x.shape, real) for part in ("real", "imag")]
    parts[1] = ctx.emit("stablehlo.negate", (parts[1],), x.shape, real)
    return ctx.emit("stablehlo.complex", parts, x.shape, x.dtype)
