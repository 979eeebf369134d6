"""Lowering rules that build operations with MLIR's bindings.

Programs of meshrt are recorded as text (`propagation.asm`); such a rule wants values of MLIR's and a place to build at.
It gets both in a module of its own, a *scratch*, and what it built there is read back into the record, operation by
operation. What is not built with bindings (a function of arrays, a call of Python) stands in the scratch as a call of a
name, and is written when that call is read.

    recorded operands ──> arguments of a block of the scratch ──> rule ──> operations ──> recorded operations
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func

from meshrt import errors
from meshrt.core.types import ShapedArray
from meshrt.lowering.context import LoweringContext
from meshrt.lowering.types import mlir_type
from propagation import contexts
from propagation.asm import Body, Ref
from propagation.graph import attribute_items
from propagation.quoting import quote

__all__ = ["Scratch", "flat_values"]

# Writes what a call in the scratch stands for: takes the recorded operands, gives the recorded results.
Write = Callable[[LoweringContext, Sequence[Ref]], Sequence[Ref]]

_DEFERRED = "deferred_"
_BARE = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*\Z")


def flat_values(values: Any) -> list[ir.Value]:
    """What a rule returned as a list: a value, or values and sequences of them."""
    if isinstance(values, ir.Value):
        return [values]
    return [found for value in values for found in flat_values(value)]


class Scratch:
    """The module that one rule builds in, once.

    Args:
      context: where what was built is recorded.
    """

    def __init__(self, context: LoweringContext):
        self.context = context
        self.mlir = contexts.context(0)
        self._deferred: dict[str, Write] = {}

    def run(
        self, rule: Callable[..., Any], operands: Sequence[Ref], outs: Sequence[ShapedArray], where: str
    ) -> list[Ref]:
        """The recorded results of `rule(*values)`, which builds them of values for `operands`.

        Raises TypeError, as JAX does, if the rule does not return values of MLIR's, or not those of the types `outs`;
        `where` is what it is a rule of, for messages.
        """
        with self.mlir, ir.Location.unknown():
            module = ir.Module.create()
            with ir.InsertionPoint(module.body):
                kind = ir.FunctionType.get([ir.Type.parse(ref.type) for ref in operands], [])
                rule_body: Any = func.FuncOp("rule", kind)
            block = rule_body.add_entry_block()
            with ir.InsertionPoint(block):
                results = _checked(rule(*block.arguments), outs, where)
            known = dict(zip(block.arguments, operands))
            self._read(block, self.context.body, known)
            return [known[value] for value in results]

    def defer(self, values: Sequence[ir.Value], outs: Sequence[ShapedArray], write: Write) -> list[ir.Value]:
        """Values that `write` is going to give: a call in the scratch, which is never defined there."""
        symbol = f"{_DEFERRED}{len(self._deferred)}"
        self._deferred[symbol] = write
        results = [ir.Type.parse(mlir_type(aval)) for aval in outs]
        return list(func.CallOp(results, ir.FlatSymbolRefAttr.get(symbol), list(values)).results)

    def _read(self, block: ir.Block, body: Body, known: dict[ir.Value, Ref]) -> None:
        """Records the operations of a block; `known` has the recorded value of each that is visible."""
        for view in block.operations:
            op = view.operation
            operands = [known[value] for value in op.operands]
            write = self._deferred.get(str(op.attributes["callee"])[1:]) if op.name == "func.call" else None
            if write is not None:
                refs = write(self._within(body), operands)
            else:
                attrs, discardable = _attributes(op)
                kinds = [str(result.type) for result in op.results]
                regions = [self._region(region, body, known, op) for region in op.regions]
                refs = body.ops(op.name, operands, kinds, attrs, regions, self.context.loc, discardable)
            known.update(zip(op.results, refs))

    def _within(self, body: Body) -> LoweringContext:
        return self.context if body is self.context.body else self.context.nested(body)

    def _region(self, region: ir.Region, outer: Body, known: dict[ir.Value, Ref], op: ir.Operation) -> Body:
        blocks = list(region.blocks)
        if len(blocks) != 1:
            raise errors.UnsupportedError(
                f"a lowering rule built {op.name} with a region of {len(blocks)} blocks; programs of meshrt have one "
                "in each: use the structured operations of StableHLO (while, case, reduce)"
            )
        body = outer.body([str(argument.type) for argument in blocks[0].arguments])
        self._read(blocks[0], body, {**known, **dict(zip(blocks[0].arguments, body.args))})
        return body


def _checked(results: Any, outs: Sequence[ShapedArray], where: str) -> list[ir.Value]:
    try:
        values = flat_values(results)
    except TypeError:
        raise errors.ArgumentTypeError(
            f"Output of translation rule must be iterable of values: the lowering rule of {where} gives {results!r}; "
            "return the values of MLIR that it built, or what mlir.lower_fun of a function of arrays returns"
        ) from None
    got, wanted = [str(value.type) for value in values], [mlir_type(aval) for aval in outs]
    if got != wanted:
        raise errors.ArgumentTypeError(
            f"the lowering rule of {where} gives values of types ({', '.join(got)}), and the abstract evaluation says "
            f"({', '.join(wanted)})"
        )
    return values


def _attributes(op: ir.Operation) -> tuple[str, str]:
    """The text of an operation's inherent attributes, and of those of other dialects."""
    inherent: list[str] = []
    others: list[str] = []
    for name, value in attribute_items(op.attributes):
        key = name if _BARE.match(name) else quote(name)
        (others if "." in name else inherent).append(key if str(value) == "unit" else f"{key} = {value}")
    return ", ".join(inherent), ", ".join(others)
