"""StableHLO as operations of ours: what a module computes, said by `meshrt.lax`.

So what transforms functions transforms a module too. It is asked for by `vmap`, for which all that counts is what is
computed: derivatives follow from the ones that were exported, as these know rules that a module does not tell.
Programs with operations that have no counterpart here, or another meaning, are left as they are (`NotRaised`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from jaxlib.mlir import ir

from meshrt import config, errors, lax
from meshrt.core.types import aval_of
from meshrt.export.raising_attributes import NotRaised, numbers, pairs, symbol, type_of
from meshrt.export.raising_operations import OPERATIONS, is_known
from meshrt.export.raising_widths import OF_ANY_WIDTH, is_64_bit, wide_constant
from meshrt.jit import jit

__all__ = ["NotRaised", "function_of"]

_CONSTANT = "stablehlo.constant"
_RETURNS = ("func.return", "stablehlo.return")


def function_of(module: ir.Module) -> Callable[..., list[Any]]:
    """What `@main` computes, of flat arguments. Calls of it raise NotRaised where that cannot be said."""
    functions = {
        ir.StringAttr(op.operation.attributes["sym_name"]).value: op.operation
        for op in module.body.operations
        if op.operation.name == "func.func"
    }

    def run(*args: Any) -> list[Any]:
        is_wide = bool(config.settings.enable_x64)
        # Operations are of the types that the module says, whatever the setting made of those of this program.
        with contextlib.nullcontext() if is_wide else config.override(enable_x64=True):
            return _Reading(functions, is_wide).main(args)

    return run


class _Reading:
    """One walk over a module, in which values stand for those of the program that is traced."""

    def __init__(self, functions: dict[str, Any], is_wide: bool):
        """`is_wide` says that programs here have 64-bit types."""
        self._functions = functions
        self._is_wide = is_wide
        self._jitted: dict[str, Callable[..., list[Any]]] = {}

    def main(self, args: Sequence[Any]) -> list[Any]:
        """The results of the module."""
        return self._block(self._body("main"), args, {})

    def call(self, name: str, args: Sequence[Any]) -> list[Any]:
        """The results of another function of the module, which is a call in what is traced as well: functions that call
        each other several times would be many more written in place."""
        found = self._jitted.get(name)
        if found is None:
            body = self._body(name)
            found = self._jitted[name] = jit(lambda *xs: self._block(body, xs, {}))
        return found(*args)

    def _body(self, name: str) -> Any:
        function = self._functions.get(name)
        if function is None or not len(function.regions[0].blocks):
            raise NotRaised(f"a call of @{name}")
        return function.regions[0].blocks[0]

    def region(self, op: Any, number: int, values: dict[Any, Any]) -> Callable[..., list[Any]]:
        """A region of an operation as a function; what stands around it is known inside."""
        block = op.regions[number].blocks[0]
        return lambda *args: self._block(block, args, dict(values))

    def _block(self, block: Any, args: Sequence[Any], values: dict[Any, Any]) -> list[Any]:
        values.update(zip(block.arguments, args, strict=True))
        for each in block.operations:
            op = each.operation
            operands = [values[x] for x in op.operands]
            if op.name in _RETURNS:
                return operands
            values.update(zip(op.results, self._results(op, operands, values), strict=True))
        raise NotRaised("a block without a return")

    def _results(self, op: Any, operands: list[Any], values: dict[Any, Any]) -> Any:
        kinds = [type_of(v) for v in op.results]
        wide = [] if self._is_wide else [k for k in (*kinds, *map(aval_of, operands)) if is_64_bit(k.dtype)]
        if wide and op.name not in OF_ANY_WIDTH:
            raise NotRaised(f"{op.name} of type {wide[0].short()}, which the setting enable_x64 does not allow here")
        if wide and op.name == _CONSTANT:
            found: Any = [wide_constant(op)]
        else:
            found = self._applied(op, operands, values)
        for kind, value in zip(kinds, map(aval_of, found), strict=True):
            if (kind.shape, kind.dtype) != (value.shape, value.dtype):
                raise NotRaised(f"{op.name} of type {kind.short()}, which ours gives as {value.short()}")
        return found

    def _applied(self, op: Any, operands: list[Any], values: dict[Any, Any]) -> Any:
        rule, control = OPERATIONS.get(op.name), _CONTROL.get(op.name)
        try:
            if rule is not None:
                return _listed(op, rule(op, *operands))
            if control is not None:
                return control(self, op, operands, values)
        except (errors.ArgumentTypeError, errors.UnsupportedError) as e:
            raise NotRaised(f"{op.name}, which our operation does not take: {e}") from None
        raise NotRaised(op.name)


def _listed(op: Any, found: Any) -> Any:
    return [found] if len(op.results) == 1 else found


# ---------------------------------------------------------------------------------------------------------------------
# Operations that run functions or regions


def _call(reading: _Reading, op: Any, operands: list[Any], values: dict[Any, Any]) -> Any:
    return reading.call(symbol(op.attributes["callee"]), operands)


def _composite(reading: _Reading, op: Any, operands: list[Any], values: dict[Any, Any]) -> Any:
    name = ir.StringAttr(op.attributes["name"]).value
    if is_known(name, op):
        return _listed(op, OPERATIONS[name](op, *operands))
    return reading.call(symbol(op.attributes["decomposition"]), operands)


def _while(reading: _Reading, op: Any, operands: list[Any], values: dict[Any, Any]) -> Any:
    test, body = reading.region(op, 0, values), reading.region(op, 1, values)
    return lax.while_loop(lambda carry: test(*carry)[0], lambda carry: body(*carry), operands)


def _case(reading: _Reading, op: Any, operands: list[Any], values: dict[Any, Any]) -> Any:
    branches = [reading.region(op, i, values) for i in range(len(op.regions))]
    last = len(branches) - 1
    (index,) = operands
    index = lax.select(lax.lt(index, lax.full_like(index, 0)), lax.full_like(index, last), index)  # as StableHLO has it
    return lax.switch(index, branches)


def _if(reading: _Reading, op: Any, operands: list[Any], values: dict[Any, Any]) -> Any:
    return lax.cond(operands[0], reading.region(op, 0, values), reading.region(op, 1, values))


def _reduce(reading: _Reading, op: Any, operands: list[Any], values: dict[Any, Any]) -> Any:
    count = len(operands) // 2
    dimensions = list(ir.DenseI64ArrayAttr(op.attributes["dimensions"]))
    return _over(reading, op, values, count, lambda f: lax.reduce(
        _one(operands[:count]), _one(operands[count:]), f, dimensions))  # fmt: skip


def _reduce_window(reading: _Reading, op: Any, operands: list[Any], values: dict[Any, Any]) -> Any:
    count, rank = len(operands) // 2, len(type_of(op.operands[0]).shape)
    sizes = [numbers(op, name, rank, 1) for name in ("window_strides", "base_dilations", "window_dilations")]
    strides, base, window = sizes
    return _over(reading, op, values, count, lambda f: lax.reduce_window(
        _one(operands[:count]), _one(operands[count:]), f, numbers(op, "window_dimensions", rank, 1), strides,
        pairs(op, "padding", rank), base, window))  # fmt: skip


def _over(reading: _Reading, op: Any, values: dict[Any, Any], count: int, reduced: Any) -> Any:
    body = reading.region(op, 0, values)
    if count == 1:
        return [reduced(lambda x, y: body(x, y)[0])]
    return reduced(lambda xs, ys: tuple(body(*xs, *ys)))


def _one(values: list[Any]) -> Any:
    return values[0] if len(values) == 1 else tuple(values)


_CONTROL: dict[str, Callable[..., Any]] = {
    "func.call": _call, "stablehlo.composite": _composite, "stablehlo.while": _while, "stablehlo.case": _case,
    "stablehlo.if": _if, "stablehlo.reduce": _reduce, "stablehlo.reduce_window": _reduce_window,
}  # fmt: skip
