"""Values that are unreduced, as XLA's own partitioner has to be told of them.

Where it computes a value that is declared unreduced from one that is whole, it hands the whole to each of the devices
that add: their sum is several times the value. It knows addends for what they are where they come in as arguments, and
where a contraction, a sum or a manual computation makes them; elementwise operations pass them on if some axis splits
a dimension of them; sums that none splits it keeps where nothing uses them as wholes. All else is told to it as whole,
which it adds up before, and made addends where they are asked for, by the end of @main or by a manual computation: the
value on the first of the devices that add, zero on the others.
"""

from __future__ import annotations

import math
import re

import propagation
from meshrt import errors
from propagation.annotations import read_shardings
from propagation.graph import Op, TensorType, Value
from propagation.model import AxisRef, DimSharding, TensorSharding
from propagation.parsing import parse
from propagation.program import Program
from propagation.quoting import quote, quote_symbol
from propagation.shardings import Shardings

__all__ = ["tell_addends"]

_ZERO = re.compile(r"dense<(?:0|0\.0+e\+00|false|\(0\.0+e\+00, ?0\.0+e\+00\))> ?: ")
_SUMMED = frozenset({"stablehlo.dot_general", "stablehlo.reduce", "stablehlo.convolution"})
_PASSING = frozenset(
    f"stablehlo.{name}" for name in ("add", "subtract", "negate", "multiply", "divide", "convert")
)  # fmt: skip
_LINEAR_IN_ONE = frozenset({"stablehlo.multiply", "stablehlo.divide"})
_FILLS = frozenset({"stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.convert", "sdy.sharding_constraint"})


def tell_addends(program: Program, shardings: Shardings) -> None:
    """Leaves unreduced what the partitioner knows as addends, says of the rest that it is whole, and makes addends of
    it where results of @main and operands of manual computations have to be some.

    UnsupportedError for values that are reduced by something else than their sum.
    """
    said = {s for s in (*shardings.table, *_of_results(shardings), *_taken(program)) if s is not None and s.unreduced}
    if not said:
        return
    other = next((s for s in said if s.reduction != "sum"), None)
    if other is not None:
        raise errors.UnsupportedError(
            f"XLA's partitioner adds up what is unreduced, and here is {other.to_text()}. Use meshrt.config.update("
            '"partitioner", "meshrt")'
        )
    known = _known(program, shardings, sums_whole=False) or _known(program, shardings, sums_whole=True)
    assert known is not None, "sums that are told as whole are not mixed"
    _leave_to(program, shardings, known)


def _of_results(shardings: Shardings) -> list[TensorSharding | None]:
    return [s for results in shardings.results.values() for s in results]


def _taken(program: Program) -> list[TensorSharding | None]:
    """What manual computations say of their operands."""
    return [s for op in program.ops() if op.name == "sdy.manual_computation" for s in op.data["in_shardings"]]


def _known(program: Program, shardings: Shardings, sums_whole: bool) -> _Known | None:
    """What the partitioner knows as addends; None if a sum that no axis splits is used as a whole (see `_Known`)."""
    known = _Known(shardings, sums_whole)
    main = program.main
    for value in main.args:
        known.note(value)
    for func in program.funcs.values():
        for op in func.body.walk():
            if op is not main.body.terminator and not known.read(op):
                return None
    return known


class _Known:
    """What is known of values, by one walk over the operations in the order of the program.

    addends   the values that the partitioner knows as addends
    zeros     those that are zero, whatever is said of them
    asked     operands of manual computations, by number, that are taken as addends and are none
    summed    the addends that a contraction or a sum makes and no axis splits: used as a whole, the partitioner may
              make wholes of them, and of those that are computed alike, for all uses; `sums_whole` says so of them all
    """

    def __init__(self, shardings: Shardings, sums_whole: bool):
        self.shardings, self.sums_whole = shardings, sums_whole
        self.addends: set[Value] = set()
        self.zeros: set[Value] = set()
        self.asked: list[tuple[Op, int]] = []
        self.summed: set[Value] = set()

    def note(self, value: Value) -> None:
        """The value is known for what is said of it."""
        if self.axes(value):
            self.addends.add(value)

    def axes(self, value: Value) -> tuple[AxisRef, ...]:
        """The axes over which it is said to be added up."""
        said = self.shardings.get(value)
        return () if said is None else said.unreduced

    def is_known(self, value: Value, wanted: TensorSharding) -> bool:
        """Whether it is known as the addends that are wanted."""
        return bool(wanted.unreduced) and value in self.addends and self.axes(value) == wanted.unreduced

    def read(self, op: Op) -> bool:
        """False if it uses a sum that no axis splits as a whole."""
        if op.name == "sdy.manual_computation":
            return self._manual(op)
        if _is_zero(op) or (op.name in _FILLS and self.zeros.issuperset(op.operands)):
            self.zeros.update(op.results)
            return True
        found = [v for v in op.results if self.axes(v) and self._makes(op, v)]
        self.addends.update(found)
        if op.name in _SUMMED:
            self.summed.update(v for v in found if not self._is_split(v))
        return bool(found) or self.summed.isdisjoint(op.operands)

    def _makes(self, op: Op, value: Value) -> bool:
        """Whether the partitioner makes addends of a result."""
        own = self.addends.intersection(op.operands)
        if op.name in _SUMMED:
            return not own and (not self.sums_whole or self._is_split(value))
        if op.name not in _PASSING or not own or not self._is_split(value):
            return False
        if any(self.axes(v) != self.axes(value) for v in own):
            return False
        return op.name in _LINEAR_IN_ONE or (own | self.zeros).issuperset(op.operands)

    def _is_split(self, value: Value) -> bool:
        """Whether some axis splits a dimension."""
        said = self.shardings.get(value)
        return said is not None and any(axis.size > 1 for axis in said.axes)

    def _manual(self, op: Op) -> bool:
        """A manual computation says itself what is added up."""
        for i, (value, wanted) in enumerate(zip(op.operands, op.data["in_shardings"], strict=True)):
            if value in self.zeros or self.is_known(value, wanted):
                continue
            if value in self.summed:
                return False
            if wanted.unreduced:
                self.asked.append((op, i))
        for value in op.results:
            self.note(value)
        return True


