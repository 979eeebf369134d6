"""Attributes of operations: values that are compared and hashed, and become text only where a program is printed.

>>> Attributes.of({"dimension": Integer(1), "is_stable": Flag(True)}).text
'dimension = 1 : i64, is_stable = true'
>>> Integers((2, 3)) == Integers((2, 3)), Integers((2, 3)).text
(True, 'array<i64: 2, 3>')
"""

from __future__ import annotations

import abc
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from propagation.attributes import ConvDims, DotDims, GatherDims, ScatterDims
from propagation.quoting import quote, quote_symbol

from .types import tensor_text

__all__ = [
    "NONE", "Array", "Attribute", "Attributes", "ConvNumbers", "Dense", "DeviceLists", "DotNumbers", "Enum", "Flag",
    "Flags", "GatherNumbers", "Given", "Integer", "Integers", "Pairs", "ScatterNumbers", "Splat", "String", "Symbol",
    "splat_literal",
]  # fmt: skip


class Attribute(abc.ABC):
    """A value that an operation carries beside its operands. Equal ones print alike."""

    __slots__ = ()

    @property
    @abc.abstractmethod
    def text(self) -> str:
        """As MLIR writes it."""


@dataclass(frozen=True, slots=True)
class Given(Attribute):
    """An attribute of the program being partitioned that has no class here: `attr` is MLIR's own."""

    attr: Any

    @property
    def text(self) -> str:
        return str(self.attr)


@dataclass(frozen=True, slots=True)
class Integer(Attribute):
    """`3 : i64`."""

    value: int

    @property
    def text(self) -> str:
        return f"{self.value} : i64"


@dataclass(frozen=True, slots=True)
class Flag(Attribute):
    """`true`."""

    value: bool

    @property
    def text(self) -> str:
        return "true" if self.value else "false"


@dataclass(frozen=True, slots=True)
class String(Attribute):
    """`"text"`."""

    value: str

    @property
    def text(self) -> str:
        return quote(self.value)


@dataclass(frozen=True, slots=True)
class Symbol(Attribute):
    """`@name`: a function of the module."""

    name: str

    @property
    def text(self) -> str:
        return f"@{quote_symbol(self.name)}"


@dataclass(frozen=True, slots=True)
class Integers(Attribute):
    """`array<i64: 1, 2>`: dimensions, sizes, positions."""

    values: tuple[int, ...]

    @property
    def text(self) -> str:
        return f"array<i64: {_listed(self.values)}>" if self.values else "array<i64>"


@dataclass(frozen=True, slots=True)
class Flags(Attribute):
    """`array<i1: true, false>`."""

    values: tuple[bool, ...]

    @property
    def text(self) -> str:
        listed = ", ".join(["true" if v else "false" for v in self.values])
        return f"array<i1: {listed}>" if listed else "array<i1>"


@dataclass(frozen=True, slots=True)
class Array(Attribute):
    """`[a, b]`, of attributes."""

    members: tuple[Attribute, ...]

    @property
    def text(self) -> str:
        return f"[{', '.join([m.text for m in self.members])}]"


@dataclass(frozen=True, slots=True)
class Enum(Attribute):
    """`#stablehlo<comparison_direction LT>`: one of the dialect's names for something."""

    kind: str
    value: str

    @property
    def text(self) -> str:
        return f"#stablehlo<{self.kind} {self.value}>"


@dataclass(frozen=True, slots=True)
class Pairs(Attribute):
    """`dense<[[0, 1], [2, 0]]> : tensor<2x2xi64>`: padding at both ends of each dimension."""

    values: tuple[tuple[int, int], ...]

    @property
    def text(self) -> str:
        rows = ", ".join([f"[{a}, {b}]" for a, b in self.values])
        return f"dense<{f'[{rows}]' if rows else ''}> : tensor<{len(self.values)}x2xi64>"


@dataclass(frozen=True, slots=True)
class Splat(Attribute):
    """`dense<0.0> : tensor<4xf32>`: one element everywhere, as MLIR writes it."""

    literal: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def text(self) -> str:
        return f"dense<{self.literal}> : {tensor_text(self.shape, self.dtype)}"


def splat_literal(value: Attribute | None) -> str | None:
    """The one element of a constant, as MLIR writes it; None for others."""
    if isinstance(value, Splat):
        return value.literal
    text = value.text if isinstance(value, Given) else ""
    literal = text[text.find("<") + 1 : text.rfind("> :")]
    return literal if text.startswith("dense<") and not literal.startswith(("[", '"')) else None


@dataclass(frozen=True, slots=True)
class Dense(Attribute):
    """`dense<[1, 2]> : tensor<2xi32>`: elements as MLIR writes them, nested in tuples by dimension."""

    elements: tuple[Any, ...]
    shape: tuple[int, ...]
    dtype: str

    @staticmethod
    def of(values: np.ndarray, dtype: str) -> Dense:
        """An array of integers or booleans."""
        return Dense(_nested(values.tolist()), values.shape, dtype)

    @property
    def text(self) -> str:
        elements = _element_text(self.elements) if 0 not in self.shape else ""
        return f"dense<{elements}> : {tensor_text(self.shape, self.dtype)}"


