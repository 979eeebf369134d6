"""`shard_map` and `smap`: functions written for one device's shards, along some or all axes of a mesh."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

from meshrt import errors, tree_util
from meshrt._tree_paths import calling
from meshrt.core.basic.varying import into_branch
from meshrt.core.high import has_high_types, is_mutable
from meshrt.core.naming import wraps
from meshrt.core.told import Told
from meshrt.core.trace import EVAL, current_trace
from meshrt.core.tracebacks import boundary
from meshrt.core.types import ShapedArray, aval_of, in_program
from meshrt.jit import JitFunction, jit
from meshrt.primitives import shard_map_arguments as checks
from meshrt.primitives.shard_map import shard_map_p, spread
from meshrt.primitives.shard_map_chain import chain_of
from meshrt.primitives.shard_map_high import Outline, grouped, local, moved, outline
from meshrt.primitives.shard_map_mesh import Mapped, region_of
from meshrt.primitives.shard_map_region import Region
from meshrt.primitives.shard_map_specs import (
    check_divisible,
    check_ranks,
    check_replicated,
    check_sums,
    resolved,
)
from meshrt.primitives.shard_map_values import Call, ReadableTrace, readable, traced_for
from meshrt.primitives.shard_map_waits import warn_of_waits
from meshrt.primitives.sharding import advised_devices
from meshrt.runtime.array import Array
from meshrt.sharding._state import context as mesh_context
from meshrt.sharding.mesh import AbstractMesh, Mesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import Infer, PartitionSpec
from meshrt.transforms.arguments import StaticValue, fun_name
from meshrt.transforms.high import kept_apart, reopened, spread_over
from meshrt.transforms.high import spread as spread_specs
from meshrt.transforms.references import check_distinct, paths_of, refuse_mutable
from meshrt.transforms.staged import Staged, stage

__all__ = ["shard_map", "smap"]


def shard_map(
    f: Callable[..., Any] | None = None,
    /,
    *,
    out_specs: Any,
    in_specs: Any = Infer,
    mesh: Mesh | AbstractMesh | None = None,
    axis_names: set[Any] | frozenset[Any] = frozenset(),
    check_vma: bool = True,
    reshard_inputs: bool = False,
) -> Any:
    """`f` is written for the shards of one device, and runs on all devices of a mesh at once.

    >>> mesh = meshrt.make_mesh((8,), ("x",), axis_types=(meshrt.sharding.AxisType.Auto,))
    >>> @meshrt.shard_map(mesh=mesh, in_specs=meshrt.P("x"), out_specs=meshrt.P())
    ... def total(shard):                       # f32[2] of the 16 elements
    ...     return meshrt.lax.psum(shard.sum(), "x")
    >>> total(jnp.arange(16.0))
    Array(120., dtype=float32)

    Args:
      f: a function of pytrees of arrays, called by position. Without it, `shard_map` is a decorator factory.
      out_specs: a pytree prefix of PartitionSpecs for its results: devices' results are put together along the
        dimensions that are split over an axis; along axes that a spec does not name, they are the same on all devices.
      in_specs: likewise for its arguments. None at the place of an argument: it is passed as it is, and need be no
        array; None alone: all of them are. Left out: the specs in the types of the arguments, if the axes are Explicit.
      mesh: a Mesh, or an AbstractMesh if devices come from arguments or the context; by default the mesh in context.
      axis_names: the axes along which `f` is per-device code, all of them by default. The others stay as they are:
        along Auto axes the program inside is partitioned like any other.
      check_vma: types inside say along which axes values may differ between devices (`{V:x}`). That proves that
        out_specs hold and makes derivatives exact and cheap. False: nothing is checked.
      reshard_inputs: arguments whose types have other specs than in_specs (Explicit axes) are resharded; otherwise that
        is an error.

    The call is compiled as one program, also outside of `jit`; there `f` may ask for values that are the same on all
    devices (`if lax.psum(x, "x") > 0:`), for which the part before is run.

    Raises:
      ShardingTypeError: a spec that is none. UnknownAxisError, DuplicateAxisError, RankMismatchError, IndivisibleError:
      one that does not fit its mesh or value. MeshContextError, MeshMismatchError: no mesh, or two that differ.
      ReplicationError: a result that may differ between devices and should not, with the chain of operations that
      made it so.
    """
    make = functools.partial(
        _shard_map, mesh=mesh, in_specs=in_specs, out_specs=out_specs, axis_names=axis_names, check_vma=check_vma,
        reshard_inputs=reshard_inputs,
    )  # fmt: skip
    return make if f is None else make(f)


def smap(f: Callable[..., Any] | None = None, /, *, in_axes: Any = Infer, out_axes: Any, axis_name: Any) -> Any:
    """`shard_map` over one axis of the mesh in context, with dimension numbers as `vmap` has them in place of specs.

    Args:
      in_axes: the dimension of each argument that is split over the axis: an int, None for arguments that are whole on
        every device, or a tuple with an entry (a pytree prefix) for each argument.
      out_axes: likewise for the results.
      axis_name: the axis.

    >>> mesh = meshrt.make_mesh((2,), ("x",), axis_types=(meshrt.sharding.AxisType.Explicit,))
    >>> x = meshrt.device_put(jnp.arange(4), meshrt.NamedSharding(mesh, meshrt.P("x")))
    >>> with meshrt.set_mesh(mesh): print(meshrt.smap(lambda x: lax.psum(x, "x"), in_axes=0, out_axes=None,
    ...     axis_name="x")(x))
    [2 4]
    """
    if f is None:
        return functools.partial(smap, in_axes=in_axes, out_axes=out_axes, axis_name=axis_name)
    if isinstance(axis_name, list | tuple):
        raise errors.ArgumentTypeError(
            f"smap axis_name should be a `str` or a `Hashable`, but got {axis_name}; use shard_map for several axes"
        )
    if in_axes is not None and in_axes is not Infer and not isinstance(in_axes, int | tuple):
        raise errors.ArgumentTypeError(
            "smap in_axes must be an int, None, meshrt.sharding.Infer, or a tuple of entries corresponding to the "
            f"positional arguments passed to the function, but got {in_axes}"
        )
    for what, axes in (("in_axes", in_axes), ("out_axes", out_axes)):
        if axes is not Infer and not all(_is_int(a) for a in tree_util.tree_leaves(axes)):
            raise errors.ArgumentTypeError(
                f"smap {what} must be an int, None, or (nested) container with those types as leaves, but got {axes}"
            )
    as_spec = functools.partial(_spec_of_axis, axis_name)
    is_leaf = lambda a: a is None
    return _shard_map(
        f, mesh=None, in_specs=in_axes if in_axes is Infer else tree_util.tree_map(as_spec, in_axes, is_leaf=is_leaf),
        out_specs=tree_util.tree_map(as_spec, out_axes, is_leaf=is_leaf), axis_names={axis_name}, check_vma=True,
        reshard_inputs=False, called="smap",
    )  # fmt: skip


def _is_int(a: Any) -> bool:
    return isinstance(a, int) and not isinstance(a, bool)


def _spec_of_axis(name: Any, axis: int | None) -> PartitionSpec:
    if axis is None:
        return PartitionSpec()
    if axis < 0:
        raise errors.ArgumentValueError(
            f"smap takes dimension numbers from 0, as a spec counts from the first dimension. Got {axis}"
        )
    return PartitionSpec(*[None] * axis, name)


# ---------------------------------------------------------------------------------------------------------------------
# Calls


# In place of None among in_specs, which would be a tree without leaves.
_STATIC = object()
# How many programs a function keeps that differ in arguments which are no arrays.
_KEPT_STATIC = 64


def _shard_map(fun: Callable[..., Any], *, called: str = "shard_map", **settings: Any) -> Callable[..., Any]:
    if not callable(fun):
        raise errors.ArgumentTypeError(
            f"{called} requires a callable for its first argument, but got {fun!r} of type {type(fun)}"
        )
    mapped = Mapped(fun, called=called, **settings)

    @wraps(fun)
    def apply(*args: Any) -> Any:
        return _apply(mapped, args, is_eager=True)

    apply.result_shardings = functools.partial(_results, mapped)  # type: ignore[attr-defined]  # of the calls below
    if isinstance(settings["mesh"], AbstractMesh) or _has_static(settings["in_specs"]):
        evaluate = _careful(mapped, apply)
    else:
        evaluate = jit(apply)

    reads_values = False  # whether the function asked for values or printed some: it does not become one program

    @wraps(fun)
    def wrapped(*args: Any) -> Any:
        nonlocal reads_values
        leaves, tree = tree_util.tree_flatten(args)
        check_distinct(called, fun_name(fun), leaves, (), paths_of(fun, tree))
        if current_trace() is not EVAL:
            return _staged(mapped, args)
        if not reads_values:
            call = Call(args)
            try:
                out = traced_for(call, evaluate)
                reads_values = call.prints
                return out
            except errors.ConcretizationError:
                pass  # once more, with values
        out = _staged(mapped, args, True)
        reads_values = True
        return out

    return wrapped


def _results(mapped: Mapped) -> Any:
    """How results of a call outside of traces are laid out: as out_specs say, if every axis is Manual inside.

    Else None, as propagation decides along the other axes. Read when the call has been staged, so the specs are right.
    """
    mesh = mesh_context.concrete if mapped.mesh is None else mapped.mesh
    if not isinstance(mesh, Mesh) or mesh.empty or (mapped.axis_names and set(mapped.axis_names) != {*mesh.axis_names}):
        return None
    if not all(isinstance(spec, PartitionSpec) for spec in tree_util.tree_leaves(mapped.out_specs)):
        return None
    return tree_util.tree_map(lambda spec: NamedSharding(mesh, spec), mapped.out_specs)


def _has_static(in_specs: Any) -> bool:
    return any(s is None for s in tree_util.tree_leaves(in_specs, is_leaf=lambda s: s is None))


def _careful(mapped: Mapped, apply: Callable[..., Any]) -> Callable[..., Any]:
    """Evaluation outside of traces where the mesh has no devices, or some arguments are no arrays."""
    plain = jit(apply)
    with_static: dict[Any, JitFunction] = {}

    @boundary
    def evaluate(*args: Any) -> Any:
        if isinstance(mapped.mesh, AbstractMesh):
            _require_devices(mapped, args)
        leaves, tree = tree_util.tree_flatten(args)
        flags = [s is None for s in _flat_specs(mapped, args)[1]] if mapped.in_specs is not Infer else []
        if not any(flags):
            return plain(*args)
        static = [x for x, s in zip(leaves, flags) if s]
        values = _as_key(static)
        if values is None:
            return apply(*args)
        key = (tree, tuple(flags), values)
        function = with_static.get(key)
        if function is None:
            while len(with_static) >= _KEPT_STATIC:
                with_static.pop(next(iter(with_static)), None)

            def call(*arrays: Any) -> Any:
                rest, fixed = iter(arrays), iter(static)
                return apply(*tree_util.tree_unflatten(tree, [next(fixed if s else rest) for s in flags]))

            call.__name__ = call.__qualname__ = fun_name(mapped.fun)
            call.result_shardings = apply.result_shardings  # type: ignore[attr-defined]
            function = with_static[key] = jit(call)
        return function(*[x for x, s in zip(leaves, flags) if not s])

    return evaluate


def _as_key(static: Sequence[Any]) -> tuple[StaticValue, ...] | None:
    """Arguments that are no arrays as part of a key; None if one of them cannot be hashed."""
    values = tuple(map(StaticValue, static))
    try:
        hash(values)
    except Exception:  # whatever a __hash__ of the user's raises
        return None
    return values


def _require_devices(mapped: Mapped, args: Any) -> None:
    """Over an AbstractMesh, arguments say where to run: arrays on a mesh of its shape, if none is in context."""
    around = mesh_context.concrete
    if around is not None and not around.empty:
        return
    specs = _flat_specs(mapped, args)[1] if mapped.in_specs is not Infer else None
    found = False
    for i, (path, x) in enumerate(tree_util.tree_leaves_with_path(args)):
        if specs is not None and specs[i] is None:
            continue
        sharding = x.sharding if type(x) is Array else None
        if not isinstance(sharding, NamedSharding):
            if (type(x) is Array and not x.committed) or type(x) is not Array:
                continue
            raise _no_devices(mapped, path, x)
        if sharding.mesh.shape_tuple != mapped.mesh.shape_tuple:
            raise errors.MeshMismatchError(
                f"Mesh shape of the input args{tree_util.keystr(path)} {sharding.mesh.shape_tuple} does not match the "
                f"mesh shape passed to shard_map {mapped.mesh.shape_tuple}; move it with meshrt.device_put"
            )
        found = True
    if not found:
        path, x = next(iter(tree_util.tree_leaves_with_path(args)), ((), None))
        raise _no_devices(mapped, path, x)


def _no_devices(mapped: Mapped, path: Any, x: Any) -> errors.ArgumentValueError:
    kind = f"is on {x.sharding}" if type(x) is Array else f"is a {type(x).__name__}"
    return errors.ArgumentValueError(
        "Please pass `meshrt.Array`s with a `NamedSharding` as input to `shard_map` when passing `AbstractMesh` to the "
        f"mesh argument: the devices come from them. args{tree_util.keystr(path)} of {fun_name(mapped.fun)} {kind}: "
        "put it on a mesh with meshrt.device_put, or enter one with `with meshrt.set_mesh(mesh):`"
    )


def _apply(mapped: Mapped, args: tuple[Any, ...], is_readable: bool = False, is_eager: bool = False) -> Any:
    """Stages the function for shards of the arguments and applies the primitive, in the current trace.

    `is_eager`: the call stands outside of programs, where a device that a value is put on is not passed over.
    `is_readable`: the arguments are values, and so are those in the function that are the same on all devices.
    """
    region = region_of(mapped)
    given = outline(args, keeps=not is_readable)
    args = given.full
    if mapped.in_specs is Infer:
        types = given.types(given.leaves, lambda _, x: aval_of(x))
        said = specs = [None if a.mutable else checks.spec_in_type(region, a) for a in types]
    else:
        said, specs = _flat_specs(mapped, args)
        specs = _closed_over_boxes(mapped, args, specs)
    by_leaf = grouped(given.flags, given.counts, given.leaves, said, specs)
    leaves = _entering(mapped, region, given, specs, by_leaf)
    is_array = [s is not None for s in by_leaf]
    arrays = [x for x, a in zip(leaves, is_array) if a]
    flat_in = tuple(s for s in by_leaf if s is not None)
    local_types = [local(region, s, aval_of(x)) for s, x in zip(flat_in, arrays)]
    may_read = is_eager or is_readable
    trace = readable(fun_name(mapped.fun), region, arrays, flat_in, is_array, is_readable) if may_read else None
    staged = _stage(mapped, region, given.structure, leaves, is_array, local_types, trace)
    if may_read:
        _refuse_devices(mapped, staged)
    argument = lambda i: _argument(given, by_leaf, i - len(staged.consts))
    flat_out = _out_specs(mapped, region, staged, argument)
    split = [frozenset(map(str, s.axes)) for s in (*[PartitionSpec()] * len(staged.consts), *flat_in)]
    warn_of_waits(fun_name(mapped.fun), staged.jaxpr, region.check_vma, split, argument)
    outs = shard_map_p.bind(
        *staged.consts, *arrays, jaxpr=staged.jaxpr, region=region,
        in_specs=(*[PartitionSpec()] * len(staged.consts), *flat_in), out_specs=flat_out,
    )  # fmt: skip
    return tree_util.tree_unflatten(staged.out_tree, outs)


def _entering(
    mapped: Mapped, region: Region, given: Outline, specs: Sequence[Any], by_leaf: Sequence[Any]
) -> list[Any]:
    """The arguments as they enter, with types that fit the specs."""
    leaves = [x if s is None else into_branch([x])[0] for x, s in zip(given.leaves, by_leaf)]
    type_at = lambda i, x: None if specs[i] is None else _type_of(mapped, given.full, i, x)
    avals = given.types(leaves, type_at)
    in_specs = PartitionSpec() if mapped.in_specs is Infer else mapped.in_specs
    tree = tree_util.tree_structure(given.full)
    checks.check_meshes(mapped.fun, region, given.full, avals)
    check_ranks("in_specs", mapped.fun, tree, in_specs, specs, avals)
    check_divisible(mapped.fun, region, tree, in_specs, specs, avals)
    if mapped.in_specs is not Infer and region.is_full and region.outside.are_all_axes_explicit:
        unlike = checks.unlike_specified(mapped.fun, region, given.full, specs, avals, mapped.reshard_inputs)
        if unlike:
            starts, lay = [0, *accumulate(given.counts)], functools.partial(checks.resharded, region)
            for k, (s, f) in enumerate(zip(by_leaf, given.flags)):
                if not unlike.isdisjoint(range(starts[k], starts[k + 1])):
                    leaves[k] = moved(leaves[k], s, lay) if f else lay(leaves[k], s)
            avals = given.types(leaves, type_at)
    checks.check_sums_named(mapped.fun, region, given.full, specs, avals)
    return leaves


_staged = boundary(_apply)


def _type_of(mapped: Mapped, args: Any, i: int, x: Any) -> ShapedArray:
    try:
        return aval_of(x)
    except errors.ArgumentTypeError as e:
        path = tree_util.keystr(tree_util.tree_leaves_with_path(args)[i][0])
        raise errors.ArgumentTypeError(
            f"args{path} of the shard_map of {fun_name(mapped.fun)}: {e}. An argument that is no array is passed as it "
            "is where its entry of in_specs is None"
        ) from None


def _no_leaf(spec: Any) -> bool:
    """Specs are leaves as they are."""
    return False


def _flat_specs(mapped: Mapped, args: Any) -> tuple[list[Any], list[Any]]:
    """For each leaf of the arguments what in_specs say of it (maybe a HiPspec of the value it belongs to), and its
    spec."""
    given = tuple(mapped.in_specs) if isinstance(mapped.in_specs, list) else mapped.in_specs
    given = tree_util.tree_map(lambda s: _STATIC if s is None else s, given, is_leaf=lambda s: s is None)
    try:
        said = spread_specs(given, args, _no_leaf)
        return said, [None if s is _STATIC else s for s in resolved(said, tree_util.tree_structure(args))]
    except errors.TreeError as e:
        raise errors.TreeError(
            f"{mapped.called} in_specs{e.path} of {fun_name(mapped.fun)} must be a pytree prefix of its arguments: "
            f"{calling(e, 'in_specs')}"
        ) from None


def _closed_over_boxes(mapped: Mapped, args: Any, specs: list[Any]) -> list[Any]:
    """The specs, None for a Box: the function has it as it has those that it closes over, whole on every device."""
    boxes = _boxes_at(args)
    for i, (path, box) in boxes.items():
        spec = specs[i]
        if spec is not None and not (isinstance(spec, PartitionSpec) and not spec.axes):
            raise errors.ArgumentValueError(
                f"{mapped.called}: args{tree_util.keystr(path)} of {fun_name(mapped.fun)} is a mutable value of type "
                f"{aval_of(box).short()}, and in_specs split it by {spec}. What it holds is whole on every device: "
                "give PartitionSpec()"
            )
    return [None if i in boxes else s for i, s in enumerate(specs)] if boxes else specs


def _boxes_at(tree: Any) -> dict[int, tuple[Any, Any]]:
    """The path and the value of each leaf that is a Box, by its index. Only trees with some pay for the paths."""
    if not has_high_types() or not any(map(is_mutable, tree_util.tree_leaves(tree))):
        return {}
    leaves = tree_util.tree_leaves_with_path(tree)
    return {i: (path, x) for i, (path, x) in enumerate(leaves) if is_mutable(x)}


def _stage(
    mapped: Mapped, region: Region, tree: Any, leaves: Sequence[Any], is_array: Sequence[bool],
    avals: Sequence[ShapedArray], trace: ReadableTrace | None,
) -> Staged:  # fmt: skip
    static = [x for x, a in zip(leaves, is_array) if not a]

    def call(*arrays: Any) -> Any:
        mine, fixed = iter(arrays), iter(static)
        args = tree_util.tree_unflatten(tree, [next(mine if a else fixed) for a in is_array])
        out = outline(mapped.fun(*args), keeps=trace is None or not trace.decides)
        for path, box in _boxes_at(out.full).values():
            refuse_mutable(mapped.called, fun_name(mapped.fun), aval_of(box), "result" + tree_util.keystr(path))
        said = _broadcast_out(mapped, tree_util.tree_structure(out.full))
        specs = grouped(out.flags, out.counts, out.leaves, *said)
        flat = [spread(x, s) for x, s in zip(out.leaves, specs)] if region.check_vma else out.leaves
        return kept_apart(out.structure, flat)

    kind: tuple[Any, ...]
    owner, kind = mapped.fun, ("shard_map", region, _key(mapped.out_specs), tree, tuple(is_array))
    if static:
        values = _as_key(static)
        if values is None:
            owner = call
        else:
            kind = (*kind, values)
    with region.enter():
        paths = lambda: [name for name, a in zip(paths_of(mapped.fun, tree)(), is_array) if a]
        told = Told(mapped.fun, fun_name(mapped.fun), "shard_map", paths)
        return stage(call, tree_util.tree_structure(tuple(avals)), avals, owner, kind, trace=trace, told=told)


def _refuse_devices(mapped: Mapped, staged: Staged) -> None:
    for device, where in advised_devices(staged.jaxpr):
        raise errors.ArgumentValueError(
            "device_put with explicit device not allowed within shard_map-decorated functions, but got device "
            f"{device} at {where}: {fun_name(mapped.fun)} runs on every device of the mesh. Put the value there before "
            "the call or its result after it, or leave the device out"
        )


def _key(specs: Any) -> Any:
    flat, structure = tree_util.tree_flatten(specs)
    return (tuple(flat), structure)


def _broadcast_out(mapped: Mapped, out: Any) -> tuple[list[Any], list[Any]]:
    """For each array of results of a structure what out_specs say of it, and its spec."""
    try:
        said = spread_over(mapped.out_specs, out, _no_leaf)
        return said, resolved(said, out)
    except errors.TreeError as e:
        raise errors.TreeError(
            f"{mapped.called} out_specs{e.path} of {fun_name(mapped.fun)} must be a pytree prefix of its result: "
            f"{calling(e, 'out_specs')}"
        ) from None


def _argument(given: Outline, by_leaf: Sequence[Any], i: int) -> str:
    """What an operand of the region is called, an array or a value that stays whole."""
    if i < 0:
        return "a value from outside of the function"
    places = [(path, s) for path, s in zip(given.paths, by_leaf) if s is not None]
    return f"args{tree_util.keystr(places[i][0])}, which enters with {places[i][1]}"


def _out_specs(
    mapped: Mapped, region: Region, staged: Staged, argument: Callable[[int], str]
) -> tuple[PartitionSpec, ...]:
    kinds = staged.out_avals
    flags = [k.is_high for k in kinds]
    tree = reopened(staged.out_tree, kinds)
    avals = [t for k in kinds for t in (map(in_program, k.lo_ty()) if k.is_high else [k])]
    said, flat = _broadcast_out(mapped, tree)
    check_ranks("out_specs", mapped.fun, tree, mapped.out_specs, flat, avals)
    if region.check_vma:
        check_sums(mapped.fun, region, tree, mapped.out_specs, flat, avals)
        values = [i for i, k in enumerate(kinds) for _ in (k.lo_ty() if k.is_high else [k])]
        chain = lambda i, axis: chain_of(staged.jaxpr, values[i], axis, argument)
        check_replicated(mapped.fun, region, tree, mapped.out_specs, flat, avals, chain)
    counts = [len(k.lo_ty()) if k.is_high else 1 for k in kinds]
    return tuple(grouped(flags, counts, kinds, said, flat))
