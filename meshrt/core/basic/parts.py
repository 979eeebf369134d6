"""Between a value of a high type and the arrays that it consists of, inside of programs.

    to_parts[] value  ->  arrays...        from_parts[kind] arrays...  ->  value
    swap_batches[kind, at] value  ->  value with dimensions `at` and `at + 1` of its arrays exchanged

The first two are linear, and each is the transpose of the other, for types whose derivatives consist of the derivatives
of their arrays. The derivatives of others (a quantized matrix, whose tangents are floating) do not pass there. The
third is for batches of batches, whose derivatives are batches of batches too, of whatever type.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshrt import errors
from meshrt.core.basic.shapes import bring_to_front, instantiate, repeated, transpose, zeros
from meshrt.core.basic.varying import as_cotangent, in_order, set_vary_parts, vary
from meshrt.core.high import HiType, is_high_value, says_arrays
from meshrt.core.placed import placed
from meshrt.core.primitive import Primitive
from meshrt.core.trace import JaxprTrace, Tracer, set_trace
from meshrt.core.types import aval_of, in_program

__all__ = [
    "batch_front", "cotangent_of", "exchanged", "from_parts_p", "has_parts_derivatives", "in_front", "made_of",
    "packed", "parts_of", "to_parts_p",
]  # fmt: skip


def parts_of(value: Any) -> list[Any]:
    """The arrays that a value of a high type consists of, also of one that is traced."""
    if isinstance(value, Tracer):
        found: list[Any] = to_parts_p.bind(value)
        return found
    kind: Any = aval_of(value)
    return list(kind.lower_val(value))


def batch_front(kind: Any) -> Any:
    """Where loops, branches and references have the members of a batch of values of a type."""
    return kind.leading_axis_spec() if kind.is_high and not kind.mutable else 0


def in_front(extent: int, value: Any, dim: Any) -> Any:
    """As `bring_to_front`, also of a value of a high type, which has the batch where loops have it: in front of each of
    its arrays (`HiType.leading_axis_spec`), said as that spec or as 0.
    """
    kind: Any = aval_of(value)
    if not kind.is_high:
        return bring_to_front(extent, value, dim)
    spec = batch_front(kind)
    if dim is None:
        same = [repeated(extent, x, 0) for x in parts_of(value)]
        return from_parts_p.bind(*same, kind=kind.inc_rank(int(extent), spec))
    if dim in (0, spec):
        return value
    arrays = [bring_to_front(extent, x, d) for x, d in zip(parts_of(value), kind.batch_dims(dim))]
    return from_parts_p.bind(*arrays, kind=kind.without(dim).inc_rank(int(extent), spec))


def exchanged(value: Any, member: Any, outer: int, inner: int) -> Any:
    """A batch of `inner` batches of `outer` values of the high type `member`, as one of `outer` batches of `inner`.

    Raises:
      UnsupportedError: the type has a batch elsewhere than in front of each of its arrays.
    """
    one = member.batched(inner)
    if [t.shape for t in one.lo_ty()] != [(inner, *t.shape) for t in member.lo_ty()]:
        raise errors.UnsupportedError(
            f"vmap of a scan over values of the high type {member.short()}: its batches do not have their "
            "dimension in front of each array, so that it cannot be told from that of the loop. Make `inc_rank` of the "
            "type, with its `leading_axis_spec`, put it there; or have the scan take and return arrays"
        )
    return swap_batches_p.bind(value, kind=one.batched(outer), at=0)


def packed(value: Any) -> Any:
    """A value of a high type that was made of tracers, as a tracer of that type; anything else as it is."""
    if not is_high_value(value):
        return value
    kind: Any = aval_of(value)
    if kind.mutable or kind.opens:
        return value
    arrays = kind.lower_val(value)
    return from_parts_p.bind(*arrays, kind=kind) if any(isinstance(a, Tracer) for a in arrays) else value


def cotangent_of(ct: Any, wanted: Any) -> Any:
    """A cotangent, of a value of a high type too, as one of type `wanted` in what it says of devices: that of one value
    of several devices is the sum of what each of them has (`as_cotangent`). None stays.
    """
    if ct is None:
        return None
    if not wanted.is_high:
        return as_cotangent(ct, wanted)
    pairs = list(zip(parts_of(ct), _types(wanted)))
    moved = [as_cotangent(x, t) for x, t in pairs]
    return ct if all(m is x for m, (x, _) in zip(moved, pairs)) else from_parts_p.bind(*moved, kind=wanted)


def _types(kind: Any) -> list[Any]:
    return [in_program(a) for a in kind.lo_ty()]


def has_parts_derivatives(kind: Any) -> bool:
    """Whether derivatives of values of a high type consist of the derivatives of their arrays."""
    tangent = kind.to_tangent_aval()
    own = [a.to_tangent_aval() for a in _types(kind)]
    return bool(tangent.is_high) and [a.strong() for a in _types(tangent)] == [a.strong() for a in own]


def _tangent_kind(kind: Any) -> Any:
    tangent = kind.to_tangent_aval()
    if not has_parts_derivatives(kind):
        raise errors.UnsupportedError(
            f"the derivatives of {kind.short()}, of type {tangent.short()}, do not consist of those of its "
            "arrays, so they cannot be taken apart or put together here (where a value is made of traced arrays): do "
            "that in an operation with a rule of its own (VJPHiPrimitive)"
        )
    return tangent


def _to_jvp(primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    kind = aval_of(primals[0])
    _tangent_kind(kind)
    return to_parts_p.bind(*primals), to_parts_p.bind(*tangents)


def _to_transpose(cts: Sequence[Any], value: Any) -> list[Any]:
    kind: Any = value.aval.to_ct_aval()
    return [from_parts_p.bind(*[zeros(a) if c is None else c for c, a in zip(cts, _types(kind))], kind=kind)]


def _from_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, kind: Any) -> tuple[Any, Any]:
    made = from_parts_p.bind(*primals, kind=kind)
    filled = [instantiate(t, p) for t, p in zip(tangents, primals)]
    return made, from_parts_p.bind(*filled, kind=_tangent_kind(kind))


def _to_batch(extent: int, values: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    parts = to_parts_p.bind(in_front(extent, values[0], dims[0]))
    return parts, [0] * len(parts)


def _from_batch(extent: int, arrays: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    kind, spec = params["kind"], batch_front(params["kind"])
    front = [bring_to_front(extent, x, d) for x, d in zip(arrays, dims)]
    return from_parts_p.bind(*front, kind=kind.inc_rank(int(extent), spec)), spec


def _not_lowered(*_: Any) -> Any:
    raise errors.InternalError("a value of a high type reached the lowering of a program, which is one over arrays")


to_parts_p = Primitive(
    "to_parts", _types, lower=_not_lowered, jvp=_to_jvp, transpose=_to_transpose,
    to_lojax=lambda value: aval_of(value).lower_val(value), multiple_results=True, cache_types=False,
    batch=_to_batch,
)  # fmt: skip
from_parts_p = Primitive(
    "from_parts", lambda *avals, kind: kind, lower=_not_lowered, jvp=_from_jvp,
    transpose=lambda ct, *arrays, kind: to_parts_p.bind(ct), to_lojax=lambda *arrays, kind: kind.raise_val(*arrays),
    cache_types=False, batch=_from_batch,
)  # fmt: skip


def _swapped(x: Any, at: int) -> Any:
    """An array with dimensions `at` and `at + 1` exchanged."""
    rank = aval_of(x).ndim
    return transpose(x, (*range(at), at + 1, at, *range(at + 2, rank)))


def _swap_derivative(x: Any, kind: Any, at: int) -> Any:
    """What becomes of a tangent or cotangent, where `kind` is the type of the result's."""
    if kind.is_high:
        return swap_batches_p.bind(x, kind=kind, at=at)
    moved = _swapped(x, at) if aval_of(x).ndim > at + 1 else x
    if aval_of(moved).shape != kind.shape:
        raise errors.UnsupportedError(
            f"derivatives of a mapped loop over values of a high type: they have the type {aval_of(x).short()}, "
            f"which with dimensions {at} and {at + 1} exchanged is not {kind.short()}. Make `to_tangent_aval` of "
            "the type give batches the derivatives of their members, in front; or have the loop take and return arrays"
        )
    return moved


