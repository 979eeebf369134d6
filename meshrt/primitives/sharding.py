"""`with_sharding_constraint`: an annotation on a value in the middle of a program."""

from __future__ import annotations

import functools
import threading
from typing import Any

from meshrt import config, errors, tree_util
from meshrt.core.primitive import Primitive
from meshrt.core.source import capture
from meshrt.core.trace import EVAL, Tracer, context
from meshrt.core.types import aval_of
from meshrt.sharding.context import get_abstract_mesh
from meshrt.sharding.mesh import AbstractMesh, AxisType, Mesh
from meshrt.sharding.named import NamedSharding, SingleDeviceSharding
from meshrt.sharding.sdy import to_sdy_text
from meshrt.sharding.spec import PartitionSpec

__all__ = ["with_sharding_constraint"]


def _batch(size, args, dims, params):
    (x,), (d,) = args, dims
    sharding = params["sharding"]
    entries = list(sharding.spec.padded(aval_of(x).ndim - 1))
    entries.insert(d, PartitionSpec.UNCONSTRAINED)
    spec = PartitionSpec(*entries)
    return sharding_constraint_p.bind(x, sharding=NamedSharding(sharding.mesh, spec)), d


def _lower(ctx, eqn, x):
    sharding = abstract_sharding(eqn.params["sharding"])
    symbol = ctx.module.mesh_symbol(sharding.mesh)
    aval = eqn.outvars[0].aval
    text = to_sdy_text(sharding, aval.physical().ndim, symbol)
    return ctx.op("sdy.sharding_constraint", [x], aval, f"sharding = {text}")


def _evaluate(x, *, sharding):
    """On values: a concrete mesh says where to go; an abstract one constrains only what runs on a mesh."""
    with config.override(disable_jit=False):  # single operations are compiled all the same
        return _constrainer(sharding)(x)


@functools.lru_cache(512)
def _constrainer(sharding):
    from meshrt.jit import jit  # stands above the primitives

    return jit(lambda x: with_sharding_constraint(x, sharding))


def _jvp(primals, tangents, *, sharding):
    (x,), (t,) = primals, tangents
    out = sharding_constraint_p.bind(x, sharding=sharding)
    return out, None if t is None else sharding_constraint_p.bind(t, sharding=sharding)


sharding_constraint_p = Primitive(
    "sharding_constraint", lambda x, *, sharding: x, lower=_lower, jvp=_jvp, batch=_batch,
    transpose=lambda ct, x, *, sharding: [sharding_constraint_p.bind(ct, sharding=sharding)],
)  # fmt: skip
sharding_constraint_p.impl = _evaluate


class _Mentioned(threading.local):
    """Concrete meshes that a function being traced names in its constraints (checked when devices are known).

    Each thread traces its own functions.
    """

    def __init__(self):
        self.stack: list[dict[Mesh, str]] = []

    def note(self, mesh: Mesh) -> None:
        if self.stack:
            self.stack[-1].setdefault(mesh, str(capture()))


mentioned = _Mentioned()


def with_sharding_constraint(x: Any, shardings: Any) -> Any:
    """Constrains the sharding of every array in the pytree `x`.

    `shardings` is a NamedSharding (over a Mesh or an AbstractMesh), a PartitionSpec of the mesh in context, or a
    pytree prefix of them; None leaves a subtree alone. Dimensions marked `PartitionSpec.UNCONSTRAINED` stay open.
    Sizes need not divide. Raises ShardingError for a wrong rank, UnknownAxisError or DuplicateAxisError for wrong
    axes, MeshContextError when a PartitionSpec is given without a mesh in context.
    """
    leaves, tree = tree_util.tree_flatten(x)
    is_leaf = lambda s: s is None or isinstance(s, NamedSharding | PartitionSpec | SingleDeviceSharding)
    specs = tree_util.broadcast_prefix(shardings, x, is_leaf=is_leaf)
    return tree_util.tree_unflatten(tree, [_constrain(leaf, s) for leaf, s in zip(leaves, specs)])


