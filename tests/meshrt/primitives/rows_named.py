"""Rows of reductions by any computation, and of what is bound by a primitive's name: programs of other primitives."""

from __future__ import annotations

import numpy as np

from tests.meshrt.primitives.cases import C64, F32, I32, U8, U32, Case, fixed, integers, normal, with_dtypes

CASES: list[Case] = []


def row(name, fun, *args, **options):
    CASES.append(Case(f"{name}-float32", fun, args, **options))


ONE, ZERO = np.float32(1), np.float32(0)


row(
    "reduce lambda",
    lambda lax, x: lax.reduce(x, ONE, lambda a, b: lax.mul(lax.mul(a, b), ONE), (0, 2)),
    normal(3, 2, 2),
)
row(
    "reduce pair",
    lambda lax, x, y: lax.reduce((x, y), (ZERO, ONE), lambda a, b: (lax.add(a[0], b[0]), lax.mul(a[1], b[1])), (1,)),
    normal(2, 5),
    normal(2, 5),
    derivatives=0,
)
row("reduce nothing", lambda lax, x: lax.reduce(x, ONE, lambda a, b: lax.mul(lax.mul(a, b), ONE), ()), normal(2, 3))
row("reduce empty", lambda lax, x: lax.reduce(x, ONE, lambda a, b: lax.mul(lax.mul(a, b), ONE), (0,)), normal(0, 3))
row("reduce from captured", lambda lax, x: lax.reduce(x, ZERO, lambda a, b: lax.add(a, b), (1,)), normal(2, 3))
for _name, _init in (("add", 0), ("mul", 1), ("max", np.iinfo(np.int32).min), ("bitwise_and", -1), ("bitwise_or", 0)):
    CASES.append(
        Case(
            f"reduce {_name}-int32",
            lambda lax, x, name=_name, init=_init: lax.reduce(x, np.int32(init), getattr(lax, name), (0,)),
            (integers(-5, 5, 3, 2, dtype=I32),),
        )
    )
row(
    "scatter_apply",
    lambda lax, x: lax.scatter_apply(
        x, np.array([[1], [1], [9]]), lambda v: lax.add(lax.mul(v, v), ONE),
        lax.ScatterDimensionNumbers((), (0,), (0,)), update_shape=(3,),
    ),
    normal(4),
    derivatives=0,
)  # fmt: skip
row("square_p", lambda lax, x: lax.square_p.bind(x), normal(2, 3))
row("stage", lambda lax, x: lax.add(lax.stage(x), x), normal(2, 3), derivatives=0)
row("tile_p", lambda lax, x: lax.tile_p.bind(x, reps=(2, 3)), normal(2, 2))
row("stack_p", lambda lax, x, y: lax.stack_p.bind(x, y, axis=1), normal(2, 3), normal(2, 3))
row("unstack_p", lambda lax, x: lax.unstack_p.bind(x, axis=1), normal(2, 3))
row("squeeze_p", lambda lax, x: lax.squeeze_p.bind(x, dimensions=(1,)), normal(2, 1, 3))
CASES.extend(
    with_dtypes(
        lambda d: Case("mulhi_p", lambda lax, x, y: lax.mulhi_p.bind(x, y), (normal(2, dtype=d), normal(2, dtype=d))),
        (I32, U32),
    )
)
CASES.append(
    Case("conj_p-complex64", lambda lax, x: lax.conj_p.bind(x, input_dtype=C64), (normal(2, dtype=C64),), derivatives=1)
)
row(
    "approx_top_k_p",
    lambda lax, x: lax.approx_top_k_p.bind(
        x, k=2, reduction_dimension=1, recall_target=0.95, is_max_k=True, reduction_input_size_override=-1,
        aggregate_to_topk=True,
    ),
    normal(2, 5),
    derivatives=0,
    vmap=False,
)  # fmt: skip
_SPECIAL = np.array([-np.nan, -np.inf, -0.0, 0.0, 1.0, np.inf, np.nan], np.float32)
_PAIRS = [np.ascontiguousarray(v) for v in np.broadcast_arrays(_SPECIAL[:, None], _SPECIAL)]
for _name in ("eq_to", "le_to", "lt_to"):
    _function = lambda lax, x, y, name=_name: getattr(lax, f"{name}_p").bind(x, y)
    row(_name, _function, *[fixed(v) for v in _PAIRS], finite=False, vmap=False)
    CASES.append(Case(f"{_name}-uint8", _function, (normal(4, dtype=U8), normal(4, dtype=U8))))
for _name in ("add", "sub", "div"):
    row(
        f"{_name}_p of stretched operands",
        lambda lax, x, y, name=_name: getattr(lax, f"{name}_p").bind(x, y),
        normal(2, 1, 3),
        normal(1, 4, 3),
    )
row("with an accuracy", lambda lax, x: lax.exp(x, accuracy=lax.AccuracyMode.HIGHEST), normal(2, 3, dtype=F32))
row("within a tolerance", lambda lax, x: lax.tanh(x, accuracy=lax.Tolerance(rtol=1e-2, ulps=2)), normal(2, 3))
row(
    "composite",
    lambda lax, x: lax.composite(lambda v, *, by: lax.mul(v, np.float32(by)), "own.scaled", 2)(x, by=3),
    normal(2, 3),
    derivatives=0,
    vmap=False,
)
