"""The call of a kernel in a program for NVIDIA's GPUs: a custom call that carries the Triton module and its launch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from meshrt import errors
from meshrt.core.jaxpr import Eqn, Jaxpr, subjaxprs
from meshrt.core.types import ShapedArray
from meshrt.experimental.kernels.mapping import GridMapping
from meshrt.experimental.kernels.mosaic.call import symbol
from meshrt.experimental.kernels.params import (
    GridDimensionSemantics,
    TpuCompilerParams,
    TritonCompilerParams,
    for_gpus,
    for_tpus,
)
from meshrt.experimental.kernels.triton.filled import filled
from meshrt.experimental.kernels.triton.module import kernel_text
from meshrt.lowering.context import LoweringContext
from meshrt.primitives.ffi import Target, whole_rule, write_call
from propagation.quoting import quote

__all__ = ["lower"]

TARGET = "__gpu$xla.gpu.triton"

# Chosen: what Triton takes where nobody says anything; and how many elements of an array four warps have at most, 128
# in each thread. Of larger arrays more warps take their parts: rows of 262144 elements took the compiler 91 s by four.
_WARPS, _STAGES = 4, 3
_ELEMENTS = 16 * 1024


def lower(ctx: LoweringContext, eqn: Eqn, operands: Sequence[Any]) -> Sequence[Any]:
    """The back end for "cuda".

    Raises:
      UnsupportedError: something that GPUs or Triton lack, with operation and line.
      ArgumentValueError: compiler parameters do not fit.
    """
    params, mapping = eqn.params, eqn.params["grid_mapping"]
    asked = _compiler_params(params["compiler_params"], params["jaxpr"])
    name = symbol(params["name"])
    sequential = _sequential(params["compiler_params"], mapping)
    text, launch = kernel_text(name, params["jaxpr"], mapping, sequential, asked.turns)
    ins, outs = [a.aval for a in eqn.invars], [v.aval for v in eqn.outvars]
    target = Target(
        TARGET, _config(name, text, launch, asked), 4, None, None, bool(eqn.effects),
        tuple(params["input_output_aliases"]), None,
    )  # fmt: skip
    in_layouts, out_layouts = ([tuple(range(a.ndim - 1, -1, -1)) for a in avals] for avals in (ins, outs))
    return write_call(
        ctx,
        operands,
        outs,
        target,
        in_layouts,
        out_layouts,
        whole_rule([a.shape for a in ins], [a.shape for a in outs]),
    )


def _sequential(given: Any, mapping: GridMapping) -> tuple[int, ...]:
    """The dimensions of the grid whose steps one program runs one after the other: those that are said to be
    `arbitrary`; with scratch memory, which steps hand on, all that are not said to be parallel."""
    said = (for_tpus(given) or TpuCompilerParams()).dimension_semantics
    if said is None:
        return mapping.kernel_dims if mapping.scratch_avals else ()
    names = [s.value if isinstance(s, GridDimensionSemantics) else s for s in said]
    return tuple([d for d, name in zip(mapping.kernel_dims, names) if name == GridDimensionSemantics.ARBITRARY.value])


def _warps(jaxpr: Jaxpr) -> int:
    """How many warps share the largest array that a kernel computes."""
    return min(32, _WARPS * max(1, _largest(jaxpr) // _ELEMENTS))


def _largest(jaxpr: Jaxpr) -> int:
    """The elements of the largest array among a program's values."""
    made = [v.aval for e in jaxpr.eqns for v in e.outvars]
    inner = [_largest(j) for e in jaxpr.eqns for j in subjaxprs(e.params)]
    return max([*inner, *[math.prod(filled(a.shape)) for a in made if type(a) is ShapedArray]], default=1)


def _compiler_params(given: Any, jaxpr: Jaxpr) -> TritonCompilerParams:
    """The parameters for this platform among those that a call was given; those left open are chosen."""
    given = for_gpus(given)
    warps = _warps(jaxpr) if given.num_warps is None else given.num_warps
    stages = _STAGES if given.num_stages is None else given.num_stages
    if warps not in (1, 2, 4, 8, 16, 32) or stages < 1:
        raise errors.ArgumentValueError(
            f"compiler_params: num_warps is a power of two up to 32 and num_stages at least 1, got {warps} and {stages}"
        )
    return TritonCompilerParams(warps, stages, given.turns)


def _config(name: str, text: str, sizes: Sequence[int], asked: TritonCompilerParams) -> str:
    """All that the compiler reads: it ends the process where a size or the stages are left out."""
    words = {
        "num_warps": asked.num_warps, "num_stages": asked.num_stages, "grid_x": sizes[0], "grid_y": sizes[1],
        "grid_z": sizes[2],
    }  # fmt: skip
    fields = [f"name = {quote(name)}", f"ir = {quote(text)}", "debug = false"]
    fields += [f"{key} = {value} : i32" for key, value in words.items()]
    return "{" + ", ".join(fields) + "}"
