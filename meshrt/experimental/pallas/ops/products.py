"""The product of matrices with bias and activation in one kernel."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from meshrt import api, dtypes, errors, lax
from meshrt import numpy as jnp
from meshrt.custom_derivatives import custom_vjp
from meshrt.experimental import pallas as pl
from meshrt.experimental.pallas import tpu as pltpu
from meshrt.experimental.pallas.ops import heuristics
from meshrt.experimental.pallas.ops.placement import Split, sized
from meshrt.experimental.pallas.ops.tiles import accumulator, agreeing, contract, within
from meshrt.shape_dtype import ShapeDtypeStruct

__all__ = ["ACTIVATIONS", "matmul"]

ACTIVATIONS: dict[str | None, Callable[[Any], Any]] = {
    None: lambda x: x,
    "relu": lambda x: jnp.maximum(x, 0),
    "silu": lambda x: x * lax.logistic(x),
    "gelu": lambda x: 0.5 * x * (1 + lax.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))),
    "tanh": lax.tanh,
}


def matmul(x: Any, w: Any, bias: Any = None, *, activation: str | None = None, block_sizes: Any = None) -> Any:
    """activation(x @ w + bias), in one kernel that writes nothing but the result.

    Sums are kept in float32 (float64 for float64). Where a mesh splits the summed dimension, devices add up their
    products, then bias and activation follow. The derivative is two products by this kernel, with operands read
    transposed; it keeps x @ w + bias where there is an activation.

    Args:
      x: (..., k), floating-point. w: (k, n). bias: (n,) or None. All of one dtype, which the result (..., n) has.
      activation: None, "relu", "silu", "gelu" (by tanh) or "tanh".
      block_sizes: (rows, columns, depth) of the blocks that a core multiplies; chosen from the shapes by default.

    >>> import meshrt.numpy as jnp
    >>> matmul(jnp.ones((2, 3)), jnp.ones((3, 4)), jnp.array([0.0, 1.0, -4.0, 2.0]), activation="relu")
    Array([[3., 4., 0., 5.],
           [3., 4., 0., 5.]], dtype=float32)

    Raises:
      ArgumentTypeError: shapes or dtypes do not fit.
      ArgumentValueError: the activation is unknown.
    """
    x, w = jnp.asarray(x), jnp.asarray(w)
    bias = None if bias is None else jnp.asarray(bias)
    _check(x, w, bias, activation)
    blocks = None if block_sizes is None else tuple(block_sizes)
    return _matmul(*agreeing(x, w, bias), activation, blocks)


def _check(x: Any, w: Any, bias: Any, activation: Any) -> None:
    if activation not in ACTIVATIONS:
        known = ", ".join(repr(a) for a in ACTIVATIONS)
        raise errors.ArgumentValueError(f"matmul knows the activations {known}, got {activation!r}; apply it outside")
    if x.ndim < 1 or w.ndim != 2 or x.shape[-1] != w.shape[0]:
        raise errors.ArgumentTypeError(
            f"matmul takes x (..., k) and w (k, n), but got {x.shape} and {w.shape}: the last dimension of x "
            "is summed with the first of w"
        )
    if bias is not None and bias.shape != w.shape[1:]:
        raise errors.ArgumentTypeError(
            f"matmul of {x.shape} and {w.shape} takes a bias of {w.shape[1:]}, got {bias.shape}"
        )
    kinds = {v.dtype for v in (x, w, bias) if v is not None}
    if len(kinds) > 1 or not dtypes.issubdtype(x.dtype, np.floating):
        names = ", ".join(sorted(map(str, kinds)))
        raise errors.ArgumentTypeError(f"matmul takes floating-point operands of one dtype, got {names}; convert them")


@functools.partial(custom_vjp, nondiff_argnums=(3, 4))
def _matmul(x: Any, w: Any, bias: Any, activation: str | None, blocks: Any) -> Any:
    return _forward(x, w, bias, activation, blocks, False)[0]


def _matmul_forward(x: Any, w: Any, bias: Any, activation: str | None, blocks: Any) -> Any:
    out, before = _forward(x, w, bias, activation, blocks, activation is not None)
    return out, (x, w, bias, before)


def _matmul_backward(activation: str | None, blocks: Any, kept: Any, g: Any) -> Any:
    x, w, bias, before = kept
    if before is not None:
        (g,) = api.vjp(ACTIVATIONS[activation], before)[1](g)
    lead = _lead(x)
    turned = None if blocks is None else (blocks[0], blocks[2], blocks[1])
    dx = _product.rule(
        f"{lead} n, k n -> {lead} k", summed=("n",), form=Form(False, True), activation=None, blocks=turned, keep=False
    )(g, w)[0]
    turned = None if blocks is None else (blocks[2], blocks[1], blocks[0])
    rows = tuple(lead.split())
    dw = _product.rule(
        f"{lead} k, {lead} n -> k n", summed=rows, form=Form(True, False), activation=None, blocks=turned, keep=False
    )(x, g)[0]
    dbias = None if bias is None else jnp.sum(g, tuple(range(g.ndim - 1)), dtype=accumulator(g)).astype(g.dtype)
    return dx, dw, dbias


_matmul.defvjp(_matmul_forward, _matmul_backward)


class Form(NamedTuple):
    """How the operands of a product lie: whether the left one is (depth, rows), and the right one (columns, depth)."""

    left_transposed: bool
    right_transposed: bool


def _lead(x: Any) -> str:
    return " ".join(f"m{i}" for i in range(x.ndim - 1))


def _forward(x: Any, w: Any, bias: Any, activation: str | None, blocks: Any, keep: bool) -> Any:
    """(activation(x @ w + bias), x @ w + bias if kept, else None)."""
    lead = _lead(x)
    operands = (x, w) if bias is None else (x, w, bias)
    names = f"{lead} k, k n" + ("" if bias is None else ", n")
    outs = ", ".join([f"{lead} n"] * (2 if keep else 1))
    made = _product.rule(
        f"{names} -> {outs}", summed=("k",), form=Form(False, False), activation=activation, blocks=blocks, keep=keep
    )(*operands)
    return made[0], made[1] if keep else None


@sized("matmul")
def _product(
    split: Split, x: Any, w: Any, bias: Any = None, *, form: Form, activation: str | None, blocks: Any, keep: bool
) -> tuple[Any, ...]:
    """The product of what one device has. Where the summed dimension is split, the sum comes between the kernel and
    what follows it."""
    depth = "k" if not form.left_transposed and not form.right_transposed else None
    if form.right_transposed:
        depth = "n"
    rows = x.shape[:-1]
    flat = x.reshape(-1, x.shape[-1])
    right = w.reshape(-1, w.shape[-1])
    split_by = split.along(depth) if depth else split.along(*[f"m{i}" for i in range(len(rows))])
    shape = (
        (flat.shape[-1], right.shape[-1])
        if form.left_transposed
        else (*rows, right.shape[0 if form.right_transposed else 1])
    )
    if not split_by:
        outs = call(flat, right, bias, form, activation, blocks, keep, x.dtype)
        return tuple(o.reshape(shape) for o in outs)
    (partial,) = call(flat, right, None, form, None, blocks, False, accumulator(x))
    before = lax.psum(partial, split_by).reshape(shape)
    if bias is not None:
        before = before + bias.astype(before.dtype)
    out = ACTIVATIONS[activation](before).astype(x.dtype)
    return (out, before.astype(x.dtype)) if keep else (out,)


def call(
    x: Any, w: Any, bias: Any, form: Form, activation: str | None, blocks: Any, keep: bool, dtype: Any
) -> list[Any]:
    """The kernel over two matrices, laid out as `form` says; one result, or two with what the activation was given."""
    depth, rows = x.shape if form.left_transposed else x.shape[::-1]
    columns = w.shape[0] if form.right_transposed else w.shape[1]
    bm, bn, bk = (heuristics.block_of(n, b) for n, b in zip((rows, columns, depth), blocks))
    acc = accumulator(x, w)
    in_specs = [
        _window((bm, bk), lambda i, j, k: (i, k), form.left_transposed),
        _window((bk, bn), lambda i, j, k: (k, j), form.right_transposed),
    ]
    operands = [x, w]
    if bias is not None:
        operands.append(bias.reshape(1, -1))
        in_specs.append(pl.BlockSpec((1, bn), lambda i, j, k: (0, j)))
    count = 2 if keep else 1
    kernel = functools.partial(
        _kernel, depth=depth, form=form, activation=activation, acc=acc, has_bias=bias is not None
    )
    return pl.pallas_call(
        kernel,
        grid=(pl.cdiv(rows, bm), pl.cdiv(columns, bn), pl.cdiv(depth, bk)),
        in_specs=in_specs,
        out_specs=[pl.BlockSpec((bm, bn), lambda i, j, k: (i, j))] * count,
        out_shape=[ShapeDtypeStruct((rows, columns), dtype)] * count,
        scratch_shapes=[pltpu.VMEM((bm, bn), acc)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        cost_estimate=pl.CostEstimate(
            flops=2 * rows * columns * depth, transcendentals=0 if activation in (None, "relu") else rows * columns,
            bytes_accessed=(x.size + w.size) * x.dtype.itemsize + count * rows * columns * np.dtype(dtype).itemsize,
        ),
        name="matmul",
    )(*operands)  # fmt: skip


def _window(shape: tuple[int, int], at: Callable[..., tuple[Any, Any]], transposed: bool) -> Any:
    """The window of an operand, or of one that lies transposed."""
    return pl.BlockSpec(shape[::-1], lambda *place: at(*place)[::-1]) if transposed else pl.BlockSpec(shape, at)


def _kernel(*refs: Any, depth: int, form: Form, activation: str | None, acc: Any, has_bias: bool) -> None:
    x_ref, w_ref, *rest, acc_ref = refs
    bias_ref = rest.pop(0) if has_bias else None
    step = pl.program_id(2)
    over_x, over_w = 0 if form.left_transposed else 1, 1 if form.right_transposed else 0

    @pl.when(step == 0)
    def _start() -> None:
        acc_ref[...] = jnp.zeros(acc_ref.shape, acc)

    x = within(x_ref[...], step, over_x, depth)
    w = within(w_ref[...], step, over_w, depth)
    acc_ref[...] += contract(x, w, over_x, over_w, acc)

    @pl.when(step == pl.num_programs(2) - 1)
    def _finish() -> None:
        before = acc_ref[...]
        if bias_ref is not None:
            before = before + bias_ref[...].astype(acc)
        rest[0][...] = ACTIVATIONS[activation](before).astype(rest[0].dtype)
        if len(rest) > 1:
            rest[1][...] = before.astype(rest[1].dtype)
