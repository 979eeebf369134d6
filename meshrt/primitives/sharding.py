"""`with_sharding_constraint` and `device_put` inside a program: annotations on a value in the middle of it.

    sharding_constraint[sharding derived] x  ->  x          device_put[sharding source advice] x  ->  x

The equation holds the sharding as the user gave it. One over a Mesh, or a single device, says where the whole program
runs, whoever runs it and however the Jaxpr came about (`placements_of` finds it); lowering writes the axes only.

A constraint is `derived` if it is that of a tangent or cotangent of a constrained value. Over an AbstractMesh, which
does not say where to go, it leaves values alone that are on no mesh; the user's own constraint of such a value is an
error, as outside of transformations.

`source` is where the value is when that is known; its cotangent goes back there. Such a move is an `advice`: followed
where values are moved one by one, nothing in a program, which runs where its caller says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from meshrt import errors, tree_util
from meshrt._tree_paths import calling
from meshrt.core.jaxpr import Eqn, Jaxpr, subjaxprs
from meshrt.core.primitive import Primitive
from meshrt.core.source import Source, capture
from meshrt.core.trace import EVAL, EvalTrace, Tracer, context
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.primitives.layout_constraint import with_layout_constraint
from meshrt.runtime.array import Array
from meshrt.runtime.transfer import put_leaf
from meshrt.sharding._state import context as mesh_context
from meshrt.sharding.context import get_abstract_mesh, get_mesh
from meshrt.sharding.layout import AUTO, Format, Layout
from meshrt.sharding.mesh import AbstractMesh, AxisType, Mesh
from meshrt.sharding.named import NamedSharding, SingleDeviceSharding, refuse_manual
from meshrt.sharding.spec import PartitionSpec, axes_of
from meshrt.sharding.typed import entries_of, typed
from meshrt.transforms.batching import MappedAxis
from meshrt.transforms.through_parts import of_arrays, said_of_arrays
from meshrt.transforms.tools import WeakCache

__all__ = ["with_sharding_constraint"]


def _batch(get: Callable[[], Primitive]) -> Callable[..., Any]:
    """The mapped dimension stays open, or is laid along the axes that `vmap(spmd_axis_name=...)` names."""

    def batch(axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
        (x,), (d,), primitive = args, dims, get()
        sharding = params["sharding"]
        if not isinstance(sharding, NamedSharding) and axis.mesh_axes and primitive.constraint is not None:
            raise errors.ShardingError(
                f"vmap was given spmd_axis_name {axis.mesh_axes}, and the function constrains a value to {sharding} at "
                f"{capture()}, which has no mesh axes: constrain it with a PartitionSpec of the mesh in context or a "
                "NamedSharding, or drop spmd_axis_name"
            )
        if isinstance(sharding, NamedSharding):
            entries = list(sharding.spec.padded(aval_of(x).ndim - 1))
            along = axis.mesh_axes if primitive.constraint is not None else ()
            twice = [a for a in along if a in sharding.spec.axes]
            if twice:
                raise errors.DuplicateAxisError(
                    f"vmap spmd_axis_name {along} cannot appear in with_sharding_constraint spec, but got spec "
                    f"{sharding.spec} at {capture()}: the mapped dimension is split over {', '.join(map(repr, twice))} "
                    "already; split the other dimensions over other axes, or drop spmd_axis_name"
                )
            is_typed = AxisType.Auto not in sharding.mesh.axis_types  # then types say how it is split
            entries.insert(d, along or (None if is_typed else PartitionSpec.UNCONSTRAINED))
            sharding = NamedSharding(sharding.mesh, PartitionSpec(*entries))
        return primitive.bind(x, **{**params, "sharding": sharding}), d

    return batch


def _lower(ctx: LoweringContext, eqn: Eqn, x: Any) -> Any:
    sharding = eqn.params["sharding"]
    if isinstance(sharding, SingleDeviceSharding) or sharding.mesh.is_scalar or eqn.params.get("advice"):
        return x  # the program runs there: see Wanted.finish in meshrt.pipeline.placement
    aval = eqn.outvars[0].aval
    if aval.explicit is not None:  # Explicit axes split it too; those come first
        own, given = entries_of(aval), sharding.spec.padded(aval.ndim)
        joined = [_joined(o, g) for o, g in zip(own, given)]
        sharding = NamedSharding(sharding.mesh.abstract_mesh, PartitionSpec(*joined))
    text = ctx.module.sharding_text(sharding, aval.physical().ndim)
    return ctx.op("sdy.sharding_constraint", [x], aval, f"sharding = {text}")


def _joined(explicit: Any, given: Any) -> Any:
    """The axes of a dimension that Explicit axes split, and that is to be split over Auto ones, or over both."""
    if explicit is None or set(axes_of(explicit)) <= set(axes_of(given)):
        return given
    if given is PartitionSpec.UNCONSTRAINED:
        return explicit
    return (*axes_of(explicit), *axes_of(given))


def _jvp(get: Callable[[], Primitive]) -> Callable[..., Any]:
    def jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
        (x,), (t,) = primals, tangents
        out = get().bind(x, **params)
        if "derived" in params:
            params = {**params, "derived": True}
        return out, None if t is None else get().bind(t, **params)

    return jvp


def _transpose_put(ct: Any, x: Any, *, sharding: Any, source: Any, advice: Any) -> list[Any]:
    if source is None:
        return [ct]
    return [device_put_p.bind(ct, sharding=source, source=sharding, advice=True)]


def _evaluate(x: Any, *, sharding: Any, derived: Any) -> Any:
    """On values: a concrete mesh says where to go; an abstract one takes its devices from the value or the context."""
    if isinstance(sharding, SingleDeviceSharding):
        return _constrain_array(x, sharding)
    if isinstance(sharding.mesh, AbstractMesh) and not _is_on(x, sharding.mesh):
        if derived:
            return x
        raise _on_no_mesh(x)
    return EvalTrace.evaluate(sharding_constraint_p, (x,), {"sharding": sharding, "derived": derived})


def on_mesh_in_context(sharding: NamedSharding) -> NamedSharding:
    """The sharding over the Mesh in context where it is over an AbstractMesh. ShardingError if that is another one."""
    if not isinstance(sharding.mesh, AbstractMesh):
        return sharding
    mesh = get_mesh()
    if mesh.abstract_mesh is not sharding.mesh.abstract_mesh:
        raise errors.ShardingError(
            f"{sharding!r} is over an AbstractMesh, which has no devices; use a Mesh, or set one of that shape with "
            "meshrt.set_mesh"
        )
    return sharding.update(mesh=mesh)


def _is_on(x: Any, mesh: AbstractMesh) -> bool:
    own = getattr(x, "sharding", None)
    if isinstance(own, NamedSharding) and not own.mesh.is_scalar:
        return True
    around = mesh_context.concrete
    return around is not None and around.abstract_mesh is mesh.abstract_mesh


def _on_no_mesh(x: Any) -> errors.ShardingTypeError:
    own, fix = (
        getattr(x, "sharding", None),
        "put it on a mesh with meshrt.device_put, or give a NamedSharding over a Mesh",
    )
    if own is None:
        return errors.ShardingTypeError(
            "the target sharding contains a `meshrt.sharding.AbstractMesh`, which requires the input to be a "
            f"`meshrt.Array`. Got {type(x)} with shape {aval_of(x).short()}: {fix}"
        )
    return errors.ShardingTypeError(
        "the sharding of the input must be a `NamedSharding`, since the target sharding has an `AbstractMesh` in it. "
        f"Got {own} for shape {aval_of(x).short()}: {fix}"
    )


def _evaluate_put(x: Any, *, sharding: Any, source: Any, advice: Any) -> Any:
    if isinstance(sharding, NamedSharding):
        entries = [None if e is PartitionSpec.UNCONSTRAINED else e for e in sharding.spec.partitions]
        sharding = on_mesh_in_context(NamedSharding(sharding.mesh, PartitionSpec(*entries)))
    return put_leaf(x, sharding, False, None)


def _annotation(name: str, transpose: Callable[..., Any], impl: Callable[..., Any], **traits: Any) -> Primitive:
    get = lambda: made
    # No table of types: it would keep the devices of the shardings alive.
    made: Primitive = Primitive(
        name, lambda x, **_: x, lower=_lower, jvp=_jvp(get), transpose=transpose, batch=_batch(get), batch_axis=True,
        impl=impl, cache_types=False, **traits,
    )  # fmt: skip
    return made


sharding_constraint_p: Primitive = _annotation(
    "sharding_constraint",
    lambda ct, x, *, sharding, derived: [sharding_constraint_p.bind(ct, sharding=sharding, derived=True)],
    _evaluate,
    constraint=lambda params: params["sharding"],
    place=lambda params: ("with_sharding_constraint", _place(params["sharding"])),
)
device_put_p = _annotation(
    "device_put", _transpose_put, _evaluate_put,
    place=lambda params: ("device_put", None if params["advice"] else _place(params["sharding"])),
)  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------------
# Where a program has to run

_placements: WeakCache = WeakCache()


class Caller(NamedTuple):
    """A device that makes a call for all. It is one of the program's and does not say where that runs."""

    device: Any


