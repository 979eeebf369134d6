"""Primitives that stand for programs of others, under the names and parameters by which JAX knows them.

The functions of `lax` write the programs themselves (`lax.tile` is a broadcast and a reshape), so Jaxprs of ours hold
those. Who binds such a primitive by its name gets one equation, all of whose rules follow from its program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.pointwise import nary
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.core.trace import trace_to_jaxpr
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.composed import write_composed
from meshrt.lowering.context import LoweringContext
from meshrt.primitives import arrangement, functions, reshape, sort, wide_products
from meshrt.primitives import elementwise as ew
from meshrt.primitives.written import PROGRAMS
from meshrt.transforms.batching import MappedAxis, batch_flat
from meshrt.transforms.jvp import jvp_flat

__all__ = ["dtype", "stage"]


def composition(name: str, program: Callable[..., Any], several: bool = False) -> Primitive:
    """A primitive that computes `program(*operands, **params)`; `several` results are a sequence."""

    def flat(params: dict[str, Any]) -> Callable[..., Sequence[Any]]:
        return lambda *xs: list(program(*xs, **params)) if several else [program(*xs, **params)]

    def result(outs: Sequence[Any]) -> Any:
        return outs if several else outs[0]

    def infer(*avals: ShapedArray, **params: Any) -> Any:
        return result(trace_to_jaxpr(flat(params), avals, name).out_avals)

    def lower(ctx: LoweringContext, eqn: Eqn, *operands: Any) -> Any:
        return result(write_composed(ctx, eqn, operands, [v.aval for v in eqn.invars], flat(eqn.params)))

    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> Any:
        outs, moved = jvp_flat(flat(params), primals, tangents)
        return result(outs), result(moved)

    def batch(axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> Any:
        outs, out_dims = batch_flat(flat(params), axis, args, dims)
        return result(outs), result(out_dims)

    primitive = Primitive(
        name, infer, lower=lower, jvp=jvp, batch=batch, batch_axis=True, multiple_results=several, typed=True,
        absent={"transpose": "its derivative is written in the primitives of its program"},
    )  # fmt: skip
    PROGRAMS[primitive] = program
    return primitive


def _approx_top_k(
    operand: Any,
    *,
    k: int,
    reduction_dimension: int,
    recall_target: float,
    is_max_k: bool,
    reduction_input_size_override: int,
    aggregate_to_topk: bool,
) -> Any:
    function = sort.approx_max_k if is_max_k else sort.approx_min_k
    return function(operand, k, reduction_dimension, recall_target, reduction_input_size_override, aggregate_to_topk)


def _conj(x: Any, *, input_dtype: Any = None, _input_dtype: Any = None) -> Any:
    return functions.conj(x)


tile_p = composition("tile", lambda x, *, reps: arrangement.tile(x, reps))
stack_p = composition("stack", lambda *xs, axis: arrangement.stack(xs, axis))
unstack_p = composition("unstack", lambda x, *, axis: arrangement.unstack(x, axis), several=True)
squeeze_p = composition("squeeze", lambda x, *, dimensions: reshape.squeeze(x, dimensions))
mulhi_p = composition("mulhi", wide_products.mulhi)
approx_top_k_p = composition("approx_top_k", _approx_top_k, several=True)
conj_p = composition("conj", _conj)

square_p: Primitive = nary(
    "square", "", 1, kinds="biufc", derivatives=[lambda t, o, x: ew.mul_p.bind(t, ew.mul(2, x))],
    write=lambda ctx, eqn, refs: ctx.op("stablehlo.multiply", [refs[0], refs[0]], eqn.outvars[0].aval), cheap=True,
    finite=True,
)  # fmt: skip

# ---------------------------------------------------------------------------------------------------------------------
# The total order: -NaN < -inf < ... < -0 < 0 < ... < inf < NaN


def _total(name: str, direction: str) -> Primitive:
    def attrs(aval: ShapedArray) -> str:
        unsigned = aval.dtype == np.bool_ or dtypes.issubdtype(aval.dtype, np.unsignedinteger)
        kind = "UNSIGNED" if unsigned else "SIGNED"
        kind = "TOTALORDER" if dtypes.issubdtype(aval.dtype, np.floating) else kind
        return (
            f"comparison_direction = #stablehlo<comparison_direction {direction}>, "
            f"compare_type = #stablehlo<comparison_type {kind}>"
        )

    return nary(
        name, "stablehlo.compare", 2, kinds="biuf", out_dtype=lambda x, y: np.dtype(bool), attrs=attrs, cheap=True
    )


eq_to_p = _total("eq_to", "EQ")
le_to_p = _total("le_to", "LE")
lt_to_p = _total("lt_to", "LT")

# ---------------------------------------------------------------------------------------------------------------------

stage_p: Primitive = nary(
    "stage", "", 1, write=lambda ctx, eqn, refs: refs[0], derivatives=[lambda t, o, x: t],
    transpose=lambda ct, x: [ct], cheap=True, finite=True,
)  # fmt: skip


def stage(x: Any, /) -> Any:
    """The identity, which makes a Python scalar or NumPy array a value of the program being traced, or an array.

    >>> from meshrt import lax
    >>> lax.stage(2.0).dtype
    dtype('float32')
    """
    return stage_p.bind(x)


def dtype(x: Any) -> Any:
    """The dtype that an array, or a scalar as an operand of `lax`, has; that of arrays of a type or dtype.

    >>> from meshrt import lax
    >>> lax.dtype(2.0), lax.dtype(int), lax.dtype("bfloat16")
    (dtype('float32'), dtype('int32'), dtype(bfloat16))

    Raises ValueError for None.
    """
    if x is None:
        raise errors.ArgumentValueError("Invalid argument to dtype: None. Pass an array, a scalar or a dtype")
    if isinstance(x, str | type | np.dtype):
        return dtypes.check_user_dtype(x, "dtype")
    return aval_of(x).dtype
