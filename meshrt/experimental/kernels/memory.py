"""Where a kernel keeps what its references hold, as types: `VMEM((8, 128), "float32")` is one of scratch memory.

MemorySpace       spaces that every back end has an own one for
TpuMemorySpace    those of a TPU's core (`pallas.tpu.MemorySpace`)
MemoryRef         a shape, an element type and a space: what kernels ask scratch memory by
SemaphoreType     counters by which cores, copies and chips wait for each other
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.references import AbstractRef
from meshrt.core.types import ShapedArray, aval_of

__all__ = [
    "BarrierSemaphoreType", "CoreMemorySpace", "DmaSemaphoreType", "MemoryRef", "MemorySpace", "RegularSemaphoreType",
    "SemaphoreDType", "SemaphoreType", "TpuMemorySpace", "barrier_semaphore", "copied_bytes", "dma_semaphore",
    "is_semaphore", "semaphore", "semaphore_dtype",
]  # fmt: skip


# ----------------------------------------------------------------------------------------------------------------------
# Types of semaphores


class semaphore_dtype(dtypes.extended):
    """Abstract scalar type above those of all semaphores, for ``issubdtype``; never instantiated."""


class semaphore(semaphore_dtype):
    """Abstract scalar type of ordinary semaphores; never instantiated."""


class dma_semaphore(semaphore_dtype):
    """Abstract scalar type of semaphores that copies count on; never instantiated."""


class barrier_semaphore(semaphore_dtype):
    """Abstract scalar type of semaphores at which several chips meet; never instantiated."""


class SemaphoreDType(dtypes.ExtendedDType):
    """The element type of an array of semaphores, each of which is a counter (int32). Equal by kind."""

    __slots__ = ()

    name: str = "semaphore"
    physical_dtype = np.dtype(np.int32)
    physical_suffix: ClassVar[tuple[int, ...]] = ()
    counts: ClassVar[bool] = True

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self)

    def __hash__(self) -> int:
        return hash(type(self))

    def __repr__(self) -> str:
        return self.name


class RegularSemaphoreType(SemaphoreDType):
    """Of semaphores that kernels signal."""

    __slots__ = ()
    type: ClassVar[Any] = semaphore
    name = "semaphore"


class DmaSemaphoreType(SemaphoreDType):
    """Of semaphores that copies signal: they count bytes, and a wait takes those of one copy."""

    __slots__ = ()
    type: ClassVar[Any] = dma_semaphore
    name = "dma_sem"


class BarrierSemaphoreType(SemaphoreDType):
    """Of the semaphore that all chips of a program have for one `collective_id`."""

    __slots__ = ()
    type: ClassVar[Any] = barrier_semaphore
    name = "barrier_semaphore"


def copied_bytes(size: int, dtype: Any) -> int:
    """How far a semaphore counts for a copy of `size` elements: its bytes, whatever type either end is seen as."""
    return -(-size * dtypes.itemsize_bits(dtype) // 8)


def is_semaphore(aval: Any) -> bool:
    """Whether a type is that of semaphores or of a reference to some."""
    return isinstance(getattr(aval, "dtype", None), SemaphoreDType)


# ----------------------------------------------------------------------------------------------------------------------
# Spaces


@dataclass(frozen=True)
class MemoryRef:
    """The type of a reference in a kernel's memory: what `scratch_shapes` and `run_scoped` take, and results too.

    >>> TpuMemorySpace.VMEM((8, 128), np.float32).get_ref_aval()
    Ref<vmem>{float32[8,128]}
    """

    inner_aval: Any
    memory_space: Any

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.inner_aval.shape)

    @property
    def dtype(self) -> Any:
        return self.inner_aval.dtype

    def get_array_aval(self) -> ShapedArray:
        """The type of the array that it is (on leaving a kernel it lies in the usual memory)."""
        if not isinstance(self.inner_aval, ShapedArray):
            raise errors.ArgumentValueError(f"MemoryRef type must be a ShapedArray, got {type(self.inner_aval)}")
        return self.inner_aval

    def get_ref_aval(self) -> AbstractRef:
        """The type of a reference to such an array."""
        return AbstractRef(self.inner_aval, self.memory_space)

    def __matmul__(self, mesh: Any) -> MemoryRef:
        return MemoryRef(self.inner_aval, CoreMemorySpace(self.memory_space, mesh))


def _array_type(shape: Any, dtype: Any) -> ShapedArray:
    sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    kind = dtype if isinstance(dtype, dtypes.ExtendedDType) else dtypes.canonicalize_dtype(dtypes.dtype(dtype))
    return ShapedArray(sizes, kind)


class _Space(enum.Enum):
    """A memory space: called with a shape and an element type it gives the type of a reference there."""

    def __str__(self) -> str:
        return str(self.value)

    def from_type(self, ty: Any) -> MemoryRef:
        """The type of a reference to an array of type `ty` in this space."""
        return MemoryRef(ty, self)

    def __call__(self, shape: Any, dtype: Any) -> MemoryRef:
        return MemoryRef(_array_type(shape, dtype), self)

    def like(self, x: Any) -> MemoryRef:
        """The type of a reference to something like `x`, which has a shape and a dtype."""
        return MemoryRef(x if isinstance(x, ShapedArray) else _array_type(x.shape, x.dtype), self)

    def __matmul__(self, mesh: Any) -> CoreMemorySpace:
        return CoreMemorySpace(self, mesh)


class MemorySpace(_Space):
    """Spaces that say nothing of the hardware: a back end has a memory of its own for each."""

    ANY = "any"  # wherever the compiler leaves it, the large memory mostly: kernels copy from there themselves
    DEFAULT = "default"  # where the back end keeps blocks
    ERROR = "error"
    INDEX = "index"  # scalars that are read before the kernel starts
    KEY = "key"
    HOST = "host"


class TpuMemorySpace(_Space):
    """The memories of a TPU's core."""

    VMEM = "vmem"
    VMEM_SHARED = "vmem_shared"
    SMEM = "smem"
    CMEM = "cmem"
    SEMAPHORE = "semaphore_mem"
    HBM = "hbm"

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class CoreMemorySpace:
    """A memory of the cores of one mesh: `VMEM @ mesh`."""

    memory_space: Any
    mesh: Any

    def __post_init__(self) -> None:
        if self.memory_space not in self.mesh.supported_memory_spaces:
            raise errors.ArgumentValueError(
                f"Memory space {self.memory_space} is not supported by mesh {self.mesh}: it has "
                f"{', '.join(map(str, self.mesh.supported_memory_spaces))}"
            )

    def __call__(self, shape: Any, dtype: Any) -> MemoryRef:
        return MemoryRef(_array_type(shape, dtype), self)

    @property
    def name(self) -> str:
        return f"{self.memory_space}@{self.mesh.core_type.name}"

    def __str__(self) -> str:
        return f"{self.memory_space}@{self.mesh.core_type}"


