"""What back ends read of a kernel's grid: a `GridMapping`, made of a `GridSpec` and the types of operands and results.

Of each operand and result there is a `BlockMapping`: the block's type as the kernel sees it, and a Jaxpr that gives the
block of a step.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrt import errors, tree_util
from meshrt.core.jaxpr import Jaxpr, Literal
from meshrt.core.references import AbstractRef
from meshrt.core.trace import trace_to_jaxpr
from meshrt.core.types import ShapedArray, aval_of
from meshrt.experimental.kernels.grid import DYNAMIC, GridFrame, in_grid
from meshrt.experimental.kernels.memory import MemorySpace, ref_aval_of
from meshrt.experimental.kernels.specs import (
    BlockDim,
    Blocked,
    BlockSpec,
    BoundedSlice,
    Buffered,
    Element,
    GridSpec,
    Squeezed,
    block_dim,
    block_size,
    no_block_spec,
)
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.state_indices import Slice

__all__ = ["BlockMapping", "GridMapping", "KernelArguments", "block_mapping", "described", "grid_mapping"]

INDEX = ShapedArray((), np.dtype(np.int32))


@dataclass(frozen=True, eq=False)
class BlockMapping:
    """How steps of a grid see one operand or result.

    `index_map` takes an int32 per dimension of the grid (mapped ones included), then references to the scalars that are
    fetched before. It gives an int32 per dimension of the block: a block's number (`Blocked`), an element's (`Element`,
    `Squeezed`), and of a `BoundedSlice` two, start and size.
    """

    block_shape: tuple[BlockDim, ...]
    array_aval: ShapedArray
    ref_aval: AbstractRef
    index_map: Jaxpr
    origin: str
    pipeline_mode: Buffered | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many elements a block has in each dimension of the array."""
        return tuple(map(block_size, self.block_shape))

    @property
    def squeezed(self) -> tuple[int, ...]:
        """The dimensions that the kernel does not see."""
        return tuple([d for d, b in enumerate(self.block_shape) if isinstance(b, Squeezed)])

    @property
    def padding(self) -> tuple[tuple[int, int], ...]:
        """How many elements stand before and behind the array in each dimension."""
        return tuple([b.padding if isinstance(b, Element) else (0, 0) for b in self.block_shape])

    @property
    def memory_space(self) -> Any:
        return self.ref_aval.memory_space

    @property
    def is_whole(self) -> bool:
        """Whether each step sees the whole array."""
        plain = all(isinstance(b, Blocked) for b in self.block_shape) and self.sizes == self.array_aval.shape
        return plain and all(type(a) is Literal and a.val == 0 for a in self.index_map.outvars)

    replace = dataclasses.replace

    def __repr__(self) -> str:
        return f"BlockMapping({self.origin}: {self.ref_aval} of {self.array_aval.short()})"


@dataclass(frozen=True, eq=False)
class GridMapping:
    """A kernel's grid and all that goes with it.

    The call takes    captured references, sizes of dynamic dimensions, scalars to fetch before, inputs.
    The kernel takes  indices (unmapped dimensions), sizes of dynamic dimensions, scalars, inputs, outputs, scratch.

    `vmapped_dims` are dimensions of the grid that a vmap added: index maps see their indices, the kernel does not.
    """

    grid: tuple[Any, ...]  # ints, or DYNAMIC
    grid_names: tuple[Hashable, ...] | None
    blocks: tuple[BlockMapping, ...]  # of inputs, then of outputs
    num_scalars: int
    num_inputs: int
    num_outputs: int
    scalar_avals: tuple[AbstractRef, ...]
    scratch_avals: tuple[AbstractRef, ...]
    vmapped_dims: tuple[int, ...] = ()

    @property
    def num_dynamic(self) -> int:
        """How many sizes of the grid are known only when the program runs."""
        return sum(g is DYNAMIC for g in self.grid)

    @property
    def kernel_dims(self) -> tuple[int, ...]:
        """The dimensions that the kernel knows of."""
        return tuple([d for d in range(len(self.grid)) if d not in self.vmapped_dims])

    @property
    def in_blocks(self) -> tuple[BlockMapping, ...]:
        return self.blocks[: self.num_inputs]

    @property
    def out_blocks(self) -> tuple[BlockMapping, ...]:
        return self.blocks[self.num_inputs :]

    @property
    def num_leading(self) -> int:
        """How many arguments of the kernel are no references: indices and sizes."""
        return len(self.kernel_dims) + self.num_dynamic

    @property
    def ref_avals(self) -> tuple[AbstractRef, ...]:
        """The types of the kernel's references: scalars, inputs, outputs, scratch."""
        return (*self.scalar_avals, *[b.ref_aval for b in self.blocks], *self.scratch_avals)

    def sizes(self, dynamic: Sequence[Any]) -> tuple[Any, ...]:
        """The grid with the operands that are its dynamic sizes."""
        rest = iter(dynamic)
        return tuple([next(rest) if g is DYNAMIC else g for g in self.grid])

    replace = dataclasses.replace

    def __repr__(self) -> str:
        return f"GridMapping(grid={self.grid}, blocks={self.blocks})"