def placements_of(jaxpr: Jaxpr) -> dict[Mesh | AbstractMesh | SingleDeviceSharding | Caller, tuple[str, Source]]:
    """The meshes and single devices that a Jaxpr and the Jaxprs inside it name.

    With each one the function that named it first and the user's line.
    """
    found: dict[Any, Any] = {}
    for place, why in _places(jaxpr):
        found.setdefault(place, why)
    return found


def _place(sharding: Any) -> Any:
    return sharding.mesh if isinstance(sharding, NamedSharding) else sharding


def _places(jaxpr: Jaxpr) -> Iterator[tuple[Any, tuple[str, Source]]]:
    for eqn in jaxpr.eqns:
        primitive = eqn.primitive
        if primitive.cache_types:  # neither an annotation nor one with Jaxprs in its parameters
            continue
        if primitive.place is not None:
            called, place = primitive.place(eqn.params)
            # One with Manual axes is that of the manual region around, which has been met.
            if place is not None and not (isinstance(place, AbstractMesh) and place.manual_axes):
                yield place, (called, eqn.source)
        for inner in subjaxprs(eqn.params):
            yield from _placements.get(inner, "placements", partial(placements_of, inner)).items()


def advised_devices(jaxpr: Jaxpr) -> Iterator[tuple[Any, Source]]:
    """The devices that `device_put` names in a Jaxpr itself, not in those inside of it, with the user's lines: a
    program runs where its caller says and takes no notice of them."""
    for eqn in jaxpr.eqns:
        if eqn.primitive is device_put_p and eqn.params["advice"] and eqn.params["sharding"] is not None:
            yield eqn.params["sharding"].device_assignment[0], eqn.source


