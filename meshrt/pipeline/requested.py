"""What `jit` was told of arguments and results one by one: shardings, layouts and kinds of memory, which must fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors, tree_util
from meshrt._tree_paths import calling
from meshrt.core.explicit import unreduced_of
from meshrt.core.spaces import DEVICE
from meshrt.core.types import ShapedArray
from meshrt.pipeline.box_contents import CLOSED_OVER
from meshrt.pipeline.origins import Origin, said
from meshrt.primitives.sharding import abstract_sharding
from meshrt.runtime.array import Array
from meshrt.shape_dtype import ShapeDtypeStruct
from meshrt.sharding.layout import AUTO, Format, Layout
from meshrt.sharding.mesh import AbstractMesh, AxisType, Mesh
from meshrt.sharding.named import NamedSharding, Sharding, refuse_manual
from meshrt.sharding.spec import PartitionSpec
from meshrt.transforms.high import leaf_paths, spread_over

__all__ = [
    "OneByOne", "at_boundary", "broadcast_in", "canonical", "check_added_up", "check_layout", "check_memory",
    "chooses_layout", "is_sharding", "layout_asked", "memories", "memory_of", "own_layout", "settled", "untyped",
]  # fmt: skip


def layout_asked(asked: Any) -> Layout | None:
    """The layout that a result is to have, if it is another than that which programs return."""
    layout = asked.layout if isinstance(asked, Format) and isinstance(asked.layout, Layout) else None
    return None if layout is None or layout.is_default else layout


def chooses_layout(asked: Any, aval: ShapedArray) -> bool:
    """Whether the compiler chooses the layout of an argument or result, of type `aval`, for which `asked` was given.

    Keys lie row-major only.
    """
    return isinstance(asked, Format) and asked.is_auto and not aval.is_key


def own_layout(leaf: Any) -> Layout | None:
    """The layout that an array, or what stands for one, has, if it is another than row-major."""
    if type(leaf) is Array:
        return leaf._sig.layout
    return layout_asked(leaf.format) if type(leaf) is ShapeDtypeStruct and leaf.layout is not None else None


def memory_of(asked: Any) -> str | None:
    """The kind of memory that a sharding or Format names beside the devices' own one."""
    sharding = asked.sharding if isinstance(asked, Format) else asked
    return sharding.other_memory if isinstance(sharding, Sharding) else None


_TO_MOVE = "Bring it into that layout with meshrt.device_put(x, Format(layout, sharding)), or leave the layout out"
_TO_CHOOSE = (
    "An array has its layout already, so the compiler cannot choose one: lower the function for a "
    "meshrt.ShapeDtypeStruct, compile it, and bring the array into the layout that input_formats says"
)


def check_layout(given: Any, leaf: Array, origin: Origin) -> None:
    """ShardingError if a committed argument has another layout than jit was told, or jit was told to choose one."""
    layout = given.layout if isinstance(given, Format) else None
    found = leaf._sig.layout
    if layout is AUTO or (isinstance(layout, Layout) and (found is not None or not layout.is_default)):
        if not isinstance(layout, Layout) or found is None or not layout.agrees(found):
            raise errors.ShardingError(
                f"Layout passed to jit does not match the layout on the respective arg. Got jit layout: {layout},\n"
                f"arg layout: {leaf.layout} for {said(origin)}. {_TO_CHOOSE if layout is AUTO else _TO_MOVE}"
            )


def memories(
    args: Sequence[str], outs: Sequence[str | None], out_avals: Sequence[ShapedArray]
) -> tuple[tuple[str, ...], tuple[str | None, ...]]:
    """`arg_memories` and `out_memories` of a LoweringRequest: empty where all are the devices' own. Without `outs`
    nobody asked anything of results."""
    outs = tuple(outs) or (None,) * len(out_avals)
    as_typed = all(k is None or (k == "device" and a.memory_space is DEVICE) for k, a in zip(outs, out_avals))
    return ((), ()) if as_typed and all(kind == "device" for kind in args) else (tuple(args), outs)


