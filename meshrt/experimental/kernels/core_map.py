"""`core_map`: a body that works by side effects on references, run on every device of a mesh."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meshrt import errors, tree_util
from meshrt.core.again import ask_for_more
from meshrt.core.primitive import Primitive
from meshrt.core.references import is_ref, placed_type
from meshrt.core.source import capture
from meshrt.core.trace import JaxprTrace, JaxprTracer, Tracer
from meshrt.core.tracebacks import boundary
from meshrt.core.types import ShapedArray, aval_of
from meshrt.experimental.kernels.scopes import is_scoped, run_scoped
from meshrt.primitives.shard_map import shard_map_p
from meshrt.primitives.shard_map_arguments import spec_in_type
from meshrt.primitives.shard_map_mesh import region_over
from meshrt.primitives.shard_map_region import Region
from meshrt.sharding.mesh import AbstractMesh, AxisType, Mesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import PartitionSpec, axes_of
from meshrt.sharding.typed import sharding_of
from meshrt.transforms.arguments import fun_name
from meshrt.transforms.batching import BatchTracer
from meshrt.transforms.staged import stage

__all__ = ["core_map"]


def core_map(
    mesh: Mesh | AbstractMesh,
    *,
    compiler_params: Any = None,
    interpret: bool = False,
    debug: bool = False,
    cost_estimate: Any = None,
    name: str | None = None,
    metadata: dict[str, str] | None = None,
    scratch_shapes: Any = (),
) -> Callable[[Callable[..., None]], None]:
    """Runs a function, which takes and returns nothing, on every device of `mesh`; it works on references that it
    captured. Over a mesh of devices that is `shard_map` of such a function; over one of a chip's cores
    (`pallas.tpu.create_tensorcore_mesh`) the function is a kernel that each core runs.

    Each device has its part of what a reference holds, as the reference's sharding says; one that is not split is whole
    on all devices, and what they write to it is to be the same (a `psum`, for one). Indices are of that part: its shape
    is that of `ref[...]`. Functions in the body close over references, and are not given them. Collectives may name the
    mesh's axes. References that a traced function is given lie where the call's do, by which it is traced once more,
    the first time that it asks; one that it made lies as the value of which it made it, if that is an argument or a
    constraint or `device_put` says so, else Auto axes that may split it are refused. (Those of `run_state` and
    `run_scoped` are whole.)
    `scratch_shapes` are types of references that the function is given, each device its own.

    Args:
      compiler_params, interpret, debug, cost_estimate: for kernels; over a mesh of devices they say nothing.
      name, metadata: what the program is called.

    >>> import meshrt, meshrt.numpy as jnp
    >>> mesh = meshrt.make_mesh((1,), ("x",))
    >>> ref = meshrt.new_ref(meshrt.device_put(jnp.arange(4.0), meshrt.NamedSharding(mesh, meshrt.P("x"))))
    >>> @core_map(mesh)
    ... def _():
    ...     ref[...] = 2 * ref[...] + meshrt.lax.axis_index("x")
    >>> ref
    Ref([0., 2., 4., 6.], dtype=float32)

    Raises:
      ArgumentTypeError: `mesh` is no mesh of devices or cores.
      ArgumentValueError: it returns something, or gives a function a reference of which a device has a part.
      UnplacedReferenceError: how a traced reference is split over Auto axes is not known.
    """
    options = {
        "compiler_params": compiler_params, "interpret": interpret, "cost_estimate": cost_estimate, "debug": debug,
        "metadata": metadata,
    }  # fmt: skip
    if not isinstance(mesh, Mesh | AbstractMesh):
        # Start-up time: kernels need all of the user's library; shard_map's users, who call this too, do not.
        from meshrt.experimental.kernels.cores import need_cores, on_cores

        cores = need_cores(mesh, "core_map takes a meshrt.sharding.Mesh or AbstractMesh, or")

    @boundary
    def run(f: Callable[..., None]) -> None:
        if isinstance(mesh, Mesh | AbstractMesh):
            _run(f, mesh, name or fun_name(f), scratch_shapes)
        else:
            on_cores(f, cores, (), 0, scratch_shapes, {**options, "name": name or fun_name(f)})()

    return run


class _BodyTrace(JaxprTrace):
    """Records a body; references from outside are, in it, references to the device's parts."""

    __slots__ = ("parts", "region")

    def __init__(self, name: str, region: Region):
        super().__init__(name)
        self.region = region
        self.parts: dict[int, JaxprTracer] = {}

    def adopted(self, ref: Any) -> Any:
        part = self.parts.get(id(ref))
        if part is None:
            var: Any = self.atom(ref)  # (which keeps the reference)
            part = self.parts[id(ref)] = JaxprTracer(self, var, getattr(ref, "source", None))
        return part

    def process_primitive(self, primitive: Primitive, args: Sequence[Any], params: dict[str, Any]) -> Any:
        for a in args:
            if is_ref(a) and getattr(a, "_trace", None) is not self and self.adopted(a).aval.shape != aval_of(a).shape:
                raise errors.ArgumentValueError(
                    f"in the body of the core_map {self.name} a reference from outside, of type {aval_of(a)}, is an "
                    f"argument of a function that is traced for '{primitive}'. Each device has a part of it, "
                    f"{self.adopted(a).aval}, which the functions that close over the reference see: let this one do so"
                )
        return super().process_primitive(primitive, args, params)

    def captured_type(self, value: Any) -> Any:
        if is_ref(value):
            return self.region.local(_spec_of(value, self.region), aval_of(value))
        return super().captured_type(value)