# ---------------------------------------------------------------------------------------------------------------------
# with_sharding_constraint


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """Constrains the sharding of every array in the pytree `x`.

    `shardings` is a NamedSharding (over a Mesh or an AbstractMesh), a PartitionSpec of the mesh in context, a
    SingleDeviceSharding, a Format, whose layout is constrained too, or a pytree prefix of them. Outside of programs an
    array that is committed stays on its devices: DeviceAssignmentMismatchError for others, or for another order.
    Dimensions marked
    `PartitionSpec.UNCONSTRAINED` stay open. Sizes need not divide. Raises ShardingError for None or a wrong rank,
    UnknownAxisError or DuplicateAxisError for wrong axes, MeshContextError when a PartitionSpec is given without a mesh
    in context.

    >>> from meshrt.sharding import AxisType, NamedSharding, PartitionSpec as P
    >>> mesh = meshrt.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    >>> f = meshrt.jit(lambda x: lax.with_sharding_constraint(2 * x, NamedSharding(mesh, P("x"))))
    >>> f(jnp.arange(8)).sharding.spec
    P('x',)
    """
    return constrain(x, shardings, "with_sharding_constraint of x", "the shardings of with_sharding_constraint", False)


def constrain(x: Any, shardings: Any, called: str, given: str, optional: bool = True) -> Any:
    """`with_sharding_constraint` for all who take shardings: `called` and `given` say in messages what did and what it
    was given. Where they are `optional`, None leaves a subtree alone, and so does what types of Explicit axes say.
    """
    is_leaf = lambda s: s is None or isinstance(s, NamedSharding | PartitionSpec | SingleDeviceSharding)
    try:
        leaves, tree, asked = said_of_arrays(x, shardings, is_leaf)
    except errors.TreeError as e:
        raise errors.TreeError(
            f"{given} at {capture()} must be a pytree prefix of its value x: {calling(e, 'shardings')}"
        ) from None

    def constrained(value: Any, path: Callable[[], str], sharding: Any) -> Any:
        try:
            if optional:
                sharding = _left_open(sharding, aval_of(value))
            return value if sharding is None and optional else _constrain(value, sharding, optional)
        except (errors.ShardingError, errors.MeshError, errors.ArgumentTypeError) as e:
            raise type(e)(f"{called}{path()} at {capture()}: {e}") from None

    return tree_util.tree_unflatten(tree, [of_arrays(constrained, leaf, asked) for leaf in leaves])


