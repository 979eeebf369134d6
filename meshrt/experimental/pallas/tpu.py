"""What kernels for TPUs are written with: the names of ``jax.experimental.pallas.tpu``."""

from meshrt.errors import UnsupportedError
from meshrt.experimental.kernels.buffered import BufferedRef, BufferType
from meshrt.experimental.kernels.chips import (
    ChipVersion,
    Tiling,
    TpuInfo,
    get_tpu_info,
    get_tpu_info_for_chip,
    is_tpu_device,
)
from meshrt.experimental.kernels.copies import (
    async_copy,
    async_remote_copy,
    make_async_copy,
    make_async_remote_copy,
    sync_copy,
)
from meshrt.experimental.kernels.cores import (
    CoreType,
    TensorCoreMesh,
    core_barrier,
    create_tensorcore_mesh,
    run_on_first_core,
)
from meshrt.experimental.kernels.einshape import einshape
from meshrt.experimental.kernels.loads import load, store
from meshrt.experimental.kernels.memory import MemorySpace as AnyMemorySpace
from meshrt.experimental.kernels.memory import SemaphoreType, dma_semaphore, semaphore
from meshrt.experimental.kernels.memory import TpuMemorySpace as MemorySpace
from meshrt.experimental.kernels.params import GridDimensionSemantics, SideEffectType
from meshrt.experimental.kernels.params import TpuCompilerParams as CompilerParams
from meshrt.experimental.kernels.pipeline import emit_pipeline, emit_pipeline_with_allocations
from meshrt.experimental.kernels.prng import (
    prng_random_bits,
    prng_seed,
    stateful_bernoulli,
    stateful_bits,
    stateful_normal,
    stateful_uniform,
)
from meshrt.experimental.kernels.sampling import sample_block, to_pallas_key
from meshrt.experimental.kernels.semaphores import (
    DeviceIdType,
    get_barrier_semaphore,
    semaphore_read,
    semaphore_signal,
    semaphore_wait,
)
from meshrt.experimental.kernels.simulator.params import (
    InterpretParams,
    force_tpu_interpret_mode,
    reset_tpu_interpret_mode_state,
    set_tpu_interpret_mode,
)
from meshrt.experimental.kernels.specs import PrefetchScalarGridSpec
from meshrt.experimental.kernels.values import (
    bitcast,
    pack_elementwise,
    repeat,
    roll,
    stochastic_round,
    touch,
    trace_value,
    unpack_elementwise,
    with_memory_space_constraint,
)
from meshrt.experimental.pallas.names import EARLIER_TPU, absent

LoweringException = UnsupportedError
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
HOST = AnyMemorySpace.HOST

__all__ = [
    "ARBITRARY",
    "CMEM",
    "CORE_PARALLEL",
    "HBM",
    "HOST",
    "PARALLEL",
    "SEMAPHORE",
    "SMEM",
    "SUBCORE_PARALLEL",
    "VMEM",
    "VMEM_SHARED",
    "BufferType",
    "BufferedRef",
    "ChipVersion",
    "CompilerParams",
    "CoreType",
    "DeviceIdType",
    "GridDimensionSemantics",
    "InterpretParams",
    "LoweringException",
    "MemorySpace",
    "PrefetchScalarGridSpec",
    "SemaphoreType",
    "SideEffectType",
    "TensorCoreMesh",
    "Tiling",
    "TpuInfo",
    "async_copy",
    "async_remote_copy",
    "bitcast",
    "core_barrier",
    "create_tensorcore_mesh",
    "dma_semaphore",
    "einshape",
    "emit_pipeline",
    "emit_pipeline_with_allocations",
    "force_tpu_interpret_mode",
    "get_barrier_semaphore",
    "get_tpu_info",
    "get_tpu_info_for_chip",
    "is_tpu_device",
    "load",
    "make_async_copy",
    "make_async_remote_copy",
    "pack_elementwise",
    "prng_random_bits",
    "prng_seed",
    "repeat",
    "reset_tpu_interpret_mode_state",
    "roll",
    "run_on_first_core",
    "sample_block",
    "semaphore",
    "semaphore_read",
    "semaphore_signal",
    "semaphore_wait",
    "set_tpu_interpret_mode",
    "stateful_bernoulli",
    "stateful_bits",
    "stateful_normal",
    "stateful_uniform",
    "stochastic_round",
    "store",
    "sync_copy",
    "to_pallas_key",
    "touch",
    "trace_value",
    "unpack_elementwise",
    "with_memory_space_constraint",
]
__getattr__ = absent(__name__, __all__, EARLIER_TPU)