def _swap_jvp(primals: Sequence[Any], tangents: Sequence[Any], *, kind: Any, at: int) -> tuple[Any, Any]:
    out = swap_batches_p.bind(*primals, kind=kind, at=at)
    return out, _swap_derivative(tangents[0], kind.to_tangent_aval(), at)


def _swap_batch(extent: int, values: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    value, spec = in_front(extent, values[0], dims[0]), batch_front(params["kind"])
    return swap_batches_p.bind(value, kind=params["kind"].inc_rank(int(extent), spec), at=params["at"] + 1), spec


swap_batches_p: Primitive = Primitive(
    "swap_batches", lambda value, kind, at: kind, lower=_not_lowered, jvp=_swap_jvp, batch=_swap_batch,
    transpose=lambda ct, value, kind, at: [_swap_derivative(ct, value.aval.to_ct_aval(), at)],
    to_lojax=lambda value, kind, at: kind.raise_val(*[_swapped(x, at) for x in aval_of(value).lower_val(value)]),
    cache_types=False,
)  # fmt: skip
JaxprTrace.packed = staticmethod(packed)


# ---------------------------------------------------------------------------------------------------------------------
# Manual axes


def made_of(kind: Any, types: Sequence[Any]) -> Any:
    """The type of the value of a high type that consists of arrays of these types."""
    trace = JaxprTrace("parts", requires_low=True)
    with set_trace(trace):
        made: Any = aval_of(kind.raise_val(*[trace.argument(t) for t in types]))
    return placed(made, [t.vma for t in types])


def _varying(kind: Any, axes: Any) -> Any:
    """The type of a value each of whose arrays varies over `axes` too, or over what the type in place of axes says of
    it. The type itself where it does already."""
    if not isinstance(kind, HiType) or not says_arrays(kind):
        return kind
    own = kind.lo_ty()
    more = [t.vma for t in axes.lo_ty()] if isinstance(axes, HiType) else [axes] * len(own)
    if all(t.vma.issuperset(m) for t, m in zip(own, more)):
        return kind
    return made_of(kind, [in_program(t).update(vma=t.vma.union(m)) for t, m in zip(own, more)])


def _vary_parts(value: Any, axes: Any) -> Any:
    kind: Any = aval_of(value)
    wanted = _varying(kind, axes)
    return value if wanted is kind else vary_parts_p.bind(value, kind=wanted)


def _varied(value: Any, wanted: Any) -> Any:
    """A value, or derivative, that varies over those axes too over which one of type `wanted` does."""
    return vary(value, wanted if wanted.is_high else in_order(wanted.vma))


def _parts_varied(value: Any, kind: Any) -> Any:
    return kind.raise_val(*[_varied(x, t) for x, t in zip(aval_of(value).lower_val(value), kind.lo_ty())])


def _vary_batch(extent: int, values: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    value, spec = in_front(extent, values[0], dims[0]), batch_front(params["kind"])
    return vary_parts_p.bind(value, kind=params["kind"].inc_rank(int(extent), spec)), spec


# pvary of each array of a value; what its derivatives are, varies too.
vary_parts_p: Primitive = Primitive(
    "vary_parts", lambda value, kind: kind, lower=_not_lowered, typed=True, cache_types=False,
    jvp=lambda primals, tangents, kind: (
        vary_parts_p.bind(*primals, kind=kind), _varied(tangents[0], in_program(kind.to_tangent_aval()))
    ),
    transpose=lambda ct, value, kind: [cotangent_of(ct, value.aval.to_ct_aval())],
    batch=_vary_batch, to_lojax=_parts_varied,
)  # fmt: skip
set_vary_parts(_vary_parts)
JaxprTrace.varying = staticmethod(_varying)
