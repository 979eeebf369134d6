"""Matrix factorisations and triangular solves: batch dimensions stay split, and so do the right-hand sides of a solve;
matrices are gathered."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from propagation.attributes import flag
from propagation.program import Op
from propagation.rules.kernels import solves_from_left

from ..decide.candidate import Candidate
from ..decide.factors import PASS, Factors, Splits
from ..layouts.context import Context
from .batch import MATRICES, ahead, by_rule, matrices, split

__all__: list[str] = []


def cholesky(ctx: Context, op: Op) -> Iterator[Candidate | Splits]:
    """Of whole matrices."""
    yield by_rule(ctx, op, "a factorisation needs whole matrices", gathers=True)


def triangular_solve(ctx: Context, op: Op) -> Iterator[Splits]:
    """op(a) x = b, or x op(a) = b."""
    yield _solve(ctx, op, flag(op.attrs["left_side"]))


def trsm(ctx: Context, op: Op) -> Iterator[Candidate | Splits]:
    """LAPACK's name for it."""
    left = solves_from_left(op)
    if left is None or len(op.operands) != 2 or len(op.results) != 1:
        yield by_rule(ctx, op)
    else:
        yield _solve(ctx, op, left)


def stacked(ctx: Context, op: Op) -> Iterator[Splits]:
    """What works on matrices in the last two dimensions of all operands."""
    yield matrices(ctx, op)


def _solve(ctx: Context, op: Op, left: bool) -> Splits:
    factors = _solve_factors(op.results[0].type.shape, left)
    return split(ctx, op, factors, "a triangular solve needs whole systems", gathers=True)


@functools.lru_cache(maxsize=1024)
def _solve_factors(shape: tuple[int, ...], left: bool) -> Factors:
    """The factors of a solve: batch dimensions, and the right-hand sides, which are the columns of b in op(a) x = b and
    the rows of b in x op(a) = b."""
    batch = len(shape) - 2
    every = tuple(range(batch))
    rest = (-1, batch) if left else (batch, -1)
    sizes = (*shape[:batch], shape[batch + rest.index(batch)])
    sides = (*every, *rest)
    return Factors(sizes, (PASS,) * (batch + 1), ((*every, -1, -1), sides), (sides,))


AHEAD = dict.fromkeys(("stablehlo.cholesky", "stablehlo.triangular_solve"), ahead)

CANDIDATES = {
    "stablehlo.cholesky": cholesky,
    "stablehlo.triangular_solve": triangular_solve,
    **{f"stablehlo.custom_call@lapack_{t}trsm_ffi": trsm for t in "sdcz"},
    **{f"stablehlo.custom_call@{name}": stacked for name in MATRICES},
}
