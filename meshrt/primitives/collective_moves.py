"""Collectives that move values along an axis as they are: ppermute, pshuffle, pbroadcast; psend and precv.

    ppermute[axis_name sizes perm] x -> x          pbroadcast[axis_name sizes source] x -> x

psend and precv are a ppermute in two calls.

`sizes` are those of the named axes; `perm` and `source` are indices along all of them, the first being the major one.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from meshrt import errors, tree_util
from meshrt.core.axes import axis_names, find_axes
from meshrt.core.basic.shapes import linear_jvp
from meshrt.core.basic.varying import in_order, vary
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.core.source import capture
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.lowering.groups import CHANNEL
from meshrt.lowering.types import dense
from meshrt.primitives import elementwise as ew
from meshrt.primitives.collective import psum_over
from meshrt.primitives.collective_axes import index_of
from meshrt.primitives.collective_names import Call, Names, lower_as, over_leaves, spread_out, taken, without
from meshrt.primitives.reshape import broadcast_in_dim
from meshrt.primitives.selection import select_n
from meshrt.primitives.slice import index_in_dim
from meshrt.transforms.batching import MappedAxis

__all__ = ["pbroadcast", "ppermute", "precv", "psend", "pshuffle"]

Pairs = tuple[tuple[int, int], ...]


def _same_type(x: ShapedArray, **params: Any) -> ShapedArray:
    return x


def _names(params: dict[str, Any]) -> Names:
    names: Names = params["axis_name"]
    return names


# ---------------------------------------------------------------------------------------------------------------------
# ppermute


def _permute_lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    groups, perm, out = ctx.groups(eqn.params["axis_name"]), eqn.params["perm"], eqn.outvars[0].aval
    if not perm:
        return ctx.full(0, out.physical())
    if groups.shape[1] == 1:
        return x  # the only pair that there can be
    pairs = groups[:, np.array(perm)].reshape(-1, 2)
    return ctx.op("stablehlo.collective_permute", [x], out, f"source_target_pairs = {dense(pairs)}, {CHANNEL}")


def _permute_batch(
    axis: MappedAxis, args: Sequence[Any], dims: Sequence[int | None], params: dict[str, Any]
) -> tuple[Any, int | None]:
    (x,), (d,), names, perm = args, dims, params["axis_name"], params["perm"]
    if axis.name is None or axis.name not in names:
        return ppermute_p.bind(x, **params), d
    if d is None and len(names) == len([n for n in names if n == axis.name]) and _is_full(perm, axis.size):
        return x, None
    x, d = spread_out(x, d, axis.size)
    rest = without(names, axis.name)
    place = names.index(axis.name)
    sizes = params["sizes"]
    total = None
    for pairs, rows in _by_rest(perm, sizes, place).items():
        moved = x
        if rest:
            moved = ppermute_p.bind(x, axis_name=rest, sizes=_dropped(sizes, place), perm=pairs)
        part = taken(moved, rows, d)
        total = part if total is None else _either(total, part)
    return (taken(x, [None] * axis.size, d) if total is None else total), d


def _is_full(perm: Pairs, size: int) -> bool:
    return len(perm) == size


def _dropped(values: Sequence[int], place: int) -> tuple[int, ...]:
    return (*values[:place], *values[place + 1 :])


def _by_rest(perm: Pairs, sizes: Sequence[int], place: int) -> dict[Pairs, list[int | None]]:
    """The permutation as moves along one axis after permutations along the others: who gets whose row after which.

    A row is sent along the others by one permutation, so moves that share it share what is sent.
    """
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for pair in perm:
        (a, source), (b, target) = (_parted(i, sizes, place) for i in pair)
        found.setdefault((a, b), []).append((source, target))
    shared: dict[Pairs, list[int | None]] = {}
    for (a, b), pairs in found.items():
        shared.setdefault(tuple(sorted(pairs)), [None] * sizes[place])[b] = a
    return shared


def _parted(index: int, sizes: Sequence[int], place: int) -> tuple[int, int]:
    """An index along several axes: that along the one at `place`, and that along the others."""
    parts = [int(i) for i in np.unravel_index(index, tuple(sizes))]
    rest = 0
    for i, (part, size) in enumerate(zip(parts, sizes)):
        if i != place:
            rest = rest * size + part
    return parts[place], rest


def _either(a: Any, b: Any) -> Any:
    """Two arrays of which at most one is not zero at each position."""
    return (ew.or_p if aval_of(a).dtype == np.bool_ else ew.add_p).bind(a, b)


ppermute_p: Primitive = Primitive(
    "ppermute",
    _same_type,
    lower=_permute_lower,
    jvp=linear_jvp(lambda: ppermute_p),
    transpose=lambda ct, x, *, axis_name, sizes, perm: [
        ppermute_p.bind(_like(ct, x), axis_name=axis_name, sizes=sizes, perm=tuple((b, a) for a, b in perm))
    ],
    batch=_permute_batch,
    batch_axis=True,
    typed=True,
    finite=True,
    names=_names,
)


def _like(ct: Any, x: Any) -> Any:
    """A cotangent as a value that varies over what the operand varies over."""
    return vary(ct, in_order(x.aval.vma))


def ppermute(x: Any, axis_name: Any, perm: Iterable[Sequence[int]]) -> Any:
    """Each array of the pytree `x`, sent along the axis `axis_name` (or axes) from index to index.

    Args:
      perm: pairs (source, destination). No index may be twice a source, or twice a destination; where nothing arrives
        the result is zero. Indices along several Manual axes go by the order of the axes in their mesh, as JAX's do,
        and not by that of `axis_name`; all other collectives go by the latter.

    Raises:
      UnboundAxisError: nothing around binds the name. ArgumentValueError: indices out of bounds, or twice.

    >>> rotated = lax.ppermute(x, "i", [(i, (i + 1) % n) for i in range(n)])    # doctest: +SKIP
    """
    call = Call("ppermute", _in_mesh_order(axis_name))
    pairs = _checked_perm(perm, call)
    return over_leaves(
        x, lambda leaf: ppermute_p.bind(call.vary(leaf), axis_name=call.names, sizes=call.sizes, perm=pairs)
        if call.names else leaf,
    )  # fmt: skip


def _in_mesh_order(axis_name: Any) -> Any:
    """The names, in the order of their mesh if all of them are Manual axes."""
    axes = find_axes(axis_names(axis_name), "ppermute")
    if len(axes) < 2 or not all(a.is_manual for a in axes):
        return axis_name
    order = list(axes[0].mesh.axis_names)
    return tuple(sorted((a.name for a in axes), key=order.index))


def _checked_perm(perm: Iterable[Sequence[int]], call: Call) -> Pairs:
    try:
        pairs = tuple((int(a), int(b)) for a, b in perm)
    except (TypeError, ValueError):
        raise errors.ArgumentTypeError(
            f"{call.caller} needs a list of pairs (source, destination) of ints, but got {perm!r}"
        ) from None
    sources, targets = [a for a, _ in pairs], [b for _, b in pairs]
    outside = [i for i in (*sources, *targets) if not 0 <= i < call.size]
    if outside:
        raise errors.ArgumentValueError(
            f"{call.caller} over {call.names} at {capture()} got index {outside[0]} in {pairs}, but the indices along "
            f"the axis go from 0 to {call.size - 1}; leave the pair out, or take it modulo {call.size} for a ring"
        )
    if len(set(sources)) < len(pairs) or len(set(targets)) < len(pairs):
        raise errors.ArgumentValueError(
            f"{call.caller} sources and destinations must be unique, got {pairs} at {capture()}: send to "
            "several destinations with all_gather or several permutations"
        )
    return pairs


def pshuffle(x: Any, axis_name: Any, perm: Sequence[int]) -> Any:
    """`ppermute` by the sources: index i along the axis gets the value of index `perm[i]`. A whole permutation.

    Args:
      x: an array.
      axis_name: the name of a mapped axis, or a tuple of names.
      perm: the index from which each one receives.

    >>> meshrt.vmap(lambda x: lax.pshuffle(x, "i", [2, 0, 1]), axis_name="i")(jnp.array([1, 5, 3]))
    Array([3, 1, 5], dtype=int32)
    """
    perm = [int(i) for i in perm]
    if sorted(perm) != list(range(len(perm))):
        raise errors.ArgumentValueError(f"`perm` does not represent a permutation: {perm}")
    return ppermute(x, axis_name, list(zip(perm, range(len(perm)))))


# ---------------------------------------------------------------------------------------------------------------------
# pbroadcast


def _broadcast_lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    """GPUs have an operation for it. Elsewhere it is the sum of what the source has and zeros."""
    p, out = eqn.params, eqn.outvars[0].aval
    groups = ctx.groups(p["axis_name"])
    if groups.shape[1] == 1:
        return x
    if ctx.module.platform in ("cuda", "rocm"):
        first = np.roll(groups, -p["source"], axis=1)
        return ctx.collective("stablehlo.collective_broadcast", x, out, first)
    return lower_as(ctx, lambda y: psum_over(_masked(y, **p), eqn.invars[0].aval, p["axis_name"]), [x], eqn)


def _masked(x: Any, *, axis_name: Names, sizes: tuple[int, ...], source: int) -> Any:
    """`x` at the index `source`, zeros elsewhere."""
    aval = aval_of(x)
    mine = ew.eq_p.bind(index_of(axis_name, sizes, aval.vma), np.int32(source))
    zeros = broadcast_in_dim(np.zeros((), aval.dtype)[()], aval.shape, ())
    return select_n(broadcast_in_dim(mine, aval.shape, ()), zeros, x)


def _broadcast_batch(
    axis: MappedAxis, args: Sequence[Any], dims: Sequence[int | None], params: dict[str, Any]
) -> tuple[Any, int | None]:
    (x,), (d,), names, sizes = args, dims, params["axis_name"], params["sizes"]
    if axis.name is None or axis.name not in names:
        return pbroadcast_p.bind(x, **params), d
    place, rest = names.index(axis.name), without(names, axis.name)
    row, source = _parted(params["source"], sizes, place)
    if d is not None:
        x = index_in_dim(x, row, d, keepdims=False)
    if rest:
        x = pbroadcast_p.bind(x, axis_name=rest, sizes=_dropped(sizes, place), source=source)
    return x, None


pbroadcast_p: Primitive = Primitive(
    "pbroadcast",
    _same_type,
    lower=_broadcast_lower,
    jvp=linear_jvp(lambda: pbroadcast_p),
    # The source gets the sum of all cotangents, the others nothing.
    transpose=lambda ct, x, **params: [
        _masked(_like(psum_over(_like(ct, x), x.aval, params["axis_name"]), x), **params)
    ],
    batch=_broadcast_batch,
    batch_axis=True,
    typed=True,
    finite=True,
    names=_names,
    alike=True,
)


def pbroadcast(x: Any, axis_name: Any, source: int) -> Any:
    """Each array of the pytree `x` as the index `source` along the axis `axis_name` (or axes) has it.

    Raises:
      UnboundAxisError: nothing around binds the name. ArgumentValueError: there is no such index.

    Args:
      x: an array.
      axis_name: the name of a mapped axis, or a tuple of names.
      source: the index that sends.

    >>> meshrt.vmap(lambda x: lax.pbroadcast(x, "i", 1), axis_name="i")(jnp.array([1, 5, 3]))
    Array([5, 5, 5], dtype=int32)
    """
    call = Call("pbroadcast", axis_name)
    source = operator.index(source)
    if not 0 <= source < call.size:
        raise errors.ArgumentValueError(
            f"pbroadcast over {call.names} got source={source} at {capture()}, but the indices along the axis go from "
            f"0 to {call.size - 1}; name one of them"
        )
    return over_leaves(
        x, lambda leaf: pbroadcast_p.bind(call.vary(leaf), axis_name=call.names, sizes=call.sizes, source=source)
    )


# ---------------------------------------------------------------------------------------------------------------------
# psend, precv


class Sent:
    """What `psend` gives: what arrives at each index, for the `precv` of the same axes and pairs.

    A pytree of one array, so it may be carried by loops and cross `jit` and `optimization_barrier`.
    """

    __slots__ = ("axis_name", "perm", "value")

    def __init__(self, value: Any, axis_name: Names, perm: Pairs):
        self.value, self.axis_name, self.perm = value, axis_name, perm

    def __repr__(self) -> str:
        return f"Sent({self.value!r}, {self.axis_name}, {self.perm})"


tree_util.register_pytree_node(
    Sent, lambda s: ((s.value,), (s.axis_name, s.perm)), lambda about, children: Sent(children[0], *about)
)


def psend(x: Any, axis_name: Any, perm: Iterable[Sequence[int]]) -> Any:
    """The half of `ppermute` that sends: a token for each array of the pytree `x`, which `precv` takes.

    >>> token = lax.psend(x, "i", [(0, 1)])                                     # doctest: +SKIP
    >>> y = lax.precv(token, x, "i", [(0, 1)])  # x of index 0 at index 1, zeros elsewhere    # doctest: +SKIP

    Nobody waits for what is not taken at once: the transfer is one operation of the program, on all platforms.

    Raises:
      UnboundAxisError: nothing around binds the name. ArgumentValueError: indices out of bounds, or twice.
    """
    call = Call("psend", axis_name)
    pairs = _checked_perm(perm, call)
    return over_leaves(x, lambda leaf: Sent(ppermute(leaf, axis_name, pairs), call.names, pairs))


def precv(token: Any, out_shape: Any, axis_name: Any, perm: Iterable[Sequence[int]]) -> Any:
    """The half of `ppermute` that receives what was sent with `token`, by the same pairs along the same axes.

    Args:
      token: what `psend` gave.
      out_shape: anything with the shape and dtype of the result, as a ShapeDtypeStruct.

    Raises:
      ArgumentTypeError: `token` is none of `psend`, or `out_shape` has another shape or dtype. ArgumentValueError: the
      axes or pairs are not those of the `psend`.
    """
    call = Call("precv", axis_name)
    pairs = _checked_perm(perm, call)
    if not isinstance(token, Sent):
        raise errors.ArgumentTypeError(
            f"Expected send to match recv: precv over {call.names} got {token!r} of type {type(token).__name__} as its "
            "token, with which nothing was sent; pass what the psend of the same axes and pairs returned"
        )
    if (token.axis_name, token.perm) != (call.names, pairs):
        raise errors.ArgumentValueError(
            f"Expected send to match recv: precv over {call.names} by {pairs} got the token of a psend over "
            f"{token.axis_name} by {token.perm}, and would wait for ever; receive along the axes and by the pairs by "
            "which was sent"
        )
    have, want = aval_of(token.value), (tuple(out_shape.shape), out_shape.dtype)
    if (have.shape, have.dtype) != want:
        raise errors.ArgumentTypeError(
            f"precv over {call.names} got out_shape {want[1]}{list(want[0])}, but {have.short()} was sent; give "
            "the shape and dtype of what is sent"
        )
    return token.value
