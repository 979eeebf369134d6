"""What kernels for GPUs are written with: the names of ``jax.experimental.pallas.triton``."""

from meshrt.experimental.kernels.params import TritonCompilerParams as CompilerParams

__all__ = ["CompilerParams"]
