"""What is done to a module after propagation: equal constants are merged, constraints become reshards, shardings at
the boundary are made even, and everything is closed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .cuts import evenly_sharded
from .dataflow import remove_manual
from .model import DimSharding, TensorSharding
from .program import Block, Edits, Op, Program, Value, replace_all_uses
from .purity import is_removable
from .sdy_text import AxisText, axes_in
from .shardings import Place, Shardings, map_shardings

__all__ = [
    "asked_at_boundary",
    "close_shardings",
    "constraints_to_reshards",
    "even_boundaries",
    "merge_constants",
    "note_asked",
    "remove_groups",
    "remove_unused",
    "simplify_reductions",
    "whole_axes_at_boundary",
]


def merge_constants(program: Program, shardings: Shardings) -> None:
    """Common-subexpression elimination of constants and of broadcast scalars: those in one block with equal attributes
    and shardings become one."""
    for func in program.funcs.values():
        edits = Edits()
        _merge_block(func.body, shardings, edits)
        edits.apply()


def _merge_block(block: Block, shardings: Shardings, edits: Edits) -> None:
    local: dict[tuple[Any, ...], Op] = {}
    for op in block.ops:
        for inner in op.regions:
            _merge_block(inner, shardings, edits)
        key = _constant_key(op, shardings)
        if key is None:
            continue
        first = local.setdefault(key, op)
        if first is not op:
            replace_all_uses(op.results[0], first.results[0])
            edits.erase(op)


def _constant_key(op: Op, shardings: Shardings) -> tuple[Any, ...] | None:
    name = op.name
    if name in ("sdy.constant", "stablehlo.constant"):
        operand = None
    elif name == "stablehlo.broadcast_in_dim" and not op.operands[0].type.shape:
        operand = op.operands[0]
    else:
        return None
    attrs = tuple([item for item in op.attrs.items() if not item[0].startswith("sdy.")])
    return (name, attrs, op.results[0].type, operand, shardings.get(op.results[0]))


def remove_groups(program: Program) -> None:
    if "sdy.sharding_group" not in program.names:
        return
    edits = Edits()
    for op in [op for op in program.ops() if op.name == "sdy.sharding_group"]:
        edits.erase(op)
    edits.apply()


def constraints_to_reshards(program: Program) -> None:
    if "sdy.sharding_constraint" not in program.names:
        return
    for op in program.ops():
        if op.name == "sdy.sharding_constraint":
            op.name = "sdy.reshard"
    program.names.add("sdy.reshard")


def even_boundaries(program: Program, shardings: Shardings, uneven_main: bool = False) -> None:
    """Arguments and results of functions (but the entry function's, if `uneven_main`), calls and manual computations
    are divided without remainder."""
    for func in program.funcs.values():
        if uneven_main and func is program.main:
            continue
        for value in func.args:
            _even(value, shardings)
        results = shardings.results[func]
        for i, (sharding, type) in enumerate(zip(results, func.result_types)):
            if sharding is not None and type.is_static:
                results[i] = evenly_sharded(sharding, type.shape)
    if program.names.isdisjoint(("func.call", "sdy.manual_computation")):
        return
    for op in program.ops():
        if op.name == "func.call":
            for value in op.results:
                _even(value, shardings)
        elif op.name == "sdy.manual_computation":
            _even_manual(op, shardings)


def asked_at_boundary(program: Program, shardings: Shardings) -> dict[Place, TensorSharding]:
    """What is asked for arguments and results of the entry function."""
    main = program.main
    found: dict[Place, TensorSharding]
    found = {v: s for v in main.args if (s := shardings.get(v)) is not None}
    found.update(((main, i), s) for i, s in enumerate(shardings.results[main]) if s is not None)
    return found | shardings.asked


def note_asked(program: Program, shardings: Shardings, asked: Mapping[Place, TensorSharding]) -> None:
    """Keeps what was asked for arguments and results of the entry function where they have something else now, for
    those who read what is written: it was cut, was open, or nothing was said."""
    main = program.main
    places: list[tuple[Place, TensorSharding | None]] = [(v, shardings.get(v)) for v in main.args]
    places += [((main, i), s) for i, s in enumerate(shardings.results[main])]
    shardings.asked = {}
    for place, now in places:
        if now is not None:
            said = asked.get(place) or TensorSharding.open_on(now.mesh, now.rank)
            if said != now:
                shardings.asked[place] = said


def _even(value: Value, shardings: Shardings) -> None:
    sharding = shardings.get(value)
    if sharding is not None and value.type.is_static:
        shardings.set(value, evenly_sharded(sharding, value.type.shape))


def _even_manual(op: Op, shardings: Shardings) -> None:
    # The part that a manual axis splits is exact by definition; only the free axes behind it can be uneven. They
    # divide the body's local shape exactly if the whole list divides the global one.
    ins = op.data["in_shardings"]
    for i, value in enumerate(op.operands):
        if ins[i] is not None and value.type.is_static:
            ins[i] = evenly_sharded(ins[i], value.type.shape)
    for value in op.results:
        _even(value, shardings)
    for arg, outer in zip(op.regions[0].args, ins):
        shardings.set(arg, remove_manual(outer, op.data["manual_axes"]))


def whole_axes_at_boundary(program: Program, shardings: Shardings, closed_too: bool = False) -> None:
    """Cuts open dimensions (all, if `closed_too`) of the entry function's arguments and results at their first
    sub-axis."""
    func = program.main
    for value in func.args:
        sharding = shardings.get(value)
        if sharding is not None:
            shardings.set(value, _without_sub_axes(sharding, closed_too))
    shardings.results[func] = [s and _without_sub_axes(s, closed_too) for s in shardings.results[func]]


def _without_sub_axes(sharding: TensorSharding, closed_too: bool) -> TensorSharding:
    dims = []
    for dim in sharding.dims:
        full = [a.is_full(sharding.mesh) for a in dim.axes]
        if (dim.is_open or closed_too) and not all(full):
            dim = DimSharding(dim.axes[: full.index(False)], dim.is_open, dim.priority)
        dims.append(dim)
    return sharding.with_dims(dims)


def close_shardings(program: Program, shardings: Shardings) -> None:
    """Closes every dimension; explicitly replicated axes are dropped, unreduced ones kept."""
    map_shardings(program, shardings, TensorSharding.closed)


def remove_unused(program: Program) -> None:
    """Removes operations without effect whose results nothing uses."""
    for func in program.funcs.values():
        edits = Edits()
        erased: set[Op] = set()
        for op in reversed(func.body.walk_inside_out()):
            if op.results and is_removable(op) and all(u.op in erased for v in op.results for u in v.uses):
                edits.erase(op)
                erased.update(op.walk())
        edits.apply()


def simplify_reductions(program: Program, shardings: Shardings) -> None:
    """Drops all-reduces that undo the operation before them: `all_reduce(replicated_to_unreduced(x))` is `x`, and
    `all_reduce(sharded_to_unreduced(x))` is an all-gather of `x`."""
    if "sdy.all_reduce" not in program.names:
        return
    edits = Edits()
    for op in program.ops():
        before = op.operands[0].op if op.name == "sdy.all_reduce" else None
        if before is None or not before.name.endswith("_to_unreduced") or _axes_of(before) != _axes_of(op):
            continue
        if before.name == "sdy.replicated_to_unreduced":
            replace_all_uses(op.results[0], before.operands[0])
        else:
            attrs = {"gathering_axes": before.attrs["axes"]}
            gather = program.new_op("sdy.all_gather", before.operands, [op.results[0].type], attrs, (), op)
            shardings.set(gather.results[0], shardings.get(op.results[0]))
            edits.before(op, gather)
            replace_all_uses(op.results[0], gather.results[0])
        edits.erase(op)
    edits.apply()


def _axes_of(op: Op) -> frozenset[AxisText]:
    """The axes that an operation makes unreduced or sums over, whichever dimension they come from."""
    return frozenset(axes_in(str(op.attrs["axes" if "axes" in op.attrs else "reduction_axes"])))
