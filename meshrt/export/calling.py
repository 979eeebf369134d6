"""Calls of exported functions: a primitive that puts the module into the program around it.

The derivative is the one that was exported with the function. Nothing of its inside is known here, so it cannot be
batched or differentiated forwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors, tree_util
from meshrt.core.dimensions.expression import DimExpr
from meshrt.core.explicit import Application, Spec
from meshrt.core.jaxpr import Effects, Eqn
from meshrt.core.primitive import Primitive
from meshrt.core.types import ShapedArray
from meshrt.export.embedding import Embedding
from meshrt.export.record import Record, argument_names
from meshrt.lowering.context import LoweringContext
from meshrt.lowering.types import mlir_type
from meshrt.sharding.named import NamedSharding
from meshrt.sharding.spec import UNCONSTRAINED, axes_of
from meshrt.transforms.custom_vjp import custom_vjp
from meshrt.transforms.high import kept_apart, same_structure, taken_apart
from propagation.asm import Ref

__all__ = ["call_exported", "call_exported_p"]


def call_exported(exported: Record, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The results of an exported function, in their structure."""
    leaves, tree = tree_util.tree_flatten(taken_apart((args, kwargs)))
    if not same_structure(tree, exported.in_tree):
        raise _other_structure(exported, tree)
    return tree_util.tree_unflatten(exported.out_tree, _flat(exported)(*leaves))


def _other_structure(exported: Record, tree: Any) -> errors.TreeError:
    given, wanted = (kept_apart(t, [0] * t.num_leaves) for t in (tree, exported.in_tree))
    lines = []
    for path, one, other, why in tree_util.equality_errors(given, wanted):
        which = "args" if getattr(path[0], "idx", 0) == 0 else "kwargs"
        where = which + tree_util.keystr(path[1:]) if path else "the arguments"
        lines.append(f"   - {where} is a {one} in the invocation and a {other} when exported, so {why}.")
    listed = "\n".join(lines) or f"   - {tree} in the invocation and {exported.in_tree} when exported"
    return errors.TreeError(
        "The invocation args and kwargs must have the same pytree structure as when the function "
        f"'{exported.fun_name}' was exported, but they have the following structural differences:\n{listed}"
    )


def _flat(exported: Record) -> Any:
    """The function of flat arguments, with its derivative."""

    @custom_vjp
    def call(*args: Any) -> Any:
        return tuple(call_exported_p.bind(*args, exported=exported))

    def forward(*args: Any) -> Any:
        return call(*args), args

    def backward(args: Any, cts: Any) -> Any:
        derivative = exported.vjp()
        wanted = derivative.in_avals[len(args) :]
        fitting = [np.zeros(a.shape, dtypes.float0) if a.dtype == dtypes.float0 else ct for ct, a in zip(cts, wanted)]
        return tuple(_flat(derivative)(*args, *fitting))

    call.defvjp(forward, backward)
    return call


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
                f"Dtype mismatch for {name}: expected {wanted.dtype} and called with {given.dtype}; convert it with "
                ".astype"
            )
        for k, (n, m) in enumerate(zip(wanted.shape, given.shape)):
            if not isinstance(n, DimExpr) and n != m:
                raise errors.ArgumentValueError(
                    f"Shape mismatch for {name}.shape[{k}] (expected same constant): expected {wanted.shape} and "
                    f"called with {given.shape}"
                )


def _infer(*avals: ShapedArray, exported: Record) -> list[ShapedArray]:
    _check(exported, avals)
    values = exported.solution.of([a.shape for a in avals])
    shapes = [tuple(n.evaluate(values) if isinstance(n, DimExpr) else n for n in a.shape) for a in exported.out_avals]
    return [ShapedArray(s, a.dtype, a.weak_type) for s, a in zip(shapes, exported.out_avals)]


def _effects(*avals: ShapedArray, exported: Record) -> Effects:
    return frozenset((*exported.ordered_effects, *exported.unordered_effects))


