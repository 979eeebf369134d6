"""Tuples and immutable boxes as single values of high types.

A `HiTuple` is an operand like an array: operations take it whole, `vmap` maps its elements over dimensions of their
own, derivatives are tuples of derivatives. It is read as Python's: `t[0]`, `len(t)`, `first, second = t`. An `ImmutBox`
holds a whole pytree, which `box.get()` gives.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from meshrt import errors, tree_util
from meshrt.core.basic.shapes import zeros
from meshrt.core.high import HiType, aval_method, register_hitype
from meshrt.core.types import aval_of
from meshrt.experimental.hijax.saved import register_hitype_serialization
from meshrt.experimental.hijax.vjp_operations import VJPHiPrimitive
from meshrt.interpreters.accumulators import GradAccum
from meshrt.interpreters.ad import Zero, instantiate_zeros
from meshrt.sharding.high_spec import HiPspec
from meshrt.transforms.mapped import MappingSpec

__all__ = ["HiTuple", "ImmutBox", "TupleMapping", "TuplePspec", "TupleType", "box_of", "element", "tuple_of", "unbox"]


@dataclass(frozen=True, eq=False)
class HiTuple:
    """A tuple that is one value: made by `tuple_of`, read by `element`, or as tuples of Python are.

    >>> first, second = tuple_of(1.0, 2.0)
    >>> meshrt.jit(lambda t: t[0] + t[-1])(tuple_of(1.0, 2.0))
    Array(3., dtype=float32, weak_type=True)
    """

    elements: tuple[Any, ...]

    def __getitem__(self, index: Any) -> Any:
        return _item(self, index)

    def __len__(self) -> int:
        return len(_tuple_type(self).elements)

    def __iter__(self) -> Iterator[Any]:
        return _items(self)


@dataclass(frozen=True)
class ImmutBox(HiTuple):
    """A pytree that is one value: made by `box_of`, read by `unbox`."""

    structure: Any = None

    def get(self) -> Any:
        """What the box holds."""
        return unbox(self)


@dataclass(frozen=True)
class TupleMapping(MappingSpec):
    """How each element of a batch of tuples is mapped: a dimension, None for one that all share, a spec of its own."""

    specs: tuple[Any, ...]


@dataclass(frozen=True)
class TuplePspec(HiPspec):
    """How each element of a tuple is split over a mesh: PartitionSpecs, and HiPspecs for elements of high types."""

    specs: tuple[Any, ...]

    def to_lo(self) -> tuple[Any, ...]:
        return tuple(lo for s in self.specs for lo in (s.to_lo() if isinstance(s, HiPspec) else (s,)))


@dataclass(frozen=True)
class TupleType(HiType):
    """The type of tuples, and with a `structure` of immutable boxes that hold a pytree of it."""

    elements: tuple[Any, ...]
    structure: Any = None

    def __str__(self) -> str:
        inside = ",".join(a.short() for a in self.elements)
        return f"Tuple{{{inside}}}" if self.structure is None else f"ImmutBox{{{inside}}}"

    get = aval_method(ImmutBox.get)

    def _getitem(self, value: Any, index: Any) -> Any:
        return _item(value, index)

    def _len(self, value: Any) -> int:
        return len(_tuple_type(value).elements)

    def _iter(self, value: Any) -> Iterator[Any]:
        return _items(value)

    def _of(self, elements: Any) -> TupleType:
        return TupleType(tuple(elements), self.structure)

    def lo_ty(self) -> list[Any]:
        return [lo for a in self.elements for lo in a.lo_ty()]

    def lo_tree(self) -> Any:
        parts = tuple(a.lo_tree() if a.is_high else a for a in self.elements)
        return parts if self.structure is None else tree_util.tree_unflatten(self.structure, parts)

    def lower_val(self, value: HiTuple) -> list[Any]:
        return [lo for a, x in zip(self.elements, value.elements) for lo in a.lower_val(x)]

    def raise_val(self, *arrays: Any) -> HiTuple:
        found = iter(arrays)
        parts = tuple(a.raise_val(*islice(found, len(a.lo_ty()))) for a in self.elements)
        return HiTuple(parts) if self.structure is None else ImmutBox(parts, self.structure)

    def normalize(self) -> TupleType:
        return self._of(a.normalize() for a in self.elements)

    def to_tangent_aval(self) -> TupleType:
        return self._of(a.to_tangent_aval() for a in self.elements)

    def to_ct_aval(self) -> TupleType:
        return self._of(a.to_ct_aval() for a in self.elements)

    def vspace_zero(self) -> Any:
        return _make(self.structure, [zeros(a) for a in self.elements])

    def vspace_add(self, x: Any, y: Any) -> Any:
        pairs = [(element(x, i), element(y, i)) for i in range(len(self.elements))]
        return _make(self.structure, [a.vspace_add(*p) for a, p in zip(self.elements, pairs)])

    def dec_rank(self, size: int | None, spec: Any) -> TupleType:
        return self._of(a.dec_rank(size, s) for a, s in zip(self.elements, spec.specs))

    def inc_rank(self, size: int | None, spec: Any) -> TupleType:
        return self._of(a.inc_rank(size, s) for a, s in zip(self.elements, spec.specs))

    def batch_dims(self, spec: Any) -> list[int | None]:
        pairs = zip(self.elements, spec.specs)
        return [d for a, s in pairs for d in (a.batch_dims(s) if isinstance(s, MappingSpec) else [s] * len(a.lo_ty()))]

    def leading_axis_spec(self) -> TupleMapping:
        return TupleMapping(tuple(a.leading_axis_spec() for a in self.elements))


register_hitype(HiTuple, lambda t: TupleType(tuple(map(aval_of, t.elements))))
register_hitype(ImmutBox, lambda b: TupleType(tuple(map(aval_of, b.elements)), b.structure))
register_hitype_serialization(TupleType, serialized_name="meshrt.TupleType")


class _Make(VJPHiPrimitive):
    structure: Any

    def __init__(self, elements: tuple[Any, ...], structure: Any):
        self.in_avals, self.out_aval = elements, TupleType(elements, structure)
        self.params = {"structure": structure}
        super().__init__()

    def expand(self, *elements: Any) -> Any:
        return HiTuple(elements) if self.structure is None else ImmutBox(elements, self.structure)

    def jvp(self, primals: Any, tangents: Any) -> Any:
        return _make(self.structure, primals), _make(self.structure, [instantiate_zeros(t) for t in tangents])

    def lin(self, nzs_in: Any, *elements: Any) -> Any:
        return self(*elements), None

    def linearized(self, residuals: Any, *tangents: Any) -> Any:
        return _make(self.structure, [instantiate_zeros(t) for t in tangents])

    def vjp_fwd(self, nzs_in: Any, /, *elements: Any) -> Any:
        return self(*elements), None

    def vjp_bwd(self, res: Any, outgrad: Any, /, *accums: Any) -> None:
        self.transpose(outgrad, *accums)

    def transpose(self, out_ct: Any, *maybe_accums: Any) -> None:
        for i, accum in enumerate(maybe_accums):
            if isinstance(accum, GradAccum) and type(out_ct) is not Zero:
                accum.accum(element(out_ct, i))

    def batch(self, axis_data: Any, args: Any, dims: Any) -> Any:
        return _make(self.structure, args), TupleMapping(tuple(dims))


class _Element(VJPHiPrimitive):
    index: int

    def __init__(self, kind: TupleType, index: int):
        self.in_avals, self.out_aval, self.params = (kind,), kind.elements[index], {"index": index}
        super().__init__()

    def expand(self, value: Any) -> Any:
        return value.elements[self.index]

    def jvp(self, primals: Any, tangents: Any) -> Any:
        return element(primals[0], self.index), element(tangents[0], self.index)

    def lin(self, nzs_in: Any, value: Any) -> Any:
        return self(value), None

    def linearized(self, residuals: Any, tangent: Any) -> Any:
        return element(tangent, self.index)

    def vjp_fwd(self, nzs_in: Any, /, value: Any) -> Any:
        return self(value), None

    def vjp_bwd_retval(self, res: Any, outgrad: Any, /) -> Any:
        kind = self.in_avals[0].to_ct_aval()
        parts = [zeros(a) for a in kind.elements]
        parts[self.index] = instantiate_zeros(outgrad)
        return (_make(kind.structure, parts),)

    def transpose(self, out_ct: Any, *maybe_accums: Any) -> None:
        maybe_accums[0].accum(self.vjp_bwd_retval(None, out_ct)[0])

    def batch(self, axis_data: Any, args: Any, dims: Any) -> Any:
        return element(args[0], self.index), dims[0].specs[self.index]


def _make(structure: Any, elements: Sequence[Any]) -> Any:
    return _Make(tuple(map(aval_of, elements)), structure)(*elements)


def tuple_of(*elements: Any) -> Any:
    """A tuple of arrays and values of high types, as one value.

    >>> meshrt.jit(lambda x: element(tuple_of(x, 2 * x), 1))(3.0)
    Array(6., dtype=float32, weak_type=True)
    """
    return _make(None, elements)


def element(value: Any, index: int) -> Any:
    """The element of a tuple at a position; from the end, if that is negative.

    Raises:
      ArgumentTypeError: no tuple.
      JAXIndexError: no such position.
    """
    kind: Any = aval_of(value)
    if not isinstance(kind, TupleType):
        raise errors.ArgumentTypeError(f"element takes a tuple made by tuple_of, not {kind.short()}")
    count = len(kind.elements)
    if not -count <= index < count:
        raise errors.JAXIndexError(f"element {index} of a tuple of {count}: positions are {-count} to {count - 1}")
    return _Element(kind, index)(value)


def _tuple_type(value: Any) -> TupleType:
    """The type of what is read like a tuple of Python."""
    kind: Any = aval_of(value)
    if kind.structure is not None:
        raise errors.ArgumentTypeError(f"{kind} is read as a whole: box.get() gives the pytree in it")
    found: TupleType = kind
    return found


def _item(value: Any, index: Any) -> Any:
    """What `value[index]` is: an element, or of a slice a tuple."""
    if isinstance(index, slice):
        return _make(None, [element(value, i) for i in range(*index.indices(len(_tuple_type(value).elements)))])
    _tuple_type(value)
    return element(value, operator.index(index))


def _items(value: Any) -> Iterator[Any]:
    return iter([element(value, i) for i in range(len(_tuple_type(value).elements))])


def box_of(tree: Any) -> Any:
    """A pytree of arrays and values of high types, as one value."""
    leaves, structure = tree_util.tree_flatten(tree)
    return _make(structure, leaves)


def unbox(box: Any) -> Any:
    """What an immutable box holds."""
    kind: Any = aval_of(box)
    if not isinstance(kind, TupleType) or kind.structure is None:
        raise errors.ArgumentTypeError(f"unbox takes a box made by box_of, not {kind.short()}")
    return tree_util.tree_unflatten(kind.structure, [element(box, i) for i in range(len(kind.elements))])
