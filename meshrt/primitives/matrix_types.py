"""What operations on batches of matrices ask of the types of their operands."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshrt import dtypes, errors
from meshrt.core.types import ShapedArray

__all__: list[str] = []


def check_matrices(
    name: str, avals: Sequence[ShapedArray], ranks: Sequence[int], kind: type = np.inexact, batched: bool = True
) -> tuple[int, ...]:
    """The batch dimensions of operands that are matrices (of rank 2) and vectors (of rank 1) of one dtype.

    Raises:
      ArgumentTypeError: an operand is not of this `kind` of number or of another dtype, has too few dimensions (too
        many, unless `batched`), or another batch.
    """
    for i, (x, rank) in enumerate(zip(avals, ranks)):
        if x.is_key or not dtypes.issubdtype(x.dtype, kind):
            accepted = "floating" if kind is np.floating else "floating, complexfloating"
            raise errors.ArgumentTypeError(
                f"{name} does not accept dtype {x.dtype} at position {i}. Accepted dtypes at position {i} are subtypes "
                f"of {accepted}."
            )
        if x.ndim < rank or (not batched and x.ndim > rank):
            how = "at least" if batched else "of exactly"
            raise errors.ArgumentTypeError(f"Input {i} to {name} must have rank {how} {rank}, but got shape={x.shape}")
    first = avals[0]
    batch = first.shape[: first.ndim - ranks[0]]
    if any(x.dtype != first.dtype for x in avals):
        listed = ", ".join(x.dtype.name for x in avals)
        raise errors.ArgumentTypeError(
            f"{name} requires arguments to have the same dtypes, got {listed}; convert them with astype"
        )
    if any(x.shape[: x.ndim - rank] != batch for x, rank in zip(avals, ranks)):
        listed = ", ".join(str(x.shape[: x.ndim - rank]) for x, rank in zip(avals, ranks))
        raise errors.ArgumentTypeError(
            f"All inputs to {name} must have the same number of batch dimensions, of the same sizes, but got {listed}"
        )
    return batch


def check_square(name: str, x: ShapedArray) -> tuple[int, ...]:
    """The batch dimensions of square matrices.

    Raises:
      ArgumentTypeError: not matrices of floats or complex numbers. ArgumentShapeError: not square.
    """
    batch = check_matrices(name, [x], [2])
    if x.shape[-1] != x.shape[-2]:
        raise errors.ArgumentShapeError(
            f"Argument to {name} must have shape [..., n, n], got shape {x.shape}. The input to {name} must be a "
            "square matrix, or a batch of them"
        )
    return batch
