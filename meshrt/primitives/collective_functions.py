"""Collectives that put together and take apart: all_gather, psum_scatter, all_to_all, pswapaxes, for users."""

from __future__ import annotations

from typing import Any

from meshrt import errors
from meshrt.core.basic.shapes import canonical_axis
from meshrt.core.primitive import Primitive
from meshrt.core.source import capture
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives.collective_exchange import (
    all_gather_invariant_p,
    all_gather_p,
    all_to_all_p,
    reduce_scatter_p,
)
from meshrt.primitives.collective_names import Call, over_leaves
from meshrt.primitives.collective_sums import all_gather_reduced_p, unreduced_reduce_scatter_p
from meshrt.primitives.reshape import expand_dims, squeeze

__all__ = ["all_gather", "all_gather_invariant", "all_to_all", "psum_scatter", "pswapaxes"]


_TO = ("varying", "reduced", "invarying")


def all_gather(
    x: Any, axis_name: Any, *, axis_index_groups: Any = None, axis: int = 0, tiled: bool = False, to: str = "varying"
) -> Any:
    """The values of each array of the pytree `x` at all places of the axis `axis_name`, or axes, put together.

    Args:
      axis_index_groups: gather within groups of indices instead, all of one size; each index in one group.
      axis: where the new dimension stands in the result; with `tiled`, the dimension along which they are joined.
      tiled: join along a dimension that there is, instead of stacking along a new one.
      to: what types say of the result, in regions where they say something: "varying" (each device has its own, so its
        cotangents are summed and scattered), or "invarying" (all have the same; `all_gather_invariant`), or
        "reduced" (all have the same, and its cotangents are partial sums, which are scattered without being added up
        on all devices first).

    Raises:
      UnboundAxisError: nothing around binds the name. AxisError: there is no such dimension.

    >>> meshrt.vmap(lambda x: lax.all_gather(x, "i"), axis_name="i")(jnp.array([1, 2]))
    Array([[1, 2],
           [1, 2]], dtype=int32)
    """
    if to not in _TO:
        raise errors.ArgumentValueError(
            f"Got unexpected `to` value {to!r} for `meshrt.lax.all_gather`. Allowed `to` values are: {_TO}"
        )
    if to != "varying" and axis_index_groups is not None:
        raise errors.UnsupportedError(
            f"all_gather(to={to!r}) with axis_index_groups: its result would be equal within each group only; use "
            "to='varying'"
        )
    if to == "invarying":
        return all_gather_invariant(x, axis_name, axis=axis, tiled=tiled)
    if to == "reduced":
        call = Call("all_gather", axis_name)
        return _gathered(all_gather_reduced_p if call.is_checked else all_gather_p, call, x, axis, tiled)
    return _gathered(all_gather_p, Call("all_gather", axis_name, axis_index_groups), x, axis, tiled)


def all_gather_invariant(x: Any, axis_name: Any, *, axis: int = 0, tiled: bool = False) -> Any:
    """`all_gather` whose result types know to be the same on all devices: it does not vary over `axis_name`.

    Its transpose takes each device's own part of the cotangent, without communication.

    Args:
      x: an array.
      axis_name: the name of a mapped axis, or a tuple of names.
      axis: a dimension number.
      tiled: keep the number of dimensions: pieces are concatenated along the dimension instead of stacked.

    >>> mesh = meshrt.make_mesh((8,), ("x",))
    >>> f = meshrt.shard_map(lambda: lax.all_gather_invariant(lax.axis_index("x"), "x"), mesh=mesh, in_specs=(),
    ...     out_specs=meshrt.P())
    >>> f()
    Array([0, 1, 2, 3, 4, 5, 6, 7], dtype=int32)
    """
    call = Call("all_gather_invariant", axis_name)
    return _gathered(all_gather_invariant_p if call.is_checked else all_gather_p, call, x, axis, tiled)


def _gathered(primitive: Primitive, call: Call, x: Any, axis: int, tiled: bool) -> Any:
    if not call.names:
        return x
    size = call.one_size()
    more = {"mesh": call.mesh} if primitive is all_gather_reduced_p else {}

    def leaf(x: Any) -> Any:
        ndim = aval_of(x).ndim + (not tiled)
        return primitive.bind(
            call.vary(x), all_gather_dimension=_dimension(call.caller, "axis", axis, ndim), axis_name=call.names,
            sizes=call.sizes, axis_index_groups=call.groups, axis_size=size, tiled=bool(tiled), **more,
        )  # fmt: skip

    return over_leaves(x, leaf)


