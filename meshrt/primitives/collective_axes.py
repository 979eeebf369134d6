"""What instances of a function along an axis know of it: axis_index, axis_size; pcast, which says what varies along it.

    axis_index[axis_name size varying] -> i32[]

Axes are those of `collective.py`. The casts are primitives of `meshrt.core.basic`; nothing is sent by any of them.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.axes import known_index
from meshrt.core.basic.sums import preduced_p, reduced_vary_p, vary_unreduced_p
from meshrt.core.basic.varying import pvary_p
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.core.source import capture
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.lowering.groups import stride_of
from meshrt.primitives import elementwise as ew
from meshrt.primitives.collective_names import Call, Names, over_leaves
from meshrt.primitives.reshape import iota
from meshrt.sharding.common import over
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import PartitionSpec
from meshrt.transforms.batching import MappedAxis
from propagation.quoting import quote

__all__ = ["axis_index", "axis_size", "pcast", "pvary"]


# ---------------------------------------------------------------------------------------------------------------------
# axis_index, axis_size


def _index_lower(ctx: LoweringContext, eqn: Eqn) -> Any:
    """The number of the device, divided by that of places of the axes after this one.

    A region with axes that are not Manual has no number of its own: it is asked for within a region of these as well.
    """
    name, size = eqn.params["axis_name"], eqn.params["size"]
    mesh, out = ctx.region_mesh((name,)), eqn.outvars[0].aval
    if size == 1:
        return ctx.full(0, out)
    free = tuple(n for n, s in mesh.shape_tuple if n not in mesh.manual_axes and s > 1)
    if not free:
        return _index_of_device(ctx, stride_of(mesh, name), size, out)
    body = ctx.body.body([])
    inner = ctx.nested(body)
    body.ret([_index_of_device(inner, stride_of(mesh, name), size, out)], "sdy.return", ctx.loc)
    program = ctx.module.mesh or mesh
    names = over(NamedSharding(mesh, PartitionSpec(free)), program).spec.axes
    attrs = (
        "in_shardings = #sdy.sharding_per_value<[]>, "
        f"manual_axes = #sdy<manual_axes{{{', '.join(quote(str(n)) for n in names)}}}>, "
        f"out_shardings = #sdy.sharding_per_value<[<@{ctx.module.mesh_symbol(program)}, []>]>"
    )
    return ctx.op("sdy.manual_computation", [], out, attrs, [body])


def _index_of_device(ctx: LoweringContext, stride: int, size: int, out: ShapedArray) -> Any:
    unsigned = ShapedArray((), np.dtype(np.uint32))
    number = ctx.op("stablehlo.partition_id", [], unsigned)
    if stride > 1:
        number = ctx.op("stablehlo.divide", [number, ctx.full(stride, unsigned)], unsigned)
    number = ctx.op("stablehlo.remainder", [number, ctx.full(size, unsigned)], unsigned)
    return ctx.op("stablehlo.convert", [number], out)


def _index_batch(axis: MappedAxis, args: Any, dims: Any, params: dict[str, Any]) -> tuple[Any, int | None]:
    if axis.name is None or axis.name != params["axis_name"]:
        return axis_index_p.bind(**params), None
    return iota(np.int32, axis.size), 0


axis_index_p: Primitive = Primitive(
    "axis_index",
    lambda *, axis_name, size, varying: ShapedArray(
        (), np.dtype(np.int32), vma=frozenset([axis_name]) if varying else frozenset()
    ),
    shown=lambda eqn: {"axis_name": eqn.params["axis_name"]},
    lower=_index_lower,
    batch=_index_batch,
    batch_axis=True,
    typed=True,
    cheap=True,
    finite=True,
    names=lambda params: (params["axis_name"],),
    absent=dict.fromkeys(("jvp", "transpose"), "it has no operands"),
)


def axis_index(axis_name: Any) -> Any:
    """The index along the axis `axis_name` at which this instance of the function runs: an int32 scalar.

    Along several axes, the first of which is the major one: `axis_index(("a", "b"))` is
    `axis_index("a") * axis_size("b") + axis_index("b")`. Raises `UnboundAxisError`.

    >>> meshrt.vmap(lambda x: x + lax.axis_index("i"), axis_name="i")(jnp.array([10, 10]))
    Array([10, 11], dtype=int32)
    """
    call = Call("axis_index", axis_name)
    return index_of(call.names, call.sizes, call.checked)


def _index_along(name: Hashable, size: int, varying: bool) -> Any:
    known = known_index(name)
    return axis_index_p.bind(axis_name=name, size=size, varying=varying) if known is None else known.index


def index_of(names: Names, sizes: Sequence[int], varying: Collection[Hashable]) -> Any:
    """The index along several axes, the first being the major one; `varying` has those over which types say so."""
    index: Any = np.int32(0)
    for i, (name, size) in enumerate(zip(names, sizes)):
        here = _index_along(name, size, name in varying)
        index = here if i == 0 else ew.add(ew.mul(index, np.int32(size)), here)
    return index


def axis_size(axis_name: Any) -> int:
    """The size of the axis `axis_name`, or the product of those of several: an int. Raises `UnboundAxisError`.

    >>> meshrt.vmap(lambda x: x * lax.axis_size("i"), axis_name="i")(jnp.array([1, 2]))
    Array([2, 4], dtype=int32)
    """
    return Call("axis_size", axis_name).size


# ---------------------------------------------------------------------------------------------------------------------
# pcast


_CASTS = ("varying", "unreduced", "reduced")


def pcast(x: Any, axis_name: Any, *, to: str) -> Any:
    """Each array of the pytree `x` with another type along the Manual axis `axis_name`, or axes. Nothing is sent.

    Args:
      to: "varying": what is the same on all devices along the axis becomes a value of which each has its own.
        "reduced": what is the same on all devices becomes one whose cotangents are partial sums. "unreduced": what
        varies becomes a partial sum, which `psum` or `psum_scatter` adds up.

    Raises:
      ArgumentValueError: there is no such cast of what `x` is along the axis.
      UnboundAxisError: nothing around binds the name.

    >>> mesh = meshrt.make_mesh((8,), ("x",))
    >>> f = meshrt.shard_map(lambda: lax.pcast(jnp.ones(1), "x", to="varying"), mesh=mesh, in_specs=(),
    ...     out_specs=meshrt.P("x"))
    >>> f().shape
    (8,)
    """
    if isinstance(axis_name, set | frozenset):
        raise errors.ArgumentTypeError(f"axis_name={axis_name!r} must be a tuple or a str, as its order matters")
    if to not in _CASTS:
        raise errors.ArgumentValueError(f"Got unexpected `to` value {to!r}. Allowed `to` values are: {_CASTS}")
    call = Call("pcast", axis_name)
    return over_leaves(x, lambda leaf: _cast(leaf, call, to))


def _cast(x: Any, call: Call, to: str) -> Any:
    if not call.checked:
        return x
    state = call.state(x)
    primitive = _CAST_BY.get((state, to))
    if primitive is None:
        raise errors.ArgumentValueError(
            f"Unsupported pcast from={state!r}, to={to!r} of {aval_of(x).short()} along {call.checked} at {capture()}; "
            f"there is a cast from {' and '.join(f'{a} to {b}' for a, b in _CAST_BY)}"
        )
    more = {} if primitive is pvary_p else {"mesh": call.mesh}
    return primitive.bind(x, axes=call.checked, **more)


_CAST_BY = {
    ("invarying", "varying"): pvary_p,
    ("invarying", "reduced"): preduced_p,
    ("varying", "unreduced"): vary_unreduced_p,
    ("reduced", "varying"): reduced_vary_p,
}


def pvary(x: Any, axis_name: Any) -> Any:
    """`pcast(x, axis_name, to="varying")`, by its older name.

    Args:
      x: an array.
      axis_name: the name of a mapped axis, or a tuple of names.

    >>> mesh = meshrt.make_mesh((8,), ("x",))
    >>> f = meshrt.shard_map(lambda: lax.pvary(jnp.ones(1), "x"), mesh=mesh, in_specs=(), out_specs=meshrt.P("x"))
    >>> f().shape
    (8,)
    """
    return pcast(x, axis_name, to="varying")
