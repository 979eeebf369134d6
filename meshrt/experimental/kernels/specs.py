"""How a kernel's grid cuts its operands, as users say it.

    BlockSpec((8, None), lambda i, j: (i, j))     blocks of 8 rows of one column, by their numbers
    GridSpec(grid=(4, 2), in_specs=[...], out_specs=...)

`meshrt.experimental.kernels.mapping` makes of these, and of the operands' types, what back ends read.
"""

from __future__ import annotations

import dataclasses
import enum
import operator
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from meshrt import errors
from meshrt.core.dimensions.expression import is_symbolic_dim
from meshrt.core.references import AbstractRef
from meshrt.core.trace import Tracer
from meshrt.core.types import ShapedArray
from meshrt.experimental.kernels.memory import TpuMemorySpace
from meshrt.runtime.array import Array

__all__ = [
    "BlockDim", "BlockSpec", "Blocked", "BoundedSlice", "Buffered", "Element", "GridSpec", "Indirect",
    "PrefetchScalarGridSpec", "RevisitMode", "Squeezed", "block_dim", "block_size", "no_block_spec", "squeezed",
]  # fmt: skip


# ----------------------------------------------------------------------------------------------------------------------
# Dimensions of blocks


@dataclass(frozen=True)
class Blocked:
    """`block_size` elements from a multiple of `block_size` on: the index map gives the block's number."""

    block_size: int


@dataclass(frozen=True)
class Element:
    """`block_size` elements from any element on: the index map gives the first one's number.

    `padding` elements nobody has written stand before and behind the array, for blocks that reach over its ends.
    """

    block_size: int
    padding: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Squeezed:
    """One element, in a dimension that the kernel does not see."""


squeezed = Squeezed()


@dataclass(frozen=True)
class BoundedSlice:
    """At most `block_size` elements: the index map gives `ds(start, size)`, of which both may be computed."""

    block_size: int


@dataclass(frozen=True)
class Indirect:
    """`block_size` elements at the places that the index map gives as an array: read by a gather."""

    block_size: int


BlockDim = Blocked | Element | Squeezed | BoundedSlice | Indirect


def block_dim(dim: Any) -> BlockDim:
    """A dimension of a block shape in full: an int is `Blocked`, None is `Squeezed`."""
    if dim is None:
        return squeezed
    if isinstance(dim, BlockDim):
        return dim
    try:
        return Blocked(operator.index(dim))
    except TypeError:
        raise errors.ArgumentValueError(
            f"Unsupported block dimension type: {type(dim)}. Allowed types: `pl.Squeezed`, `pl.Blocked`, `pl.Element`, "
            f"`pl.BoundedSlice`, `int`, `None`."
        ) from None


def block_size(dim: Any) -> int:
    """How many elements of a dimension a block has."""
    full = block_dim(dim)
    return 1 if isinstance(full, Squeezed) else full.block_size


# ----------------------------------------------------------------------------------------------------------------------
# Blocks


@enum.unique
class RevisitMode(enum.Enum):
    """When the blocks of a result may come back: in the very next step, or at any time (which costs copies)."""

    IMMEDIATE = "immediate"
    ANY = "any"


@dataclass(frozen=True)
class Buffered:
    """How many buffers the blocks of an operand get, so that copies overlap with the kernel.

    `use_lookahead` fetches the next block that differs as soon as a buffer is free.
    """

    buffer_count: int
    use_lookahead: bool = False
    revisit: RevisitMode | None = None


@dataclass(frozen=True)
class IndexMap:
    """An index map that gives a tuple whatever the user's function returns; equal where that function is."""

    function: Callable[..., Any]

    def __call__(self, *args: Any) -> tuple[Any, ...]:
        out = self.function(*args)
        return tuple(out) if isinstance(out, list | tuple) else (out,)


