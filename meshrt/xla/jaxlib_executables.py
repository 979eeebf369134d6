"""What compiled programs, and modules on their way to one, say of themselves: memory, layouts, costs, types, text.

One of the doors to jaxlib's private modules.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jaxlib._hlo as _hlo
import jaxlib._jax as _jax
import numpy as np
from jaxlib.mlir import ir

from meshrt.xla.jaxlib_api import Buffer, Client, XlaError
from meshrt.xla.mlir import bytecode, parse

__all__ = [
    "LayoutParts", "boundary_types", "buffer_layout", "computation", "computation_cost", "computation_text",
    "cost_analysis", "default_layout", "hlo_text", "memory_stats", "output_layouts", "parameter_layouts",
    "portable_artifact", "refined_shapes",
]  # fmt: skip


def memory_stats(executable: Any) -> Any:
    """The compiler's memory figures, in bytes per device."""
    return executable.get_compiled_memory_stats()


LayoutParts = tuple[tuple[int, ...], tuple[tuple[int, ...], ...], int]


def parameter_layouts(executable: Any) -> list[LayoutParts]:
    """(minor to major, tiling, bits of packed elements) of each parameter. XlaError where the platform tells none."""
    return [_layout_parts(layout) for layout in executable.get_parameter_layouts()]


def output_layouts(executable: Any) -> list[LayoutParts]:
    """As `parameter_layouts`, of each result."""
    return [_layout_parts(layout) for layout in executable.get_output_layouts()]


def buffer_layout(buffer: Buffer) -> LayoutParts | None:
    """As `parameter_layouts`, of a buffer's parts; None where the platform does not tell."""
    try:
        return _layout_parts(buffer._pjrt_layout)
    except XlaError:
        return None


def default_layout(dtype: Any, shape: Sequence[int], device: Any) -> LayoutParts:
    """As `parameter_layouts`, of arrays of this type in the memory of `device` that nobody asked another layout for."""
    return _layout_parts(device.client.get_default_layout(np.dtype(dtype), tuple(shape), device))


def _layout_parts(layout: Any) -> LayoutParts:
    xla = layout._xla_layout()
    return tuple(xla.minor_to_major()), tuple(map(tuple, xla.tiling())), xla.element_size_in_bits()


def cost_analysis(executable: Any) -> dict[str, float]:
    """The compiler's estimates, per device: flops, bytes accessed, transcendentals ..."""
    cost = executable.cost_analysis()
    return dict(cost[0] if isinstance(cost, list) else cost)


def portable_artifact(module: ir.Module, version: str) -> bytes:
    """A module for consumers of a version of StableHLO. XlaError if that does not have one of its operations."""
    artifact: bytes = _jax.mlir.serialize_portable_artifact(module, version, True)
    return artifact


def refined_shapes(module: str | bytes) -> bytes:
    """The module with static shapes that follow from those of its `@main`, as bytecode. XlaError if a size stays
    unknown or a shape assertion does not hold, with its message."""
    data = module.encode() if isinstance(module, str) else module
    refined: bytes = _jax.mlir.refine_polymorphic_shapes(data, True, True, True)
    return refined


def computation(module: str) -> Any:
    """A StableHLO module as XLA's unoptimised HLO. XlaError if XLA cannot translate it."""
    return _jax.mlir.mlir_module_to_xla_computation(bytecode(parse(module)), use_tuple_args=False)


def computation_text(of: Any, *, metadata: bool) -> str:
    """HLO as text, with `metadata` also where each operation comes from."""
    options = _hlo.HloPrintOptions.short_parsable()
    options.print_metadata = metadata
    return of.as_hlo_module().to_string(options)


def computation_cost(client: Client, of: Any) -> dict[str, float] | None:
    """The compiler's estimates for what `computation` gave; None if this jaxlib has none."""
    analyse = getattr(_jax, "hlo_module_cost_analysis", None)
    return None if analyse is None else dict(analyse(client, of.as_hlo_module()))


BoundaryType = tuple[tuple[int, ...], np.dtype]


def boundary_types(executable: Any) -> tuple[list[BoundaryType], list[BoundaryType]]:
    """Shape and element type of each parameter and result on one device. XlaError where the platform tells none."""
    proto = executable.hlo_modules()[0].as_serialized_hlo_module_proto()
    shape = _hlo.XlaComputation(proto).program_shape()
    result = shape.result_shape()
    results = result.tuple_shapes() if result.is_tuple() else [result]
    parameters, returned = ([(tuple(s.dimensions()), np.dtype(s.numpy_dtype())) for s in found]
                            for found in (shape.parameter_shapes(), results))  # fmt: skip
    return parameters, returned


def hlo_text(executable: Any) -> str:
    """The optimised HLO."""
    return "\n".join(m.to_string() for m in executable.hlo_modules())
