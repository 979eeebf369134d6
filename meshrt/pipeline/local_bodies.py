"""Operations that their users partition, once shardings are known: each becomes a manual computation that every device
runs on its pieces.

What runs there is a partition function's `lower_fn`, or the user's function itself on the shards that its rule gives
each device. Both partitioners read the result, and nothing of the Python functions is left in it: a program that was
partitioned so is a text like any other.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import propagation
from meshrt import errors
from meshrt.core.axes import bind_axes, manual_axes
from meshrt.core.jaxpr import ClosedJaxpr, sources_of
from meshrt.core.source import replayed, source_at
from meshrt.core.trace import trace_to_jaxpr
from meshrt.core.types import ShapedArray
from meshrt.lowering.context import LoweringContext, ModuleLowering
from meshrt.lowering.types import mlir_type
from meshrt.primitives.custom_partitioning import TARGET, Custom, Partitioning, mapped_call, written_in_place
from meshrt.shape_dtype import ShapeDtypeStruct
from meshrt.sharding.mesh import AbstractMesh, AxisType, BaseMesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import PartitionSpec, axes_of
from meshrt.transforms.high import flatten, spread_over
from propagation.attributes import string
from propagation.common_axes import common_axes
from propagation.computations import replace_by_manual
from propagation.locations import source
from propagation.model import AxisRef, DimSharding, FactorType, Mesh, OpRule, TensorSharding
from propagation.program import Program
from propagation.projection import TensorState, back_project, project
from propagation.written import program_of

__all__ = ["write_local_bodies"]


class Local(NamedTuple):
    """What a device runs: `call` on pieces laid out as `ins`. Results are laid out as `outs` when they are summed over
    the axes `sums`."""

    call: ClosedJaxpr
    ins: Sequence[TensorSharding]
    outs: Sequence[TensorSharding]
    sums: Sequence[AxisRef] = ()


class _Site(NamedTuple):
    """An operation to be replaced: how, where, and what is known of its operands and results."""

    how: Partitioning
    call: ClosedJaxpr
    mesh: Mesh
    abstract: AbstractMesh
    ins: list[TensorSharding]
    outs: list[TensorSharding]
    where: str | None
    manual: frozenset[Any]

    def error(self, kind: type[errors.MeshrtError], message: str) -> errors.MeshrtError:
        place = f" at {self.where}" if self.where else ""
        return kind(f"{self.how.name}{place}: {message}")


def write_local_bodies(
    result: propagation.Propagated, customs: Mapping[str, Custom], abstract: AbstractMesh,
    platform: str,
) -> None:  # fmt: skip
    """Replaces every operation of a propagated program that is the user's to partition.

    Raises ShardingError and its kin for a partition function that returns what does not fit.
    """
    program, shardings = result.program, result.shardings
    for op in program.ops():
        if op.name != "stablehlo.custom_call" or string(op.attrs["call_target_name"]) != TARGET:
            continue
        how, call, manual = customs[string(op.attrs["backend_config"])]
        mesh = next(m for m in program.meshes.values() if m.axis_names == abstract.axis_names)
        free = [n for n in mesh.axis_names if n not in manual]
        given = [_closed(shardings.get(v), mesh, v.type.rank) for v in (*op.operands, *op.results)]
        count = len(op.operands)
        site = _Site(how, call, mesh, abstract, given[:count], given[count:], source(op), manual)
        local = _by_partition(site) if how.partition is not None else _by_rule(site)
        body = _Body(abstract, platform, program.funcs)
        inner = body.program(local, _groups(mesh, local.sums))
        replace_by_manual(program, shardings, op, inner, local.ins, local.outs, free)
        op.data["sums_last"] = bool(local.sums)
        op.data["local_call"] = local.call  # for reports


def _closed(sharding: TensorSharding | None, mesh: Mesh, rank: int) -> TensorSharding:
    if sharding is None or len(sharding.dims) != rank:
        return TensorSharding.replicated_on(mesh, rank)
    return TensorSharding(mesh, [DimSharding(d.axes) for d in sharding.dims])


# ---------------------------------------------------------------------------------------------------------------------
# By the rule: the function itself, on shards


def _by_rule(site: _Site) -> Local:
    """Every device runs the function on its shards. Axes that split a factor in a way that the function cannot be run
    on shards of are dropped: factors that need replication or permute, that a result lacks without being summed over,
    that no operand has, whose size they do not divide, or that are not all of a dimension."""
    ins, outs = site.call.in_avals, site.call.out_avals
    rule = site.how.op_rule(site.abstract, ins, outs)
    if rule is None:
        whole = [[TensorSharding.replicated_on(site.mesh, a.ndim) for a in avals] for avals in (ins, outs)]
        return Local(site.call, whole[0], whole[1])
    mappings = (*rule.operands, *rule.results)
    states = [project(rule, m, s, True) for m, s in zip(mappings, (*site.ins, *site.outs))]
    axes = common_axes(rule, states, [a.size for a in (*ins, *outs)], site.mesh)
    axes = _runnable(rule, axes, [a.shape for a in ins], [a.shape for a in outs])
    made = [_laid_out(rule, m, axes, site.mesh) for m in mappings]
    sums = tuple(a for f in rule.factors_of_type(FactorType.REDUCTION) for a in axes[f])
    count = len(ins)
    return Local(_traced(site, site.how.fun, made[:count], made[count:]), made[:count], made[count:], sums)


def _runnable(rule: OpRule, axes: Sequence[Sequence[AxisRef]], ins: Sequence[Any], outs: Sequence[Any]) -> list[Any]:
    found = [tuple(own) for own in axes]

    def has(dims: Any, f: int) -> bool:
        return any(f in dim for dim in dims)

    for f, (kind, size) in enumerate(zip(rule.types, rule.sizes)):
        summed = kind == FactorType.REDUCTION
        along = all(has(dims, f) != summed for dims in rule.results) and any(has(dims, f) for dims in rule.operands)
        if kind not in (FactorType.PASS_THROUGH, FactorType.REDUCTION) or not along:
            found[f] = ()
        while found[f] and size % _product(found[f]):
            found[f] = found[f][:-1]
    for dims, shape in zip((*rule.operands, *rule.results), (*ins, *outs)):
        for dim, size in zip(dims, shape):
            if len(dim) == 1 and rule.sizes[dim[0]] != size:
                found[dim[0]] = ()
            for major, minor in itertools.pairwise(dim):
                if _product(found[major]) != rule.sizes[major]:
                    found[minor] = ()  # else a piece would be no range of positions
    return found


def _product(axes: Sequence[AxisRef]) -> int:
    n = 1
    for axis in axes:
        n *= axis.size
    return n


def _laid_out(rule: OpRule, mapping: Any, axes: Sequence[Any], mesh: Mesh) -> TensorSharding:
    state = TensorState(rule.num_factors)
    for f in {f for dim in mapping for f in dim}:
        state.axes[f], state.closed[f] = axes[f], True
    return back_project(rule, mapping, state, mesh)


# ---------------------------------------------------------------------------------------------------------------------
# By a partition function


def _by_partition(site: _Site) -> Local:
    """What the user's function says. It is told of shardings without the dimensions that vmap added; these are split as
    propagation decided, unless the function uses the axis itself, and its `lower_fn` is mapped over them."""
    how, depths = site.how, site.how.depths(len(site.ins))
    depths = [*depths, *[len(how.levels)] * len(site.outs)]
    avals = [*site.call.in_avals, *site.call.out_avals]
    seen = [_whole_axes(s, a.shape, site) for s, a in zip((*site.ins, *site.outs), avals)]
    structs = [
        ShapeDtypeStruct(a.shape[d:], a.dtype, sharding=NamedSharding(site.abstract, PartitionSpec(*s[d:])))
        for a, s, d in zip(avals, seen, depths)
    ]
    count = len(site.ins)
    lower_fn, asked = _asked(site, structs[:count], structs[count:])
    used = {axis for entries in asked for entry in entries for axis in entry}
    batch = _batch_axes(site, seen[:count], used)
    made = []
    for i, (aval, entries) in enumerate(zip(avals, asked)):
        levels = [k for k, level in enumerate(how.levels) if i >= count or level.operands[i]]
        whole = [*[batch[k] for k in reversed(levels)], *entries]
        what = f"operand {i}" if i < count else f"result {i - count}"
        made.append(_sharding(whole, aval.shape, site, what))
    return Local(_traced(site, lower_fn, made[:count], made[count:]), made[:count], made[count:])


def _asked(site: _Site, ins: list[Any], outs: list[Any]) -> tuple[Callable[..., Any], list[list[tuple[str, ...]]]]:
    """(lower_fn, the axes of each dimension of each operand and result) as the user's function has them."""
    how = site.how
    assert how.partition is not None
    answer = how.partition(site.abstract, how.in_tree.unflatten(ins), how.out_tree.unflatten(outs))
    if not isinstance(answer, tuple) or len(answer) != 4:
        raise site.error(
            errors.ShardingTypeError,
            "partition must return (mesh, lower_fn, result_shardings, arg_shardings), but returned "
            f"{type(answer).__name__}{f' of {len(answer)}' if isinstance(answer, tuple) else ''}",
        )
    mesh, lower_fn, result_shardings, arg_shardings = answer
    if not isinstance(mesh, BaseMesh) or mesh.shape_tuple != site.abstract.shape_tuple:
        raise site.error(
            errors.MeshMismatchError,
            f"partition returned the mesh {mesh}, but the program is partitioned over {site.abstract}; return the mesh "
            "that it was given",
        )
    if not callable(lower_fn):
        raise site.error(errors.ArgumentTypeError, f"partition returned {lower_fn!r} as lower_fn, which is no function")
    asked = []
    for what, given, tree, structs in (
        ("arg_shardings", arg_shardings, how.in_tree, ins),
        ("result_shardings", result_shardings, how.out_tree, outs),
    ):
        for i, (sharding, struct) in enumerate(zip(_flat(site, what, given, tree), structs)):
            asked.append(_entries(site, f"{what}[{i}]", sharding, struct))
    return lower_fn, asked