def _left_open(sharding: Any, aval: ShapedArray) -> Any:
    """What `sharding` says of axes that no type speaks of, None if that is nothing: of a value whose type says how
    Explicit axes split it, only the Auto ones; of one in a program without Explicit axes, everything."""
    if not isinstance(sharding, NamedSharding | PartitionSpec):
        return sharding
    own: Any = aval.explicit
    around = get_abstract_mesh() if own is None else own.mesh
    if AxisType.Explicit not in around.axis_types:
        return sharding
    if around.are_all_axes_explicit:
        return None
    spec = sharding if isinstance(sharding, PartitionSpec) else sharding.spec
    auto = [
        e if e is PartitionSpec.UNCONSTRAINED else tuple(a for a in axes_of(e) if around._types.get(a) is AxisType.Auto)
        for e in spec.partitions
    ]
    return NamedSharding(around, PartitionSpec(*auto))


def _constrain(x: Any, sharding: Any, is_hint: bool = False) -> Any:
    """A hint may be over a mesh with Explicit axes, of which no type speaks then."""
    if sharding is None:
        raise errors.ShardingError(
            "got sharding None which is not allowed: leave values that are not constrained out of the tree, or "
            "give PartitionSpecs of P.UNCONSTRAINED, one for each dimension"
        )
    if isinstance(sharding, Format):
        return _constrain_to_format(x, sharding, is_hint)
    if isinstance(sharding, SingleDeviceSharding) or (isinstance(sharding, NamedSharding) and sharding.mesh.is_scalar):
        return _constrain_to_device(x, sharding)
    if isinstance(sharding, PartitionSpec):
        mesh = get_abstract_mesh()
        if mesh is None or mesh.empty:
            raise errors.MeshContextError(
                "with_sharding_constraint requires a non-empty mesh in context if you are passing `PartitionSpec`s, "
                f"but got {sharding}: enter one with `with meshrt.set_mesh(mesh):` or pass NamedSharding(mesh, spec)"
            )
        sharding = NamedSharding(mesh, sharding)
    elif not isinstance(sharding, NamedSharding):
        raise errors.ArgumentTypeError(f"got {sharding!r}; pass a NamedSharding or a PartitionSpec")
    if get_abstract_mesh().are_all_axes_explicit and len(sharding.spec.partitions) <= aval_of(x).ndim:
        _assert_split(x, sharding)
        return x
    require_fit(x, sharding, "with_sharding_constraint", is_hint)
    if isinstance(x, Tracer) or context.trace is not EVAL:
        return sharding_constraint_p.bind(x, sharding=sharding, derived=False)
    return _constrain_array(x, sharding)


def _constrain_to_format(x: Any, asked: Format, is_hint: bool) -> Any:
    """To the sharding first, then to the layout, each as far as the Format says them."""
    if asked.layout is AUTO and not is_hint:
        raise errors.ShardingTypeError(
            f"`Layout.AUTO` cannot be used in place of a device-local layout in a constraint. Got {asked}: name the "
            "layout, or leave it out"
        )
    x = x if asked.sharding is None else _constrain(x, asked.sharding, is_hint)
    # (Of a call inside a program the compiler chooses every layout anyway.)
    return with_layout_constraint(x, asked.layout) if isinstance(asked.layout, Layout) else x


def _constrain_to_device(x: Any, sharding: SingleDeviceSharding | NamedSharding) -> Any:
    """The whole program runs on that one device; outside of programs the value goes there."""
    if isinstance(x, Tracer) or context.trace is not EVAL:
        single = SingleDeviceSharding(sharding.device_assignment[0], memory_kind=sharding.memory_kind)
        return sharding_constraint_p.bind(x, sharding=single, derived=False)
    return _constrain_array(x, sharding)


