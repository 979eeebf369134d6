"""`with_layout_constraint`: in which order the elements of a value lie in a device's memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors
from meshrt.core.jaxpr import Eqn, Jaxpr
from meshrt.core.primitive import Primitive
from meshrt.core.trace import Tracer
from meshrt.core.types import aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.runtime.array import Array
from meshrt.runtime.layouts import relayout
from meshrt.runtime.transfer import put_leaf
from meshrt.sharding.layout import AUTO, Layout
from meshrt.transforms.through_parts import of_arrays, said_of_arrays

__all__: list[str] = []  # a function of `meshrt.experimental.layout`


def with_layout_constraint(x: Any, layouts: Any) -> Any:
    """The arrays of a tree with their elements in the order of `layouts`, a Layout or a tree of them that is a prefix
    of `x`.

    Outside of compiled functions it moves the elements. Inside, it binds the compiler at this place of the program; in
    a program over a mesh each device's part lies so.

    Raises:
      ArgumentValueError: something is no Layout, or one is for another rank.
    """
    is_leaf = lambda v: v is None or v is AUTO or isinstance(v, Layout)
    leaves, tree, said = said_of_arrays(x, layouts, is_leaf)
    given = list(said)
    wrong = [type(v) for _, v in given if not isinstance(v, Layout)]
    if wrong:
        raise errors.ArgumentValueError(
            f"layouts passed to `with_layout_constraint` must be of type `Layout`. Got {wrong}; write Layout((1, 0)), "
            "for example"
        )
    said = iter(given)
    return tree.unflatten([of_arrays(_constrain, leaf, said) for leaf in leaves])


def _constrain(leaf: Any, path: Callable[[], str], layout: Layout) -> Any:
    layout.check_rank(aval_of(leaf).shape, "One of with_layout_constraint arguments")
    if isinstance(leaf, Tracer):
        return layout_constraint_p.bind(leaf, layout=layout)
    return relayout(leaf if type(leaf) is Array else put_leaf(leaf, None, False, None), layout)


def _lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    layout, aval = eqn.params["layout"], eqn.outvars[0].aval
    order = ", ".join(map(str, layout.major_to_minor[::-1]))
    laid = f"[dense<[{order}]> : tensor<{aval.ndim}xindex>]" if aval.ndim else "[dense<> : tensor<0xindex>]"
    attrs = f'call_target_name = "LayoutConstraint", operand_layouts = {laid}, result_layouts = {laid}'
    return ctx.ops("stablehlo.custom_call", [x], [aval], attrs)[0]


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, layout: Layout) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    out = layout_constraint_p.bind(x, layout=layout)
    return out, None if t is None else layout_constraint_p.bind(t, layout=layout)


def _batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    """Each example lies as asked, one behind the other."""
    (x,), (d,), layout = args, dims, params["layout"]
    inner = [i + (i >= d) for i in layout.major_to_minor]
    return layout_constraint_p.bind(x, layout=Layout((d, *inner), layout.tiling)), d


layout_constraint_p: Primitive = Primitive(
    "layout_constraint", lambda x, *, layout: x, lower=_lower, jvp=_jvp, batch=_batch,
    transpose=lambda ct, x, *, layout: [layout_constraint_p.bind(ct, layout=layout)],
)  # fmt: skip


def constrained_layouts(jaxpr: Jaxpr) -> tuple[Layout | None, ...]:
    """The layouts of a program's results that are constrained values themselves; empty if there are none."""
    asked: dict[Any, Layout] = {
        eqn.outvars[0]: eqn.params["layout"] for eqn in jaxpr.eqns if eqn.primitive is layout_constraint_p
    }
    found = tuple([asked.get(v) for v in jaxpr.outvars]) if asked else ()
    return found if any(found) else ()