def _run(f: Callable[..., None], mesh: Any, name: str, scratch: Any) -> None:
    region = region_over(mesh)
    positional, keywords = ((), scratch) if isinstance(scratch, dict) else (tuple(scratch), {})

    def body() -> Any:
        return run_scoped(f, *positional, **keywords) if positional or keywords else f()

    with region.enter():
        staged = stage(
            body, tree_util.tree_structure(()), (), body, ("core_map", region), trace=_BodyTrace(name, region)
        )
    if staged.out_tree != tree_util.tree_structure(None):
        raise errors.ArgumentValueError(
            f"The body of core_map should not return anything, but {name} returned {staged.out_tree}: write to a "
            "reference what is to be kept"
        )
    specs = tuple([_spec_of(c, region) if is_ref(c) else PartitionSpec() for c in staged.consts])
    _check_kept(staged.jaxpr.in_avals, staged.consts, name)
    shard_map_p.bind(*staged.consts, jaxpr=staged.jaxpr, region=region, in_specs=specs, out_specs=())


def _check_kept(avals: Sequence[Any], consts: Sequence[Any], name: str) -> None:
    if not any(map(is_ref, consts)):
        raise errors.ArgumentValueError(
            f"the body of core_map, {name}, captured no reference, so nothing of what it does would be seen"
        )


def _spec_of(ref: Any, region: Region) -> PartitionSpec:
    """How a reference is split over the axes of a region: as where it lies says, or its type, which speaks of Explicit
    axes alone."""
    kind = aval_of(ref)
    if not is_scoped(ref):
        own: Any = placed_type(ref).placed
        if isinstance(own, NamedSharding) and own.mesh.shape_tuple == region.outside.shape_tuple:
            return _by_manual_axes(own.spec, region)
        if own is None:
            _refuse_unknown(ref, kind, region)
    return spec_in_type(region, kind)


def _by_manual_axes(spec: PartitionSpec, region: Region) -> PartitionSpec:
    """A spec without axes that are Manual around the region: along those a device has the whole of what it captured."""
    if set(spec.axes) <= set(region.manual_axes):
        return spec
    return PartitionSpec(*[tuple(a for a in axes_of(e) if a in region.manual_axes) for e in spec.partitions])


def _refuse_unknown(ref: Tracer, kind: ShapedArray, region: Region) -> None:
    """Refuses a reference of a traced function that Auto axes may split, if its type does not say whether they do. A
    call of a jitted function is traced again then, with types that do.

    Where no dimension of what its type leaves to each device is a multiple of an axis' size, that axis splits none.
    """
    mesh = region.outside
    axes = [
        (a, mesh._sizes[a]) for a in region.manual_axes if mesh._types[a] is AxisType.Auto and mesh._sizes[a] > 1
    ]  # fmt: skip
    local = kind.shape if kind.explicit is None else sharding_of(kind, mesh).shard_shape(kind.shape)
    may_split = [(a, size) for a, size in axes if any(n and n % size == 0 for n in local)]
    if not may_split:
        return
    ask_for_more()
    names = ", ".join(f"{a!r} (size {size})" for a, size in may_split)
    batch = (
        f"It is a member of a batch that vmap takes apart along dimension {ref.dim}, so it is known only if it is "
        "known of the batch, and no axis splits this along that dimension. "
        if isinstance(ref, BatchTracer)
        else ""
    )
    raise errors.UnplacedReferenceError(
        f"the body of core_map at {capture()} uses a reference of type {kind} that {ref.origin() or 'is traced'}. Over "
        f"axes of type Auto, here {names}, the type of a traced reference does not say how it is split, so what each "
        f"device has of it is not known. {batch}Make it of an argument, or of a value that with_sharding_constraint or "
        "device_put places, or give it to a jitted function that no vmap maps, whose calls say so, make the axes "
        "Explicit (meshrt.make_mesh(axis_types=...)), which puts the split into the type, say it by meshrt.shard_map "
        "with in_specs, or capture the reference from outside of the traced function"
    )
