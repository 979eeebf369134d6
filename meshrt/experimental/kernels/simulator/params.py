"""`InterpretParams`: that, and how, a kernel runs in the simulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from meshrt import errors, lax, random
from meshrt import numpy as jnp
from meshrt.config import settings
from meshrt.core.axes import bind_axes
from meshrt.core.jaxpr import Eqn
from meshrt.core.trace import EVAL, set_trace
from meshrt.experimental.kernels.devices import own_id
from meshrt.experimental.kernels.grid import DYNAMIC
from meshrt.experimental.kernels.mapping import GridMapping
from meshrt.experimental.kernels.modes import force, forced
from meshrt.experimental.kernels.params import TpuCompilerParams, for_tpus
from meshrt.experimental.kernels.simulator.steps import Call, parallel_dims, simulate
from meshrt.lowering.composed import write_composed
from meshrt.primitives.callback import io_callback
from meshrt.shape_dtype import ShapeDtypeStruct

__all__ = [
    "InterpretParams", "force_tpu_interpret_mode", "reset_tpu_interpret_mode_state",
    "set_tpu_interpret_mode",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class InterpretParams:
    """`pallas_call(..., interpret=InterpretParams(...))` runs a kernel in a simulator of chips.

    Args:
      detect_races: raises KernelRaceError where two cores or copies touch the same elements, one of them writes, and no
        signal orders them.
      out_of_bounds_reads: "raise" raises KernelBoundsError; "uninitialized" gives what nobody has written. Writes
        beyond the end are errors always.
      uninitialized_memory: what memory shows that nobody has written: "nan" (of integers the greatest), "zero"; "raise"
        raises UninitializedReadError.
      num_cores_or_threads: cores of each chip; they share the steps along parallel dimensions of the grid.
      dma_execution_mode: when copies are done: "on_wait", as late as possible, or "eager", when they are started.
      random_seed: how the steps along parallel dimensions are shuffled, where one core runs them all.
      grid_point_recorder: called with the indices of each step and the core that runs it.
      skip_floating_point_ops: operations that give floats alone are not computed: all floats are infinite. For programs
        of which only copies and semaphores are looked at.
      allow_hbm_allocation_in_run_scoped: whether `run_scoped` may give the large memory, which chips refuse.
      vector_clock_size, logging_mode, buffer_bounds: taken for the sake of programs written for JAX; only their default
        values have a meaning here.

    >>> InterpretParams(detect_races=True).dma_execution_mode
    'on_wait'

    Raises:
      ArgumentValueError: a value that is none of those named.
    """

    detect_races: bool = False
    out_of_bounds_reads: Literal["raise", "uninitialized"] = "raise"
    skip_floating_point_ops: bool = False
    uninitialized_memory: Literal["nan", "zero", "raise"] = "nan"
    num_cores_or_threads: int = 1
    vector_clock_size: int | None = None
    logging_mode: Any = None
    dma_execution_mode: Literal["eager", "on_wait"] = "on_wait"
    random_seed: int | None = None
    grid_point_recorder: Callable[[tuple[np.int32, ...], np.int32], Any] | None = None
    allow_hbm_allocation_in_run_scoped: bool = False
    buffer_bounds: Literal["logical", "padded"] = "logical"

    def __post_init__(self) -> None:
        if self.num_cores_or_threads < 1:
            raise errors.ArgumentValueError(
                f"Number of cores or threads must be at least 1, but got {self.num_cores_or_threads}."
            )
        if self.vector_clock_size is not None and self.vector_clock_size < 1:
            raise errors.ArgumentValueError(f"Vector clock size must be at least 1, but got {self.vector_clock_size}.")
        choices = {
            "out_of_bounds_reads": ("raise", "uninitialized", "uninitialized_value"),
            "uninitialized_memory": ("nan", "zero", "raise"), "dma_execution_mode": ("eager", "on_wait"),
        }  # fmt: skip
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise errors.ArgumentValueError(f"{name}={getattr(self, name)!r} is none of {known}")

    @property
    def num_cores_per_device(self) -> int:
        return self.num_cores_or_threads

    def lower(self, ctx: Any, eqn: Eqn, operands: Sequence[Any]) -> Sequence[Any]:
        """Writes a call of the simulator for a kernel's call; in a manual region one for all chips."""
        p = eqn.params
        semantics = (for_tpus(p["compiler_params"]) or TpuCompilerParams()).dimension_semantics
        orders = _orders(p["grid_mapping"], semantics, self, p["kernel"])
        debug_checks = settings.pallas_enable_debug_checks  # read here: the simulator runs in another thread
        call = Call(p["jaxpr"], p["grid_mapping"], p["input_output_aliases"], orders, p["kernel"], debug_checks)
        axes = [a._replace(is_checked=False) for a in p["axes"]]
        outs = [ShapeDtypeStruct(a.shape, a.dtype) for a in p["out_avals"]]
        with bind_axes(axes):
            return write_composed(
                ctx, eqn, operands, [v.aval for v in eqn.invars], lambda *xs: _called(call, self, axes, outs, xs)
            )


def _orders(mapping: GridMapping, semantics: Any, checks: InterpretParams, kernel: str) -> dict[int, Sequence[int]]:
    """The order of the indices along each parallel dimension of the grid: shuffled, where one core runs all steps."""
    found: dict[int, Sequence[int]] = {}
    with set_trace(EVAL):
        key = random.key(checks.random_seed or 0)
        for d in parallel_dims(mapping, semantics):
            size = mapping.grid[d]
            if size is DYNAMIC:
                raise errors.ConcretizationError(
                    f"dimension {d} of the grid of the kernel {kernel} is parallel, so its size has to be known when "
                    "the program is traced: the simulator shuffles its steps. Call it arbitrary, or give an int"
                )
            key, own = random.split(key)
            order = np.asarray(random.permutation(own, size)) if checks.num_cores_or_threads == 1 else np.arange(size)
            found[d] = order.tolist()
    return found


def _called(
    call: Call, checks: InterpretParams, axes: Sequence[Any], outs: Sequence[Any], xs: Sequence[Any]
) -> list[Any]:
    names = tuple(a.name for a in axes)
    count = int(np.prod([a.size for a in axes], dtype=int))
    together = lambda x: jnp.asarray(x)[None] if not names else lax.all_gather(x, names).reshape(count, *jnp.shape(x))
    every = [together(x) for x in xs]
    stacked = [ShapeDtypeStruct((count, *o.shape), o.dtype) for o in outs]

    def run(*arrays: Any) -> list[Any]:
        return simulate(call, checks, axes, [np.asarray(a) for a in arrays])

    asked = lambda: list(io_callback(run, stacked, *every))
    if not names:
        return [x[0] for x in asked()]
    found = lax.cond(own_id() == 0, asked, lambda: [jnp.zeros(o.shape, o.dtype) for o in stacked])
    first = [lax.all_gather(x, names).reshape(count, *x.shape)[0] for x in found]
    return [lax.dynamic_index_in_dim(x, own_id(), 0, keepdims=False) for x in first]


# ----------------------------------------------------------------------------------------------------------------------
# For all kernels of a program


@contextmanager
def force_tpu_interpret_mode(params: InterpretParams | None = None) -> Iterator[None]:
    """Runs all kernels that are traced inside in the simulator."""
    with forced(InterpretParams() if params is None else params):
        yield


def set_tpu_interpret_mode(params: InterpretParams | None = None) -> None:
    """Runs all kernels that this thread traces from now on in the simulator."""
    force(InterpretParams() if params is None else params)


def reset_tpu_interpret_mode_state() -> None:
    """Nothing: a simulation that failed leaves nothing behind."""