def _lower(ctx: LoweringContext, eqn: Eqn, *operands: Ref) -> list[Ref]:
    exported: Record = eqn.params["exported"]
    _check_devices(ctx, exported)
    places = _platforms(ctx, exported)
    kept = exported.module_kept_var_idx
    avals = [a.aval for a in eqn.invars]
    args = [
        _constrained(ctx, operands[i], avals[i], exported.in_shardings[i], exported.in_avals[i])
        for i in kept
    ]  # fmt: skip
    outs = [v.aval for v in eqn.outvars]
    embedded = Embedding(ctx.module, exported).symbol([avals[i] for i in kept], outs, places)
    if embedded.index_of is not None:
        args = [_index(ctx, embedded.index_of), *args]
    args = [_converted(ctx, a, t) for a, t in zip(args, embedded.arg_types, strict=True)]
    results = ctx.body.ops("func.call", args, embedded.result_types, f"callee = @{embedded.name}", (), ctx.loc)
    results = tuple(_converted(ctx, r, mlir_type(a)) for r, a in zip(results, outs, strict=True))
    return [
        _constrained(ctx, r, a, s, a) for r, a, s in zip(results, outs, exported.out_shardings)
    ]  # fmt: skip


def _check_devices(ctx: LoweringContext, exported: Record) -> None:
    mesh = ctx.module.mesh
    here = 1 if mesh is None else mesh.size
    if ctx.manual is not None:  # each device calls it for itself, along Manual axes
        here = math.prod(n for name, n in ctx.manual.shape_tuple if name not in ctx.manual.manual_axes)
    if here == exported.nr_devices:
        return
    said = f"Function {exported.fun_name} was exported for {exported.nr_devices} devices and is called in a context "
    said += f"with {here} devices"
    if exported.nr_devices != 1:
        raise errors.MeshMismatchError(
            f"{said}, which is not allowed. Place its arguments on a mesh of {exported.nr_devices} devices, with "
            "exported.in_shardings_jax(mesh)"
        )
    if exported.mesh is not None:
        raise errors.MeshMismatchError(
            f"{said}. This is disallowed because: the exported function contains non-replicated sharding annotations; "
            "export it without shardings, or for a mesh of that size"
        )


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


def _constrained(
    ctx: LoweringContext, value: Ref, aval: ShapedArray, sharding: NamedSharding | None, known: ShapedArray
) -> Ref:
    if sharding is None or ctx.module.mesh is None:
        return value
    text = ctx.module.sharding_text(sharding, aval.physical().ndim)
    return ctx.op("sdy.sharding_constraint", [value], aval, f"sharding = {text}")


def _explicit(app: Application) -> list[Spec]:
    """The results are split as the exported function says, and are whole where it says nothing."""
    exported: Record = app.params["exported"]
    own = exported.mesh
    if own is None or own.axis_sizes != tuple(app.sizes.values()):
        return [(None,) * t.ndim for t in app.types]
    names = dict(zip(own.axis_names, app.sizes))
    found = []
    for t, s in zip(app.types, exported.out_shardings):
        entries = (None,) * t.ndim if s is None else s.spec.padded(t.ndim)
        known = [() if e is UNCONSTRAINED else axes_of(e) for e in entries]
        found.append(tuple(tuple(names[a] for a in axes) or None for axes in known))
    return found


call_exported_p: Primitive = Primitive(
    "call_exported", _infer, lower=_lower, explicit=_explicit, effects=_effects, multiple_results=True,
    cache_types=False, typed=False,
    absent={
        "jvp": "an exported function has a reverse-mode derivative only",
        "transpose": "it is no linear operation",
        "batch": "an exported function is a module of fixed ranks, of whose inside nothing is known: export "
        "jit(vmap(f)), with a symbolic size for the batch",
    },
)  # fmt: skip
