"""Singular values and vectors without a kernel of their own: a polar decomposition, then one of a Hermitian matrix.

With a = u h and h = v s v^H the singular vectors of a are those of h and u v (Higham and Papadimitriou, "A parallel
algorithm for computing the polar decomposition", 1994).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt.core.basic.shapes import bring_to_front, broadcast_in_dim
from meshrt.core.types import aval_of
from meshrt.primitives import elementwise as ew
from meshrt.primitives.concatenate import rev
from meshrt.primitives.conversion import convert_element_type
from meshrt.primitives.eigh import eigh
from meshrt.primitives.linalg import adjoint, matmul
from meshrt.primitives.matrix_parts import diagonal
from meshrt.primitives.polar import polar
from meshrt.primitives.qr import qr
from meshrt.primitives.selection import select_n
from meshrt.primitives.slice import pad
from meshrt.transforms.batching import MappedAxis, batch_flat

__all__: list[str] = []


def svd_by_polar(x: Any, *, full_matrices: bool, compute_uv: bool) -> Sequence[Any]:
    """[s, u, v^H], or [s] without `compute_uv`, of matrices [..., m, n]."""

    def one(a: Any) -> Sequence[Any]:
        m, n = aval_of(a).shape
        s, u, v = _tall(a if m >= n else adjoint(a), full_matrices, compute_uv)
        if not compute_uv:
            return [s]
        return [s, u, adjoint(v)] if m >= n else [s, v, adjoint(u)]

    mapped: Callable[..., Sequence[Any]] = one
    for size in reversed(aval_of(x).shape[:-2]):
        mapped = _over(size, mapped)
    return mapped(x)


def _over(size: Any, fun: Callable[..., Sequence[Any]]) -> Callable[..., Sequence[Any]]:
    def mapped(x: Any) -> Sequence[Any]:
        outs, dims = batch_flat(fun, MappedAxis(size), [x], [0])
        return [bring_to_front(size, o, d) for o, d in zip(outs, dims)]

    return mapped


def _tall(a: Any, full: bool, with_vectors: bool) -> tuple[Any, Any, Any]:
    """(s, u, v) of one matrix with at least as many rows as columns."""
    m, n = aval_of(a).shape
    u, h, _, _ = polar(a)
    v, values = eigh(h)
    s = rev(ew.max_p.bind(values, np.zeros((), aval_of(values).dtype)[()]), (0,))
    if not with_vectors:
        return s, None, None
    v = rev(v, (1,))
    return s, _completed(matmul(u, v), m if full else n), v


def _completed(u: Any, columns: Any) -> Any:
    """Orthonormal columns [m, columns] that begin with those of `u` which have length 1: others, of singular values
    that are zero, may be anything orthogonal to these."""
    n = aval_of(u).shape[1]
    zero = np.zeros((), aval_of(u).dtype)[()]
    wide = u if columns == n else pad(u, zero, [(0, 0, 0), (0, columns - n, 0)])
    q, r = qr(wide, full_matrices=False)
    turned = diagonal(r)
    shape = aval_of(turned).shape
    size = ew.abs_p.bind(turned)
    length = convert_element_type(size, aval_of(u).dtype)
    one = broadcast_in_dim(np.ones((), aval_of(u).dtype)[()], shape, ())
    half = broadcast_in_dim(np.asarray(0.5, aval_of(size).dtype)[()], shape, ())
    is_one = ew.gt_p.bind(size, half)
    phase = select_n(is_one, one, ew.div(turned, select_n(is_one, one, length)))
    return ew.mul(q, broadcast_in_dim(phase, aval_of(q).shape, (1,)))
