"""Rows of the elementwise family."""

from __future__ import annotations

import numpy as np

from tests.meshrt.primitives.cases import (
    BF16,
    BOOL,
    C64,
    F16,
    F32,
    FLOATS,
    I8,
    I32,
    U8,
    U32,
    Case,
    fixed,
    integers,
    normal,
    uniform,
    with_dtypes,
)  # fmt: skip

CASES: list[Case] = []
SHAPE = (2, 3)


def unary(name, low=None, high=None, dtypes=(F32, BF16), **options):
    """`lax.<name>` on normal values, or uniform ones in [low, high)."""

    def make(dtype):
        arg = normal(*SHAPE, dtype=dtype) if low is None else uniform(low, high, *SHAPE, dtype=dtype)
        return Case(name, lambda lax, x: getattr(lax, name)(x), (arg,), **options)

    CASES.extend(with_dtypes(make, dtypes))


def binary(name, dtypes=(F32, BF16, I32, U8), low=None, high=None, fun=None, **options):
    def make(dtype):
        draw = lambda: normal(*SHAPE, dtype=dtype) if low is None else uniform(low, high, *SHAPE, dtype=dtype)
        return Case(name, fun or (lambda lax, x, y: getattr(lax, name)(x, y)), (draw(), draw()), **options)

    CASES.extend(with_dtypes(make, dtypes))


unary("neg", dtypes=(F32, *FLOATS, I32, U8, C64))
unary("exp", dtypes=(F32, *FLOATS, C64))
unary("exp2")
unary("log", 0.3, 3, dtypes=(F32, BF16))
unary("log1p", -0.5, 2)
unary("expm1")
unary("sqrt", 0.3, 3)
unary("rsqrt", 0.3, 3)
unary("cbrt", 0.3, 3)
unary("sin", dtypes=(F32, BF16, C64))
unary("cos", dtypes=(F32, BF16, C64))
unary("tan", -1, 1)
unary("tanh", dtypes=(F32, BF16, C64))
unary("logistic")
unary("asin", -0.8, 0.8)
unary("acos", -0.8, 0.8)
unary("atan")
unary("sinh", -1, 1)
unary("cosh", -1, 1)
unary("asinh", -2, 2)
unary("acosh", 1.3, 3)
unary("atanh", -0.8, 0.8)
unary("erf")
unary("erfc")
unary("erf_inv", -0.8, 0.8)
unary("lgamma", 0.4, 4, dtypes=(F32,))
unary("digamma", 0.6, 4, dtypes=(F32,), scale=4)
unary("floor", finite=False)
unary("ceil", finite=False)
unary("sign", dtypes=(F32, BF16, I32, C64), finite=False)
unary("abs", 0.2, 2, dtypes=(F32, BF16))
unary("abs", dtypes=(I32, C64))
unary("is_finite", derivatives=0)
unary("bitwise_not", dtypes=(I32, U8, BOOL))
unary("population_count", dtypes=(I32, U8))
unary("clz", dtypes=(I32, U8))
unary("real", dtypes=(C64,))
unary("imag", dtypes=(C64,))
unary("conj", dtypes=(C64,))
unary("square", dtypes=(F32, BF16, I32))
unary("reciprocal", 0.4, 2)
unary("stop_gradient", dtypes=(F32,), finite=False)
for _method in ("AWAY_FROM_ZERO", "TO_NEAREST_EVEN"):
    CASES.append(Case(
        f"round {_method}-float32", lambda lax, x, m=_method: lax.round(x, getattr(lax.RoundingMethod, m)),
        (fixed(np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.7], np.float32), mapped=True, smooth=True),), finite=False,
    ))  # fmt: skip

binary("add", dtypes=(F32, *FLOATS, I32, U8, C64))
binary("sub", dtypes=(F32, BF16, I32, U8, C64))
binary("mul", dtypes=(F32, *FLOATS, I32, U8, C64))
binary("div", low=0.5, high=3)
binary("div", dtypes=(C64,))
binary("max")
binary("min")
binary("rem", dtypes=(F32, I32), low=1, high=9, finite=False)
binary("pow", dtypes=(F32, BF16), low=0.3, high=2)
binary("atan2", dtypes=(F32, BF16), low=0.3, high=2)
binary("nextafter", dtypes=(F32,), derivatives=0)
for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    binary(_name, dtypes=(I32, U8, BOOL))
for _name in ("shift_left", "shift_right_logical", "shift_right_arithmetic"):
    binary(_name, dtypes=(I32, U8), low=0, high=7)
for _name in ("eq", "ne"):
    binary(_name, dtypes=(F32, I32, U8, BOOL, C64), derivatives=0)
for _name in ("lt", "le", "gt", "ge"):
    binary(_name, dtypes=(F32, BF16, I32, U8, BOOL), derivatives=0)
binary("complex", dtypes=(F32,))
for _power in (-2, -1, 0, 1, 2, 3, 5):
    CASES.append(Case(
        f"integer_pow {_power}-float32", lambda lax, x, p=_power: lax.integer_pow(x, p), (uniform(0.5, 2, *SHAPE),)
    ))  # fmt: skip
CASES.append(
    Case("integer_pow 3-int32", lambda lax, x: lax.integer_pow(x, 3), (normal(*SHAPE, dtype=I32),), derivatives=0)
)
CASES.append(
    Case("pow int exponent-float32", lambda lax, x, y: lax.pow(x, y), (uniform(0.5, 2, *SHAPE), integers(0, 4, *SHAPE)))
)
for _order in (0, 1, 2):
    CASES.append(Case(
        f"polygamma {_order}-float32", lambda lax, x, m=_order: lax.polygamma(lax.full_like(x, m), x),
        (uniform(1, 4, *SHAPE),), derivatives=1, scale=20,
    ))  # fmt: skip

