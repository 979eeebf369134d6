"""Types with symbolic shapes for the arguments of a function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meshrt import errors, tree_util
from meshrt.core.dimensions.scope import SymbolicScope
from meshrt.core.dimensions.shapes import symbolic_shape
from meshrt.core.types import aval_of
from meshrt.dtypes import canonicalize_dtype
from meshrt.shape_dtype import ShapeDtypeStruct

__all__ = ["symbolic_args_specs"]


def symbolic_args_specs(
    args: Any, shapes_specs: Any, constraints: Sequence[str] = (), scope: SymbolicScope | None = None
) -> Any:
    """ShapeDtypeStructs for `args`, with the shapes that `shapes_specs` says, in one scope.

    >>> import numpy as np
    >>> symbolic_args_specs((np.ones((4, 8), np.float32),), "batch, ...")
    (ShapeDtypeStruct(shape=(batch, 8), dtype=float32),)

    Args:
      args: a pytree of arrays or of anything with a shape and a dtype: it gives the structure, the dtypes, and the
        sizes for placeholders.
      shapes_specs: a text for all arguments, a pytree of texts that is a prefix of `args`, or None: the shapes as they
        are. See `symbolic_shape`.
      constraints, scope: as for `symbolic_shape`.

    Raises:
      ArgumentValueError: a text is no shape; `scope` and `constraints` together. TreeError: no prefix of `args`.
    """
    if scope is None:
        scope = SymbolicScope(constraints)
    elif constraints:
        raise errors.ArgumentValueError(
            "Cannot use both `scope` and `constraints`; give the constraints to SymbolicScope(...)"
        )
    leaves, tree = tree_util.tree_flatten(args)
    if isinstance(args, tuple) and isinstance(shapes_specs, list):
        shapes_specs = tuple(shapes_specs)
    specs = []
    for leaf, text in zip(leaves, _broadcast(shapes_specs, args)):
        known = leaf if hasattr(leaf, "shape") and hasattr(leaf, "dtype") else aval_of(leaf)
        shape = symbolic_shape(text, scope=scope, like=tuple(known.shape))
        specs.append(ShapeDtypeStruct(shape, canonicalize_dtype(known.dtype)))
    return tree_util.tree_unflatten(tree, specs)


def _broadcast(specs: Any, args: Any) -> list[Any]:
    try:
        found: list[Any] = tree_util.tree_leaves(
            tree_util.tree_broadcast(specs, args, is_leaf=lambda x: x is None), is_leaf=lambda x: x is None
        )
        return found
    except ValueError as e:
        raise errors.TreeError(
            f"export.symbolic_args_specs shapes_specs: {specs!r} is no prefix of the arguments' structure "
            f"{tree_util.tree_structure(args)}: {e}. Give one text for all, or one for each argument"
        ) from None
