"""The operations that the partitioner writes of its own accord, with the names of their attributes in printing order.

>>> attributes("stablehlo.concatenate", 1).text
'dimension = 1 : i64'
>>> attributes("stablehlo.slice", (0, 2), (4, 4), (1, 1))["limit_indices"].values
(4, 4)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..kinds import CollectiveKind
from .attributes import (
    Attribute,
    Attributes,
    Enum,
    Flag,
    GatherNumbers,
    Integer,
    Integers,
    ScatterNumbers,
    Splat,
    String,
    Symbol,
)

__all__ = ["WRITTEN", "attributes", "communication", "splat_constant"]


def _direction(value: str) -> Enum:
    return Enum("comparison_direction", value)


def _comparison(value: str) -> Enum:
    return Enum("comparison_type", value)


def _transform(value: str) -> Enum:
    return Enum("fft_type", value)


def _itself(value: Attribute) -> Attribute:
    return value


# By operation its attributes: name, and the class of its value. What operations of a program are written with again
# beside these (`Writer.local_copy`) has the attributes that the program gave them.
WRITTEN: Mapping[str, Mapping[str, Callable[[Any], Attribute]]] = {
    "chlo.top_k": {"k": Integer},
    "func.call": {"callee": Symbol},
    "stablehlo.broadcast_in_dim": {"broadcast_dimensions": Integers},
    "stablehlo.compare": {"comparison_direction": _direction, "compare_type": _comparison},
    "stablehlo.concatenate": {"dimension": Integer},
    "stablehlo.constant": {"value": _itself},
    "stablehlo.custom_call": {"call_target_name": String, "operand_layouts": _itself, "result_layouts": _itself},
    "stablehlo.dynamic_slice": {"slice_sizes": Integers},
    "stablehlo.fft": {"fft_type": _transform, "fft_length": Integers},
    "stablehlo.gather": {"dimension_numbers": GatherNumbers, "slice_sizes": Integers, "indices_are_sorted": Flag},
    "stablehlo.iota": {"iota_dimension": Integer},
    "stablehlo.map": {"dimensions": Integers},
    "stablehlo.pad": {"edge_padding_low": Integers, "edge_padding_high": Integers, "interior_padding": Integers},
    "stablehlo.reduce": {"dimensions": Integers},
    "stablehlo.reverse": {"dimensions": Integers},
    "stablehlo.scatter": {
        "indices_are_sorted": Flag, "scatter_dimension_numbers": ScatterNumbers, "unique_indices": Flag,
    },
    "stablehlo.slice": {"start_indices": Integers, "limit_indices": Integers, "strides": Integers},
    "stablehlo.sort": {"dimension": Integer, "is_stable": Flag},
    "stablehlo.transpose": {"permutation": Integers},
}  # fmt: skip

_KNOWN: dict[tuple[Any, ...], Attributes] = {}  # by name and values


def attributes(name: str, *values: Any) -> Attributes:
    """The attributes of an operation `name` that is written: `values` in the order of `WRITTEN`, as numbers, tuples and
    words; the last ones may be left out."""
    key = (name, values)
    found = _KNOWN.get(key)
    if found is None:
        found = Attributes.of({n: of(v) for (n, of), v in zip(WRITTEN[name].items(), values)})
        if len(_KNOWN) > 1 << 14:
            _KNOWN.clear()
        _KNOWN[key] = found
    return found


def splat_constant(literal: str, shape: tuple[int, ...], dtype: str) -> Attributes:
    """Those of a constant all of whose elements are `literal`, as MLIR writes it."""
    key = ("splat", literal, shape, dtype)
    found = _KNOWN.get(key)
    if found is None:
        found = _KNOWN[key] = Attributes.of({"value": Splat(literal, shape, dtype)})
    return found


def communication(kind: CollectiveKind, groups: Attribute, *numbers: int) -> Attributes:
    """Those of a collective of some kind within `groups`: `numbers` are the dimensions along which it moves elements,
    and the size of its groups where the kind repeats that."""
    names = kind.dimensions if kind.counts is None else (*kind.dimensions, kind.counts)
    found: dict[str, Attribute] = {name: Integer(n) for name, n in zip(names, numbers, strict=True)}
    return Attributes.of({**found, kind.groups_attribute: groups})
