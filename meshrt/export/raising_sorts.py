"""By how many keys a `stablehlo.sort` sorts: its comparison is a program, which is compared with what ours would be."""

from __future__ import annotations

import functools
from typing import Any

from jaxlib.mlir import ir

from meshrt import lax
from meshrt.export.raising_attributes import NotRaised, type_of
from meshrt.jit import jit
from meshrt.lowering.legalize import operations
from meshrt.shape_dtype import ShapeDtypeStruct
from meshrt.xla import jaxlib_api

__all__ = ["keys_of"]


def keys_of(op: Any) -> int:
    """How many of the operands are compared, in the order that `lax.sort` has; NotRaised for another order."""
    dtypes = tuple(type_of(x).dtype for x in op.operands)
    form = _form(op)
    for keys in range(1, len(dtypes) + 1):
        if form == _own_form(dtypes, keys):
            return keys
    raise NotRaised("a sort by another order than that of lax.sort")


@functools.lru_cache(maxsize=256)
def _own_form(dtypes: tuple[Any, ...], keys: int) -> Any:
    specs = [ShapeDtypeStruct((2,), d) for d in dtypes]
    module = jaxlib_api.parse(jit(lambda *xs: lax.sort(xs, num_keys=keys)).lower(*specs).as_text())
    return next(_form(op) for op in operations(module) if op.name == "stablehlo.sort")


def _form(op: Any) -> Any:
    """The comparison as a value: what its result is made of, numbered in the order in which it is met from there, so
    whatever the order of operations. Constants are what they hold, wherever they stand."""
    block = op.regions[0].blocks[0]
    known: dict[Any, Any] = {x: i for i, x in enumerate(block.arguments)}
    lines: list[Any] = []
    (todo,) = ([*inner.operation.operands] for inner in block.operations if inner.operation.name == "stablehlo.return")
    while todo:
        value = todo[-1]
        owner = value.owner
        if value not in known:
            if not isinstance(owner, ir.Operation | ir.OpView):
                raise NotRaised("a comparison that reads arguments around it")
            inner = owner.operation
            if inner.name == "stablehlo.constant":
                known[value] = str(inner.attributes["value"])
            elif inner.parent != op:
                raise NotRaised("a comparison that reads values around it")
            elif missing := [x for x in inner.operands if x not in known]:
                todo += missing[::-1]
                continue
            else:
                attributes = tuple(sorted(str(inner.attributes[i]) for i in range(len(inner.attributes))))
                lines.append((inner.name, attributes, tuple(known[x] for x in inner.operands), str(value.type)))
                known[value] = ("result", len(lines))
        todo.pop()
    return tuple(lines)