# ----------------------------------------------------------------------------------------------------------------------
# Making them


def described(fun: Callable[..., Any]) -> str:
    """A function by its name and the line where it stands."""
    while isinstance(fun, functools.partial):
        fun = fun.func
    fun = inspect.unwrap(fun)
    fun = getattr(fun, "function", fun)
    name = getattr(fun, "__name__", type(fun).__name__)
    code = getattr(fun, "__code__", None)
    return name if code is None else f"{name} at {code.co_filename}:{code.co_firstlineno}"


def block_mapping(
    spec: Any,
    origin: str,
    array: ShapedArray,
    grid: Sequence[Any],
    scalars: Any,
    scalar_tree: Any,
) -> BlockMapping:
    """The mapping for an array of type `array`; `scalars` are the types of references that the index map gets, in a
    tuple of structure `scalar_tree`.

    Raises:
      ArgumentValueError: block shape, index map and array do not fit.
    """
    spec = BlockSpec() if spec is no_block_spec else spec
    if not isinstance(spec, BlockSpec):
        raise errors.ArgumentTypeError(f"{origin}: expected a BlockSpec, got {spec!r}")
    shape = tuple(map(block_dim, array.shape if spec.block_shape is None else spec.block_shape))
    if len(shape) != array.ndim:
        raise errors.ArgumentValueError(
            f"Block shape for {origin} (= {shape}) must have the same number of dimensions as the array shape "
            f"{array.shape}."
        )
    seen = tuple([block_size(b) for b in shape if not isinstance(b, Squeezed)])
    space = MemorySpace.DEFAULT if spec.memory_space is None else spec.memory_space
    index_map = spec.index_map if spec.index_map is not None else lambda *_: (0,) * array.ndim
    return BlockMapping(
        shape, array, AbstractRef(array.bare().update(shape=seen, weak_type=False), space),
        _index_jaxpr(index_map, origin, shape, grid, scalars, scalar_tree), origin, spec.pipeline_mode,
    )  # fmt: skip


def _index_jaxpr(
    index_map: Callable[..., Any],
    origin: str,
    shape: tuple[BlockDim, ...],
    grid: Sequence[Any],
    scalars: Any,
    tree: Any,
) -> Jaxpr:
    where = described(index_map)

    def flat(*args: Any) -> list[Any]:
        indices, refs = args[: len(grid)], args[len(grid) :]
        with in_grid(GridFrame(indices, grid)):
            out = index_map(*indices, *tree_util.tree_unflatten(tree, refs))
        out = tuple(out) if isinstance(out, list | tuple) else (out,)
        if len(out) != len(shape):
            raise errors.ArgumentValueError(
                f"Index map function {where} for {origin} must return {len(shape)} values to match "
                f"block_shape={shape}. Currently returning {len(out)} values:"
            )
        return [
            x for i, (value, dim) in enumerate(zip(out, shape)) for x in _index_values(value, dim, i, where, origin)
        ]

    closed = trace_to_jaxpr(flat, [*[INDEX] * len(grid), *scalars], f"index map of {origin}")
    if closed.consts:
        raise errors.ArgumentValueError(
            f"Index map function {where} for {origin} must not capture constants: {closed.consts}. Pass them as "
            "arguments of the kernel (pltpu.PrefetchScalarGridSpec)"
        )
    return closed.jaxpr


def _index_values(value: Any, dim: BlockDim, at: int, where: str, origin: str) -> list[Any]:
    """What an index map gives for one dimension, as int32 scalars."""
    if isinstance(dim, BoundedSlice):
        if not isinstance(value, Slice | slice):
            raise errors.ArgumentValueError(
                f"index_map returned a value of type {type(value)} at position {at} with block dimension {dim} when it "
                "should be pl.Slice"
            )
        start, size = (value.start, value.size) if isinstance(value, Slice) else (value.start, value.stop - value.start)
        return [_index_value(start, at, where, origin), _index_value(size, at, where, origin)]
    if isinstance(value, Slice | slice):
        raise errors.ArgumentValueError(
            f"index_map returned a value of type {type(value)} at position {at} with block dimension {dim} when it "
            "should be a scalar"
        )
    return [_index_value(value, at, where, origin)]


