"""The primitive `shard_map`: a program per device along the manual axes of a mesh.

    shard_map[jaxpr region in_specs out_specs] arguments...  ->  results...

`jaxpr` sees one shard of each argument, of the type `region.local(in_spec, type)`, and its results are put together by
`out_specs`. All transformations work on the Jaxpr inside: their rules run in the context of the region
(`region.enter()`), so that what they trace knows its axes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.axes import laid_along, manual_mesh
from meshrt.core.basic.parts import batch_front, cotangent_of, in_front
from meshrt.core.basic.shapes import move_dim, reshape_p
from meshrt.core.basic.sums import vary_unreduced_p
from meshrt.core.basic.varying import in_order, vary
from meshrt.core.explicit import reduced_of, unreduced_of
from meshrt.core.jaxpr import Atom, ClosedJaxpr, Eqn, Jaxpr, Literal, Var
from meshrt.core.lojax import arrays_of, open_jaxpr
from meshrt.core.primitive import Primitive, is_undefined
from meshrt.core.source import UNKNOWN
from meshrt.core.trace import Tracer, eval_jaxpr, trace_to_jaxpr
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.lowering.types import mlir_type
from meshrt.primitives.collective import psum
from meshrt.primitives.elementwise import div
from meshrt.primitives.reshard import move
from meshrt.primitives.shard_map_high import (
    WholeSpec,
    content_spec,
    duals,
    lo_specs,
    moved,
    tangents,
    whole,
    with_batch,
)
from meshrt.primitives.shard_map_region import Region
from meshrt.primitives.sharding import sharding_constraint_p
from meshrt.sharding.common import axes_over
from meshrt.sharding.mesh import AbstractMesh, AxisType
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import PartitionSpec, axes_of
from meshrt.sharding.typed import entries_of, type_sharding
from meshrt.transforms.batching import MappedAxis, batch_jaxpr, names_in
from meshrt.transforms.discharge import Cell, discharged
from meshrt.transforms.jvp import jvp_jaxpr
from meshrt.transforms.linear import LinearTrace, transpose_jaxpr
from meshrt.transforms.linearize import linearize_jaxpr, opened_residuals
from meshrt.transforms.ordering import thread_call
from meshrt.transforms.recompute import Policy, Split, inlined, split
from meshrt.transforms.tools import WeakCache, dce, hoist_consts
from propagation.quoting import quote

# Nothing for `meshrt.lax`.
__all__: list[str] = []

Specs = tuple[Any, ...]  # a PartitionSpec for an array, a WholeSpec for a value of a high type
_WHOLE = PartitionSpec()


def _infer(*avals: ShapedArray, jaxpr: Jaxpr, region: Region, in_specs: Specs, out_specs: Specs) -> list[ShapedArray]:
    return [whole(region, s, a) for s, a in zip(out_specs, jaxpr.out_avals, strict=True)]


def spread(x: Any, spec: Any) -> Any:
    """A result that is the same on all devices as each one's own, where devices' results are put together, and one that
    varies as an addend where they are added up.
    """
    if type(spec) is WholeSpec:
        return moved(x, spec, spread)
    addends = in_order(aval_of(x).vma & spec.unreduced)
    if addends:
        x = vary_unreduced_p.bind(x, axes=addends, mesh=manual_mesh())
    return vary(x, in_order(set(spec.axes) - aval_of(x).vma)) if spec.axes else x


# ---------------------------------------------------------------------------------------------------------------------
# Lowering


def _lower(ctx: LoweringContext, eqn: Eqn, *operands: Any) -> Sequence[Any]:
    """`sdy.manual_computation`; the body alone where all manual axes are of size 1."""
    jaxpr, region = eqn.params["jaxpr"], eqn.params["region"]
    if region.size == 1:
        return LoweringContext(ctx.module, ctx.body, ctx.loc, region.inside).jaxpr(jaxpr, operands)
    mesh = ctx.module.mesh
    if mesh is None:
        raise errors.MeshContextError(
            f"shard_map at {eqn.source} is over {region.mesh}, but the program runs on one device, as nothing names "
            "others: pass an array placed on a mesh (meshrt.device_put), give shard_map a Mesh, or enter one with "
            "`with meshrt.set_mesh(mesh):`"
        )
    body = ctx.body.body([mlir_type(v.aval) for v in jaxpr.invars])
    body.ret(LoweringContext(ctx.module, body, ctx.loc, region.inside).jaxpr(jaxpr, body.args), "sdy.return", ctx.loc)
    names = region.manual_axes if mesh is region.outside else axes_over(region.manual_axes, region.outside, mesh)
    attrs = (
        f"in_shardings = {_per_value(ctx, region, eqn.params['in_specs'], eqn.invars)}, "
        f"manual_axes = #sdy<manual_axes{{{', '.join(quote(str(a)) for a in names)}}}>, "
        f"out_shardings = {_per_value(ctx, region, eqn.params['out_specs'], eqn.outvars)}"
    )
    return ctx.ops("sdy.manual_computation", operands, [v.aval for v in eqn.outvars], attrs, [body])


def _per_value(ctx: LoweringContext, region: Region, specs: Specs, values: Sequence[Var | Literal]) -> str:
    """`#sdy.sharding_per_value<[<@mesh, [{"x"}, {}]>, ...]>`, of open dimensions where some axes stay free inside."""
    texts = [
        ctx.module.sharding_text(_over(region.outside, s), v.aval.physical().ndim, is_open=not region.is_full)
        for s, v in zip(specs, values)
    ]
    return f"#sdy.sharding_per_value<[{', '.join(t.removeprefix('#sdy.sharding') for t in texts)}]>"


def _over(mesh: AbstractMesh, spec: PartitionSpec) -> NamedSharding:
    """For the text, which says nothing of axis types: residuals may be partial sums, or copies, over Auto axes too."""
    sums = spec.unreduced | spec.reduced
    return NamedSharding(mesh.update_axis_types(dict.fromkeys(sums, AxisType.Explicit)) if sums else mesh, spec)


# ---------------------------------------------------------------------------------------------------------------------
# Differentiation


def _bind(jaxpr: Jaxpr, consts: Sequence[Any], operands: Sequence[Any], region: Region, ins: Specs, outs: Specs) -> Any:
    """An application of a Jaxpr derived from a body. What it captured comes first, and is whole inside."""
    specs = (*[_WHOLE] * len(consts), *ins)
    return shard_map_p.bind(*consts, *operands, jaxpr=jaxpr, region=region, in_specs=specs, out_specs=outs)


def _tangents(specs: Specs, kinds: Sequence[Any], flags: Sequence[bool]) -> tuple[Any, ...]:
    """The specs of those tangents that are flagged."""
    return tangents(_where(specs, flags), _where(kinds, flags))


def _where(values: Sequence[Any], flags: Sequence[bool]) -> tuple[Any, ...]:
    return tuple(v for v, f in zip(values, flags) if f)


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, jaxpr: Jaxpr, region: Region, in_specs: Specs, out_specs: Specs
) -> tuple[list[Any], list[Any]]:
    nonzeros = tuple(t is not None for t in tangents)
    with region.enter():
        closed, flags = jvp_jaxpr(jaxpr, nonzeros)
    operands = [*primals, *[t for t in tangents if t is not None]]
    ins = *in_specs, *_tangents(in_specs, jaxpr.in_avals, nonzeros)
    specs = *out_specs, *_tangents(out_specs, jaxpr.out_avals, flags)
    outs = _bind(closed.jaxpr, closed.consts, operands, region, ins, specs)
    n = len(out_specs)
    found = iter(outs[n:])
    return outs[:n], [next(found) if nz else None for nz in flags]


def _spare(jaxpr: Jaxpr, *specs: Specs) -> frozenset[Any]:
    """The axes of a region that an enclosing `vmap(spmd_axis_name=...)` is going to take, to lay its dimension along
    them (see `_batch`). Along them all devices do the same: they are nothing that residuals are to be kept apart along,
    or cotangents summed over.
    """
    axes = laid_along()
    return axes.difference(names_in(jaxpr), *(s.axes for some in specs for s in some)) if axes else axes


_derived: WeakCache = WeakCache()


def _linearize(linear: LinearTrace, primals: Sequence[Any], tangents: Sequence[Any], params: dict[str, Any]) -> Any:
    """Residuals leave the forward body split over all axes that they vary over, and come back to the linear body."""
    jaxpr, region, in_specs, out_specs = (params[k] for k in ("jaxpr", "region", "in_specs", "out_specs"))
    nonzeros = tuple(t is not None for t in tangents)
    with region.enter():
        done = opened_residuals(linearize_jaxpr(jaxpr, nonzeros))
    n, is_new = len(out_specs), [kind == "res" for kind, _ in done.sources]
    body, spare = done.forward.jaxpr, _spare(jaxpr, in_specs, out_specs)
    specs = tuple(region.spread(v.aval, spare) for v in body.outvars[n:])
    body = _derived.get(body, n, lambda: leaving(body, n))
    outs = _bind(body, done.forward.consts, primals, region, in_specs, (*out_specs, *specs))
    outs, new = outs[:n], outs[n:]
    if not any(done.nonzeros_out):
        return outs, [None] * n
    residuals = done.residuals(primals, outs, new)
    pools = {"arg": in_specs, "out": out_specs, "res": specs}
    params = {
        "jaxpr": _derived.get(done.linear, "returning", lambda: returning(done.linear, is_new)),
        "region": region,
        "in_specs": (*[pools[kind][k] for kind, k in done.sources], *_tangents(in_specs, jaxpr.in_avals, nonzeros)),
        "out_specs": _tangents(out_specs, jaxpr.out_avals, done.nonzeros_out),
    }
    moved = iter(linear.record(shard_map_p, [*residuals, *[t for t in tangents if t is not None]], params))
    return outs, [next(moved) if nz else None for nz in done.nonzeros_out]


def leaving(jaxpr: Jaxpr, first: int) -> Jaxpr:
    """`jaxpr` whose results from `first` on have at least one dimension, to be split over the mesh."""
    eqns, outs = list(jaxpr.eqns), list(jaxpr.outvars)
    for i, atom in enumerate(outs):
        if i >= first and not atom.aval.shape:
            row = outs[i] = Var(atom.aval.with_shape((1,)))
            eqns.append(Eqn(reshape_p, [atom], [row], {"new_sizes": (1,)}, UNKNOWN))
    return Jaxpr(jaxpr.constvars, jaxpr.invars, outs, eqns, jaxpr.effects, is_high=jaxpr.is_high, name=jaxpr.name)


def returning(jaxpr: Jaxpr, flags: Sequence[bool]) -> Jaxpr:
    """`jaxpr` that takes the leading arguments flagged in `flags` as `leaving` gave them."""
    eqns, ins = [], list(jaxpr.invars)
    for i, flag in enumerate(flags):
        inner = ins[i]
        if flag and not inner.aval.shape:
            ins[i] = Var(inner.aval.with_shape((1,)))
            eqns.append(Eqn(reshape_p, [ins[i]], [inner], {"new_sizes": ()}, UNKNOWN))
    return Jaxpr(
        jaxpr.constvars, ins, jaxpr.outvars, [*eqns, *jaxpr.eqns], jaxpr.effects, is_high=jaxpr.is_high, name=jaxpr.name
    )


def _transpose(
    cts: Sequence[Any], *args: Any, jaxpr: Jaxpr, region: Region, in_specs: Specs, out_specs: Specs
) -> list[Any]:
    """Cotangents of results enter with the specs of the results, those of arguments leave with theirs.

    Where types say what varies, the sum over devices of the cotangent of a value that is the same on all is the
    transpose of its `pvary`. Where they do not (`check_vma=False`), a result that is the same on several devices
    gives each of them its part of the cotangent, and the cotangents of an argument that several devices took are added.
    """
    linear = tuple(is_undefined(a) for a in args)
    nonzeros = tuple(c is not None for c in cts)
    with region.enter():
        if region.check_vma:
            back, flags = transpose_jaxpr(jaxpr, linear, nonzeros)
            back = _derived.get(back.jaxpr, "types", lambda: _typed(back, jaxpr, linear, flags))
        else:
            spare = _spare(jaxpr, in_specs, out_specs)
            shared = tuple(tuple(region.unmentioned(s, spare) for s in specs) for specs in (in_specs, out_specs))
            key = ("unchecked", linear, nonzeros, shared)
            make = lambda: _unchecked_transpose(jaxpr, linear, nonzeros, region, *shared)
            back, flags = _derived.get(jaxpr, key, make)
    known = [a for a in args if not is_undefined(a)]
    specs = _where(in_specs, [not lin for lin in linear]), duals(_where(out_specs, nonzeros))
    operands = [*known, *[c for c in cts if c is not None]]
    outs = duals(_where(_where(in_specs, linear), flags))
    pulled = iter(_bind(back.jaxpr, back.consts, operands, region, (*specs[0], *specs[1]), outs))
    found = iter(flags)
    return [(next(pulled) if next(found) else None) if lin else None for lin in linear]


def _typed(back: ClosedJaxpr, jaxpr: Jaxpr, linear: Sequence[bool], flags: Sequence[bool]) -> ClosedJaxpr:
    """The transposed body whose cotangents vary over the axes that their arguments vary over, and are unreduced over
    those that these are reduced over.
    """
    wanted = _where([a for a, lin in zip(jaxpr.in_avals, linear) if lin], flags)
    have = back.jaxpr.out_avals
    same = lambda w, h: not w.is_high and w.vma == h.vma and reduced_of(w) == unreduced_of(h)
    if all(map(same, wanted, have)):
        return back
    flat = lambda *xs: [cotangent_of(x, w) for x, w in zip(eval_jaxpr(back.jaxpr, (), xs), wanted)]
    made = hoist_consts(trace_to_jaxpr(flat, back.jaxpr.in_avals, back.jaxpr.name, requires_low=False))
    return type(made)(made.jaxpr, [*made.consts, *back.consts])


def _unchecked_transpose(
    jaxpr: Jaxpr, linear: tuple[bool, ...], nonzeros: tuple[bool, ...], region: Region,
    shared_in: Sequence[tuple[str, ...]], shared_out: Sequence[tuple[str, ...]],
) -> tuple[ClosedJaxpr, tuple[bool, ...]]:  # fmt: skip
    back, flags = transpose_jaxpr(jaxpr, linear, nonzeros)
    shares = [math.prod(region.mesh._sizes[a] for a in axes) for axes in _where(shared_out, nonzeros)]
    sums = _where([axes for axes, lin in zip(shared_in, linear) if lin], flags)
    known = len(back.jaxpr.invars) - len(shares)

    def flat(*xs: Any) -> list[Any]:
        cts = [x if n == 1 else div(x, np.asarray(n, aval_of(x).dtype)[()]) for x, n in zip(xs[known:], shares)]
        outs = eval_jaxpr(back.jaxpr, (), [*xs[:known], *cts])
        return [psum(o, axes) if axes else o for o, axes in zip(outs, sums)]

    made = hoist_consts(trace_to_jaxpr(flat, back.jaxpr.in_avals, jaxpr.name, requires_low=False))
    return type(made)(made.jaxpr, [*made.consts, *back.consts]), flags


# ---------------------------------------------------------------------------------------------------------------------
# Batching


def _batch(axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    """The mapped dimension comes first, whole on every device as far as the region goes.

    With `vmap(spmd_axis_name=...)` axes that the body does not name are no longer Manual, and the dimension is laid
    along them. An axis that collectives in the body name stays Manual: each member of the batch has all its devices.
    """
    jaxpr, region, in_specs, out_specs = (params[k] for k in ("jaxpr", "region", "in_specs", "out_specs"))
    arrays = [(x, d) for x, d in zip(args, dims) if d is not None and not aval_of(x).is_high]
    mapped = {a for x, d in arrays for a in axes_of(entries_of(aval_of(x))[d])}
    for what, specs in (("in_specs", in_specs), ("out_specs", out_specs)):
        _check_along(axis.mesh_axes, "vmap spmd_axis_name", specs, what)
        _check_along(mapped, "vmapped away explicit mesh axis", specs, what)
    flags = tuple(d is not None for d in dims)
    operands = [x if d is None else _in_front(axis, x, d) for x, d in zip(args, dims)]
    named = names_in(jaxpr)
    along = tuple(a for a in axis.mesh_axes if a in region.manual_axes and a not in named)
    if along:
        region = region._replace(manual_axes=tuple(a for a in region.manual_axes if a not in along))
        operands = [_laid(x, along, region) if f else x for x, f in zip(operands, flags)]
    with region.enter():
        closed, out_flags = batch_jaxpr(jaxpr, axis.hidden_by(region.manual_axes), flags)
    ins = tuple(with_batch(s) if f else s for s, f in zip(in_specs, flags))
    outs = tuple(with_batch(s) if f else s for s, f in zip(out_specs, out_flags))
    results = _bind(closed.jaxpr, closed.consts, operands, region, ins, outs)
    if along:
        results = [_laid(x, along, region) if f else x for x, f in zip(results, out_flags)]
    return results, [batch_front(aval_of(x)) if f else None for x, f in zip(results, out_flags)]


def _in_front(axis: MappedAxis, x: Any, dim: Any) -> Any:
    return in_front(axis.extent, x, dim) if aval_of(x).is_high else move_dim(x, dim, 0)


def _laid(x: Any, along: tuple[str, ...], region: Region) -> Any:
    """`x` with its first dimension laid along mesh axes: along Explicit ones its type says so, along Auto ones a
    constraint. Of a high value it is laid as propagation has it, of what lies on no mesh yet as the region takes it."""
    mesh, aval = region.outside, aval_of(x)
    if aval.is_high:
        return x
    typed, open_ = (tuple(a for a in along if mesh._types[a] is t) for t in (AxisType.Explicit, AxisType.Auto))
    if typed and (isinstance(x, Tracer) or isinstance(getattr(x, "sharding", None), NamedSharding)):
        wanted = type_sharding(mesh, (typed, *entries_of(aval)[1:]), unreduced_of(aval), reduced_of(aval))
        if wanted is not None and wanted is not aval.explicit:
            x = move(x, wanted, wanted, "vmap(spmd_axis_name=...)")
    if not open_:
        return x
    spec = PartitionSpec(open_, *[PartitionSpec.UNCONSTRAINED] * (aval.ndim - 1))
    return sharding_constraint_p.bind(x, sharding=NamedSharding(mesh, spec), derived=True)


def _check_along(along: Collection[Any], called: str, specs: Specs, what: str) -> None:
    for s in specs:
        twice = [a for a in along if a in s.axes or a in s.unreduced or a in s.reduced]
        if twice:
            raise errors.ShardingError(
                f"{called} cannot appear in shard_map {what}: the mapped dimension is split over "
                f"{', '.join(map(repr, along))}, and the spec {s} names {', '.join(map(repr, twice))} too"
                "; split one of them over another axis, or leave the mapped dimension whole"
            )


# ---------------------------------------------------------------------------------------------------------------------
# Dead code


def _dce(eqn: Eqn, used: Sequence[bool]) -> Eqn:
    jaxpr, used = eqn.params["jaxpr"], tuple(used)
    body, needed = _derived.get(jaxpr, ("dce", used), lambda: dce(jaxpr, used, keep_inputs=False))
    if all(used) and all(needed) and len(body.eqns) == len(jaxpr.eqns):
        if all(a is b for a, b in zip(body.eqns, jaxpr.eqns)):
            return eqn
    params = {
        **eqn.params, "jaxpr": body, "in_specs": _where(eqn.params["in_specs"], needed),
        "out_specs": _where(eqn.params["out_specs"], used),
    }  # fmt: skip
    return eqn.replace(_where(eqn.invars, needed), _where(eqn.outvars, used), params)


# ---------------------------------------------------------------------------------------------------------------------
# References


def _discharge(args: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """What a device writes to its part of what a reference holds leaves the region as it came in."""
    jaxpr, region, ins, outs = (params[k] for k in ("jaxpr", "region", "in_specs", "out_specs"))
    with region.enter():
        made = discharged(jaxpr, tuple([type(a) is Cell for a in args]))
    operands = [a.value if type(a) is Cell else a for a in args]
    specs = (*outs, *[ins[i] for i in made.written])
    results = _bind(made.jaxpr, made.closed.consts, operands, region, ins, specs)
    for i, value in zip(made.written, results[len(outs) :]):
        args[i].value = value
    return list(results[: len(outs)])


# ---------------------------------------------------------------------------------------------------------------------
# Checkpointing


def _recompute(eqn: Eqn, wanted: Sequence[bool], policy: Policy) -> Split | None:
    """Values that `policy` saves in the body leave the region as residuals do; a second one takes them."""
    region, ins, outs = (eqn.params[k] for k in ("region", "in_specs", "out_specs"))
    body = inlined(eqn.params["jaxpr"])
    results = _where(body.outvars, wanted)
    part = split(body, results, policy)
    if not part.saved:
        return None
    n, m = len(body.outvars), len(body.invars)
    spare = _spare(body, ins, outs)
    specs = tuple(region.spread(v.aval, spare) for v in part.saved)
    forward = leaving(Jaxpr((), body.invars, (*body.outvars, *part.saved), part.forward, name=body.name), n)
    again = Jaxpr((), (*body.invars, *part.saved), results, part.again, name=body.name)
    again, needed = dce(returning(again, [i >= m for i in range(m + len(specs))]), keep_inputs=False)
    saved = [Var(region.whole(s, v.aval)) for s, v in zip(specs, forward.outvars[n:])]
    first = eqn.replace(
        eqn.invars, [*eqn.outvars, *saved], {**eqn.params, "jaxpr": forward, "out_specs": (*outs, *specs)}
    )
    params = {
        "jaxpr": again, "region": region, "in_specs": _where((*ins, *specs), needed), "out_specs": _where(outs, wanted)
    }  # fmt: skip
    second = eqn.replace(_where((*eqn.invars, *saved), needed), _where(eqn.outvars, wanted), params)
    return Split([first], saved, [second])


def _thread(eqn: Eqn, token: Atom, threaded: Callable[[Jaxpr], Jaxpr]) -> tuple[list[Eqn], Atom]:
    """The token is the same on all devices."""
    specs = {k: (_WHOLE, *eqn.params[k]) for k in ("in_specs", "out_specs")}
    return thread_call(eqn, token, threaded, **specs)


def _varies(params: dict[str, Any]) -> list[frozenset[Any]]:
    """Over axes of enclosing regions an operand varies as the argument does."""
    return [a.vma.difference(params["region"].manual_axes) for a in params["jaxpr"].in_avals]


# ---------------------------------------------------------------------------------------------------------------------
# High types inside


def _opened(every: bool) -> Callable[..., Any]:
    """The lowering where high types stand in the body. Contents of mutable values are whole on every device."""

    def lowered(*args: Any, jaxpr: Jaxpr, region: Region, in_specs: Specs, out_specs: Specs) -> list[Any]:
        with region.enter():
            opened = open_jaxpr(jaxpr, every)
        for final in opened.finals:
            differing = frozenset[str]().union(*[a.vma for a in final.lo_ty()]) & set(region.manual_axes)
            if differing:
                raise errors.ReplicationError(
                    "a mutable value from outside of a shard_map is set to one that differs between devices along "
                    f"{', '.join(map(repr, in_order(differing)))}: {final.short()}. Make it the same on all, "
                    "with meshrt.lax.psum or pmean, or return it from the function"
                )
        ins = tuple(lo_specs(in_specs, opened.ins, jaxpr.in_avals))
        outs = lo_specs(out_specs, opened.outs, opened.out_avals)
        outs += [content_spec(t, _WHOLE) for t in opened.final_types()]
        flat = arrays_of(args, every)
        found = _bind(opened.closed.jaxpr, opened.closed.consts, flat, region, ins, tuple(outs))
        return opened.finish(args, found, [whole(region, s, a) for s, a in zip(out_specs, opened.out_avals)])

    return lowered


shard_map_p: Primitive = Primitive(
    "shard_map", _infer, lower=_lower, jvp=_jvp, linearize=_linearize, transpose=_transpose, batch=_batch,
    batch_axis=True, dce=_dce, recompute=_recompute, discharge=_discharge,
    effects=lambda *avals, jaxpr, **_: jaxpr.effects,
    thread=_thread, multiple_results=True, cache_types=False, varies=_varies,
    place=lambda params: ("shard_map", params["region"].mesh),
    applies=lambda params: [(params["jaxpr"], range(len(params["jaxpr"].invars)))],
    to_lojax=_opened(True), unbox=_opened(False),
)  # fmt: skip
