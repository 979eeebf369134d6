"""What is checked of a kernel before it is handed to a compiler, which would not notice: see docs/kernels.md.

copies        each that is started is waited for somewhere in the kernel
semaphores    what is known of their counts: no wait in vain, nothing left at the end (`balance`)
blocks        index maps name blocks that exist, at every step of the grid (or at so many of them)
dimensions    dimension_semantics speak of each dimension of the grid
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from meshrt import errors, tree_util
from meshrt.core.jaxpr import Eqn, Jaxpr
from meshrt.experimental.kernels.balance import check_balance
from meshrt.experimental.kernels.copies import dma_start_p, dma_wait_p
from meshrt.experimental.kernels.mapping import BlockMapping, GridMapping
from meshrt.experimental.kernels.semaphores import semaphore_signal_p, semaphore_wait_p
from meshrt.experimental.kernels.simulator.evaluator import exhausted
from meshrt.experimental.kernels.specs import Blocked, Element, Squeezed
from meshrt.primitives.state_views import View
from meshrt.transforms.batching import MappedAxis, batch_jaxpr

__all__ = ["check_kernel"]

# Chosen: index maps of 65,536 steps take some milliseconds; of larger grids the corners are looked at.
CHECKED_STEPS = 65536


def check_kernel(params: dict[str, Any]) -> None:
    """Checks the kernel of a call with these parameters.

    Raises:
      MissingWaitError: a copy that nothing waits for, a semaphore that is not back at zero.
      KernelDeadlockError: a wait for what nobody starts or signals.
      KernelBoundsError: a block beyond the end of its array.
    """
    mapping: GridMapping = params["grid_mapping"]
    external = _check_copies(params["jaxpr"], params["kernel"])
    if external is not None:
        check_balance(params["jaxpr"], mapping, params["kernel"], external)
    if mapping.num_dynamic or mapping.num_scalars:
        return  # what index maps give is known only when the program runs
    for block in mapping.blocks:
        if not block.is_whole and all(isinstance(d, Blocked | Element | Squeezed) for d in block.block_shape):
            _check_block(block, mapping.grid, params["kernel"])


# ----------------------------------------------------------------------------------------------------------------------
# Copies


def _check_copies(jaxpr: Jaxpr, kernel: str) -> frozenset[Any] | None:
    """The semaphores on which other chips or cores count too; None where there are no semaphores at all."""
    started: dict[Any, Eqn] = {}
    awaited: set[Any] = set()
    external: set[Any] = set()
    counts = False
    for eqn, roots in _equations(jaxpr, {v: v for v in jaxpr.invars}):
        counts = counts or eqn.primitive in (dma_start_p, dma_wait_p, semaphore_signal_p, semaphore_wait_p)
        if eqn.primitive is semaphore_signal_p:
            _, _, device, core = tree_util.tree_unflatten(eqn.params["tree"], eqn.invars[1:])
            if device is not None or core is not None:
                external.add(roots.get(eqn.invars[0]))
        if eqn.primitive not in (dma_start_p, dma_wait_p):
            continue
        copy = tree_util.tree_unflatten(eqn.params["tree"], [roots.get(a) for a in eqn.invars])
        semaphores: Sequence[tuple[Any, View]] = [s for s in (copy.arrived, copy.sent) if s is not None]
        if eqn.primitive is dma_start_p:
            for ref, _ in semaphores:
                started.setdefault(ref, eqn)
            if copy.is_remote:
                external.add(copy.arrived[0])
        else:
            awaited.add((copy.sent if eqn.params["of_send"] else copy.arrived)[0])
    for ref, eqn in started.items():
        if ref is not None and ref not in awaited:
            raise errors.MissingWaitError(
                f"the copy that the kernel {kernel} starts at {eqn.source} is not waited for: nothing waits for its "
                "semaphore. Call .wait() of it before what it copies is used, and before the kernel ends"
            )
    return frozenset(external) if counts else None


def _equations(jaxpr: Jaxpr, roots: dict[Any, Any]) -> Iterator[tuple[Eqn, dict[Any, Any]]]:
    """All equations, those of programs inside too, with what each variable that is an argument stands for outside."""
    for eqn in jaxpr.eqns:
        for v in eqn.outvars:
            roots[v] = v
        yield eqn, roots
        inside = () if eqn.primitive.applies is None else eqn.primitive.applies(eqn.params)
        for program, positions in inside:
            known = {v: roots.get(eqn.invars[p]) for v, p in zip(program.invars, positions)}
            yield from _equations(program, known)


# ----------------------------------------------------------------------------------------------------------------------
# Blocks


def _check_block(block: BlockMapping, grid: Sequence[int], kernel: str) -> None:
    points, places = _places(block, grid)
    for d, (index, dim, size) in enumerate(zip(places, block.block_shape, block.array_aval.shape)):
        low, high = dim.padding if isinstance(dim, Element) else (0, 0)
        start = index.astype(np.int64) * (dim.block_size if isinstance(dim, Blocked) else 1)
        wrong = np.flatnonzero((start < 0) | (start >= size + low + high))
        if size and wrong.size:
            at = wrong[0]
            raise errors.KernelBoundsError(
                f"{block.origin} of the kernel {kernel}: at the step {tuple(int(p[at]) for p in points)} of the grid "
                f"{tuple(grid)} the index map gives {tuple(int(p[at]) for p in places)}, which begins at element "
                f"{int(start[at])} of dimension {d}, of size {size}"
            )


def _places(block: BlockMapping, grid: Sequence[int]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The steps of the grid, or the corners of a large one, and what the index map gives at each: int32[steps] for each
    dimension of the grid, and of the block. The map is computed for all steps at once."""
    is_small = int(np.prod(grid, dtype=np.int64)) <= CHECKED_STEPS
    ranges = [np.arange(n) if is_small else np.unique([0, n - 1]) for n in grid]
    points = [p.reshape(-1).astype(np.int32) for p in np.meshgrid(*ranges, indexing="ij")]
    steps = int(np.prod([len(r) for r in ranges]))
    mapped, _ = batch_jaxpr(block.index_map, MappedAxis(steps), (True,) * len(grid), force_out=True)
    core: Any = None  # index maps touch no memory
    places = exhausted(core, mapped.jaxpr, points)
    return points, [np.asarray(p) for p in places]
