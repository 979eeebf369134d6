"""`export`: traces a jitted function and lowers it to a module that other programs and processes can call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from meshrt import errors, tree_util
from meshrt.api import vjp
from meshrt.config import settings
from meshrt.core.dimensions.expression import is_symbolic_dim, is_symbolic_shape
from meshrt.core.dimensions.scope import SymbolicScope
from meshrt.core.dimensions.solving import Solution, solve
from meshrt.core.effects import Effect
from meshrt.core.references import AbstractRef
from meshrt.core.tracebacks import boundary
from meshrt.core.types import ShapedArray, aval_of
from meshrt.export.artifact import custom_calls, target_version, write_artifact
from meshrt.export.checks import (
    DisabledSafetyCheck,
    asked_checks,
    asked_platforms,
    check_custom_calls,
    default_export_platform,
    maximum_supported_calling_convention_version,
    minimum_supported_calling_convention_version,
)
from meshrt.export.exported import Exported
from meshrt.export.record import argument_names
from meshrt.interpreters.mlir import as_lowering
from meshrt.jit import JitFunction, jit
from meshrt.lowering.module import LoweredModule, lower_module
from meshrt.pipeline.lowered import module_name
from meshrt.pipeline.traced import LoweringRequest, Traced, TraceRecord
from meshrt.random.keys import key_data
from meshrt.shape_dtype import ShapeDtypeStruct
from meshrt.sharding.mesh import AbstractMesh, AxisType
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import UNCONSTRAINED
from meshrt.sharding.typed import sharding_of
from meshrt.transforms.ordering import in_order
from meshrt.xla import jaxlib_api

__all__ = ["export"]

Rules = Mapping[Any, Any]  # in place of the lowering rules of these primitives

# Where symbolic sizes are left in a program, this is in its text (and it may be in names that others give).
_SIZES = ("tensor<{", "x{", "meshrt.size")


def export(
    fun_jit: Any,
    *,
    platforms: Sequence[str] | None = None,
    disabled_checks: Sequence[DisabledSafetyCheck] = (),
    stablehlo_version: str | int | None = None,
    _override_lowering_rules: Sequence[tuple[Any, Any]] | None = None,
) -> Callable[..., Exported]:
    """A function that takes arguments, or ShapeDtypeStructs with symbolic shapes, and gives an `Exported`.

    >>> import meshrt, meshrt.numpy as jnp, numpy as np
    >>> (batch,) = meshrt.export.symbolic_shape("batch")
    >>> exported = export(meshrt.jit(jnp.sum))(meshrt.ShapeDtypeStruct((batch, 2), np.float32))
    >>> float(exported.call(jnp.ones((3, 2))))
    6.0

    Args:
      fun_jit: the result of `jit`.
      platforms: where the program is to run: "cpu", "cuda", "rocm", "tpu", or others. By default that of the default
        backend. With several, the program takes the index of the platform that it runs on.
      disabled_checks: checks that are not made.
      stablehlo_version: the version that the module is written for: see `meshrt.export.artifact.target_version`.
      _override_lowering_rules: pairs of a primitive and a rule, as `meshrt.interpreters.mlir.register_lowering` takes
        it, with which this program is written instead. Nobody promises that others read what such rules write.

    Raises:
      ArgumentValueError: the function is not jitted; symbolic sizes of several scopes; a setting of the calling
        convention, or a version, that is not supported; custom calls that are not stable; a platform twice.
      ArgumentTypeError: platforms that are no names, checks that are none.
      UnsolvableDimensionError: a variable's value does not follow from the arguments' sizes.
      UnsupportedError: the function calls back into Python, or an operation does not take symbolic sizes.
    """
    if not hasattr(fun_jit, "trace") or not hasattr(fun_jit, "lower"):
        raise errors.ArgumentValueError(
            f"Function to be exported must be the result of `jit` but is: {fun_jit}. Write export(meshrt.jit(f))"
        )
    chosen, disabled = asked_platforms(platforms), asked_checks(disabled_checks)

    @boundary
    def do_export(*args: Any, **kwargs: Any) -> Exported:
        where = chosen or (default_export_platform(),)
        _check_scopes(fun_jit, args, kwargs)
        traced = fun_jit.trace(*args, **kwargs)
        rules = {p: as_lowering(p, rule) for p, rule in _override_lowering_rules or ()}
        return _exported(traced, where, disabled, target_version(stablehlo_version), rules)

    return do_export


def _check_scopes(fun: Any, args: Any, kwargs: Any) -> None:
    """Symbolic sizes of all arguments have to be of one scope."""
    first: tuple[SymbolicScope, str] | None = None
    leaves, tree = tree_util.tree_flatten((args, kwargs))
    for leaf, name in zip(leaves, argument_names(tree)):
        for size in filter(is_symbolic_dim, getattr(leaf, "shape", ())):
            if first is None:
                first = size.scope, name
            called = getattr(fun, "__name__", str(fun))
            first[0].require(size, f"when exporting {called}", f"current (from {first[1]})", name)


def _exported(
    traced: Traced, platforms: tuple[str, ...], disabled: tuple[DisabledSafetyCheck, ...], version: str, rules: Rules
) -> Exported:
    convention = settings.export_calling_convention_version
    low, high = minimum_supported_calling_convention_version, maximum_supported_calling_convention_version
    if not low <= convention <= high:
        raise errors.ArgumentValueError(
            f"The requested export calling convention version {convention} is outside the range of supported versions "
            f"[{low}..{high}]; set the setting export_calling_convention_version to one of these"
        )
    record, request = traced.record, traced.request
    _refuse_boxes(record)
    _check_donation(request, platforms)
    solution = solve([a.shape for a in record.in_avals], argument_names(record.in_tree))
    module = _lowered(record, request, platforms, solution if solution.unknowns else None, rules)
    if module.callbacks or module.customs:
        what = "calls back into Python" if module.callbacks else "has operations that its user partitions"
        raise errors.UnsupportedError(
            f"serialization of host_callbacks is not yet implemented: {record.fun_name} {what}, which no file can "
            "hold. Take them out, or mark them off with a flag of the function"
        )
    text = module.text
    if not solution.unknowns and any(sign in text for sign in _SIZES):
        _lowered(
            record, request, platforms, solution, rules
        )  # which says of what size the arguments do not tell the value
    check_custom_calls(custom_calls(jaxlib_api.parse(text)), disabled)
    mesh = request.mesh
    effects = sorted(record.live.effects, key=str)
    return Exported(
        fun_name=record.fun_name,
        in_tree=record.in_tree,
        in_avals=tuple(record.in_avals),
        out_tree=record.out_tree,
        out_avals=tuple(record.out_avals),
        in_shardings=tuple(s if i in module.kept else None for i, s in enumerate(request.arg_shardings)),
        out_shardings=tuple(map(_said, request.out_shardings, record.out_avals, [mesh] * len(record.out_avals))),
        nr_devices=1 if mesh is None else mesh.size,
        platforms=platforms,
        ordered_effects=tuple(e for e in effects if isinstance(e, Effect) and e.is_ordered),
        unordered_effects=tuple(e for e in effects if not (isinstance(e, Effect) and e.is_ordered)),
        disabled_safety_checks=disabled,
        mlir_module_serialized=write_artifact(text, version),
        calling_convention_version=convention,
        module_kept_var_idx=module.kept,
        uses_global_constants="jax.uses_shape_polymorphism = true" in module.writer.attributes,
        stablehlo_version=version,
        mesh=mesh,
        _get_vjp=lambda primal: _vjp_of(traced, primal, rules),
    )


def _said(sharding: NamedSharding | None, aval: ShapedArray, mesh: AbstractMesh | None) -> NamedSharding | None:
    """What is said of a result's sharding: by who exports the function, else by its type, of what Explicit axes do."""
    if sharding is not None or mesh is None or AxisType.Explicit not in mesh.axis_types:
        return sharding
    found = sharding_of(aval, mesh)
    if AxisType.Auto not in mesh.axis_types:
        return found
    return found.update(spec=found.spec.update(partitions=[UNCONSTRAINED if e is None else e for e in found.spec]))


