"""`auto_axes` and `explicit_axes`: functions during which mesh axes have another type."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import config, errors, tree_util
from meshrt._tree_paths import calling
from meshrt.core import source
from meshrt.core.naming import wraps
from meshrt.core.operators import ArrayOperators
from meshrt.core.trace import EVAL, JaxprTrace, current_trace, set_trace
from meshrt.core.tracebacks import boundary
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives.region import added_up, entered, opened_type, region_p
from meshrt.primitives.reshard import move, reshard
from meshrt.primitives.sharding import with_sharding_constraint
from meshrt.sharding._state import context as mesh_context
from meshrt.sharding.context import context_source, get_abstract_mesh, set_mesh, tracing_mesh
from meshrt.sharding.mesh import AbstractMesh, AxisType, Mesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import PartitionSpec
from meshrt.sharding.typed import asked, check_divides, check_out_sharding, mesh_of, sharding_of
from meshrt.transforms.arguments import fun_name
from meshrt.transforms.high import flatten, leaf_paths, opened, spread_over
from meshrt.transforms.tools import Hoisted, hoist_consts

__all__: list[str] = []

_MISSING: Any = object()
_is_sharding = lambda s: s is None or isinstance(s, NamedSharding | PartitionSpec)


def auto_axes(
    f: Callable[..., Any] | None = None, /, *, axes: str | tuple[str, ...] | None = None, out_sharding: Any = None
) -> Any:
    """`f` with mesh axes Auto while it runs: how values are split over them inside is found by propagation.

    Args:
      f: a function of pytrees of arrays, positional and keyword arguments alike; omitted, `auto_axes` is a decorator.
      axes: the axes, by default all of the mesh in context.
      out_sharding: how the results are split, a pytree prefix of PartitionSpecs or NamedShardings; may be given at the
        call instead.

    Raises:
      ArgumentTypeError: no `out_sharding`. UnsupportedError: an axis is Manual.
      MeshMismatchError: shardings over another mesh than that in context. IndivisibleError: `out_sharding` splits a
        dimension that its parts do not divide.

    >>> with meshrt.set_mesh(meshrt.make_mesh((8,), ("data",))):
    ...     x = meshrt.reshard(jnp.arange(8)[::-1], meshrt.P("data"))
    ...     meshrt.sharding.auto_axes(lambda x: x[jnp.argsort(x)], out_sharding=meshrt.P("data"))(x)
    Array([0, 1, 2, 3, 4, 5, 6, 7], dtype=int32)
    """
    if f is None:
        return functools.partial(auto_axes, axes=axes, out_sharding=out_sharding)
    fun = f

    @boundary
    @wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        wanted = out_sharding if out_sharding is not None else kwargs.pop("out_sharding", _MISSING)
        if wanted is _MISSING:
            raise errors.ArgumentTypeError(
                f"Missing required keyword argument: 'out_sharding': auto_axes of {fun_name(fun)} needs to be told how "
                "its results are split; give it to auto_axes or to the call"
            )
        around = _mesh_around(wanted, "auto_axes")
        if around is None:
            return fun(*args, **kwargs)
        inside = _changed(around, axes, AxisType.Auto)
        if inside is around:
            return fun(*args, **kwargs)
        return _apply(fun, args, kwargs, around, inside, functools.partial(_split_outs, fun, wanted))

    return wrapped


def explicit_axes(
    f: Callable[..., Any] | None = None, /, *, axes: str | tuple[str, ...] | None = None, in_sharding: Any = None
) -> Any:
    """`f` with mesh axes Explicit while it runs: types inside say how values are split over them.

    Args:
      f: a function of pytrees of arrays; omitted, `explicit_axes` is a decorator.
      axes: the axes, by default all of the mesh in context.
      in_sharding: how the arguments are split, a pytree prefix of the positional arguments (one PartitionSpec or
        NamedSharding holds for keyword arguments too); may be given at the call instead.

    Raises:
      ArgumentTypeError: no `in_sharding`. MeshContextError: no mesh in context. UnsupportedError: an axis is Manual.

    >>> mesh = meshrt.make_mesh((8,), ("data",), axis_types=(meshrt.sharding.AxisType.Auto,))
    >>> f = meshrt.sharding.explicit_axes(lambda x: 2 * x, in_sharding=meshrt.P("data"))
    >>> with meshrt.set_mesh(mesh):
    ...     meshrt.jit(f)(jnp.arange(8))
    Array([ 0,  2,  4,  6,  8, 10, 12, 14], dtype=int32)
    """
    if f is None:
        return functools.partial(explicit_axes, axes=axes, in_sharding=in_sharding)
    fun = f

    @boundary
    @wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        given = in_sharding if in_sharding is not None else kwargs.pop("in_sharding", _MISSING)
        if given is _MISSING:
            raise errors.ArgumentTypeError(
                f"Missing required keyword argument: 'in_sharding': explicit_axes of {fun_name(fun)} needs to be told "
                "how its arguments are split; give it to explicit_axes or to the call"
            )
        around = get_abstract_mesh()
        if around.empty:
            raise errors.MeshContextError(
                "Context mesh cannot be empty. Please use `meshrt.set_mesh` API to enter into a mesh context when "
                "using `explicit_axes` API."
            )
        inside = _changed(around, axes, AxisType.Explicit)

        def split(*args: Any, **kwargs: Any) -> Any:
            args = reshard(args, _over(given, inside))
            if kwargs:
                kwargs = reshard(kwargs, _for_keywords(fun, _over(given, inside)))
            return fun(*args, **kwargs)

        split.__name__ = fun_name(fun)
        return _apply(split, args, kwargs, around, inside, lambda out, avals: _kept(avals, around))

    return wrapped


def is_explicit(out_sharding: Any) -> bool:
    """Whether a sharding that was asked for is over a mesh with Explicit axes."""
    mesh = out_sharding.mesh if isinstance(out_sharding, NamedSharding) else get_abstract_mesh()
    return AxisType.Explicit in mesh.axis_types


def constrained(x: Any, out_sharding: Any, function: str) -> Any:
    """`x`, split over Explicit axes as `function` was asked to; on a mesh of Auto axes that can only be to be whole."""
    if out_sharding is None:
        return x
    check_out_sharding(out_sharding, function)
    if not is_explicit(out_sharding):
        return with_sharding_constraint(x, out_sharding)
    wanted = asked(out_sharding, aval_of(x).ndim, function)
    assert wanted is not None
    return move(x, wanted, out_sharding, function)


def in_auto_mode(fun: Callable[..., Any]) -> Callable[..., Any]:
    """`fun`, a function with the keyword `out_sharding`, run with Explicit axes Auto where it is given one over them.

    For functions whose insides would not know how to split their values, as samplers of random numbers.
    """

    @wraps(fun)
    def wrapped(*args: Any, out_sharding: Any = None, **kwargs: Any) -> Any:
        if out_sharding is None:
            return fun(*args, **kwargs)
        check_out_sharding(out_sharding, fun_name(fun))
        if not is_explicit(out_sharding):
            return fun(*args, out_sharding=out_sharding, **kwargs)
        return split_by(fun, args, kwargs, out_sharding)

    return wrapped


def split_by(fun: Callable[..., Any], args: Any, kwargs: Any, out_sharding: Any) -> Any:
    """`fun(*args, **kwargs)` with all Explicit axes Auto, its only result split as `out_sharding` says.

    Arguments that are no arrays are part of the program. `fun` must depend on nothing else.
    """
    name = fun_name(fun)
    if isinstance(out_sharding, NamedSharding) and isinstance(out_sharding.mesh, Mesh) and current_trace() is EVAL:
        if mesh_context.concrete is None:
            with set_mesh(out_sharding.mesh):
                return split_by(fun, args, kwargs, PartitionSpec(*out_sharding.spec.partitions))
    around = _mesh_around(out_sharding, name)
    assert around is not None
    inside = around.update_axis_types(dict.fromkeys(around.explicit_axes, AxisType.Auto))
    leaves, tree = tree_util.tree_flatten((args, kwargs))
    dynamic = [isinstance(x, ArrayOperators | np.ndarray) for x in leaves]
    arrays = [added_up(x, inside) for x, d in zip(leaves, dynamic) if d]
    static = [x for x, d in zip(leaves, dynamic) if not d]
    avals = tuple([entered(aval_of(x), inside) for x in arrays])

    def flat(*values: Any) -> Any:
        given, rest = iter(values), iter(static)
        full = [next(given) if d else next(rest) for d in dynamic]
        inner_args, inner_kwargs = tree_util.tree_unflatten(tree, full)
        return fun(*inner_args, **inner_kwargs)

    key = (fun, tree, tuple(dynamic), tuple(map(_hashable, static)), avals, inside, config.trace_key())
    try:
        staged, keeps = _programs.get(key), True
    except TypeError:  # something that cannot be hashed: staged anew each time
        staged, keeps = None, False
    if staged is None:
        staged = _staged(flat, name, avals, inside)
        if keeps and not staged[0].consts:
            _remember(key, staged)
    closed, out_tree = staged
    shape = closed.jaxpr.out_avals[0].shape
    wanted = asked(out_sharding, len(shape), name)
    if wanted is not None:
        check_divides(wanted, shape, name)
    (value,) = region_p.bind(
        *closed.consts, *arrays, jaxpr=closed.jaxpr, name=name, inside=inside, around=around, outs=(wanted,)
    )
    return tree_util.tree_unflatten(out_tree, [value])


# Staged programs of `split_by`, by all that they depend on.
_programs: OrderedDict[Any, Any] = OrderedDict()
_KEPT = 512


def _remember(key: Any, staged: Any) -> None:
    _programs[key] = staged
    while len(_programs) > _KEPT:
        _programs.popitem(last=False)


def _hashable(x: Any) -> Any:
    """Slices have no hash before Python 3.12; 1, 1.0 and True are equal."""
    return (slice, x.start, x.stop, x.step) if isinstance(x, slice) else (type(x), x)


def unsplit(fun: Callable[..., Any], like: ShapedArray, *args: Any) -> Any:
    """`fun(*args)` for derivatives: where Explicit axes split an argument they are Auto meanwhile; split as `like`."""
    around = mesh_of([*map(aval_of, args), like])
    if around is None:
        return fun(*args)
    inside = around.update_axis_types(dict.fromkeys(around.explicit_axes, AxisType.Auto))
    args = tuple([added_up(a, inside) for a in args])
    entering = [entered(aval_of(a), inside) for a in args]
    closed, out_tree = _staged(fun, fun_name(fun), entering, inside)
    (value,) = region_p.bind(
        *closed.consts, *args, jaxpr=closed.jaxpr, name=fun_name(fun), inside=inside, around=around,
        outs=(sharding_of(like, around),),
    )  # fmt: skip
    return tree_util.tree_unflatten(out_tree, [value])


def _staged(fun: Callable[..., Any], name: str, avals: Sequence[Any], inside: AbstractMesh) -> tuple[Any, Any]:
    """The Jaxpr of a function of flat arguments, traced within a region, and the structure of its result.

    Values of outside that it uses are its constants, and enter the region as arguments do.
    """
    trace = JaxprTrace(name, requires_low=False)
    tracers = [trace.argument(a, f"argument {i}") for i, a in enumerate(avals)]
    try:
        with tracing_mesh(inside), set_trace(trace):
            found, out_tree = flatten(fun(*tracers))
            closed = hoist_consts(trace.close(tracers, found))
    finally:
        trace.closed = True
    return Hoisted(closed.jaxpr, [added_up(c, inside) for c in closed.consts]), out_tree


def _over(given: Any, mesh: AbstractMesh) -> Any:
    """Shardings over the mesh of the inside, whichever types its axes had where they were written."""
    over = lambda s: NamedSharding(mesh, s.spec) if isinstance(s, NamedSharding) else s
    return tree_util.tree_map(over, given, is_leaf=_is_sharding)


def _for_keywords(fun: Callable[..., Any], given: Any) -> Any:
    if _is_sharding(given):
        return given
    raise errors.ArgumentTypeError(
        f"in_sharding of explicit_axes is a tree for the positional arguments of {fun_name(fun)}, which was called "
        "with keyword arguments; pass them by position, or give one sharding for all"
    )


def _mesh_around(shardings: Any, name: str) -> AbstractMesh | None:
    """The mesh in context, or that of the shardings; None if there is neither."""
    around, found = get_abstract_mesh(), None
    for s in tree_util.tree_leaves(shardings, is_leaf=_is_sharding):
        if not isinstance(s, NamedSharding):
            continue
        mesh = s.mesh.abstract_mesh
        if found is not None and mesh is not found:
            raise errors.MeshMismatchError(
                f"Shardings passed to {name} should have the same mesh. Got one mesh {found} and another {mesh}"
            )
        found = mesh
    if found is None:
        return None if around.empty else around
    if not around.empty and found is not around:
        raise errors.MeshMismatchError(
            f"Context mesh {around} (set at {context_source()}) must match the mesh passed to shardings {found} at "
            f"{source.capture()}. Recommended approach is to use `meshrt.set_mesh` context manager."
        )
    return found


def _changed(mesh: AbstractMesh, axes: Any, kind: AxisType) -> AbstractMesh:
    """The mesh with other types of some axes; the same one if they have them already."""
    names = mesh.axis_names if axes is None else axes if isinstance(axes, tuple) else (axes,)
    for a in names:
        if mesh._types.get(a) is AxisType.Manual:
            raise errors.UnsupportedError(
                "Going from `Manual` AxisType to `Auto` or `Explicit` AxisType is not allowed: axis "
                f"{a!r} of {mesh} is Manual at {source.capture()}; name the other axes with axes=(...)"
            )
    return mesh.update_axis_types(dict.fromkeys(names, kind))


def _split_outs(fun: Any, wanted: Any, out_tree: Any, avals: Sequence[Any]) -> tuple[Any, ...]:
    """The shardings asked for the results, one entry per dimension."""
    try:
        flat = spread_over(wanted, out_tree, _is_sharding)
    except errors.TreeError as e:
        raise errors.TreeError(
            f"out_sharding of auto_axes of {fun_name(fun)} must be a pytree prefix of its result: "
            f"{calling(e, 'out_sharding')}"
        ) from None
    outs = []
    for i, (s, aval) in enumerate(zip(flat, avals)):
        found = None if s is None else asked(s, aval.ndim, "auto_axes", is_consistent=False)
        if found is None:
            path = tree_util.keystr(leaf_paths(out_tree)[i])
            raise errors.ShardingError(
                f"out_sharding of auto_axes of {fun_name(fun)} is None for result{path}; give P() for a replicated one"
            )
        check_divides(found, aval.shape, f"auto_axes of {fun_name(fun)}")
        outs.append(found)
    return tuple(outs)


def _kept(avals: Sequence[Any], around: AbstractMesh) -> tuple[Any, ...]:
    """What the results' shardings inside say of axes that are Explicit outside."""
    return tuple(sharding_of(entered(a, around), around) for a in avals)


def _apply(
    fun: Callable[..., Any], args: Any, kwargs: Any, around: AbstractMesh, inside: AbstractMesh,
    outs_of: Callable[[Any, Sequence[Any]], tuple[Any, ...]],
) -> Any:  # fmt: skip
    leaves, tree = tree_util.tree_flatten(opened((args, kwargs)))
    leaves = [added_up(x, inside) for x in leaves]
    avals = [entered(aval_of(x), inside) for x in leaves]
    if AxisType.Explicit in inside.axis_types:
        # What splits an argument over axes that are Auto outside is not known: their types are open, not replicated.
        avals = [a if a.explicit is not None else opened_type(a, around) for a in avals]

    def flat(*values: Any) -> Any:
        inner_args, inner_kwargs = tree_util.tree_unflatten(tree, values)
        return fun(*inner_args, **inner_kwargs)

    closed, out_tree = _staged(flat, fun_name(fun), avals, inside)
    outs = outs_of(out_tree, closed.jaxpr.out_avals)
    values = region_p.bind(
        *closed.consts, *leaves, jaxpr=closed.jaxpr, name=fun_name(fun), inside=inside, around=around, outs=outs
    )
    return tree_util.tree_unflatten(out_tree, values)
