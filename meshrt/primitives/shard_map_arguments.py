"""What `shard_map` asks of the types of its arguments over Explicit axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors, tree_util
from meshrt.core.source import capture
from meshrt.core.types import ShapedArray
from meshrt.primitives.reshard import reshard
from meshrt.primitives.shard_map_region import Region
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import PartitionSpec, UnreducedKind
from meshrt.sharding.typed import sharding_of, type_sharding
from meshrt.transforms.arguments import fun_name

# Nothing for `meshrt.lax`.
__all__: list[str] = []


def spec_in_type(region: Region, aval: ShapedArray) -> PartitionSpec:
    """What the type of an argument says of the Manual axes."""
    if aval.explicit is None:
        return PartitionSpec()
    entries = []
    for entry in aval.explicit.spec.partitions:
        axes = entry if isinstance(entry, tuple) else () if entry is None else (entry,)
        mine = tuple(a for a in axes if a in region.manual_axes)
        if mine and axes[: len(mine)] != mine:
            raise errors.ShardingError(
                f"shard_map cannot infer in_specs from the type {aval}: a dimension is split over {axes}, of which "
                f"{mine} are manual and have to come first; reshard the argument, or give in_specs"
            )
        entries.append(mine or None)
    if not region.is_full:
        return PartitionSpec(*entries)
    own = aval.explicit.spec
    sums = [axes.intersection(region.manual_axes) for axes in (own.unreduced, own.reduced)]
    return PartitionSpec(*entries, unreduced=sums[0], reduced=sums[1])


def check_meshes(fun: Callable[..., Any], region: Region, args: Any, avals: Sequence[Any]) -> None:
    """MeshMismatchError for an argument whose type is over Explicit axes of a mesh of other axes than the region's."""
    for i, aval in enumerate(avals):
        explicit = getattr(aval, "explicit", None)
        if explicit is None or explicit.mesh.shape_tuple == region.outside.shape_tuple:
            continue
        path = tree_util.keystr(tree_util.tree_leaves_with_path(args)[i][0])
        raise errors.MeshMismatchError(
            f"args{path} of the shard_map of {fun_name(fun)} has the type {aval.short()} over {explicit.mesh}, but the "
            f"mesh of the shard_map is {region.outside} at {capture()}: pass it that mesh, or bring the argument to "
            "the other one before, by meshrt.reshard(x, NamedSharding(mesh, spec))"
        )


def unlike_specified(
    fun: Callable[..., Any], region: Region, args: Any, specs: Sequence[Any], avals: Sequence[Any],
    reshard_inputs: bool,
) -> set[int]:  # fmt: skip
    """The arguments whose types do not say what in_specs say, to be resharded. ShardingError if nobody asked for it."""
    moved = set()
    for i, (spec, aval) in enumerate(zip(specs, avals)):
        wanted = None if spec is None else _type_of_spec(region, spec, aval.ndim)
        if spec is None or wanted is aval.explicit:
            continue
        if not reshard_inputs:
            path = tree_util.keystr(tree_util.tree_leaves_with_path(args)[i][0])
            raise errors.ShardingError(
                f"in_specs passed to shard_map: {spec.update(spec.padded(aval.ndim))} does not match the specs of "
                f"the input: {sharding_of(aval, region.outside).spec} for arg: {aval} (args{path} of "
                f"{fun_name(fun)}). `in_specs` is an optional argument so you can omit it, and shard_map reads "
                "the specs from the types of the arguments. To move the arguments, pass reshard_inputs=True, or "
                "meshrt.reshard them before"
            )
        moved.add(i)
    return moved


def resharded(region: Region, x: Any, spec: PartitionSpec) -> Any:
    """An argument that enters with `spec`, laid out so outside of the region."""
    return reshard(x, NamedSharding(region.outside, spec))


def _type_of_spec(region: Region, spec: PartitionSpec, ndim: int) -> Any:
    """The sharding in the type of an argument that enters with `spec`; False if no type has it."""
    if spec.unreduced_kind not in (None, UnreducedKind.sum):
        return False
    return type_sharding(region.outside, spec.padded(ndim), spec.unreduced, spec.reduced)


def check_sums_named(
    fun: Callable[..., Any], region: Region, args: Any, specs: Sequence[Any], avals: Sequence[Any]
) -> None:
    """UnsupportedError for arguments that are unreduced or reduced over axes which their specs do not say it of."""
    for i, (spec, aval) in enumerate(zip(specs, avals)):
        if spec is None or aval.explicit is None:
            continue
        own = aval.explicit.spec
        left = (own.unreduced - spec.unreduced) | (own.reduced - spec.reduced)
        if left.intersection(region.manual_axes):
            path = tree_util.keystr(tree_util.tree_leaves_with_path(args)[i][0])
            raise errors.UnsupportedError(
                f"args{path} of the shard_map of {fun_name(fun)} is {aval.short()}, unreduced or reduced over "
                f"axes that are made manual ({', '.join(region.manual_axes)}); that is implemented where all axes of "
                "the mesh are, and are Explicit. meshrt.reshard it to a spec without unreduced and reduced axes before"
            )
