"""What a kernel takes and moves, of its parameters alone: grid, memory of a core, copies, bytes, work.

Compilers see a kernel as one opaque call. What they are told of its cost comes from here where users say nothing, and
so does what `meshrt inspect` shows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshrt.core.jaxpr import Eqn, Jaxpr, Var
from meshrt.core.references import AbstractRef
from meshrt.core.trace import trace_to_jaxpr
from meshrt.core.tracebacks import boundary
from meshrt.experimental.kernels.grid import DYNAMIC
from meshrt.experimental.kernels.mapping import BlockMapping, GridMapping
from meshrt.experimental.kernels.memory import CoreMemorySpace, MemorySpace, TpuMemorySpace, is_semaphore
from meshrt.experimental.kernels.params import CostEstimate
from meshrt.primitives import compositions, contract, elementwise, gamma, reduce
from meshrt.primitives.control import scan_p
from meshrt.primitives.control_branches import cond_p
from meshrt.primitives.control_while import while_p
from meshrt.sharding.typed import abstract
from meshrt.transforms.arguments import fun_name
from meshrt.tree_util import tree_flatten, tree_leaves, tree_unflatten

__all__ = ["BlockFacts", "KernelFacts", "estimate_cost", "kernel_facts"]


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


@dataclass(frozen=True)
class KernelFacts:
    """One call of a kernel on one device. Sizes that are computed count as 1."""

    name: str
    grid: tuple[int, ...]
    blocks: tuple[BlockFacts, ...]
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
        return sum(b.copies for b in self.blocks)

    @property
    def moved(self) -> int:
        return sum(b.moved for b in self.blocks)


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
    return KernelFacts(params["name"], grid, facts, params["cost_estimate"] or _estimate(params, grid, facts))


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
    flops, transcendentals = _work(jaxpr)
    return CostEstimate(flops, transcendentals, sum(a.size * a.dtype.itemsize for a in (*avals, *jaxpr.out_avals)))


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
        elementwise.add_p, elementwise.sub_p, elementwise.mul_p, elementwise.div_p, elementwise.neg_p,
        elementwise.max_p, elementwise.min_p, elementwise.abs_p, elementwise.integer_pow_p, elementwise.rem_p,
        compositions.square_p,
    ]
)  # fmt: skip
_REDUCTIONS = frozenset(
    [reduce.reduce_sum_p, reduce.reduce_max_p, reduce.reduce_min_p, reduce.argmax_p, reduce.argmin_p]
)


def _estimate(params: Mapping[str, Any], grid: Sequence[int], facts: Sequence[BlockFacts]) -> CostEstimate:
    """What is known without running the kernel: branches count as the dearest, loops of unknown length as one turn."""
    flops, transcendentals = _work(params["jaxpr"])
    steps = math.prod(grid)
    moved = sum(f.moved if f.buffers else f.bytes for f in facts)
    return CostEstimate(flops * steps, transcendentals * steps, moved)


def _work(jaxpr: Jaxpr) -> tuple[int, int]:
    """(operations, transcendental ones) of a program."""
    total = [_work_of(eqn) for eqn in jaxpr.eqns]
    return sum(f for f, _ in total), sum(t for _, t in total)


def _work_of(eqn: Eqn) -> tuple[int, int]:
    primitive, params = eqn.primitive, eqn.params
    if primitive is contract.dot_general_p:
        ((contracted, _), _), x = params["dimension_numbers"], eqn.invars[0].aval
        return 2 * eqn.outvars[0].aval.size * math.prod([x.shape[d] for d in contracted]), 0
    if primitive is elementwise.integer_pow_p:  # squared again and again, and multiplied where a bit of y is set
        y = abs(params["y"])
        return eqn.outvars[0].aval.size * (y.bit_length() - 1 + y.bit_count() if y > 1 else 0), 0
    if primitive in _TRANSCENDENTAL:
        return 0, eqn.outvars[0].aval.size
    if primitive in _ARITHMETIC:
        return eqn.outvars[0].aval.size, 0
    if primitive in _REDUCTIONS:
        return eqn.invars[0].aval.size, 0
    if primitive is cond_p:
        return max(map(_work, params["branches"]))
    if primitive is scan_p:
        flops, others = _work(params["jaxpr"])
        return flops * params["length"], others * params["length"]
    if primitive is while_p:
        return _work(params["body_jaxpr"])
    inner = params.get("jaxpr")
    return _work(inner) if isinstance(inner, Jaxpr) else (0, 0)
