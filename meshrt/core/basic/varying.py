"""pvary and psum over Manual axes: each one's transpose is the other.

Inside a manual region (`shard_map`) a type says over which Manual axes the value differs from device to device:

    pvary[axes=("x",)]           f32[4]       -> f32[4]{V:x}    nothing happens: each device takes its copy as its own
    psum_invariant[axes=("x",)]  f32[4]{V:x}  -> f32[4]         the sum over the devices along x, which all of them get

An operation on values that vary over different axes is one on values that vary over all of them:
`meshrt.core.basic.agreement` sees to it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

from meshrt import errors
from meshrt.core.axes import apart, axes_in_scope, manual_mesh
from meshrt.core.basic.linear import linear_jvp
from meshrt.core.basic.sums import reduced_vary_p, vary_unreduced_p
from meshrt.core.explicit import reduced_of, unreduced_of
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.core.types import ShapedArray, aval_of

__all__ = [
    "as_cotangent", "cast_needed", "declared", "in_order", "into_branch", "psum_invariant", "psum_invariant_p",
    "pvary_p", "set_vary_parts", "vary",
]  # fmt: skip

Axes = tuple[Hashable, ...]


def _names(params: dict[str, Any]) -> Axes:
    axes: Axes = params["axes"]
    return axes


# ---------------------------------------------------------------------------------------------------------------------
# pvary


def _pvary_infer(x: ShapedArray, *, axes: Axes) -> ShapedArray:
    return x.update(vma=x.vma.union(axes))


def _pvary_transpose(ct: Any, x: Any, *, axes: Axes) -> list[Any]:
    # What enters a branch may vary already over some of them: see `meshrt.core.axes.branching`.
    return [psum_invariant(ct, tuple(a for a in axes if a not in x.aval.vma))]


pvary_p: Primitive = Primitive(
    "pvary",
    _pvary_infer,
    lower=lambda ctx, eqn, x: x,
    jvp=linear_jvp(lambda: pvary_p),
    transpose=_pvary_transpose,
    batch=lambda size, args, dims, params: (pvary_p.bind(args[0], **params), dims[0]),
    typed=True,
    cheap=True,
    finite=True,
    names=_names,
)


def _no_parts(x: Any, axes: Any) -> Any:
    raise errors.InternalError("meshrt.core.basic.parts, which has values of high types vary, is not imported")


# What `vary` does with a value of a high type; `meshrt.core.basic.parts`, which stands above, sets it.
vary_parts: Callable[[Any, Any], Any] = _no_parts


def set_vary_parts(rule: Callable[[Any, Any], Any]) -> None:
    """Sets what `vary` does with a value of a high type."""
    global vary_parts
    vary_parts = rule


def vary(x: Any, axes: Any) -> Any:
    """`x` as a value that varies over `axes` too, for those over which it does not yet; in the order given.

    Of a value of a high type all arrays do, or those that a type in the place of `axes` says.
    """
    aval = aval_of(x)
    if aval.is_high:
        return x if aval.mutable else vary_parts(x, axes)
    vma = aval.vma
    missing = tuple(a for a in axes if a not in vma)
    if missing and aval.explicit is not None:
        x, missing = _from_sums(x, aval, missing)
    return pvary_p.bind(x, axes=missing) if missing else x


def cast_needed(name: str, kinds: Sequence[ShapedArray], axes: Iterable[Hashable]) -> errors.ArgumentValueError:
    """The error for operands of these types, some of which do not vary over all of `axes` as the operation `name` needs
    it, where the setting `auto_pcast` is off."""
    axes = tuple(axes)
    missing = [tuple(a for a in axes if a not in kind.vma) for kind in kinds]
    casts = [
        f"meshrt.lax.pcast(x, {names}, to='varying') of {'its operand' if len(kinds) == 1 else f'traced operand {i}'}"
        for i, names in enumerate(missing)
        if names
    ]
    return errors.ArgumentValueError(
        f"Primitive {name} requires varying manual axes to match, but got "
        f"{' and '.join(str(kind.short()) for kind in kinds)}, which do not all vary over {axes}. The setting "
        f"auto_pcast is off, so that no cast is put in: write {', and '.join(casts)}"
    )


def _from_sums(x: Any, aval: ShapedArray, axes: Axes) -> tuple[Any, Axes]:
    """What is reduced over some of `axes`, as varying over these; and the other ones."""
    partial = unreduced_of(aval).intersection(axes)
    if partial:
        raise errors.ArgumentValueError(
            f"pvary cannot accept args which are unreduced. Got {aval.short()} and axes={set(partial)}: it is a "
            "partial sum beside a value that varies; add it up with psum or psum_scatter, or make both unreduced"
        )
    reduced = tuple(a for a in axes if a in reduced_of(aval))
    if reduced:
        x = reduced_vary_p.bind(x, axes=reduced, mesh=manual_mesh())
    return x, tuple(a for a in axes if a not in reduced)


def declared(avals: Iterable[Any]) -> list[Any]:
    """For each argument of a Jaxpr over which axes it varies; of a value of a high type, whose arrays may differ in
    that, its type."""
    return [a if a.is_high and not a.mutable else a.vma for a in avals]


def into_branch(values: list[Any]) -> list[Any]:
    """The values as they are within a branch that devices choose by themselves: varying (`meshrt.core.axes.branching`).

    For those who trace a function for the types of its arguments there. A value from outside of the branch, traced for
    as one that all devices share, would have the sum of its cotangents taken inside, where some devices never come.
    """
    axes = apart()
    return [vary(x, in_order(axes)) for x in values] if axes else values


def in_order(names: Iterable[Hashable]) -> Axes:
    """Names of Manual axes in the order in which they were bound; by name where nothing is bound any more."""
    bound = {a.name: i for i, a in enumerate(axes_in_scope())}
    return tuple(sorted(names, key=lambda n: (bound.get(n, len(bound)), str(n))))


# ---------------------------------------------------------------------------------------------------------------------
# psum of a value that varies


def _psum_infer(x: ShapedArray, *, axes: Axes) -> ShapedArray:
    if not x.vma.issuperset(axes):
        raise errors.ArgumentValueError(
            "psum is a variant->invariant collective. This means that the axis names mentioned in `axes` passed to "
            f"`psum` must be those over which its operand varies, but {x.short()} does not vary over all of "
            f"{axes}; make it vary with meshrt.lax.pcast(x, axes, to='varying')"
        )
    return x.update(vma=x.vma.difference(axes))


def _psum_lower(ctx: Any, eqn: Eqn, x: Any) -> Any:
    return ctx.all_reduce("stablehlo.add", x, eqn.outvars[0].aval, eqn.params["axes"])


psum_invariant_p: Primitive = Primitive(
    "psum_invariant",
    _psum_infer,
    lower=_psum_lower,
    jvp=linear_jvp(lambda: psum_invariant_p),
    transpose=lambda ct, x, *, axes: [vary(ct, axes)],
    batch=lambda size, args, dims, params: (psum_invariant_p.bind(args[0], **params), dims[0]),
    typed=True,
    finite=True,
    names=_names,
    alike=True,
)


def psum_invariant(x: Any, axes: Sequence[Hashable]) -> Any:
    """The sum over Manual axes of a region whose types are checked. What is the same on all devices counts for each."""
    axes = tuple(axes)
    return psum_invariant_p.bind(vary(x, axes), axes=axes) if axes else x


def as_cotangent(ct: Any, wanted: ShapedArray) -> Any:
    """A cotangent as one of a value of type `wanted`: of one value of several devices the sum, which is left open over
    the axes that the value is reduced over.
    """
    have = aval_of(ct).vma
    addends = in_order(have & reduced_of(wanted))
    if addends:
        ct = vary_unreduced_p.bind(ct, axes=addends, mesh=manual_mesh())
    have = have.difference(addends)
    return vary(psum_invariant(ct, in_order(have - wanted.vma)), in_order(wanted.vma - have))
