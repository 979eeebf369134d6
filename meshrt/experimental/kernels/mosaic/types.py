"""Mosaic's types: elements, vectors, references in the memories of a TPU's core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from jaxlib.mlir import ir

from meshrt.core.references import AbstractRef
from meshrt.core.spaces import DEVICE, Space
from meshrt.experimental.kernels.memory import CoreMemorySpace, MemorySpace, SemaphoreType, TpuMemorySpace, is_semaphore

__all__ = ["Place", "element_type", "is_counter", "memory_type", "reference_type", "space_of"]

# As arrays in memory bools take a word: in registers they are masks, which cannot be stored.
STORED_BOOL = np.dtype(np.int32)

_ELEMENTS = {
    np.dtype(name): code
    for name, code in {
        "bool": "i1", "int8": "i8", "uint8": "i8", "int16": "i16", "uint16": "i16", "int32": "i32", "uint32": "i32",
        "float32": "f32",
    }.items()
}  # fmt: skip
_ELEMENTS |= {
    np.dtype(getattr(ml_dtypes, name)): code
    for name, code in {
        "bfloat16": "bf16", "float8_e4m3fn": "f8E4M3FN", "float8_e5m2": "f8E5M2",
        "float8_e4m3b11fnuz": "f8E4M3B11FNUZ", "int4": "i4", "uint4": "i4",
    }.items()
}  # fmt: skip


def element_type(dtype: Any) -> ir.Type | None:
    """The type of one element; None where a TPU's core has none such."""
    if isinstance(dtype, type(SemaphoreType.DMA.dtype)):
        return ir.Type.parse("!tpu.dma_semaphore")
    if is_counter(dtype):
        return ir.Type.parse("!tpu.semaphore")
    code = _ELEMENTS.get(dtype)
    return None if code is None else ir.Type.parse(code)


def is_counter(dtype: Any) -> bool:
    """Whether an element type is that of semaphores."""
    return any(isinstance(dtype, type(kind.dtype)) for kind in SemaphoreType)


def space_of(aval: AbstractRef) -> str:
    """Mosaic's name of the memory that a reference lies in: blocks and scratch in VMEM unless they say otherwise."""
    space = aval.memory_space
    if isinstance(space, CoreMemorySpace):
        space = space.memory_space
    if is_semaphore(aval):
        return "semaphore_mem"
    if isinstance(space, TpuMemorySpace):
        return space.value
    return _SPACES[space]


_SPACES = {
    MemorySpace.ANY: "any", MemorySpace.DEFAULT: "vmem", MemorySpace.INDEX: "smem", MemorySpace.KEY: "smem",
    MemorySpace.HOST: "host", MemorySpace.ERROR: "smem", DEVICE: "vmem", Space.Any: "any", Space.Host: "host",
}  # fmt: skip


def memory_type(shape: Sequence[int], element: ir.Type, space: str) -> ir.MemRefType:
    """The type of a reference to an array of `shape` in a memory."""
    return ir.MemRefType.get(list(shape), element, memory_space=ir.Attribute.parse(f"#tpu.memory_space<{space}>"))


def reference_type(aval: AbstractRef, shape: Sequence[int] | None = None, space: str | None = None) -> Any:
    """The type of a reference; None where a core has no such elements."""
    element = element_type(STORED_BOOL if aval.dtype == np.bool_ else aval.dtype)
    if element is None:
        return None
    return memory_type(aval.shape if shape is None else shape, element, space or space_of(aval))


@dataclass(frozen=True)
class Place:
    """What a reference in a kernel is: memory, and which of its dimensions, all of size 1, the kernel does not see."""

    memory: ir.Value
    squeezed: tuple[bool, ...]

    @classmethod
    def whole(cls, memory: ir.Value) -> Place:
        return cls(memory, (False,) * len(ir.MemRefType(memory.type).shape))

    @property
    def kind(self) -> ir.MemRefType:
        return ir.MemRefType(self.memory.type)

    @property
    def space(self) -> str:
        """The memory it lies in: "vmem", "smem", "any", ..."""
        return str(self.kind.memory_space).removeprefix("#tpu.memory_space<").removesuffix(">")
