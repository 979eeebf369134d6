"""How reductions over dimensions are declared: `reducer` makes the primitive of a binary operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt import dtypes, errors
from meshrt.core.basic.kinds import not_accepted
from meshrt.core.completion import batched_asked
from meshrt.core.explicit import Policy, Sums
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import NOT_LINEAR, Primitive
from meshrt.core.trace import trace_to_jaxpr
from meshrt.core.types import ShapedArray
from propagation.asm import i64_array

__all__ = ["lower_reduce", "reduced_shape", "reducer"]


def reduced_shape(shape: Sequence[int], axes: Sequence[int]) -> tuple[int, ...]:
    """`shape` without the dimensions `axes`."""
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def lower_reduce(
    ctx: Any, op: str, x: Any, aval_in: ShapedArray, out: ShapedArray, axes: Sequence[int], init: Any
) -> Any:
    """`stablehlo.reduce` of one operand with a binary scalar operation."""
    start = ctx.scalar(init, aval_in.dtype)
    return ctx.op(
        "stablehlo.reduce", [x, start], out, f"dimensions = {i64_array(axes)}", [ctx.scalar_region(op, aval_in.dtype)]
    )


def reducer(
    name: str,
    op: str,
    identity: Callable[[Any], Any],
    kinds: str,
    *,
    jvp: Callable[..., Any] | None = None,
    transpose: Callable[..., Any] | None = None,
    finite: bool = False,
    explicit: Policy | None = None,
    sums: Sums | None = None,
    of_complex: Callable[[Any, tuple[int, ...]], Any] | None = None,
    shown: Callable[[Eqn], dict[str, Any]] | None = None,
) -> Primitive:
    """Declares a reduction over `axes` with the binary StableHLO operation `op`, whose neutral element for a dtype is
    `identity(dtype)`; `kinds` are the accepted kinds of dtypes (as in `np.dtype.kind`).

    `of_complex(x, axes)` is the same for complex numbers, written with other primitives, where `op` does not take them.
    """
    is_bitwise = "f" not in kinds

    def infer(x: ShapedArray, *, axes: tuple[int, ...]) -> ShapedArray:
        if len(set(axes)) != len(axes) or any(not 0 <= a < x.ndim for a in axes):
            raise errors.ArgumentTypeError(f"{name} got axes {axes} for an operand {x.short()}")
        if isinstance(x.dtype, dtypes.ExtendedDType) or (x.dtype.kind not in kinds and x.dtype.kind != "V"):
            raise errors.ArgumentTypeError(not_accepted(name, x.dtype, kinds))
        return ShapedArray(reduced_shape(x.shape, axes), x.dtype, x.weak_type and not is_bitwise)

    def lower(ctx: Any, eqn: Eqn, x: Any) -> Any:
        aval = eqn.invars[0].aval
        if of_complex is not None and aval.dtype.kind == "c":
            axes = eqn.params["axes"]
            return ctx.jaxpr(trace_to_jaxpr(lambda x: [of_complex(x, axes)], [aval], name).jaxpr, [x])[0]
        return lower_reduce(ctx, op, x, aval, eqn.outvars[0].aval, eqn.params["axes"], identity(aval.dtype))

    def batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, int]:
        d = dims[0]
        axes = tuple(a if a < d else a + 1 for a in params["axes"])
        out = d - sum(a < d for a in axes)
        return primitive.bind(args[0], axes=axes, **batched_asked(params, args[0], d, out)), out

    absent = {} if transpose is not None else dict(NOT_LINEAR)
    if jvp is None:
        absent["jvp"] = "it takes integers or booleans only"
    primitive = Primitive(
        name, infer, lower=lower, jvp=jvp, transpose=transpose, batch=batch, finite=finite or jvp is None,
        absent=absent, explicit=explicit, sums=sums, optional=("out_sharding",), shown=shown,
    )  # fmt: skip
    return primitive