def check_memory(given: Any, leaf: Array, origin: Origin) -> None:
    """ShardingError if an argument, committed or not, lies in another memory than jit was told."""
    asked, here = given.sharding if isinstance(given, Format) else given, leaf.sharding
    if not isinstance(asked, Sharding) or not asked.is_concrete:
        return
    if not asked.is_in_memory_of(here):
        raise errors.ShardingError(
            "Memory kinds passed to jit does not match memory kind on the respective arg. Got jit memory kind: "
            f"{asked.memory_kind}, arg memory kind: {here.memory_kind} for {said(origin)}. Move it "
            "with meshrt.device_put, or drop the memory kind"
        )


def check_added_up(chosen: NamedSharding | None, aval: ShapedArray, origin: Origin) -> None:
    """UnsupportedError for an argument that jit is to take as addends, and that is a whole value by its type."""
    if chosen is not None and not chosen.spec.unreduced <= unreduced_of(aval):
        raise errors.UnsupportedError(
            f"in_shardings with unreduced axes, here {chosen.spec} for {said(origin)}, take arrays that are unreduced: "
            "make one with meshrt.device_put(x, sharding), whose type says so"
        )


def settled(
    chosen: NamedSharding | None, given: Any, sharding: Any, aval: ShapedArray, origin: Origin
) -> Any:  # fmt: skip
    """Where a committed argument of a `sharding` is, for who was `given` another by in_shardings: `chosen`, or one
    device if that is None. It moves to other devices if it is laid out alike there, and keeps the axes of its type.

    Raises:
      ShardingError: it is not.
    """
    if not _is_alike(chosen, sharding, aval.ndim):
        raise errors.ShardingError(
            "Sharding passed to jit does not match the sharding on the respective arg. Got jit sharding: "
            f"{given},\narg sharding: {sharding} for {said(origin)}. Move it with meshrt.device_put or drop "
            "it from in_shardings"
        )
    if not isinstance(sharding, NamedSharding):
        return sharding if chosen is None or not _moves(chosen, sharding) else chosen
    if chosen is None:
        if AxisType.Explicit not in sharding.mesh.axis_types:
            return None
        there = Mesh(getattr(given, "sharding", given).device_assignment, ("device",))
        return sharding.update(mesh=there.reshaped(sharding.mesh.abstract_mesh))
    if not _moves(chosen, sharding):
        return sharding
    if chosen.num_devices != sharding.num_devices:
        return chosen
    assert isinstance(chosen.mesh, Mesh)
    return sharding.update(mesh=chosen.mesh.reshaped(sharding.mesh.abstract_mesh))


def _moves(chosen: NamedSharding, sharding: Sharding) -> bool:
    """Whether what is of one sharding goes to other devices; what a type says over an AbstractMesh is on none."""
    if isinstance(sharding, NamedSharding) and not isinstance(sharding.mesh, Mesh):
        return False
    return isinstance(chosen.mesh, Mesh) and chosen.device_assignment != sharding.device_assignment


def _is_alike(chosen: NamedSharding | None, sharding: Any, ndim: int) -> bool:
    is_whole = bool(sharding.is_fully_replicated)
    if isinstance(sharding, NamedSharding) and AxisType.Explicit in sharding.mesh.axis_types:
        # Its type says on how many devices it is.
        is_whole = is_whole and sharding.num_devices in (1, 1 if chosen is None else chosen.num_devices)
    if chosen is None:
        return is_whole
    if isinstance(chosen.mesh, Mesh) and chosen.is_fully_replicated and is_whole:
        return True
    if not isinstance(sharding, NamedSharding):
        return not isinstance(chosen.mesh, AbstractMesh) and chosen.is_equivalent_to(sharding, ndim)
    return abstract_sharding(sharding).is_equivalent_to(abstract_sharding(chosen), ndim)


def is_sharding(x: Any) -> bool:
    """Whether `x` is one thing that `jit` may be told of a value's place: a leaf of `in_shardings`, None included."""
    return x is None or x is AUTO or isinstance(x, Sharding | PartitionSpec | Format | Layout)


class OneByOne:
    """`in_shardings` of who knows one for each array among the arguments, of classes that may refuse to be made of
    them."""

    __slots__ = ("shardings",)

    def __init__(self, shardings: Sequence[Any]):
        self.shardings = tuple(shardings)

    def __repr__(self) -> str:
        return f"OneByOne({self.shardings!r})"


