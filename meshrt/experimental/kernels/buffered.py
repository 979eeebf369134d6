"""Memory of a core in which a pipeline keeps blocks of one operand, and the copies between it and the operand.

A block is copied in pieces of static sizes, because copies have such: one piece mostly, another one where the last
block of a dimension is smaller, and where the index map computes a size (`BoundedSlice`), or a block reaches over both
ends of a dimension (`Element` with padding), one piece for each binary digit of the size that is set. All pieces of a
block count on the semaphore of its buffer. Where a block reaches over an end its buffer holds what it held before.
"""

from __future__ import annotations

import enum
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshrt import errors, lax, tree_util
from meshrt import numpy as jnp
from meshrt.core.tracebacks import boundary
from meshrt.experimental.kernels.copies import make_async_copy
from meshrt.experimental.kernels.helpers import shown_type, when
from meshrt.experimental.kernels.mapping import described
from meshrt.experimental.kernels.memory import MemorySpace, SemaphoreType, TpuMemorySpace
from meshrt.experimental.kernels.semaphores import ref_and_view
from meshrt.experimental.kernels.specs import (
    BlockDim,
    Blocked,
    BlockSpec,
    BoundedSlice,
    Element,
    Squeezed,
    block_dim,
    block_size,
)
from meshrt.primitives.state_indices import Slice, ds

__all__ = ["BufferType", "BufferedRef"]

_NEAR = (TpuMemorySpace.VMEM, TpuMemorySpace.SMEM)


class BufferType(enum.Enum):
    """Which way the blocks of an operand go; those of INPUT_OUTPUT are fetched, changed and sent back."""

    INPUT = "input"
    OUTPUT = "output"
    INPUT_OUTPUT = "input_output"

    @property
    def is_input(self) -> bool:
        return self is not BufferType.OUTPUT

    @property
    def is_output(self) -> bool:
        return self is not BufferType.INPUT


