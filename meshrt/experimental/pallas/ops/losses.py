"""Softmax cross-entropy over a vocabulary, whose probabilities are never written."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from meshrt import dtypes, errors
from meshrt import numpy as jnp
from meshrt.custom_derivatives import custom_vjp
from meshrt.experimental.pallas.ops import loss_kernels as kernels
from meshrt.experimental.pallas.ops import loss_loops as loops
from meshrt.experimental.pallas.ops.placement import Split, sized
from meshrt.experimental.pallas.ops.tiles import accumulator, agreeing

__all__ = ["linear_cross_entropy", "softmax_cross_entropy"]

Blocks = tuple[int, int] | None


def softmax_cross_entropy(logits: Any, labels: Any, *, block_sizes: Blocks = None) -> Any:
    """logsumexp(logits) - logits[label] along the last dimension: what a model pays for each label.

    Logits are read once forward, and once backward, which writes their cotangent and nothing else of their size. Where
    a mesh splits the vocabulary, devices exchange three numbers for each label.

    Args:
      logits: (..., vocabulary), floating-point. labels: integers (...); one outside of the vocabulary has the logit 0.
      block_sizes: labels and classes of a block; chosen by default.

    Returns float32 (...), or float64 for float64.

    >>> import meshrt.numpy as jnp
    >>> softmax_cross_entropy(jnp.zeros((2, 4)), jnp.array([1, 3]))
    Array([1.3862944, 1.3862944], dtype=float32)

    Raises:
      ArgumentTypeError: shapes or dtypes do not fit.
    """
    logits, labels = jnp.asarray(logits), jnp.asarray(labels)
    _check("softmax_cross_entropy", "logits", logits, labels)
    return _of_logits(*agreeing(logits, labels), None if block_sizes is None else tuple(block_sizes))


def linear_cross_entropy(hidden: Any, head: Any, labels: Any, *, block_sizes: Blocks = None) -> Any:
    """`softmax_cross_entropy(hidden @ headᵀ, labels)` without the logits: neither they nor their cotangent are written.

    The backward pass computes blocks of logits anew, for each of its two products.

    Args:
      hidden: (..., width), floating-point. head: (vocabulary, width), as an embedding is, of hidden's dtype.
      labels, block_sizes: as in `softmax_cross_entropy`.

    Returns float32 (...), or float64 for float64.

    >>> import meshrt.numpy as jnp
    >>> linear_cross_entropy(jnp.ones((2, 3)), jnp.zeros((4, 3)), jnp.array([1, 3]))
    Array([1.3862944, 1.3862944], dtype=float32)

    Raises:
      ArgumentTypeError: shapes or dtypes do not fit.
    """
    hidden, head, labels = jnp.asarray(hidden), jnp.asarray(head), jnp.asarray(labels)
    _check("linear_cross_entropy", "hidden", hidden, labels)
    if head.ndim != 2 or head.shape[1] != hidden.shape[-1] or head.dtype != hidden.dtype:
        raise errors.ArgumentTypeError(
            f"linear_cross_entropy of hidden {hidden.dtype}{list(hidden.shape)} takes a head (vocabulary, "
            f"{hidden.shape[-1]}) of its dtype, got {head.dtype}{list(head.shape)}"
        )
    return _of_product(*agreeing(hidden, head, labels), None if block_sizes is None else tuple(block_sizes))


def _check(name: str, what: str, x: Any, labels: Any) -> None:
    if x.ndim < 1 or labels.shape != x.shape[:-1]:
        raise errors.ArgumentTypeError(
            f"{name} of {what} {x.shape} takes labels of shape {x.shape[:-1]}, got {labels.shape}"
        )
    if not dtypes.issubdtype(x.dtype, np.floating) or not dtypes.issubdtype(labels.dtype, np.integer):
        raise errors.ArgumentTypeError(
            f"{name} takes floating-point {what} and integer labels, got {x.dtype} and {labels.dtype}; convert them"
        )


def _rows(labels: Any) -> str:
    return " ".join(f"m{i}" for i in range(labels.ndim))


def _flat(x: Any, labels: Any) -> Any:
    return x.reshape(-1, x.shape[-1]), labels.reshape(-1, 1)


def _own(split: Split, labels: Any, classes: int) -> Any:
    """Labels counted from the first class that a device has."""
    return labels.astype(np.int32) - split.start("v", classes)


def _combined(split: Split, top: Any, total: Any, label: Any) -> tuple[Any, Any]:
    """(log of the normaliser, loss) over the vocabulary of all devices, from each one's largest logit, its sum of
    exponentials above that, and the label's logit where it has that label, else 0."""
    highest = split.max(top, "v")
    log = highest + jnp.log(split.sum(total * jnp.exp(top - highest), "v"))
    return log, log - split.sum(label, "v")


# Of logits


@functools.partial(custom_vjp, nondiff_argnums=(2,))
def _of_logits(logits: Any, labels: Any, blocks: Blocks) -> Any:
    return _losses(logits, labels, blocks)[1]


