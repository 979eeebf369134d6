"""`composite`: an operation that is known to compilers by a name, and to all others by its decomposition.

It becomes a `stablehlo.composite` in programs that go to one compiler as they are. Programs on a mesh hold the
decomposition: shardings propagate through it, and it is partitioned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from meshrt import dtypes, errors, tree_util
from meshrt.core.basic.shapes import move_dim
from meshrt.core.basic.varying import declared
from meshrt.core.jaxpr import Eqn, Jaxpr
from meshrt.core.naming import wraps
from meshrt.core.primitive import Primitive
from meshrt.core.trace import Tracer, eval_jaxpr, trace_to_jaxpr
from meshrt.core.types import ShapedArray, aval_of
from meshrt.lowering.context import LoweringContext
from meshrt.lowering.types import dense, mlir_type, splat
from meshrt.transforms.batching import MappedAxis, batch_jaxpr
from meshrt.transforms.tools import hoist_consts
from propagation.quoting import quote

__all__ = ["composite"]

_ADVICE = (
    "You can use `jax.custom_jvp` to add support. See https://docs.jax.dev/en/latest/_autosummary/jax.custom_jvp.html"
)


class Attributes:
    """The keyword arguments of a composite, as a hashable parameter: equal if they are written alike."""

    __slots__ = ("text", "values")

    def __init__(self, values: dict[str, Any]):
        self.values = values
        self.text = ", ".join(f"{k} = {_attribute(v)}" for k, v in sorted(values.items()) if v is not None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Attributes) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"{{{self.text}}}"


def _attribute(value: Any) -> str:
    """A Python value, or structure of such, as an attribute of MLIR."""
    match value:
        case bool():
            return str(value).lower()
        case int():
            return f"{value} : i64"
        case float():
            return f"{value!r} : f64" if np.isfinite(value) else splat(value, ShapedArray((), np.dtype(np.float64)))
        case str():
            return quote(value)
        case np.generic() if dtypes.issubdtype(value.dtype, np.number) or value.dtype == np.bool_:
            kind = mlir_type(ShapedArray((), value.dtype))[len("tensor<") : -1]
            plain = value.item() if value.dtype != ml_dtypes.bfloat16 else float(value)
            return str(plain).lower() if value.dtype == np.bool_ else f"{plain!r} : {kind}"
        case np.ndarray():
            return dense(value)
        case tuple() | list():
            return f"[{', '.join(map(_attribute, value))}]"
        case dict():
            return f"{{{', '.join(f'{k} = {_attribute(v)}' for k, v in sorted(value.items()))}}}"
        case np.dtype() | type():
            return mlir_type(ShapedArray((), np.dtype(value)))[len("tensor<") : -1]
    raise errors.ArgumentTypeError(
        f"composite cannot write {value!r} as an attribute; it takes numbers, strings, NumPy arrays, dtypes, and "
        "lists, tuples and dicts of them"
    )


def _lower(ctx: LoweringContext, eqn: Eqn, *operands: Any) -> Any:
    p = eqn.params
    if ctx.module.mesh is not None:
        return ctx.jaxpr(p["jaxpr"], operands)
    symbol = ctx.module.outlined(p["jaxpr"], p["name"], ctx.manual)
    attrs = (
        f"composite_attributes = {p['attributes']!r}, decomposition = @{symbol}, name = {quote(p['name'])}, "
        f"version = {p['version']} : i32"
    )
    return ctx.ops("stablehlo.composite", operands, [v.aval for v in eqn.outvars], attrs)


def _evaluate(*args: Any, jaxpr: Jaxpr, **params: Any) -> list[Any]:
    return eval_jaxpr(jaxpr, (), args)


def _batch(axis: MappedAxis, args: Sequence[Any], dims: Sequence[Any], params: dict[str, Any]) -> tuple[Any, Any]:
    """The decomposition mapped: what a compiler knows by the name has no batch dimension."""
    moved = [a if d is None else move_dim(a, d, 0) for a, d in zip(args, dims)]
    closed, flags = batch_jaxpr(params["jaxpr"], axis, tuple(d is not None for d in dims))
    return eval_jaxpr(closed.jaxpr, closed.consts, moved), [0 if f else None for f in flags]


def _no_derivative(what: str) -> Callable[..., Any]:
    def rule(*args: Any, **params: Any) -> Any:
        raise errors.ArgumentValueError(f"{what} for composite not implemented. {_ADVICE}")

    return rule


composite_p = Primitive(
    "composite", lambda *avals, jaxpr, **params: jaxpr.out_avals, lower=_lower, jvp=_no_derivative("JVP rule"),
    transpose=_no_derivative("Transpose rule"), batch=_batch, batch_axis=True, impl=_evaluate, multiple_results=True,
    cache_types=False, effects=lambda *avals, jaxpr, **params: jaxpr.effects,
    varies=lambda params: declared(params["jaxpr"].in_avals),
)  # fmt: skip


def composite(decomposition: Callable[..., Any], name: str, version: int = 0) -> Callable[..., Any]:
    """An operation that compilers may know by `name`, `version` and attributes, and compute as they like.

    The function that is returned takes operands by position and attributes by keyword (those that are None are not
    written); `decomposition` gets both and says what the operation computes.

    >>> import meshrt.numpy as jnp
    >>> from meshrt import lax
    >>> tangent = lax.composite(lambda x: jnp.sin(x) / jnp.cos(x), name="my.tangent")
    >>> float(tangent(0.0))
    0.0

    Raises:
      LeakedTracerError: an attribute is a value that is being traced.
      ArgumentTypeError: an attribute cannot be written.
    """

    @wraps(decomposition)
    def call(*args: Any, **attributes: Any) -> Any:
        if any(isinstance(v, Tracer) for v in tree_util.tree_leaves(attributes)):
            raise errors.LeakedTracerError(
                f"Found a JAX Tracer as an attribute in the decomposition for the composite op '{name}': attributes "
                "are known when a program is compiled. Pass traced values as positional arguments. Note: If you are "
                "passing jax arrays as attributes, use numpy arrays instead."
            )
        leaves, in_tree = tree_util.tree_flatten(args)
        out_tree: Any = None

        def flat(*xs: Any) -> list[Any]:
            nonlocal out_tree
            outs, out_tree = tree_util.tree_flatten(decomposition(*in_tree.unflatten(xs), **attributes))
            return outs

        traced = trace_to_jaxpr(flat, [aval_of(x) for x in leaves], name)
        if any(isinstance(c, Tracer) for c in traced.consts):
            raise errors.LeakedTracerError(
                f"Found a JAX Tracer as a constant in the decomposition for the composite op '{name}'. It closes over "
                "a value that is being traced; pass that as a positional argument"
            )
        closed = hoist_consts(traced)
        outs = composite_p.bind(
            *closed.consts, *leaves, jaxpr=closed.jaxpr, name=name, version=int(version),
            attributes=Attributes({k: _written(v) for k, v in attributes.items()}),
        )  # fmt: skip
        return out_tree.unflatten(outs)

    return call


def _written(value: Any) -> Any:
    """An attribute with NumPy's arrays for ours."""
    return tree_util.tree_map(lambda x: np.asarray(x) if hasattr(x, "aval") else x, value, is_leaf=lambda x: x is None)
