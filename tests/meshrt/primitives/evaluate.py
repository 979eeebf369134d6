"""Runs staged programs by compiling their lowering, without the dispatch that is tested elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxlib import xla_client

from meshrt.core.jaxpr import Jaxpr, check
from meshrt.core.trace import trace_to_jaxpr
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext, ModuleLowering
from meshrt.lowering.types import mlir_type
from meshrt.transforms.tools import hoist_consts


def module_text(jaxpr: Jaxpr) -> str:
    """The StableHLO module whose `main` computes `jaxpr`."""
    module = ModuleLowering("judge")
    main = module.writer.function("main", [mlir_type(v.aval) for v in jaxpr.invars], public=True)
    main.ret(LoweringContext(module, main).jaxpr(jaxpr, main.args))
    return module.writer.text()


def run_module(text: str, args: Sequence[Any]) -> list[np.ndarray]:
    """Compiles and runs a one-device module."""
    device = jax.devices("cpu")[0]
    options = xla_client.CompileOptions()
    options.num_replicas = options.num_partitions = 1
    options.device_assignment = xla_client.DeviceAssignment.create(np.array([[device.id]]))
    executable = device.client.compile_and_load(text, xla_client.DeviceList((device,)), options)
    placed = [jax.device_put(a, device) for a in args]
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
