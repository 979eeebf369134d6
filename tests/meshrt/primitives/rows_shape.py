"""Rows of the reshape, reduce, contract and slice families."""

from __future__ import annotations

import numpy as np

from tests.meshrt.primitives.cases import (
    BF16,
    BOOL,
    C64,
    F32,
    FLOATS,
    I32,
    U8,
    Case,
    distinct,
    fixed,
    integers,
    normal,
    uniform,
    with_dtypes,
)  # fmt: skip

CASES: list[Case] = []


def row(name, fun, *args, dtypes=None, **options):
    """A case; with `dtypes`, `args` is a function of the dtype."""
    if dtypes is None:
        CASES.append(Case(f"{name}-float32", fun, args, **options))
    else:
        CASES.extend(with_dtypes(lambda d: Case(name, fun, args[0](d), **options), dtypes))


ALL = (F32, BF16, I32, BOOL, C64)

# Reshape.
row(
    "broadcast_in_dim",
    lambda lax, x: lax.broadcast_in_dim(x, (2, 3, 4), (0, 2)),
    lambda d: (normal(2, 4, dtype=d),),
    dtypes=ALL,
)
row("broadcast_in_dim ones", lambda lax, x: lax.broadcast_in_dim(x, (2, 3), (0, 1)), normal(1, 3))
row("broadcast scalar", lambda lax, x: lax.broadcast(x, (2, 2)), normal())
row("reshape", lambda lax, x: lax.reshape(x, (3, 4)), lambda d: (normal(2, 6, dtype=d),), dtypes=ALL)
row("reshape permuted", lambda lax, x: lax.reshape(x, (12,), (1, 0)), normal(2, 6))
row("squeeze", lambda lax, x: lax.squeeze(x, (0, 2)), normal(1, 3, 1))
row("expand_dims", lambda lax, x: lax.expand_dims(x, (0, 2)), normal(3))
row("collapse", lambda lax, x: lax.collapse(x, 0, 2), normal(2, 3, 2))
row("transpose", lambda lax, x: lax.transpose(x, (2, 0, 1)), lambda d: (normal(2, 3, 4, dtype=d),), dtypes=ALL)
row("iota", lambda lax, x: lax.add(x, lax.broadcasted_iota(np.float32, (2, 3), 1)), normal(2, 3))
row("full", lambda lax, x: lax.mul(x, lax.full((2, 3), 2.5)), normal(2, 3))

# Reduce.
for _name, _dtypes in [
    ("reduce_sum", (F32, *FLOATS, I32, C64)),
    ("reduce_max", (F32, BF16, I32, U8)),
    ("reduce_min", (F32, BF16, I32, U8)),
    ("reduce_and", (I32, BOOL)),
    ("reduce_or", (I32, BOOL)),
    ("reduce_xor", (I32, BOOL)),
]:
    row(
        _name, lambda lax, x, n=_name: getattr(lax, n)(x, (0, 2)), lambda d: (normal(2, 3, 2, dtype=d),), dtypes=_dtypes
    )
row(
    "reduce_prod",
    lambda lax, x: lax.reduce_prod(x, (0,)),
    lambda d: (uniform(0.5, 2, 3, 2, dtype=d),),
    dtypes=(F32, BF16, I32),
)
row("reduce_prod two axes", lambda lax, x: lax.reduce_prod(x, (0, 2)), uniform(0.5, 1.5, 2, 3, 2))
row(
    "reduce_prod with zeros",
    lambda lax, x: lax.reduce_prod(x, (0,)),
    fixed(np.array([[0, 2], [3, 0], [0, 4.0]], np.float32), mapped=True, smooth=True),
    scale=4,
)
row(
    "ties of reduce_max",
    lambda lax, x: lax.reduce_max(x, (0,)),
    fixed(np.array([[1, 2], [1, 0], [0, 2.0]], np.float32), mapped=True, smooth=True),
    finite=False,
    derivatives=1,
)
for _name in ("argmax", "argmin"):
    row(
        _name,
        lambda lax, x, n=_name: getattr(lax, n)(x, 1, np.int32),
        lambda d: (normal(3, 4, dtype=d),),
        dtypes=(F32, BF16, I32, U8, BOOL),
        derivatives=0,
    )
row(
    "argmax of nan",
    lambda lax, x: [lax.argmax(x, 0, np.int32), lax.argmin(x, 0, np.int32)],
    fixed(np.array([1, np.nan, 3, np.nan, -1], np.float32), mapped=True),
    derivatives=0,
)

# Contract.
row(
    "dot_general",
    lambda lax, x, y: lax.dot_general(x, y, (((2,), (1,)), ((0,), (0,)))),
    lambda d: (normal(2, 3, 4, dtype=d), normal(2, 4, 2, dtype=d)),
    dtypes=(F32, *FLOATS, I32, C64),
)
row("dot_general free", lambda lax, x, y: lax.dot_general(x, y, (((1,), (0,)), ((), ()))), normal(3, 4), normal(4, 2))
row("dot_general outer", lambda lax, x, y: lax.dot_general(x, y, (((), ()), ((), ()))), normal(3), normal(2))
row(
    "dot_general batch last",
    lambda lax, x, y: lax.dot_general(x, y, (((0,), (1,)), ((2,), (0,)))),
    normal(4, 3, 2),
    normal(2, 4, 5),
)
row(
    "dot_general two contracted",
    lambda lax, x, y: lax.dot_general(x, y, (((1, 2), (2, 0)), ((), ()))),
    normal(2, 3, 4),
    normal(4, 2, 3),
)
row(
    "dot_general preferred",
    lambda lax, x, y: lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=np.float32),
    normal(3, 4, dtype=BF16),
    normal(4, 2, dtype=BF16),
    derivatives=1,
    finite=False,
    scale=300,
)
row("dot", lambda lax, x, y: lax.dot(x, y), normal(3, 4), normal(4))
row("batch_matmul", lambda lax, x, y: lax.batch_matmul(x, y), normal(2, 3, 4), normal(2, 4, 3))

