"""What a kernel takes and moves, of its parameters alone: grid, memory of a core, copies, bytes, work.

Compilers see a kernel as one opaque call. What they are told of its cost comes from here where users say nothing, and
so does what `meshrt inspect` shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from meshrt.core.basic.pointwise import add_any_p
from meshrt.core.jaxpr import Eqn, Jaxpr, Var
from meshrt.core.naming import body_name
from meshrt.core.references import AbstractRef
from meshrt.core.trace import trace_to_jaxpr
from meshrt.core.tracebacks import boundary
from meshrt.experimental.kernels.copies import CopyOperands, dma_start_p
from meshrt.experimental.kernels.grid import DYNAMIC
from meshrt.experimental.kernels.mapping import BlockMapping, GridMapping
from meshrt.experimental.kernels.memory import CoreMemorySpace, MemorySpace, TpuMemorySpace, is_semaphore
from meshrt.experimental.kernels.params import CostEstimate
from meshrt.primitives import compositions, contract, elementwise, gamma, reduce
from meshrt.primitives.control import scan_p
from meshrt.primitives.control_branches import cond_p
from meshrt.primitives.control_while import while_p
from meshrt.primitives.state_views import view_type
from meshrt.sharding.typed import abstract
from meshrt.transforms.arguments import fun_name
from meshrt.tree_util import tree_flatten, tree_leaves, tree_unflatten

__all__ = ["BlockFacts", "KernelFacts", "Work", "estimate_cost", "kernel_facts"]


@dataclass(frozen=True)
class BlockFacts:
    """What a kernel's steps see of one operand, result or scratch: `shape` in `memory`, held in `buffers` buffers.

    `copies` is how often a block is fetched or written back in one call; 0 where the kernel copies itself.
    """

    name: str
    memory: str
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    buffers: int
    copies: int

    @property
    def held(self) -> int:
        """Bytes of a core's memory."""
        return self.bytes * self.buffers

    @property
    def moved(self) -> int:
        """Bytes that are copied to or from the device's memory in one call."""
        return self.bytes * self.copies


class Work(NamedTuple):
    """What a part of a kernel does: operations, transcendental ones; copies that it starts, their bytes, and how many
    of these go to other chips."""

    flops: int = 0
    transcendentals: int = 0
    copies: int = 0
    moved: int = 0
    sent: int = 0

    def times(self, count: int) -> Work:
        return Work(*[value * count for value in self])

    def with_(self, other: Work) -> Work:
        return Work(*[a + b for a, b in zip(self, other)])


@dataclass(frozen=True)
class KernelFacts:
    """One call of a kernel on one device. Sizes that are computed count as 1, and so do turns of loops whose number is.

    `cost` is what the compiler is told: what the user said, or what follows from the kernel. `inside` is what all steps
    together do, the copies among it that the kernel starts itself.
    """

    name: str
    grid: tuple[int, ...]
    blocks: tuple[BlockFacts, ...]
    inside: Work
    cost: CostEstimate

    @property
    def steps(self) -> int:
        return math.prod(self.grid)

    @property
    def memory(self) -> dict[str, int]:
        """Bytes held in each of a core's memories."""
        found: dict[str, int] = {}
        for b in self.blocks:
            if b.held:
                found[b.memory] = found.get(b.memory, 0) + b.held
        return found

    @property
    def copies(self) -> int:
        """How many copies there are: of blocks, and those that the kernel starts."""
        return sum(b.copies for b in self.blocks) + self.inside.copies

    @property
    def moved(self) -> int:
        """Their bytes."""
        return sum(b.moved for b in self.blocks) + self.inside.moved


