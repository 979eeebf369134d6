"""What the axes of a mesh are: names, sizes and types; and the kind of device that an AbstractMesh is meant for."""

from __future__ import annotations

import enum
import operator
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from meshrt import errors

__all__ = ["AbstractDevice", "AxisType", "AxisTypes", "axis_names_of", "axis_sizes_of", "axis_types_of"]


class AxisType(enum.Enum):
    """Who decides shardings along an axis.

    Auto: propagation. Explicit: the types of values. Manual: the user's code, which sees one shard (`shard_map`).

    `User` and `Collective` are old names of Explicit and Manual.

    >>> meshrt.make_mesh((8,), ("data",), axis_types=(meshrt.sharding.AxisType.Auto,)).axis_types
    (Auto,)
    """

    Auto = 1
    Explicit = 2
    Manual = 3
    User = 2
    Collective = 3

    def __repr__(self) -> str:
        return self.name


# The old name of the class.
AxisTypes = AxisType


@dataclass(frozen=True, slots=True)
class AbstractDevice:
    """The kind of device that an AbstractMesh is meant for: what is lowered under it is for that platform, and devices
    of another kind are refused. It takes no part in comparing meshes, nor in what a function is traced for.

    `device_kind` and `platform` are named as the device names them; `num_cores` is how many cores it has, None where
    its platform does not tell.

    >>> v5e = meshrt.sharding.AbstractDevice("TPU v5 lite", 1, "tpu")
    >>> meshrt.sharding.AbstractMesh((4,), ("x",), abstract_device=v5e).abstract_device.platform
    'tpu'
    """

    device_kind: str
    num_cores: int | None
    platform: str

    def describe(self) -> str:
        """As it stands in the repr of a mesh."""
        return f"device_kind={self.device_kind}, num_cores={self.num_cores}, platform={self.platform}"

    def __repr__(self) -> str:
        return f"AbstractDevice({self.describe()})"

    @staticmethod
    def of(device: Any) -> AbstractDevice:
        """That of a device, also of one that only looks like it."""
        platform = getattr(device, "platform", "")
        cores = getattr(device, {"tpu": "num_cores", "gpu": "core_count"}.get(platform, ""), None)
        return AbstractDevice(getattr(device, "device_kind", platform), cores, platform)


def axis_names_of(axis_names: Any) -> tuple[Hashable, ...]:
    """A name or a sequence of names as a tuple. MeshError if one is None or stands twice."""
    names = (axis_names,) if isinstance(axis_names, str) else tuple(axis_names)
    if any(n is None for n in names):
        raise errors.MeshError(f"Mesh axis names cannot be None. Got: {names}")
    for n in names:
        if names.count(n) > 1:
            raise errors.MeshError(f"Mesh axis names must differ, but {n!r} stands twice in {names}; rename one")
    return names


def axis_sizes_of(sizes: Any) -> tuple[int, ...]:
    """A size or a sequence of sizes as a tuple. MeshError unless they are positive ints."""
    given = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    try:
        out = tuple(operator.index(s) for s in given if not isinstance(s, bool))
    except TypeError:
        out = ()
    if len(out) != len(given) or any(s < 1 for s in out):
        raise errors.MeshError(f"the sizes of mesh axes must be positive ints. Got {given}")
    return out


def axis_types_of(axis_types: Any, names: tuple[Hashable, ...], what: str) -> tuple[AxisType, ...]:
    """One type per name. `axis_types` is None (all Auto), one type for all axes, a sequence with one for each, or the
    old form {type: name or names}, where axes that are not named are Auto.

    Raises:
      ShardingTypeError: something else. MeshError: not as many as names, or a name that is no axis.
    """
    if axis_types is None:
        return (AxisType.Auto,) * len(names)
    if isinstance(axis_types, AxisType):
        return (axis_types,) * len(names)
    if isinstance(axis_types, Mapping):
        return _by_type(axis_types, names, what)
    if not isinstance(axis_types, Sequence) or isinstance(axis_types, str):
        raise errors.ShardingTypeError(
            f"axis_types passed to {what} must be an AxisType or a tuple of them, one per axis. Got {axis_types!r}"
        )
    types = tuple(axis_types)
    _check_types(types, what)
    if len(types) != len(names):
        raise errors.MeshError(
            f"Number of axis names should match the number of axis_types. Got axis_names={names} and axis_types={types}"
        )
    return types


def _check_types(types: Iterable[Any], what: str) -> None:
    for t in types:
        if not isinstance(t, AxisType):
            raise errors.ShardingTypeError(
                f"axis_types passed to {what} must be of type `meshrt.sharding.AxisType`. Got {t!r} of type {type(t)}"
            )


def _by_type(axis_types: Mapping[Any, Any], names: tuple[Hashable, ...], what: str) -> tuple[AxisType, ...]:
    _check_types(axis_types, what)
    found: dict[Hashable, AxisType] = {}
    for kind, named in axis_types.items():
        for name in named if isinstance(named, tuple | list | set | frozenset) else (named,):
            if name not in names:
                raise errors.MeshError(
                    f"axis_types passed to {what} makes {name!r} {kind!r}, which is not one of its axes {names}"
                )
            if found.setdefault(name, kind) is not kind:
                raise errors.MeshError(
                    f"axis_types passed to {what} makes {name!r} both {found[name]!r} and {kind!r}; keep one"
                )
    return tuple(found.get(n, AxisType.Auto) for n in names)
