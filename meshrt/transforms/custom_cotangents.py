"""Cotangents as a backward rule returns them: brought to the structure and the types of the arguments, or told apart
from these."""

from __future__ import annotations

from typing import Any

import numpy as np

from meshrt import dtypes, errors, tree_util
from meshrt.core.basic.varying import in_order, vary
from meshrt.core.high import told_apart
from meshrt.core.types import ShapedArray
from meshrt.transforms.custom_arguments import SymbolicZero, has_no_derivative, leaf_aval, type_mismatch

__all__ = ["checked", "matched", "unlike_arguments"]


def unlike_arguments(title: str, pulled: Any, in_tree: Any) -> str:
    """What is said of cotangents of another structure than the arguments."""
    found = tree_util.tree_structure(pulled, is_leaf=lambda x: isinstance(x, SymbolicZero))
    return (
        "Custom VJP bwd rule must produce an output with the same container (pytree) structure as the args tuple of "
        "the primal function, and in particular must produce a tuple of length equal to the number of arguments to the "
        f"primal function, but got bwd output structure {found} for primal input structure {in_tree}. (in {title})"
    )


def _unlike_type(title: str, path: str, got: ShapedArray, want: ShapedArray, why: str) -> str:
    """What is said of a cotangent of another type than its argument."""
    expected, found = told_apart(want, got, shown=lambda kind: str(kind.str_short()))
    return (
        "Custom VJP bwd rule must produce an output with the same type as the args tuple of the primal function, but "
        f"at {path} the bwd rule produced an output of type {found} corresponding to an input of type {expected}, so "
        f"the {why} (in {title})"
    )


def matched(part: Any, tree: Any, title: str) -> list[Any]:
    """The leaves of `part`, a tree of structure `tree` in which one leaf, or None, may stand for any subtree."""
    if part is None:
        return [None] * tree.num_leaves
    is_leaf = lambda x: isinstance(x, SymbolicZero)
    leaves, found = tree_util.tree_flatten(part, is_leaf=is_leaf)
    if len(leaves) == 1 and tree_util.treedef_is_leaf(found):
        return leaves * tree.num_leaves
    if not (tree_util.treedef_is_leaf(tree) and tree.num_leaves == 1):  # (not a container without children)
        skeleton = tree_util.tree_unflatten(tree, [0] * tree.num_leaves)
        try:
            expected = [(k, tree_util.tree_structure(v)) for k, v in tree_util.flatten_one_level_with_keys(skeleton)[0]]
            given = dict(tree_util.flatten_one_level_with_keys(part)[0]) if type(part) is type(skeleton) else {}
        except (TypeError, ValueError):
            expected, given = [], {}
        if expected and [k for k, _ in expected] == list(given):
            return [leaf for k, sub in expected for leaf in matched(given[k], sub, f"{title}{tree_util.keystr((k,))}")]
        if not expected and tree.num_leaves == 0:
            return []
    raise errors.ArgumentTypeError(
        f"{title} must have the structure of the argument it belongs to, {tree}, but has "
        f"{tree_util.tree_structure(part, is_leaf=is_leaf)}"
    )


def checked(ct: Any, aval: ShapedArray, title: str, path: str) -> Any:
    """A cotangent of an argument of type `aval`, None for zero. Raises `ArgumentValueError` if it has another type."""
    if ct is None or isinstance(ct, SymbolicZero):
        return None
    want = aval.to_tangent_aval()
    if has_no_derivative(want):
        return None
    got = leaf_aval(ct, f"{title}: {path}")
    # A cotangent of another dtype (computed in fewer bits, say) is what the rule says that it is.
    both_arrays = not got.is_high and not want.is_high
    free = both_arrays and got.shape == want.shape and (dtypes.issubdtype(want.dtype, np.inexact) or got.is_key)
    if type_mismatch(got, want) and not free:
        why = "dtypes do not match" if got.shape == want.shape else "shapes do not match"
        raise errors.ArgumentValueError(_unlike_type(title, path, got, want, why))
    if got.is_high:
        return ct
    more = got.vma.difference(want.vma)
    if more:
        axes = in_order(more)
        raise errors.ArgumentValueError(
            f"{_unlike_type(title, path, got, want, 'axes that they vary over do not match')}: the argument is one "
            f"value along {', '.join(map(repr, axes))}. Return meshrt.lax.psum(ct, {axes}), or give the function "
            f"meshrt.lax.pcast(argument, {axes}, to='varying')"
        )
    return vary(ct, in_order(want.vma))
