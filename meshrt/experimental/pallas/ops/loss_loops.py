"""Cross-entropy of logits that are products of rows and a head, as loops of whole products over blocks of classes.

For GPUs, where a program of a kernel cannot hold rows and head over their whole width: the products are the compiler's,
and no more logits exist than those of a block.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meshrt import lax
from meshrt import numpy as jnp
from meshrt.experimental.pallas.ops.tiles import accumulator, agreeing, contract

__all__ = ["cotangents", "normalisers"]


def _over_blocks(head: Any, classes: int, turn: Callable[[Any, Any, Any, Any], Any], start: Any) -> Any:
    """`turn(carried, rows of the head, the first one's number, which of them are new)` for each block of classes. The
    last block ends at the last class: it begins within the one before where the sizes do not divide."""
    size = min(classes, head.shape[0])
    if not size:
        return start

    def step(i: Any, carried: Any) -> Any:
        wanted = i * size
        first = jnp.minimum(wanted, head.shape[0] - size)
        fresh = first + lax.iota(np.int32, size) >= wanted
        return turn(carried, lax.dynamic_slice_in_dim(head, first, size), first, fresh)

    return lax.fori_loop(0, -(-head.shape[0] // size), step, start)


def normalisers(x: Any, head: Any, labels: Any, classes: int) -> tuple[Any, Any, Any]:
    """As `loss_kernels.normalisers`."""
    acc = accumulator(x)
    column = lambda value: jnp.full((x.shape[0], 1), value, acc)

    def turn(carried: Any, rows: Any, first: Any, fresh: Any) -> Any:
        top, total, label = carried
        logits = jnp.where(fresh, contract(x, rows, 1, 1, acc), -np.inf)
        highest = jnp.maximum(top, jnp.max(logits, 1, keepdims=True))
        total = total * jnp.exp(top - highest) + jnp.sum(jnp.exp(logits - highest), 1, keepdims=True)
        is_label = (first + lax.iota(np.int32, rows.shape[0]) == labels) & fresh
        return highest, total, label + jnp.sum(jnp.where(is_label, logits, 0), 1, keepdims=True)

    _, *start = agreeing(x, column(np.finfo(np.float32).min), column(0), column(0))
    return _over_blocks(head, classes, turn, tuple(start))


def cotangents(x: Any, head: Any, labels: Any, log: Any, cotangent: Any, classes: int) -> tuple[Any, Any]:
    """Those of x and of the head, in the dtype that sums are kept in."""
    acc = accumulator(x)

    def turn(carried: Any, rows: Any, first: Any, fresh: Any) -> Any:
        dx, dhead = carried
        softmax = jnp.exp(contract(x, rows, 1, 1, acc) - log)
        is_label = first + lax.iota(np.int32, rows.shape[0]) == labels
        of_logits = (softmax - is_label) * cotangent
        narrow = of_logits.astype(x.dtype)
        dhead = lax.dynamic_update_slice_in_dim(dhead, contract(narrow, x, 0, 0, acc).astype(head.dtype), first, 0)
        fresh_only = jnp.where(fresh, narrow, jnp.zeros((), x.dtype))
        return dx + contract(fresh_only, rows, 1, 0, acc), dhead

    _, *start = agreeing(x, jnp.zeros(x.shape, acc), jnp.zeros(head.shape, head.dtype))
    return _over_blocks(head, classes, turn, tuple(start))
