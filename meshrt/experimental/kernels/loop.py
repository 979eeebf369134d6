"""A kernel as array operations: a loop over its grid. The back end for CPUs, and what `interpret=True` runs anywhere.

Each step cuts its blocks out of the arrays, runs the kernel on them, with references as cells, and puts back what was
written. Arrays that no step writes to stay outside of what the loop carries. Arrays that blocks do not divide are
padded, with what nobody has written: NaN, or the least integer.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.axes import bind_axes
from meshrt.core.basic.shapes import reshape
from meshrt.core.basic.varying import in_order, vary
from meshrt.core.jaxpr import ClosedJaxpr, Eqn, Jaxpr, Var
from meshrt.core.references import AccumEffect, WriteEffect, effects_by_position
from meshrt.core.trace import trace_to_jaxpr
from meshrt.core.types import NOT_VARYING, ShapedArray, aval_of
from meshrt.experimental.kernels.backends import register_backend
from meshrt.experimental.kernels.devices import COMMUNICATION
from meshrt.experimental.kernels.mapping import BlockMapping, GridMapping
from meshrt.experimental.kernels.specs import Blocked, BoundedSlice, Indirect
from meshrt.primitives.collective_axes import axis_index_p
from meshrt.primitives.control import scan
from meshrt.primitives.control_cond import cond_p
from meshrt.primitives.control_loops import while_loop
from meshrt.primitives.control_while import while_p
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.dynamic_slice import dynamic_slice, dynamic_update_slice
from meshrt.primitives.elementwise import add, and_p, eq_p, lt_p, mul, rem_p
from meshrt.primitives.elementwise import div as divide
from meshrt.primitives.reshape import broadcasted_iota
from meshrt.primitives.selection import select_n
from meshrt.primitives.slice import pad
from meshrt.primitives.slice import slice as static_slice
from meshrt.primitives.state import uninitialized
from meshrt.transforms.discharge import Cell, run_discharged
from meshrt.transforms.tools import Hoisted, WeakCache, dce, hoist_consts

__all__ = ["loop_program", "lower_loop", "run_grid"]

_I32 = np.dtype(np.int32)


# ----------------------------------------------------------------------------------------------------------------------
# Blocks of arrays


class _Window:
    """How the blocks of one operand or result are read from and written to an array that was made ready for it."""

    def __init__(self, block: BlockMapping):
        self.block, self.sizes = block, block.sizes
        for dim in block.block_shape:
            if isinstance(dim, Indirect):
                raise errors.UnsupportedError(
                    f"{block.origin}: blocks with Indirect dimensions are read by gathers of a SparseCore, which loops "
                    "of array operations do not have; read the rows by a dynamic slice in the kernel"
                )
        before = [p for p, _ in block.padding]
        self.shape = tuple(
            [self._padded(n, b, p) for n, b, p in zip(block.array_aval.shape, block.block_shape, block.padding)]
        )
        self.edges = [(p, whole - n - p, 0) for n, whole, p in zip(block.array_aval.shape, self.shape, before)]
        self.before = before
        self.is_whole = block.is_whole

    @staticmethod
    def _padded(n: int, dim: Any, padding: tuple[int, int]) -> int:
        size = n + sum(padding)
        if isinstance(dim, BoundedSlice):
            return size + dim.block_size
        count = dim.block_size if hasattr(dim, "block_size") else 1
        return -(-size // count) * count if count else size

    def ready(self, x: Any) -> Any:
        """The array with all that blocks may reach."""
        if all(e == (0, 0, 0) for e in self.edges):
            return x
        return pad(x, uninitialized(ShapedArray((), aval_of(x).dtype)), self.edges)

    def result(self, x: Any) -> Any:
        """The array that was made ready, as it was before."""
        shape = self.block.array_aval.shape
        if aval_of(x).shape == shape:
            return x
        return static_slice(x, self.before, [b + n for b, n in zip(self.before, shape)])

    def starts(self, indices: Sequence[Any]) -> tuple[list[Any], list[Any | None]]:
        """(first element, size where it is computed) in each dimension, of what the index map gave."""
        rest = iter(indices)
        starts: list[Any] = []
        bounds: list[Any | None] = []
        for dim in self.block.block_shape:
            at = next(rest)
            starts.append(mul(at, np.int32(dim.block_size)) if isinstance(dim, Blocked) else at)
            bounds.append(next(rest) if isinstance(dim, BoundedSlice) else None)
        return starts, bounds

    def _within(self, bounds: Sequence[Any | None]) -> Any:
        """Which elements of a block lie within its computed sizes; None: all."""
        inside = None
        for d, bound in enumerate(bounds):
            if bound is not None:
                here = lt_p.bind(broadcasted_iota(_I32, self.sizes, d), bound)
                inside = here if inside is None else and_p.bind(inside, here)
        return inside

    def read(self, x: Any, place: tuple[list[Any], list[Any | None]]) -> Any:
        if self.is_whole:
            return x
        starts, bounds = place
        part = dynamic_slice(x, starts, self.sizes)
        inside = self._within(bounds)
        if inside is not None:
            part = select_n(inside, uninitialized(aval_of(part)), part)
        return reshape(part, self.block.ref_aval.shape) if self.block.squeezed else part

    def write(self, x: Any, place: tuple[list[Any], list[Any | None]], value: Any) -> Any:
        if self.is_whole:
            return value
        starts, bounds = place
        value = reshape(value, self.sizes) if self.block.squeezed else value
        inside = self._within(bounds)
        if inside is not None:
            value = select_n(inside, dynamic_slice(x, starts, self.sizes), value)
        return dynamic_update_slice(x, value, starts)


def block_indices(block: BlockMapping, indices: Sequence[Any], scalars: Sequence[Any]) -> list[Any]:
    """What a block's index map gives at a step, in the current trace."""
    return run_discharged(block.index_map, [*indices, *[Cell(s) for s in scalars]])