def psum_scatter(
    x: Any, axis_name: Any, *, scatter_dimension: int = 0, axis_index_groups: Any = None, tiled: bool = False
) -> Any:
    """The sum over the axis `axis_name`, or axes, of each array of `x`, of which every member keeps its own part.

    `psum_scatter(x, "i")` is `psum(x, "i")[axis_index("i")]` for half the communication.

    Args:
      scatter_dimension: the dimension that is cut into parts: it is as large as the axis and is removed, or, with
        `tiled`, is divided by the size of the axis and stays.
      axis_index_groups: sums within groups of indices instead, all of one size; each index in one group.

    Raises:
      UnboundAxisError: nothing around binds the name. ArgumentValueError: the dimension has another size.

    >>> meshrt.vmap(lambda x: lax.psum_scatter(x, "i"), axis_name="i")(jnp.array([[1, 2], [3, 4]]))
    Array([4, 6], dtype=int32)
    """
    call = Call("psum_scatter", axis_name, axis_index_groups)
    if not call.names:
        return x
    size = call.one_size()

    def leaf(x: Any) -> Any:
        aval = aval_of(x)
        d = _dimension("psum_scatter", "scatter_dimension", scatter_dimension, aval.ndim)
        _check_parts("psum_scatter", "scatter_dimension", aval, d, size, call, tiled)
        partial = call.is_partial(x)
        primitive: Any = unreduced_reduce_scatter_p if partial else reduce_scatter_p
        more = {"mesh": call.mesh} if partial else {}
        return primitive.bind(
            x if partial else call.vary(x), scatter_dimension=d, axis_name=call.names, sizes=call.sizes,
            axis_index_groups=call.groups, axis_size=size, tiled=bool(tiled), **more,
        )  # fmt: skip

    return over_leaves(x, leaf)


def _check_parts(caller: str, which: str, aval: ShapedArray, d: int, size: int, call: Call, tiled: bool) -> None:
    n = aval.shape[d]
    if n % size if tiled else n != size:
        must = "be divisible by" if tiled else "equal"
        fix = f"pad the dimension to {n + -n % size}, or name another {which}"
        if not tiled:
            fix = f"name a {which} of size {size}" + (
                "" if n % size else ", or cut this one into parts of several with tiled=True"
            )
        raise errors.ArgumentValueError(
            f"{caller} over {call.names} at {capture()}: the size of {which} {d} of {aval.short()}, {n}, must "
            f"{must} that of the {'axis' if call.groups is None else 'groups'}, {size}; {fix}"
        )


def _dimension(caller: str, which: str, axis: int, ndim: int) -> int:
    try:
        return canonical_axis(axis, ndim)
    except errors.AxisError as e:
        raise errors.AxisError(
            f"{which} of {caller} at {capture()}: {e}; give one from {-ndim} to {ndim - 1}"
        ) from None


def all_to_all(
    x: Any, axis_name: Any, split_axis: int, concat_axis: int, *, axis_index_groups: Any = None, tiled: bool = False
) -> Any:
    """Cuts each array of the pytree `x` along `split_axis`, sends part j to index j along the axis `axis_name`, or
    axes, and puts what arrives together along `concat_axis`, in the order of where it comes from.

    Args:
      split_axis: the dimension that is cut: as large as the axis, and removed. With `tiled`, cut into equal parts.
      concat_axis: where in the result the new dimension stands. With `tiled`, the dimension along which parts are
        joined.
      axis_index_groups: exchange within groups of indices instead, all of one size; each index in one group.

    Raises:
      UnboundAxisError: nothing around binds the name. ArgumentValueError: the dimension has another size.

    >>> meshrt.vmap(lambda x: lax.all_to_all(x, "i", 0, 0), axis_name="i")(jnp.array([[1, 2], [3, 4]]))
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    call = Call("all_to_all", axis_name, axis_index_groups)
    if not call.names:
        return x
    size = call.one_size()

    def leaf(x: Any) -> Any:
        aval = aval_of(x)
        split = _dimension("all_to_all", "split_axis", split_axis, aval.ndim)
        concat = _dimension("all_to_all", "concat_axis", concat_axis, aval.ndim)
        _check_parts("all_to_all", "split_axis", aval, split, size, call, tiled)
        if tiled or split == concat:
            return _exchanged(call, size, x, split, concat)
        # The new dimension stands at `concat` once `split` is gone.
        new = concat + (split < concat)
        split += new <= split
        return squeeze(_exchanged(call, size, expand_dims(x, (new,)), split, new), (split,))

    return over_leaves(x, leaf)


def _exchanged(call: Call, size: int, x: Any, split: int, concat: int) -> Any:
    return all_to_all_p.bind(
        call.vary(x), split_axis=split, concat_axis=concat, axis_name=call.names, sizes=call.sizes,
        axis_index_groups=call.groups, axis_size=size,
    )  # fmt: skip


def pswapaxes(x: Any, axis_name: Any, axis: int, *, axis_index_groups: Any = None) -> Any:
    """Swaps the axis `axis_name` with dimension `axis` of each array of `x`: `all_to_all` from it to itself.

    Args:
      x: an array.
      axis_name: the name of a mapped axis, or a tuple of names.
      axis: a dimension number.
      axis_index_groups: groups of indices along the axis that each communicate among themselves.

    >>> meshrt.vmap(lambda x: lax.pswapaxes(x, "i", 0), axis_name="i")(jnp.array([[1, 2], [3, 4]]))
    Array([[1, 3],
           [2, 4]], dtype=int32)
    """
    return all_to_all(x, axis_name, axis, axis, axis_index_groups=axis_index_groups)