@dataclass(frozen=True)
class BufferedRef:
    """The buffers of one operand of a pipeline: types of memory, to ask for it, or references once it is there.

    A pytree, so that `run_scoped` and `scratch_shapes` take one where they take types, and give one of references.

    Args:
      spec: how the operand is cut into blocks; `block_shape` is given.
      buffer_type: which way blocks go.
      window: `buffer_count` blocks, in one piece of memory; None where the operand lies in the core's memory itself.
      semaphores: a DMA semaphore for each.
      use_lookahead: whether blocks are fetched as soon as a buffer is free, however many steps ahead they are needed.

    >>> spec = BlockSpec((8, 128), lambda i: (i, 0))
    >>> BufferedRef.input(spec, np.float32, buffer_count=3).window.get_ref_aval()
    Ref<vmem>{float32[3,8,128]}
    """

    spec: BlockSpec
    buffer_type: BufferType
    window: Any
    semaphores: Any
    use_lookahead: bool = False

    @classmethod
    @boundary
    def create(
        cls, spec: BlockSpec, dtype_or_type: Any, buffer_type: BufferType, buffer_count: int = 2,
        grid_rank: int | None = None, use_lookahead: bool = False, source_memory_space: Any = MemorySpace.ANY,
        tiling: Any = None, is_trivial_windowing: bool = False,
    ) -> BufferedRef:  # fmt: skip
        """The buffers of an operand of this element type, or with the element type of this type.

        Raises:
          ArgumentValueError: `spec` has no block shape, or there is no buffer.
          UnsupportedError: block dimensions that no copy fetches.
        """
        if spec.block_shape is None:
            raise errors.ArgumentValueError(
                "BufferedRef: its BlockSpec has no block_shape, which says how large buffers are; give one"
            )
        if buffer_count < 1:
            raise errors.ArgumentValueError(f"emit_pipeline: buffer_count must be positive, got {buffer_count}")
        dims = block_dims(spec.block_shape)
        if source_memory_space in _NEAR:
            if any(any(_padding(d)) for d in dims):
                raise errors.UnsupportedError(
                    f"emit_pipeline: blocks {dims} reach over the ends of an operand in {source_memory_space}, of "
                    "which the body gets views, no copies: give it in pl.ANY, or cut it without padding"
                )
            return cls(spec, buffer_type, None, None, False)
        shape = [block_size(d) for d in dims if not isinstance(d, Squeezed)]
        space = spec.memory_space if isinstance(spec.memory_space, TpuMemorySpace) else TpuMemorySpace.VMEM
        dtype = dtype_or_type if isinstance(dtype_or_type, type) else getattr(dtype_or_type, "dtype", dtype_or_type)
        window = space((buffer_count, *shape), dtype)
        return cls(spec, buffer_type, window, SemaphoreType.DMA((buffer_count,)), use_lookahead)

    @classmethod
    def input(cls, spec: BlockSpec, dtype_or_type: Any, buffer_count: int = 2, **options: Any) -> BufferedRef:
        """Buffers of an operand that is read."""
        return cls.create(spec, dtype_or_type, BufferType.INPUT, buffer_count, **options)

    @classmethod
    def output(cls, spec: BlockSpec, dtype_or_type: Any, buffer_count: int = 2, **options: Any) -> BufferedRef:
        """Buffers of a result."""
        return cls.create(spec, dtype_or_type, BufferType.OUTPUT, buffer_count, **options)

    @classmethod
    def input_output(cls, spec: BlockSpec, dtype_or_type: Any, buffer_count: int = 2, **options: Any) -> BufferedRef:
        """Buffers of a result whose blocks begin as what lies there when they are fetched."""
        return cls.create(spec, dtype_or_type, BufferType.INPUT_OUTPUT, buffer_count, **options)

    @property
    def is_input(self) -> bool:
        return self.buffer_type.is_input

    @property
    def is_output(self) -> bool:
        return self.buffer_type.is_output

    @property
    def is_input_output(self) -> bool:
        return self.buffer_type is BufferType.INPUT_OUTPUT

    @property
    def is_buffered(self) -> bool:
        """Whether blocks are copied at all."""
        return self.window is not None

    @property
    def buffer_count(self) -> int:
        if self.window is None:
            return 0
        kind = self.window if hasattr(self.window, "get_ref_aval") else shown_type(self.window)
        return int(kind.shape[0])

    @property
    def block_shape(self) -> Sequence[Any] | None:
        return self.spec.block_shape

    @property
    def compute_index(self) -> Callable[..., Any] | None:
        """The index map."""
        return self.spec.index_map

    def with_spec(self, spec: BlockSpec) -> BufferedRef:
        """The same memory for blocks that are cut differently, of the same shape."""
        return replace(self, spec=spec)


tree_util.register_pytree_node(
    BufferedRef,
    lambda b: ((b.window, b.semaphores), (b.spec, b.buffer_type, b.use_lookahead)),
    lambda aux, parts: BufferedRef(aux[0], aux[1], parts[0], parts[1], aux[2]),
)


def block_dims(shape: Sequence[Any]) -> tuple[BlockDim, ...]:
    """A block shape in full, if copies can fetch such blocks; else UnsupportedError."""
    dims = tuple(map(block_dim, shape))
    for dim in dims:
        if not isinstance(dim, Blocked | Squeezed | Element | BoundedSlice):
            raise errors.UnsupportedError(f"emit_pipeline: blocks with dimensions {dim} are not implemented")
    return dims


# ----------------------------------------------------------------------------------------------------------------------
# An operand


@dataclass(frozen=True)
class _Piece:
    """`size` elements of a dimension of a block, from `start` on, if `exists`."""

    exists: Any
    start: Any
    size: int


