"""The derivatives that users call: grad, value_and_grad, vjp, jvp, linearize, linear_transpose."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors, tree_util
from meshrt.core.trace import EVAL, context, eval_jaxpr, trace_to_jaxpr
from meshrt.core.tracebacks import boundary
from meshrt.core.types import ShapedArray, aval_of
from meshrt.primitives.conversion import convert_element_type
from meshrt.runtime.transfer import from_numpy
from meshrt.transforms.arguments import argument_paths, check_argnums, fun_name, split_aux
from meshrt.transforms.jvp import JVPTracer, jvp_flat
from meshrt.transforms.linear import LinearTracer, backward, transpose_jaxpr
from meshrt.transforms.linearize import LinearFunction, linearize_flat
from meshrt.transforms.tools import hoist_consts, zeros
from meshrt.tree_util import tree_flatten, tree_unflatten

__all__ = ["grad", "jvp", "linear_transpose", "linearize", "value_and_grad", "vjp"]


class _Flat:
    """A function of flat leaves made from one of pytrees; remembers the structure of the last result."""

    __slots__ = ("fun", "in_tree", "kwargs", "out_tree")

    def __init__(self, fun: Callable[..., Any], in_tree: Any, kwargs: dict[str, Any] | None = None):
        self.fun, self.in_tree, self.kwargs = fun, in_tree, kwargs
        self.out_tree: Any = None

    def __call__(self, *leaves: Any) -> list[Any]:
        args = tree_unflatten(self.in_tree, leaves)
        out = self.fun(*args, **self.kwargs) if self.kwargs is not None else self.fun(*args)
        flat, self.out_tree = tree_flatten(out)
        return flat


# ---------------------------------------------------------------------------------------------------------------------
# Reverse mode


def value_and_grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
) -> Callable[..., Any]:
    """A function that returns the value of `fun` (a scalar) and its gradient in the arguments `argnums`.

    With `has_aux`, `fun` returns (value, aux) and the result is ((value, aux), gradient).

    >>> import meshrt, meshrt.numpy as jnp
    >>> value, gradient = meshrt.value_and_grad(lambda x: jnp.sum(x * x))(jnp.arange(3.0))
    """
    single = isinstance(argnums, int | np.integer)

    @boundary
    @functools.wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nums = check_argnums(fun, argnums, len(args))
        dynamic = tuple(args[n] for n in nums)
        leaves, tree = tree_flatten(dynamic)
        _check_inputs(fun, leaves, tree, args, nums, allow_int, holomorphic)
        aux: list[Any] = []

        def call(*values: Any) -> Any:
            full = list(args)
            for n, v in zip(nums, values):
                full[n] = v
            out = fun(*full, **kwargs)
            if has_aux:
                out, extra = split_aux(fun, out)
                aux.append(extra)
            return out

        flat = _Flat(call, tree)
        nonzeros = [aval_of(x).is_differentiable for x in leaves]
        (value,), linear = _scalar_linearized(fun, flat, leaves, nonzeros, holomorphic)
        ct = np.asarray(1, aval_of(value).dtype)[()]
        cts = _pull_back(linear, [ct])
        filled = [_typed(c, aval_of(x)) if nz else _float0(x) for c, x, nz in zip(cts, leaves, nonzeros)]
        gradient = tree_unflatten(tree, filled)
        gradient = gradient[0] if single else gradient
        if has_aux:
            return (value, _drop_tangents(aux[-1], linear)), gradient
        return value, gradient

    return wrapped


def grad(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    reduce_axes: Sequence[Any] = (),
) -> Callable[..., Any]:
    """A function that returns the gradient of `fun`, which must return a scalar; see `value_and_grad`."""
    with_value = value_and_grad(fun, argnums, has_aux, holomorphic, allow_int, reduce_axes)

    @boundary
    @functools.wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        value, gradient = with_value(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return wrapped


def _check_inputs(fun, leaves, tree, args, nums, allow_int: bool, holomorphic: bool) -> None:
    paths = None
    for i, leaf in enumerate(leaves):
        aval = aval_of(leaf)
        if aval.is_differentiable and (aval.dtype.kind == "c" or not holomorphic):
            continue
        if not aval.is_differentiable and allow_int:
            continue
        if paths is None:
            _, full_tree = tree_flatten((tuple(args), {}))
            every = tree_unflatten(full_tree, argument_paths(fun, full_tree))[0]
            paths = tree_flatten(tuple(every[n] for n in nums))[0]
        if holomorphic:
            raise errors.ArgumentTypeError(
                f"grad with holomorphic=True requires inputs with complex dtype, but {paths[i]} is {aval.str_short()}"
            )
        raise errors.ArgumentTypeError(
            "grad requires real- or complex-valued inputs (input dtype that is a sub-dtype of np.inexact), but "
            f"{paths[i]} of {fun_name(fun)} has type {aval.str_short()}. Convert it to a floating dtype, differentiate "
            "with respect to another argument (argnums=...), or pass allow_int=True"
        )


def _scalar_linearized(fun, flat: _Flat, leaves, nonzeros, holomorphic: bool):
    outs, linear = linearize_flat(flat, leaves, nonzeros)
    if flat.out_tree.num_leaves != 1 or not tree_util.treedef_is_leaf(flat.out_tree):
        raise errors.ArgumentTypeError(
            f"gradient only defined for scalar-output functions, but {fun_name(fun)} returned a {flat.out_tree}"
        )
    aval = aval_of(outs[0])
    if aval.shape:
        raise errors.ArgumentTypeError(
            f"gradient only defined for scalar-output functions. {fun_name(fun)} had output shape: {aval.shape}. Sum "
            "it, or use vjp or jacrev"
        )
    if not aval.is_differentiable or (aval.dtype.kind == "c") != holomorphic:
        raise errors.ArgumentTypeError(
            f"grad requires real-valued outputs (output dtype that is a sub-dtype of np.floating), but {fun_name(fun)} "
            f"returned {aval.str_short()}"
        )
    return outs, linear


def _pull_back(linear: LinearFunction, cts: Sequence[Any]) -> list[Any]:
    """Cotangents of the inputs (None for zero)."""
    outs = [t._var if type(t) is LinearTracer else None for t in linear.outs]
    pulled = iter(backward(linear.trace.tape, outs, cts, [t._var for t in linear.inputs if t is not None]))
    return [None if t is None else next(pulled) for t in linear.inputs]


def _drop_tangents(aux: Any, linear: LinearFunction) -> Any:
    """Auxiliary outputs as plain values: they were computed by the trace that is now over."""

    def plain(x: Any) -> Any:
        return x.primal if type(x) is JVPTracer and x._trace.parent is linear.trace else x

    return tree_util.tree_map(plain, aux)


def _typed(value: Any, aval: ShapedArray) -> Any:
    """A derivative (None for zero) of something of type `aval`: weak if that is, and an Array outside of traces."""
    if value is None:
        value = zeros(aval)
    if aval.weak_type and not (aval_of(value).weak_type and hasattr(value, "weak_type")):
        return convert_element_type(value, aval.dtype, weak_type=True)
    if isinstance(value, np.generic) and context.trace is EVAL:
        return from_numpy(value)
    return value


def _float0(x: Any) -> np.ndarray:
    return np.zeros(aval_of(x).shape, dtypes.float0)


@boundary
def vjp(fun: Callable[..., Any], *primals: Any, has_aux: bool = False, reduce_axes: Sequence[Any] = ()) -> Any:
    """(fun(*primals), pullback) where `pullback(ct)` is the tuple of cotangents of the primals."""
    leaves, tree = tree_flatten(primals)
    aux: list[Any] = []

    def call(*args: Any) -> Any:
        out = fun(*args)
        if has_aux:
            out, extra = split_aux(fun, out)
            aux.append(extra)
        return out

    flat = _Flat(call, tree)
    nonzeros = [aval_of(x).is_differentiable for x in leaves]
    outs, linear = linearize_flat(flat, leaves, nonzeros)
    out_tree, out_avals = flat.out_tree, [aval_of(o) for o in outs]
    in_avals = [aval_of(x) for x in leaves]

    def pullback(ct: Any) -> Any:
        cts = _flat_cotangents(ct, out_tree, out_avals, fun)
        pulled = _pull_back(linear, cts)
        filled = [
            _typed(c, a) if nz else np.zeros(a.shape, dtypes.float0) for c, a, nz in zip(pulled, in_avals, nonzeros)
        ]
        return tree_unflatten(tree, filled)

    result = tree_unflatten(out_tree, outs)
    partial = tree_util.Partial(pullback)
    return (result, partial, _drop_tangents(aux[-1], linear)) if has_aux else (result, partial)


def _flat_cotangents(ct: Any, tree: Any, avals: Sequence[ShapedArray], fun: Callable[..., Any]) -> list[Any]:
    leaves, ct_tree = tree_flatten(ct)
    if ct_tree != tree:
        raise errors.TreeError(
            f"Tree structure of cotangent input {ct_tree}, does not match structure of primal output {tree} of "
            f"{fun_name(fun)}"
        )
    out = []
    for c, a in zip(leaves, avals):
        if not a.is_differentiable:
            out.append(None)
            continue
        got = aval_of(c)
        if got.shape != a.shape or (got.dtype != a.dtype and not got.weak_type):
            raise errors.ArgumentValueError(
                f"the cotangent of {fun_name(fun)} has type {got.str_short()} where its output has type {a.str_short()}"
            )
        out.append(np.asarray(c, a.dtype)[()] if isinstance(c, int | float | complex) else c)
    return out


# ---------------------------------------------------------------------------------------------------------------------
# Forward mode


@boundary
def jvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False) -> Any:
    """(fun(*primals), tangents of the result), the directional derivative along `tangents`."""
    if not isinstance(primals, tuple | list) or not isinstance(tangents, tuple | list):
        raise errors.ArgumentTypeError(
            "primal and tangent arguments to jvp must be tuples or lists; "
            f"found {type(primals).__name__} and {type(tangents).__name__}"
        )
    leaves, tree = tree_flatten(tuple(primals))
    tangent_leaves, tangent_tree = tree_flatten(tuple(tangents))
    if tree != tangent_tree:
        raise errors.ArgumentTypeError(
            f"primal and tangent arguments to jvp must have the same tree structure; primals have {tree} whereas "
            f"tangents have {tangent_tree}"
        )
    flat_tangents = _flat_tangents(leaves, tangent_leaves, tree, fun)
    aux: list[Any] = []

    def call(*args: Any) -> Any:
        out = fun(*args)
        if has_aux:
            out, extra = split_aux(fun, out)
            aux.append(extra)
        return out

    flat = _Flat(call, tree)
    parent = context.trace
    outs, out_tangents = jvp_flat(flat, leaves, flat_tangents)
    filled = [_tangent_or_zero(t, o) for t, o in zip(out_tangents, outs)]
    result = tree_unflatten(flat.out_tree, outs), tree_unflatten(flat.out_tree, filled)
    if not has_aux:
        return result
    strip = lambda x: x.primal if type(x) is JVPTracer and x._trace.parent is parent else x
    return (*result, tree_util.tree_map(strip, aux[-1]))


def _tangent_or_zero(t: Any, primal: Any) -> Any:
    aval = aval_of(primal)
    if not aval.is_differentiable:
        return np.zeros(aval.shape, dtypes.float0)
    return _typed(t, aval)


def _flat_tangents(primals, tangents, tree, fun) -> list[Any]:
    out = []
    for i, (p, t) in enumerate(zip(primals, tangents)):
        want = aval_of(p).to_tangent_aval()
        if getattr(t, "dtype", None) == dtypes.float0:
            got = ShapedArray(t.shape, dtypes.float0)
        else:
            got = aval_of(t)
        if got.shape != want.shape or (got.dtype != want.dtype and not (got.weak_type and want.dtype != dtypes.float0)):
            path = argument_paths(fun, tree_flatten((tree_unflatten(tree, primals), {}))[1])[i]
            raise errors.ArgumentTypeError(
                f"primal and tangent arguments to jvp do not match; dtypes and shapes must be equal, but {path} is "
                f"{aval_of(p).str_short()}, which needs a tangent {want.str_short()}, and got {got.str_short()}"
            )
        if want.dtype == dtypes.float0:
            out.append(None)
        else:
            out.append(np.asarray(t, want.dtype)[()] if isinstance(t, int | float | complex) else t)
    return out


@boundary
def linearize(fun: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """(fun(*primals), push) where `push(*tangents)` is the derivative at `primals`, without running `fun` again."""
    leaves, tree = tree_flatten(primals)
    aux: list[Any] = []

    def call(*args: Any) -> Any:
        out = fun(*args)
        if has_aux:
            out, extra = split_aux(fun, out)
            aux.append(extra)
        return out

    flat = _Flat(call, tree)
    nonzeros = [aval_of(x).is_differentiable for x in leaves]
    outs, linear = linearize_flat(flat, leaves, nonzeros)
    inputs = [t for t in linear.inputs if t is not None]
    live = [t for t in linear.outs if t is not None]
    jaxpr, residuals = linear.trace.to_jaxpr(inputs, live)
    out_tree = flat.out_tree

    def push(*tangents: Any) -> Any:
        tangent_leaves, tangent_tree = tree_flatten(tangents)
        if tangent_tree != tree:
            raise errors.TreeError(f"the linearized function takes tangents of structure {tree}, got {tangent_tree}")
        given = [t for t in _flat_tangents(leaves, tangent_leaves, tree, fun) if t is not None]
        pushed = iter(eval_jaxpr(jaxpr, (), [*residuals, *given]))
        filled = [_tangent_or_zero(None if t is None else next(pushed), o) for t, o in zip(linear.outs, outs)]
        return tree_unflatten(out_tree, filled)

    result = tree_unflatten(out_tree, outs)
    partial = tree_util.Partial(push)
    return (result, partial, _drop_tangents(aux[-1], linear)) if has_aux else (result, partial)


@boundary
def linear_transpose(fun: Callable[..., Any], *primals: Any, reduce_axes: Sequence[Any] = ()) -> Callable[..., Any]:
    """The transpose of a linear function, given example arguments (only their types matter)."""
    leaves, tree = tree_flatten(primals)
    avals = [ShapedArray(tuple(x.shape), x.dtype) if hasattr(x, "shape") else aval_of(x) for x in leaves]
    flat = _Flat(fun, tree)
    closed = trace_to_jaxpr(flat, avals, fun_name(fun))
    out_tree = flat.out_tree

    def transposed(ct: Any) -> Any:
        cts = _flat_cotangents(ct, out_tree, closed.out_avals, fun)
        hoisted = hoist_consts(closed)
        linear = (False,) * len(hoisted.consts) + (True,) * len(avals)
        back, nonzeros = transpose_jaxpr(hoisted.jaxpr, linear, tuple(c is not None for c in cts))
        pulled = iter(eval_jaxpr(back.jaxpr, (), [*back.consts, *hoisted.consts, *[c for c in cts if c is not None]]))
        return tree_unflatten(tree, [next(pulled) if nz else zeros(a) for nz, a in zip(nonzeros, avals)])

    return transposed
