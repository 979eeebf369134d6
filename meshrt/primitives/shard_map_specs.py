"""What `shard_map` asks of its specs, and what it says where they do not fit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from meshrt import errors, tree_util
from meshrt.core.explicit import reduced_of, unreduced_of
from meshrt.core.types import ShapedArray
from meshrt.primitives.shard_map_region import Region
from meshrt.sharding.high_spec import HiPspec
from meshrt.sharding.mesh import AbstractMesh, AxisType, Mesh
from meshrt.sharding.spec import UNCONSTRAINED, PartitionSpec, UnreducedKind, axes_of
from meshrt.transforms.arguments import fun_name, signature_of
from meshrt.transforms.high import leaf_counts, leaf_paths, part_counts

# Nothing for `meshrt.lax`.
__all__: list[str] = []


def check_specs(which: str, specs: Any, mesh: Mesh | AbstractMesh, axis_names: frozenset[Any]) -> None:
    """Raises unless the leaves of `specs`, called `which`, are PartitionSpecs of Manual axes, each used once."""
    leaves = tree_util.tree_leaves_with_path(specs, is_leaf=lambda s: isinstance(s, PartitionSpec))
    places = [(path, s) for path, spec in leaves for s in (spec.to_lo() if isinstance(spec, HiPspec) else (spec,))]
    wrong = [
        f"  {which}{tree_util.keystr(path)} is {s!r} of type {type(s).__name__}"
        for path, s in places
        if not isinstance(s, PartitionSpec)
    ]
    if wrong:
        lines = "\n\n".join(wrong)
        raise errors.ShardingTypeError(
            f"shard_map {which} argument must be a pytree of `meshrt.sharding.PartitionSpec` instances, but:\n\n{lines}"
            f"\n\nWrite P(...), with `P = meshrt.sharding.PartitionSpec`, in these places of {which}."
        )
    wrong = [
        f"  {which}{tree_util.keystr(path)} refers to {axis!r}"
        for path, s in places
        for axis in (*s.axes, *s.unreduced, *s.reduced)
        if axis not in axis_names
    ]
    if wrong:
        names = ", ".join(repr(a) for a in mesh.axis_names if a in axis_names)
        lines = "\n\n".join(wrong)
        raise errors.UnknownAxisError(
            f"shard_map {which} argument must refer to an axis marked as manual ({names}), but:\n\n{lines}\n\n"
            f"Use these axes in {which}, or add the others to axis_names if they are axes of {mesh}."
        )
    for path, s in places:
        _check_spec(f"{which}{tree_util.keystr(path)}", s, mesh, axis_names)


def resolved(specs: Sequence[Any], structure: Any) -> list[Any]:
    """A spec for each array in a tree of this structure, in which values of high types are taken apart, from one for
    each that may be the HiPspec of the value that the array belongs to.
    """
    out: list[Any] = []
    for count in part_counts(structure):
        mine = specs[len(out) : len(out) + (1 if count is None else count)]
        if mine and isinstance(mine[0], HiPspec):
            lo = mine[0].to_lo()
            if len(lo) != count:
                parts = "an array" if count is None else f"{count} arrays"
                raise errors.ArgumentValueError(
                    f"{mine[0]!r} gives {len(lo)} PartitionSpecs for a value that consists of {parts}: its to_lo must "
                    "give one for each type in lo_ty of the value's type"
                )
            mine = lo
        out += mine
    return out


def _check_spec(where: str, spec: PartitionSpec, mesh: Mesh | AbstractMesh, axis_names: frozenset[Any]) -> None:
    twice = next((a for a in spec.axes if spec.axes.count(a) > 1), None)
    if twice is not None:
        raise errors.DuplicateAxisError(
            f"shard_map {where} is {spec}, which has duplicate entries for {twice!r}: each mesh axis can split at most "
            "one dimension. Keep one of them."
        )
    if UNCONSTRAINED in spec.partitions:
        raise errors.ShardingError(
            f"shard_map {where} is {spec}, but which part of a dimension each device sees cannot be left open; use "
            "None for dimensions that are whole on every device"
        )
    if spec.unreduced or spec.reduced:
        if frozenset(mesh.axis_names) != axis_names:
            raise errors.UnsupportedError(
                f"unreduced/reduced can only be passed to {where.split('[')[0]} when shard_map is in full manual mode. "
                f"Got mesh axis names {mesh.axis_names}, manual axes {sorted(map(str, axis_names))}, spec {spec}"
            )
        bad = [a for a in (*spec.unreduced, *spec.reduced) if mesh._types[a] is not AxisType.Explicit]
        if bad:
            raise errors.ShardingError(
                f"unreduced/reduced in {where} {spec} can only be used when the mesh passed to shard_map contains axis "
                f"names all of type `Explicit`, but {bad[0]!r} is {mesh._types[bad[0]]} in {mesh}"
            )


# ---------------------------------------------------------------------------------------------------------------------
# Specs and values


def check_ranks(which: str, fun: Callable[..., Any], tree: Any, specs: Any, flat: Sequence[Any], avals: Any) -> None:
    """RankMismatchError if a spec has more entries than its value has dimensions. None in `flat` is no spec."""
    faults = {i: a for i, (s, a) in enumerate(zip(flat, avals)) if s is not None and len(s.partitions) > a.ndim}
    if not faults:
        return
    name = fun_name(fun)
    is_in = which == "in_specs"
    lines = []
    for spec_path, path, spec, aval in _places(tree, specs, flat, faults):
        value = f"the passed args{path}{_bound(fun, tree, path)}" if is_in else f"{name}(*args){path}"
        n = len(spec.partitions)
        lines.append(
            f"* {which}{spec_path} is {spec} which has length {n}, but {value} has shape {aval.short()}, which has "
            f"rank {aval.ndim} (and {aval.ndim} < {n})"
        )
    what = "input" if is_in else "output"
    text = (
        f"shard_map applied to the function '{name}' was given an {which} entry which is too long to be compatible "
        f"with the corresponding {what} value from the function:\n\n{_listed(lines)}\n\nAn entry of {which} may have "
        "at most as many elements as the value has dimensions: shorten the spec, or give the value more dimensions."
    )
    if any(not a.ndim for a in faults.values()):
        text += f"\n\nFor scalars (rank 0), consider using an {which} entry of `P()`" + (
            "." if is_in else "; one that differs from device to device needs a dimension along which the devices' "
            "values are put together: return x[None] with P(axis)."
        )  # fmt: skip
    raise errors.RankMismatchError(text)


def check_divisible(
    fun: Callable[..., Any], region: Region, tree: Any, specs: Any, flat: Sequence[Any], avals: Sequence[Any]
) -> None:
    """IndivisibleError for arguments that cannot be cut into equal shards."""
    faults = {}
    for i, (s, a) in enumerate(zip(flat, avals)):
        if s is not None and any(n % region.parts(e) for n, e in zip(a.shape, s.partitions)):
            faults[i] = a
    if not faults:
        return
    name, lines = fun_name(fun), []
    for spec_path, path, spec, aval in _places(tree, specs, flat, faults):
        for d, (n, entry) in enumerate(zip(aval.shape, spec.partitions)):
            parts = region.parts(entry)
            if n % parts:
                axes = axes_of(entry)
                along = (
                    f"axis {axes[0]!r} (of size {parts})" if len(axes) == 1 else f"axes {axes} (of total size {parts})"
                )
                up = n + -n % parts
                near = f"{up - parts} or {up}" if n > parts else f"{up}"
                lines.append(
                    f"* the passed args{path} of shape {aval.short()}{_bound(fun, tree, path)} corresponds to "
                    f"in_specs{spec_path} of value {spec}, which maps array axis {d} (of size {n}) to mesh {along}, "
                    f"but {parts} does not evenly divide {n}; nearest sizes that it divides: {near}"
                )
    sizes = tuple(region.mesh.axis_sizes)
    raise errors.IndivisibleError(
        f"shard_map applied to the function '{name}' was given argument arrays with axis sizes that are not evenly "
        f"divisible by the corresponding mesh axis sizes:\n\nThe mesh given has shape {sizes} with corresponding axis "
        f"names {region.mesh.axis_names}.\n\n{_listed(lines)}\n\nCheck in_specs; if they are as they should be, change "
        f"the mesh, or pad the arguments and let '{name}' know of the padding."
    )


def check_sums(
    fun: Callable[..., Any], region: Region, tree: Any, specs: Any, flat: Sequence[PartitionSpec],
    avals: Sequence[ShapedArray],
) -> None:  # fmt: skip
    """ShardingError for results that are unreduced or reduced over other axes than their specs say."""
    faults = {}
    for i, (s, a) in enumerate(zip(flat, avals)):
        have = [axes.intersection(region.manual_axes) for axes in (unreduced_of(a), reduced_of(a))]
        if have != [s.unreduced, s.reduced] or s.unreduced_kind not in (None, UnreducedKind.sum):
            faults[i] = a
    if not faults:
        return
    lines = [
        f"* out_specs{spec_path} is {spec}, but the output value {fun_name(fun)}(*args){path} is {aval.short()}"
        for spec_path, path, spec, aval in _places(tree, specs, flat, faults)
    ]
    raise errors.ShardingError(
        "out_specs passed to shard_map should be equal to the unreduced and reduced axes present on the outputs of "
        f"'{fun_name(fun)}' (U: and R: in their types):\n\n{_listed(lines)}\n\nName the axes of the type in unreduced= "
        "and reduced= of the spec; or make the value one of the spec's: meshrt.lax.pcast(x, axes, to='unreduced') of "
        "what varies, pcast(x, axes, to='reduced') of what is one value, meshrt.lax.psum(x, axes) of what is unreduced"
    )


def check_replicated(
    fun: Callable[..., Any], region: Region, tree: Any, specs: Any, flat: Sequence[PartitionSpec],
    avals: Sequence[ShapedArray], chain: Callable[[int, str], str],
) -> None:  # fmt: skip
    """ShardingError for results that vary over axes along which their specs say they are the same.

    `chain(i, axis)` tells how result i came to vary over an axis.
    """
    faults = {}
    for i, (s, a) in enumerate(zip(flat, avals)):
        if any(axis in a.vma for axis in region.unmentioned(s)):
            faults[i] = a
    if not faults:
        return
    name, lines = fun_name(fun), []
    for i, (spec_path, path, spec, aval) in zip(faults, _places(tree, specs, flat, faults)):
        same = [a for a in region.unmentioned(spec) if a in aval.vma]
        if len(region.unmentioned(spec)) == 1:
            wanted = f"is replicated across mesh axis {same[0]!r}"
        else:
            wanted = f"is only varying across mesh axes {_braced(region, spec.axes)} and not {_braced(region, same)}"
        lines.append(
            f"* out_specs{spec_path} is {spec} which implies that the corresponding output value {wanted}, but it was "
            f"inferred to be possibly varying over {_braced(region, aval.vma)}. It is {name}(*args){path}:\n"
            + "\n".join(chain(i, a) for a in same)
        )
    sizes = tuple(region.mesh.axis_sizes)
    raise errors.ReplicationError(
        f"shard_map applied to the function '{name}' was given out_specs which require replication which can't be "
        f"statically inferred given the mesh:\n\nThe mesh given has shape {sizes} with corresponding axis names "
        f"{region.mesh.axis_names}.\n\n{_listed(lines)}\n\nIf the devices' values are to be put together, name the "
        "axis in out_specs; if they are to be made one, use the collective named above; if they are the same for a "
        "reason that types do not tell, pass check_vma=False to `meshrt.shard_map`."
    )


def _braced(region: Region, axes: Collection[Any]) -> str:
    return f"{{{','.join(str(a) for a in region.mesh.axis_names if a in axes)}}}"


def _listed(lines: list[str]) -> str:
    return lines[0][2:] if len(lines) == 1 else "\n\n".join(lines)


def _places(
    tree: Any, specs: Any, flat: Sequence[Any], faults: dict[int, ShapedArray]
) -> Iterator[tuple[str, str, PartitionSpec, ShapedArray]]:
    """Of each fault the path of the spec, that of the value, the spec, and the type."""
    is_leaf = lambda s: s is None or isinstance(s, PartitionSpec)
    said = tree_util.tree_leaves_with_path(specs, is_leaf=is_leaf)
    counts = leaf_counts(specs, tree, is_leaf)
    paths = [tree_util.keystr(path) for (path, _), count in zip(said, counts) for _ in range(count)]
    for i, path in enumerate(leaf_paths(tree)):
        if i in faults:
            yield paths[i], tree_util.keystr(path), flat[i], faults[i]


def _bound(fun: Callable[..., Any], tree: Any, path: str) -> str:
    """Which parameter of the user's function an argument is."""
    signature = signature_of(fun)
    if signature is None or not path.startswith("["):
        return ""
    index = int(path[1 : path.index("]")])
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)
    params = [p for p in signature.parameters.values() if p.kind not in kinds]
    if not params:
        return ""
    last = params[-1]
    if index >= len(params) or params[index].kind is inspect.Parameter.VAR_POSITIONAL:
        place = index - len(params) + 1
        return (
            f", where args[{index}] is the index {place} component of {fun_name(fun)}'s varargs parameter "
            f"'{last.name}',"
        )
    return f", where args[{index}] is bound to {fun_name(fun)}'s parameter '{params[index].name}',"