def _constrain(x: Any, sharding: Any) -> Any:
    if sharding is None:
        return x
    if isinstance(sharding, SingleDeviceSharding):
        raise errors.ShardingError(
            "with_sharding_constraint takes NamedShardings or PartitionSpecs; use device_put for a single device"
        )
    if isinstance(sharding, PartitionSpec):
        mesh = get_abstract_mesh()
        if mesh is None or mesh.empty:
            raise errors.MeshContextError(
                "with_sharding_constraint requires a non-empty mesh in context if you are passing `PartitionSpec`s, "
                f"but got {sharding}: enter one with `with meshrt.set_mesh(mesh):` or pass NamedSharding(mesh, spec)"
            )
        sharding = NamedSharding(mesh, sharding)
    elif not isinstance(sharding, NamedSharding):
        raise errors.ArgumentTypeError(
            f"with_sharding_constraint got {sharding!r}; pass a NamedSharding or a PartitionSpec"
        )
    _check(x, sharding)
    if isinstance(x, Tracer) or context.trace is not EVAL:
        if not mentioned.stack:  # nothing is staged: a derivative or a batch of values, which have devices
            return sharding_constraint_p.bind(x, sharding=sharding)
        if isinstance(sharding.mesh, Mesh):
            mentioned.note(sharding.mesh)
        return sharding_constraint_p.bind(x, sharding=abstract_sharding(sharding))
    return _constrain_array(x, sharding)


def _check(x: Any, sharding: NamedSharding) -> None:
    aval = aval_of(x)
    if len(sharding.spec.partitions) > aval.ndim:
        raise errors.RankMismatchError(
            f"{sharding.spec} is only valid for values of rank at least {len(sharding.spec.partitions)}, but was "
            f"applied to a value of rank {aval.ndim} ({aval.str_short()}) at {capture()}"
        )
    types = dict(zip(sharding.mesh.axis_names, sharding.mesh.axis_types))
    for entry in sharding.spec.partitions:
        for axis in entry if isinstance(entry, tuple) else (entry,):
            if types.get(axis) is AxisType.Explicit:
                raise errors.UnsupportedError(
                    f"with_sharding_constraint can only refer to Auto axes of the mesh, but {axis!r} is Explicit; "
                    "explicit mode is not implemented yet: build the mesh with axis_types=(AxisType.Auto, ...)"
                )


def abstract_sharding(sharding: NamedSharding) -> NamedSharding:
    """The same sharding over the AbstractMesh."""
    return (
        sharding
        if isinstance(sharding.mesh, AbstractMesh)
        else NamedSharding(sharding.mesh.abstract_mesh, sharding.spec)
    )


def _constrain_array(x: Any, sharding: NamedSharding) -> Any:
    """The eager form: moves the array. An AbstractMesh takes its devices from the array."""
    from meshrt.runtime.array import Array
    from meshrt.runtime.transfer import device_put

    if isinstance(sharding.mesh, AbstractMesh):
        if not isinstance(x, Array):
            raise errors.ShardingError(
                "with_sharding_constraint over an AbstractMesh requires a meshrt.Array as input, "
                f"got {type(x).__name__}; put it on a mesh with device_put first"
            )
        if not isinstance(x.sharding, NamedSharding):
            raise errors.ArgumentTypeError(
                "with_sharding_constraint over an AbstractMesh requires an input whose sharding is a "
                f"NamedSharding, got {x.sharding}"
            )
        if x.sharding.mesh.shape_tuple != sharding.mesh.shape_tuple:
            raise errors.MeshMismatchError(
                f"Mesh shape of the input {x.sharding.mesh.shape_tuple} does not match the mesh shape of the sharding "
                f"{sharding.mesh.shape_tuple}"
            )
        sharding = NamedSharding(x.sharding.mesh, sharding.spec)
    if any(e is PartitionSpec.UNCONSTRAINED for e in sharding.spec.partitions):
        raise errors.ShardingError("P.UNCONSTRAINED has no meaning outside jit, where nothing is propagated")
    return device_put(x, sharding)
