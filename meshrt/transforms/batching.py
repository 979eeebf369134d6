"""Batching (vmap): every primitive says how it maps over an extra dimension."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from meshrt.config import settings
from meshrt.core.axes import UNNAMED, NamedAxis, bind_axes
from meshrt.core.basic.parts import batch_front, in_front
from meshrt.core.basic.shapes import move_dim, split_size
from meshrt.core.jaxpr import ClosedJaxpr, Jaxpr, subjaxprs
from meshrt.core.leaks import refuse_leaks
from meshrt.core.lojax import inlined_call, may_unbox
from meshrt.core.places import place_of, register_placing, without_dim
from meshrt.core.primitive import Primitive, missing_rule
from meshrt.core.references import AbstractRef, is_ref
from meshrt.core.source import capture, transformed
from meshrt.core.trace import JaxprTrace, Trace, Tracer, context, eval_jaxpr, set_trace
from meshrt.core.types import aval_of
from meshrt.transforms.discharge import settled, through_values
from meshrt.transforms.references import check_aliases, with_moved_refs
from meshrt.transforms.tools import WeakCache, hoist_consts

__all__ = [
    "BatchTrace", "BatchTracer", "Behind", "Flags", "MappedAxis", "batch_flat", "batch_jaxpr", "flags_of", "led",
    "mapping", "names_in",
]  # fmt: skip


class MappedAxis(NamedTuple):
    """A dimension that is mapped over: its size, the mesh axes that `vmap(spmd_axis_name=...)` lays it along, and the
    name by which collectives call it, if it has one (`vmap(axis_name=...)`). `along` is the sharding of one dimension
    over the Explicit axes that split the mapped one, None where none do.
    """

    size: int
    mesh_axes: tuple[str, ...] = ()
    name: Hashable = None
    along: Any = None

    @property
    def extent(self) -> int:
        """The size, which says how the dimension is split where it is."""
        size: int = self.size if self.along is None else split_size(self.size, self.along)
        return size

    def hidden_by(self, names: Collection[Hashable]) -> MappedAxis:
        """The axis as it is to be mapped over inside a region that binds `names` itself: there it has none of them."""
        return self._replace(name=None) if self.name is not None and self.name in names else self


class BatchTracer(Tracer):
    """An array with a hidden dimension at position `dim` of `value`."""

    __slots__ = ("dim", "source", "value")

    def __init__(self, trace: BatchTrace, value: Any, dim: int):
        self._trace, self.value, self.dim, self.source = trace, value, dim, capture()
        self.aval = self.member(aval_of(value), dim, trace)

    def __repr__(self) -> str:
        return f"VmapTracer(aval={self.aval}, batched={aval_of(self.value)})"

    def below(self) -> Any:
        return self.value

    def made(self) -> str:
        return f"This BatchTracer with object id {id(self)} was created on line:\n  {self.source}\n"

    @staticmethod
    def member(whole: Any, dim: Any, trace: BatchTrace) -> Any:
        """The type of one member of a batch of type `whole`."""
        return whole.dec_rank(trace.axis.size, dim) if whole.is_high else whole.without(dim)


register_placing(BatchTracer, lambda member: without_dim(place_of(member.value), member.dim))


class BatchTrace(Trace):
    """Applies batching rules in `parent`. `dims` has None for unbatched operands."""

    __slots__ = ("_contents", "axis", "parent")
    requires_low = False

    def __init__(self, parent: Trace, axis: MappedAxis):
        self.parent, self.axis = parent, axis
        self._contents: dict[int, Any] | None = None

    @property
    def contents(self) -> dict[int, Any]:
        """Of mutable values that were made here, by identity: the value, and where what it holds is mapped."""
        if self._contents is None:
            self._contents = {}
        return self._contents

    def seen_state(self, value: Any, state: Any) -> Any:
        """The type state of a mutable value within the mapped function."""
        dims = (self._contents or {}).get(id(value), (value, ()))[1]
        types = [a if d is None else BatchTracer.member(a, d, self) for a, d in zip(state.leaf_avals, dims)]
        return state.with_avals(types) if types else state

    def wrap(self, value: Any, dim: int | None) -> Any:
        return value if dim is None else BatchTracer(self, value, dim)

    def unwrap(self, value: Any) -> tuple[Any, int | None]:
        if type(value) is BatchTracer and value._trace is self:
            return value.value, value.dim
        return value, None

    def process_primitive(
        self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any], leading: bool = False
    ) -> Any:
        """By the batching rule. `leading`: some operands or results are of high types, and batches of those are laid
        out as loops do, which rules of primitives with Jaxprs call dimension 0."""
        values: list[Any] = []
        dims: list[int | None] = []
        active, has_refs, axis = False, False, self.axis
        for a in args:
            if type(a) is BatchTracer and a._trace is self:
                values.append(a.value)
                dims.append(a.dim)
                active = True
                has_refs = has_refs or type(a.aval) is AbstractRef
            else:
                values.append(a)
                dims.append(None)
        saved = context.trace
        context.trace = self.parent
        try:
            named = axis.name is not None and _names(axis.name, primitive, params)
            if not active and not named and not primitive.allocates:
                return primitive.bind_in(self.parent, values, params)
            inner = has_refs and not (primitive.on_cells and primitive.applies is None)
            if inner:
                check_aliases(primitive, args, params)
            if primitive.selects is not None and any(map(is_ref, args)):
                if primitive.selects(axis, flags_of(values, dims), params):
                    context.trace = self
                    return through_values(primitive, args, params)
            if primitive.batch is None:
                raise missing_rule(primitive, "batch", "cannot be used under vmap")
            if leading:
                dims = [d if d is None or isinstance(d, int) else 0 for d in dims]
            along = axis if primitive.batch_axis else axis.extent
            if inner and not primitive.batches_refs:  # what is inside has batches in front
                rule = lambda values, dims: primitive.batch(along, values, dims, params)
                out, out_dims = with_moved_refs(primitive, rule, values, dims, params, 0)
            else:
                out, out_dims = primitive.batch(along, values, dims, params)
        finally:
            context.trace = saved
        if not primitive.multiple_results:
            return self.wrap(out, out_dims)
        if leading:
            out_dims = [d if d is None else batch_front(aval_of(o)) or d for o, d in zip(out, out_dims)]
        return [self.wrap(o, d) for o, d in zip(out, out_dims)]

    def process_high(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        """By the batching rule of the primitive; one that has none is lowered, and what it then does is mapped.

        Calls on high values that are not laid out as loops do are written out; for loops and branches these are moved.
        """
        if primitive.boxes is not None:
            return primitive.boxes.batch(self, args, params)
        if may_unbox(primitive, args, params):
            return primitive.unbox(*args, **params)  # type: ignore[misc]
        if primitive.batch is None:
            return primitive.to_lojax(*args, **params)  # type: ignore[misc]
        if primitive.applies is None:
            return self.process_primitive(primitive, args, params)
        leads = [_leads(aval_of(a), self.unwrap(a)[1]) for a in args]
        if primitive.once and not all(leads):
            return inlined_call(*args, jaxpr=primitive.applies(params)[0][0])
        args = [a if leads_already else self._led(a) for a, leads_already in zip(args, leads)]
        return self.process_primitive(primitive, args, params, leading=True)

    def _led(self, value: Any) -> Any:
        """A batch of values of a high type, laid out as loops have it."""
        whole, dim = self.unwrap(value)
        with set_trace(self.parent):
            moved = in_front(self.axis.extent, whole, dim)
        return self.wrap(moved, batch_front(aval_of(value)))


def _leads(member: Any, dim: Any) -> bool:
    """Whether a batch is laid out as rules of primitives with Jaxprs can say."""
    return dim is None or isinstance(dim, int) or dim == batch_front(member)


def _names(name: Hashable, primitive: Primitive, params: dict[str, Any]) -> bool:
    """Whether an application names an axis, itself or in a Jaxpr among its parameters."""
    if primitive.names is not None:
        return name in primitive.names(params)
    return any(name in names_in(jaxpr) for jaxpr in subjaxprs(params))


_named: WeakCache = WeakCache()


def names_in(jaxpr: Jaxpr) -> frozenset[Hashable]:
    """The axes that the operations of a Jaxpr name. Names that a region inside binds itself count too: mapping over
    what does not need it is only work."""
    return _named.get(jaxpr, "names", lambda: frozenset(_walk(jaxpr)))


def _walk(jaxpr: Jaxpr) -> Iterator[Hashable]:
    for eqn in jaxpr.eqns:
        if eqn.primitive.names is not None:
            yield from eqn.primitive.names(eqn.params)
        for inner in subjaxprs(eqn.params):
            yield from names_in(inner)


@contextmanager
def mapping(axis: MappedAxis) -> Iterator[BatchTrace]:
    """A trace that maps over `axis`, as the current one, with the axis in scope if it has a name or mesh axes."""
    trace = BatchTrace(context.trace, axis)
    named: tuple[NamedAxis, ...] = ()
    if axis.name is not None or axis.mesh_axes:
        named = (NamedAxis(UNNAMED if axis.name is None else axis.name, axis.size, along=axis.mesh_axes),)
    with bind_axes(named), set_trace(trace), transformed("vmap"):
        yield trace


def batch_flat(
    fun: Callable[..., Sequence[Any]],
    axis: MappedAxis,
    args: Sequence[Any],
    dims: Sequence[int | None],
) -> tuple[list[Any], list[int | None]]:
    """Maps a flat function in the current trace; returns values and the position of each one's batch dimension."""
    with mapping(axis) as trace:
        outs = fun(*[trace.wrap(a, d) for a, d in zip(args, dims)])
    pairs = [trace.unwrap(o) for o in outs]
    if settings.check_tracer_leaks:
        kept = weakref.ref(trace)
        del trace, outs
        refuse_leaks(kept, "a function that was mapped by vmap")
    return [v for v, _ in pairs], [d for _, d in pairs]


