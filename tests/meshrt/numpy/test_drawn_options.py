"""A seeded sample of calls with drawn options: axes, dtypes, masks, initial values, over shapes with nothing in them.

Each is run by both libraries under strict promotion, which JAX's own tests run under.
"""

import random

import ml_dtypes
import numpy as np
import pytest

from ..beside import assert_alike

SHAPES = [(), (4,), (3, 4), (2, 1, 4), (0,), (3, 0)]
DTYPES = [bool, np.int8, np.uint8, np.int32, np.float16, np.float32, np.complex64, ml_dtypes.bfloat16]
SPECIAL = np.array([1, -2, 0, np.nan, 3, np.inf, -0.0, 2, 100, -np.inf, 0.5, 7])
ACCUMULATING = ["sum", "prod", "nansum", "nanprod", "max", "min", "nanmax", "nanmin"]
AVERAGING = ["mean", "nanmean", "var", "std", "nanvar", "nanstd"]
OTHERS = ["all", "any", "argmax", "argmin", "cumsum", "cumprod", "count_nonzero", "ptp", "sort", "argsort", "flip"]


def _operand(draw, shape, dtype):
    values = np.array([draw.choice(SPECIAL) for _ in range(int(np.prod(shape)))]).reshape(shape)
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(values, posinf=5, neginf=-5).astype(dtype) if np.dtype(dtype).kind in "iub" else (
            values.astype(dtype)
        )  # fmt: skip


def _options(draw, name, shape):
    rank = len(shape)
    options = {"axis": draw.choice([None, *range(-rank, rank), rank])}
    if name not in ("cumsum", "cumprod", "sort", "argsort", "flip"):
        options["keepdims"] = draw.random() < 0.5
    if name in AVERAGING + ["sum", "prod", "cumsum"] and draw.random() < 0.5:
        options["dtype"] = draw.choice([np.float32, np.int32, np.complex64])
    if name in ACCUMULATING and draw.random() < 0.6:
        options["initial"] = draw.choice([0, 1, 2.5])
    if name in ACCUMULATING + AVERAGING + ["all", "any"] and draw.random() < 0.4:
        options["where"] = np.array([draw.random() < 0.5 for _ in range(int(np.prod(shape[-1:])))]).reshape(shape[-1:])
    if name in ("var", "std", "nanvar") and draw.random() < 0.5:
        options["ddof"] = draw.choice([1, 2])
    return options


@pytest.mark.parametrize("seed", range(40))
def test_as_in_jax(seed):
    draw = random.Random(seed)
    name = draw.choice(ACCUMULATING + AVERAGING + OTHERS)
    shape, dtype = draw.choice(SHAPES), draw.choice(DTYPES)
    x, options = _operand(draw, shape, dtype), _options(draw, name, shape)
    loose = np.dtype(dtype).itemsize < 4 or np.dtype(dtype).kind == "c"

    def program(library):
        with library.numpy_dtype_promotion("strict"), library.numpy_rank_promotion("raise"):
            return getattr(library.numpy, name)(x, **options)

    exact = name in ("argmax", "argmin", "argsort", "count_nonzero", "all", "any")
    assert_alike(program, rtol=None if exact or not loose or np.dtype(dtype).kind in "iub" else 3e-2)
