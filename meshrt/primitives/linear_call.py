"""`linear_call`: a linear function and the transpose that the user wrote for it.

    linear_call[jaxpr, back, known] constants and residuals..., linear operands...  ->  results...

The transpose of an application is an application of `back`, whose transpose is `jaxpr` again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors, tree_util
from meshrt.core.basic.shapes import instantiate, zeros
from meshrt.core.basic.varying import declared
from meshrt.core.jaxpr import Eqn, Jaxpr
from meshrt.core.primitive import Primitive, is_undefined
from meshrt.core.trace import eval_jaxpr, trace_to_jaxpr
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.transforms.tools import hoist_consts

__all__: list[str] = []

# A program and its constants, which are leading operands.
Program = tuple[Jaxpr, Sequence[Any]]


def _lower(ctx: LoweringContext, eqn: Eqn, *operands: Any) -> Any:
    return ctx.jaxpr(eqn.params["jaxpr"], operands)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    known = params["consts"] + params["residuals"]
    if any(t is not None for t in tangents[:known]):
        raise errors.UnsupportedError(
            "linear_call has no derivative with respect to its residuals; write what depends on them outside of it"
        )
    outs = linear_call_p.bind(*primals, **params)
    moved = [instantiate(t, x) for t, x in zip(tangents[known:], primals[known:])]
    return outs, linear_call_p.bind(*primals[:known], *moved, **params)


def _transpose(
    cts: Sequence[Any], *operands: Any, jaxpr: Jaxpr, back: Callable[[], Program], consts: int, residuals: int
) -> list[Any]:
    known = consts + residuals
    if any(is_undefined(x) for x in operands[:known]) or not all(map(is_undefined, operands[known:])):
        raise errors.UnsupportedError("linear_call can be transposed with respect to all of its linear arguments only")
    transposed, its_consts = back()
    right = [zeros(a) if c is None else c for c, a in zip(cts, jaxpr.out_avals)]
    forward = (jaxpr, operands[:consts])
    pulled = linear_call_p.bind(
        *its_consts, *operands[consts:known], *right, jaxpr=transposed, back=lambda: forward,
        consts=len(its_consts), residuals=residuals,
    )  # fmt: skip
    return [*[None] * known, *pulled]


linear_call_p = Primitive(
    "linear_call", lambda *avals, jaxpr, back, consts, residuals: jaxpr.out_avals, lower=_lower, jvp=_jvp,
    transpose=_transpose, multiple_results=True, cache_types=False,
    impl=lambda *args, jaxpr, back, consts, residuals: eval_jaxpr(jaxpr, (), args),
    effects=lambda *avals, jaxpr, **params: jaxpr.effects,
    varies=lambda params: declared(params["jaxpr"].in_avals),
    absent={"batch": "its transpose is known for single elements; map inside of both functions"},
)  # fmt: skip


def linear_call(
    fun: Callable[[Any, Any], Any], fun_transpose: Callable[[Any, Any], Any], residual_args: Any, linear_args: Any
) -> Any:
    """`fun(residual_args, linear_args)`, a function that is linear in the second pytree, with a transpose of its own.

    `fun_transpose(residual_args, cotangents)` takes what is like fun's result and returns what is like `linear_args`.

    >>> import meshrt
    >>> from meshrt.custom_derivatives import linear_call
    >>> scaled = lambda x: linear_call(lambda r, x: x / r, lambda r, ct: ct / r, 4.0, x)
    >>> float(meshrt.grad(scaled)(2.0))
    0.25

    Raises:
      ArgumentTypeError: the transpose gives another structure than `linear_args`.
      UnsupportedError: a derivative with respect to `residual_args` is asked for.
    """
    residuals, residual_tree = tree_util.tree_flatten(residual_args)
    linear, linear_tree = tree_util.tree_flatten(linear_args)
    known = [aval_of(x) for x in residuals]

    def staged(f: Callable[[Any, Any], Any], tree: Any, avals: Sequence[ShapedArray]) -> tuple[Program, Any]:
        out_tree: Any = None

        def flat(*xs: Any) -> list[Any]:
            nonlocal out_tree
            rest = tree.unflatten(xs[len(known) :])
            outs, out_tree = tree_util.tree_flatten(f(residual_tree.unflatten(xs[: len(known)]), rest))
            return outs

        closed = hoist_consts(trace_to_jaxpr(flat, [*known, *avals], "linear_call"))
        return (closed.jaxpr, closed.consts), out_tree

    (jaxpr, consts), out_tree = staged(fun, linear_tree, [aval_of(x) for x in linear])

    def back() -> Program:
        program, found = staged(fun_transpose, out_tree, jaxpr.out_avals)
        if found != linear_tree:
            raise errors.ArgumentTypeError(
                "transpose output pytree structure must match that of linear inputs, got output structure "
                f"{found} and input structure {linear_tree}."
            )
        return program

    outs = linear_call_p.bind(
        *consts, *residuals, *linear, jaxpr=jaxpr, back=back, consts=len(consts), residuals=len(residuals)
    )
    return tree_util.tree_unflatten(out_tree, outs)