tree_util.register_pytree_node(OneByOne, lambda o: (o.shardings, None), lambda _, shardings: OneByOne(shardings))


def broadcast_in(name: str, given: Any, tree: Any, path: Callable[[int], str]) -> list[Any] | None:
    """The `in_shardings` that the function `name` was given, one for each argument of structure `tree`, which `path`
    names by position; None if none.

    ArgumentValueError for keyword arguments. TreeError if they are no prefix of the positional ones.
    """
    if given is None:
        return None
    args, kwargs = tree.children()
    kept = dict(zip(kwargs.node_data()[1], kwargs.children()))
    # What boxes that the function closes over hold: nobody can say where it lies but they themselves.
    held = [None] * (kept[CLOSED_OVER].num_leaves if CLOSED_OVER in kept else 0)
    named = [k for k in kept if k != CLOSED_OVER]
    if named:
        raise errors.ArgumentValueError(
            f"jit does not support kwargs when in_shardings is specified; pass {', '.join(named)} of {name} by position"
        )
    if type(given) is OneByOne:
        return [*given.shardings, *held]
    if isinstance(given, list):
        given = tuple(given)
    try:
        return [*spread_over(given, args, is_sharding), *held]
    except errors.TreeError as e:
        why = calling(e, "in_shardings")
        if type(given) is tuple and len(given) != len(args.children()):
            sizes = f"a tuple or list of length {len(given)} for an args tuple of length {len(args.children())}"
            why = f"it is the wrong length: {sizes}"
        elif e.keys:
            why += f"\nin_shardings{e.path} is for {_argument_at(args, e.keys, path)} of {name}"
        elif not isinstance(given, tuple) or hasattr(given, "_fields"):
            why = f"in_shardings is not a tuple, and might need to be wrapped in one: {why}"
        raise errors.TreeError(
            f"in_shardings of {name} must be a pytree prefix of its positional arguments, one sharding or a "
            f"tuple with an entry for each: {why}"
        ) from None


def _argument_at(args: Any, keys: Sequence[Any], path: Callable[[int], str]) -> str:
    """`argument params['w']`: what the user calls the part of the arguments, a structure, at some keys."""
    for i, below in enumerate(leaf_paths(args)):
        if below[: len(keys)] == tuple(keys):
            return path(i).removesuffix(tree_util.keystr(below[len(keys) :]))
    return f"argument {keys[0].idx}"


def at_boundary(sharding: NamedSharding, aval: ShapedArray, origin: Origin) -> NamedSharding:
    """The canonical abstract sharding of an argument or result, whose dimensions must divide: RankMismatchError,
    ShardingError and IndivisibleError name the value."""
    if len(sharding.spec.partitions) > aval.ndim:
        raise errors.RankMismatchError(
            f"{sharding.spec} is only valid for values of rank at least {len(sharding.spec.partitions)}, but was "
            f"applied to a value of rank {aval.ndim}, {said(origin)}. Give at most one entry per dimension, as in "
            f"{PartitionSpec(*sharding.spec.partitions[: aval.ndim])}"
        )
    try:
        refuse_manual(sharding)
    except errors.ShardingError as e:
        raise errors.ShardingError(f"{said(origin)} cannot be sharded so: {e}") from None
    try:
        sharding.shard_shape(aval.shape)
    except errors.IndivisibleError as e:
        raise errors.IndivisibleError(f"{said(origin)} cannot be sharded so: {e}") from None
    return canonical(sharding, aval)


def canonical(sharding: NamedSharding, aval: ShapedArray) -> NamedSharding:
    """The abstract sharding without trailing Nones, uneven only where it is, so that equal layouts are one key."""
    entries = list(sharding.spec.partitions)
    while entries and entries[-1] is None:
        entries.pop()
    uneven = sharding.uneven and not sharding.splits_evenly(aval.shape)
    return NamedSharding(sharding.mesh.abstract_mesh, sharding.spec.update(partitions=entries), uneven=uneven)


def untyped(mesh: AbstractMesh) -> AbstractMesh:
    """The mesh with Auto axes in place of Explicit ones: that of a program in which no type says anything of them."""
    explicit = mesh.explicit_axes
    return mesh.update_axis_types(dict.fromkeys(explicit, AxisType.Auto)) if explicit else mesh