def _flat(site: _Site, what: str, shardings: Any, tree: Any) -> list[Any]:
    is_leaf = lambda x: isinstance(x, NamedSharding | PartitionSpec) or x is None
    if isinstance(shardings, list):
        shardings = tuple(shardings)
    try:
        return spread_over(shardings, tree, is_leaf)
    except ValueError as e:
        raise site.error(errors.ShardingError, f"partition returned {what} of another structure: {e}") from None


def _entries(site: _Site, what: str, sharding: Any, struct: Any) -> list[tuple[str, ...]]:
    if not isinstance(sharding, NamedSharding):
        raise site.error(
            errors.ShardingTypeError,
            f"Custom Partitioning rules must return Sharding, but {what} is {sharding!r}; return NamedSharding(mesh, "
            "spec)",
        )
    if sharding.mesh.shape_tuple != site.abstract.shape_tuple:
        raise site.error(errors.MeshMismatchError, f"{what} is over {sharding.mesh}, the program over {site.abstract}")
    if len(sharding.spec.partitions) > len(struct.shape):
        raise site.error(
            errors.RankMismatchError, f"{what} is {sharding.spec}, for a value of rank {len(struct.shape)}"
        )
    taken = [a for a in sharding.spec.axes if a in site.manual]
    if taken:
        raise site.error(
            errors.ShardingError,
            f"{what} is {sharding.spec}, but the operation stands in a region that is manual over {taken[0]!r}; split "
            "it over other axes",
        )
    return [tuple(map(str, axes_of(e))) for e in sharding.spec.padded(len(struct.shape))]


