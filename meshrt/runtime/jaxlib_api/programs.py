"""Programs: compiled, bound to devices, as bytes, and what a compiler tells of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jaxlib._hlo as _hlo
import jaxlib._jax as _jax
import numpy as np
from jaxlib import xla_client as _xc
from jaxlib.mlir import ir

from meshrt import errors
from meshrt.runtime.jaxlib_api.buffers import device_list
from meshrt.runtime.jaxlib_api.names import Buffer, Client, XlaError
from meshrt.runtime.mlir import bytecode, parse
from meshrt.runtime.protobuf import without

__all__ = [
    "BoundaryType", "Executable", "LayoutParts", "boundary_types", "buffer_layout", "compile_and_load",
    "compile_only", "compile_options", "computation", "computation_cost", "computation_text", "cost_analysis",
    "deserialize", "expanded", "hlo_text", "memory_stats", "options_fingerprint", "output_layouts", "parameter_layouts",
    "portable_artifact", "refined_shapes", "serialize",
]  # fmt: skip

Executable: TypeAlias = _jax.LoadedExecutable


def compile_options(
    devices: Sequence[Any],
    *,
    mode: str = "replica",
    shardy: bool = True,
    xla_options: Sequence[tuple[str, Any]] = (),
    ynnpack: bool = True,
) -> Any:
    """Options for a program over `devices`.

    `mode` "replica" runs the module once per device as it stands; "spmd" lets XLA's partitioner split it, reading
    Shardy's attributes if `shardy`. `xla_options` are (name, value) of XLA's debug options. Without `ynnpack` the CPU
    compiler leaves matrix products to Eigen (the setting `cpu_ynnpack` says why).
    """
    n = len(devices)
    options = _xc.CompileOptions()
    options.num_replicas, options.num_partitions = (n, 1) if mode == "replica" else (1, n)
    ids = np.array([d.id for d in devices], dtype=np.int64)
    options.device_assignment = _xc.DeviceAssignment.create(ids.reshape((n, 1) if mode == "replica" else (1, n)))
    build = options.executable_build_options
    build.num_replicas, build.num_partitions = options.num_replicas, options.num_partitions
    if mode == "spmd":
        build.use_spmd_partitioning = True
        build.use_shardy_partitioner = shardy
    options.env_option_overrides = [(k, v) for k, v in xla_options if k not in _EFFORTS]
    for name, value in xla_options:
        if name in _EFFORTS:
            setattr(build, name, _EFFORTS[name](value))
    if not ynnpack:
        # An override cannot empty a list of XLA's.
        options = _xc.CompileOptions.ParseFromString(without(options.SerializeAsString(), _YNN_FUSIONS))
    return options


# What is said of a compilation as a whole, not by a flag of XLA's: how hard it tries, and what such a value is.
_EFFORTS: dict[str, Any] = {
    "exec_time_optimization_effort": float,
    "memory_fitting_effort": float,
    "optimization_level": int,
    "memory_fitting_level": int,
}

# CompileOptionsProto.executable_build_options.debug_options.xla_cpu_experimental_ynn_fusion_type (xla.proto).
_YNN_FUSIONS = (3, 3, 422)


def options_fingerprint(mode: str, shardy: bool, xla_options: Sequence[tuple[str, Any]], ynnpack: bool) -> str:
    """What of the options decides the compiled code, as text."""
    return f"{mode};{shardy};{ynnpack};{sorted((str(k), str(v)) for k, v in xla_options)}"


def compile_and_load(
    module: str | bytes | ir.Module,
    devices: Sequence[Any],
    options: Any,
    host_callbacks: Sequence[Callable] = (),
) -> Executable:
    """Compiles a module and binds it to `devices`. Raises CompileError with the compiler's message."""
    if host_callbacks and not isinstance(module, ir.Module):
        module = parse(module)  # C++ accepts callbacks with a parsed module only
    client = devices[0].client
    try:
        if isinstance(module, ir.Module):
            with module.context:
                return client.compile_and_load(module, device_list(tuple(devices)), options, list(host_callbacks))
        return client.compile_and_load(module, device_list(tuple(devices)), options)
    except (XlaError, ValueError) as e:
        raise errors.CompileError(f"the compiler for {client.platform} refused the program: {e}") from e


def compile_only(module: str | bytes | ir.Module, devices: Sequence[Any], options: Any) -> Any:
    """Compiles for devices that need not exist (`compile_only_devices`); the result cannot run."""
    if not isinstance(module, ir.Module):
        module = parse(module)
    try:
        with module.context:
            return devices[0].client.compile(module, device_list(tuple(devices)), options)
    except (XlaError, ValueError) as e:
        raise errors.CompileError(f"the compiler for {devices[0].device_kind} refused the program: {e}") from e


def serialize(executable: Any) -> bytes:
    """The compiled code as bytes, for `deserialize` on as many devices of the same kind."""
    return executable.serialize()


