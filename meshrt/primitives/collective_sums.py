"""Collectives to and from partial sums over Manual axes: all_gather to what is reduced, and its transpose.

all_gather_reduced        varying   -> reduced      all_gather(x, axis_name, to="reduced")
unreduced_reduce_scatter  unreduced -> varying      psum_scatter(x, axis_name) of what is unreduced
"""

from __future__ import annotations

from typing import Any

from meshrt import errors
from meshrt.core.basic.shapes import linear_jvp
from meshrt.core.basic.sums import restated
from meshrt.core.explicit import reduced_of, unreduced_of
from meshrt.core.primitive import Primitive
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives.collective_exchange import all_gather_p, gather_type, reduce_scatter_p, scatter_type
from meshrt.primitives.collective_names import Names

__all__: list[str] = []


def _names(params: dict[str, Any]) -> Names:
    names: Names = params["axis_name"]
    return names


def _gather_infer(x: ShapedArray, *, mesh: Any, **params: Any) -> ShapedArray:
    names = params["axis_name"]
    if not x.vma.issuperset(names) or reduced_of(x).intersection(names):
        raise errors.ArgumentValueError(
            f"all_gather(to='reduced') takes what varies along all of {names}, but got {x.short()}"
        )
    out = gather_type(False)(x, **params)
    return restated(out, mesh, x.vma.difference(names), unreduced_of(x), reduced_of(x).union(names))


def _scatter_infer(x: ShapedArray, *, mesh: Any, **params: Any) -> ShapedArray:
    names = params["axis_name"]
    if not unreduced_of(x).issuperset(names):
        raise errors.ArgumentValueError(
            f"psum_scatter of partial sums takes what is unreduced along all of {names}, but got {x.short()}"
        )
    out = scatter_type(x, **params)
    return restated(out, mesh, x.vma.union(names), unreduced_of(x).difference(names), reduced_of(x))


def _declare(name: str, infer: Any, of: Primitive, dimension: str, dual: Any) -> Primitive:
    def transpose(ct: Any, x: Any, **params: Any) -> list[Any]:
        other, its_dimension = dual()
        return [other.bind(ct, **{its_dimension: params.pop(dimension)}, **params)]

    def batch(size: int, args: Any, dims: Any, params: dict[str, Any]) -> tuple[Any, int]:
        d, at = dims[0], params[dimension]
        before = aval_of(args[0]).ndim
        out = primitive.bind(args[0], **{**params, dimension: at + (d <= at)})
        after = aval_of(out).ndim
        return out, d + (after - before if at < d else 0)

    primitive = Primitive(
        name, infer, lower=of.lower, jvp=linear_jvp(lambda: primitive), transpose=transpose, batch=batch, typed=True,
        finite=True, names=_names, alike=of.alike,
    )  # fmt: skip
    return primitive


all_gather_reduced_p: Primitive = _declare(
    "all_gather_reduced",
    _gather_infer,
    all_gather_p,
    "all_gather_dimension",
    lambda: (unreduced_reduce_scatter_p, "scatter_dimension"),
)
unreduced_reduce_scatter_p: Primitive = _declare(
    "unreduced_reduce_scatter",
    _scatter_infer,
    reduce_scatter_p,
    "scatter_dimension",
    lambda: (all_gather_reduced_p, "all_gather_dimension"),
)