def _batch_axes(site: _Site, seen: list[list[tuple[str, ...]]], used: set[str]) -> list[tuple[str, ...]]:
    """The axes of each dimension that vmap added: those of the largest operand that has it, so far as they are free."""
    how, found, used = site.how, [], set(used)
    for k, level in enumerate(how.levels):
        places = [(a.size, i) for i, a in enumerate(site.call.in_avals) if level.operands[i]]
        own: tuple[str, ...] = ()
        for _, i in sorted(places, reverse=True):
            above = sum(later.operands[i] for later in how.levels[k + 1 :])
            own = tuple(a for a in seen[i][above] if a not in used)
            if own:
                break
        used.update(own)
        found.append(own)
    return found


def _whole_axes(sharding: TensorSharding, shape: Sequence[int], site: _Site) -> list[tuple[str, ...]]:
    """The axes of each dimension: as many, from the major one on, as are whole and divide it."""
    out = []
    for dim, size in zip(sharding.dims, shape):
        names: list[str] = []
        for axis in dim.axes:
            if not axis.is_full(site.mesh) or size % axis.size:
                break
            size //= axis.size
            names.append(axis.name)
        out.append(tuple(names))
    return out


def _sharding(entries: Sequence[tuple[str, ...]], shape: Sequence[int], site: _Site, what: str) -> TensorSharding:
    dims = []
    for i, (names, size) in enumerate(zip(entries, shape)):
        axes = tuple(site.mesh.axis(n) for n in names)
        if size % _product(axes):
            raise site.error(
                errors.IndivisibleError,
                f"partition splits dimension {i} of {what}, of size {size}, over {', '.join(names)} ({_product(axes)} "
                "devices), which do not divide it; return a sharding that leaves it whole",
            )
        dims.append(DimSharding(axes))
    return TensorSharding(site.mesh, dims)


# ---------------------------------------------------------------------------------------------------------------------
# The program of a device


