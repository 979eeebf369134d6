"""The call of a kernel in a program for TPUs: a custom call that carries the kernel and what its compiler is told."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import errors
from meshrt.core.jaxpr import Eqn
from meshrt.core.types import ShapedArray
from meshrt.experimental.kernels.facts import kernel_facts
from meshrt.experimental.kernels.mapping import GridMapping
from meshrt.experimental.kernels.mosaic.module import KernelModule, kernel_module
from meshrt.experimental.kernels.mosaic.types import STORED_BOOL
from meshrt.experimental.kernels.params import CostEstimate, SideEffectType, TpuCompilerParams, for_tpus
from meshrt.lowering.context import LoweringContext
from meshrt.primitives.ffi import Target, whole_rule, write_call
from propagation.quoting import quote

__all__ = ["backend_config", "lower"]

TARGET = "tpu_custom_call"


def lower(ctx: LoweringContext, eqn: Eqn, operands: Sequence[Any]) -> Sequence[Any]:
    """The back end for "tpu".

    Raises:
      UnsupportedError: something that TPUs or their compiler lack, with operation and line.
      ArgumentValueError: compiler parameters do not fit the kernel.
    """
    params, mapping = eqn.params, eqn.params["grid_mapping"]
    asked = for_tpus(params["compiler_params"]) or TpuCompilerParams()
    name = symbol(params["name"])
    module = kernel_module(name, params["jaxpr"], mapping, asked, ctx.manual)
    check_barrier(name, module, asked, ctx.manual is not None)
    ins = [_stored(a.aval) for a in eqn.invars]
    outs = [_stored(v.aval) for v in eqn.outvars]
    given = [ctx.convert(x, a.aval, kind.dtype) for x, a, kind in zip(operands, eqn.invars, ins)]
    target = Target(
        TARGET, "", 1, backend_config(module, asked, kernel_facts(params).cost), None, _has_effect(asked, module, eqn),
        _aliases(params["input_output_aliases"], mapping), None,
    )  # fmt: skip
    results = write_call(
        ctx, given, outs, target, [_row_major(a) for a in ins], [_row_major(a) for a in outs],
        whole_rule([a.shape for a in ins], [a.shape for a in outs]), f"kernel_name = {quote(name)}",
    )  # fmt: skip
    return [ctx.convert(x, kind, v.aval.dtype) for x, kind, v in zip(results, outs, eqn.outvars)]


def symbol(name: str) -> str:
    """A function's name as a symbol: `<lambda>` becomes `_lambda_`."""
    return "".join([c if c.isalnum() or c == "_" else "_" for c in name]) or "kernel"


def _stored(aval: ShapedArray) -> ShapedArray:
    return aval.update(dtype=STORED_BOOL, weak_type=False) if aval.dtype == np.bool_ else aval


def _row_major(aval: ShapedArray) -> tuple[int, ...]:
    return tuple(range(aval.ndim - 1, -1, -1))


def _aliases(aliases: Sequence[tuple[int, int]], mapping: GridMapping) -> tuple[tuple[int, int], ...]:
    """Positions among the operands of the call, which begin with the sizes that are computed."""
    return tuple([(i + mapping.num_dynamic, o) for i, o in aliases])


def _has_effect(asked: TpuCompilerParams, module: KernelModule, eqn: Eqn) -> bool:
    said = asked.has_side_effects
    if isinstance(said, SideEffectType):
        said = said is not SideEffectType.PURE
    return bool(said or module.has_communication or eqn.effects)


def check_barrier(name: str, module: KernelModule, asked: TpuCompilerParams, among_devices: bool) -> None:
    """Refuses what compilers end the process for.

    Raises:
      ArgumentValueError: `collective_id` is missing, or given for nothing.
    """
    if module.has_custom_barrier and asked.collective_id is None:
        raise errors.ArgumentValueError(
            f"collective_id has to be specified when using a custom barrier: the kernel {name} meets other chips at "
            "get_barrier_semaphore(), of which there is one per id; give "
            "compiler_params=CompilerParams(collective_id=0), and kernels that may run at the same time different ones"
        )
    if asked.collective_id is None:
        if module.has_communication and among_devices and not asked.skip_device_barrier:
            raise errors.ArgumentValueError(
                f"the kernel {name} sends to other chips and meets them at no barrier: one may write into memory of a "
                "chip that is not in the kernel yet. Signal and wait for get_barrier_semaphore() first, with "
                "CompilerParams(collective_id=0); or promise by skip_device_barrier=True that they are"
            )
    elif not module.has_custom_barrier and not asked.allow_collective_id_without_custom_barrier:
        raise errors.ArgumentValueError(
            "collective_id has to be unspecified or None when not using a custom barrier: leave it out of the "
            f"parameters of the kernel {name}, or say allow_collective_id_without_custom_barrier=True"
        )


def backend_config(module: KernelModule, asked: TpuCompilerParams, cost: CostEstimate) -> str:
    """What the compiler reads of the call, as JSON. It knows no other fields than those that it expects."""
    own: dict[str, Any] = {
        "body": base64.b64encode(module.body).decode(),
        "cost_estimate": dataclasses.asdict(cost),
        "serialization_format": asked.serialization_format,
        "needs_layout_passes": asked.needs_layout_passes,
    }
    flags = ("disable_bounds_checks", "disable_semaphore_checks", "skip_device_barrier")
    own |= {name: True for name in flags if getattr(asked, name)}
    if module.has_communication:
        own["has_communication"] = True
    if not asked.shape_invariant_numerics:
        own["shape_invariant_numerics"] = False
    for name in ("collective_id", "internal_scratch_in_bytes"):
        if getattr(asked, name) is not None:
            own[name] = getattr(asked, name)
    if asked.allow_input_fusion is not None:
        own["allow_input_fusion"] = list(map(bool, asked.allow_input_fusion))
    config: dict[str, Any] = {"custom_call_config": own}
    if asked.vmem_limit_bytes is not None:
        config["scoped_memory_configs"] = [{"memory_space": 1, "offset": 0, "size": asked.vmem_limit_bytes}]
    if asked.flags:
        config["flag_configs"] = [{"flag_type": k, "value": _flag(k, v)} for k, v in asked.flags.items()]
    return json.dumps(config, separators=(",", ":"))


def _flag(name: str, value: Any) -> dict[str, Any]:
    for kind, field in ((bool, "boolean_value"), (int, "integer_value"), (float, "double_value")):
        if isinstance(value, kind):
            return {field: value}
    raise errors.ArgumentValueError(f"the compiler's flag {name} is a bool, an int or a float, got {value!r}")