# Scalars stand for whole arrays.
CASES.append(Case("scalar times array-float32", lambda lax, x, y: lax.mul(x, y), (normal(), normal(*SHAPE))))
CASES.append(Case("array over scalar-float32", lambda lax, x, y: lax.div(x, y), (normal(*SHAPE), uniform(0.5, 2))))
CASES.append(Case("literal-float32", lambda lax, x: lax.add(lax.mul(2.0, x), 1.0), (normal(*SHAPE),)))
CASES.append(Case("ties of max-float32", lambda lax, x: lax.max(x, x), (normal(*SHAPE),), finite=False))

_CONVERSIONS = [
    (F32, I32),
    (F32, BF16),
    (I32, F32),
    (F32, BOOL),
    (BOOL, F32),
    (I32, U8),
    (F32, U8),
    (BF16, F16),
    (C64, F32),
    (F32, C64),
    (U8, I8),
    (F16, F32),
    (BOOL, I32),
    (I32, BOOL),
    (F32, U32),
    (C64, BOOL),
]
for _source, _target in _CONVERSIONS:
    _smooth = _source in (F32, BF16, F16, C64) and _target in (F32, BF16, F16, C64)
    CASES.append(Case(
        f"convert {_source.name} to {_target.name}", lambda lax, x, t=_target: lax.convert_element_type(x, t),
        (normal(*SHAPE, dtype=_source),), derivatives=1 if _smooth else 0,
    ))  # fmt: skip
for _source, _target, _shape in [
    (F32, I32, (2, 3)),
    (F32, np.dtype("uint16"), (2, 3)),
    (U8, U32, (3, 4)),
    (U8, U8, (3,)),
]:
    CASES.append(Case(
        f"bitcast {_source.name} to {_target.name}", lambda lax, x, t=_target: lax.bitcast_convert_type(x, t),
        (normal(*_shape, dtype=_source),), derivatives=0,
        vmap=_source != U8,  # JAX moves a last batch dimension wrongly
    ))  # fmt: skip
CASES.append(
    Case("reduce_precision-float32", lambda lax, x: lax.reduce_precision(x, 5, 4), (normal(*SHAPE),), finite=False)
)

CASES += with_dtypes(
    lambda d: Case("select_n", lambda lax, w, x, y: lax.select_n(w, x, y),
                   (normal(*SHAPE, dtype=BOOL), normal(*SHAPE, dtype=d), normal(*SHAPE, dtype=d))),
    (F32, BF16, I32, BOOL, C64),
)  # fmt: skip
CASES.append(
    Case(
        "select_n scalar predicate-float32",
        lambda lax, w, x, y: lax.select_n(w, x, y),
        (normal(dtype=BOOL), normal(*SHAPE), normal(*SHAPE)),
    )
)
CASES.append(
    Case(
        "select_n of four-float32",
        lambda lax, w, *xs: lax.select_n(w, *xs),
        (integers(0, 4, *SHAPE), *[normal(*SHAPE) for _ in range(4)]),
    )
)
CASES.append(
    Case(
        "select-float32",
        lambda lax, w, x, y: lax.select(w, x, y),
        (normal(*SHAPE, dtype=BOOL), normal(*SHAPE), normal(*SHAPE)),
    )
)
CASES += with_dtypes(
    lambda d: Case("clamp", lambda lax, a, x, b: lax.clamp(a, x, b),
                   (uniform(-2, -0.2, *SHAPE, dtype=d), normal(*SHAPE, dtype=d), uniform(0.2, 2, *SHAPE, dtype=d))),
    (F32, I32),
)  # fmt: skip
CASES.append(
    Case(
        "clamp scalar bounds-float32",
        lambda lax, a, x, b: lax.clamp(a, x, b),
        (uniform(-1, -0.2, smooth=False), normal(*SHAPE), uniform(0.2, 1, smooth=False)),
    )
)
CASES.append(
    Case(
        "optimization_barrier-float32", lambda lax, x, y: lax.optimization_barrier((x, y)), (normal(*SHAPE), normal(4))
    )
)
unary("bessel_i0e", -12, 12, scale=4)
unary("bessel_i1e", 0.5, 12, scale=4)
binary("zeta", dtypes=(F32,), low=1.5, high=4, fun=lambda lax, x, y: lax.zeta(lax.stop_gradient(x), y), derivatives=0)
binary("igamma", dtypes=(F32, BF16), low=0.3, high=4, derivatives=1, scale=4)
binary("igammac", dtypes=(F32, BF16), low=0.3, high=4, derivatives=1, scale=4)
binary("igamma_grad_a", dtypes=(F32,), low=0.3, high=4, derivatives=0, scale=4)
binary("random_gamma_grad", dtypes=(F32,), low=0.3, high=4, derivatives=0, scale=4)
CASES.append(Case(
    "betainc-float32", lambda lax, a, b, x: lax.betainc(lax.stop_gradient(a), lax.stop_gradient(b), x),
    (uniform(0.5, 4, *SHAPE, smooth=False), uniform(0.5, 4, *SHAPE, smooth=False), uniform(0.1, 0.9, *SHAPE)),
    derivatives=2, scale=8,
))  # fmt: skip
