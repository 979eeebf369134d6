"""Tangents and cotangents that users give, beside what the types of arguments and results call for."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.basic.reshard import cotangent_type
from meshrt.core.basic.varying import in_order
from meshrt.core.explicit import unreduced_of
from meshrt.core.references import is_ref_type
from meshrt.core.types import ShapedArray, aval_of
from meshrt.transforms.arguments import argument_paths, fun_name
from meshrt.transforms.high import flatten
from meshrt.transforms.high_derivatives import check_derivative
from meshrt.tree_util import tree_unflatten

__all__ = ["PUSHED", "check_inputs", "cotangent_leaves", "linear_cotangents", "tangent_leaves"]

_DTYPES = (
    "primal and tangent arguments to jax.jvp do not match; dtypes must be equal, or in case of int/bool primal dtype "
    "the tangent dtype must be float0"
)
# What is wrong where a linearized function is called.
PUSHED = "linearized function called on tangent values inconsistent with the original primal values"


def check_inputs(
    fun: Callable[..., Any], leaves: Sequence[Any], args: Sequence[Any], nums: Sequence[int], allow_int: bool,
    holomorphic: bool,
) -> None:  # fmt: skip
    """Whether `fun` has a gradient with respect to `leaves`, those of the arguments of these numbers among `args`.

    Raises:
      ArgumentTypeError: one has no derivative, or is real and `holomorphic` is asked for. ArgumentValueError: one is a
        reference. Both name the argument.
    """
    paths = None
    for i, leaf in enumerate(leaves):
        aval = aval_of(leaf)
        if aval.is_high:
            if aval.is_differentiable:
                continue
            raise errors.ArgumentTypeError(
                f"grad requires inputs with derivatives, and {aval.short()} of {fun_name(fun)} has none: "
                "differentiate with respect to another argument (argnums=...)"
            )
        if aval.is_differentiable and not aval.is_extended and (aval.dtype.kind == "c" or not holomorphic):
            continue
        if not aval.is_differentiable and allow_int:
            continue
        if paths is None:
            every = iter(argument_paths(fun, flatten((tuple(args), {}))[1]))
            of_argument = [list(itertools.islice(every, len(flatten(a)[0]))) for a in args]
            paths = [path for n in nums for path in of_argument[n]]
        if is_ref_type(aval):
            raise errors.ArgumentValueError(
                f"grad of {fun_name(fun)} with respect to {paths[i]}, a reference of type {aval}: the gradient of what "
                "it holds goes to a reference too, with meshrt.vjp(...)[1].with_refs(...)"
            )
        if holomorphic:
            raise errors.ArgumentTypeError(
                f"grad with holomorphic=True requires inputs with complex dtype, but got {aval.dtype} for {paths[i]} "
                f"of {fun_name(fun)}"
            )
        raise errors.ArgumentTypeError(
            "grad requires real- or complex-valued inputs (input dtype that is a sub-dtype of np.inexact), but got "
            f"{aval.dtype}. It is {paths[i]} of {fun_name(fun)}: convert it to a floating dtype, differentiate with "
            "respect to another argument (argnums=...), or pass allow_int=True"
        )


def _converts(got: ShapedArray, wanted: ShapedArray) -> bool:
    """Whether a derivative of dtype `got` does where `wanted` is needed: Python's scalars do for their own kind."""
    return got.dtype == wanted.dtype or (got.weak_type and got.dtype.kind == wanted.dtype.kind)


def tangent_leaves(
    avals: Sequence[ShapedArray], tangents: Sequence[Any], tree: Any, fun: Callable[..., Any], of_push: str = ""
) -> list[Any]:
    """The leaves of tangents, of the types that those of arguments have; None for those that have no derivative.

    Raises:
      ArgumentShapeError: one has another type; it says so, in the words of `of_push` where they are given.
    """
    out: list[Any] = []
    for i, (a, t) in enumerate(zip(avals, tangents)):
        want = a.to_tangent_aval()
        if getattr(t, "dtype", None) == dtypes.float0:
            got = ShapedArray(t.shape, dtypes.float0)
        else:
            got = aval_of(t)
        if want.is_high or got.is_high:
            check_derivative(got, want, f"the tangent of {a.short()}, an argument of {fun_name(fun)},")
            out.append(t)
            continue
        fits = _converts(got, want)
        if got.shape != want.shape or not fits:
            path = argument_paths(fun, flatten((tree_unflatten(tree, avals), {}))[1])[i]
            complaint = of_push or (
                "jvp called with different primal and tangent shapes;"
                f"Got primal shape {a.shape} and tangent shape as {got.shape}"
                if fits
                else f"{_DTYPES}.Got primal dtype {a.dtype} and so expected tangent dtype {_written(want.dtype)}, but "
                f"got tangent dtype {_written(got.dtype)} instead"
            )
            raise errors.ArgumentShapeError(f"{complaint}. {path} is {a}, which needs a tangent {want}, and got {got}")
        if want.dtype == dtypes.float0:
            out.append(None)
        else:
            out.append(_as_weak_as_given(t, got, want))
    return out


