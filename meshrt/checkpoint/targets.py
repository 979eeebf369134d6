"""What each leaf of a checkpoint is to become: decided from what is stored, what the caller has (`like`) and where
arrays are to lie. All that does not fit is told at once, before anything is read."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt._keytypes import KEY_IMPLS, KeyType
from meshrt.checkpoint.manifest import Manifest, StoredArray, StoredLeaf
from meshrt.core.high import HiType, is_high_value
from meshrt.core.types import ShapedArray, aval_of
from meshrt.runtime import backend
from meshrt.runtime.array import Array, Signature, signature
from meshrt.sharding.as_data import sharding_from_data
from meshrt.sharding.context import get_mesh
from meshrt.sharding.make import make_mesh
from meshrt.sharding.mesh import Mesh
from meshrt.sharding.named import NamedSharding, Sharding, SingleDeviceSharding
from meshrt.sharding.spec import PartitionSpec

__all__ = [
    "DeviceTarget", "HostArray", "Misfit", "Options", "Target", "high_type_of", "mismatch", "python_from_data",
    "stored_aval", "target_of",
]  # fmt: skip

PYTHON = (bool, int, float, complex, str, bytes)


@dataclass(frozen=True, slots=True)
class Options:
    """What `restore` was asked for, whatever the leaf."""

    mesh: Mesh | None = None
    as_numpy: bool = False
    cast: bool = False


@dataclass(frozen=True, slots=True)
class DeviceTarget:
    """An array on devices, of which `dtype` are the elements that it has physically."""

    sig: Signature
    dtype: np.dtype


@dataclass(frozen=True, slots=True)
class Target:
    """What becomes of one leaf: arrays on devices or (None) NumPy arrays, and how they make up the leaf.

    `made` is "array", "numpy", "numpy scalar", "python" (of the type `about`, None for that which is stored) or "high"
    (of the type `about`).
    """

    leaf: StoredLeaf
    made: str
    arrays: tuple[DeviceTarget | None, ...]
    about: Any = None


@dataclass(frozen=True, slots=True)
class HostArray:
    """The type of a NumPy array (of a scalar, if `is_scalar`), as ShapeDtypeStruct is that of an array."""

    shape: tuple[int, ...]
    dtype: np.dtype
    is_scalar: bool = False


class Misfit(Exception):
    """One leaf that does not fit; the message says how."""


def mismatch(path: Any, found: Sequence[str]) -> errors.CheckpointMismatchError:
    shown = "; ".join(text.rstrip(".") for text in found[:10]) + (
        f"; and {len(found) - 10} more" if len(found) > 10 else ""
    )
    return errors.CheckpointMismatchError(
        f"the checkpoint {path} does not hold what is to be restored: {shown}. `meshrt checkpoint ls --leaves {path}` "
        "shows what it holds; give a like= of that kind (partial=True takes some leaves, cast=True converts dtypes)"
    )


# ----------------------------------------------------------------------------------------------------------------------
# Types of what is stored


def stored_aval(leaf: StoredLeaf, like: Any = None) -> ShapedArray:
    """The type of the one array that a leaf is, as programs know it: of keys, keys."""
    (array,) = leaf.arrays
    if leaf.kind != "key":
        return ShapedArray(array.shape, array.dtype, array.weak_type)
    kind = getattr(like, "dtype", None)
    if not isinstance(kind, KeyType) or kind.impl.name != leaf.about:
        if leaf.about not in KEY_IMPLS:
            raise Misfit(
                f"{leaf.name} are keys of the generator {leaf.about!r}, which is not known here: give such keys in "
                "like="
            )
        kind = KeyType(leaf.about)
    suffix = kind.physical_suffix
    if array.dtype != kind.physical_dtype or array.shape[len(array.shape) - len(suffix) :] != suffix:
        raise Misfit(f"{leaf.name} is stored as {array.dtype}{list(array.shape)}, which are no words of {kind}")
    return ShapedArray(array.shape[: len(array.shape) - len(suffix)], kind)


def python_from_data(data: Any) -> Any:
    """The value that `python_to_data` wrote. ValueError, TypeError or KeyError if it is none."""
    ((kind, value),) = data.items()
    plain = {"bool": bool, "int": int, "str": str}.get(kind)
    if plain is not None:
        if type(value) is not plain:
            raise ValueError(f"{value!r} is no {kind}")
        return value
    if kind == "float":
        return float.fromhex(value)
    if kind == "complex":
        return complex(*map(float.fromhex, value))
    if kind == "bytes":
        return base64.b64decode(value, validate=True)
    raise ValueError(f"{kind!r} is no type of Python values")


# ----------------------------------------------------------------------------------------------------------------------
# Targets


def target_of(leaf: StoredLeaf, like: Any, sharding: Any, manifest: Manifest, options: Options) -> Target:
    """The target of one leaf; `like` is what stands there in the caller's tree, None without one, `sharding` what was
    asked for there. Misfit if it cannot be."""
    high = high_type_of(like)
    if leaf.kind == "high" or high is not None:
        return _high(leaf, high, like, sharding, manifest, options)
    if isinstance(like, PYTHON) and not isinstance(like, np.generic):
        if leaf.kind == "python" or leaf.arrays[0].shape == ():
            _python_value(leaf)
            return Target(leaf, "python", (None,) * len(leaf.arrays), type(like) if leaf.arrays else None)
        raise Misfit(f"{leaf.name} is {_shown(leaf)}, and a {type(like).__name__} is wanted")
    if leaf.kind == "python":
        return _of_python(leaf, like, sharding, manifest, options)
    aval = stored_aval(leaf, like)
    if like is not None:
        if not hasattr(like, "shape") or not hasattr(like, "dtype"):
            raise Misfit(f"{leaf.name} is {_shown(leaf)}, and {type(like).__name__} is no type of such leaves")
        _check_like(leaf, aval, like, options)
    host = _is_host(like) or (like is None and leaf.kind.startswith("numpy"))
    if (host and sharding is None) or options.as_numpy:
        scalar = _is_scalar(like) or (like is None and leaf.kind == "numpy scalar")
        return Target(leaf, "numpy scalar" if scalar else "numpy", (None,), _numpy_dtype(like, leaf))
    if like is not None:
        aval = ShapedArray(aval.shape, like.dtype, bool(getattr(like, "weak_type", False)))
    return Target(leaf, "array", (_on_devices(leaf, leaf.arrays[0], aval, like, sharding, manifest, options),))


def _is_host(like: Any) -> bool:
    return isinstance(like, np.ndarray | np.generic | HostArray)


def _is_scalar(like: Any) -> bool:
    return isinstance(like, np.generic) or (isinstance(like, HostArray) and like.is_scalar)


def _numpy_dtype(like: Any, leaf: StoredLeaf) -> Any:
    dtype = getattr(like, "dtype", None)
    return dtype if isinstance(dtype, np.dtype) else leaf.arrays[0].dtype


def _check_like(leaf: StoredLeaf, aval: ShapedArray, like: Any, options: Options) -> None:
    if tuple(like.shape) != aval.shape:
        raise Misfit(f"{leaf.name} has the shape {list(aval.shape)}, and {list(like.shape)} is wanted")
    keys = isinstance(like.dtype, KeyType) or isinstance(aval.dtype, KeyType)
    same = like.dtype == aval.dtype if keys else np.dtype(like.dtype).newbyteorder("=") == aval.dtype
    if not same and (keys or not options.cast):
        raise Misfit(f"{leaf.name} has the dtype {aval.dtype}, and {like.dtype} is wanted")


def _of_python(leaf: StoredLeaf, like: Any, sharding: Any, manifest: Manifest, options: Options) -> Target:
    """A Python value, or an array of no dimensions that it becomes."""
    value = _python_value(leaf)
    if like is None:
        return Target(leaf, "python", ())
    if getattr(like, "shape", None) != () or not isinstance(value, bool | int | float | complex):
        raise Misfit(f"{leaf.name} is {_shown(leaf)}, and {_described(like)} is wanted")
    if _is_host(like) or options.as_numpy:
        return Target(leaf, "numpy scalar" if _is_scalar(like) else "numpy", (), like.dtype)
    aval = ShapedArray((), like.dtype, bool(getattr(like, "weak_type", False)))
    return Target(leaf, "array", (_on_devices(leaf, None, aval, like, sharding, manifest, options),))


def _python_value(leaf: StoredLeaf) -> Any:
    """The value of a leaf of Python's; None for others."""
    if leaf.kind != "python":
        return None
    try:
        return python_from_data(leaf.about)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as e:
        raise Misfit(f"{leaf.name} is no Python value: {e}") from None


