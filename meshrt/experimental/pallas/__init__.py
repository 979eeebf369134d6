"""Kernels under the names of ``jax.experimental.pallas``: see docs/kernels.md and `meshrt.experimental.kernels`."""

from meshrt.contexts import SettingContext
from meshrt.experimental.kernels.call import pallas_call
from meshrt.experimental.kernels.call_primitive import pallas_call_p
from meshrt.experimental.kernels.checked import debug_check
from meshrt.experimental.kernels.core_map import core_map
from meshrt.experimental.kernels.cores import kernel
from meshrt.experimental.kernels.exporting import lower_as_mlir, pallas_export_experimental
from meshrt.experimental.kernels.facts import estimate_cost
from meshrt.experimental.kernels.grid import num_programs, program_id
from meshrt.experimental.kernels.helpers import (
    align_to,
    broadcast_to,
    cdiv,
    empty,
    empty_like,
    empty_ref_like,
    loop,
    next_power_of_2,
    select_ref,
    strides_from_shape,
    when,
    with_scoped,
)
from meshrt.experimental.kernels.hints import max_contiguous, multiple_of
from meshrt.experimental.kernels.memory import MemoryRef, MemorySpace, semaphore
from meshrt.experimental.kernels.params import CompilerParams, CostEstimate
from meshrt.experimental.kernels.scopes import get_global, run_scoped, run_state
from meshrt.experimental.kernels.semaphores import DeviceIdType, semaphore_read, semaphore_signal, semaphore_wait
from meshrt.experimental.kernels.specs import (
    BlockDim,
    Blocked,
    BlockSpec,
    BoundedSlice,
    Buffered,
    Element,
    GridSpec,
    Indirect,
    RevisitMode,
    Squeezed,
    no_block_spec,
    squeezed,
)
from meshrt.experimental.kernels.values import debug_print, delay, dot, reciprocal
from meshrt.experimental.pallas.names import EARLIER, absent
from meshrt.primitives.state_indices import Slice, ds

ANY = MemorySpace.ANY
HOST = MemorySpace.HOST
dslice = ds
enable_debug_checks = SettingContext("pallas_enable_debug_checks")
enable_poison_buffers = SettingContext("pallas_poison_buffers")

__all__ = [
    "ANY",
    "HOST",
    "BlockDim",
    "BlockSpec",
    "Blocked",
    "BoundedSlice",
    "Buffered",
    "CompilerParams",
    "CostEstimate",
    "DeviceIdType",
    "Element",
    "GridSpec",
    "Indirect",
    "MemoryRef",
    "MemorySpace",
    "RevisitMode",
    "Slice",
    "Squeezed",
    "align_to",
    "broadcast_to",
    "cdiv",
    "core_map",
    "debug_check",
    "debug_print",
    "delay",
    "dot",
    "ds",
    "dslice",
    "empty",
    "empty_like",
    "empty_ref_like",
    "enable_debug_checks",
    "enable_poison_buffers",
    "estimate_cost",
    "get_global",
    "kernel",
    "loop",
    "lower_as_mlir",
    "max_contiguous",
    "multiple_of",
    "next_power_of_2",
    "no_block_spec",
    "num_programs",
    "pallas_call",
    "pallas_call_p",
    "pallas_export_experimental",
    "program_id",
    "reciprocal",
    "run_scoped",
    "run_state",
    "select_ref",
    "semaphore",
    "semaphore_read",
    "semaphore_signal",
    "semaphore_wait",
    "squeezed",
    "strides_from_shape",
    "when",
    "with_scoped",
]
__getattr__ = absent(__name__, __all__, EARLIER)
