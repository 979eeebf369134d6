"""`stablehlo.composite`: an operation with a name and a function that decomposes it. If the name is that of a CHLO
operation with a rule (`chlo.top_k`), that rule is used; else the decomposition is inlined."""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir

from propagation.attributes import string, symbol
from propagation.program import Op, source

from ..errors import UnsupportedOpError
from ..layouts.context import Context
from ..ops.calls import inline

__all__: list[str] = []


def composite(ctx: Context, op: Op) -> None:
    """As the CHLO operation of its name, if there is one; else its decomposition, inlined."""
    name = string(op.attrs["name"])
    own = ctx.families.get(name) if name.startswith("chlo.") else None
    if own is not None:
        inner = Op(name, op.operands, [], op._ir, _attributes(op))
        inner.results, inner.parent = op.results, op.parent
        ctx.op = inner
        own(ctx, inner)
        return
    callee = ctx.program.funcs.get(symbol(op.attrs["decomposition"]))
    if callee is None:
        what = f"composite {name} is made of @{symbol(op.attrs['decomposition'])}, which the module does not define"
        raise UnsupportedOpError(what, source(op))
    ctx.forget_estimates()  # the function may be the decomposition of another composite too
    inline(ctx, op, callee)


def _attributes(op: Op) -> dict[str, Any]:
    if "composite_attributes" not in op.attrs:
        return {}
    attrs = ir.DictAttr(op.attrs["composite_attributes"])
    return {attrs[i].name: attrs[i].attr for i in range(len(attrs))}


PARTITION = {"stablehlo.composite": composite}
