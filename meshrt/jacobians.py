"""Jacobians and Hessians: the derivative along every element of a standard basis, batched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import errors, tree_util
from meshrt.api import jvp, vjp
from meshrt.core.basic.kinds import has_kind
from meshrt.core.basic.shapes import reshape
from meshrt.core.dimensions.expression import is_symbolic_shape
from meshrt.core.naming import wraps
from meshrt.core.tracebacks import boundary
from meshrt.core.types import aval_of
from meshrt.primitives import elementwise as ew
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.reshape import broadcasted_iota
from meshrt.primitives.slice import slice_in_dim
from meshrt.transforms.arguments import check_argnums, described, require_function, split_aux
from meshrt.transforms.high import flatten
from meshrt.transforms.vmap import vmap
from meshrt.tree_util import tree_unflatten

__all__ = ["hessian", "jacfwd", "jacobian", "jacrev"]


def jacfwd(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """The Jacobian by forward mode: one pass per input element, batched. For more results than arguments.

    Parameters are those of `value_and_grad`; `fun` may return any pytree of arrays. For a value of shape v and an
    argument of shape a each entry has shape v + a. Raises ArgumentTypeError for arguments that are not real.

    >>> meshrt.jacfwd(lambda x: x**2)(jnp.array([1.0, 2.0]))
    Array([[2., 0.],
           [0., 4.]], dtype=float32)
    """
    require_function(fun)

    @boundary
    @wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nums = check_argnums(fun, argnums, len(args))
        dynamic = args[nums[0]] if isinstance(argnums, int) else tuple(args[n] for n in nums)
        leaves, tree = flatten(dynamic)
        _check_kind("jacfwd", "inputs", leaves, "c" if holomorphic else "f")

        def call(*values: Any) -> Any:
            inner = tree_unflatten(tree, values)
            full = list(args)
            for n, v in zip(nums, (inner,) if isinstance(argnums, int) else inner):
                full[n] = v
            out = fun(*full, **kwargs)
            return split_aux(fun, out) if has_aux else (out, None)

        def push(*tangents: Any) -> tuple[Any, Any]:
            out, column, aux = jvp(call, tuple(leaves), tangents, has_aux=True)
            if holomorphic:
                _check_kind("jacfwd", "outputs", tree_util.tree_leaves(out), "c")
            return column, aux

        columns, aux = vmap(push, out_axes=(-1, None))(*_standard_basis(leaves))
        result = tree_util.tree_map(lambda j: _split_columns(j, leaves, tree, True), columns)
        return (result, aux) if has_aux else result

    return described(wrapped, fun, "Jacobian", argnums, "the Jacobian of each result")


def jacrev(
    fun: Callable[..., Any],
    argnums: int | Sequence[int] = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Callable[..., Any]:
    """The Jacobian by reverse mode: one pass per output element, batched. For more arguments than results.

    Parameters are those of `value_and_grad`; `fun` may return any pytree of arrays. For a value of shape v and an
    argument of shape a each entry has shape v + a. Raises ArgumentTypeError for values that are not real.

    >>> meshrt.jacobian(lambda x: x**2)(jnp.array([1.0, 2.0]))
    Array([[2., 0.],
           [0., 4.]], dtype=float32)
    """
    require_function(fun)

    @boundary
    @wraps(fun)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nums = check_argnums(fun, argnums, len(args))

        def call(*values: Any) -> Any:
            full = list(args)
            for n, v in zip(nums, values):
                full[n] = v
            return fun(*full, **kwargs)

        primals = tuple(args[n] for n in nums)
        if not allow_int or holomorphic:
            _check_kind("jacrev", "inputs", flatten(primals)[0], "c" if holomorphic else "fc")
        result = vjp(call, *primals, has_aux=has_aux)
        out, pullback = result[0], result[1]
        out_leaves, out_tree = flatten(out)
        _check_kind("jacrev", "outputs", out_leaves, "c" if holomorphic else "f")
        basis = tree_unflatten(out_tree, _standard_basis(out_leaves))
        rows = vmap(pullback)(basis)
        rows = rows[0] if isinstance(argnums, int) else rows
        row_leaves, row_tree = flatten(rows)
        per_output: list[list[Any]] = [[] for _ in out_leaves]
        for leaf in row_leaves:
            for k, part in enumerate(_split_rows(leaf, out_leaves)):
                per_output[k].append(part)
        jacobian_tree = tree_unflatten(out_tree, [tree_unflatten(row_tree, parts) for parts in per_output])
        return (jacobian_tree, result[2]) if has_aux else jacobian_tree

    return described(wrapped, fun, "Jacobian", argnums, "the Jacobian of each result")


jacobian = jacrev


def hessian(
    fun: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False, holomorphic: bool = False
) -> Callable[..., Any]:
    """The matrix of second derivatives, forward over reverse.

    Parameters are those of `value_and_grad`. For a value of shape v and arguments of shapes a and b an entry has shape
    v + a + b. Raises ArgumentTypeError for arguments that are not real.

    >>> meshrt.hessian(lambda x: (x**3).sum())(jnp.array([1.0, 2.0]))
    Array([[ 6.,  0.],
           [ 0., 12.]], dtype=float32)
    """
    require_function(fun)
    return jacfwd(jacrev(fun, argnums, has_aux, holomorphic), argnums, has_aux, holomorphic)


_KINDS = {"f": "real-valued", "fc": "real- or complex-valued"}
_DTYPES = {"f": "floating", "fc": "inexact"}


def _check_kind(name: str, what: str, leaves: Sequence[Any], kinds: str) -> None:
    """Raises unless all dtypes are of these kinds: complex numbers are for holomorphic functions."""
    for leaf in leaves:
        if not has_kind(aval_of(leaf).dtype, kinds):
            if kinds == "c":
                wanted, fix = (
                    f"{name} with holomorphic=True requires {what} with complex dtype",
                    "pass holomorphic=False",
                )
            else:
                dtypes = f"{what[:-1]} dtype that is a sub-dtype of np.{_DTYPES[kinds]}"
                wanted = f"{name} requires {_KINDS[kinds]} {what} ({dtypes})"
                fix = "pass holomorphic=True for holomorphic functions"
            raise errors.ArgumentTypeError(f"{wanted}, but got {aval_of(leaf).dtype}; {fix}, or use jvp and vjp")


def _standard_basis(leaves: Sequence[Any]) -> list[Any]:
    """For each leaf, an array [total, *shape]: the identity, cut at the leaf boundaries."""
    avals = [aval_of(x) for x in leaves]
    total: Any = sum(a.size for a in avals)
    out: list[Any] = []
    start = 0
    if is_symbolic_shape((total,)):
        for a in avals:
            rows, columns = (broadcasted_iota(np.int32, (total, a.size), d) for d in (0, 1))
            columns = ew.add_p.bind(columns, convert_element_type(start, np.int32))
            ones = convert_element_type(ew.eq_p.bind(rows, columns), a.dtype)
            out.append(reshape(ones, (total, *a.shape)))
            start += a.size
        return out
    eye = np.eye(total)
    for a in avals:
        part = eye[:, start : start + a.size].reshape(total, *a.shape).astype(a.dtype)
        out.append(convert_element_type(part, a.dtype, weak_type=True) if a.weak_type else part)
        start += a.size
    return out


def _split_columns(j: Any, leaves: Sequence[Any], tree: Any, last: bool) -> Any:
    parts, start, shape = [], 0, aval_of(j).shape[:-1]
    for leaf in leaves:
        a = aval_of(leaf)
        part = slice_in_dim(j, start, start + a.size, axis=len(shape))
        parts.append(reshape(part, (*shape, *a.shape)))
        start += a.size
    return tree_unflatten(tree, parts)


def _split_rows(leaf: Any, outs: Sequence[Any]) -> list[Any]:
    parts, start, rest = [], 0, aval_of(leaf).shape[1:]
    for o in outs:
        a = aval_of(o)
        part = slice_in_dim(leaf, start, start + a.size, axis=0)
        parts.append(reshape(part, (*a.shape, *rest)))
        start += a.size
    return parts
