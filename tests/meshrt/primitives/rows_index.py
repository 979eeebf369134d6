"""Rows of the gather, sort and cumulative families."""

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
    choice,
    distinct,
    fixed,
    integers,
    normal,
    uniform,
    with_dtypes,
)  # fmt: skip

CASES: list[Case] = []


def row(name, fun, *args, dtypes=None, **options):
    if dtypes is None:
        CASES.append(Case(f"{name}-float32", fun, args, **options))
    else:
        CASES.extend(with_dtypes(lambda d: Case(name, fun, args[0](d), **options), dtypes))


ALL = (F32, BF16, I32, U8, BOOL, C64)

# name: (gather numbers, slice sizes, operand shape, index shape)
LAYOUTS = {
    "rows": (((1,), (0,), (0,)), (1, 3), (5, 3), (4, 1)),
    "points": (((), (0, 1), (0, 1)), (1, 1), (5, 3), (4, 2)),
    "windows": (((1, 2), (), (0, 1)), (2, 2), (5, 4), (3, 2)),
    "columns": (((0,), (1,), (1,)), (3, 1), (3, 5), (4, 1)),
    "grid of rows": (((1,), (0,), (0,)), (1, 3), (5, 3), (2, 3, 1)),
    "batched": (((), (1,), (1,), (0,), (0,)), (1, 1), (3, 5), (3, 2, 1)),
    "batched second": (((1,), (0,), (0,), (2,), (1,)), (1, 4, 1), (5, 4, 3), (2, 3, 1)),
}


def gather_numbers(lax, layout):
    return lax.GatherDimensionNumbers(*LAYOUTS[layout][0])


def scatter_numbers(lax, layout):
    return lax.ScatterDimensionNumbers(*LAYOUTS[layout][0])


def updates_shape(layout):
    (offset, *rest), sizes, _, indices = LAYOUTS[layout]
    hidden = {*rest[0], *(rest[2] if len(rest) > 2 else ())}
    window = iter([s for i, s in enumerate(sizes) if i not in hidden])
    batch = iter(indices[:-1])
    return tuple(next(window) if i in offset else next(batch) for i in range(len(offset) + len(indices) - 1))


for _layout, (_, _sizes, _shape, _indices) in LAYOUTS.items():
    for _mode in ("clip", "fill", "promise_in_bounds"):
        _low, _high = (0, 3) if _mode == "promise_in_bounds" else (-2, 8)
        row(
            f"gather {_layout} {_mode}",
            lambda lax, x, i, l=_layout, s=_sizes, m=_mode: lax.gather(
                x, i, gather_numbers(lax, l), s, mode=m, fill_value=0.5
            ),
            normal(*_shape),
            integers(_low, _high, *_indices),
        )
row(
    "gather fill",
    lambda lax, x, i: lax.gather(x, i, gather_numbers(lax, "rows"), (1, 3), mode="fill"),
    lambda d: (normal(5, 3, dtype=d), integers(-2, 8, 4, 1)),
    dtypes=ALL,
    finite=False,
)
row(
    "gather fill value",
    lambda lax, x, i: lax.gather(x, i, gather_numbers(lax, "rows"), (1, 3), mode="fill", fill_value=7),
    lambda d: (normal(5, 3, dtype=d), integers(-2, 8, 4, 1)),
    dtypes=(F32, I32, C64),
)
row(
    "gather small indices",
    lambda lax, x, i: lax.gather(x, i, gather_numbers(lax, "rows"), (1, 2), mode="fill"),
    normal(300, 2),
    integers(0, 256, 4, 1, dtype=U8),
    derivatives=0,  # JAX's loses cotangents of rows from 44 on (`test_lax_operands`)
)
row(
    "gather no indexed dimension",
    lambda lax, x, i: lax.gather(x, i, lax.GatherDimensionNumbers((1,), (), ()), (3,), mode="fill"),
    normal(3),
    integers(0, 1, 2, 0),
)

_UNIQUE = choice(np.array([[0], [3], [1], [4]], np.int32), np.array([[2], [0], [9], [1]], np.int32))
for _name in ("scatter", "scatter_add", "scatter_sub", "scatter_mul", "scatter_min", "scatter_max"):
    for _layout, (_, _, _shape, _indices) in LAYOUTS.items():
        _mode = {"rows": "clip", "columns": "promise_in_bounds"}.get(_layout, "drop")
        # With overlapping windows, only addition is differentiable in the updates on both sides.
        _order = {"scatter_add": 2, "scatter_sub": 2, "scatter": 1, "scatter_mul": 0}.get(_name, 1)
        row(
            f"{_name} {_layout} {_mode}",
            lambda lax, x, i, u, n=_name, l=_layout, m=_mode: getattr(lax, n)(x, i, u, scatter_numbers(lax, l), mode=m),
            normal(*_shape),
            integers(*((0, 3) if _mode == "promise_in_bounds" else (-2, 8)), *_indices),
            normal(*updates_shape(_layout)),
            derivatives=_order,
            finite=_name != "scatter",
            # JAX's rule for extrema reads back without clipping and gives NaN.
            trusted=not (_mode == "clip" and _name in ("scatter_min", "scatter_max")),
        )
    row(
        f"{_name} unique",
        lambda lax, x, i, u, n=_name: getattr(lax, n)(x, i, u, scatter_numbers(lax, "rows"), unique_indices=True),
        lambda d: (normal(5, 3, dtype=d), _UNIQUE, normal(4, 3, dtype=d)),
        dtypes=(F32, BF16, I32, U8) if _name in ("scatter_min", "scatter_max") else (F32, BF16, I32, C64),
        derivatives=1 if _name in ("scatter_min", "scatter_max") else 2,
    )
