"""What kernels for GPUs are written with: the names of ``jax.experimental.pallas.triton``."""

from meshrt.experimental.kernels.assembly import elementwise_inline_asm
from meshrt.experimental.kernels.hints import max_contiguous
from meshrt.experimental.kernels.loads import (
    atomic_add,
    atomic_and,
    atomic_cas,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_xchg,
    atomic_xor,
    load,
    store,
)
from meshrt.experimental.kernels.params import TritonCompilerParams as CompilerParams
from meshrt.experimental.kernels.values import approx_tanh, debug_barrier, dot
from meshrt.experimental.pallas.names import absent

__all__ = [
    "CompilerParams", "approx_tanh", "atomic_add", "atomic_and", "atomic_cas", "atomic_max", "atomic_min", "atomic_or",
    "atomic_xchg", "atomic_xor", "debug_barrier", "dot", "elementwise_inline_asm", "load", "max_contiguous", "store",
]  # fmt: skip
__getattr__ = absent(__name__, __all__)
