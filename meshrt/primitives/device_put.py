"""`device_put`: moves arrays now, and inside a traced function says where a value is to be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from meshrt import errors, tree_util
from meshrt._tree_paths import structure_mismatch
from meshrt.core.basic.memory import in_space, memory_put_p
from meshrt.core.high import has_high_types
from meshrt.core.source import capture
from meshrt.core.spaces import DEVICE, kind_of_space
from meshrt.core.trace import EVAL, Tracer, context
from meshrt.core.types import aval_of
from meshrt.primitives.identity import copy_p
from meshrt.primitives.reshard import put
from meshrt.primitives.sharding import device_put_p, on_mesh_in_context, require_fit
from meshrt.runtime import events
from meshrt.runtime.array import Array
from meshrt.runtime.backend import default_device
from meshrt.runtime.transfer import put_leaf
from meshrt.sharding.axes import AxisType
from meshrt.sharding.context import get_abstract_mesh, get_mesh
from meshrt.sharding.layout import Format, Layout
from meshrt.sharding.memory import Space, kind_of
from meshrt.sharding.mesh import Mesh
from meshrt.sharding.named import NamedSharding, Sharding, SingleDeviceSharding, refuse_manual
from meshrt.sharding.spec import PartitionSpec, axes_of
from meshrt.sharding.typed import entries_of, sharding_of, typed
from meshrt.transforms.high import fitting, spread, taken_apart
from meshrt.transforms.through_parts import of_arrays, outlined, path_in
from meshrt.xla import jaxlib_api

__all__: list[str] = []  # `meshrt.device_put` is no function of `meshrt.lax`


def device_put(x: Any, device: Any = None, *, src: Any = None, donate: Any = False, may_alias: Any = None) -> Any:
    """Puts each leaf of `x` where `device` says.

    Args:
      x: a tree of arrays, NumPy values and Python scalars.
      device: a device (of which a program, which runs where its caller says, takes no notice), a Sharding, a
        PartitionSpec (over the mesh of the context), a Format (a sharding and a layout), a `meshrt.memory.Space`
        (another memory of the same devices), None (arrays stay, other values go to the default device, uncommitted), or
        a tree of these that is a prefix of `x`. For a value of a high type that may be a list or tuple with an entry
        for each array that it consists of.
      src: where `x` is now; only checked for its type.
      donate: the arrays of `x` are not needed any more; a bool, or a tree of them that is a prefix of `x`.
      may_alias: whether results may share memory with `x` (by default only with arrays, not with NumPy values); None, a
        bool, or a tree of them that is a prefix of `x`.

    Raises:
      IndivisibleError: a dimension cannot be split so; names the path of the leaf, the sizes and the nearest that fit.

    >>> meshrt.device_put(np.arange(2), meshrt.devices()[0])
    Array([0, 1], dtype=int32)
    """
    staged = context.trace is not EVAL
    leaves, treedef = tree_util.tree_flatten(x)
    if (staged or has_high_types()) and any(isinstance(leaf, Tracer) and leaf.aval.is_high for leaf in leaves):
        return _put_high(x, device, donate, may_alias)
    if (apart := taken_apart(x)) is not x:
        x = apart
        leaves, treedef = tree_util.tree_flatten(x)
    try:
        targets, donated, aliases = _asked(device, donate, may_alias, x, len(leaves))
    except (errors.TreeError, errors.ArgumentValueError):
        _require_values(x)
        raise
    out = []
    for i, (leaf, target) in enumerate(zip(leaves, targets)):
        try:
            if staged or isinstance(leaf, Tracer):
                out.append(_put_traced(leaf, target))
            else:
                out.append(put_leaf(leaf, _place_of(target, leaf), donated[i], aliases[i]))
        except _REFUSED as e:
            _require_values(x)
            raise _of_leaf(tree_util.tree_leaves_with_path(x)[i][0], e) from None
    if not staged:
        for told in events.puts:
            told(leaves, targets, out)
    return treedef.unflatten(out)


def _require_values(x: Any) -> None:
    """What is no value at all is said before where it may not go."""
    for path, leaf in tree_util.tree_leaves_with_path(x):
        try:
            aval_of(leaf)
        except errors.ArgumentTypeError as e:
            raise _of_leaf(path, e) from None


def _of_leaf(path: tuple[Any, ...], e: errors.MeshrtError) -> errors.MeshrtError:
    return type(e)(f"device_put of x{tree_util.keystr(path)}: {e}")


_REFUSED = (errors.ShardingError, errors.MeshError, errors.ArgumentTypeError, errors.ArgumentValueError)


def _put_high(x: Any, device: Any, donate: Any, may_alias: Any) -> Any:
    """Inside of a traced function, where values of high types are tracers of their own."""
    leaves, treedef, full = outlined(x)
    targets, _, _ = _asked(device, donate, may_alias, full, len(tree_util.tree_leaves(full)))
    said = iter([(partial(path_in, full, i), t) for i, t in enumerate(targets)])

    def put(value: Any, path: Callable[[], str], target: Any) -> Any:
        try:
            return _put_traced(value, target)
        except _REFUSED as e:
            raise type(e)(f"device_put of x{path()}: {e}") from None

    return treedef.unflatten([of_arrays(put, leaf, said) for leaf in leaves])


def _asked(device: Any, donate: Any, may_alias: Any, x: Any, n: int) -> tuple[Sequence[Any], Any, Any]:
    """For each array where it goes, whether it is donated, and whether the result may share its memory."""
    targets = _targets(device, x, n)
    donated, aliases = _flags("donate", donate, x, n), _flags("may_alias", may_alias, x, n)
    if any(d and a for d, a in zip(donated, aliases)):
        raise errors.ArgumentValueError(
            "may_alias and donate cannot be True at the same time. device_put either shares the memory of an array or "
            "takes it away"
        )
    return targets, donated, aliases


def _is_target(t: Any) -> bool:
    return t is None or isinstance(t, (Sharding, PartitionSpec, jaxlib_api.Device, Format, Space, Layout))


def _targets(device: Any, x: Any, n: int) -> Sequence[Any]:
    if _is_target(device):
        return [device] * n
    try:
        return spread(device, x, _is_target)
    except errors.TreeError:
        fitted = fitting(device, tree_util.tree_structure(x), _is_target)
        found = structure_mismatch("device", device, fitted, _is_target)
        raise errors.TreeError(
            "device_put device specification must be a tree prefix of the corresponding value; it is not at "
            f"{capture()}. {found}"
        ) from None


def _flags(name: str, given: Any, x: Any, n: int) -> Sequence[bool | None]:
    """A flag for each leaf."""
    if given is None or isinstance(given, bool):
        return [given] * n
    try:
        return tree_util.broadcast_prefix(given, x, is_leaf=lambda flag: flag is None)
    except errors.TreeError as e:
        raise errors.TreeError(f"{name} of device_put must be a bool or a pytree prefix of its value x: {e}") from None


def _place_of(target: Any, leaf: Any) -> Sharding | Format | None:
    """Where a leaf is to go."""
    if isinstance(target, Format):
        if target.is_auto:
            raise errors.ArgumentValueError(
                f"sharding and layout in `Format` instance should be concrete. Got layout: {target} for input "
                f"{aval_of(leaf).short()}; Layout.AUTO is for jit, which tells what it chose in "
                "lower(...).compile().input_formats"
            )
        return Format(target.layout, _sharding_of(target.sharding))
    if isinstance(target, Space):
        here = leaf.sharding if type(leaf) is Array else _here()
        if target is Space.Any:
            return here if type(leaf) is Array and leaf.committed else None
        if target is Space.Device and here.is_in_default_memory:
            return here
        return here.with_memory_kind(kind_of(target, here.device_assignment[0]))
    return _as_laid_out(leaf, _sharding_of(target))


def _here() -> Sharding:
    """Where values go that are on no device yet."""
    mesh = get_mesh()
    return SingleDeviceSharding(default_device()) if mesh.empty else NamedSharding(mesh, PartitionSpec())


def _as_laid_out(leaf: Any, sharding: Sharding | None) -> Sharding | Format | None:
    """Where a leaf goes for which no layout is said: with the one that it has, where its parts stay what they are."""
    if sharding is None or type(leaf) is not Array or leaf._sig.layout is None or not sharding.is_in_default_memory:
        return sharding
    stays = leaf.sharding.layout_key(leaf.ndim) == sharding.layout_key(leaf.ndim)
    return Format(leaf._sig.layout, sharding) if stays else sharding


def _sharding_of(target: Any) -> Sharding | None:
    if isinstance(target, NamedSharding):
        refuse_manual(target)
    if target is None or isinstance(target, Sharding):
        if isinstance(target, NamedSharding):
            return on_mesh_in_context(target)
        return target
    if isinstance(target, PartitionSpec):
        mesh = get_mesh()
        if mesh.empty:
            raise _no_mesh(target)
        return NamedSharding(mesh, target)
    if isinstance(target, jaxlib_api.Device):
        return SingleDeviceSharding(target)
    fix = (
        f"say where too: Format({target}, sharding)"
        if isinstance(target, Layout)
        else f"it is of type {type(target).__name__}"
    )
    raise errors.ArgumentValueError(
        "`meshrt.device_put` only accepts `None`, `meshrt.sharding.Sharding`, `meshrt.Device`, `Format`, "
        f"`meshrt.memory.Space` or a pytree of these values. Received invalid value: {target!r}; {fix}"
    )


def _put_traced(leaf: Any, target: Any) -> Any:
    """Inside a traced function: a constraint over a mesh, which may be abstract, or a device to run on.

    A bare device is but advice: values that are moved one by one go there, a program runs where its caller says.
    """
    is_advice = isinstance(target, jaxlib_api.Device)
    if isinstance(target, Format):
        layout = target.layout
        if layout is None or (isinstance(layout, Layout) and layout.is_default):
            target = target.sharding
    if target is None or target is Space.Any:
        return leaf if isinstance(leaf, Tracer) or aval_of(leaf).is_key else copy_p.bind(leaf)
    if isinstance(target, Space):
        return memory_put_p.bind(leaf, kind=kind_of_space(target))
    if isinstance(target, Format):
        raise errors.UnsupportedError(
            f"device_put to {target!r} at {capture()} inside a compiled function: values within a program lie "
            "row-major. Ask for another layout in the out_shardings of jit, or put the result there behind it"
        )
    kind = getattr(target, "other_memory", None)
    in_context = isinstance(target, PartitionSpec)
    if in_context:
        mesh = get_abstract_mesh()
        if mesh.empty:
            raise _no_mesh(target)
        target = NamedSharding(mesh, target)
    elif not isinstance(target, NamedSharding):
        target = _sharding_of(target)
    kinds = set(target.mesh.axis_types) if isinstance(target, NamedSharding) else set()
    in_type = kinds == {AxisType.Explicit}
    if isinstance(target, NamedSharding):
        require_fit(leaf, target, "device_put", is_hint=AxisType.Explicit in kinds)
        target.shard_shape(aval_of(leaf).shape)
        if kinds >= {AxisType.Explicit, AxisType.Auto}:
            leaf = _put_in_type(leaf, target)
    if in_type:
        out = put(_on_devices(leaf, target, PartitionSpec()), target.abstract().with_memory_kind(None))
    else:
        value = leaf.concrete() if isinstance(leaf, Tracer) else leaf
        source = value.sharding if type(value) is Array else None
        out = device_put_p.bind(leaf, sharding=target, source=source, advice=is_advice)
    if kind is not None:
        return memory_put_p.bind(out, kind=kind)
    # A sharding over an AbstractMesh that names no memory leaves values where they are.
    stays = isinstance(target, NamedSharding) and target.memory_kind is None and not in_context
    return out if stays else in_space(out, DEVICE)


def _put_in_type(leaf: Any, target: NamedSharding) -> Any:
    """A value whose type says what a sharding over a mesh of both types says of Explicit axes, as that of an array
    does which lies so. Of a dimension that is left open it says what it did.

    UnsupportedError where an Auto axis splits a dimension before an Explicit one does: in programs types come first.
    """
    aval = aval_of(leaf)
    spec = target.spec.padded(aval.ndim)
    wanted = typed(aval, target)
    for given, said in zip(spec, entries_of(wanted)):
        if axes_of(given)[: len(axes_of(said))] != axes_of(said):
            first = (*axes_of(said), *[a for a in axes_of(given) if a not in axes_of(said)])
            raise errors.UnsupportedError(
                f"device_put to {target.spec} at {capture()} inside a compiled function: a dimension that axes of both "
                f"types split is split over Explicit ones first, as in {first}, since its type names those. Write them "
                "first, or put the value there outside of the function"
            )
    if PartitionSpec.UNCONSTRAINED in spec and aval.explicit is not None:
        pairs = zip(spec, entries_of(aval), entries_of(wanted))
        dims = [own if e is PartitionSpec.UNCONSTRAINED else new for e, own, new in pairs]
        wanted = typed(aval, target.update(spec=target.spec.update(partitions=dims)))
    if wanted is aval:
        return leaf
    open_ = PartitionSpec(*[PartitionSpec.UNCONSTRAINED] * aval.ndim)
    return put(_on_devices(leaf, target, open_), sharding_of(wanted, target.mesh.abstract_mesh))


def _on_devices(leaf: Any, target: NamedSharding, spec: PartitionSpec) -> Any:
    """A value on the devices of `target`, if that names some: what splits it stands in its type, but not where it is.
    In a program this leaves it as it is; one that a transformation moves by itself goes there, whole."""
    own = aval_of(leaf).explicit
    if not isinstance(target.mesh, Mesh) or not (own is None or own.mesh is target.mesh.abstract_mesh):
        return leaf
    return device_put_p.bind(leaf, sharding=NamedSharding(target.mesh, spec), source=None, advice=False)


def _no_mesh(target: PartitionSpec) -> errors.MeshContextError:
    return errors.MeshContextError(
        f"device_put with {target!r} needs a mesh in the context. Please set a mesh via `meshrt.set_mesh` if a "
        "PartitionSpec is passed to device_put, or pass NamedSharding(mesh, spec)"
    )