def _traced(
    site: _Site, fun: Callable[..., Any], ins: Sequence[TensorSharding], outs: Sequence[TensorSharding]
) -> ClosedJaxpr:
    """`fun` at the types of a device's pieces, mapped over the dimensions that vmap added. It must return pieces
    of the results."""
    how = site.how
    pieces = [_piece(a, s) for a, s in zip(site.call.in_avals, ins)]
    wanted = [_piece(a, s) for a, s in zip(site.call.out_avals, outs)]
    own = [a.with_shape(a.shape[d:]) for a, d in zip(pieces, how.depths(len(pieces)))]

    def flat(*args: Any) -> list[Any]:
        return flatten(fun(*how.in_tree.unflatten(args)))[0]

    axes = manual_axes(site.abstract, site.abstract.axis_names, is_checked=False)
    line = source_at(site.where, sources_of(site.call.jaxpr))  # the user's, not that of whoever asks for the partition
    with bind_axes(axes), replayed(line):
        call = trace_to_jaxpr(flat, own, how.name)
    for level in how.levels:
        i = level.operands.index(True)
        above = sum(later.operands[i] for later in how.levels[how.levels.index(level) + 1 :])
        size = pieces[i].shape[above]
        call = mapped_call(call, level.axis._replace(size=size), level.operands)
    found = [(a.shape, a.dtype) for a in call.out_avals]
    if found != [(a.shape, a.dtype) for a in wanted]:
        made, given, right = (", ".join(a.short() for a in avals) for avals in (call.out_avals, pieces, wanted))
        what = "lower_fn" if how.partition is not None else "the function"
        raise site.error(
            errors.ShardingError,
            f"Mismatch in result shapes. {what} makes {made} of the pieces {given}, but the pieces of the "
            f"results are {right}; "
            + ("return the shardings that fit" if how.partition is not None else "the rule does not fit the function"),
        )
    return call


def _piece(aval: ShapedArray, sharding: TensorSharding) -> ShapedArray:
    return aval.bare().with_shape(tuple(sharding.shard_shape(aval.shape)))


class _Body(ModuleLowering):
    """Lowering of a device's program. Its functions get names that the program around it does not have."""

    def __init__(self, mesh: AbstractMesh, platform: str, taken: Mapping[str, Any]):
        super().__init__("body", (platform,))
        self.mesh, self.taken = mesh, taken
        self.manual = AbstractMesh(mesh.axis_sizes, mesh.axis_names, (AxisType.Manual,) * len(mesh.axis_names))

    def unique_name(self, base: str) -> str:
        name = super().unique_name(base)
        while name in self.taken or name == "main":
            name = super().unique_name(base)
        return name

    def program(self, local: Local, groups: np.ndarray | None) -> Program:
        """The module, whose @main adds its results up over `groups` of devices."""
        call = local.call
        function = self.writer.function("main", [mlir_type(a) for a in call.in_avals], public=True)
        ctx = LoweringContext(self, function, manual=self.manual)
        results = written_in_place(ctx, call, function.args)
        if groups is not None:
            results = [_summed(ctx, r, a, groups, i) for i, (r, a) in enumerate(zip(results, call.out_avals))]
        function.ret(results)
        return program_of(self.writer)


def _summed(ctx: LoweringContext, x: Any, aval: ShapedArray, groups: np.ndarray, number: int) -> Any:
    name = "stablehlo.or" if aval.dtype == bool else "stablehlo.add"
    attrs = (
        f"replica_groups = dense<{groups.tolist()}> : tensor<{groups.shape[0]}x{groups.shape[1]}xi64>, "
        f"channel_handle = #stablehlo.channel_handle<handle = {number + 1}, type = 1>, use_global_device_ids"
    )
    return ctx.op("stablehlo.all_reduce", [x], aval, attrs, [ctx.scalar_region(name, aval.dtype)])


def _groups(mesh: Mesh, axes: Sequence[AxisRef]) -> np.ndarray | None:
    """i64[groups, members]: devices, by their position in the mesh, that differ along `axes` only. None for no axes."""
    if not axes:
        return None
    sizes: list[int] = []
    among: list[bool] = []
    for name, size in mesh.axes:
        own = [a for a in axes if a.name == name]
        bounds = sorted({1, size, *[a.pre for a in own], *[a.end for a in own]})
        for low, high in itertools.pairwise(bounds):
            sizes.append(high // low)
            among.append(any(a.pre <= low and high <= a.end for a in own))
    ids = np.arange(mesh.size, dtype=np.int64).reshape(sizes)
    order = [i for i, a in enumerate(among) if not a] + [i for i, a in enumerate(among) if a]
    return ids.transpose(order).reshape(-1, _product(axes))
