"""Instructions of GPUs that kernels write themselves.

r... = elementwise_inline_asm[asm constraints pack out_types] x...
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from meshrt import errors
from meshrt.core.primitive import Primitive
from meshrt.core.tracebacks import boundary
from meshrt.core.types import ShapedArray

__all__ = ["elementwise_inline_asm"]


@boundary
def elementwise_inline_asm(
    asm: str, *, args: Sequence[Any], constraints: str, pack: int, result_shape_dtypes: Sequence[Any]
) -> list[Any]:
    """Applies instructions of PTX to each element, in a kernel for GPUs.

    Args:
      asm: the instructions; `$0`, `$1`, ... are the registers of the results, then of the operands.
      args: arrays of one shape.
      constraints: what registers are used, as LLVM writes it: "=r,r" for one result and one operand of 32 bits.
      pack: how many elements of each array the instructions take at a time.
      result_shape_dtypes: ShapeDtypeStructs, one for each result.

    >>> import meshrt, numpy as np
    >>> from meshrt.experimental import pallas as pl
    >>> from meshrt.experimental.pallas import triton as plgpu
    >>> def negate(x_ref, o_ref):
    ...     (o_ref[...],) = plgpu.elementwise_inline_asm(
    ...         "neg.s32 $0, $1;", args=[x_ref[...]], constraints="=r,r", pack=1,
    ...         result_shape_dtypes=[meshrt.ShapeDtypeStruct((8,), np.int32)])
    >>> x = meshrt.ShapeDtypeStruct((8,), np.int32)
    >>> lowered = meshrt.jit(pl.pallas_call(negate, x)).trace(x).lower(lowering_platforms=("cuda",))
    >>> "__gpu$xla.gpu.triton" in lowered.as_text()
    True

    Raises:
      ArgumentValueError: arguments of different shapes, or a `pack` below one.
      UnsupportedError: when it is compiled for something else than a GPU.
    """
    out_types = tuple([ShapedArray(tuple(s.shape), s.dtype) for s in result_shape_dtypes])
    return list(
        elementwise_inline_asm_p.bind(*args, asm=asm, constraints=constraints, pack=int(pack), out_types=out_types)
    )


def _infer(*avals: Any, asm: str, constraints: str, pack: int, out_types: tuple[ShapedArray, ...]) -> list[Any]:
    shapes = {a.shape for a in avals} | {o.shape for o in out_types}
    if len(shapes) > 1:
        raise errors.ArgumentValueError(
            "All arguments of elementwise_inline_asm must have the same shape, and its results too; got "
            f"{', '.join(a.short() for a in avals)} for {', '.join(o.short() for o in out_types)}"
        )
    if pack < 1:
        raise errors.ArgumentValueError(f"elementwise_inline_asm: pack is how many elements at a time, got {pack}")
    return list(out_types)


def _refuse(*args: Any, **params: Any) -> NoReturn:
    raise errors.UnsupportedError(
        "elementwise_inline_asm is of instructions for GPUs: neither CPUs nor TPUs nor interpret=True have them. Write "
        "it by array operations there, chosen by lax.platform_dependent outside of the kernel"
    )


elementwise_inline_asm_p = Primitive(
    "elementwise_inline_asm", _infer, multiple_results=True, lower=lambda ctx, eqn, *xs: _refuse(),
    absent=dict.fromkeys(("jvp", "transpose", "batch"), "instructions are only known to the GPU's assembler"),
)  # fmt: skip
