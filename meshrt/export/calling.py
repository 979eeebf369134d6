"""Calls of exported functions: a primitive that puts the module into the program around it.

The derivative is the one that was exported with the function. Forward mode needs two of the derivatives: what pulls
cotangents back is linear in them, and its own derivative with respect to them pushes tangents forward, at whatever
cotangents.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors, tree_util
from meshrt._tree_paths import structure_differences
from meshrt.core.basic.shapes import no_derivatives, zeros
from meshrt.core.dimensions.expression import DimExpr
from meshrt.core.jaxpr import Effects, Eqn
from meshrt.core.primitive import Primitive
from meshrt.core.types import ShapedArray, aval_of
from meshrt.export.embedding import Embedding
from meshrt.export.mapping import mapped_call
from meshrt.export.record import Record, argument_names, result_types
from meshrt.export.repartition import check_boundary, over_mesh
from meshrt.export.splits import Over, Splits, added_up, around, declared, explicit_mesh, result_splits, typed_as
from meshrt.lowering.context import LoweringContext
from meshrt.lowering.types import mlir_type
from meshrt.sharding.mesh import AbstractMesh
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.sdy import to_sdy_text
from meshrt.transforms.batching import MappedAxis
from meshrt.transforms.custom_arguments import SymbolicZero
from meshrt.transforms.custom_vjp import custom_vjp
from meshrt.transforms.high import keys_of, same_structure, taken_apart
from propagation.asm import Ref

__all__ = ["call_exported", "call_exported_p"]


def call_exported(exported: Record, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results of an exported function, in their structure."""
    leaves, tree = tree_util.tree_flatten(taken_apart((args, kwargs)))
    if not same_structure(tree, exported.in_tree):
        raise _other_structure(exported, tree)
    return tree_util.tree_unflatten(exported.out_tree, _called(exported, leaves))


def _other_structure(exported: Record, tree: Any) -> errors.TreeError:
    lines = []
    for path, one, other, why in structure_differences(tree, exported.in_tree, keys_of):
        which = "args" if getattr(path[0], "idx", 0) == 0 else "kwargs"
        where = which + tree_util.keystr(path[1:]) if path else "the arguments"
        lines.append(f"   - {where} is {one} in the invocation and {other} when exported, so {why}.")
    listed = "\n".join(lines) or f"   - {tree} in the invocation and {exported.in_tree} when exported"
    return errors.TreeError(
        "The invocation args and kwargs must have the same pytree structure as when the function "
        f"'{exported.fun_name}' was exported, but they have the following structural differences:\n{listed}"
    )


def _called(exported: Record, leaves: Sequence[Any]) -> Any:
    """The results as a tuple, of arguments as a list."""
    mesh = explicit_mesh(leaves)
    if mesh is None:
        return _function(exported)(*leaves)
    exported = over_mesh(exported, around(mesh))
    leaves = added_up(leaves, declared(exported, exported.in_shardings, exported.in_avals, mesh), mesh)
    splits = result_splits(exported, leaves, mesh, _function(exported))
    return _function(exported, mesh, splits)(*leaves)


def _function(exported: Record, mesh: Over | None = None, splits: Splits = ()) -> Callable[..., Any]:
    """The function of flat arguments, with its derivative; results are split as `splits` say, over `mesh`."""

    @custom_vjp
    def call(*args: Any) -> Any:
        return tuple(call_exported_p.bind(*args, exported=exported, splits=splits))

    def forward(*args: Any) -> Any:
        values = [a.value for a in args]
        return call(*values), values

    def backward(args: Sequence[Any], cts: Any) -> Any:
        derivative = exported.vjp()
        wanted = derivative.in_avals[len(args) :]
        pulled = _called(derivative, [*args, *map(_cotangent, cts, wanted)])
        return tuple(pulled if mesh is None else [typed_as(ct, aval_of(x), mesh) for ct, x in zip(pulled, args)])

    def push(args: Sequence[Any], tangents: Sequence[Any]) -> Sequence[Any]:
        second = _second_derivative(exported)
        cts = [_zeros(a.shape, a.to_tangent_aval()) for a in result_types(exported, [aval_of(x) for x in args])]
        moved = [_zeros(aval_of(x).shape, aval_of(x).to_tangent_aval()) if t is None else t
                 for x, t in zip(args, tangents)]  # fmt: skip
        found: Sequence[Any] = _called(second, [*args, *cts, *moved])[len(args) :]
        return found

    # Zeros are made here, not of their types, which do not say on which devices.
    call.defvjp(forward, backward, symbolic_zeros=True)
    call.push = push
    return call