def high_type_of(like: Any) -> Any:
    """The high type of what is given for a leaf: a value of one, or the type itself; None for anything else."""
    return like if isinstance(like, HiType) else aval_of(like) if is_high_value(like) else None


def _high(leaf: StoredLeaf, high: Any, like: Any, sharding: Any, manifest: Manifest, options: Options) -> Target:
    if leaf.kind != "high":
        raise Misfit(f"{leaf.name} is {_shown(leaf)}, and a value of type {high} is wanted")
    if high is None and like is not None:
        raise Misfit(f"{leaf.name} is {_shown(leaf)}, and {_described(like)} is wanted")
    if high is None:
        raise Misfit(
            f"{leaf.name} is a {leaf.about}, a value that consists of {len(leaf.arrays)} arrays: give one in like="
        )
    low = high.lo_ty()
    types = [(a.shape, a.dtype) for a in leaf.arrays]
    if [(tuple(a.shape), a.dtype) for a in low] != types:
        raise Misfit(f"{leaf.name} consists of {types}, and {high} of {low}")
    places = sharding if isinstance(sharding, list) else [sharding] * len(low)
    arrays = [
        _on_devices(leaf, stored, ShapedArray(a.shape, a.dtype, a.weak_type), None, place, manifest, options)
        for stored, a, place in zip(leaf.arrays, low, places)
    ]
    return Target(leaf, "high", tuple(arrays), high)