def kernel_facts(params: Mapping[str, Any]) -> KernelFacts:
    """The facts of a call with these parameters of `pallas_call`.

    >>> import meshrt, numpy as np
    >>> from meshrt.experimental.kernels.call import pallas_call
    >>> from meshrt.experimental.kernels.specs import BlockSpec
    >>> def add_one(x, y):
    ...     y[...] = x[...] + 1
    >>> block = BlockSpec((8, 128), lambda i: (i, 0))
    >>> out = meshrt.ShapeDtypeStruct((32, 128), np.float32)
    >>> f = pallas_call(add_one, out, grid=4, in_specs=[block], out_specs=block)
    >>> eqn = meshrt.make_jaxpr(f)(np.ones((32, 128), np.float32)).jaxpr.eqns[-1]
    >>> facts = kernel_facts(eqn.params)
    >>> facts.grid, facts.memory, facts.copies, facts.moved, facts.cost.flops
    ((4,), {'vmem': 16384}, 8, 32768, 4096)
    """
    mapping: GridMapping = params["grid_mapping"]
    grid = tuple([1 if g is DYNAMIC else g for g in mapping.grid])
    scalars = [_whole(f"scalars {i}", a, 1) for i, a in enumerate(mapping.scalar_avals)]
    blocks = [_block(b, grid) for b in mapping.blocks]
    scratch = [_whole(f"scratch {i}", a, 0) for i, a in enumerate(mapping.scratch_avals)]
    facts = (*scalars, *blocks, *scratch)
    inside = _work(params["jaxpr"]).times(math.prod(grid))
    return KernelFacts(params["name"], grid, facts, inside, params["cost_estimate"] or _estimate(inside, facts))


