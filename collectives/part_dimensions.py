"""Rewriting a program: dimensions that hold parts of equal size one behind the other become two, the parts and what is
in them.

Queries, keys and values that one matrix product makes side by side, the gates of a recurrent layer, the two halves that
a rotary embedding exchanges: such a dimension of n = parts x unit elements is cut into parts somewhere. Split over
devices, its pieces are no pieces of the parts, so that cutting moves elements. As two dimensions, (parts, unit), of
which the second is split, it needs no communication; and where the dimension comes from a matrix product, it is the
matrix that is laid out anew, and not what was multiplied with it.

A value whose dimension becomes two is *parted*. Parting spreads from the operations that cut through what keeps the
dimension as it is (`lines`), and ends at matrix products, whose other operands are reshaped, and at operations that are
annotated or of which nothing is known here. Reshapes stand at the edges. Every number stays what it is; products sum in
the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from propagation.attributes import PADDING, dot_dims, integer, integers
from propagation.graph import OtherType, TensorType
from propagation.ops import POINTWISE
from propagation.program import Edits, Op, Program, Value, replace_all_uses

__all__ = ["Place", "is_computed_with", "part"]


_MULTIPLYING = frozenset(("stablehlo.dot_general",))


class Place(NamedTuple):
    """Dimension `dim` of a value, which holds parts of `unit` elements."""

    value: Value
    dim: int
    unit: int


class _Line(NamedTuple):
    """Dimensions of the operands and results of an operation (None: not affected) that become two together. `goes_on`
    says whether parting spreads from one to the others; else they are reshaped there and then."""

    operands: tuple[int | None, ...]
    results: tuple[int | None, ...]
    goes_on: bool = True


class _Rule(NamedTuple):
    """How an operation is done on parted values: the line through dimension `d` of an operand (number, False) or result
    (number, True), None where there is none; and its attributes for that line."""

    line: Callable[[Op, int, bool, int, int], _Line | None]
    attrs: Callable[[Op, _Line, int], dict[str, ir.Attribute]]


def part(program: Program, places: Iterable[Place], most: int) -> list[tuple[Value, int]]:
    """Rewrites `program` so that the dimensions of `places` are two, and all to which parting spreads from there, over
    at most `most` values. Returns the values, each with the dimension of its parts, that a device should have all parts
    of: those that hold a single one, and what is around matrix products, since the parts are used together."""
    rewrite = _Rewrite(program, *_spread(places, most))
    with program.context:
        rewrite.run()
    return rewrite.together


def is_computed_with(value: Value) -> bool:
    """Whether parting a value changes other operations than reshapes."""
    around = {use.op.name for use in value.uses} | ({value.op.name} if value.op is not None else set())
    return not around.isdisjoint(_RULES.keys() - {"stablehlo.reshape"})


def _spread(places: Iterable[Place], most: int) -> tuple[dict[Value, tuple[int, int]], set[Value]]:
    """The parted values, each with its dimension and the size of a part; and those that a matrix product is among."""
    parted: dict[Value, tuple[int, int]] = {}
    multiplied: set[Value] = set()
    for place in places:
        todo, reached, meets_product = [place], [], False
        while todo:
            value, dim, unit = todo.pop()
            size = value.type.shape[dim]
            if value in parted or size % unit or not 1 < unit < size or len(parted) >= most:
                continue
            parted[value] = dim, unit
            reached.append(value)
            around = [(use.op, use.number, False) for use in value.uses]
            if value.op is not None:
                around.append((value.op, value.number, True))
            for op, number, is_result in around:
                line = _line(op, number, is_result, dim, unit)
                meets_product |= line is not None and op.name in _MULTIPLYING
                if line is not None and line.goes_on:
                    for values, dims in ((op.operands, line.operands), (op.results, line.results)):
                        todo += [Place(v, d, unit) for v, d in zip(values, dims) if d is not None]
        if meets_product:
            multiplied.update(reached)
    return parted, multiplied


def _line(op: Op, number: int, is_result: bool, dim: int, unit: int) -> _Line | None:
    """The line through a dimension of an operation; None for one of which nothing is known here, or that is annotated:
    what its sharding says of a dimension holds."""
    rule = _RULES.get(op.name)
    if rule is None or op.has_attr("sdy.sharding") or op.has_attr("sdy.sharding_rule"):
        return None
    return rule.line(op, number, is_result, dim, unit)


class _Rewrite:
    """Of one program, whose values `parted` become what `new` has of them; `multiplied` are around matrix products."""

    def __init__(self, program: Program, parted: dict[Value, tuple[int, int]], multiplied: set[Value]):
        self.program, self.parted, self.multiplied = program, parted, multiplied
        self.new: dict[Value, Value] = {}  # by old value: its parted form
        self.whole: dict[Value, Value] = {}  # by old value whose operation is replaced: its own form again
        self.replaced: set[Op] = set()
        self.together: list[tuple[Value, int]] = []
        self.edits = Edits()

    def run(self) -> None:
        around = {use.op for v in self.parted for use in v.uses} | {v.op for v in self.parted if v.op is not None}
        found = {op: self._line_of(op) for op in self.program.ops() if op in around}
        lines = {op: line for op, line in found.items() if line is not None}
        for value in self.parted:
            if value.op not in lines:
                self._part_behind(value)
        for op, (line, unit) in lines.items():
            self._replace(op, line, unit)
        for value in self.parted:
            if value.op in lines and any(use.op not in lines for use in value.uses):
                replace_all_uses(value, self._whole(value), lambda use: use.op not in lines)
        self.edits.apply()

    def _line_of(self, op: Op) -> tuple[_Line, int] | None:
        """The first line of parted operands or results that an operation can follow."""
        for values, is_result in ((op.operands, False), (op.results, True)):
            for number, value in enumerate(values):
                found = self.parted.get(value)
                line = None if found is None else _line(op, number, is_result, *found)
                if found is not None and line is not None:
                    return line, found[1]
        return None

    def _part_behind(self, value: Value) -> None:
        """A parted value whose operation stays, or an argument, is reshaped behind it."""
        reshape = self._reshape(value, _parted_type(value.type, *self.parted[value]))
        if value.op is not None:
            self.edits.after(value.op, reshape)
        else:
            assert value.is_argument
            self.edits.first(value.owner, reshape)  # type: ignore[arg-type]  # arguments are owned by blocks
        self.new[value] = reshape.result
        self._note(reshape.result, self.parted[value][0], value in self.multiplied)

    def _note(self, new: Value, dim: int, is_multiplied: bool) -> None:
        """Notes a parted form whose parts belong on one device."""
        if is_multiplied or new.type.shape[dim] == 1:
            self.together.append((new, dim))

    def _replace(self, op: Op, line: _Line, unit: int) -> None:
        is_multiplied = not self.multiplied.isdisjoint((*op.operands, *op.results))
        operands = [
            self._whole(v) if d is None else self._parted(v, d, unit, op, is_multiplied)
            for v, d in zip(op.operands, line.operands)
        ]
        types = [r.type if d is None else _parted_type(r.type, d, unit) for r, d in zip(op.results, line.results)]
        attrs = {**op.attrs, **_RULES[op.name].attrs(op, line, unit)}
        regions, op.regions = op.regions, ()
        made = self.program.new_op(op.name, operands, types, attrs, regions, op)
        self.edits.before(op, made)
        self.edits.erase(op)
        self.replaced.add(op)
        for old, new, dim in zip(op.results, made.results, line.results):
            if dim is not None:
                self._note(new, dim, is_multiplied)
            self._bind(op, old, new, None if dim is None else (dim, unit))

    def _bind(self, op: Op, old: Value, new: Value, form: tuple[int, int] | None) -> None:
        """Notes what stands for a result of `op`, `new` being parted in this `form`."""
        wanted = self.parted.get(old)
        if form is not None and form == wanted:
            self.new[old] = new
            return
        if form is not None:
            new = self._before(op, new, old.type)
        self.whole[old] = new
        if wanted is not None:
            self.new[old] = self._before(op, new, _parted_type(old.type, *wanted))
        else:
            replace_all_uses(old, new)

    def _whole(self, value: Value) -> Value:
        """A value in its own form."""
        if value not in self.whole and value.op is not None and value.op in self.replaced:
            self.whole[value] = self._before(value.op, self.new[value], value.type)
        return self.whole.get(value, value)

    def _parted(self, value: Value, dim: int, unit: int, op: Op, is_multiplied: bool) -> Value:
        """A value in the form in which `op` uses it."""
        if self.parted.get(value) == (dim, unit):
            return self.new[value]
        new = self._before(op, self._whole(value), _parted_type(value.type, dim, unit))
        self._note(new, dim, is_multiplied)
        return new

    def _reshape(self, value: Value, type: TensorType | OtherType) -> Op:
        like = value.op if value.op is not None else value.uses[0].op
        return self.program.new_op("stablehlo.reshape", [value], [type], like=like)

    def _before(self, op: Op, value: Value, type: TensorType | OtherType) -> Value:
        """The reshape of a value, in front of `op`."""
        reshape = self._reshape(value, type)
        self.edits.before(op, reshape)
        return reshape.result


def _parted_type(type: TensorType | OtherType, dim: int, unit: int) -> TensorType:
    n = type.shape[dim]
    return TensorType([*type.shape[:dim], n // unit, unit, *type.shape[dim + 1 :]], type.dtype)


# -- what operations do with parted values -----------------------------------------------------------------------------


def _i64s(numbers: Iterable[int]) -> ir.Attribute:
    return ir.DenseI64ArrayAttr.get(list(numbers))


def _moved(dims: Iterable[int], cut: int | None, both: bool = True) -> list[int]:
    """Numbers of dimensions once dimension `cut` has become two, both of which stand for it (or the first alone)."""
    out = []
    for d in dims:
        out.append(d + (cut is not None and d > cut))
        if d == cut and both:
            out.append(d + 1)
    return out


def _through(op: Op, number: int, is_result: bool, dim: int, unit: int) -> _Line:
    """Every operand and result of the full rank keeps the dimension: elementwise operations."""
    rank = op.results[0].type.rank
    along = lambda values: tuple([dim if v.type.rank == rank else None for v in values])
    return _Line(along(op.operands), along(op.results))


def _unchanged(op: Op, line: _Line, unit: int) -> dict[str, ir.Attribute]:
    return {}


def _transpose(op: Op, number: int, is_result: bool, dim: int, unit: int) -> _Line:
    order = integers(op.attrs["permutation"])
    return _Line((order[dim],), (dim,)) if is_result else _Line((dim,), (order.index(dim),))


def _transposed(op: Op, line: _Line, unit: int) -> dict[str, ir.Attribute]:
    return {"permutation": _i64s(_moved(integers(op.attrs["permutation"]), line.operands[0]))}


def _broadcast(op: Op, number: int, is_result: bool, dim: int, unit: int) -> _Line | None:
    place, shape = integers(op.attrs["broadcast_dimensions"]), op.operands[0].type.shape
    if not is_result:
        grows = op.results[0].type.shape[place[dim]] != shape[dim]
        return None if grows else _Line((dim,), (place[dim],))
    source = place.index(dim) if dim in place else None
    if source is not None and shape[source] != op.results[0].type.shape[dim]:
        return None
    return _Line((source,), (dim,))


def _broadcasted(op: Op, line: _Line, unit: int) -> dict[str, ir.Attribute]:
    place = integers(op.attrs["broadcast_dimensions"])
    return {"broadcast_dimensions": _i64s(_moved(place, line.results[0], line.operands[0] is not None))}


def _reduce(op: Op, number: int, is_result: bool, dim: int, unit: int) -> _Line | None:
    summed, count = integers(op.attrs["dimensions"]), len(op.results)
    if not is_result and number >= count:
        return None
    kept = [d for d in range(op.operands[0].type.rank) if d not in summed]
    source = kept[dim] if is_result else dim
    after = None if source in summed else kept.index(source)
    return _Line((*(source,) * count, *(None,) * count), (after,) * count)


def _reduced(op: Op, line: _Line, unit: int) -> dict[str, ir.Attribute]:
    return {"dimensions": _i64s(_moved(integers(op.attrs["dimensions"]), line.operands[0]))}


def _dot(op: Op, number: int, is_result: bool, dim: int, unit: int) -> _Line | None:
    """Batch and summed dimensions of both operands, free ones of one of them and of the result."""
    dims = dot_dims(op.attrs["dot_dimension_numbers"])
    pairs = [*zip(dims.lhs_batch, dims.rhs_batch), *zip(dims.lhs_contract, dims.rhs_contract)]
    sides = list(zip(*pairs)) or [(), ()]
    free = [(side, d) for side in (0, 1) for d in range(op.operands[side].type.rank) if d not in sides[side]]
    batch = len(dims.lhs_batch)
    lines = [_Line(pair, (i if i < batch else None,), False) for i, pair in enumerate(pairs)]
    for i, (side, d) in enumerate(free):
        lines.append(_Line((None, d) if side else (d, None), (batch + i,), False))
    found = [line for line in lines if (line.results[0] if is_result else line.operands[number]) == dim]
    return found[0]


def _dotted(op: Op, line: _Line, unit: int) -> dict[str, ir.Attribute]:
    dims = dot_dims(op.attrs["dot_dimension_numbers"])
    left, right = line.operands
    numbers = stablehlo.DotDimensionNumbers.get(
        _moved(dims.lhs_batch, left), _moved(dims.rhs_batch, right),
        _moved(dims.lhs_contract, left), _moved(dims.rhs_contract, right),
    )  # fmt: skip
    return {"dot_dimension_numbers": numbers}


def _reshape(op: Op, number: int, is_result: bool, dim: int, unit: int) -> _Line:
    """A dimension that the reshape leaves as it is goes on; of any other, it makes or takes the parted form at once."""
    here, there = (op.results, op.operands) if is_result else (op.operands, op.results)
    shape, other = here[0].type.shape, there[0].type.shape
    after = math.prod(shape[dim + 1 :])
    same = [d for d, n in enumerate(other) if n == shape[dim] and math.prod(other[d + 1 :]) == after]
    found = same[0] if same else None
    return _Line((found,), (dim,), bool(same)) if is_result else _Line((dim,), (found,), bool(same))


def _slice(op: Op, number: int, is_result: bool, dim: int, unit: int) -> _Line | None:
    start, limit, stride = (integers(op.attrs[n])[dim] for n in ("start_indices", "limit_indices", "strides"))
    if (start, limit, stride) == (0, op.operands[0].type.shape[dim], 1):
        return _Line((dim,), (dim,))
    fits = stride == 1 and not (start % unit or limit % unit or op.operands[0].type.shape[dim] % unit)
    return _Line((dim,), (dim,), False) if fits else None


def _sliced(op: Op, line: _Line, unit: int) -> dict[str, ir.Attribute]:
    (dim,) = line.operands
    assert dim is not None
    starts, limits, strides = (list(integers(op.attrs[n])) for n in ("start_indices", "limit_indices", "strides"))
    return {
        "start_indices": _i64s([*starts[:dim], starts[dim] // unit, 0, *starts[dim + 1 :]]),
        "limit_indices": _i64s([*limits[:dim], limits[dim] // unit, unit, *limits[dim + 1 :]]),
        "strides": _i64s([*strides[:dim], 1, 1, *strides[dim + 1 :]]),
    }


def _concatenate(op: Op, number: int, is_result: bool, dim: int, unit: int) -> _Line | None:
    line = _Line((dim,) * len(op.operands), (dim,))
    if dim != integer(op.attrs["dimension"]):
        return line
    return None if any(v.type.shape[dim] % unit for v in op.operands) else line._replace(goes_on=False)


def _concatenated(op: Op, line: _Line, unit: int) -> dict[str, ir.Attribute]:
    at = integer(op.attrs["dimension"])
    i64 = ir.IntegerType.get_signless(64)
    return {"dimension": ir.IntegerAttr.get(i64, _moved([at], line.results[0], False)[0])}


def _pad(op: Op, number: int, is_result: bool, dim: int, unit: int) -> _Line | None:
    low, high, inside = (integers(op.attrs[n])[dim] for n in PADDING)
    if number and not is_result:
        return None
    if not (low or high or inside):
        return _Line((dim, None), (dim,))
    fits = not inside and not (low % unit or high % unit or op.operands[0].type.shape[dim] % unit)
    return _Line((dim, None), (dim,), False) if fits else None


def _padded(op: Op, line: _Line, unit: int) -> dict[str, ir.Attribute]:
    (dim,) = line.results
    assert dim is not None
    out = {}
    for name in PADDING:
        found = list(integers(op.attrs[name]))
        out[name] = _i64s([*found[:dim], found[dim] // unit, 0, *found[dim + 1 :]])
    return out


_RULES: dict[str, _Rule] = {
    **dict.fromkeys((name for name in POINTWISE if name.startswith("stablehlo.")), _Rule(_through, _unchanged)),
    "stablehlo.transpose": _Rule(_transpose, _transposed),
    "stablehlo.broadcast_in_dim": _Rule(_broadcast, _broadcasted),
    "stablehlo.reduce": _Rule(_reduce, _reduced),
    "stablehlo.dot_general": _Rule(_dot, _dotted),
    "stablehlo.reshape": _Rule(_reshape, _unchanged),
    "stablehlo.slice": _Rule(_slice, _sliced),
    "stablehlo.concatenate": _Rule(_concatenate, _concatenated),
    "stablehlo.pad": _Rule(_pad, _padded),
}
