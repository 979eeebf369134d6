"""`emit_pipeline`: a grid inside of a kernel, whose blocks are copied in and out while others are worked on.

Each operand gets as many buffers as its `pipeline_mode` says, two by default, and a DMA semaphore for each. At each
step the next block is fetched if it is another one, the present one awaited, the body run on views of the buffers, and
blocks of results that are finished are sent back. References that lie in the core's memory already are not copied.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshrt import errors, lax, tree_util
from meshrt import numpy as jnp
from meshrt.core.references import is_ref
from meshrt.core.tracebacks import boundary
from meshrt.experimental.kernels.buffered import BufferedRef, BufferType, Operand
from meshrt.experimental.kernels.grid import GridFrame, in_grid, num_programs, program_id
from meshrt.experimental.kernels.helpers import when
from meshrt.experimental.kernels.mapping import described
from meshrt.experimental.kernels.params import GridDimensionSemantics
from meshrt.experimental.kernels.scopes import run_scoped
from meshrt.experimental.kernels.specs import BlockSpec, no_block_spec
from meshrt.primitives.references import RefView

__all__ = ["emit_pipeline", "emit_pipeline_with_allocations"]


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
    specs = [(s, BufferType.INPUT) for s in _flat_specs(in_specs)]
    specs += [(s, BufferType.OUTPUT) for s in _flat_specs(out_specs)]

    @boundary
    def run(*refs: Any, scratches: Sequence[Any] = (), allocations: Any = None) -> None:
        leaves = _paired(body, refs, specs)
        share, first = _shared(sizes, core_axis, core_axis_name, dimension_semantics)
        pipeline = functools.partial(_steps, body, _Grid(share, first), tuple(scratches), _explicit_indices)
        if allocations is not None:
            given = tree_util.tree_leaves(allocations, is_leaf=lambda x: type(x) is BufferedRef)
            if len(given) != len(leaves) or any(type(b) is not BufferedRef for b in given):
                raise errors.ArgumentValueError(
                    f"emit_pipeline of {described(body)}: {len(given)} allocations for {len(leaves)} references; give "
                    "a BufferedRef of each, as emit_pipeline_with_allocations makes them"
                )
            return pipeline([Operand(ref, b) for ref, b in zip(leaves, given)])
        types = [Operand.allocated(ref, spec, kind, no_pipelining) for ref, (spec, kind) in zip(leaves, specs)]
        run_scoped(lambda *buffers: pipeline([Operand(ref, b) for ref, b in zip(leaves, buffers)]), *types)

    return run


@boundary
def emit_pipeline_with_allocations(
    body: Callable[..., None], *, grid: Any, in_specs: Any = (), out_specs: Any = ()
) -> tuple[Callable[..., None], Callable[..., tuple[BufferedRef, ...]]]:
    """A pipeline, and a function of the same references that gives the types of the buffers it needs.

    What has these types (`run_scoped`, `scratch_shapes`) is handed to the pipeline as `allocations=`, so that several
    calls use the same memory.
    """
    specs = [(s, BufferType.INPUT) for s in _flat_specs(in_specs)]
    specs += [(s, BufferType.OUTPUT) for s in _flat_specs(out_specs)]

    @boundary
    def allocations(*refs: Any) -> tuple[BufferedRef, ...]:
        leaves = _paired(body, refs, specs)
        return tuple([Operand.allocated(ref, spec, kind) for ref, (spec, kind) in zip(leaves, specs)])

    return emit_pipeline(body, grid=grid, in_specs=in_specs, out_specs=out_specs), allocations


def _paired(body: Any, refs: Any, specs: Sequence[tuple[BlockSpec, BufferType]]) -> list[Any]:
    """The references, of which there is one per specification."""
    leaves = tree_util.tree_leaves(refs, is_leaf=lambda x: type(x) is RefView or is_ref(x))
    if len(leaves) != len(specs):
        ins = sum(kind is BufferType.INPUT for _, kind in specs)
        raise errors.ArgumentValueError(
            f"emit_pipeline of {described(body)}: {len(leaves)} references for {ins} in_specs and {len(specs) - ins} "
            "out_specs; give one of each"
        )
    return leaves


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
# The grid


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


# ----------------------------------------------------------------------------------------------------------------------
# The steps


@dataclass(frozen=True)
class _Progress:
    """How far an operand is: int32 scalars.

    begun: blocks whose first step has come; block number n lies in buffer n % count.
    fetched: blocks whose copies in have been started.
    cursor: the last step whose block has been fetched, where blocks are fetched as early as buffers are free.
    """

    begun: Any
    fetched: Any
    cursor: Any


tree_util.register_pytree_node(
    _Progress, lambda p: ((p.begun, p.fetched, p.cursor), None), lambda _, parts: _Progress(*parts)
)


def _fetched(o: Operand, grid: _Grid, at: _Progress, step: Any) -> _Progress:
    """Starts to fetch the block of `step`, if it is another one than that of the step before."""
    now, before = [grid.indices(jnp.clip(k, 0, grid.steps - 1)) for k in (step, step - 1)]
    is_new = jnp.logical_and(step < grid.steps, o.is_other(before, now))
    when(is_new)(lambda: o.fetch(lax.rem(at.fetched, jnp.int32(o.count)), o.block(now)))
    return replace(at, fetched=at.fetched + is_new.astype(np.int32))


def _begin(o: Operand, grid: _Grid) -> _Progress:
    """Fetches what an operand needs before the first step: the blocks of as many steps as there are buffers but one."""
    zero = jnp.int32(0)
    at = _Progress(zero, zero, zero)
    if not o.buffers.is_input:
        return at
    when(True if isinstance(grid.steps, int) else grid.steps > 0)(lambda: o.fetch(zero, o.block(grid.indices(zero))))
    at = replace(at, fetched=jnp.int32(1))
    if not o.buffers.use_lookahead:
        for step in range(1, o.count - 1):
            at = _fetched(o, grid, at, jnp.int32(step))
    return at


def _fetch_ahead(o: Operand, grid: _Grid, at: _Progress, i: Any) -> _Progress:
    """Starts to fetch at step `i` what there is a free buffer for; block number `begun - 1` is being worked on."""
    if not o.buffers.use_lookahead:
        ahead = i + (o.count - 1)
        return _fetched(o, grid, at, ahead) if o.count > 1 else _fetched_now(o, grid, at, i)

    def turn(_: Any, p: _Progress) -> _Progress:
        """Fetches the next block that differs. The search is a loop over numbers alone, which has no derivative."""
        has_room = p.fetched < p.begun + (o.count - 1)

        def is_same(k: Any) -> Any:
            now, before = [grid.indices(jnp.clip(n, 0, grid.steps - 1)) for n in (k, k - 1)]
            return jnp.logical_and(k < grid.steps, jnp.logical_not(o.is_other(before, now)))

        found = lax.while_loop(lambda k: jnp.logical_and(has_room, is_same(k)), lambda k: k + 1, p.cursor + 1)
        is_due = jnp.logical_and(has_room, found < grid.steps)
        slot = lax.rem(p.fetched, jnp.int32(o.count))
        when(is_due)(lambda: o.fetch(slot, o.block(grid.indices(jnp.minimum(found, grid.steps - 1)))))
        return replace(p, fetched=p.fetched + is_due.astype(np.int32), cursor=jnp.where(has_room, found, p.cursor))

    turns = max(1, o.count - 1)  # buffers that are free at once
    return turn(0, at) if turns == 1 else lax.fori_loop(np.int32(0), np.int32(turns), turn, at)


def _fetched_now(o: Operand, grid: _Grid, at: _Progress, i: Any) -> _Progress:
    """With one buffer: fetches at step `i` its own block, but for the first one, which has been."""
    is_due = at.fetched < at.begun
    when(is_due)(lambda: o.fetch(jnp.int32(0), o.block(grid.indices(i))))
    return replace(at, fetched=at.fetched + is_due.astype(np.int32))


def _steps(
    body: Callable[..., None], grid: _Grid, scratches: tuple[Any, ...], explicit: bool, operands: Sequence[Operand]
) -> None:
    far = [o for o in operands if o.buffers.is_buffered]

    def step(i: Any, progress: Sequence[_Progress]) -> list[_Progress]:
        now, before = grid.indices(i), grid.indices(jnp.maximum(i - 1, 0))
        after = grid.indices(jnp.minimum(i + 1, grid.steps - 1))
        is_first, is_last = i == 0, i == grid.steps - 1
        new = [jnp.logical_or(is_first, o.is_other(now, before)) for o in far]
        progress = [replace(p, begun=p.begun + n.astype(np.int32)) for p, n in zip(progress, new)]
        slots = {id(o): lax.rem(p.begun - 1, jnp.int32(o.count)) for o, p in zip(far, progress)}

        def await_sent(o: Operand, p: _Progress, is_new: Any) -> None:
            """Waits until the block before, if it is another one, has left."""
            slot = lax.rem(p.begun + (o.count - 2), jnp.int32(o.count))
            when(jnp.logical_and(is_new, i > 0))(lambda: o.await_sent(slot, o.block(before)))

        for k, (o, is_new) in enumerate(zip(far, new)):
            if o.buffers.is_output and (o.count == 1 or o.buffers.is_input):
                await_sent(o, progress[k], is_new)  # its buffer is about to be written, or fetched into
            if o.buffers.is_input:
                progress[k] = _fetch_ahead(o, grid, progress[k], i)
                when(is_new)(functools.partial(o.await_fetched, slots[id(o)], o.block(now)))
        views = [o.near(slots.get(id(o), jnp.int32(0)), o.block(now)) for o in operands]
        with in_grid(GridFrame(now, grid.sizes)):
            body(*((tuple(now),) if explicit else ()), *views, *scratches)
        for o, p, is_new in zip(far, progress, new):
            if o.buffers.is_output:
                finished = jnp.logical_or(is_last, o.is_other(now, after))
                when(finished)(functools.partial(o.send, slots[id(o)], o.block(now)))
                if o.count > 1 and not o.buffers.is_input:
                    await_sent(o, p, is_new)
                when(is_last)(functools.partial(o.await_sent, slots[id(o)], o.block(now)))
        return progress

    steps = np.int32(grid.steps) if grid.is_static else jnp.int32(grid.steps)
    lax.fori_loop(np.int32(0), steps, step, [_begin(o, grid) for o in far])
