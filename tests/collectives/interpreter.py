"""StableHLO's reference interpreter as judge: it shares no code with XLA's compiler, and runs collectives too.

`run_devices` runs a per-device program on all devices of a mesh at once (`interpreter.run_parallel`), `run_whole` an
unpartitioned one. Everything is evaluated element by element: for small programs only.
"""

from __future__ import annotations

import functools
import re

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, stablehlo

from .harness import pieces, unshard

__all__ = ["run_devices", "run_partitioned", "run_whole"]


@functools.cache
def _context() -> ir.Context:
    """A context that may start threads: every device is one."""
    context = ir.Context()
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for dialect in (stablehlo, chlo):
        dialect.register_dialect(context)
    stablehlo.register_interpreter_dialect(context)
    return context


def _attribute(x: np.ndarray, type_: ir.Type) -> ir.Attribute:
    x = np.ascontiguousarray(x)
    element = ir.RankedTensorType(type_).element_type
    if x.dtype == bool:
        packed = np.packbits(x.reshape(-1), bitorder="little")
        return ir.DenseElementsAttr.get(packed, type=element, shape=list(x.shape))
    if x.dtype.kind in "iufc" and x.dtype.name in np.sctypeDict:
        return ir.DenseElementsAttr.get(x, type=element, shape=list(x.shape))
    raise TypeError(f"the interpreter's door does not take {x.dtype}")


def _evaluate(text: str, args) -> list[np.ndarray]:
    with _context():
        module = ir.Module.parse(text)
        (main,) = [f for f in module.body.operations if ir.StringAttr(f.attributes["sym_name"]).value == "main"]
        types = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).inputs
        attrs = [_attribute(np.asarray(a), t) for a, t in zip(args, types)]
        return [np.array(ir.DenseElementsAttr(r)) for r in stablehlo.eval_module(module, attrs)]


def run_whole(text: str, args) -> list[np.ndarray]:
    """An unpartitioned program's results."""
    return _evaluate(text, args)


def run_devices(text: str, n: int, per_device):
    """`per_device[i]` are the pieces of argument i, one for each of `n` devices; returns the same for results."""
    with _context():
        module = ir.Module.parse(text)
        (main,) = [f for f in module.body.operations if ir.StringAttr(f.attributes["sym_name"]).value == "main"]
        kind = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
        ins, outs = [str(t) for t in kind.inputs], [str(t) for t in kind.results]
        body = str(module)
    body = re.sub(r"func\.func (public )?@main\(", "func.func private @device(", body)
    names = [f"%a{d}_{i}" for d in range(n) for i in range(len(ins))]
    types = ", ".join(ins * n)
    results = ", ".join(outs * n)
    signature = ", ".join(f"{name}: {t}" for name, t in zip(names, ins * n))
    returned = ", ".join(f"%r#{i}" for i in range(len(outs) * n)) if len(outs) * n > 1 else "%r"
    count = f":{len(outs) * n}" if len(outs) * n > 1 else ""
    main = f"""
  func.func @main({signature}) -> ({results}) {{
    %r{count} = "interpreter.run_parallel"({", ".join(names)}) <{{programs = [{", ".join(["[@device]"] * n)}]}}>
      : ({types}) -> ({results})
    return {returned} : {results}
  }}
"""
    end = body.rstrip().rindex("}")
    flat = [per_device[i][d] for d in range(n) for i in range(len(ins))]
    out = _evaluate(body[:end] + main + "}", flat)
    return [[out[d * len(outs) + i] for d in range(n)] for i in range(len(outs))]


def run_partitioned(partitioned, args, shapes) -> list[np.ndarray]:
    """A `PartitionedProgram` on global arrays; global results."""
    shards = [pieces(np.asarray(a), s) for a, s in zip(args, partitioned.arg_shardings)]
    out = run_devices(partitioned.as_text(), partitioned.mesh.size, shards)
    return [unshard(s, shape, sh) for s, shape, sh in zip(out, shapes, partitioned.result_shardings)]
