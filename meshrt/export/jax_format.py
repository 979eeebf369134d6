"""JAX's files of exported functions: `from_jax` reads what `jax.export` serializes, `to_jax` writes it.

The numbers of fields and of kinds are those of JAX's schema, which keeps them. Constraints on dimension variables are
in no such file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors, tree_files, tree_util
from meshrt._keytypes import KEY_IMPLS, KeyType
from meshrt.core.as_data import dtype_from_data
from meshrt.core.dimensions.scope import SymbolicScope
from meshrt.core.dimensions.shapes import symbolic_shape
from meshrt.core.effects import IO
from meshrt.core.spaces import Space
from meshrt.core.types import ShapedArray
from meshrt.export.checks import DisabledSafetyCheck, default_export_platform
from meshrt.export.exported import Exported
from meshrt.export.flat import Reader, write
from meshrt.export.record import Record, split_types
from meshrt.runtime import backend
from meshrt.sharding.axes import AxisType
from meshrt.sharding.mesh import AbstractMesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import UNCONSTRAINED, PartitionSpec, axes_of
from meshrt.xla.jaxlib_api import treedef_of_node

__all__ = ["flat_from_jax", "from_jax", "module_of_jax", "to_jax"]

_DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128", "bfloat16", "int4", "uint4", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz", "float0", "float8_e4m3", "float8_e3m4", "float8_e8m0fnu", "float4_e2m1fn",
)  # fmt: skip
_KEYS = {27: "threefry2x32", 28: "rbg", 29: "unsafe_rbg"}
_SPACES = {0: Space.Device, 1: Space.Device, 2: Space.Host}
_AXES = (AxisType.Auto, AxisType.Auto, AxisType.Explicit, AxisType.Manual)
# The effect of foreign functions. Others are those of callbacks, which no file holds.
_FOREIGN = "<class 'jax._src.ffi.FfiEffect'>"
_LEAF, _NONE, _TUPLE, _LIST, _DICT, _CUSTOM = range(6)


def from_jax(blob: bytes | bytearray | memoryview, *, trusted: bool = False) -> Exported:
    """The exported function that JAX wrote with ``Exported.serialize``.

    Args:
      trusted: read the program in this process, as JAX does. These files have no checksums, and MLIR's reader ends the
        process on some that are damaged; hence the first call reads in a process of its own, which takes a fraction of
        a second, unless the file is known to be whole.

    Raises:
      SavedProgramError: no such bytes, or cut off. UnsupportedError: what meshrt has no counterpart of: effects
        other than those of foreign functions (`meshrt.ffi.ffi_call`).
        TreeError: containers that are not registered here under their name, with `register_pytree_node_serialization`
        or `register_namedtuple_serialization`.

    >>> from meshrt import export
    >>> blob = export.to_jax(export.export(meshrt.jit(jnp.cos))(np.float32(0)))
    >>> export.from_jax(blob, trusted=True).call(np.float32(0))
    Array(1., dtype=float32)
    """
    return _root(blob, trusted, False)


def flat_from_jax(blob: bytes | bytearray | memoryview) -> Exported:
    """What JAX wrote, to be looked at: without structures of arguments and results, for which classes would have to be
    registered, without effects and derivatives. It is read in this process. Errors as `from_jax`."""
    return _root(blob, True, True)


def _root(blob: bytes | bytearray | memoryview, trusted: bool, is_flat: bool) -> Exported:
    if not isinstance(blob, bytes | bytearray | memoryview):
        raise errors.ArgumentTypeError(f"an exported function is read from bytes. Got {type(blob).__name__}")
    try:
        return _exported(Reader.root(memoryview(blob).cast("B")), trusted, is_flat)
    except (errors.SavedProgramError, errors.UnsupportedError, errors.TreeError):
        raise
    except (errors.MeshrtError, KeyError, IndexError, ValueError, TypeError, OverflowError, RecursionError) as e:
        raise errors.SavedProgramError(
            f"no exported function of JAX's, or one that is damaged ({type(e).__name__}: {e}); serialize it again"
        ) from None


def module_of_jax(blob: bytes | bytearray | memoryview) -> bytes:
    """The StableHLO, an artifact of bytecode, in what ``jax.export`` serialized; nothing else of it is read.

    Raises:
      SavedProgramError: no such bytes, or cut off.
    """
    module = Reader.root(memoryview(blob).cast("B")).data(13)
    if not module.startswith(b"ML\xefR"):
        raise errors.SavedProgramError("no exported function of JAX's: it has no bytecode in it")
    return module


def _exported(table: Reader, trusted: bool, is_flat: bool = False) -> Exported:
    scope = SymbolicScope()
    avals = [_aval(t, scope) for t in table.tables(19)]
    meshes = [_mesh(t) for t in table.tables(20)]
    shardings = [_sharding(t, meshes) for t in table.tables(21)]
    in_avals, out_avals = (tuple(avals[i] for i in table.numbers(k, "<I")) for k in (22, 23))
    if not in_avals and not out_avals:
        in_avals, out_avals = (tuple(_aval(t, scope) for t in table.tables(k)) for k in (3, 5))
    ins, outs = (tuple(None if i == 0 else shardings[i - 1] for i in table.numbers(k, "<I")) for k in (24, 25))
    ins, outs = ins or (None,) * len(in_avals), outs or (None,) * len(out_avals)
    effects = [] if is_flat else _effects(table)
    devices = table.number(18, "<I") or table.number(6, "<h")
    mesh = next((m for m in meshes if m.size == devices), None)
    if devices > 1 and mesh is None and not is_flat:
        raise errors.UnsupportedError(
            f"the function is for {devices} devices and names no mesh; export it with NamedShardings and a new JAX"
        )
    derivative = None if is_flat else table.table(17)
    if is_flat:
        in_tree = tree_util.tree_structure(((0,) * len(in_avals), {}))
        out_tree = tree_util.tree_structure((0,) * len(out_avals))
    else:
        in_tree, out_tree = (_tree(table.table(k)) for k in (2, 4))
    kept = tuple(table.numbers(15, "<H"))
    if (
        in_tree.num_leaves != len(in_avals)
        or out_tree.num_leaves != len(out_avals)
        or max(kept, default=-1) >= len(in_avals)
    ):
        raise errors.SavedProgramError("the structures and types of an exported function do not fit together")
    return Exported(
        fun_name=table.text(1),
        in_tree=in_tree,
        in_avals=split_types(in_avals, ins),
        out_tree=out_tree,
        out_avals=split_types(out_avals, outs),
        in_shardings=ins,
        out_shardings=outs,
        nr_devices=devices,
        platforms=tuple(table.texts(9)),
        ordered_effects=(),
        unordered_effects=(IO,) if effects else (),
        disabled_safety_checks=tuple(_check(t) for t in table.tables(12)),
        mlir_module_serialized=table.data(13),
        calling_convention_version=table.number(14, "<H"),
        module_kept_var_idx=kept,
        uses_global_constants=bool(table.number(16, "<B")),
        mesh=mesh if devices > 1 else None,
        _get_vjp=None if derivative is None else lambda primal: _exported(derivative, trusted),
        _is_trusted=trusted,
    )


def _effects(table: Reader) -> list[str]:
    """The names of effects. UnsupportedError for those of callbacks."""
    effects = [t.text(0) for t in (*table.tables(10), *table.tables(11))]
    if table.tables(10) or set(effects) - {_FOREIGN}:
        raise errors.UnsupportedError(f"the function has effects, which meshrt knows nothing of: {', '.join(effects)}")
    return effects


def _aval(table: Reader, scope: SymbolicScope) -> ShapedArray:
    kind, shape = table.number(2, "<b"), ", ".join(table.texts(1))
    dtype: Any = KeyType(KEY_IMPLS[_KEYS[kind]]) if kind in _KEYS else dtype_from_data(_DTYPES[kind])
    sizes = symbolic_shape(shape, scope=scope)
    return ShapedArray(sizes, dtype, memory_space=_SPACES[table.number(3, "<b")])


def _mesh(table: Reader) -> AbstractMesh:
    types = tuple(_AXES[k] for k in table.numbers(2, "<b"))
    sizes, names = tuple(table.numbers(0, "<I")), tuple(table.texts(1))
    return AbstractMesh(sizes, names, types) if types else AbstractMesh(sizes, names)


def _sharding(table: Reader, meshes: Sequence[AbstractMesh]) -> NamedSharding:
    spec, own = table.table(1), table.table(0)
    mesh = meshes[table.number(3, "<I")] if own is None else _mesh(own)
    if spec is None:
        return NamedSharding(mesh, PartitionSpec())
    entries = [_entry(axes.texts(0)) for axes in spec.tables(0)]
    reduced, unreduced = (frozenset(spec.texts(k)) for k in (1, 2))
    return NamedSharding(mesh, PartitionSpec(*entries, reduced=reduced, unreduced=unreduced))


def _entry(axes: list[str]) -> Any:
    return None if not axes else axes[0] if len(axes) == 1 else tuple(axes)


def _check(table: Reader) -> DisabledSafetyCheck:
    kind = table.number(0, "<b")
    return DisabledSafetyCheck.platform() if kind == 0 else DisabledSafetyCheck.custom_call(table.text(1))


def _tree(table: Reader | None) -> Any:
    if table is None:
        raise errors.SavedProgramError("the exported function has no structure of arguments or results")
    kind, children = table.number(0, "<b"), [_tree(t) for t in table.tables(1)]
    if kind == _LEAF:
        return tree_util.tree_structure(0)
    if kind == _NONE:
        return tree_util.tree_structure(None)
    if kind in (_TUPLE, _LIST):
        return treedef_of_node(tuple if kind == _TUPLE else list, None, children)
    if kind == _DICT:
        keys = table.texts(2)
        if len(keys) != len(children) or keys != sorted(set(keys)):
            raise errors.SavedProgramError(f"a dict of {len(children)} has the keys {keys}")
        return treedef_of_node(dict, keys, children)
    return tree_files.from_named(table.text(3), table.data(4), children)


# ---------------------------------------------------------------------------------------------------------------------
# Writing


def to_jax(exported: Record, vjp_order: int = 0) -> bytearray:
    """The exported function as JAX reads it with ``jax.export.deserialize``, with its first `vjp_order` derivatives.

    Raises:
      UnsupportedError: structures with other containers than tuples, lists, dicts with names as keys, and registered
        ones; effects other than those of foreign functions.
      ArgumentValueError: more derivatives than there are.

    >>> from meshrt import export
    >>> made = export.export(meshrt.jit(jnp.sin))(np.float32(0))
    >>> isinstance(export.to_jax(made), bytes | bytearray)
    True
    """
    if not isinstance(exported, Record):
        raise errors.ArgumentTypeError(f"to_jax writes what export.export makes. Got {type(exported).__name__}")
    return write(_table(exported, vjp_order))


def _table(exported: Record, vjp_order: int) -> dict[int, Any]:
    effects = (*exported.ordered_effects, *exported.unordered_effects)
    if set(effects) - {IO}:
        raise errors.UnsupportedError(
            f"{exported.fun_name} has effects, which JAX's files have no names for: {', '.join(map(str, effects))}"
        )
    # JAX's files have no open dimensions; propagation decides on those, as of what nothing is said.
    ins, outs = (
        [None if s is not None and UNCONSTRAINED in s.spec.partitions else s for s in shardings]
        for shardings in (exported.in_shardings, exported.out_shardings)
    )
    shardings = (*ins, *outs)
    known = [s for s in dict.fromkeys(shardings) if s is not None]
    meshes = list(dict.fromkeys(s.mesh.abstract_mesh for s in known))
    avals = list(dict.fromkeys((*exported.in_avals, *exported.out_avals)))

    def places(values: Sequence[Any], among: list[Any], first: int) -> tuple[str, list[int]]:
        return "<I", [0 if v is None else first + among.index(v) for v in values]

    kept, kind = list(exported.module_kept_var_idx), _device_kind(exported.platforms) if meshes else None
    return {
        0: ("<H", 3), 1: exported.fun_name, 2: _tree_table(exported.in_tree),
        3: [_aval_table(a) for a in exported.in_avals], 4: _tree_table(exported.out_tree),
        5: [_aval_table(a) for a in exported.out_avals], 6: ("<h", exported.nr_devices),
        9: list(exported.platforms), 11: [{0: _FOREIGN} for _ in effects] or None,
        12: [_check_table(c) for c in exported.disabled_safety_checks],
        13: exported.mlir_module_serialized, 14: ("<H", exported.calling_convention_version), 15: ("<H", kept),
        16: ("<B", int(exported.uses_global_constants)),
        17: _table(exported.vjp(), vjp_order - 1) if vjp_order else None,
        18: ("<I", exported.nr_devices), 19: [_aval_table(a) for a in avals],
        20: [_mesh_table(m, kind) for m in meshes], 21: [_sharding_table(s, meshes) for s in known],
        22: places(exported.in_avals, avals, 0), 23: places(exported.out_avals, avals, 0),
        24: places(ins, known, 1), 25: places(outs, known, 1),
    }  # fmt: skip


def _aval_table(aval: ShapedArray) -> dict[int, Any]:
    if isinstance(aval.dtype, KeyType):
        kind = next((k for k, name in _KEYS.items() if name == aval.dtype.impl.name), None)
    else:
        name = "float0" if aval.dtype == dtypes.float0 else np.dtype(aval.dtype).name
        kind = _DTYPES.index(name) if name in _DTYPES else None
    if kind is None:
        raise errors.UnsupportedError(f"JAX's files have no arrays of dtype {aval.dtype}")
    space = 2 if aval.memory_space is Space.Host else 1
    return {0: ("<b", 0), 1: [str(n) for n in aval.shape], 2: ("<b", kind), 3: ("<b", space)}


def _mesh_table(mesh: AbstractMesh, kind: tuple[str, str] | None) -> dict[int, Any]:
    types = [_AXES.index(t, 1) for t in mesh.axis_types]
    table: dict[int, Any] = {
        0: ("<I", list(mesh.axis_sizes)), 1: [str(n) for n in mesh.axis_names], 2: ("<b", types),
    }  # fmt: skip
    if kind is not None:
        table[3] = {0: kind[0], 2: kind[1]}
    return table


def _device_kind(platforms: Sequence[str]) -> tuple[str, str] | None:
    """Kind and platform of the devices here, if they are what the function is for: JAX compares meshes by them, too."""
    if set(platforms) != {default_export_platform()}:
        return None
    device = backend.devices()[0]
    return device.device_kind, device.platform


def _sharding_table(sharding: NamedSharding, meshes: list[AbstractMesh]) -> dict[int, Any]:
    spec = sharding.spec
    entries = [{0: [str(a) for a in axes_of(e)]} for e in spec.partitions]
    sums = {k: sorted(map(str, axes)) for k, axes in ((1, spec.reduced), (2, spec.unreduced))}
    return {1: {0: entries, **sums}, 3: ("<I", meshes.index(sharding.mesh.abstract_mesh))}


def _check_table(check: DisabledSafetyCheck) -> dict[int, Any]:
    target = check.is_custom_call()
    return {0: ("<b", 0)} if target is None else {0: ("<b", 1), 1: target}


def _tree_table(tree: Any) -> dict[int, Any]:
    found, children = tree.node_data(), [_tree_table(c) for c in tree.children()]
    if found is None:
        return {0: ("<b", _LEAF)}
    cls, aux = found
    kinds = {type(None): _NONE, tuple: _TUPLE, list: _LIST, dict: _DICT}
    named = tree_files.to_named(cls, aux)
    if named is not None:
        return {0: ("<b", _CUSTOM), 1: children or None, 3: named[0], 4: named[1]}
    if cls not in kinds or (cls is dict and not all(isinstance(k, str) for k in aux)):
        raise errors.UnsupportedError(
            "JAX's files hold tuples, lists, dicts with names as keys, and what was registered with "
            f"meshrt.export.register_pytree_node_serialization. Got a {cls.__name__} with {aux!r}"
        )
    return {0: ("<b", kinds[cls]), 1: children or None, 2: list(aux) if cls is dict else None}