@dataclass(frozen=True, slots=True)
class DeviceLists(Attribute):
    """Groups of devices that talk, or pairs of source and target: i64[groups, members], written once per module under
    the name `alias`."""

    alias: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def rows(self) -> np.ndarray:
        """i64[groups, members]; rows of smaller groups end in -1."""
        return np.frombuffer(self.data, "<i8").reshape(self.shape)

    @property
    def text(self) -> str:
        return self.alias

    @property
    def definition(self) -> str:
        """What the alias stands for."""
        dims = "x".join(map(str, self.shape))
        if len(self.data) > 64 * 8:
            return f'dense<"0x{self.data.hex().upper()}"> : tensor<{dims}xi64>'
        return f"dense<{self.rows.tolist() if self.data else ''}> : tensor<{dims}xi64>"


# -- numbers of dimensions ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DotNumbers(Attribute):
    """Which dimensions a `dot_general` batches and contracts."""

    dims: DotDims

    @property
    def text(self) -> str:
        d = self.dims
        return _fields(
            "dot", lhs_batching_dimensions=d.lhs_batch, rhs_batching_dimensions=d.rhs_batch,
            lhs_contracting_dimensions=d.lhs_contract, rhs_contracting_dimensions=d.rhs_contract,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class GatherNumbers(Attribute):
    """What the dimensions of a gather's operand, indices and result are."""

    dims: GatherDims

    @property
    def text(self) -> str:
        d = self.dims
        return _fields(
            "gather", offset_dims=d.offset, collapsed_slice_dims=d.collapsed_slice,
            operand_batching_dims=d.operand_batching, start_indices_batching_dims=d.indices_batching,
            start_index_map=d.start_index_map, index_vector_dim=d.index_vector,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ScatterNumbers(Attribute):
    """What the dimensions of a scatter's operand, indices and updates are."""

    dims: ScatterDims

    @property
    def text(self) -> str:
        d = self.dims
        return _fields(
            "scatter", update_window_dims=d.update_window, inserted_window_dims=d.inserted_window,
            input_batching_dims=d.input_batching, scatter_indices_batching_dims=d.indices_batching,
            scatter_dims_to_operand_dims=d.to_operand, index_vector_dim=d.index_vector,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ConvNumbers(Attribute):
    """What the dimensions of a convolution's input, kernel and output are."""

    dims: ConvDims

    @property
    def text(self) -> str:
        d = self.dims
        sides = [
            _letters(d.input_spatial, {d.input_batch: "b", d.input_feature: "f"}),
            _letters(d.kernel_spatial, {d.kernel_input_feature: "i", d.kernel_output_feature: "o"}),
            _letters(d.output_spatial, {d.output_batch: "b", d.output_feature: "f"}),
        ]
        return f"#stablehlo.conv<{sides[0]}x{sides[1]}->{sides[2]}>"


# -- all of an operation -----------------------------------------------------------------------------------------


class Attributes(Mapping[str, Attribute]):
    """The attributes of an operation by name, in the order in which they are printed. Equal ones are one object, so
    that they compare and hash as fast as pointers do. Made by `of`."""

    __slots__ = ("__weakref__", "_items", "_text")
    _items: dict[str, Attribute]
    _text: str | None

    @staticmethod
    def of(items: Mapping[str, Attribute]) -> Attributes:
        """The one object for these attributes."""
        key = tuple(items.items())
        found = _INTERNED.get(key)
        if found is None:
            found = Attributes()
            found._items, found._text = dict(items), None
            _INTERNED[key] = found
        return found

    def __getitem__(self, name: str) -> Attribute:
        return self._items[name]

    def find(self, name: str) -> Attribute | None:
        """`get`, which would ask by way of an error where there is none of that name."""
        return self._items.get(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def without(self, *names: str) -> Attributes:
        """All but some."""
        return Attributes.of({name: a for name, a in self._items.items() if name not in names})

    def also(self, more: Mapping[str, Attribute]) -> Attributes:
        """With `more` behind."""
        return Attributes.of({**self._items, **more})

    @property
    def text(self) -> str:
        """As MLIR writes them, without braces."""
        if self._text is None:
            texts = [(name if _is_bare(name) else quote(name), a.text) for name, a in self._items.items()]
            self._text = ", ".join([name if text == "unit" else f"{name} = {text}" for name, text in texts])
        return self._text

    def __repr__(self) -> str:
        return f"<{self.text}>"


_INTERNED: weakref.WeakValueDictionary[tuple[Any, ...], Attributes] = weakref.WeakValueDictionary()
NONE = Attributes.of({})


# -- text --------------------------------------------------------------------------------------------------------


def _is_bare(name: str) -> bool:
    return name.replace("_", "a").replace(".", "a").isalnum()


def _listed(values: Sequence[int]) -> str:
    return ", ".join(map(str, values))


def _fields(name: str, **fields: int | tuple[int, ...]) -> str:
    """Lists that are empty and numbers that are zero are left out."""
    shown = [f"{k} = {v if isinstance(v, int) else f'[{_listed(v)}]'}" for k, v in fields.items() if v]
    return f"#stablehlo.{name}<{', '.join(shown)}>"


def _letters(spatial: Sequence[int], names: dict[int, str]) -> str:
    names = names | {at: str(j) for j, at in enumerate(spatial)}
    return f"[{', '.join([names[i] for i in range(len(names))])}]"


def _nested(values: Any) -> Any:
    return tuple([_nested(v) for v in values]) if isinstance(values, list) else str(values).lower()


def _element_text(elements: Any) -> str:
    return elements if isinstance(elements, str) else f"[{', '.join([_element_text(e) for e in elements])}]"
