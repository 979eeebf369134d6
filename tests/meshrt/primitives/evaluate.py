"""Runs staged programs by compiling their lowering, without the dispatch that is tested elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxlib import xla_client

from meshrt.core.checking import check
from meshrt.core.jaxpr import Jaxpr
from meshrt.core.trace import trace_to_jaxpr
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext, ModuleLowering
from meshrt.lowering.types import mlir_type
from meshrt.transforms.tools import hoist_consts

# Compiling these programs takes far longer than running them. Without the fusion emitters it takes a fifth.
_QUICK = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
}
_EMPTY = "module @empty { func.func public @main(%a: tensor<f32>) -> tensor<f32> { return %a : tensor<f32> } }"


@functools.cache
def quick_compile() -> dict[str, Any]:
    """The options above that this jaxlib has."""
    known = {}
    for name, value in _QUICK.items():
        try:
            compile_module(_EMPTY, {name: value})
        except Exception as e:
            if "No such compile option" not in str(e):
                raise
        else:
            known[name] = value
    return known


def compile_module(text: str, compiler_options: dict[str, Any]) -> Any:
    """A one-device executable of a StableHLO module."""
    device = jax.devices("cpu")[0]
    options = xla_client.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    options.device_assignment = xla_client.DeviceAssignment.create(np.array([[device.id]]))
    options.env_option_overrides = list(compiler_options.items())
    return device.client.compile_and_load(text, xla_client.DeviceList((device,)), options)


def module_text(jaxpr: Jaxpr) -> str:
    """The StableHLO module whose `main` computes `jaxpr`."""
    module = ModuleLowering("judge")
    main = module.writer.function("main", [mlir_type(v.aval) for v in jaxpr.invars], public=True)
    main.ret(LoweringContext(module, main).jaxpr(jaxpr, main.args))
    return module.writer.text()


def run_module(text: str, args: Sequence[Any]) -> list[np.ndarray]:
    """Compiles and runs a one-device module."""
    executable = compile_module(text, quick_compile())
    placed = [jax.device_put(a, jax.devices("cpu")[0]) for a in args]
    results = executable.execute_sharded(placed).disassemble_into_single_device_arrays()
    return [np.asarray(r[0]) for r in results]


def stage(fun: Callable[..., Sequence[Any]], avals: Sequence[ShapedArray]) -> tuple[Jaxpr, list[Any]]:
    """The checked Jaxpr of a flat function, and the values of its leading arguments (captured constants)."""
    closed = hoist_consts(trace_to_jaxpr(fun, avals, "judged"))
    check(closed.jaxpr)
    return closed.jaxpr, closed.consts


def evaluate(fun: Callable[..., Sequence[Any]], *args: Any) -> list[np.ndarray]:
    """The results of a flat function of NumPy arrays, as one compiled program."""
    jaxpr, consts = stage(fun, [aval_of(np.asarray(a)) for a in args])
    live = [np.asarray(a) for a in (*consts, *args)]
    return run_module(module_text(jaxpr), live)
