"""Functions with derivatives of their own: `custom_jvp`, `custom_vjp`, `custom_gradient`, `closure_convert`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshrt import dtypes, errors, tree_util
from meshrt.core.jaxpr import Jaxpr
from meshrt.core.trace import Tracer, eval_jaxpr, trace_to_jaxpr
from meshrt.core.types import aval_of
from meshrt.transforms.arguments import fun_name, require_function
from meshrt.transforms.custom_arguments import SymbolicZero, instantiate_zero
from meshrt.transforms.custom_jvp import custom_jvp
from meshrt.transforms.custom_vjp import CustomVJPPrimal, custom_vjp
from meshrt.transforms.tools import hoist_consts

__all__ = ["CustomVJPPrimal", "SymbolicZero", "closure_convert", "custom_gradient", "custom_jvp", "custom_vjp"]


def _staged(fun: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Jaxpr, list[Any], Any, Any]:
    """(jaxpr, captured values, structure of the arguments, structure of the result) of `fun` at the types of `args`."""
    leaves, in_tree = tree_util.tree_flatten(args)
    out_tree = None

    def flat(*values: Any) -> list[Any]:
        nonlocal out_tree
        outs, out_tree = tree_util.tree_flatten(fun(*tree_util.tree_unflatten(in_tree, values)))
        return outs

    closed = hoist_consts(trace_to_jaxpr(flat, [aval_of(x) for x in leaves], fun_name(fun)))
    return closed.jaxpr, closed.consts, in_tree, out_tree


@tree_util.register_pytree_node_class
class _Pullback:
    """A staged pullback with its captured values as leaves, so that it can be a residual."""

    def __init__(self, consts: list[Any], jaxpr: Jaxpr, out_tree: Any):
        self.consts, self.jaxpr, self.out_tree = consts, jaxpr, out_tree

    def tree_flatten(self):
        return tuple(self.consts), (self.jaxpr, self.out_tree)

    @classmethod
    def tree_unflatten(cls, aux, children):
        return cls(list(children), *aux)

    def __call__(self, ct: Any) -> Any:
        cts = [leaf for leaf in tree_util.tree_leaves(ct) if getattr(leaf, "dtype", None) != dtypes.float0]
        outs = eval_jaxpr(self.jaxpr, (), [*self.consts, *cts])
        return tree_util.tree_unflatten(self.out_tree, outs)


def custom_gradient(fun: Callable[..., Any]) -> Callable[..., Any]:
    """A function with the reverse-mode derivative that `fun` returns beside its result.

    `fun(*args)` returns `(result, pullback)`, where `pullback(cotangent)` gives the cotangent of the argument, or a
    tuple of them for several arguments.

    >>> meshrt.grad(meshrt.custom_gradient(lambda x: (x**2, lambda g: 10.0 * g)))(3.0)
    Array(10., dtype=float32, weak_type=True)
    """

    @custom_vjp
    def wrapped(*args: Any) -> Any:
        return fun(*args)[0]

    def forward(*args: Any) -> Any:
        result, pullback = fun(*args)
        jaxpr, consts, _, out_tree = _staged(*_of_cotangents(pullback, result))
        return result, _Pullback(consts, jaxpr, out_tree)

    def backward(pullback: _Pullback, ct: Any) -> Any:
        cts = pullback(ct)
        return cts if isinstance(cts, tuple | list) else (cts,)

    wrapped.defvjp(forward, backward)
    wrapped.__name__ = fun_name(fun)
    return wrapped


def _of_cotangents(pullback: Callable[..., Any], result: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """`pullback` as a function of the cotangents of what can be differentiated in its result, and examples of them.

    It gets zeros of dtype float0 for the others.
    """
    leaves, tree = tree_util.tree_flatten(result)
    avals = [aval_of(leaf) for leaf in leaves]
    constant = [None if a.is_differentiable else instantiate_zero(a.to_tangent_aval()) for a in avals]

    def of_cotangents(*cts: Any) -> Any:
        given = iter(cts)
        return pullback(tree_util.tree_unflatten(tree, [next(given) if c is None else c for c in constant]))

    of_cotangents.__name__ = fun_name(pullback)
    return of_cotangents, tuple(leaf for leaf, c in zip(leaves, constant) if c is None)


def closure_convert(fun: Callable[..., Any], *example_args: Any) -> tuple[Callable[..., Any], list[Any]]:
    """`(converted, captured)`, where `captured` are the traced values that `fun` closes over and
    `converted(*args, *captured)` equals `fun(*args)` without closing over them.

    So a function argument of a custom_vjp function can be differentiated with respect to what it closes over.

    >>> converted, extra = meshrt.closure_convert(lambda x: 2 * x, 1.0)
    >>> converted(3.0, *extra)
    Array(6., dtype=float32, weak_type=True)
    """
    require_function(fun)
    jaxpr, consts, in_tree, out_tree = _staged(fun, example_args)
    is_hoisted = [isinstance(c, Tracer) and c.aval.is_differentiable for c in consts]
    hoisted = [c for c, h in zip(consts, is_hoisted) if h]
    kept = [c for c, h in zip(consts, is_hoisted) if not h]
    count = len(hoisted)

    def converted(*args_and_captured: Any) -> Any:
        given = args_and_captured[len(args_and_captured) - count :] if count else ()
        args = args_and_captured[: len(args_and_captured) - count]
        leaves, tree = tree_util.tree_flatten(args)
        if tree != in_tree:
            raise errors.ArgumentTypeError(
                f"the closure-converted function takes arguments of structure {in_tree}, as in the example, not {tree}"
            )
        captured, rest = iter(given), iter(kept)
        values = [next(captured) if h else next(rest) for h in is_hoisted]
        return tree_util.tree_unflatten(out_tree, eval_jaxpr(jaxpr, (), [*values, *leaves]))

    return converted, hoisted
