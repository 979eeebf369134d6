"""Manual computations (`shard_map`), and the collectives that programs write in them themselves.

The body of a manual computation is a per-device program along its manual axes; along the other (free) axes it is
partitioned like the rest. The program's own all_gather over a manual axis stays as it is written, on pieces that are
split further along free axes as long as it does not move elements along the split dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from propagation.attributes import integer
from propagation.model import TensorSharding
from propagation.program import Op, Value, source

from ..analysis.device_groups import crossed_atoms, differing_atoms, members_of
from ..analysis.reducers import reduction_kind
from ..cost import sent_bytes
from ..errors import GroupsError, UnsupportedOpError, UnsupportedShardingError
from ..ir.attributes import Given
from ..ir.program import Collective, LocalValue
from ..kinds import CollectiveKind, by_op
from ..layout import Dims, replicated
from ..layouts.context import Context
from ..layouts.provenance import asked
from ..partial_sums import unreduced
from ..reshard.realise import APART
from ..reshard.realise_pieces import where
from ..reshard.realise_reductions import Group, all_reduce, reduce_scatter

__all__ = ["collective", "manual_computation"]

CAUSE = "written in the program"


def manual_computation(ctx: Context, op: Op) -> None:
    """Inlines the body, which is per-device code along the manual axes, and partitions it along the free ones. Operands
    and results that are unreduced over manual axes are the devices' addends inside."""
    ins, outs = ctx.manual_shardings(op)
    manual = ctx.manual_atoms(op)
    body = op.regions[0]
    outer_manual, ctx.manual = ctx.manual, tuple(sorted({*ctx.manual, *manual}))
    outer_cause = ctx.because
    for i, (v, arg, s) in enumerate(zip(op.operands, body.args, ins)):
        dims = ctx.atoms.dims(s)
        ctx.because = f"in_shardings, operand {i}"
        ref = ctx.into_manual(op, i, unreduced.addend(ctx, v, dims, _pending(ctx, s, manual)))
        ctx.bind(arg, _without(dims, manual, op), ref)
    ctx.because = outer_cause
    late = _late_sums(ctx, op)
    ctx.block([inner for inner in body.ops[:-1] if inner not in late])
    ctx.op = body.terminator
    refs = [
        asked(ctx, _operand_of_late(late, v), _without(ctx.atoms.dims(s), manual, op), f"out_shardings, result {i}")
        for i, (v, s) in enumerate(zip(body.terminator.operands, outs))
    ]
    ctx.op, ctx.manual = op, outer_manual
    for i, (r, v, ref, s) in enumerate(zip(op.results, body.terminator.operands, refs, outs)):
        ref = ctx.out_of_manual(op, i, ref)
        pending = late[v.owner] if isinstance(v.owner, Op) and v.owner in late else _pending(ctx, s, manual)
        ctx.bind_partial(r, ctx.atoms.dims(s), {pending: ref})


def _late_sums(ctx: Context, op: Op) -> dict[Op, tuple[int, ...]]:
    """The sums at the end of a computation that need not be taken there, with the atoms that they are over: where the
    body stands for one operation of the program (`sums_last`), its addends leave it like those of a contraction. Sums
    that the program wrote itself stay where they are."""
    late: dict[Op, tuple[int, ...]] = {}
    for v in op.regions[0].terminator.operands if op.data.get("sums_last") else ():
        made = v.op
        if made is None or made.name != "stablehlo.all_reduce" or len(v.uses) != 1:
            continue
        if reduction_kind(made.regions[0]) == "add" and v.type.dtype != "i1":
            ctx.op = made
            atoms = differing_atoms(ctx, members_of(ctx, made))
            if atoms is not None:
                late[made] = tuple(sorted(atoms))
    ctx.op = op
    return late


def _operand_of_late(late: Mapping[Op, tuple[int, ...]], value: Value) -> Value:
    """What is summed to make `value`, if that sum is `late`; else the value itself."""
    return value.owner.operands[0] if isinstance(value.owner, Op) and value.owner in late else value