class Operand:
    """A reference, how it is cut into blocks, and the buffers of these."""

    def __init__(self, ref: Any, buffers: BufferedRef):
        self.ref, self.buffers = ref, buffers
        self.kind = shown_type(ref)
        assert buffers.block_shape is not None
        self.dims = block_dims(buffers.block_shape)
        if len(self.dims) != self.kind.ndim:
            raise errors.ArgumentValueError(
                f"emit_pipeline: block shape {tuple(buffers.block_shape)} for a reference of shape {self.kind.shape}: "
                "give a size for each dimension"
            )
        self.sizes = tuple(map(block_size, self.dims))
        self.count = buffers.buffer_count

    @staticmethod
    def allocated(ref: Any, spec: BlockSpec, kind: BufferType, no_pipelining: bool = False) -> BufferedRef:
        """The types of the buffers that a reference needs, cut by `spec`."""
        aval = shown_type(ref)
        if spec.block_shape is None:
            rank = aval.ndim
            whole = spec.index_map or (lambda *indices: (0,) * rank)
            spec = BlockSpec(aval.shape, whole, memory_space=spec.memory_space, pipeline_mode=spec.pipeline_mode)
        mode = spec.pipeline_mode
        space = getattr(ref_and_view(ref)[0].aval, "memory_space", None)
        count = 1 if no_pipelining else 2 if mode is None else mode.buffer_count
        ahead = mode is not None and mode.use_lookahead and not no_pipelining
        return BufferedRef.create(
            spec, aval.dtype, kind, count, use_lookahead=ahead,
            source_memory_space=MemorySpace.ANY if space is None else space,
        )  # fmt: skip

    def block(self, indices: Sequence[Any]) -> tuple[Any, ...]:
        """What the index map gives at a step: a Slice where a dimension is bounded, a number elsewhere."""
        index_map = self.buffers.compute_index
        if index_map is None:
            return tuple([Slice(0, d.block_size) if isinstance(d, BoundedSlice) else 0 for d in self.dims])
        found = index_map(*indices)
        found = tuple(found) if isinstance(found, list | tuple) else (found,)
        if len(found) != len(self.dims):
            raise errors.ArgumentValueError(
                f"Index map function {described(index_map)} must return {len(self.dims)} values to match "
                f"block_shape={self.dims}. Currently returning {len(found)} values:"
            )
        return tuple([self._place(at, dim, index_map) for at, dim in zip(found, self.dims)])

    def _place(self, at: Any, dim: BlockDim, index_map: Any) -> Any:
        if isinstance(at, slice):
            at = Slice(at.start, at.stop - at.start)
        if isinstance(at, Slice) != isinstance(dim, BoundedSlice):
            wanted = "pl.ds(start, size)" if isinstance(dim, BoundedSlice) else "a number"
            raise errors.ArgumentValueError(
                f"Index map function {described(index_map)} returned {at!r} for a dimension {dim}: give {wanted}"
            )
        return at

    def is_other(self, one: Sequence[Any], two: Sequence[Any]) -> Any:
        """Whether two steps have different blocks: a bool, or a scalar."""
        different: Any = False
        for a, b in zip(_numbers(self.block(one)), _numbers(self.block(two))):
            if a is b or (isinstance(a, int) and isinstance(b, int) and a == b):
                continue
            here = jnp.asarray(a != b)
            different = here if different is False else different | here
        return different

    # -- views and copies

    def _starts(self, block: Sequence[Any]) -> list[Any]:
        places = [b.start if isinstance(b, Slice) else b for b in block]
        return [
            b * dim.block_size if isinstance(dim, Blocked) else _plus(b, -_padding(dim)[0])
            for b, dim in zip(places, self.dims)
        ]

    def _view(self, block: Sequence[Any], pieces: Sequence[_Piece]) -> Any:
        """Pieces of the part of the reference that is a block."""
        at = [
            start if isinstance(dim, Squeezed) else ds(_plus(start, p.start), p.size)
            for start, p, dim in zip(self._starts(block), pieces, self.dims)
        ]
        return self.ref.at[tuple(at)]

    def near(self, slot: Any, block: Sequence[Any]) -> Any:
        """What the body gets."""
        if not self.buffers.is_buffered:
            return self._view(block, [_Piece(True, 0, n) for n in self.sizes])
        return self.buffers.window.at[slot]

    def _pieces(self, block: Sequence[Any]) -> list[list[_Piece]]:
        """Of which pieces a block consists, per dimension."""
        return [_pieces(at, dim, n) for at, dim, n in zip(block, self.dims, self.kind.shape)]

    def _each_copy(self, slot: Any, block: Sequence[Any], outward: bool, do: Callable[[Any], None]) -> None:
        for pieces in itertools.product(*self._pieces(block)):
            exists = functools.reduce(_both, [p.exists for p in pieces], True)
            copy = functools.partial(self._one_copy, slot, block, pieces, outward, do)
            copy() if exists is True else when(exists)(copy)

    def _one_copy(
        self, slot: Any, block: Sequence[Any], pieces: Sequence[_Piece], outward: bool, do: Callable[[Any], None]
    ) -> None:
        far = self._view(block, pieces)
        seen = [ds(p.start, p.size) for p, dim in zip(pieces, self.dims) if not isinstance(dim, Squeezed)]
        near = self.buffers.window.at[(slot, *seen)]
        source, target = (near, far) if outward else (far, near)
        do(make_async_copy(source, target, self.buffers.semaphores.at[slot]))

    def fetch(self, slot: Any, block: Sequence[Any]) -> None:
        """Starts the copy of a block into a buffer."""
        self._each_copy(slot, block, False, lambda copy: copy.start())

    def await_fetched(self, slot: Any, block: Sequence[Any]) -> None:
        self._each_copy(slot, block, False, lambda copy: copy.wait())

    def send(self, slot: Any, block: Sequence[Any]) -> None:
        """Starts the copy of a block out of a buffer."""
        self._each_copy(slot, block, True, lambda copy: copy.start())

    def await_sent(self, slot: Any, block: Sequence[Any]) -> None:
        self._each_copy(slot, block, True, lambda copy: copy.wait())


