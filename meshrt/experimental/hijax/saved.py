"""High types in files: exported functions and saved programs that take or give values of such types.

    a high type {"type": name, "of": {field: ...}}    of arrays {"array": {...}}    a structure {"tree": {...}}
    a tuple [...]    a number, a text, None: itself

As with classes of pytrees, a file names a type by what the program that reads it has registered too.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from meshrt import errors, tree_files
from meshrt.core.as_data import type_from_data, type_to_data
from meshrt.core.high import HiType
from meshrt.core.types import ShapedArray
from meshrt.transforms.high import TakenApart
from meshrt.xla.jaxlib_api import PyTreeDef

__all__ = ["register_hitype_serialization"]

_names: dict[type, str] = {}
_classes: dict[str, type] = {}


def register_hitype_serialization(cls: type, *, serialized_name: str) -> type:
    """Lets functions that take or give values of a high type be written to files, by `export` and `Compiled.save`.

    Args:
      cls: a dataclass, the type: its fields are types of arrays, high types, structures of pytrees, numbers, texts,
        None and tuples of such. It is returned.
      serialized_name: stands in the file; unique, and the same where the file is read.

    Raises:
      TreeError: no dataclass of high types, an empty name, or a class or a name that has been registered before.

    >>> @dataclass(frozen=True)
    ... class PairType(HiType):
    ...     part: ShapedArray
    >>> register_hitype_serialization(PairType, serialized_name="docs.PairType") is PairType
    True
    """
    if not (isinstance(cls, type) and issubclass(cls, HiType) and dataclasses.is_dataclass(cls)):
        raise errors.TreeError(f"{cls} is not a dataclass that derives from HiType, as types in files are")
    if not isinstance(serialized_name, str) or not serialized_name:
        raise errors.TreeError(f"serialized_name must be a string with something in it. Got {serialized_name!r}")
    if cls in _names or serialized_name in _classes:
        known = f"{cls} as {_names[cls]!r}" if cls in _names else f"{serialized_name!r} for {_classes[serialized_name]}"
        raise errors.TreeError(f"registered for files already: {known}")
    _names[cls], _classes[serialized_name] = serialized_name, cls
    return cls


def _to_data(value: Any) -> Any:
    if isinstance(value, ShapedArray):
        return {"array": type_to_data(value)}
    if isinstance(value, HiType):
        if type(value) not in _names:
            raise errors.TreeError(
                f"values of the high type {value} cannot be written to a file: files hold those whose types were "
                "registered with meshrt.experimental.hijax.register_hitype_serialization. Register "
                f"{type(value).__name__}, or take and give the arrays"
            )
        declared: Any = value  # a dataclass, as registration asks
        fields = {f.name: _to_data(getattr(value, f.name)) for f in dataclasses.fields(declared)}
        return {"type": _names[type(value)], "of": fields}
    if isinstance(value, PyTreeDef):
        return {"tree": tree_files.to_data(value)}
    if isinstance(value, tuple):
        return [_to_data(v) for v in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise errors.TreeError(f"a high type with {value!r} in it cannot be written to a file; see docs/hijax.md")


def _from_data(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(map(_from_data, data))
    if not isinstance(data, dict):
        return data
    if "array" in data:
        return type_from_data(data["array"])
    if "tree" in data:
        return tree_files.from_data(data["tree"])
    cls = _classes.get(data["type"])
    if cls is None:
        raise errors.TreeError(
            f"a file has values of a high type called {data['type']!r}, which is not registered here: import the "
            "module that calls meshrt.experimental.hijax.register_hitype_serialization for it before the file is read"
        )
    return cls(**{name: _from_data(v) for name, v in data["of"].items()})


def _read(data: bytes) -> HiType:
    kind = _from_data(json.loads(data))
    if not isinstance(kind, HiType) or not all(isinstance(part, ShapedArray) for part in kind.lo_ty()):
        raise errors.TreeError("a file has something else where a high type belongs")
    return kind


tree_files.register_pytree_node_serialization(
    TakenApart, serialized_name="meshrt.high", serialize_auxdata=lambda kind: json.dumps(_to_data(kind)).encode(),
    deserialize_auxdata=_read,
)  # fmt: skip