# Slice.
row("slice", lambda lax, x: lax.slice(x, (1, 0, 1), (3, 4, 3)), lambda d: (normal(3, 4, 3, dtype=d),), dtypes=ALL)
row("slice strided", lambda lax, x: lax.slice(x, (0, 1), (5, 6), (2, 3)), normal(5, 7))
row("slice empty", lambda lax, x: lax.slice(x, (2, 1), (2, 3), (2, 1)), normal(5, 4))
row("slice_in_dim", lambda lax, x: lax.slice_in_dim(x, -3, None, 2, axis=-1), normal(3, 4))
row("index_in_dim", lambda lax, x: lax.index_in_dim(x, -1, 0, keepdims=False), normal(3, 4))
row(
    "dynamic_slice",
    lambda lax, x, i, j: lax.dynamic_slice(x, (i, j), (2, 3)),
    lambda d: (normal(4, 5, dtype=d), integers(-2, 5), integers(-3, 6)),
    dtypes=ALL,
)
row("dynamic_slice vector", lambda lax, x, i: lax.dynamic_slice(x, i, (2, 3)), normal(4, 5), integers(-2, 5, 2))
row(
    "dynamic_slice unsigned",
    lambda lax, x, i: lax.dynamic_slice(x, (i, i), (2, 3)),
    normal(4, 5),
    integers(0, 4, dtype=U8),
)
row(
    "dynamic_slice clamped",
    lambda lax, x, i: lax.dynamic_slice(x, (i, -2), (2, 2), allow_negative_indices=(False, True)),
    normal(4, 5),
    integers(-9, 9),
)
row("dynamic_slice_in_dim", lambda lax, x, i: lax.dynamic_slice_in_dim(x, i, 2, axis=1), normal(3, 4), integers(-2, 4))
row(
    "dynamic_index_in_dim",
    lambda lax, x, i: lax.dynamic_index_in_dim(x, i, 1, keepdims=False),
    normal(3, 4),
    integers(-4, 4),
)
row(
    "dynamic_update_slice",
    lambda lax, x, u, i, j: lax.dynamic_update_slice(x, u, (i, j)),
    lambda d: (normal(4, 5, dtype=d), normal(2, 3, dtype=d), integers(-2, 5), integers(-3, 6)),
    dtypes=ALL,
)
row(
    "dynamic_update_slice_in_dim",
    lambda lax, x, u, i: lax.dynamic_update_slice_in_dim(x, u, i, 1),
    normal(3, 5),
    normal(2, 2),
    integers(-2, 5),
)
row(
    "dynamic_update_index_in_dim",
    lambda lax, x, u, i: lax.dynamic_update_index_in_dim(x, u, i, 1),
    normal(3, 5),
    normal(3),
    integers(-2, 5),
)
row(
    "pad",
    lambda lax, x, v: lax.pad(x, v, ((1, 2, 1), (0, 1, 0))),
    lambda d: (normal(2, 3, dtype=d), normal(dtype=d)),
    dtypes=ALL,
)
row("pad negative", lambda lax, x, v: lax.pad(x, v, ((-1, 2, 2), (1, -2, 1))), normal(4, 5), normal())
row("pad literal", lambda lax, x: lax.pad(x, 1.5, ((-1, 1, 0),)), normal(4))
row(
    "concatenate",
    lambda lax, *xs: lax.concatenate(xs, 1),
    lambda d: (normal(2, 3, dtype=d), normal(2, 1, dtype=d), normal(2, 2, dtype=d)),
    dtypes=ALL,
)
row("split", lambda lax, x: lax.split(x, (2, 0, 3), axis=1), lambda d: (normal(2, 5, dtype=d),), dtypes=ALL)
row("rev", lambda lax, x: lax.rev(x, (0, 2)), lambda d: (normal(2, 3, 2, dtype=d),), dtypes=ALL)
row("sorted slices", lambda lax, x: lax.sort(lax.slice(x, (0,), (6,), (2,))), distinct(7))

row("stack", lambda lax, x, y: lax.stack([x, y], 1), normal(2, 3), normal(2, 3), derivatives=1)
row("unstack", lambda lax, x: lax.unstack(x, -1), normal(2, 3), derivatives=1)
row("tile", lambda lax, x: lax.tile(x, (2, 1, 3)), normal(2, 1, 2), derivatives=1)
row("broadcast_to_rank", lambda lax, x: lax.broadcast_to_rank(x, 4), normal(2, 3), derivatives=1)
row(
    "index_take",
    lambda lax, x, i, j: lax.index_take(x, (i, j), (0, 2)),
    normal(2, 3, 4),
    integers(-2, 4, 3),
    integers(-5, 5, 3),
    derivatives=1,
)