class Behind(NamedTuple):
    """Flags an argument of a Jaxpr that has its mapped dimension at `dim`, behind others: a reference, which stays as
    it is when others are moved."""

    dim: int


Flags = tuple[bool | Behind, ...]


def flags_of(args: Sequence[Any], dims: Sequence[Any]) -> Flags:
    """How operands are mapped that have their mapped dimensions in front, but for references."""
    return tuple([Behind(d) if isinstance(d, int) and d and is_ref(x) else d is not None for x, d in zip(args, dims)])


def led(x: Any, dim: Any) -> Any:
    """An operand with its mapped dimension in front, where it has one; a reference as it is."""
    return x if dim is None or is_ref(x) else move_dim(x, dim, 0)


_cache: WeakCache = WeakCache()
_first = operator.itemgetter(0)


def batch_jaxpr(
    jaxpr: Jaxpr, axis: MappedAxis, batched: Flags, force_out: tuple[bool, ...] | bool = False
) -> tuple[ClosedJaxpr, tuple[bool, ...]]:
    """`jaxpr` mapped over `axis`, and which results are mapped.

    Arguments flagged in `batched` get a dimension of the axis's size, in front where the flag says no more, and the
    mapped results have it in front: those that depend on mapped arguments, and those flagged in `force_out`. Cached by
    `jaxpr`.
    """
    return _cache.get(jaxpr, (axis, batched, force_out), lambda: _batch_jaxpr(jaxpr, axis, batched, force_out), _first)


