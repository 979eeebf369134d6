"""Index expressions as tokens: hashable tuples that hold everything static about them.

Tokens:  ("i", n)  ("s", start, stop, step)  ("n",)  ("e",)  ("b", flag)
         ("a", shape, unsigned, operand number[, size of the mask])
         ("w", operand number, size, stride): a window whose start may be traced, as `meshrt.ds` makes it
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from meshrt import dtypes
from meshrt.core.dimensions.expression import DimExpr
from meshrt.core.types import aval_of
from meshrt.errors import MeshrtError, NonConcreteBooleanIndexError
from meshrt.primitives.state_indices import Slice

__all__ = ["CONSUMING", "FULL", "EmptyAxisError", "IndexTypeError", "IndexingError", "Token", "expand", "tokenize"]

Token = tuple
FULL: Token = ("s", None, None, None)
CONSUMING = "isaw"  # the tokens that index a dimension each


class IndexingError(MeshrtError, IndexError):
    """An index that does not fit the array."""


class IndexShapeError(IndexingError, ValueError):
    """Indices whose shapes do not go together."""


class IndexTypeError(IndexingError, TypeError):
    """An index of a type that cannot index."""


class EmptyAxisError(IndexingError, TypeError):
    """A position in an axis of size 0; JAX raises a TypeError where index arrays stand beside it."""


def tokenize(index: Any) -> tuple[tuple[Token, ...], list[Any]]:
    """``(tokens, operands)`` of an index expression.

    Operands are the integer arrays in order: traced or concrete arrays as given, and NumPy arrays for lists and
    for the nonzero positions of boolean masks.

    Raises:
      IndexTypeError: an entry is no valid index.
      NonConcreteBooleanIndexError: a boolean mask whose values are not known while tracing.
    """
    operands: list[Any] = []
    entries = index if type(index) is tuple else (index,)
    if isinstance(index, list):
        raise IndexTypeError(
            f"Using a non-tuple sequence for multidimensional indexing is not allowed: got {index!r}; "
            f"use {_instead_of_list(index)} instead of `arr[seq]`"
        )
    tokens: list[Token] = []
    for entry in entries:
        tokens.extend(_token(entry, operands))
    return tuple(tokens), operands


def _instead_of_list(index: list[Any]) -> str:
    """Several dimensions or rows: which of both a list most likely means."""
    parts = any(e is None or e is Ellipsis or isinstance(e, (slice, list, tuple)) or np.ndim(e) for e in index)
    return "`arr[tuple(seq)]`" if parts else "`arr[array(seq)]`"


def _token(entry: Any, operands: list[Any]) -> list[Token]:
    typ = type(entry)
    if typ is int or typ is DimExpr:
        return [("i", entry)]
    if typ is slice:
        start, stop, step = entry.start, entry.stop, entry.step
        return [("s", _bound(start, entry), _bound(stop, entry), _bound(step, entry))]
    if entry is None:
        return [("n",)]
    if entry is Ellipsis:
        return [("e",)]
    if isinstance(entry, (bool, np.bool_)):
        return [("b", bool(entry))]
    if isinstance(entry, (int, np.integer)):
        return [("i", operator.index(entry))]
    if typ is Slice:
        return [_window(entry, operands)]
    if isinstance(entry, (list, tuple)):
        entry = _array_from_sequence(entry)
    if isinstance(entry, str):
        raise IndexTypeError(f"JAX does not support string indexing; got idx={entry!r}")
    dtype = getattr(entry, "dtype", None)
    if dtype is None or not hasattr(entry, "shape") or isinstance(entry, (np.floating, np.complexfloating)):
        raise IndexTypeError(
            f"Indexer must have integer or boolean type, got indexer with type {typ.__name__}: {entry!r}; integers, "
            f"slices (`:`), ellipsis (`...`), None and integer or boolean arrays are valid indices"
        )
    if dtype == np.bool_:
        return _mask_tokens(entry, operands)
    if not dtypes.issubdtype(dtype, np.integer):
        raise IndexTypeError(
            f"Indexer must have integer or boolean type, got indexer with type {dtype}; convert it, e.g. with "
            f"index.astype('int32')"
        )
    operands.append(entry)
    return [("a", tuple(entry.shape), dtypes.issubdtype(dtype, np.unsignedinteger), len(operands) - 1)]


def _window(entry: Slice, operands: list[Any]) -> Token:
    start = aval_of(entry.start)
    if start.shape != () or not dtypes.issubdtype(start.dtype, np.integer):
        raise IndexTypeError(f"the start of a slice must be an integer scalar, got {start.short()} in {entry}")
    operands.append(entry.start)
    return ("w", len(operands) - 1, operator.index(entry.need_size()), entry.stride)


def _bound(value: Any, whole: slice) -> Any:
    if value is None or type(value) is int or type(value) is DimExpr:
        return value
    try:
        return operator.index(value)
    except TypeError as e:
        raise IndexTypeError(
            f"Slice entries must be static integers: Array slice indices must have static start/stop/step to be used "
            f"with NumPy indexing syntax. Got {whole}; for a start that is known only at run "
            f"time use lax.dynamic_slice or lax.dynamic_slice_in_dim, whose size is static"
        ) from e


def _array_from_sequence(entry: Sequence[Any]) -> Any:
    if any(hasattr(e, "aval") for e in entry):
        raise IndexTypeError("an index may not be a list of arrays; make one array of it with jnp.stack")
    array = np.asarray(entry)
    return array.astype(np.int32) if array.size == 0 and array.dtype.kind == "f" else array


def _mask_tokens(mask: Any, operands: list[Any]) -> list[Token]:
    concrete, mask_type = getattr(mask, "concrete", None), getattr(mask, "aval", None)
    if concrete is not None and (mask := concrete()) is None:
        raise NonConcreteBooleanIndexError(
            f"Array boolean indices must be concrete; got {mask_type}: the result's shape depends on them. Use "
            "jnp.where(mask, x, y) with three arguments, or x.at[...].set with where"
        )
    mask = np.asarray(mask)
    if mask.ndim == 0:
        return [("b", bool(mask))]
    tokens = []
    for axis, positions in enumerate(np.nonzero(mask)):
        operands.append(positions)
        tokens.append(("a", positions.shape, False, len(operands) - 1, mask.shape[axis]))
    return tokens


def expand(tokens: tuple[Token, ...], shape: tuple[int, ...]) -> list[Token]:
    """Tokens with one entry for every dimension: the ellipsis, and missing trailing entries, become full slices."""
    consumed = sum(t[0] in CONSUMING for t in tokens)
    ellipses = sum(t[0] == "e" for t in tokens)
    if ellipses > 1:
        raise IndexingError("an index can only have a single ellipsis ('...')")
    if consumed > len(shape):
        raise IndexingError(
            f"Too many indices: array is {len(shape)}-dimensional, but {consumed} were indexed; its shape is {shape}"
        )
    rest = [FULL] * (len(shape) - consumed)
    out: list[Token] = []
    for t in tokens:
        out.extend(rest if t[0] == "e" else [t])
    out = out if ellipses else out + rest
    _check_masks(out, shape)
    return out


def _check_masks(tokens: Sequence[Token], shape: tuple[int, ...]) -> None:
    axis = 0
    for t in tokens:
        if t[0] == "a" and len(t) == 5 and t[4] not in (0, shape[axis]):
            raise IndexingError(
                f"boolean index did not match shape of indexed array in index {axis}: got ({t[4]},), expected "
                f"[{shape[axis]}]: the array has shape {shape}"
            )
        axis += t[0] in CONSUMING