def _losses(logits: Any, labels: Any, blocks: Blocks) -> Any:
    rows = _rows(labels)
    rule = f"{rows} v, {rows} -> {rows}, {rows}"
    return _logits_forward.rule(rule, summed=("v",), blocks=blocks)(logits, labels)


def _of_logits_forward(logits: Any, labels: Any, blocks: Blocks) -> Any:
    log, losses = _losses(logits, labels, blocks)
    return losses, (logits, labels, log)


def _of_logits_backward(blocks: Blocks, kept: Any, cotangent: Any) -> Any:
    rows = _rows(kept[1])
    rule = f"{rows} v, {rows}, {rows}, {rows} -> {rows} v"
    return _logits_backward.rule(rule, blocks=blocks)(*kept, cotangent), None


_of_logits.defvjp(_of_logits_forward, _of_logits_backward)


@sized("loss")
def _logits_forward(split: Split, logits: Any, labels: Any, *, blocks: tuple[int, int]) -> Any:
    x, own = _flat(logits, labels)
    parts = kernels.normalisers(x, None, _own(split, own, x.shape[1]), blocks)
    return tuple(v.reshape(labels.shape) for v in _combined(split, *parts))


@sized("loss")
def _logits_backward(
    split: Split, logits: Any, labels: Any, log: Any, cotangent: Any, *, blocks: tuple[int, int]
) -> Any:
    x, own = _flat(logits, labels)
    out = kernels.of_logits(x, _own(split, own, x.shape[1]), log.reshape(-1, 1), cotangent.reshape(-1, 1), blocks)
    return out.reshape(logits.shape)


# Of a product


def _products_forward(split: Split, hidden: Any, head: Any, labels: Any, *, blocks: tuple[int, int]) -> Any:
    x, own = _flat(hidden, labels)
    parts = loops.normalisers(x, head, _own(split, own, head.shape[0]), blocks[1])
    return tuple(v.reshape(labels.shape) for v in _combined(split, *parts))


def _products_backward(
    split: Split, hidden: Any, head: Any, labels: Any, log: Any, cotangent: Any, *, blocks: tuple[int, int]
) -> Any:
    x, own = _flat(hidden, labels)
    given = (_own(split, own, head.shape[0]), log.reshape(-1, 1), cotangent.reshape(-1, 1))
    return _summed(split, hidden, head, labels, *loops.cotangents(x, head, *given, blocks[1]))


def _summed(split: Split, hidden: Any, head: Any, labels: Any, dx: Any, dhead: Any) -> tuple[Any, Any]:
    rows = [f"m{i}" for i in range(labels.ndim)]
    acc = accumulator(hidden)
    dx = split.sum(dx.astype(acc), "v") if split.along("v") else dx
    dhead = split.sum(dhead.astype(acc), *rows) if split.along(*rows) else dhead
    return dx.astype(hidden.dtype).reshape(hidden.shape), dhead.astype(head.dtype)


@functools.partial(custom_vjp, nondiff_argnums=(3,))
def _of_product(hidden: Any, head: Any, labels: Any, blocks: Blocks) -> Any:
    return _product_losses(hidden, head, labels, blocks)[1]


def _product_losses(hidden: Any, head: Any, labels: Any, blocks: Blocks) -> Any:
    rows = _rows(labels)
    rule = f"{rows} d, v d, {rows} -> {rows}, {rows}"
    return _product_forward.rule(rule, summed=("v",), whole=("d",), blocks=blocks)(hidden, head, labels)


def _of_product_forward(hidden: Any, head: Any, labels: Any, blocks: Blocks) -> Any:
    log, losses = _product_losses(hidden, head, labels, blocks)
    return losses, (hidden, head, labels, log)


def _of_product_backward(blocks: Blocks, kept: Any, cotangent: Any) -> Any:
    rows = _rows(kept[2])
    rule = f"{rows} d, v d, {rows}, {rows}, {rows} -> {rows} d, v d"
    dx, dhead = _product_backward.rule(rule, whole=("d",), blocks=blocks)(*kept, cotangent)
    return dx, dhead, None


_of_product.defvjp(_of_product_forward, _of_product_backward)


@sized("head", on_gpus=_products_forward)
def _product_forward(split: Split, hidden: Any, head: Any, labels: Any, *, blocks: tuple[int, int]) -> Any:
    x, own = _flat(hidden, labels)
    parts = kernels.normalisers(x, head, _own(split, own, head.shape[0]), blocks)
    return tuple(v.reshape(labels.shape) for v in _combined(split, *parts))


@sized("head", on_gpus=_products_backward)
def _product_backward(
    split: Split, hidden: Any, head: Any, labels: Any, log: Any, cotangent: Any, *, blocks: tuple[int, int]
) -> Any:
    x, own = _flat(hidden, labels)
    own = _own(split, own, head.shape[0])
    given = (own, log.reshape(-1, 1), cotangent.reshape(-1, 1))
    dx, dhead = kernels.of_hidden(x, head, *given, blocks), kernels.of_head(x, head, *given, blocks)
    return _summed(split, hidden, head, labels, dx, dhead)