# ----------------------------------------------------------------------------------------------------------------------
# The loop


def run_grid(
    args: Sequence[Any], jaxpr: Jaxpr, mapping: GridMapping, aliases: Sequence[tuple[int, int]] = ()
) -> list[Any]:
    """The results of a kernel called with `args` (sizes, scalars, inputs), computed in the current trace.

    `aliases` are pairs of an input (counted with the scalars) and the result that begins as that input.
    """
    dynamic, rest = args[: mapping.num_dynamic], args[mapping.num_dynamic :]
    scalars, inputs = rest[: mapping.num_scalars], rest[mapping.num_scalars :]
    sizes = mapping.sizes(dynamic)
    begin = {o: rest[i] for i, o in aliases}
    outputs = [begin[o] if o in begin else uninitialized(b.array_aval) for o, b in enumerate(mapping.out_blocks)]
    windows = [_Window(b) for b in mapping.blocks]
    arrays = [w.ready(x) for w, x in zip(windows, [*inputs, *outputs])]
    scratch = [uninitialized(a.inner_aval) for a in mapping.scratch_avals]
    held = [*scalars, *arrays, *scratch]

    written = _written(jaxpr, mapping)
    carried = [i for i in range(len(held)) if i in written or _is_output(i, mapping)]
    lead = len(scalars)

    def step(indices: Sequence[Any], state: Sequence[Any]) -> list[Any]:
        now = list(held)
        for i, x in zip(carried, state):
            now[i] = x
        places = [w.starts(block_indices(w.block, indices, now[:lead])) for w in windows]
        cells = [Cell(x) for x in now]
        for k, (w, place) in enumerate(zip(windows, places)):
            cells[lead + k] = Cell(w.read(now[lead + k], place))
        run_discharged(jaxpr, [*[indices[d] for d in mapping.kernel_dims], *dynamic, *cells])
        for k, (w, place) in enumerate(zip(windows, places)):
            cell = cells[lead + k]
            if cell.written:
                now[lead + k] = w.write(now[lead + k], place, cell.value)
        for i in carried:
            if not lead <= i < lead + len(windows):
                now[i] = cells[i].value
        return [now[i] for i in carried]

    varying = NOT_VARYING.union(*[aval_of(a).vma for a in args])
    state = [vary(x, in_order(varying.difference(aval_of(x).vma))) for x in [held[i] for i in carried]]
    final = dict(zip(carried, _repeated(step, state, sizes, bool(dynamic))))
    first = lead + mapping.num_inputs
    return [w.result(final[first + k]) for k, w in enumerate(windows[mapping.num_inputs :])]


def _is_output(position: int, mapping: GridMapping) -> bool:
    first = mapping.num_scalars + mapping.num_inputs
    return first <= position < first + mapping.num_outputs


def _written(jaxpr: Jaxpr, mapping: GridMapping) -> set[int]:
    """Which references of a kernel it writes to, counted from its scalars on."""
    lead = mapping.num_leading
    writes = (WriteEffect, AccumEffect)
    return {e.input_index - lead for e in effects_by_position(jaxpr) if isinstance(e, writes)}  # type: ignore[operator]


def _repeated(step: Any, state: list[Any], sizes: Sequence[Any], dynamic: bool) -> list[Any]:
    """The state after all steps of a grid, of which the last dimension runs fastest."""
    if dynamic:
        return _repeated_dynamically(step, state, sizes)
    count = math.prod(sizes)
    if count == 1:
        return list(step([np.int32(0)] * len(sizes), state))
    if count == 0:
        return state
    strides = [math.prod(sizes[d + 1 :]) for d in range(len(sizes))]

    def body(carry: tuple[Any, list[Any]], _: Any) -> tuple[tuple[Any, list[Any]], None]:
        number, values = carry
        return (add(number, np.int32(1)), step(_unravelled(number, sizes, strides), values)), None

    (_, final), _ = scan(body, (np.int32(0), state), None, length=count)
    return list(final)