class SemaphoreType(enum.Enum):
    """Kinds of semaphores; called with a shape, the type of an array of them.

    >>> SemaphoreType.DMA((2,)).get_ref_aval()
    Ref<semaphore_mem>{dma_sem[2]}
    """

    REGULAR = "regular"
    DMA = "dma"
    BARRIER = "barrier"

    @property
    def dtype(self) -> SemaphoreDType:
        return _SEMAPHORES[self]

    def __call__(self, shape: Any) -> MemoryRef:
        return MemoryRef(_array_type(shape, self.dtype), TpuMemorySpace.SEMAPHORE)

    def get_array_aval(self) -> ShapedArray:
        return self(()).get_array_aval()

    def get_ref_aval(self) -> AbstractRef:
        return self(()).get_ref_aval()

    @property
    def shape(self) -> tuple[int, ...]:
        return ()

    def __matmul__(self, mesh: Any) -> MemoryRef:
        return CoreMemorySpace(TpuMemorySpace.SEMAPHORE, mesh)((), self.dtype)


_SEMAPHORES: dict[SemaphoreType, SemaphoreDType] = {
    SemaphoreType.REGULAR: RegularSemaphoreType(),
    SemaphoreType.DMA: DmaSemaphoreType(),
    SemaphoreType.BARRIER: BarrierSemaphoreType(),
}


def ref_aval_of(ty: Any, what: str) -> AbstractRef:
    """The type of the reference that a type of scratch memory stands for; `what` names it in messages."""
    if hasattr(ty, "get_ref_aval"):
        made: AbstractRef = ty.get_ref_aval()
        return made
    if hasattr(ty, "shape") and hasattr(ty, "dtype"):
        return AbstractRef(_array_type(ty.shape, ty.dtype))
    try:
        return AbstractRef(aval_of(ty))
    except errors.ArgumentTypeError:
        raise errors.ArgumentTypeError(
            f"{what}: expected the type of a reference, as pltpu.VMEM(shape, dtype) makes them, got {ty!r}"
        ) from None