def require_fit(x: Any, sharding: NamedSharding, called: str, is_hint: bool = False) -> None:
    """RankMismatchError if `x` has too few dimensions, an error for axes that are not Auto, or Manual if `is_hint`."""
    aval = aval_of(x)
    spec = sharding.spec
    if len(spec.partitions) > aval.ndim:
        fitting = PartitionSpec(*spec.partitions[: aval.ndim])
        raise errors.RankMismatchError(
            f"{spec} is only valid for values of rank at least {len(spec.partitions)}, but was applied to a value of "
            f"rank {aval.ndim} ({aval.short()}). Give at most one entry per dimension, as in {fitting}, or "
            "constrain the value before the dimension is removed"
        )
    refuse_manual(sharding)
    around = get_abstract_mesh()
    manual = [axis for axis in spec.axes if axis in around.manual_axes]
    if manual:
        raise errors.ShardingError(
            f"the spec {spec} passed to {called} contains the manual axes {', '.join(map(repr, manual))} of mesh "
            f"{around!r}, the one of the shard_map around: each device has its own value there, of which nothing is "
            f"left to be split over {'it' if len(manual) == 1 else 'them'}. Name the other axes only, or constrain the "
            "value outside of the shard_map"
        )
    if not is_hint and any(sharding.mesh._types[axis] is AxisType.Explicit for axis in spec.axes):
        raise errors.ShardingError(
            f"The spec of NamedSharding passed to {called} can only refer to Auto axes of the mesh. Got spec={spec} "
            f"and mesh={sharding.mesh.abstract_mesh}. You probably meant to use `reshard` API?"
        )


def _assert_split(x: Any, sharding: NamedSharding) -> None:
    """On meshes of Explicit axes a constraint says what the type must be; ShardingAssertionError if it is not."""
    aval, around = aval_of(x), get_abstract_mesh()
    if set(sharding.spec.axes) <= set(around.axis_names):
        sharding = NamedSharding(around, sharding.spec)  # whatever types its own axes have: those around say of values
    own, wanted = entries_of(aval), entries_of(typed(aval, sharding))
    given = sharding.spec.padded(aval.ndim)
    if any(o != w for o, w, g in zip(own, wanted, given) if g is not PartitionSpec.UNCONSTRAINED):
        raise errors.ShardingAssertionError(
            "`with_sharding_constraint` acts as an assert when all axes of mesh are of type `Explicit`. The array "
            f"sharding: {PartitionSpec(*own)} did not match the sharding provided: {PartitionSpec(*given)}. Please use "
            "`meshrt.sharding.reshard` to shard your input to the sharding you want."
        )


def abstract_sharding(sharding: NamedSharding) -> NamedSharding:
    """The same sharding over the AbstractMesh."""
    return sharding if isinstance(sharding.mesh, AbstractMesh) else sharding.update(mesh=sharding.mesh.abstract_mesh)


def _mesh_of(x: Any, axes: AbstractMesh) -> Mesh:
    """The devices for `axes`: those of the value, or of the context where the value is on no mesh."""
    if type(x) is not Array or not isinstance(x.sharding, NamedSharding) or x.sharding.mesh.is_scalar:
        if not _is_on(x, axes):
            raise _on_no_mesh(x)
        around: Mesh = mesh_context.concrete
        return around
    mesh = x.sharding.mesh
    assert isinstance(mesh, Mesh), "an array is somewhere"
    if mesh.shape_tuple != axes.shape_tuple:
        raise errors.MeshMismatchError(
            f"Mesh shape of the input {mesh.shape_tuple} does not match the mesh shape of the target sharding "
            f"{axes.shape_tuple} for shape {aval_of(x).short()}; name its axes and sizes, or give a NamedSharding "
            "over a Mesh to move it to other devices"
        )
    return mesh


def _constrain_array(x: Any, sharding: NamedSharding | SingleDeviceSharding) -> Any:
    """The eager form: moves the array. An AbstractMesh takes its devices from the array."""
    if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, AbstractMesh):
        sharding = sharding.update(mesh=_mesh_of(x, sharding.mesh))
    if type(x) is Array and x.committed and x.sharding.device_assignment != sharding.device_assignment:
        raise errors.DeviceAssignmentMismatchError(
            "Received incompatible devices for jitted computation with_sharding_constraint. Got its value of shape "
            f"{x.aval.short()} with sharding {x.sharding} and the constraint {sharding}: a constraint lays a value "
            "out over the devices that it is on, in their order. Move it with meshrt.device_put(x, sharding)"
        )
    if isinstance(sharding, NamedSharding) and any(e is PartitionSpec.UNCONSTRAINED for e in sharding.spec.partitions):
        raise errors.ShardingError("P.UNCONSTRAINED has no meaning outside jit, where nothing is propagated")
    return put_leaf(x, sharding, False, None)
