"""From the rows of a real tensor's spectrum to the half of it that is asked for, and back.

A spectrum of n = n1 n2 numbers is a matrix of k = k1 + k2 n1. That of a real tensor is Hermitian, X[n - k] being the
conjugate of X[k], so that all of it follows from the rows k1 <= n1 / 2, and also from the numbers k <= n / 2. The
second half of each of the rows is, turned around, what the columns k2 < n2 / 2 lack.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..emit import Ref
from .intervals import Run, assemble

if TYPE_CHECKING:
    from .fourier import _Two

__all__ = ["half_of", "whole_of"]


def half_of(two: _Two, x: Ref, rows: int) -> Ref:
    """The numbers k <= n / 2, of pieces as large as a dimension of n / 2 + 1 has, from the `rows` first rows, which
    are split."""
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


def whole_of(two: _Two, x: Ref, rows: int) -> Ref:
    """The `rows` first rows of the spectrum, split, from a piece of the numbers k <= n / 2."""
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


def _behind(two: _Two, layout):
    """A layout of matrices as one of pairs of matrices."""
    return (*layout[: two.lead], (), *layout[two.lead :])


def _stack(two: _Two, a: Ref, b: Ref) -> Ref:
    pair = [two.reshape(x, 1, *x.shape[two.lead :]) for x in (a, b)]
    return _join(two, *pair, 0)


def _join(two: _Two, a: Ref, b: Ref, d: int) -> Ref:
    d += two.lead
    if 0 in (a.shape[d], b.shape[d]):
        return a if b.shape[d] == 0 else b
    shape = (*a.shape[:d], a.shape[d] + b.shape[d], *a.shape[d + 1 :])
    return two.ctx.emit("stablehlo.concatenate", (a, b), shape, a.dtype, f"dimension = {d} : i64")


def _reverse(two: _Two, x: Ref, d: int) -> Ref:
    return two.ctx.emit("stablehlo.reverse", (x,), x.shape, x.dtype, f"dimensions = array<i64: {two.lead + d}>")


def _conjugate(two: _Two, x: Ref) -> Ref:
    ctx, real = two.ctx, two.transform.real
    parts = [ctx.emit(f"stablehlo.{part}", (x,), x.shape, real) for part in ("real", "imag")]
    parts[1] = ctx.emit("stablehlo.negate", (parts[1],), x.shape, real)
    return ctx.emit("stablehlo.complex", parts, x.shape, x.dtype)
