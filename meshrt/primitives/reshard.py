"""`reshard`, `typeof`, and the door to the rules of Explicit axes: what users see of shardings in types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors, tree_util
from meshrt._tree_paths import calling
from meshrt.core import source
from meshrt.core.basic.reshard import reshard_p
from meshrt.core.completion import Completion
from meshrt.core.high import TypeInState
from meshrt.core.trace import EVAL, EvalTrace, Tracer, context
from meshrt.core.types import ShapedArray, aval_of
from meshrt.runtime.transfer import put_leaf
from meshrt.shape_dtype import ShapeDtypeStruct
from meshrt.sharding._state import context as mesh_context
from meshrt.sharding.context import get_abstract_mesh
from meshrt.sharding.mesh import Mesh, empty_abstract_mesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import PartitionSpec
from meshrt.sharding.typed import abstract, asked, check_divides, sharding_of
from meshrt.transforms.through_parts import of_arrays, said_of_arrays

__all__: list[str] = []


def _shardings(primitive: Any, avals: Sequence[ShapedArray], params: dict[str, Any], types: Any) -> Sequence[Any]:
    # Start-up time: the rules of propagation, which a program without Explicit axes never needs while it is traced.
    from meshrt.lowering.explicit import shardings

    Completion.shardings = staticmethod(shardings)
    return shardings(primitive, avals, params, types)


Completion.shardings = staticmethod(_shardings)


def typeof(x: Any) -> Any:
    """The type of an array, a tracer, a NumPy value or a Python scalar; that which a ShapeDtypeStruct describes.

    Its `sharding` is complete: `NamedSharding(AbstractMesh, P(...))` with one entry per dimension, None for those that
    no Explicit axis splits. The mesh is that of the array, for a tracer that in context, else an empty one.
    ArgumentTypeError for anything that is no array.

    >>> typeof(jnp.zeros((8, 4)))
    ShapedArray(float32[8,4])
    """
    aval = abstract(x) if isinstance(x, ShapeDtypeStruct) else aval_of(x)
    if aval.is_high:
        return aval.aval if type(aval) is TypeInState else aval  # the state is asked for by itself (`cur_qdd`)
    if aval.explicit is not None:
        return aval
    if isinstance(x, Tracer):
        mesh = get_abstract_mesh()
    else:
        own = getattr(x, "sharding", None)
        mesh = own.mesh.abstract_mesh if isinstance(own, NamedSharding) else empty_abstract_mesh
    if mesh.empty and get_abstract_mesh().empty:
        return aval  # says so itself, and equals what is made by hand
    return aval.update(sharding=sharding_of(aval, mesh))


def reshard(xs: Any, out_shardings: Any) -> Any:
    """Every array of the pytree `xs`, split in another way over the Explicit axes of a mesh.

    `out_shardings` is a NamedSharding, a PartitionSpec of the mesh in context, or a pytree prefix of them. Along axes
    over which a value becomes unreduced the first devices hold what it was, and the others zeros. The cotangent is
    resharded to the sharding of `xs`. Outside of jit the arrays are moved.

    Raises:
      ShardingError: no sharding; axes that are not Explicit.
      MeshContextError: a PartitionSpec where no mesh is in context. RankMismatchError: more entries than dimensions.
      IndivisibleError: a dimension that its parts do not divide.

    >>> with meshrt.set_mesh(meshrt.make_mesh((8,), ("data",))):
    ...     meshrt.typeof(meshrt.reshard(jnp.ones((8, 4)), meshrt.P("data", None)))
    ShapedArray(float32[8@data,4])
    """
    is_leaf = lambda s: s is None or isinstance(s, NamedSharding | PartitionSpec)
    try:
        leaves, tree, wanted = said_of_arrays(xs, out_shardings, is_leaf)
    except errors.TreeError as e:
        raise errors.TreeError(
            f"the out_shardings of reshard at {source.capture()} must be a pytree prefix of its value: "
            f"{calling(e, 'out_shardings')}"
        ) from None
    return tree_util.tree_unflatten(tree, [of_arrays(_resharded, x, wanted) for x in leaves])


def _resharded(x: Any, path: Callable[[], str], wanted: Any) -> Any:
    aval = aval_of(x)
    sharding = None if wanted is None else asked(wanted, aval.ndim, "reshard", is_consistent=False)
    if sharding is None:
        raise errors.ShardingError(
            "Reshard should only be used with out_shardings which are non-None and have a non-empty mesh. Got "
            f"sharding {wanted} for value{path()} at {source.capture()}; give P(...) under meshrt.set_mesh(mesh), or a "
            "NamedSharding"
        )
    if isinstance(x, Tracer):
        _check_mesh(aval, sharding)
    return move(x, sharding, wanted, "reshard")


def put(x: Any, sharding: NamedSharding) -> Any:
    """A traced value as `device_put` lays it over Explicit axes: as `reshard`."""
    wanted = asked(sharding, aval_of(x).ndim, "device_put", is_consistent=False)
    assert wanted is not None  # a mesh with Explicit axes is not empty
    if isinstance(x, Tracer):
        _check_mesh(aval_of(x), wanted)
    return move(x, wanted, sharding, "device_put")


def _check_mesh(aval: ShapedArray, sharding: NamedSharding) -> None:
    own = aval.explicit
    if own is not None and own.mesh.size != sharding.mesh.size:
        raise errors.MeshMismatchError(
            f"reshard of a value of type {aval.short()} over {own.mesh} to {sharding} at {source.capture()}: "
            f"inside of a program a value stays on its {own.mesh.size} devices; move it with meshrt.device_put before "
            "the call"
        )


def move(x: Any, sharding: NamedSharding, given: Any, function: str) -> Any:
    """`x` split by `sharding`, which has one entry per dimension; `given` is how the user of `function` wrote it."""
    check_divides(sharding, aval_of(x).shape, function)
    if isinstance(x, Tracer) or context.trace is not EVAL:
        return reshard_p.bind(x, sharding=sharding)
    return _move_array(x, sharding, given.mesh if isinstance(given, NamedSharding) else None)


def _move_array(x: Any, sharding: NamedSharding, mesh: Any = None) -> Any:
    """The eager form. Over an AbstractMesh the devices are those of the array or of the mesh in context."""
    own = getattr(x, "sharding", None)
    if not isinstance(mesh, Mesh):  # that in context may give the axes of the array's mesh other names
        around = (own.mesh if isinstance(own, NamedSharding) else None, mesh_context.concrete)
        wanted = sharding.mesh.shape_tuple
        mesh = next((m for m in around if m is not None and m.abstract_mesh.shape_tuple == wanted), None)
    if mesh is None or mesh.abstract_mesh.shape_tuple != sharding.mesh.shape_tuple:
        raise errors.MeshContextError(
            f"reshard to {sharding} does not say on which devices, and the value of type {aval_of(x).short()} "
            f"is on {own}: enter the mesh with meshrt.set_mesh, or give a NamedSharding over a Mesh"
        )
    concrete = NamedSharding(mesh.update_axis_types(sharding.mesh._types), sharding.spec)
    if isinstance(own, NamedSharding) and own.spec.unreduced:
        return EvalTrace.evaluate(reshard_p, (x,), {"sharding": sharding})
    return put_leaf(x, concrete, False, None)