row(
    "ties of scatter_max",
    lambda lax, x, i, u: lax.scatter_max(x, i, u, lax.ScatterDimensionNumbers((), (0,), (0,))),
    fixed(np.array([1, 2, 3, 0], np.float32), smooth=True),
    fixed(np.array([[0], [0], [1], [3], [3]], np.int32)),
    fixed(np.array([1, 1, 5, 2, 2], np.float32), mapped=True, smooth=True),
    derivatives=1,
    finite=False,
)
row(
    "scatter_mul operand only",
    lambda lax, x, i, u: lax.scatter_mul(x, i, u, scatter_numbers(lax, "points")),
    normal(5, 3),
    integers(-1, 6, 4, 2),
    fixed(np.array([0.5, 2, 3, -1], np.float32)),
)

# Sort.
row("sort", lambda lax, x: lax.sort(x, dimension=0), lambda d: (distinct(5, 2, dtype=d),), dtypes=(F32, *FLOATS))
row("sort", lambda lax, x: lax.sort(x), lambda d: (normal(3, 5, dtype=d),), dtypes=(I32, U8, BOOL, C64), derivatives=0)
row("sort two keys", lambda lax, x, y, z: lax.sort((x, y, z), num_keys=2), integers(0, 2, 6), distinct(6), normal(6))
row("sort_key_val", lambda lax, x, y: lax.sort_key_val(x, y, dimension=0), distinct(5, 2), normal(5, 2))
row(
    "sort special values",
    lambda lax, x: lax.sort((x, lax.iota(np.int32, 9)), num_keys=1),
    fixed(np.array([np.nan, 0.0, -0.0, np.inf, -np.inf, -np.nan, 1, -0.0, 0.0], np.float32), mapped=True),
    derivatives=0,
)
row(
    "sort complex special values",
    lambda lax, x: lax.sort((x, lax.iota(np.int32, 5)), num_keys=1),
    fixed(np.array([1 + 2j, 1 - 2j, -0.0 + 1j, 0.0 - 1j, 0.0 + 1j], np.complex64), mapped=True),
    derivatives=0,
)
row("top_k", lambda lax, x: lax.top_k(x, 3), lambda d: (distinct(2, 6, dtype=d),), dtypes=(F32, BF16, I32))
row("top_k other axis", lambda lax, x: lax.top_k(x, 2, axis=0), distinct(5, 2))
row("top_k ties", lambda lax, x: lax.top_k(x, 4), integers(0, 3, 8), derivatives=0)

# Cumulative.
for _name, _dtypes in [
    ("cumsum", (F32, *FLOATS, I32, C64)),
    ("cumprod", (F32, BF16, I32)),
    ("cummax", (F32, BF16, I32, U8)),
    ("cummin", (F32, BF16, I32, U8)),
    ("cumlogsumexp", (F32, BF16, C64)),
]:
    for _axis, _reverse in ((0, False), (1, True)):
        row(
            f"{_name} axis {_axis} reverse {_reverse}",
            lambda lax, x, n=_name, a=_axis, r=_reverse: getattr(lax, n)(x, a, r),
            lambda d, n=_name: (
                distinct(3, 5, dtype=d) if n in ("cummax", "cummin") else uniform(0.5, 2, 3, 5, dtype=d),
            ),
            dtypes=_dtypes if not _reverse else (F32,),
        )
row("cumsum of one", lambda lax, x: lax.cumsum(x, 1), normal(3, 1))
row(
    "ties of cummax",
    lambda lax, x: lax.cummax(x),
    fixed(np.array([1, 1, 0, 1, 2, 2], np.float32), mapped=True, smooth=True),
    derivatives=1,
    finite=False,
)
row(
    "cumlogsumexp of infinities",
    lambda lax, x: lax.cumlogsumexp(x),
    fixed(np.array([-np.inf, -np.inf, 0, 3, -np.inf], np.float32), mapped=True),
    derivatives=0,
)
row(
    "cumlogsumexp of complex infinities and angles",
    lambda lax, x: lax.cumlogsumexp(x),
    fixed(np.array([-np.inf, -np.inf, 1 + 3j, 1 + 3.1j, -np.inf, 90 - 7j, 2], np.complex64), mapped=True),
    derivatives=0,
)
row(
    "associative_scan",
    lambda lax, x, y: lax.associative_scan(
        lambda a, b: (lax.mul(a[0], b[0]), lax.add(lax.mul(a[1], b[0]), b[1])), (x, y), axis=1
    ),
    uniform(0.5, 1.5, 2, 7),
    normal(2, 7),
)
row("associative_scan reverse", lambda lax, x: lax.associative_scan(lax.mul, x, reverse=True), uniform(0.5, 1.5, 6, 2))

row("approx_max_k", lambda lax, x: lax.approx_max_k(x, 2, 0), distinct(5, 3), derivatives=1)
row("approx_min_k", lambda lax, x: lax.approx_min_k(x, 3), distinct(2, 6), derivatives=1)
row(
    "approx_max_k candidates",
    lambda lax, x: lax.approx_max_k(x, 2, aggregate_to_topk=False),
    distinct(2, 6),
    derivatives=0,
)