def _refuse_boxes(record: TraceRecord) -> None:
    found = [] if record.high is None else [a for a in record.high.in_avals if a.mutable]
    if found:
        raise errors.UnsupportedError(
            f"{record.fun_name} takes or closes over a mutable value of type {found[0].short()}, which no exported "
            "function can write to, as it may be called in another process: take and return what it holds"
        )
    names = argument_names(record.in_tree) if record.in_tree.num_leaves == len(record.in_avals) else []
    for name, aval in [*zip(names, record.in_avals), *(("a captured array", aval_of(c)) for c in record.closed.consts)]:
        if isinstance(aval, AbstractRef):
            raise errors.UnsupportedError(
                f"{name} of {record.fun_name} is a reference, {aval.short()}, which no exported function can read or "
                "write, as it may be called in another process: take its value, ref[...], and return the new one"
            )


def _check_donation(request: LoweringRequest, platforms: tuple[str, ...]) -> None:
    known = {p in ("cpu", "cuda", "rocm", "tpu") for p in platforms}
    if any(request.donated) and len(known) > 1:
        raise errors.UnsupportedError(
            "In multi-platform lowering either all or no lowering platforms should support donation. Lowering for "
            f"{platforms}: export without donate_argnums, or for each platform alone"
        )


def _lowered(
    record: TraceRecord, request: LoweringRequest, platforms: tuple[str, ...], solution: Solution | None, rules: Rules
) -> LoweredModule:
    consts = [key_data(c) if getattr(getattr(c, "aval", None), "is_key", False) else c for c in record.closed.consts]
    return lower_module(
        in_order(record.live), record.needed, [np.asarray(c) for c in consts], module_name(record.fun_name),
        mesh=request.mesh, arg_shardings=request.arg_shardings, out_shardings=request.out_shardings,
        donated=request.donated, out_paths=record.out_paths(), platform=platforms[0], platforms=platforms,
        keep_unused=request.keep_unused or any(is_symbolic_shape(a.shape) for a in record.in_avals),
        is_export=True, solution=solution, arg_memories=request.arg_memories, out_memories=request.out_memories,
        overrides=rules,
    )  # fmt: skip