def deserialize(
    blob: bytes, devices: Sequence[Any], options: Any, host_callbacks: Sequence[Callable] = ()
) -> Executable:
    """Binds serialised code to `devices`. `blob` is trusted: only what this user's meshrt wrote may come here."""
    client = devices[0].client
    if host_callbacks:
        return client.deserialize_executable(blob, device_list(tuple(devices)), options, list(host_callbacks))
    return client.deserialize_executable(blob, device_list(tuple(devices)), options)


def memory_stats(executable: Any) -> Any:
    """The compiler's memory figures, in bytes per device."""
    return executable.get_compiled_memory_stats()


LayoutParts = tuple[tuple[int, ...], tuple[tuple[int, ...], ...], int]


def parameter_layouts(executable: Any) -> list[LayoutParts]:
    """(minor to major, tiling, bits of packed elements) of each parameter. XlaError where the platform tells none."""
    return [_layout_parts(layout) for layout in executable.get_parameter_layouts()]


def output_layouts(executable: Any) -> list[LayoutParts]:
    """As `parameter_layouts`, of each result."""
    return [_layout_parts(layout) for layout in executable.get_output_layouts()]


def buffer_layout(buffer: Buffer) -> LayoutParts | None:
    """As `parameter_layouts`, of a buffer's parts; None where the platform does not tell."""
    try:
        return _layout_parts(buffer._pjrt_layout)
    except XlaError:
        return None


def _layout_parts(layout: Any) -> LayoutParts:
    xla = layout._xla_layout()
    return tuple(xla.minor_to_major()), tuple(map(tuple, xla.tiling())), xla.element_size_in_bits()


def cost_analysis(executable: Any) -> dict[str, float]:
    """The compiler's estimates, per device: flops, bytes accessed, transcendentals ..."""
    cost = executable.cost_analysis()
    return dict(cost[0] if isinstance(cost, list) else cost)


def portable_artifact(module: ir.Module, version: str) -> bytes:
    """A module for consumers of a version of StableHLO. XlaError if that does not have one of its operations."""
    artifact: bytes = _jax.mlir.serialize_portable_artifact(module, version, True)
    return artifact


# What writes an operation out as others, by what it takes out of a module.
_EXPANSIONS = {
    "chlo": "chlo-legalize-to-stablehlo",
    "shape": "shape-legalize-to-stablehlo",
    "composite": "stablehlo-legalize-composite-to-call",
}


def expanded(module: ir.Module, *kinds: str) -> ir.Module:
    """A copy of the module in which operations of these kinds ("chlo", "shape", "composite") are written out as
    others of StableHLO."""
    from jaxlib.mlir.dialects import stablehlo  # start-up time: the dialects' classes take 30 ms
    from jaxlib.mlir.passmanager import PassManager  # start-up time: few programs are for such consumers

    stablehlo.register_stablehlo_passes()
    passes = [_EXPANSIONS[kind] for kind in kinds]
    with module.context:
        copy: ir.Module = ir.Module.parse(bytecode(module))
        PassManager.parse(f"builtin.module(func.func({','.join(passes)}))").run(copy.operation)
    return copy


def refined_shapes(module: str | bytes) -> bytes:
    """The module with static shapes that follow from those of its `@main`, as bytecode. XlaError if a size stays
    unknown or a shape assertion does not hold, with its message."""
    data = module.encode() if isinstance(module, str) else module
    refined: bytes = _jax.mlir.refine_polymorphic_shapes(data, True, True, True)
    return refined


def computation(module: str) -> Any:
    """A StableHLO module as XLA's unoptimised HLO. XlaError if XLA cannot translate it."""
    return _jax.mlir.mlir_module_to_xla_computation(bytecode(parse(module)), use_tuple_args=False)


def computation_text(of: Any, *, metadata: bool) -> str:
    """HLO as text, with `metadata` also where each operation comes from."""
    options = _hlo.HloPrintOptions.short_parsable()
    options.print_metadata = metadata
    return of.as_hlo_module().to_string(options)


def computation_cost(client: Client, of: Any) -> dict[str, float] | None:
    """The compiler's estimates for what `computation` gave; None if this jaxlib has none."""
    analyse = getattr(_jax, "hlo_module_cost_analysis", None)
    return None if analyse is None else dict(analyse(client, of.as_hlo_module()))


BoundaryType = tuple[tuple[int, ...], np.dtype]


def boundary_types(executable: Any) -> tuple[list[BoundaryType], list[BoundaryType]]:
    """Shape and element type of each parameter and result on one device. XlaError where the platform tells none."""
    proto = executable.hlo_modules()[0].as_serialized_hlo_module_proto()
    shape = _hlo.XlaComputation(proto).program_shape()
    result = shape.result_shape()
    results = result.tuple_shapes() if result.is_tuple() else [result]
    parameters, returned = ([(tuple(s.dimensions()), np.dtype(s.numpy_dtype())) for s in found]
                            for found in (shape.parameter_shapes(), results))  # fmt: skip
    return parameters, returned


def hlo_text(executable: Any) -> str:
    """The optimised HLO."""
    return "\n".join(m.to_string() for m in executable.hlo_modules())