def _unravelled(number: Any, sizes: Sequence[int], strides: Sequence[int]) -> list[Any]:
    """The indices of the step with this number."""
    indices = []
    for d, (size, stride) in enumerate(zip(sizes, strides)):
        if size == 1:
            indices.append(np.int32(0))
            continue
        at = number if stride == 1 else divide(number, np.int32(stride))
        indices.append(at if all(n == 1 for n in sizes[:d]) else rem_p.bind(at, np.int32(size)))
    return indices


def _repeated_dynamically(step: Any, state: list[Any], sizes: Sequence[Any]) -> list[Any]:
    bounds = [np.int32(n) if isinstance(n, int) else convert_element_type(n, _I32) for n in sizes]
    count: Any = np.int32(1)
    for n in bounds:
        count = mul(count, n)

    def body(carry: tuple[Any, list[Any], list[Any]]) -> tuple[Any, list[Any], list[Any]]:
        number, indices, values = carry
        return add(number, np.int32(1)), _following(indices, bounds), step(indices, values)

    first = [np.int32(0) for _ in bounds]
    out = while_loop(lambda carry: lt_p.bind(carry[0], count), body, (np.int32(0), first, state))
    return list(out[2])


def _following(indices: Sequence[Any], bounds: Sequence[Any]) -> list[Any]:
    """The indices of the next step."""
    following: list[Any] = []
    carry: Any = np.bool_(True)
    for index, bound in zip(reversed(indices), reversed(bounds)):
        more = select_n(carry, index, add(index, np.int32(1)))
        carry = eq_p.bind(more, bound)
        following.append(select_n(carry, more, np.int32(0)))
    return following[::-1]


# ----------------------------------------------------------------------------------------------------------------------
# As a program


_programs: WeakCache = WeakCache()


def loop_program(params: dict[str, Any], avals: Sequence[Any] | None = None) -> ClosedJaxpr:
    """The loop as a Jaxpr over what a call with these parameters takes, of types `avals` (by default the bare ones).
    Cached by the kernel.
    """
    jaxpr, mapping, aliases = params["jaxpr"], params["grid_mapping"], params["input_output_aliases"]

    def make() -> ClosedJaxpr:
        if COMMUNICATION in jaxpr.effects:
            _refuse_divergence(jaxpr, set(), params["kernel"])
        types = call_types(mapping) if avals is None else avals
        run = lambda *args: run_grid(args, jaxpr, mapping, aliases)
        with bind_axes([a._replace(is_checked=False) for a in params["axes"]]):
            made = hoist_consts(trace_to_jaxpr(run, types, params["name"], requires_low=False))
        return Hoisted(dce(made.jaxpr)[0], made.consts)  # without what writes read of what they replace

    key = (mapping, aliases, params["axes"], None if avals is None else tuple(avals))
    made: ClosedJaxpr = _programs.get(jaxpr, key, make)
    return made


def _refuse_divergence(jaxpr: Jaxpr, own: set[Any], kernel: str) -> None:
    """Refuses communication that some chips reach and others do not, by their place in the mesh: as a collective it
    would wait for ever. `own` are variables that depend on that place."""
    for eqn in jaxpr.eqns:
        depends = [type(a) is Var and a in own for a in eqn.invars]
        if COMMUNICATION in eqn.effects:
            chosen = depends[0] if eqn.primitive is cond_p else eqn.primitive is while_p and any(depends)
            if chosen:
                raise errors.UnsupportedError(
                    f"the kernel {kernel} communicates at {eqn.source} on some chips only, as their place in the mesh "
                    "says: in a loop of array operations all chips have to take part. Use "
                    "interpret=pltpu.InterpretParams(), which runs each chip by itself"
                )
        for program, positions in () if eqn.primitive.applies is None else eqn.primitive.applies(eqn.params):
            _refuse_divergence(program, {v for v, p in zip(program.invars, positions) if depends[p]}, kernel)
        if eqn.primitive is axis_index_p or any(depends):
            own.update(eqn.outvars)


def call_types(mapping: GridMapping) -> list[ShapedArray]:
    """The bare types of what a call takes."""
    scalars = [a.inner_aval for a in mapping.scalar_avals]
    sizes = [ShapedArray((), _I32)] * mapping.num_dynamic
    return [*sizes, *scalars, *[b.array_aval.bare() for b in mapping.in_blocks]]


def lower_loop(ctx: Any, eqn: Eqn, operands: Sequence[Any]) -> Sequence[Any]:
    """Writes a kernel's call as a loop of array operations."""
    made = loop_program(eqn.params)
    captured = [ctx.array(np.asarray(c)) for c in made.consts]
    written: Sequence[Any] = ctx.call(made.jaxpr, [*captured, *operands], eqn.params["name"])
    return written


register_backend("cpu", lower_loop)
