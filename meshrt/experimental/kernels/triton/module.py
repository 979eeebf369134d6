"""A kernel's module: one function of pointers to whole operands and results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import arith, scf
from jaxlib.triton import dialect as tt

from meshrt import errors
from meshrt.core.jaxpr import Jaxpr, subjaxprs
from meshrt.core.types import ShapedArray
from meshrt.experimental.kernels.copies import dma_start_p, dma_wait_p
from meshrt.experimental.kernels.mapping import BlockMapping, GridMapping
from meshrt.experimental.kernels.memory import is_semaphore
from meshrt.experimental.kernels.mlir.dialects import classes_are_in
from meshrt.experimental.kernels.mlir.indices import places_of
from meshrt.experimental.kernels.mlir.verify import verify
from meshrt.experimental.kernels.mlir.walk import operands_text
from meshrt.experimental.kernels.semaphores import (
    get_barrier_semaphore_p,
    semaphore_read_p,
    semaphore_signal_p,
    semaphore_wait_p,
)
from meshrt.experimental.kernels.specs import Blocked, Element, Squeezed
from meshrt.experimental.kernels.triton.pointers import STORED_BOOL, Block, outside
from meshrt.experimental.kernels.triton.walk import TritonWalk
from meshrt.shape_dtype import ShapeDtypeStruct
from meshrt.staging import make_jaxpr
from meshrt.transforms.discharge import discharged, settled
from propagation.contexts import new_context

__all__ = ["kernel_text", "launch_grid"]

classes_are_in("tt", tt)

_OTHER_CHIPS = (
    dma_start_p, dma_wait_p, semaphore_signal_p, semaphore_wait_p, semaphore_read_p, get_barrier_semaphore_p,
)  # fmt: skip
Turns = Callable[..., tuple[Any, Any]]
_AXES = ("X", "Y", "Z")
# What CUDA takes along the second and third dimension of a launch.
_MOST_PROGRAMS = 65535


def launch_grid(grid: Sequence[int]) -> tuple[int, int, int]:
    """The three sizes of a launch: those of the grid, or one for all where there are more or they are long."""
    if len(grid) <= 3 and all(n <= _MOST_PROGRAMS for n in grid[1:]):
        return (*grid, *[1] * (3 - len(grid)))  # type: ignore[return-value]
    return int(np.prod(grid)), 1, 1


def kernel_text(
    name: str, jaxpr: Jaxpr, mapping: GridMapping, sequential: Sequence[int] = (), turns: Turns | None = None
) -> tuple[str, tuple[int, int, int]]:
    """The module of a kernel, as text, and the sizes of its launch.

    Each program runs all steps along the `sequential` dimensions of the grid, one after the other; of the last
    dimension those that `turns` says (`TritonCompilerParams`).

    Raises:
      UnsupportedError: something that GPUs or Triton lack, with the operation and its line.
      ArgumentValueError: there are `turns`, and the last dimension is not sequential.
    """
    _check_operations(name, jaxpr)
    _check(name, mapping)
    if turns is not None and len(mapping.grid) - 1 not in sequential:
        raise errors.ArgumentValueError(
            f"compiler_params: the kernel {name} has `turns`, which say where steps along the last dimension of the "
            f"grid {mapping.grid} begin and end, but those do not run one after the other: say that it is 'arbitrary' "
            "(dimension_semantics)"
        )
    context = new_context()
    tt.register_dialect(context)
    with context, ir.Location.name(name):
        module = ir.Module.create()
        walk = TritonWalk(name)
        arrays = [*[a.inner_aval for a in mapping.scalar_avals], *[b.array_aval for b in mapping.blocks]]
        with ir.InsertionPoint(module.body):
            kinds = [tt.PointerType.get(walk.element(_stored(a)), 1) for a in arrays]
            function = _function(name, kinds)
        with ir.InsertionPoint(function.regions[0].blocks[0]):
            pointers = list(function.regions[0].blocks[0].arguments)
            launch = _Program(walk, jaxpr, mapping, sequential, turns, pointers).write()
            tt.return_([])
        verify(module, "Triton (GPU)", name)
        return str(module.operation.get_asm()), launch


def _stored(aval: ShapedArray) -> Any:
    return STORED_BOOL if aval.dtype == np.bool_ else aval.dtype


def _check(name: str, mapping: GridMapping) -> None:
    refused = None
    if mapping.num_dynamic:
        refused = "a launch on a GPU has sizes known while compiling; make the grid's sizes ints"
    elif any(map(is_semaphore, mapping.scratch_avals)):
        refused = "a GPU's programs have no semaphores and copy nothing; give operands blocks"
    for b in mapping.blocks:
        if not all(isinstance(d, Blocked | Element | Squeezed) for d in b.block_shape):
            refused = f"{b.origin}: blocks have fixed sizes; {b.block_shape}"
        elif any(p != (0, 0) for p in b.padding):
            refused = f"{b.origin}: blocks have no padding"
    if refused is not None:
        raise errors.UnsupportedError(f"Triton (GPU): the kernel {name} cannot be compiled: {refused}")


def _check_operations(name: str, jaxpr: Jaxpr) -> None:
    """Refuses semaphores and copies, before references become what loops carry: a wait would become nothing."""
    for eqn in jaxpr.eqns:
        if eqn.primitive in _OTHER_CHIPS or any(is_semaphore(v.aval) for v in eqn.outvars):
            raise errors.UnsupportedError(
                f"Triton (GPU): the kernel {name} cannot be compiled: '{eqn.primitive}' of {operands_text(eqn)} at "
                f"{eqn.source}: a GPU's programs have no semaphores and copy nothing. Give operands blocks, which are "
                "read and written by pointers, instead of copies (async_copy, emit_pipeline)"
            )
        for inner in subjaxprs(eqn.params):
            _check_operations(name, inner)


def _function(name: str, kinds: Sequence[ir.Type]) -> Any:
    aligned = ir.DictAttr.get({"tt.divisibility": ir.IntegerAttr.get(ir.IntegerType.get_signless(32), 16)})
    function = tt.FuncOp(
        sym_name=name, function_type=ir.TypeAttr.get(ir.FunctionType.get(list(kinds), [])), sym_visibility="public",
        arg_attrs=ir.ArrayAttr.get([aligned] * len(kinds)), res_attrs=ir.ArrayAttr.get([]),
    )  # fmt: skip
    function.regions[0].blocks.append(*kinds)
    return function


class _Program:
    """Writes the body of a function: of the steps of one program.

    Scratch memory is what the loops over its steps carry, and so are references that the kernel makes itself.
    """

    def __init__(
        self,
        walk: TritonWalk,
        jaxpr: Jaxpr,
        mapping: GridMapping,
        sequential: Sequence[int],
        turns: Turns | None,
        pointers: Sequence[ir.Value],
    ):
        self.walk, self.mapping, self.sequential, self.turns = walk, mapping, tuple(sequential), turns
        self.scalars = [_scalars(p, a) for p, a in zip(pointers, mapping.scalar_avals)]
        self.pointers = pointers[mapping.num_scalars :]
        kept = len(jaxpr.invars) - len(mapping.scratch_avals)
        flags = tuple([i >= kept for i in range(len(jaxpr.invars))])
        self.body = discharged(settled(jaxpr), flags, flags).closed.jaxpr if mapping.scratch_avals else settled(jaxpr)

    def write(self) -> tuple[int, int, int]:
        """Writes all steps; the sizes of the launch."""
        grid = self.mapping.grid
        parallel = [d for d in range(len(grid)) if d not in self.sequential]
        launch = launch_grid([grid[d] for d in parallel])
        places = dict(zip(parallel, _indices(self.walk, [grid[d] for d in parallel], launch)))
        scratch = [self.walk.constant(outside(a.dtype), a.shape, a.dtype) for a in self.mapping.scratch_avals]
        self._steps(places, self.sequential, scratch)
        return launch

    def _steps(self, places: dict[int, ir.Value], left: Sequence[int], scratch: list[Any]) -> list[Any]:
        """The steps along the dimensions that are left; what scratch memory holds after them."""
        if not left:
            return self._step([places[d] for d in range(len(self.mapping.grid))], scratch)
        first, *rest = left
        op = scf.ForOp(*self._ends(first, places), self.walk.i32(1), scratch)
        with ir.InsertionPoint(op.body):
            here = {**places, first: op.induction_variable}
            scf.yield_(self._steps(here, rest, list(op.inner_iter_args)))
        return list(op.results)

    def _ends(self, dim: int, places: dict[int, ir.Value]) -> Sequence[ir.Value]:
        """The first step along a dimension, and the one behind the last."""
        last = len(self.mapping.grid) - 1
        if self.turns is None or dim != last:
            return self.walk.i32(0), self.walk.i32(self.mapping.grid[dim])
        others = [places[d] for d in range(last) if d not in self.mapping.vmapped_dims]
        traced = make_jaxpr(self.turns)(*[ShapeDtypeStruct((), np.int32)] * len(others))
        return self.walk.jaxpr(settled(traced.jaxpr), others)

    def _step(self, indices: Sequence[ir.Value], scratch: list[Any]) -> list[Any]:
        mapping, walk = self.mapping, self.walk
        blocks = [
            _block(walk, b, p, places_of(walk, b.index_map, [*indices, *self.scalars]))
            for b, p in zip(mapping.blocks, self.pointers)
        ]
        return walk.jaxpr(self.body, [*[indices[d] for d in mapping.kernel_dims], *self.scalars, *blocks, *scratch])


def _scalars(pointer: ir.Value, aval: Any) -> Block:
    """Scalars that are fetched before, as the whole array that they are."""
    nowhere = (False,) * aval.ndim
    return Block(pointer, aval.shape, (0,) * aval.ndim, aval.shape, nowhere, nowhere, aval.dtype)


def _indices(walk: TritonWalk, grid: Sequence[int], launch: Sequence[int]) -> list[ir.Value]:
    """The program's place in the grid."""
    axis = lambda name: tt.get_program_id(getattr(tt.ProgramIDDim, name))
    if len(grid) <= 3 and launch[: len(grid)] == tuple(grid):
        return [axis(_AXES[d]) for d in range(len(grid))]
    rest: ir.Value = axis("X")
    found: list[ir.Value] = []
    for n in grid:  # neighbours along the first dimension run beside one another, as in a launch of three
        found.append(arith.remui(rest, walk.i32(n)))
        rest = arith.divui(rest, walk.i32(n))
    return found


def _block(walk: TritonWalk, block: BlockMapping, pointer: ir.Value, places: Sequence[ir.Value]) -> Block:
    starts: list[Any] = []
    ragged = []
    for dim, size, place, n in zip(block.block_shape, block.sizes, places, block.array_aval.shape):
        whole = isinstance(dim, Blocked) and size >= n
        by_block = isinstance(dim, Blocked) and size != 1
        starts.append(0 if whole else arith.muli(place, walk.i32(size)) if by_block else place)
        ragged.append(n % size != 0 if isinstance(dim, Blocked) else isinstance(dim, Element) and size < n)
    hidden = tuple([isinstance(d, Squeezed) for d in block.block_shape])
    aval = block.array_aval
    return Block(pointer, aval.shape, tuple(starts), block.sizes, hidden, tuple(ragged), aval.dtype)
