"""A part of a program in which mesh axes have other types: the primitive behind `auto_axes` and `explicit_axes`.

    mesh_region[jaxpr={..} inside=(x Auto) around=(x Explicit) outs=(P("x", None),)]  a:f32[8@x,4]  ->  f32[8@x,4]

`jaxpr` was traced for the mesh `inside`; types out here are over `around`. `outs` has for each result its sharding,
with one entry per dimension, or None for values that only another region uses (residuals): nothing is said of these but
what propagation finds, so their types are open. The rules are those of a call (`meshrt.primitives.call`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshrt.core.basic.reshard import reshard_p
from meshrt.core.basic.shapes import move_dim
from meshrt.core.completion import Completion
from meshrt.core.jaxpr import Eqn, Jaxpr
from meshrt.core.primitive import Primitive, is_undefined
from meshrt.core.types import ShapedArray, aval_of, present
from meshrt.lowering.context import LoweringContext
from meshrt.sharding.context import get_abstract_mesh, tracing_mesh
from meshrt.sharding.mesh import AbstractMesh, AxisType
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import UNCONSTRAINED, PartitionSpec
from meshrt.sharding.typed import on, sharding_of
from meshrt.transforms.batching import MappedAxis, batch_jaxpr
from meshrt.transforms.jvp import jvp_jaxpr
from meshrt.transforms.linear import LinearTrace, transpose_jaxpr
from meshrt.transforms.linearize import linearize_jaxpr
from meshrt.transforms.tools import WeakCache, dce

__all__: list[str] = []


def entered(aval: Any, inside: AbstractMesh) -> Any:
    """The type of a value of outside within a region, once `added_up`: axes that are not Explicit there are gone."""
    if aval.explicit is None:
        return aval
    spec = _summed(aval.explicit.spec, inside)
    entries = [None if e is UNCONSTRAINED else e for e in spec.partitions]
    return aval.update(sharding=on(NamedSharding(inside, spec.update(partitions=entries)), aval.ndim))


def added_up(x: Any, inside: AbstractMesh) -> Any:
    """A value as it enters a region: partial sums over axes that are Auto there are added up before, and of copies over
    them nothing is said."""
    own = aval_of(x).explicit
    if own is None:
        return x
    spec = _summed(own.spec, inside)
    return x if spec is own.spec else reshard_p.bind(x, sharding=own.update(spec=spec))


def _summed(spec: PartitionSpec, inside: AbstractMesh) -> PartitionSpec:
    """`spec` without partial sums over axes that are Auto in a region, and without copies."""
    kept = lambda axes: frozenset(a for a in axes if inside._types.get(a) is not AxisType.Auto)
    unreduced, reduced = kept(spec.unreduced), kept(spec.reduced)
    if unreduced == spec.unreduced and reduced == spec.reduced:
        return spec
    return spec.update(unreduced=unreduced, reduced=reduced)


def opened_type(aval: ShapedArray, mesh: AbstractMesh) -> ShapedArray:
    """The type of a value that was made where axes have the types of `mesh`: of Auto ones nothing is said."""
    if AxisType.Auto not in mesh.axis_types:
        return aval
    entries = (None,) * aval.ndim if aval.explicit is None else aval.explicit.spec.partitions
    spec = PartitionSpec(*[UNCONSTRAINED if e is None else e for e in entries])
    return aval.update(sharding=present(NamedSharding(mesh, spec)))


def _captured(aval: Any) -> Any:
    """The type that a value of outside has in the program that is being traced, where axes may have other types."""
    mesh, own = get_abstract_mesh(), aval.explicit
    if mesh.empty or own.mesh is mesh or own.mesh.shape_tuple != mesh.shape_tuple:
        return aval
    return aval if UNCONSTRAINED in own.spec.partitions else entered(aval, mesh)


Completion.captured = staticmethod(_captured)


def _infer(
    *avals: ShapedArray, jaxpr: Jaxpr, name: str, inside: AbstractMesh, around: AbstractMesh, outs: Sequence[Any]
) -> list[Any]:
    return [
        opened_type(a, inside) if s is None else a.update(sharding=present(s)) for a, s in zip(jaxpr.out_avals, outs)
    ]


def _lower(ctx: LoweringContext, eqn: Eqn, *operands: Any) -> Any:
    inner = LoweringContext(ctx.module, ctx.body, ctx.loc, eqn.params["inside"])
    return inner.jaxpr(eqn.params["jaxpr"], operands)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Any, Any]:
    jaxpr, outs = params["jaxpr"], params["outs"]
    with tracing_mesh(params["inside"]):
        closed, nonzeros = jvp_jaxpr(jaxpr, tuple(t is not None for t in tangents))
    found = region_p.bind(
        *closed.consts, *primals, *[t for t in tangents if t is not None],
        **{**params, "jaxpr": closed.jaxpr, "outs": (*outs, *[s for s, nz in zip(outs, nonzeros) if nz])},
    )  # fmt: skip
    rest = iter(found[len(outs) :])
    return found[: len(outs)], [next(rest) if nz else None for nz in nonzeros]


def _linearize(linear: LinearTrace, primals: Sequence[Any], tangents: Sequence[Any], params: dict[str, Any]) -> Any:
    outs = params["outs"]
    with tracing_mesh(params["inside"]):
        done = linearize_jaxpr(params["jaxpr"], tuple(t is not None for t in tangents))
    forward = {**params, "jaxpr": done.forward.jaxpr, "outs": (*outs, *[None] * done.num_residuals)}
    results = region_p.bind(*done.forward.consts, *primals, **forward)
    values, new = results[: len(outs)], results[len(outs) :]
    if not any(done.nonzeros_out):
        return values, [None] * len(outs)
    residuals = done.residuals(primals, values, new)
    kept = tuple(s for s, nz in zip(outs, done.nonzeros_out) if nz)
    moved = linear.record(
        region_p, [*residuals, *[t for t in tangents if t is not None]], {**params, "jaxpr": done.linear, "outs": kept}
    )
    rest = iter(moved)
    return values, [next(rest) if nz else None for nz in done.nonzeros_out]


def _transpose(cts: Sequence[Any], *args: Any, **params: Any) -> list[Any]:
    linear = tuple(is_undefined(a) for a in args)
    with tracing_mesh(params["inside"]):
        back, nonzeros = transpose_jaxpr(params["jaxpr"], linear, tuple(c is not None for c in cts))
    known = [a for a in args if not is_undefined(a)]
    wanted = [_dual(a.aval, params["around"]) for a in args if is_undefined(a)]
    pulled = iter(
        region_p.bind(
            *back.consts, *known, *[c for c in cts if c is not None],
            **{**params, "jaxpr": back.jaxpr, "outs": tuple(s for s, nz in zip(wanted, nonzeros) if nz)},
        )
    )  # fmt: skip
    flags = iter(nonzeros)
    return [(next(pulled) if next(flags) else None) if lin else None for lin in linear]


def _dual(aval: Any, around: AbstractMesh) -> Any:
    """The sharding of the cotangents of values of a type, None where it is open."""
    sharding = sharding_of(aval, around)
    spec = sharding.spec
    if UNCONSTRAINED in spec.partitions:
        return None
    return sharding.update(spec=spec.update(unreduced=spec.reduced, reduced=spec.unreduced))


def _batch(axis: MappedAxis, args: list[Any], dims: list[int | None], params: dict[str, Any]) -> tuple[Any, Any]:
    moved = [a if d is None else move_dim(a, d, 0) for a, d in zip(args, dims)]
    inside, along = params["inside"], axis.along
    within = along if along is None else on(NamedSharding(inside, along.spec), 1)
    with tracing_mesh(inside):
        closed, flags = batch_jaxpr(params["jaxpr"], axis._replace(along=within), tuple(d is not None for d in dims))
    entry = None if along is None else along.spec.partitions[0]
    outs = tuple(s if s is None or not f else _led(s, entry) for s, f in zip(params["outs"], flags))
    found = region_p.bind(*closed.consts, *moved, **{**params, "jaxpr": closed.jaxpr, "outs": outs})
    return found, [0 if f else None for f in flags]


def _led(sharding: Any, entry: Any) -> Any:
    """The sharding of a batch of values."""
    spec = sharding.spec
    return sharding.update(spec=spec.update(partitions=(entry, *spec.partitions)))


_dce_cache = WeakCache()


def _dce(eqn: Eqn, used: Sequence[bool]) -> Eqn:
    jaxpr, used = eqn.params["jaxpr"], tuple(used)
    body, needed = _dce_cache.get(jaxpr, used, lambda: dce(jaxpr, used, keep_inputs=False))
    if all(used) and all(needed) and len(body.eqns) == len(jaxpr.eqns):
        if all(a is b for a, b in zip(body.eqns, jaxpr.eqns)):
            return eqn
    outs = tuple(s for s, u in zip(eqn.params["outs"], used) if u)
    return eqn.replace(
        [a for a, n in zip(eqn.invars, needed) if n], [v for v, u in zip(eqn.outvars, used) if u],
        {**eqn.params, "jaxpr": body, "outs": outs},
    )  # fmt: skip


region_p = Primitive(
    "mesh_region", _infer, lower=_lower, jvp=_jvp, linearize=_linearize, transpose=_transpose, batch=_batch,
    batch_axis=True, dce=_dce, effects=lambda *avals, jaxpr, **_: jaxpr.effects, multiple_results=True,
    cache_types=False,
)  # fmt: skip
