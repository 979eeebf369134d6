"""Calls of the host: one device makes them, for all.

Outside of manual computations a program has one meaning, whatever it is split over, so a Python callback, or anything
else that is placed on a single device (a *maximal* sharding, as JAX writes it for its callbacks), runs once:

    gather the operands; on replica 0: results = call(operands), elsewhere: zeros; add up the results

The operands arrive by collectives, which cannot stand in the branch of one device. The results are sums of which one
addend is not zero; they stay unreduced until somebody asks for them, so a user who wants a part gets a part.
In a manual computation every device makes the call for itself; where only some axes are manual, once for each
coordinate along these.
"""

from __future__ import annotations

from propagation.annotations import parse_shardings
from propagation.model import Mesh
from propagation.program import Op, source
from propagation.rules.custom import CALLBACKS, PARTITIONED_CALLBACKS, target_of

from ..errors import UnsupportedOpError
from ..ir.operations import attributes
from ..ir.program import LocalOp, LocalValue, Region
from ..layout import replicated
from ..layouts.context import Context
from ..reshard.words import as_word, of_word

__all__ = ["is_host_call", "on_one_device"]


def is_host_call(ctx: Context, op: Op, effect: bool) -> bool:
    """Whether a custom call is one for `on_one_device`: a Python callback, or an effect placed on one device."""
    target = target_of(op)
    if target in CALLBACKS:
        return True
    return target in PARTITIONED_CALLBACKS or (effect and _placed(ctx, op) is not None)


def on_one_device(ctx: Context, op: Op, effect: bool) -> None:
    """Writes a custom call such that it runs once outside of manual computations."""
    if target_of(op) in PARTITIONED_CALLBACKS:
        _on_pieces(ctx, op)
        return
    free = tuple(a for a in range(len(ctx.sizes)) if a not in ctx.manual)
    why = f"custom_call @{target_of(op)} runs on one device"
    operands = [ctx.gathered(v, replicated(len(v.type.shape)), why) for v in op.operands]
    if ctx.atoms.product(free) == 1:
        outs = _call(ctx, ctx.region, op, operands, effect)
        for r, ref in zip(op.results, outs):
            ctx.bind(r, replicated(len(r.type.shape)), ref)
        return
    for r, ref in zip(op.results, _guarded(ctx, op, operands, free, effect)):
        dims = replicated(len(r.type.shape))
        if r.type.is_tensor:
            kind = "or" if r.type.dtype == "i1" else "add"
            ctx.bind_partial(r, dims, {free: ref}, kind, masked=True, chosen=True)
        else:
            ctx.bind(r, dims, ref)  # a token orders what its own device does


def _guarded(ctx: Context, op: Op, operands: list[LocalValue], free: tuple[int, ...], effect: bool) -> list[LocalValue]:
    """The call in a branch of the device it is placed on, relative to the manual axes; zeros elsewhere."""
    me = ctx.realiser.coordinate(ctx.region, free)
    device = int(ctx.atoms.coordinate(free)[_replica(ctx, op)])
    here = ctx.region.shared(
        "stablehlo.compare", (me, ctx.realiser.index(ctx.region, device)), (), "i1",
        attributes("stablehlo.compare", "EQ", "SIGNED"),
        ctx.loc,
    )  # fmt: skip
    there, elsewhere = Region("branch", ctx.region), Region("branch", ctx.region)
    # Results that will be added up as words leave the branch as such: XLA copies what it converts outside of it.
    bits = [as_word(there, x, ctx.loc) for x in _call(ctx, there, op, operands, effect)]
    there.op("stablehlo.return", bits, ())
    zeros = [
        ctx.realiser.zero(elsewhere, b.shape, b.dtype) if r.type.is_tensor else _new_token(elsewhere, r.type.text)
        for r, b in zip(op.results, bits)
    ]
    elsewhere.op("stablehlo.return", zeros, ())
    results = [LocalValue(b.shape, b.dtype, b.type_text) for b in bits]
    ctx.region.add(LocalOp("stablehlo.if", [here], results, regions=(there, elsewhere), loc=ctx.loc, effect=effect))
    return [
        of_word(ctx.region, x, r.type.dtype, ctx.loc) if r.type.is_tensor else x for r, x in zip(op.results, results)
    ]


def _call(ctx: Context, region: Region, op: Op, operands: list[LocalValue], effect: bool) -> list[LocalValue]:
    results = [LocalValue(r.type.shape, r.type.dtype, None if r.type.is_tensor else r.type.text) for r in op.results]
    region.add(LocalOp(op.name, operands, results, extra=ctx.attributes_of(op), loc=ctx.loc, effect=effect))
    return results


def _new_token(region: Region, text: str) -> LocalValue:
    token = LocalValue((), "", text)
    region.add(LocalOp("stablehlo.create_token", (), [token]))
    return token


def _on_pieces(ctx: Context, op: Op) -> None:
    """A callback that asked for each device's own piece: nothing moves."""
    if op.results:
        raise UnsupportedOpError(f"custom_call @{target_of(op)} is for callbacks without results", source(op))
    operands = []
    for v in op.operands:
        have = ctx.state(v).dims
        operands.append(ctx.get(v, ctx.want(v) if have is None else have))
    _call(ctx, ctx.region, op, operands, True)


def _placed(ctx: Context, op: Op) -> Mesh | None:
    """The maximal mesh of an operation that is placed on one device. One without results says so, too."""
    attr = op.attrs.get("sdy.sharding")
    if attr is None:
        return None
    said = parse_shardings(str(attr), ctx.program.meshes, source(op))
    return next((s.mesh for s in said if s.mesh.is_maximal), None)


def _replica(ctx: Context, op: Op) -> int:
    """Where the device that an operation is placed on stands in the flattened mesh: 0 where nothing is said."""
    placed = _placed(ctx, op)
    if placed is None or not placed.device_ids:
        return 0
    (device,) = placed.device_ids
    order = ctx.atoms.mesh.device_ids
    found = device if order is None else next((i for i, d in enumerate(order) if d == device), -1)
    if not 0 <= found < ctx.atoms.count:
        raise UnsupportedOpError(
            f"custom_call @{target_of(op)} is placed on device {device} by mesh @{placed.name}, which the program's "
            f"mesh {ctx.atoms.mesh.to_text()} does not have; place it on one of its {ctx.atoms.count} devices",
            source(op),
        )
    return found