def _index_value(value: Any, at: int, where: str, origin: str) -> Any:
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return np.int32(value)
    aval = aval_of(value)
    if aval.shape or not np.issubdtype(aval.dtype, np.integer):
        raise errors.ArgumentValueError(
            f"Index map function {where} for {origin} must return integer scalars. Output[{at}] has type {aval}."
        )
    return convert_element_type(value, np.dtype(np.int32))


@dataclass(frozen=True)
class KernelArguments:
    """What a kernel function gets: types of references, in pytrees as users gave them."""

    scalars: tuple[Any, ...]
    inputs: tuple[Any, ...]
    outputs: Sequence[Any]
    scratch: Any  # a sequence, or a dictionary of keyword arguments


def grid_mapping(
    spec: GridSpec, args: tuple[Any, ...], arg_origins: Sequence[str], out: Any, out_origins: Sequence[str]
) -> tuple[GridMapping, KernelArguments]:
    """The mapping of a grid over `args` and results `out`: types, in pytrees.

    Raises:
      ArgumentValueError: specifications do not fit arguments or results.
    """
    grid = tuple([g if isinstance(g, int) else DYNAMIC for g in spec.grid])
    scalars = tree_util.tree_map(spec.scalar_type, args[: spec.num_scalar_prefetch])
    scalar_avals, scalar_tree = tree_util.tree_flatten(scalars)
    inputs = args[spec.num_scalar_prefetch :]
    make = functools.partial(block_mapping, grid=grid, scalars=scalar_avals, scalar_tree=scalar_tree)
    ins = _blocks(spec.in_specs, inputs, arg_origins[len(scalar_avals) :], ("`in_specs`", "`inputs`"), make)
    outs = _blocks(spec.out_specs, out, out_origins, ("`out_specs`", "`out_shape`"), make)
    is_type = lambda x: hasattr(x, "get_ref_aval") or hasattr(x, "shape")
    scratch = tree_util.tree_map(lambda t: ref_aval_of(t, "scratch_shapes"), spec.scratch_shapes, is_leaf=is_type)
    mapping = GridMapping(
        grid, spec.grid_names, (*ins, *outs), len(scalar_avals), len(ins), len(outs), tuple(scalar_avals),
        tuple(tree_util.tree_leaves(scratch)),
    )  # fmt: skip
    out_refs = tree_util.tree_unflatten(tree_util.tree_structure(out), [b.ref_aval for b in outs])
    in_refs = tree_util.tree_unflatten(tree_util.tree_structure(inputs), [b.ref_aval for b in ins])
    whole = out_refs if isinstance(out_refs, tuple | list) else (out_refs,)
    return mapping, KernelArguments(scalars, in_refs, whole, scratch)


def _blocks(
    specs: Any, arrays: Any, origins: Sequence[str], names: tuple[str, str], make: Callable[..., BlockMapping]
) -> list[BlockMapping]:
    avals, tree = tree_util.tree_flatten(arrays)
    if specs is no_block_spec:
        flat: list[Any] = [no_block_spec] * len(avals)
    else:
        flat, spec_tree = tree_util.tree_flatten(specs)
        if spec_tree != tree:
            raise errors.ArgumentValueError(_unlike_trees(names, spec_tree, tree))
    return [make(s, o, a) for s, o, a in zip(flat, origins, avals)]


def _unlike_trees(names: tuple[str, str], one: Any, other: Any) -> str:
    found = []
    differences = list(tree_util.equality_errors(*[t.unflatten([0] * t.num_leaves) for t in (one, other)]))
    for path, mine, theirs, why in differences:
        where = f"at {tree_util.keystr(path)}, " if path else ""
        mine, theirs = ["a pytree leaf" if x.startswith("a leaf") else x for x in (mine, theirs)]
        found.append(f"    * {where}{names[0]} is {mine} but {names[1]} is {theirs}, so {why}")
    count = f"There are {len(differences)} mismatches, including:"
    return "\n".join([f"Pytree for {names[0]} and {names[1]} do not match. {count}", *found])