# ----------------------------------------------------------------------------------------------------------------------
# Shardings


def _on_devices(
    leaf: StoredLeaf, stored: StoredArray | None, aval: ShapedArray, like: Any, sharding: Any, manifest: Manifest,
    options: Options,
) -> DeviceTarget:  # fmt: skip
    physical = aval.physical()
    if dtypes.canonicalize_dtype(physical.dtype) != physical.dtype:
        raise Misfit(
            f"{leaf.name} has the dtype {physical.dtype}, which arrays have only with the setting enable_x64: set it, "
            "give a like= of another dtype and cast=True, or as_numpy=True"
        )
    where, committed = _sharding(leaf, stored, like, sharding, manifest, options)
    try:
        sig = signature(aval, where, committed)
    except errors.ShardingError as e:
        raise Misfit(f"{leaf.name} cannot be split by {where}: {e}") from None
    return DeviceTarget(sig, physical.dtype)


def _sharding(
    leaf: StoredLeaf, stored: StoredArray | None, like: Any, asked: Any, manifest: Manifest, options: Options
) -> tuple[Sharding, bool]:
    """Where an array is to lie and whether it is committed there: as asked, as `like` does, or as it was saved."""
    if asked is None and isinstance(like, Array) and not like.committed:
        return _default(None), False
    if asked is None:
        asked = None if _is_host(like) else getattr(like, "sharding", None)
    if asked is not None:
        return _over(asked, leaf, options), True
    saved = None if stored is None else stored.sharding
    if saved is None:
        return _default(None), False
    if "single" in saved:
        return _default(saved["single"]), bool(saved.get("committed"))
    if "named" not in saved:
        raise Misfit(f"{leaf.name} was saved without its sharding ({saved.get('other')}): say where it is to be")
    return _saved(saved["named"], leaf, manifest, options), True


def _default(memory_kind: Any) -> Sharding:
    return SingleDeviceSharding(backend.default_device(), memory_kind=memory_kind)


def _over(asked: Any, leaf: StoredLeaf, options: Options) -> Sharding:
    """A sharding with devices: a spec, or a sharding over an AbstractMesh, is one over the mesh at hand."""
    if isinstance(asked, PartitionSpec) or (isinstance(asked, NamedSharding) and not asked.is_concrete):
        mesh = options.mesh if options.mesh is not None else get_mesh()
        if mesh.empty:
            raise Misfit(f"{leaf.name} is to be split by {asked}, which has no devices: give mesh=, or use set_mesh")
        try:
            return NamedSharding(mesh, asked) if isinstance(asked, PartitionSpec) else asked.update(mesh=mesh)
        except errors.ShardingError as e:
            raise Misfit(f"{leaf.name}: {e}") from None
    if not isinstance(asked, Sharding):
        raise Misfit(f"{leaf.name}: {_described(asked)} is neither a sharding nor a PartitionSpec")
    return asked


def _saved(row: Any, leaf: StoredLeaf, manifest: Manifest, options: Options) -> NamedSharding:
    """The sharding that an array had, over the mesh at hand or, if there is none, over one like that which it had."""
    try:
        number = row["mesh"]
        if type(number) is not int or not 0 <= number < len(manifest.meshes):
            raise ValueError(f"mesh {number!r} of {len(manifest.meshes)}")
        old = manifest.meshes[number]
        found = sharding_from_data(old, row)
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise Misfit(f"{leaf.name} was saved with a sharding that makes no sense: {e}") from None
    mesh = options.mesh if options.mesh is not None else get_mesh()
    if mesh.empty:
        if old.size != backend.device_count():
            raise Misfit(
                f"{leaf.name} was split over a mesh {dict(old.shape)} of {old.size} devices, and here are "
                f"{backend.device_count()}: give a mesh= with the axes {list(old.axis_names)}, or shardings="
            )
        mesh = _mesh_like(old)
    try:
        return found.update(mesh=mesh)
    except errors.ShardingError as e:
        raise Misfit(f"{leaf.name} was saved as {found.spec}: {e}") from None


def _mesh_like(old: Any) -> Mesh:
    return make_mesh(old.axis_sizes, old.axis_names, axis_types=old.axis_types)


def _shown(leaf: StoredLeaf) -> str:
    if leaf.kind == "python":
        return f"the Python value {leaf.about}"
    if leaf.kind == "high":
        return f"a {leaf.about} of {len(leaf.arrays)} arrays"
    (array,) = leaf.arrays
    return f"{array.dtype}{list(array.shape)}"


def _described(value: Any) -> str:
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{value.dtype}{list(value.shape)}"
    return f"a {type(value).__name__}"