def _pending(ctx: Context, sharding: TensorSharding, manual: Sequence[int]) -> tuple[int, ...]:
    """The manual atoms over which a value is unreduced. Over free axes values inside are reduced."""
    return tuple(a for a in unreduced.atoms_of(ctx, sharding) if a in manual)


def _without(dims: Dims, manual: Sequence[int], op: Op) -> Dims:
    """The layout inside the computation: without its manual axes, which are the major ones of each dimension."""
    out = []
    for atoms in dims:
        free = tuple(a for a in atoms if a not in manual)
        if atoms[len(atoms) - len(free) :] != free:
            raise UnsupportedShardingError("manual axes must be major to free axes in every dimension", source(op))
        out.append(free)
    return tuple(out)


# -- collectives ------------------------------------------------------------------------------------------------


def collective(ctx: Context, op: Op) -> None:
    """A collective that the program wrote itself, with groups of device numbers of the flattened mesh. Dimensions along
    which it moves nothing stay split over free axes. Raises `UnsupportedOpError` outside of manual computations."""
    if not ctx.manual:
        raise UnsupportedOpError(
            f"{op.name} outside of a manual computation; write it in one (shard_map), or let a sharding ask for it",
            source(op),
        )
    kind = by_op()[op.name]
    talking = members_of(ctx, op)
    moved = {integer(op.attrs[name]) for name in kind.dimensions}
    _check_types(op, kind, tuple(moved), talking.shape[1])
    layouts = [_kept(ctx, v, moved, talking) for v in op.operands]
    refs = [_operand(ctx, v, dims) for v, dims in zip(op.operands, layouts)]
    shapes = [ctx.piece_shape(r, dims) for r, dims in zip(op.results, layouts)]
    for r, dims, ref in zip(op.results, layouts, _written(ctx, op, refs, shapes, layouts, talking, moved)):
        ctx.bind(r, dims, ref)


def _written(
    ctx: Context, op: Op, refs: Sequence[LocalValue], shapes: Sequence[tuple[int, ...]], layouts: Sequence[Dims],
    talking: np.ndarray, moved: set[int],
) -> list[LocalValue]:  # fmt: skip
    """The collective on pieces. It may stand in a branch or loop where devices diverge: that all of its members get
    there is the program's own responsibility. Members of a permute are its senders and receivers, so it must not become
    one that waits for other devices: it is written within groups of devices that do not diverge, if they do at all."""
    if op.name == "stablehlo.collective_permute" and 0 not in refs[0].shape:
        crossed, parted = crossed_atoms(ctx, talking), ctx.region.lookup(APART)
        if not crossed:
            return [_staying(ctx, refs[0], talking)]
        if parted and parted.isdisjoint(crossed):
            return [ctx.realiser.send(ctx.region, refs[0], talking, crossed, op, CAUSE, ctx.loc)]
    known = ctx.region.known
    apart = known.get(APART)
    known[APART] = frozenset()
    outs = _on_pieces(ctx, op, refs, shapes, layouts, talking, moved)
    if apart is None:
        del known[APART]
    else:
        known[APART] = apart
    return outs