def _is_zero(op: Op) -> bool:
    return op.name == "stablehlo.constant" and _ZERO.match(str(op.attrs["value"])) is not None


def _leave_to(program: Program, shardings: Shardings, known: _Known) -> None:
    """Says of values that are neither addends nor zeros that they are whole."""
    main = program.main
    for value in program.values:
        said = shardings.get(value)
        if said is not None and said.unreduced and value not in known.addends and value not in known.zeros:
            shardings.set(value, _whole(said))
    for func, results in shardings.results.items():
        if func is not main:
            results[:] = [s and _whole(s) for s in results]
    end = main.body.terminator
    for op, i in known.asked:
        op.set_operand(i, _masked(program, shardings, op, op.operands[i], op.data["in_shardings"][i]))
    for i, wanted in enumerate(shardings.results[main]):
        value = end.operands[i]
        if wanted is not None and wanted.unreduced and value not in known.zeros and not known.is_known(value, wanted):
            end.set_operand(i, _masked(program, shardings, end, value, wanted))


def _whole(sharding: TensorSharding) -> TensorSharding:
    return TensorSharding(sharding.mesh, sharding.dims, sharding.replicated)


def _masked(program: Program, shardings: Shardings, user: Op, value: Value, wanted: TensorSharding) -> Value:
    """What is `value` on the first device along the unreduced axes and zero on the others, computed before `user`."""
    assert isinstance(value.type, TensorType), f"values of static shapes are unreduced, not {value.type.text}"
    written = propagation.read(parse(_mask_text(value.type, wanted, _manual_around(user)), into=program.context))
    said = read_shardings(written)
    mapping, block = {written.main.args[0]: value}, user.block
    for op in written.main.body.ops[:-1]:
        copy = program.clone(op, mapping, like=user)  # what is read here ends with its module
        copy.parent = block
        block.ops.insert(block.ops.index(user), copy)
    for theirs, ours in mapping.items():
        if ours is not value:
            shardings.set(ours, said.get(theirs))
    return mapping[written.main.returned[0]]


def _manual_around(op: Op) -> set[str]:
    """The axes that are Manual where an operation stands."""
    axes: set[str] = set()
    owner = op.parent_op
    while isinstance(owner, Op):
        if owner.name == "sdy.manual_computation":
            axes.update(owner.data["manual_axes"])
        owner = owner.parent_op
    return axes


def _mask_text(kind: TensorType, wanted: TensorSharding, around: set[str]) -> str:
    mesh, dtype = wanted.mesh, kind.dtype
    count = math.prod(a.size for a in wanted.unreduced)
    local = f"tensor<{''.join(f'{n}x' for n in wanted.shard_shape(kind.shape))}{dtype}>"
    zero = "(0.0,0.0)" if dtype.startswith("complex") else "false" if dtype == "i1" else "0"
    zero = "0.0" if dtype.startswith(("f", "bf")) else zero
    numbers = TensorSharding(mesh, (DimSharding(wanted.unreduced),))
    axes = ", ".join([quote(name) for name in mesh.axis_names if name not in around])
    return f"""
sdy.mesh @{quote_symbol(mesh.name)} = {mesh.to_text()}
func.func @main(%value: {kind.text}) -> {kind.text} {{
  %numbers = stablehlo.iota dim = 0 : tensor<{count}xi32>
  %addends = sdy.manual_computation(%value, %numbers)
      in_shardings=[{_whole(wanted).body_text()}, {numbers.body_text()}] out_shardings=[{wanted.body_text()}]
      manual_axes={{{axes}}} (%whole: {local}, %number: tensor<1xi32>) {{
    %first = stablehlo.constant dense<0> : tensor<1xi32>
    %is_first = stablehlo.compare EQ, %number, %first : (tensor<1xi32>, tensor<1xi32>) -> tensor<1xi1>
    %chosen = stablehlo.reshape %is_first : (tensor<1xi1>) -> tensor<i1>
    %zero = stablehlo.constant dense<{zero}> : {local}
    %own = stablehlo.select %chosen, %whole, %zero : tensor<i1>, {local}
    sdy.return %own : {local}
  }} : ({kind.text}, tensor<{count}xi32>) -> {kind.text}
  return %addends : {kind.text}
}}
"""