@dataclass
class BlockSpec:
    """Which part of an array a step of the grid sees.

    Args:
      block_shape: an int, None or a `BlockDim` for each dimension of the array; None: the whole array.
      index_map: takes the step's grid indices, then references to the scalars that are fetched before (if there are
        any), and returns an index for each dimension. None: zeros.
      memory_space: where the kernel finds the block.
      pipeline_mode: how its copies are buffered.

    >>> BlockSpec((8, 128), lambda i, j: (i, j)).block_shape
    (8, 128)
    """

    block_shape: Sequence[Any] | None = None
    index_map: Callable[..., Any] | None = None
    memory_space: Any | None = dataclasses.field(kw_only=True, default=None)
    pipeline_mode: Buffered | None = None

    def __post_init__(self) -> None:
        if self.index_map is not None and not isinstance(self.index_map, IndexMap):
            self.index_map = IndexMap(self.index_map)

    replace = dataclasses.replace


class _NoBlockSpec:
    """No block specification was given: whole arrays."""

    def __repr__(self) -> str:
        return "NoBlockSpec"


no_block_spec = _NoBlockSpec()


# ----------------------------------------------------------------------------------------------------------------------
# Grids


class GridSpec:
    """A grid and how it cuts operands and results; `pallas_call(grid_spec=...)` takes it.

    Args:
      grid: an int, or a tuple of ints or of scalars that are computed, or pairs of names and sizes.
      in_specs, out_specs: pytrees of BlockSpecs as arguments and results have.
      scratch_shapes: types of references that the kernel gets besides.
    """

    num_scalar_prefetch: int = 0

    grid: tuple[Any, ...]
    grid_names: tuple[Hashable, ...] | None

    def __init__(
        self, grid: Any = (), in_specs: Any = no_block_spec, out_specs: Any = no_block_spec, scratch_shapes: Any = ()
    ):
        if isinstance(in_specs, list):
            in_specs = tuple(in_specs)
        elif in_specs is not no_block_spec and not isinstance(in_specs, Sequence):
            raise errors.ArgumentValueError(f"`in_specs` must be a tuple or a list. Found: {in_specs}")
        self.in_specs = in_specs
        self.out_specs = tuple(out_specs) if isinstance(out_specs, list) else out_specs
        self.scratch_shapes = scratch_shapes if isinstance(scratch_shapes, dict) else tuple(scratch_shapes)
        self.grid, self.grid_names = _sizes(grid)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(grid={self.grid}, in_specs={self.in_specs}, out_specs={self.out_specs})"

    def scalar_type(self, aval: ShapedArray) -> AbstractRef:
        """The type of the reference to scalars, of type `aval`, that are fetched before the kernel starts."""
        return AbstractRef(aval, TpuMemorySpace.SMEM)


class PrefetchScalarGridSpec(GridSpec):
    """A grid whose index maps, and kernel, see the first `num_scalar_prefetch` arguments before anything is fetched."""

    def __init__(
        self,
        num_scalar_prefetch: int,
        grid: Any = (),
        in_specs: Any = no_block_spec,
        out_specs: Any = no_block_spec,
        scratch_shapes: Any = (),
    ):
        super().__init__(grid, in_specs, out_specs, scratch_shapes)
        self.num_scalar_prefetch = num_scalar_prefetch


def _sizes(grid: Any) -> tuple[tuple[Any, ...], tuple[Hashable, ...] | None]:
    """(sizes, names or None) of a grid as users write it."""
    names = None
    if not isinstance(grid, tuple | list):
        grid = (grid,)
    elif grid and isinstance(grid[0], tuple):
        names, grid = zip(*grid)
    sizes = tuple([operator.index(g) if _is_index(g) else g for g in grid])
    for g in sizes:
        if not isinstance(g, int | Tracer | Array) and not is_symbolic_dim(g):
            raise errors.ArgumentValueError(f"Grid must be a tuple of integers or jax.Array, got {tuple(grid)}")
        if isinstance(g, int) and g < 0:
            raise errors.ArgumentValueError(f"the sizes of a grid cannot be negative, got {tuple(grid)}")
    return sizes, names


def _is_index(value: Any) -> bool:
    return hasattr(type(value), "__index__") and not isinstance(value, Tracer | Array) and not is_symbolic_dim(value)
