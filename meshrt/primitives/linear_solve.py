"""The primitive `custom_linear_solve`: the solution x of A x = b by a program that the user wrote.

    custom_linear_solve[jaxprs, const_lengths] matvec consts, vecmat consts, solve consts, transpose_solve consts, b...
        ->  x..., aux...

Only `solve` runs. A tangent solves A dx = db - dA x, with dA x from `matvec`. A cotangent solves the transposed system
by `transpose_solve`, so `matvec` and `vecmat`, and `solve` and `transpose_solve`, change roles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from meshrt import errors
from meshrt.core.basic.pointwise import add_tangents
from meshrt.core.basic.shapes import bring_to_front, instantiate, move_dim, zeros
from meshrt.core.jaxpr import Eqn, Jaxpr
from meshrt.core.primitive import Primitive, is_undefined
from meshrt.core.trace import eval_jaxpr
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.primitives.control_staging import body_effects
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.elementwise import neg_p
from meshrt.transforms.batching import MappedAxis, batch_jaxpr
from meshrt.transforms.jvp import jvp_flat

# What `meshrt.lax` publishes beside primitives is in `meshrt/lax/solves.py`.
__all__: list[str] = []


class LinearSolve(NamedTuple):
    """Something for each of the four programs: its Jaxpr, its constants, how many it has."""

    matvec: Any
    vecmat: Any
    solve: Any
    transpose_solve: Any

    def transposed(self) -> LinearSolve:
        """That of the transposed system."""
        return LinearSolve(self.vecmat, self.matvec, self.transpose_solve, self.solve)


def _split(values: Sequence[Any], lengths: LinearSolve) -> tuple[LinearSolve, list[Any]]:
    """(the constants of each program, the right-hand side)."""
    rest, parts = list(values), []
    for n in lengths:
        parts.append(rest[:n])
        rest = rest[n:]
    return LinearSolve(*parts), rest


def _flat(consts: LinearSolve) -> list[Any]:
    return [c for part in consts for c in part]


def _evaluate(*args: Any, jaxprs: LinearSolve, const_lengths: LinearSolve) -> list[Any]:
    consts, b = _split(args, const_lengths)
    outs = eval_jaxpr(jaxprs.solve, (), [*consts.solve, *b])
    solved = [convert_element_type(x, aval_of(x).dtype, aval_of(y).weak_type) for x, y in zip(outs, b)]
    return [*solved, *outs[len(b) :]]


def _lower(ctx: LoweringContext, eqn: Eqn, *operands: Any) -> Any:
    consts, b = _split(operands, eqn.params["const_lengths"])
    return ctx.jaxpr(eqn.params["jaxprs"].solve, [*consts.solve, *b])


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[list[Any], list[Any]]:
    outs = linear_solve_p.bind(*primals, **params)
    consts, b = _split(primals, params["const_lengths"])
    tangent_consts, right = _split(tangents, params["const_lengths"])
    count = len(b)
    if any(t is not None for t in tangent_consts.matvec):
        multiply = lambda *args: eval_jaxpr(params["jaxprs"].matvec, (), args)
        moved = [*tangent_consts.matvec, *[None] * count]
        _, changes = jvp_flat(multiply, [*consts.matvec, *outs[:count]], moved)
        right = [add_tangents(t, None if c is None else neg_p.bind(c)) for t, c in zip(right, changes)]
    if all(t is None for t in right):
        return outs, [None] * len(outs)
    right = [instantiate(t, x) for t, x in zip(right, b)]
    solved = linear_solve_p.bind(*_flat(consts), *right, **params)
    return outs, [*solved[:count], *[None] * (len(outs) - count)]


def _transpose(cts: Sequence[Any], *operands: Any, jaxprs: LinearSolve, const_lengths: LinearSolve) -> list[Any]:
    if jaxprs.transpose_solve is None:
        raise errors.ArgumentTypeError(
            "transpose_solve required for backwards mode automatic differentiation of custom_linear_solve; give it, or "
            "symmetric=True"
        )
    consts, b = _split(operands, const_lengths)
    if any(is_undefined(c) for c in _flat(consts)) or not all(map(is_undefined, b)):
        raise errors.UnsupportedError(
            "custom_linear_solve can be transposed with respect to its whole right-hand side only; what else it "
            "depends on must not be linear"
        )
    count = len(b)
    if any(c is not None for c in cts[count:]):
        raise errors.UnsupportedError("the auxiliary results of custom_linear_solve have no derivative")
    right = [zeros(x.aval) if c is None else c for c, x in zip(cts, b)]
    pulled = linear_solve_p.bind(
        *_flat(consts.transposed()), *right, jaxprs=jaxprs.transposed(), const_lengths=const_lengths.transposed()
    )
    return [*[None] * sum(const_lengths), *pulled[:count]]


def _batch(axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    """A solve with all of x and b mapped: a part that is not becomes so through any of the four programs."""
    consts, b = _split(args, params["const_lengths"])
    const_dims, b_dims = _split(dims, params["const_lengths"])
    jaxprs: list[Jaxpr | None] = []
    values: list[list[Any]] = []
    for jaxpr, xs, ds in zip(params["jaxprs"], consts, const_dims):
        if jaxpr is None:
            jaxprs.append(None)
            values.append([])
            continue
        batched = (*[d is not None for d in ds], *[True] * len(b))
        closed, _ = batch_jaxpr(jaxpr, axis, batched, True)
        jaxprs.append(closed.jaxpr)
        values.append([*closed.consts, *[x if d is None else move_dim(x, d, 0) for x, d in zip(xs, ds)]])
    right = [bring_to_front(axis.extent, x, d) for x, d in zip(b, b_dims)]
    outs = linear_solve_p.bind(
        *_flat(LinearSolve(*values)), *right, jaxprs=LinearSolve(*jaxprs), const_lengths=LinearSolve(*map(len, values))
    )
    return outs, [0] * len(outs)


def _varies(params: dict[str, Any]) -> list[frozenset[Any]]:
    """As the arguments of the programs do, which were staged at the types of the operands."""
    axes, lengths = [], params["const_lengths"]
    for jaxpr, n in zip(params["jaxprs"], lengths):
        axes += [] if jaxpr is None else [a.vma for a in jaxpr.in_avals[:n]]
    return axes + [a.vma for a in params["jaxprs"].solve.in_avals[lengths.solve :]]


def _infer(*avals: ShapedArray, jaxprs: LinearSolve, const_lengths: LinearSolve) -> list[ShapedArray]:
    """Solutions are as weakly typed as the right-hand side, whatever `solve` makes of them."""
    outs = jaxprs.solve.out_avals
    b = avals[sum(const_lengths) :]
    return [*[x.update(weak_type=y.weak_type) for x, y in zip(outs, b)], *outs[len(b) :]]


linear_solve_p = Primitive(
    "custom_linear_solve", _infer, lower=_lower, jvp=_jvp, transpose=_transpose, batch=_batch, batch_axis=True,
    impl=_evaluate, multiple_results=True, cache_types=False, varies=_varies,
    effects=lambda *avals, jaxprs, const_lengths: body_effects("custom_linear_solve", jaxprs.solve),
)  # fmt: skip
