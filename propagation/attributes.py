"""Decoding MLIR attributes into Python values, each attribute once.

MLIR uniques attributes, so a decoded value is cached by the attribute itself. An attribute keeps its context alive, and
a context all constants that it has seen: so the cache is that of the context last read into (`cache_for`). Shardings
are decoded by `annotations.py`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from . import errors
from .heuristics import DECODED_ATTRIBUTES
from .model import Mesh
from .sdy_text import read_mesh

__all__ = [
    "PADDING",
    "ConvDims",
    "DotDims",
    "GatherDims",
    "ScatterDims",
    "cache_for",
    "cached",
    "conv_dims",
    "dot_dims",
    "flag",
    "gather_dims",
    "integer",
    "integers",
    "mesh_of",
    "pairs",
    "scatter_dims",
    "string",
    "symbol",
]

# The attributes of a pad: elements in front of each dimension, behind it, and between its own.
PADDING = ("edge_padding_low", "edge_padding_high", "interior_padding")


class DotDims(NamedTuple):
    lhs_batch: tuple[int, ...]
    rhs_batch: tuple[int, ...]
    lhs_contract: tuple[int, ...]
    rhs_contract: tuple[int, ...]


class GatherDims(NamedTuple):
    offset: tuple[int, ...]
    collapsed_slice: tuple[int, ...]
    operand_batching: tuple[int, ...]
    indices_batching: tuple[int, ...]
    start_index_map: tuple[int, ...]
    index_vector: int


class ScatterDims(NamedTuple):
    update_window: tuple[int, ...]
    inserted_window: tuple[int, ...]
    input_batching: tuple[int, ...]
    indices_batching: tuple[int, ...]
    to_operand: tuple[int, ...]
    index_vector: int


class ConvDims(NamedTuple):
    input_batch: int
    input_feature: int
    input_spatial: tuple[int, ...]
    kernel_input_feature: int
    kernel_output_feature: int
    kernel_spatial: tuple[int, ...]
    output_batch: int
    output_feature: int
    output_spatial: tuple[int, ...]


def cached(decode: Callable[[ir.Attribute], Any]) -> Callable[[ir.Attribute], Any]:
    """Caches what a function reads out of an attribute, by both of them."""

    def lookup(attr: ir.Attribute) -> Any:
        key = (decode, attr)
        try:
            return _cache[key]
        except KeyError:
            if len(_cache) > DECODED_ATTRIBUTES:
                _cache.clear()
            value = _cache[key] = decode(attr)
            return value

    lookup.__name__, lookup.__doc__ = decode.__name__, decode.__doc__
    return lookup


_cache: dict[tuple[Callable[[ir.Attribute], Any], ir.Attribute], Any] = {}
_cached_of: Callable[[], ir.Context | None] = lambda: None


def cache_for(context: ir.Context) -> None:
    """Forgets what was decoded of other contexts' attributes: they would keep these contexts alive."""
    global _cached_of
    if _cached_of() is not context:
        _cache.clear()
        _cached_of = weakref.ref(context)


@cached
def integers(attr: ir.Attribute) -> tuple[int, ...]:
    """A dense i64 array, a dense 1-D integer tensor or an array of integers."""
    if isinstance(attr, ir.DenseI64ArrayAttr):
        return tuple(attr)
    if isinstance(attr, ir.ArrayAttr):
        return tuple(ir.IntegerAttr(a).value for a in attr)
    elements: Any = attr  # the bindings' stubs have no iterators of dense elements
    return tuple(int(n) for n in elements)


@cached
def pairs(attr: ir.Attribute) -> tuple[tuple[int, int], ...]:
    """An Nx2 integer tensor (padding) as N pairs."""
    elements: Any = ir.DenseIntElementsAttr(attr)
    flat = [int(n) for n in elements]
    if len(flat) == 1:  # a splat lists its one element once
        flat = flat * (ir.ShapedType(ir.DenseIntElementsAttr(attr).type).shape[0] * 2)
    return tuple(zip(flat[::2], flat[1::2]))


@cached
def integer(attr: ir.Attribute) -> int:
    return ir.IntegerAttr(attr).value


@cached
def flag(attr: ir.Attribute) -> bool:
    return ir.BoolAttr(attr).value


@cached
def string(attr: ir.Attribute) -> str:
    return ir.StringAttr(attr).value


@cached
def symbol(attr: ir.Attribute) -> str:
    return ir.FlatSymbolRefAttr(attr).value


@cached
def dot_dims(attr: ir.Attribute) -> DotDims:
    d = stablehlo.DotDimensionNumbers(attr)
    return DotDims(
        tuple(d.lhs_batching_dimensions),
        tuple(d.rhs_batching_dimensions),
        tuple(d.lhs_contracting_dimensions),
        tuple(d.rhs_contracting_dimensions),
    )


@cached
def gather_dims(attr: ir.Attribute) -> GatherDims:
    d = stablehlo.GatherDimensionNumbers(attr)
    return GatherDims(
        tuple(d.offset_dims),
        tuple(d.collapsed_slice_dims),
        tuple(d.operand_batching_dims),
        tuple(d.start_indices_batching_dims),
        tuple(d.start_index_map),
        d.index_vector_dim,
    )


@cached
def scatter_dims(attr: ir.Attribute) -> ScatterDims:
    d = stablehlo.ScatterDimensionNumbers(attr)
    return ScatterDims(
        tuple(d.update_window_dims),
        tuple(d.inserted_window_dims),
        tuple(d.input_batching_dims),
        tuple(d.scatter_indices_batching_dims),
        tuple(d.scattered_dims_to_operand_dims),
        d.index_vector_dim,
    )


@cached
def conv_dims(attr: ir.Attribute) -> ConvDims:
    d = stablehlo.ConvDimensionNumbers(attr)
    return ConvDims(
        d.input_batch_dimension,
        d.input_feature_dimension,
        tuple(d.input_spatial_dimensions),
        d.kernel_input_feature_dimension,
        d.kernel_output_feature_dimension,
        tuple(d.kernel_spatial_dimensions),
        d.output_batch_dimension,
        d.output_feature_dimension,
        tuple(d.output_spatial_dimensions),
    )


def mesh_of(attr: ir.Attribute, name: str) -> Mesh:
    """The `Mesh` of an `#sdy.mesh` attribute. Raises `UnsupportedModuleError` for another attribute, and the errors of
    `Mesh`."""
    text = str(attr)
    if not text.startswith("#sdy.mesh<"):
        raise errors.UnsupportedModuleError(f"mesh @{name} is not an #sdy.mesh attribute: {text[:80]}")
    return Mesh(name, *read_mesh(text))