def _second_derivative(exported: Record) -> Any:
    """The derivative of the derivative. ForwardModeError where it is not known."""
    derivative = exported.vjp() if exported.has_vjp() else exported
    if not derivative.has_vjp():
        raise errors.ForwardModeError(
            f"can't apply forward-mode autodiff (jvp) to the exported function {exported.fun_name}: that takes its "
            "second derivative. Serialize it with vjp_order=2, and one more for each further derivative, or use grad "
            "and vjp instead of jvp and jacfwd"
        )
    return derivative.vjp()


def _cotangent(ct: Any, wanted: ShapedArray) -> Any:
    if wanted.dtype == dtypes.float0:
        return no_derivatives(ct.shape)
    return zeros(ct.aval.bare()) if isinstance(ct, SymbolicZero) else ct


def _zeros(shape: tuple[int, ...], kind: ShapedArray) -> Any:
    return no_derivatives(shape) if kind.dtype == dtypes.float0 else zeros(ShapedArray(shape, kind.dtype))


# ---------------------------------------------------------------------------------------------------------------------
# The primitive


def _check(exported: Record, avals: Sequence[ShapedArray]) -> None:
    """Raises ArgumentValueError for arguments of other ranks, dtypes or known sizes."""
    names = argument_names(exported.in_tree)
    for name, wanted, given in zip(names, exported.in_avals, avals, strict=True):
        if wanted.ndim != given.ndim:
            raise errors.ArgumentValueError(
                f"Rank mismatch for {name}: expected {wanted.shape} and called with {given.shape}"
            )
        if wanted.dtype != given.dtype:
            raise errors.ArgumentValueError(
                f"Dtype mismatch for {name}: expected {wanted.dtype} and called with {given.dtype}; "
                f"{_remedy(wanted.dtype)}"
            )
        for k, (n, m) in enumerate(zip(wanted.shape, given.shape)):
            if not isinstance(n, DimExpr) and n != m:
                raise errors.ArgumentValueError(
                    f"Shape mismatch for {name}.shape[{k}] (expected same constant): expected {wanted.shape} and "
                    f"called with {given.shape}"
                )


def _remedy(wanted: Any) -> str:
    """How an argument gets a type."""
    if dtypes.canonicalize_dtype(wanted) == wanted:
        return "convert it with .astype"
    return "64-bit arrays are made and called with inside of meshrt.enable_x64(True), or with the setting enable_x64"


def _infer(*avals: ShapedArray, exported: Record, splits: Splits) -> list[ShapedArray]:
    _check(exported, avals)
    outs = result_types(exported, avals)
    varying = frozenset[str]().union(*[a.vma for a in avals])
    return [
        ShapedArray(a.shape, a.dtype, a.weak_type, split, varying, a.memory_space)
        for a, split in zip(outs, splits or (None,) * len(outs), strict=True)
    ]  # fmt: skip


def _effects(*avals: ShapedArray, exported: Record, splits: Splits) -> Effects:
    return frozenset((*exported.ordered_effects, *exported.unordered_effects))


