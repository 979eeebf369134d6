"""`emit_pipeline`: a grid inside of a kernel, whose blocks are copied in and out while others are worked on.

Each operand gets as many buffers as its `pipeline_mode` says, two by default, and a DMA semaphore for each. At each
step the next block is fetched if it is another one, the present one awaited, the body run on views of the buffers, and
blocks of results that are finished are sent back. References that lie in the core's memory already are not copied.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrt import errors, lax, tree_util
from meshrt import numpy as jnp
from meshrt.core.references import is_ref
from meshrt.core.tracebacks import boundary
from meshrt.experimental.kernels.copies import make_async_copy
from meshrt.experimental.kernels.grid import GridFrame, in_grid, num_programs, program_id
from meshrt.experimental.kernels.helpers import shown_type, when
from meshrt.experimental.kernels.mapping import described
from meshrt.experimental.kernels.memory import SemaphoreType, TpuMemorySpace
from meshrt.experimental.kernels.params import GridDimensionSemantics
from meshrt.experimental.kernels.scopes import run_scoped
from meshrt.experimental.kernels.semaphores import ref_and_view
from meshrt.experimental.kernels.specs import (
    Blocked,
    BlockSpec,
    Element,
    Squeezed,
    block_dim,
    block_size,
    no_block_spec,
)
from meshrt.primitives.references import RefView
from meshrt.primitives.state_indices import ds

__all__ = ["emit_pipeline"]


@boundary
def emit_pipeline(
    body: Callable[..., None],
    *,
    grid: Any,
    in_specs: Any = (),
    out_specs: Any = (),
    tiling: Any = None,
    core_axis: int | None = None,
    core_axis_name: Any = None,
    dimension_semantics: Sequence[Any] | None = None,
    trace_scopes: bool = True,
    no_pipelining: bool = False,
    _explicit_indices: bool = False,
) -> Callable[..., None]:
    """A function of references that runs `body` at each step of a grid, on blocks of them.

    Args:
      body: takes a reference per operand and result to the block of the step, in the core's own memory (VMEM).
      grid: sizes, of which all may be computed.
      in_specs, out_specs: BlockSpecs, as those of `pallas_call`; the function takes references to operands, then to
        results, in any memory.
      core_axis, core_axis_name: the cores along this dimension of the grid, or axis of a core mesh, share the steps of
        the first parallel dimension that their number divides.
      dimension_semantics: per dimension of the grid "parallel" or "arbitrary".
      no_pipelining: copies in, runs, copies out, one after the other.

    Raises:
      ArgumentValueError: sizes of the grid that are not positive, or references without specifications.
    """
    sizes = tuple(grid) if isinstance(grid, tuple | list) else (grid,)
    if any(isinstance(g, int) and g <= 0 for g in sizes):
        raise errors.ArgumentValueError(f"All elements in the grid must be strictly positive, but got grid={sizes}")
    ins = _flat_specs(in_specs)
    outs = _flat_specs(out_specs)

    @boundary
    def run(*refs: Any, scratches: Sequence[Any] = (), allocations: Any = None) -> None:
        if allocations is not None:
            raise errors.UnsupportedError(
                "emit_pipeline(allocations=...): buffers are made by the pipeline; keep what should outlive it in "
                "scratch memory of the kernel"
            )
        leaves = tree_util.tree_leaves(refs, is_leaf=lambda x: type(x) is RefView or is_ref(x))
        if len(leaves) != len(ins) + len(outs):
            raise errors.ArgumentValueError(
                f"emit_pipeline of {described(body)}: {len(leaves)} references for {len(ins)} in_specs and {len(outs)} "
                "out_specs; give one of each"
            )
        share, first = _shared(sizes, core_axis, core_axis_name, dimension_semantics)
        operands = [
            _Operand(ref, spec, k >= len(ins), no_pipelining)
            for k, (ref, spec) in enumerate(zip(leaves, (*ins, *outs)))
        ]
        _run(body, operands, share, first, tuple(scratches), _explicit_indices)

    return run


def _flat_specs(specs: Any) -> list[BlockSpec]:
    flat = tree_util.tree_leaves(specs)
    return [BlockSpec() if s is no_block_spec else s for s in flat]


def _shared(
    sizes: Sequence[Any], core_axis: int | None, name: Any, semantics: Sequence[Any] | None
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """(sizes of this core's part of a grid, its first indices)."""
    nothing = (0,) * len(sizes)
    if core_axis is None and name is None:
        return tuple(sizes), nothing
    count = lax.axis_size(name) if core_axis is None else num_programs(core_axis)
    own = lax.axis_index(name) if core_axis is None else program_id(core_axis)
    if count == 1:
        return tuple(sizes), nothing
    parallel = [
        d for d in range(len(sizes))
        if semantics is not None and semantics[d] in (GridDimensionSemantics.PARALLEL, "parallel")
    ]  # fmt: skip
    if not parallel:
        raise errors.ArgumentValueError(
            f"emit_pipeline over {count} cores needs a dimension of the grid {tuple(sizes)} that is parallel: name "
            "it in dimension_semantics"
        )
    divided = [d for d in parallel if isinstance(sizes[d], int) and sizes[d] % count == 0]
    if not divided:
        raise errors.ArgumentValueError(
            f"emit_pipeline over {count} cores: none of the parallel sizes {[sizes[d] for d in parallel]} is a "
            f"multiple of {count}; pad the grid"
        )
    at = divided[0]
    part = sizes[at] // count
    return tuple([part if d == at else g for d, g in enumerate(sizes)]), tuple(
        [own * part if d == at else 0 for d in range(len(sizes))]
    )


# ----------------------------------------------------------------------------------------------------------------------
# One operand


@dataclass
class _Operand:
    """A reference, how it is cut into blocks, and, within a pipeline, its buffers."""

    ref: Any
    spec: BlockSpec
    is_output: bool
    no_pipelining: bool
    buffers: Any = None
    semaphores: Any = None

    def __post_init__(self) -> None:
        self.kind = shown_type(self.ref)
        shape = self.kind.shape if self.spec.block_shape is None else self.spec.block_shape
        self.dims = tuple(map(block_dim, shape))
        if len(self.dims) != self.kind.ndim:
            raise errors.ArgumentValueError(
                f"emit_pipeline: block shape {tuple(shape)} for a reference of shape {self.kind.shape}: give a size "
                "for each dimension"
            )
        for dim in self.dims:
            if not isinstance(dim, Blocked | Squeezed | Element) or (isinstance(dim, Element) and any(dim.padding)):
                raise errors.UnsupportedError(f"emit_pipeline: blocks with dimensions {dim} are not implemented")
        self.shape = tuple([block_size(d) for d in self.dims if not isinstance(d, Squeezed)])
        whole = ref_and_view(self.ref)[0]
        self.is_near = getattr(whole.aval, "memory_space", None) in (TpuMemorySpace.VMEM, TpuMemorySpace.SMEM)
        mode = self.spec.pipeline_mode
        self.count = 1 if self.no_pipelining else (2 if mode is None else mode.buffer_count)
        if self.count < 1:
            raise errors.ArgumentValueError(f"emit_pipeline: buffer_count must be positive, got {self.count}")

    def scratch(self) -> list[Any]:
        """The types of memory that it needs."""
        if self.is_near:
            return []
        space = self.spec.memory_space if isinstance(self.spec.memory_space, TpuMemorySpace) else TpuMemorySpace.VMEM
        return [space((self.count, *self.shape), self.kind.dtype), SemaphoreType.DMA((self.count,))]

    def block(self, indices: Sequence[Any]) -> tuple[Any, ...]:
        """What the index map gives at a step."""
        if self.spec.index_map is None:
            return (0,) * len(self.dims)
        found: tuple[Any, ...] = self.spec.index_map(*indices)
        if len(found) != len(self.dims):
            raise errors.ArgumentValueError(
                f"Index map function {described(self.spec.index_map)} must return {len(self.dims)} values to match "
                f"block_shape={self.dims}. Currently returning {len(found)} values:"
            )
        return found

    def is_other(self, one: Sequence[Any], two: Sequence[Any]) -> Any:
        """Whether two steps have different blocks: a bool, or a scalar."""
        different: Any = False
        for a, b in zip(self.block(one), self.block(two)):
            if a is b or (isinstance(a, int) and isinstance(b, int) and a == b):
                continue
            here = jnp.asarray(a != b)
            different = here if different is False else different | here
        return different

    def _starts(self, block: Sequence[Any]) -> list[Any]:
        return [b * dim.block_size if isinstance(dim, Blocked) else b for b, dim in zip(block, self.dims)]

    def _view(self, block: Sequence[Any], sizes: Sequence[int]) -> Any:
        """The part of the reference that is a block, of which only `sizes` elements may exist."""
        places = zip(self._starts(block), sizes, self.dims)
        return self.ref.at[tuple([s if isinstance(dim, Squeezed) else ds(s, n) for s, n, dim in places])]

    def near(self, slot: Any, block: Sequence[Any]) -> Any:
        """What the body gets."""
        if self.is_near:
            return self._view(block, [block_size(d) for d in self.dims])
        return self.buffers.at[slot]

    def each_copy(self, slot: Any, block: Sequence[Any], do: Callable[[Any], None]) -> None:
        """Applies `do` to the copy of a block; where blocks reach over the end, to that of what there is."""
        ragged = [d for d, (n, dim) in enumerate(zip(self.kind.shape, self.dims)) if n % block_size(dim)]
        full = [block_size(d) for d in self.dims]
        for cut in itertools.product((False, True), repeat=len(ragged)):
            sizes = list(full)
            chosen: Any = True
            for d, is_last in zip(ragged, cut):
                last = block[d] == self.kind.shape[d] // full[d]
                sizes[d] = self.kind.shape[d] % full[d] if is_last else full[d]
                chosen = jnp.logical_and(chosen, last if is_last else jnp.logical_not(last))
            when(chosen)(functools.partial(self._one_copy, slot, block, tuple(sizes), do))

    def _one_copy(self, slot: Any, block: Sequence[Any], sizes: Sequence[int], do: Callable[[Any], None]) -> None:
        far = self._view(block, sizes)
        seen = [n for n, dim in zip(sizes, self.dims) if not isinstance(dim, Squeezed)]
        near = self.buffers.at[(slot, *[ds(0, n) for n in seen])]
        source, target = (near, far) if self.is_output else (far, near)
        do(make_async_copy(source, target, self.semaphores.at[slot]))

    def start(self, slot: Any, block: Sequence[Any]) -> None:
        self.each_copy(slot, block, lambda copy: copy.start())

    def wait(self, slot: Any, block: Sequence[Any]) -> None:
        self.each_copy(slot, block, lambda copy: copy.wait())


# ----------------------------------------------------------------------------------------------------------------------
# The steps


def _run(
    body: Callable[..., None], operands: Sequence[_Operand], sizes: Sequence[Any], first: Sequence[Any],
    scratches: tuple[Any, ...], explicit: bool,
) -> None:  # fmt: skip
    far = [o for o in operands if not o.is_near]

    def with_buffers(*memory: Any) -> None:
        for o, (buffers, semaphores) in zip(far, zip(memory[::2], memory[1::2])):
            o.buffers, o.semaphores = buffers, semaphores
        _steps(body, operands, far, _Grid(sizes, first), scratches, explicit)

    run_scoped(with_buffers, *[ty for o in far for ty in o.scratch()])


class _Grid:
    """A grid that is run through from the step 0 on, the last dimension fastest; `first` are the indices there."""

    def __init__(self, sizes: Sequence[Any], first: Sequence[Any]):
        self.sizes, self.first = sizes, first
        self.is_static = all(isinstance(g, int) for g in sizes)
        self.steps: Any = functools.reduce(operator.mul, sizes, 1 if self.is_static else np.int32(1))

    def indices(self, step: Any) -> list[Any]:
        out: list[Any] = []
        rest = step
        for d in range(len(self.sizes) - 1, -1, -1):
            size = self.sizes[d]
            at = rest if d == 0 else lax.rem(rest, jnp.int32(size))
            rest = rest if d == 0 else lax.div(rest, jnp.int32(size))
            out.append(np.int32(0) if isinstance(size, int) and size == 1 else at)
        shifted = [i if isinstance(f, int) and f == 0 else i + f for i, f in zip(out[::-1], self.first)]
        return shifted


def _steps(
    body: Callable[..., None], operands: Sequence[_Operand], far: Sequence[_Operand], grid: _Grid,
    scratches: tuple[Any, ...], explicit: bool,
) -> None:  # fmt: skip
    zero = jnp.int32(0)
    begin = grid.indices(zero)

    def step(i: Any, counts: Sequence[Any]) -> list[Any]:
        """`counts`: how many blocks of each operand that is copied have been begun before this step."""
        now, before, after = grid.indices(i), grid.indices(jnp.maximum(i - 1, 0)), grid.indices(i + 1)
        is_first, is_last = i == 0, i == grid.steps - 1
        new = [jnp.logical_or(is_first, o.is_other(now, before)) for o in far]
        counts = [c + n.astype(np.int32) for c, n in zip(counts, new)]
        slots = {id(o): lax.rem(c - 1, jnp.int32(o.count)) for o, c in zip(far, counts)}

        def fetch(o: _Operand, count: Any, is_new: Any) -> None:
            if o.count > 1:
                ahead = jnp.logical_and(jnp.logical_not(is_last), o.is_other(now, after))
                when(ahead)(lambda: o.start(lax.rem(count, jnp.int32(o.count)), o.block(after)))
            else:
                when(jnp.logical_and(is_new, i > 0))(lambda: o.start(slots[id(o)], o.block(now)))
            when(is_new)(lambda: o.wait(slots[id(o)], o.block(now)))

        def await_sent(o: _Operand, count: Any, is_new: Any) -> None:
            """Waits until the block before, if it is another one, has left."""
            slot = lax.rem(count + (o.count - 2), jnp.int32(o.count))
            when(jnp.logical_and(is_new, i > 0))(lambda: o.wait(slot, o.block(before)))

        for o, count, is_new in zip(far, counts, new):
            if not o.is_output:
                fetch(o, count, is_new)
            elif o.count == 1:
                await_sent(o, count, is_new)
        views = [o.near(slots.get(id(o), zero), o.block(now)) for o in operands]
        with in_grid(GridFrame(now, grid.sizes)):
            body(*((tuple(now),) if explicit else ()), *views, *scratches)
        for o, count, is_new in zip(far, counts, new):
            if o.is_output:
                finished = jnp.logical_or(is_last, o.is_other(now, after))
                when(finished)(functools.partial(o.start, slots[id(o)], o.block(now)))
                if o.count > 1:
                    await_sent(o, count, is_new)
                when(is_last)(functools.partial(o.wait, slots[id(o)], o.block(now)))
        return counts

    for o in far:
        if not o.is_output:
            o.start(zero, o.block(begin))
    lax.fori_loop(zero, jnp.int32(grid.steps), step, [zero] * len(far))