def _on_pieces(
    ctx: Context, op: Op, refs: Sequence[LocalValue], shapes: Sequence[tuple[int, ...]], layouts: Sequence[Dims],
    talking: np.ndarray, moved: set[int],
) -> list[LocalValue]:  # fmt: skip
    kind = by_op()[op.name]
    reduction = reduction_kind(op.regions[0]) if op.regions else None
    group = _group(ctx, talking)
    if kind.sums and reduction:
        outs = [all_reduce(ctx.realiser, ctx.region, x, group, reduction, op, CAUSE, ctx.loc) for x in refs]
    elif kind.reduces and kind.scatters and reduction:
        (d,) = moved
        outs = [reduce_scatter(ctx.realiser, ctx.region, x, d, group, reduction, op, CAUSE, ctx.loc) for x in refs]
    else:
        skip = ("use_global_device_ids", "channel_handle", "replica_groups", "source_target_pairs")
        attrs = ctx.attributes_of(op).without(*skip).also({kind.groups_attribute: group.lists})
        types = [(shape, r.type.dtype) for shape, r in zip(shapes, op.results)]
        regions = [ctx.copy_region(block) for block in op.regions]
        outs = ctx.region.op(op.name, refs, types, attrs, regions=regions, loc=ctx.loc)
        operand = sum(ctx.elements(v.type.shape, dims) * ctx.itemsize(v) for v, dims in zip(op.operands, layouts))
        sent = sent_bytes(kind.name, group.shape[1], operand)
        item = outs[0].item
        assert item is not None
        senders = talking[talking[:, 0] != talking[:, 1], 0] if kind.pairs else None
        crossed = crossed_atoms(ctx, talking) if kind.pairs else ()
        n = ctx.atoms.product(crossed)
        groups = (ctx.atoms.count // n, n) if crossed else group.shape
        item.collective = Collective(kind.name, group.atoms, groups, sent, op, CAUSE, senders, crossed=crossed)
    return outs


def _staying(ctx: Context, x: LocalValue, pairs: np.ndarray) -> LocalValue:
    """A permute all of whose pairs are (d, d): devices without a pair hold zeros after it."""
    stays = np.zeros(ctx.atoms.count, bool)
    stays[pairs[:, 1]] = True
    if stays.all():
        return x
    region = ctx.region
    me = ctx.realiser.coordinate(region, range(len(ctx.sizes)))
    return where(ctx.realiser, region, stays, me, x, ctx.realiser.zero(region, x.shape, x.dtype), ctx.loc)


def _operand(ctx: Context, value: Value, dims: Dims) -> LocalValue:
    have = ctx.state(value).dims
    if have is not None and any(a and a != b for a, b in zip(have, dims)):
        return ctx.gathered(value, dims, "a collective of a manual computation moves along this dimension")
    return ctx.get(value, dims)


def _check_types(op: Op, kind: CollectiveKind, moved: Sequence[int], members: int) -> None:
    """Raises `GroupsError` if the result type does not follow from the operand's with groups of `members` devices."""
    for v, r in zip(op.operands, op.results):
        before, after = v.type.shape, r.type.shape
        fits = True
        if kind.gathers:
            fits = all(m == n * (members if d in moved else 1) for d, (n, m) in enumerate(zip(before, after)))
        elif kind.scatters:
            fits = all(n == m * (members if d in moved else 1) for d, (n, m) in enumerate(zip(before, after)))
        elif kind.counts is not None:
            fits = integer(op.attrs[kind.counts]) == members
        if not fits:
            raise GroupsError(
                f"{op.name} from {v.type} to {r.type} does not fit groups of {members} devices; give it the result "
                "type, or the groups, that belong together",
                source(op),
            )


def _kept(ctx: Context, value: Value, moved: set[int], talking: np.ndarray) -> Dims:
    """The layout that an operand may keep: dimensions that the collective moves are whole, and along others all members
    of a group hold the same part."""
    have = ctx.state(value).dims
    if have is None:
        have = ctx.want(value)
    first = talking[:, :1]
    others = np.where(talking < 0, first, talking)
    out = list(replicated(len(have)))
    for d, atoms in enumerate(have):
        if atoms and d not in moved:
            place = ctx.atoms.coordinate(atoms)
            if talking.size == 0 or (place[others] == place[first]).all():
                out[d] = atoms
    return tuple(out)


def _group(ctx: Context, talking: np.ndarray) -> Group:
    """The groups of a collective as `realise` takes them, by atoms if they are the groups of some atoms."""
    count = (talking.shape[0], talking.shape[1])
    if ctx.op.name == "stablehlo.collective_permute":
        return Group(Given(ctx.op.attrs["source_target_pairs"]), None, (1, 2))
    differ = differing_atoms(ctx, talking)
    if differ is not None:
        return Group(ctx.realiser.groups(differ), differ, count)
    lists = ctx.builder.dense(("groups of the program", talking.tobytes(), count), lambda: talking)
    return Group(lists, None, count)


PARTITION = {
    "sdy.manual_computation": manual_computation,
    **dict.fromkeys(by_op(), collective),
}