def _numbers(block: Sequence[Any]) -> list[Any]:
    return [n for at in block for n in ((at.start, at.size) if isinstance(at, Slice) else (at,))]


def _plus(a: Any, b: Any) -> Any:
    return a if isinstance(b, int) and b == 0 else a + b


def _both(a: Any, b: Any) -> Any:
    return b if a is True else a if b is True else jnp.logical_and(a, b)


def _pieces(at: Any, dim: BlockDim, extent: int) -> list[_Piece]:
    """The pieces of one dimension of a block that begins at `at`, of a reference with `extent` elements there."""
    size = block_size(dim)
    if isinstance(at, Slice):
        if isinstance(at.size, int):
            return [_Piece(True, 0, min(at.size, size))] if at.size > 0 else []
        wanted = jnp.minimum(jnp.asarray(at.size, np.int32), np.int32(size))
        return [_digit(wanted, bit) for bit in range(size.bit_length())]
    if any(_padding(dim)):
        return _between(at - _padding(dim)[0], size, extent)
    if isinstance(dim, Blocked) and extent % size:
        if isinstance(at, int | np.integer):
            return [_Piece(True, 0, min(size, extent - int(at) * size))]
        is_last = at == extent // size
        return [_Piece(jnp.logical_not(is_last), 0, size), _Piece(jnp.asarray(is_last), 0, extent % size)]
    return [_Piece(True, 0, size)]


def _padding(dim: BlockDim) -> tuple[int, int]:
    """How many elements in front of a dimension, and behind it, blocks may reach."""
    return dim.padding if isinstance(dim, Element) else (0, 0)


def _between(start: Any, size: int, extent: int) -> list[_Piece]:
    """The pieces of the part of a block that lies in a dimension; the block may begin in front of it, at a negative
    `start`."""
    if isinstance(start, int | np.integer):
        first, end = max(0, -int(start)), min(size, extent - int(start))
        return [_Piece(True, first, end - first)] if end > first else []
    start = jnp.asarray(start, np.int32)
    first = jnp.maximum(-start, 0)
    wanted = jnp.maximum(jnp.minimum(np.int32(size), extent - start) - first, 0)
    return [_digit(wanted, bit, first) for bit in range(min(size, extent).bit_length())]


def _digit(wanted: Any, bit: int, first: Any = 0) -> _Piece:
    """The piece that stands for one binary digit of a size; those of higher digits lie between `first` and it."""
    exists = lax.bitwise_and(wanted, np.int32(1 << bit)) != 0
    start = lax.bitwise_and(wanted, np.int32(-1 << (bit + 1)))
    return _Piece(exists, _plus(start, first), 1 << bit)