@boundary
def estimate_cost(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> CostEstimate:
    """What a function of arrays computes, and the bytes of its arguments and results, for `pallas_call`.

    >>> import numpy as np
    >>> x = np.ones((4, 8), np.float32)
    >>> estimate_cost(lambda x, y: x @ y.T, x, x)
    CostEstimate(flops=256, transcendentals=0, bytes_accessed=320, remote_bytes_transferred=0)
    """
    leaves, tree = tree_flatten(args)
    avals = [abstract(x).bare() for x in leaves]
    whole = lambda *xs: tree_leaves(fun(*tree_unflatten(tree, xs), **kwargs))
    jaxpr = trace_to_jaxpr(whole, avals, fun_name(fun), requires_low=False).jaxpr
    work = _work(jaxpr)
    size = sum(a.size * a.dtype.itemsize for a in (*avals, *jaxpr.out_avals))
    return CostEstimate(work.flops, work.transcendentals, size)


def _memory(aval: AbstractRef) -> str:
    space = aval.memory_space
    if isinstance(space, CoreMemorySpace):
        space = space.memory_space
    if isinstance(space, TpuMemorySpace | MemorySpace) and space is not MemorySpace.DEFAULT:
        return str(space.value)
    return "vmem"


_FAR = ("any", "hbm", "host", "semaphore_mem")


def _whole(name: str, aval: AbstractRef, copies: int) -> BlockFacts:
    size = 0 if is_semaphore(aval) else aval.size * aval.dtype.itemsize
    return BlockFacts(name, _memory(aval), aval.shape, str(aval.dtype), size, 1, copies)


def _block(block: BlockMapping, grid: Sequence[int]) -> BlockFacts:
    memory, size = _memory(block.ref_aval), math.prod(block.sizes) * block.ref_aval.dtype.itemsize
    name, kind = block.origin, str(block.ref_aval.dtype)
    if memory in _FAR:
        return BlockFacts(name, memory, block.array_aval.shape, kind, size, 0, 0)
    once = block.is_whole or not grid
    mode = block.pipeline_mode
    buffers = 1 if once else 2 if mode is None else mode.buffer_count
    return BlockFacts(name, memory, block.sizes, kind, size, buffers, 1 if once else _visits(block, grid))


def _visits(block: BlockMapping, grid: Sequence[int]) -> int:
    """How often the block changes from one step to the next: at every turn of the innermost dimension of the grid that
    the index map looks at, and of those around it."""
    used = _looked_at(block.index_map)
    last = max([d for d, v in enumerate(block.index_map.invars[: len(grid)]) if v in used and grid[d] > 1], default=-1)
    return math.prod(grid[: last + 1])


def _looked_at(jaxpr: Jaxpr) -> set[Var]:
    """The variables that results of a program depend on."""
    needed = {a for a in jaxpr.outvars if type(a) is Var}
    for eqn in reversed(jaxpr.eqns):
        if needed.intersection(eqn.outvars):
            needed.update([a for a in eqn.invars if type(a) is Var])
    return needed


# ----------------------------------------------------------------------------------------------------------------------
# Work

_TRANSCENDENTAL = frozenset(
    [
        elementwise.exp_p, elementwise.exp2_p, elementwise.log_p, elementwise.log1p_p, elementwise.expm1_p,
        elementwise.sqrt_p, elementwise.rsqrt_p, elementwise.cbrt_p, elementwise.sin_p, elementwise.cos_p,
        elementwise.tan_p, elementwise.tanh_p, elementwise.logistic_p, elementwise.pow_p, elementwise.atan2_p,
        gamma.erf_p, gamma.erf_inv_p,
    ]
)  # fmt: skip
_ARITHMETIC = frozenset(
    [
        add_any_p, elementwise.add_p, elementwise.sub_p, elementwise.mul_p, elementwise.div_p, elementwise.neg_p,
        elementwise.max_p, elementwise.min_p, elementwise.abs_p, elementwise.integer_pow_p, elementwise.rem_p,
        compositions.square_p,
    ]
)  # fmt: skip
_REDUCTIONS = frozenset(
    [reduce.reduce_sum_p, reduce.reduce_max_p, reduce.reduce_min_p, reduce.argmax_p, reduce.argmin_p]
)


def _estimate(inside: Work, facts: Sequence[BlockFacts]) -> CostEstimate:
    """What the compiler is told: of arrays that a kernel has as wholes all bytes, if it copies nothing itself."""
    whole = 0 if inside.copies else sum(f.bytes for f in facts if not f.buffers)
    moved = sum(f.moved for f in facts) + inside.moved + whole
    return CostEstimate(inside.flops, inside.transcendentals, moved, inside.sent)


def _work(jaxpr: Jaxpr) -> Work:
    """Of branches that of the dearest counts, of loops of unknown length that of one turn."""
    total = Work()
    for eqn in jaxpr.eqns:
        total = total.with_(_work_of(eqn))
    return total


def _work_of(eqn: Eqn) -> Work:
    primitive, params = eqn.primitive, eqn.params
    if primitive is contract.dot_general_p:
        ((contracted, _), _), x = params["dimension_numbers"], eqn.invars[0].aval
        return Work(2 * eqn.outvars[0].aval.size * math.prod([x.shape[d] for d in contracted]))
    if primitive is elementwise.integer_pow_p:  # squared again and again, and multiplied where a bit of y is set
        y = abs(params["y"])
        return Work(eqn.outvars[0].aval.size * (y.bit_length() - 1 + y.bit_count() if y > 1 else 0))
    if primitive in _TRANSCENDENTAL:
        return Work(transcendentals=eqn.outvars[0].aval.size)
    if primitive in _ARITHMETIC:
        return Work(eqn.outvars[0].aval.size)
    if primitive in _REDUCTIONS:
        return Work(eqn.invars[0].aval.size)
    if primitive is dma_start_p:
        return _copied(eqn)
    if primitive is cond_p:
        return max(map(_work, params["branches"]))
    if primitive is scan_p:
        return _work(params["jaxpr"]).times(params["length"])
    if primitive is while_p:
        return _work(params["body_jaxpr"])
    inner = params.get(body_name(params))
    return _work(inner) if isinstance(inner, Jaxpr) else Work()


def _copied(eqn: Eqn) -> Work:
    operands: CopyOperands = tree_unflatten(eqn.params["tree"], [a.aval for a in eqn.invars])
    ref, view = operands.source
    part = view_type(view, ref.inner_aval)
    size = part.size * part.dtype.itemsize
    return Work(copies=1, moved=size, sent=0 if operands.device is None else size)
