"""What kernels for TPUs are written with: the names of ``jax.experimental.pallas.tpu``."""

from meshrt.experimental.kernels.memory import SemaphoreType, dma_semaphore
from meshrt.experimental.kernels.memory import TpuMemorySpace as MemorySpace
from meshrt.experimental.kernels.params import GridDimensionSemantics, SideEffectType
from meshrt.experimental.kernels.params import TpuCompilerParams as CompilerParams
from meshrt.experimental.kernels.specs import PrefetchScalarGridSpec

PARALLEL = GridDimensionSemantics.PARALLEL
CORE_PARALLEL = GridDimensionSemantics.CORE_PARALLEL
SUBCORE_PARALLEL = GridDimensionSemantics.SUBCORE_PARALLEL
ARBITRARY = GridDimensionSemantics.ARBITRARY
CMEM = MemorySpace.CMEM
SMEM = MemorySpace.SMEM
VMEM = MemorySpace.VMEM
VMEM_SHARED = MemorySpace.VMEM_SHARED
HBM = MemorySpace.HBM
SEMAPHORE = MemorySpace.SEMAPHORE

__all__ = [
    "ARBITRARY", "CMEM", "CORE_PARALLEL", "HBM", "PARALLEL", "SEMAPHORE", "SMEM", "SUBCORE_PARALLEL", "VMEM",
    "VMEM_SHARED", "CompilerParams", "GridDimensionSemantics", "MemorySpace", "PrefetchScalarGridSpec",
    "SemaphoreType", "SideEffectType", "dma_semaphore",
]  # fmt: skip