def _batched_type(aval: Any, axis: MappedAxis, flag: bool | Behind) -> Any:
    if type(flag) is Behind:
        return aval.batched(axis.size, axis.along, flag.dim)
    return aval.batched(axis.size, axis.along) if flag else aval


def _batch_jaxpr(jaxpr, axis, batched, force_out):
    if isinstance(force_out, bool):
        force_out = (force_out,) * len(jaxpr.outvars)
    jaxpr = settled(jaxpr)
    trace = JaxprTrace(jaxpr.name, requires_low=False)
    args = [trace.argument(_batched_type(a, axis, b)) for a, b in zip(jaxpr.in_avals, batched)]
    with set_trace(trace):
        dims = [b.dim if type(b) is Behind else batch_front(a) if b else None for a, b in zip(jaxpr.in_avals, batched)]
        outs, out_dims = batch_flat(lambda *xs: eval_jaxpr(jaxpr, (), xs), axis, args, dims)
        outs = [
            in_front(axis.extent, o, d) if d is not None or force else o
            for o, d, force in zip(outs, out_dims, force_out)
        ]
        closed = trace.close(args, outs, jaxpr.labels and jaxpr.labels.of_args())
    flags = tuple(d is not None or force for d, force in zip(out_dims, force_out))
    return hoist_consts(closed), flags
