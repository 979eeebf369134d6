"""Partial sums over Manual axes: casts between what types say of a value along an axis, and the sum of the parts.

    varying      each device has a value of its own        unreduced    each has a part of the sum
    invarying    all have the same, and it is one value    reduced      all have the same; its cotangent is unreduced

    preduced         invarying -> reduced    and unreduced_psum  unreduced -> invarying  are each other's transpose
    reduced_vary     reduced   -> varying    and vary_unreduced  varying   -> unreduced  likewise

Only `unreduced_psum` sends anything. A type has these axes in its sharding, as it has Explicit ones (`spec.unreduced`,
`spec.reduced`), and the same rules (`Primitive.sums`) say what may be done with partial sums. `mesh` is that of the
region, as it is seen inside.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from meshrt import errors
from meshrt.core.basic.linear import linear_jvp
from meshrt.core.completion import Completion
from meshrt.core.explicit import reduced_of, unreduced_of
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.core.types import ShapedArray, present

__all__ = [
    "preduced_p", "reduced_vary_p", "restated", "unreduced_psum_p", "vary_unreduced_p",
]  # fmt: skip

Axes = tuple[Hashable, ...]


def restated(
    x: ShapedArray, mesh: Any, vma: Iterable[Hashable], unreduced: Iterable[Hashable], reduced: Iterable[Hashable]
) -> ShapedArray:
    """The type of `x` with other axes that it varies, is unreduced and is reduced over."""
    unreduced, reduced = frozenset(unreduced), frozenset(reduced)
    if x.explicit is None:
        sharding = Completion.sums(mesh, x.ndim, unreduced, reduced) if unreduced or reduced else None
    else:
        known: Any = x.explicit
        sharding = present(known.update(spec=known.spec.update(unreduced=unreduced, reduced=reduced)))
    return x.update(sharding=sharding, vma=frozenset(vma))


def _require(name: str, x: ShapedArray, axes: Axes, have: frozenset[Any], state: str, fix: str) -> None:
    if not have.issuperset(axes):
        raise errors.ArgumentValueError(f"{name} takes what is {state} along all of {axes}, but got {x.short()}; {fix}")


def _preduced(x: ShapedArray, *, axes: Axes, mesh: Any) -> ShapedArray:
    taken = (x.vma | unreduced_of(x) | reduced_of(x)).intersection(axes)
    if taken:
        raise errors.ArgumentValueError(
            f"preduced takes what is one value along all of {axes}, but got {x.short()}; cast along others only"
        )
    return restated(x, mesh, x.vma, unreduced_of(x), reduced_of(x).union(axes))


def _reduced_vary(x: ShapedArray, *, axes: Axes, mesh: Any) -> ShapedArray:
    _require("reduced_vary", x, axes, reduced_of(x), "reduced", "cast it with pcast(x, axes, to='reduced')")
    return restated(x, mesh, x.vma.union(axes), unreduced_of(x), reduced_of(x).difference(axes))


def _vary_unreduced(x: ShapedArray, *, axes: Axes, mesh: Any) -> ShapedArray:
    _require("vary_unreduced", x, axes, x.vma, "varying", "cast it with pcast(x, axes, to='varying')")
    return restated(x, mesh, x.vma.difference(axes), unreduced_of(x).union(axes), reduced_of(x))


def _unreduced_psum(x: ShapedArray, *, axes: Axes, mesh: Any) -> ShapedArray:
    _require("unreduced_psum", x, axes, unreduced_of(x), "unreduced", "use psum for values that vary")
    return restated(x, mesh, x.vma, unreduced_of(x).difference(axes), reduced_of(x))


def _names(params: dict[str, Any]) -> Axes:
    axes: Axes = params["axes"]
    return axes


def _lower_psum(ctx: Any, eqn: Eqn, x: Any) -> Any:
    return ctx.all_reduce("stablehlo.add", x, eqn.outvars[0].aval, eqn.params["axes"])


def _declare(name: str, infer: Any, lower: Any = None) -> Primitive:
    """One of the four, by the names of the files' table."""
    primitive = Primitive(
        name, infer, lower=lower or (lambda ctx, eqn, x: x), jvp=linear_jvp(lambda: primitive),
        transpose=lambda ct, x, **params: [_duals()[name].bind(ct, **params)],
        batch=lambda size, args, dims, params: (primitive.bind(args[0], **params), dims[0]),
        typed=True, cheap=lower is None, finite=True, names=_names, alike=lower is not None,
    )  # fmt: skip
    return primitive


preduced_p = _declare("preduced", _preduced)
unreduced_psum_p = _declare("unreduced_psum", _unreduced_psum, _lower_psum)
reduced_vary_p = _declare("reduced_vary", _reduced_vary)
vary_unreduced_p = _declare("vary_unreduced", _vary_unreduced)


def _duals() -> dict[str, Primitive]:
    return {
        "preduced": unreduced_psum_p,
        "unreduced_psum": preduced_p,
        "reduced_vary": vary_unreduced_p,
        "vary_unreduced": reduced_vary_p,
    }
