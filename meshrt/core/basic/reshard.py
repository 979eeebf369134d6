"""reshard: the same value split in another way over the Explicit axes of a mesh.

    reshard[sharding=NamedSharding(mesh, P("x", None))] a:f32[8,4@y] -> f32[8@x,4]

Every transformation may need one: the cotangent of a value is split as the value is, whatever the operations that
computed it had to say (`as_split`, `cotangent_of`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshrt.core.basic.memory import in_space
from meshrt.core.jaxpr import Eqn
from meshrt.core.primitive import Primitive
from meshrt.core.types import ShapedArray, aval_of, in_program, present

__all__ = ["as_split", "cotangent_of", "cotangent_type", "reshard_p"]


def _infer(x: ShapedArray, *, sharding: Any) -> ShapedArray:
    return x.update(sharding=present(sharding))


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, sharding: Any) -> tuple[Any, Any]:
    (x,), (t,) = primals, tangents
    return reshard_p.bind(x, sharding=sharding), None if t is None else reshard_p.bind(t, sharding=sharding)


def _transpose(ct: Any, x: Any, *, sharding: Any) -> list[Any]:
    return [cotangent_of(x.aval, ct)]


def _batch(size: int, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    (x,), (d,), sharding = args, dims, params["sharding"]
    own = aval_of(x).explicit
    entries = list(sharding.spec.partitions)
    # (The dimension that is batched over keeps its axes where the other mesh has them too.)
    is_other = own is None or own.mesh.shape_tuple != sharding.mesh.shape_tuple
    entries.insert(d, None if own is None or is_other else own.spec.partitions[d])
    return reshard_p.bind(x, sharding=sharding.update(spec=sharding.spec.update(partitions=entries))), d


def _lower(ctx: Any, eqn: Eqn, x: Any) -> Any:
    out, mesh = eqn.outvars[0].aval, eqn.params["sharding"].mesh
    if ctx.pinned_region() is not None or ctx.module.mesh is None or not out.ndim:
        return x  # what is written of the result's type, as for every equation, moves the value
    # Around are Auto axes only: this is where types of a region with Explicit ones begin.
    return ctx.op("sdy.sharding_constraint", [x], out, f"sharding = #sdy.sharding{ctx.module.pin_text(out, mesh)}")


reshard_p: Primitive = Primitive(
    "reshard", _infer, lower=_lower, jvp=_jvp, transpose=_transpose, batch=_batch, cache_types=False, finite=True,
    place=lambda params: ("reshard", params["sharding"].mesh),
)  # fmt: skip


def as_split(x: Any, sharding: Any) -> Any:
    """`x`, split as `sharding` of a type says (None: replicated)."""
    own: Any = aval_of(x).explicit
    if own is sharding:
        return x
    return reshard_p.bind(x, sharding=own.replicated(aval_of(x).ndim) if sharding is None else sharding)


def cotangent_type(aval: ShapedArray) -> ShapedArray:
    """The type of cotangents of values of this type: split as they are, partial sums where they are copies."""
    if aval.is_high:
        kind: Any = aval
        return in_program(kind.to_ct_aval())  # type: ignore[no-any-return]
    wanted: Any = aval.explicit
    if wanted is None or not (wanted.spec.unreduced or wanted.spec.reduced):
        return aval
    spec = wanted.spec
    return aval.update(sharding=wanted.update(spec=spec.update(unreduced=spec.reduced, reduced=spec.unreduced)))


def cotangent_of(aval: ShapedArray, ct: Any) -> Any:
    """`ct`, split as the cotangents of values of type `aval` are, and in the memory where these lie."""
    if aval.is_high:
        return ct
    wanted, have = cotangent_type(aval).explicit, aval_of(ct)
    if have.memory_space is not aval.memory_space:
        ct = in_space(ct, aval.memory_space)
    return ct if have.explicit is wanted else as_split(ct, wanted)
