"""What a function would compute, without computing it: its Jaxpr and the types of its results."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar

from meshrt import errors
from meshrt.core.again import tells_more
from meshrt.core.axes import NamedAxis, axes_in_scope, bind_axes
from meshrt.core.jaxpr import ClosedJaxpr
from meshrt.core.naming import wraps
from meshrt.core.told import Told
from meshrt.core.trace import EVAL, Tracer, current_trace, trace_to_jaxpr
from meshrt.core.tracebacks import boundary
from meshrt.runtime.array import Array
from meshrt.runtime.events import timed
from meshrt.runtime.reference import told_types
from meshrt.shape_dtype import ShapeDtypeStruct
from meshrt.sharding._state import context as mesh_context
from meshrt.sharding.context import get_abstract_mesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.typed import abstract, told_sharding
from meshrt.transforms.arguments import (
    ArgumentNames,
    argument_paths,
    as_tuple,
    fun_name,
    not_an_argument,
    require_function,
    result_paths,
)
from meshrt.transforms.high import flatten
from meshrt.transforms.references import check_distinct
from meshrt.tree_util import tree_leaves, tree_unflatten

__all__ = ["eval_shape", "make_jaxpr"]


class Jitted:
    """`of(fun)` is what `meshrt.jit` makes of a function whose traces are kept for the next one who makes that of it,
    None for other functions. Set by `meshrt.jit`, which stands above."""

    of: ClassVar[Callable[[Callable[..., Any]], Any]]


def make_jaxpr(
    fun: Callable[..., Any],
    static_argnums: Any = (),
    axis_env: Sequence[tuple[Hashable, int]] | None = None,
    return_shape: bool = False,
) -> Callable[..., Any]:
    """A function that returns the ClosedJaxpr of `fun` at its arguments' types.

    Args:
      static_argnums: positions of arguments that are Python values.
      axis_env: names and sizes of axes that collectives in `fun` may name, as if it was mapped over them.
      return_shape: the function returns a pair of the Jaxpr and the types of the results.

    >>> print(meshrt.make_jaxpr(lambda x: x + 1)(2.0))
    { lambda ; a:f32[]. let b:f32[] = add a 1.0:f32[] in (b,) }
    """
    require_function(fun)
    static = as_tuple(static_argnums)
    named = [NamedAxis(name, size) for name, size in axis_env or ()]

    @boundary
    @wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with bind_axes(named):
            closed, out_tree = _stage(fun, args, kwargs, static)
        if not return_shape:
            return closed
        return closed, tree_unflatten(out_tree, _structs(closed, (args, kwargs)))

    name = fun_name(fun)
    wrapped.__name__ = f"make_jaxpr({name})"
    wrapped.__qualname__ = f"make_jaxpr({getattr(fun, '__qualname__', name)})"
    return wrapped


def _stage(
    fun: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], static: Sequence[int] = ()
) -> tuple[ClosedJaxpr, Any]:
    dynamic = [a for i, a in enumerate(args) if i not in static]
    leaves, tree = flatten((dynamic, kwargs))
    name = fun_name(fun)
    # Static arguments have no leaves and keep their places.
    places = ([None if i in static else a for i, a in enumerate(args)], kwargs)
    told = Told(fun, name, "jit", ArgumentNames(fun, flatten(places)[1] if static else tree))
    check_distinct("jit", name, leaves, (), lambda: argument_paths(fun, tree))
    out_tree: list[Any] = []

    def flat(*values: Any) -> list[Any]:
        inner, inner_kwargs = tree_unflatten(tree, values)
        rest = iter(inner)
        full = [a if i in static else next(rest) for i, a in enumerate(args)]
        out, structure = flatten(fun(*full, **inner_kwargs))
        out_tree.append(structure)
        told.results = result_paths(structure)
        return out

    def stage(avals: Sequence[Any]) -> ClosedJaxpr:
        with timed("trace", name):
            return trace_to_jaxpr(flat, avals, name, told, requires_low=False)

    avals = [_argument(x, i, fun, told) for i, x in enumerate(leaves)]
    if not avals:
        return stage(avals), out_tree[-1]
    with tells_more():
        return stage(avals), out_tree[-1]
    return stage(told_types(leaves)), out_tree[-1]  # as it was asked for


def _argument(x: Any, i: int, fun: Any, told: Told) -> Any:
    try:
        return abstract(x)
    except errors.ArgumentTypeError as e:
        raise not_an_argument(fun, x, told.names()[i], e) from None


@boundary
def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The types of the results of `fun` as ShapeDtypeStructs, without computing anything.

    Those of a jitted function say which shardings were asked for.

    >>> meshrt.eval_shape(lambda x: x @ x.T, meshrt.ShapeDtypeStruct((2, 3), jnp.float32)).shape
    (2, 2)
    """
    of_jitted = getattr(type(fun), "eval_shape", None)
    if of_jitted is not None:
        return of_jitted(fun, *args, **kwargs)
    is_alone = current_trace() is EVAL and not axes_in_scope() and not are_apart((args, kwargs))
    jitted = Jitted.of(fun) if is_alone else None
    if jitted is not None:
        return jitted.eval_shape(*args, **kwargs)
    closed, out_tree = _stage(fun, args, kwargs)
    return tree_unflatten(out_tree, _structs(closed, (args, kwargs)))


def are_apart(arguments: Any) -> bool:
    """Whether arrays are committed to different devices, or to others than those of the mesh in context: no program
    takes them together, but they have types."""
    places = {x.sharding.device_assignment for x in tree_leaves(arguments) if type(x) is Array and x.committed}
    around = mesh_context.concrete
    return len(places if around is None else {*places, around.flat_devices}) > 1


def _structs(closed: ClosedJaxpr, arguments: Any) -> list[Any]:
    """The results' types: ShapeDtypeStructs, and high types as they are. Structs without a sharding of their own are
    over the mesh of the arguments, or in context."""
    shardings = [getattr(x, "sharding", None) for x in tree_leaves(arguments) if not isinstance(x, Tracer)]
    mesh = next((s.mesh for s in shardings if isinstance(s, NamedSharding)), get_abstract_mesh())
    return [
        a
        if a.is_high
        else ShapeDtypeStruct(
            a.shape, a.dtype, sharding=told_sharding(a, mesh), weak_type=a.weak_type,
            manual_axis_type=None if a.mat.empty else a.mat,
        )
        for a in closed.out_avals
    ]  # fmt: skip