def _vjp_of(traced: Traced, primal: Exported, rules: Rules) -> Exported:
    """The derivative of an exported function, exported likewise: of its arguments and of cotangents of its results."""
    count = len(primal.in_avals)

    def fun_vjp(*args_and_cts: Any) -> Any:
        _, pull_back = vjp(lambda *args: _flat(traced, args), *args_and_cts[:count])
        return pull_back(list(args_and_cts[count:]))

    fun_vjp.__name__ = fun_vjp.__qualname__ = f"{primal.fun_name}_vjp"
    avals = [*primal.in_avals, *[a.to_tangent_aval() for a in primal.out_avals]]
    asked = [*primal.in_shardings, *map(_of_cotangent, primal.out_shardings)]
    specs = [ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type, sharding=s) for a, s in zip(avals, asked)]
    options: dict[str, Any] = {}
    if primal.mesh is not None:
        options = {"in_shardings": tuple(map(_closed, asked)),
                   "out_shardings": tuple(_closed(_of_cotangent(s)) for s in primal.in_shardings)}  # fmt: skip
    jitted: JitFunction = jit(fun_vjp, **options)
    checks, version = primal.disabled_safety_checks, primal.stablehlo_version
    return _exported(jitted.trace(*specs), primal.platforms, checks, version, rules)


def _closed(sharding: NamedSharding | None) -> NamedSharding | None:
    """What `jit` is told of a sharding: nothing where it leaves dimensions to propagation, as types say the rest."""
    return None if sharding is None or UNCONSTRAINED in sharding.spec.partitions else sharding


def _of_cotangent(sharding: NamedSharding | None) -> NamedSharding | None:
    """The sharding of cotangents: partial sums where the value is copied, and copied where it is partial sums."""
    if sharding is None or not (sharding.spec.unreduced or sharding.spec.reduced):
        return sharding
    spec = sharding.spec
    return sharding.update(spec=spec.update(unreduced=spec.reduced, reduced=spec.unreduced))


def _flat(traced: Traced, args: Sequence[Any]) -> list[Any]:
    """Results of the function as a list, of its arguments as one."""
    arguments, keywords = tree_util.tree_unflatten(traced.in_tree, args)
    found: list[Any] = tree_util.tree_leaves(traced(*arguments, **keywords))
    return found