def _lower(ctx: LoweringContext, eqn: Eqn, *operands: Ref) -> list[Ref]:
    exported: Record = over_mesh(eqn.params["exported"], _mesh(ctx))
    places = _platforms(ctx, exported)
    kept = exported.module_kept_var_idx
    avals = [a.aval for a in eqn.invars]
    args = [_constrained(ctx, operands[i], avals[i], exported.in_shardings[i]) for i in kept]
    outs = [v.aval for v in eqn.outvars]
    if exported.is_repartitioned:
        check_boundary(exported, avals, outs)
    embedded = Embedding(ctx.module, exported, _mesh(ctx)).symbol([avals[i] for i in kept], outs, places)
    if embedded.index_of is not None:
        args = [_index(ctx, embedded.index_of), *args]
    args = [_converted(ctx, a, t) for a, t in zip(args, embedded.arg_types, strict=True)]
    results = ctx.body.ops("func.call", args, embedded.result_types, f"callee = @{embedded.name}", (), ctx.loc)
    results = tuple(_converted(ctx, r, mlir_type(a)) for r, a in zip(results, outs, strict=True))
    return [_constrained(ctx, r, a, s) for r, a, s in zip(results, outs, exported.out_shardings)]


def _mesh(ctx: LoweringContext) -> AbstractMesh | None:
    """The mesh that a call is over: in a manual region each device calls for itself along the Manual axes."""
    return ctx.module.mesh if ctx.manual is None else around(ctx.manual)


def _platforms(ctx: LoweringContext, exported: Record) -> list[int]:
    """The places, among those of the exported function, of the platforms that are written for."""
    found = []
    for platform in ctx.module.platforms:
        if platform in exported.platforms:
            found.append(exported.platforms.index(platform))
        elif "platform" in map(str, exported.disabled_safety_checks):
            found.append(0)
        else:
            raise errors.ArgumentValueError(
                f"Function '{exported.fun_name}' was exported for platforms '{exported.platforms}' but it is used on "
                f"'{ctx.module.platforms}'. Export it with platforms={(*exported.platforms, platform)}, or with "
                "disabled_checks=[DisabledSafetyCheck.platform()]"
            )
    if len(found) > 1 and len(exported.platforms) == 1 and len(set(ctx.module.platforms)) > 1:
        if "platform" not in map(str, exported.disabled_safety_checks):
            raise errors.ArgumentValueError(f"Function '{exported.fun_name}' was exported for one platform only")
    return found


def _index(ctx: LoweringContext, places: Sequence[int]) -> Ref:
    """Which of the exported function's platforms the program runs on."""
    if len(places) == 1:
        return ctx.scalar(places[0], np.dtype(np.int32))
    bodies = []
    for place in places:
        body = ctx.body.body([])
        value = f"value = dense<{place}> : tensor<i32>"
        body.ret([body.op("stablehlo.constant", (), ["tensor<i32>"], value)])
        bodies.append(body)
    return ctx.op("stablehlo.case", [ctx.platform_index()], "tensor<i32>", "", bodies)


def _converted(ctx: LoweringContext, value: Ref, kind: str) -> Ref:
    """A value as one of a type that knows more or less of its sizes."""
    return value if value.type == kind else ctx.op("stablehlo.convert", [value], kind)


def _constrained(ctx: LoweringContext, value: Ref, aval: ShapedArray, sharding: NamedSharding | None) -> Ref:
    if sharding is None or sharding.mesh.size == 1 or ctx.module.mesh is None:
        return value
    symbol = ctx.module.mesh_symbol(ctx.module.mesh)
    text = to_sdy_text(sharding, aval.physical().ndim, symbol, mesh=_mesh(ctx))
    return ctx.op("sdy.sharding_constraint", [value], aval, f"sharding = {text}")


def _batch(axis: MappedAxis, args: Sequence[Any], dims: Sequence[int | None], params: dict[str, Any]) -> Any:
    return mapped_call(call_exported_p.bind, axis, args, dims, params)


call_exported_p: Primitive = Primitive(
    "call_exported", _infer, lower=_lower, effects=_effects, multiple_results=True, cache_types=False,
    batch=_batch, batch_axis=True,
    absent={
        "jvp": "an exported function has a reverse-mode derivative only",
        "transpose": "it is no linear operation",
    },
)  # fmt: skip