def _written(dtype: Any) -> str:
    return "float0" if dtype == dtypes.float0 else str(dtype)


def _as_weak_as_given(value: Any, got: ShapedArray, want: ShapedArray) -> Any:
    """A derivative in the dtype that is wanted; a Python number that has it stays one, and so stays weak."""
    if not isinstance(value, int | float | complex) or got.dtype == want.dtype:
        return value
    return np.asarray(value, want.dtype)[()]


def cotangent_leaves(ct: Any, tree: Any, avals: Sequence[ShapedArray], name: str, integers: bool = False) -> list[Any]:
    """The leaves of a cotangent, of the types of the results; None for those that have no derivative.

    Integers have none, but where a linear function is transposed they are as good as other numbers (`integers`).
    """
    leaves, ct_tree = flatten(ct)
    if ct_tree != tree:
        raise errors.TreeError(
            f"unexpected tree structure: the cotangent of {name} has the structure {ct_tree}, its output {tree}"
        )
    out: list[Any] = []
    for c, a in zip(leaves, avals):
        if not a.is_differentiable and not (integers and a.dtype.kind in "iu"):
            out.append(None)
            continue
        got = aval_of(c)
        if a.is_high or got.is_high:
            check_derivative(got, a.to_ct_aval(), f"unexpected JAX type: the cotangent of {name}")
            out.append(c)
            continue
        wanted = cotangent_type(a)
        addends = unreduced_of(got).difference(unreduced_of(wanted))
        if got.shape != a.shape or not _converts(got, a) or addends:
            why = f"the cotangent of {name} has the type of its output"
            if addends:
                why = (
                    "devices hold addends of the cotangent, and of what is unreduced it is one value: add it up with "
                    "meshrt.reshard(cotangent, P(...)), or meshrt.lax.psum within shard_map"
                )
            raise errors.ArgumentValueError(
                "unexpected JAX type (e.g. shape/dtype) for argument to VJP function: "
                f"got {got.str_short()}, but expected {wanted.str_short()} because the corresponding output of "
                f"the differentiated function had JAX type {a.str_short()}: {why}"
            )
        more = in_order(got.vma.difference(a.vma))
        if more:
            raise errors.ArgumentValueError(
                f"the cotangent of {name} has type {got.short()} where its output has type "
                f"{a.short()}: that is one value along {', '.join(map(repr, more))}, and so is its cotangent. This "
                f"might be fixed by applying `meshrt.lax.pcast(..., {more}, to='varying')` to the primal value passed "
                "to the transformation, which gives every device a derivative of its own; or by passing "
                f"meshrt.lax.psum(cotangent, {more})"
            )
        out.append(_as_weak_as_given(c, got, a))
    return out


def linear_cotangents(ct: Any, tree: Any, avals: Sequence[ShapedArray], name: str) -> list[Any]:
    """As `cotangent_leaves`, for the transpose of the function `name`, where JAX calls both mismatches TypeErrors."""
    try:
        return cotangent_leaves(ct, tree, avals, name, integers=True)
    except errors.TreeError as e:
        found = flatten(ct)[1]
        raise errors.ArgumentShapeError(
            f"cotangent tree does not match function output, expected {tree} but got {found}: {e}"
        ) from None
    except errors.ArgumentValueError as e:
        raise errors.ArgumentShapeError(
            f"cotangent type does not match function output, expected {tuple(avals)} but got {flatten(ct)[0]}: {e}"
        ) from None
