"""Random arrays with what tests look for in them, of shapes that may stand for scalars of NumPy or Python."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from meshrt import config, dtypes, errors

__all__ = [
    "NUMPY_SCALAR_SHAPE", "PYTHON_SCALAR_SHAPE", "ScalarShape", "cast_to_shape", "dims_of_shape", "dtype_str",
    "format_shape_dtype_string", "is_valid_shape", "rand_bool", "rand_default", "rand_fullrange",
    "rand_indices_unique_along_axis", "rand_int", "rand_nonzero", "rand_not_small", "rand_positive", "rand_small",
    "rand_small_positive", "rand_some_equal", "rand_some_inf", "rand_some_inf_and_nan", "rand_some_nan",
    "rand_some_zero", "rand_uniform", "rand_unique_int",
]  # fmt: skip

Sampler = Callable[..., Any]
# How many of the elements are special, in samplers that have some.
_SOME = 0.1


class ScalarShape:
    """A shape without dimensions that says which kind of scalar is meant."""

    def __init__(self, name: str):
        self.name = name

    def __len__(self) -> int:
        return 0

    def __getitem__(self, i: int) -> int:
        raise errors.JAXIndexError(f"index {i} out of range: a scalar has no dimensions")

    def __repr__(self) -> str:
        return self.name


NUMPY_SCALAR_SHAPE, PYTHON_SCALAR_SHAPE = ScalarShape("NUMPY_SCALAR_SHAPE"), ScalarShape("PYTHON_SCALAR_SHAPE")


def is_valid_shape(shape: Any, dtype: Any) -> bool:
    """Whether there are values of the shape and dtype: scalars of Python's have few dtypes."""
    if shape is not PYTHON_SCALAR_SHAPE:
        return True
    return bool(dtype == np.dtype(type(np.zeros((), dtype).item())))


def dims_of_shape(shape: Any) -> Sequence[int]:
    """A shape as a sequence of sizes."""
    if isinstance(shape, ScalarShape):
        return ()
    if type(shape) in (list, tuple):
        return shape  # type: ignore[no-any-return]
    if np.ndim(shape) == 0:
        return (shape,)
    raise errors.ArgumentTypeError(f"{shape!r} of type {type(shape)} is no shape")


def cast_to_shape(value: Any, shape: Any, dtype: Any) -> Any:
    """A value as the scalar, or array, that `shape` stands for."""
    if shape is NUMPY_SCALAR_SHAPE:
        return np.dtype(dtype).type(value)
    if shape is PYTHON_SCALAR_SHAPE:
        return np.asarray(value).item()
    assert np.shape(value) == tuple(dims_of_shape(shape))
    return value


def dtype_str(dtype: Any) -> str:
    """The name of a dtype."""
    return str(np.dtype(dtype).name)


def format_shape_dtype_string(shape: Any, dtype: Any) -> str:
    """`float32[2,3]`, `pyint32`, `float32`: for the names of tests."""
    name = dtype_str(dtype)
    if shape is NUMPY_SCALAR_SHAPE:
        return name
    if shape is PYTHON_SCALAR_SHAPE:
        return "py" + name
    if isinstance(shape, np.ndarray):
        return f"{name}[{shape}]"
    sizes = f"{shape}," if isinstance(shape, int) else ",".join(map(str, dims_of_shape(shape)))
    return f"{name}[{sizes}]"


def _sampler(draw: Callable[..., Any], scale: float = 1.0, post: Callable[[Any], Any] = lambda x: x) -> Sampler:
    def sample(shape: Any, dtype: Any, scale: float = scale, post: Callable[[Any], Any] = post) -> Any:
        def real() -> np.ndarray:
            drawn = draw(*dims_of_shape(shape))
            drawn = abs(drawn) if dtypes.issubdtype(dtype, np.unsignedinteger) else drawn
            return np.asarray(scale * drawn).astype(dtype)

        values = real() + 1.0j * real() if dtypes.issubdtype(dtype, np.complexfloating) else real()
        return cast_to_shape(np.asarray(post(values), dtype), shape, dtype)

    return sample


def rand_default(rng: np.random.RandomState, scale: float = 3) -> Sampler:
    """Normal numbers."""
    return _sampler(rng.randn, scale)


def rand_nonzero(rng: np.random.RandomState) -> Sampler:
    """Normal numbers with ones in place of zeros."""
    return _sampler(rng.randn, 3, lambda x: np.where(x == 0, np.ones((), x.dtype), x))


def rand_positive(rng: np.random.RandomState) -> Sampler:
    """Numbers from 1 to 3."""
    return _sampler(rng.rand, 2, lambda x: x + 1)


def rand_small(rng: np.random.RandomState) -> Sampler:
    """Normal numbers of about a thousandth."""
    return _sampler(rng.randn, 1e-3)


def rand_not_small(rng: np.random.RandomState, offset: float = 10.0) -> Sampler:
    """Normal numbers moved away from zero."""
    return _sampler(rng.randn, 3.0, lambda x: x + np.where(x > 0, offset, -offset))


def rand_small_positive(rng: np.random.RandomState) -> Sampler:
    """Numbers from 0 to 2e-5."""
    return _sampler(rng.rand, 2e-5)


def rand_uniform(rng: np.random.RandomState, low: float = 0.0, high: float = 1.0) -> Sampler:
    """Numbers between two."""
    assert low < high
    return _sampler(rng.rand, 1.0, lambda x: x * (high - low) + low)


def rand_some_equal(rng: np.random.RandomState) -> Sampler:
    """Normal numbers, about half of which equal the first."""

    def post(x: np.ndarray) -> Any:
        return np.where(rng.rand(*x.shape) < 0.5, x.ravel()[0], x) if x.size else x

    return _sampler(rng.randn, 100.0, post)


def _with(rng: np.random.RandomState, *special: float) -> Sampler:
    """Normal numbers, some of floating types replaced by each of `special`."""
    base = rand_default(rng)

    def sample(shape: Any, dtype: Any) -> Any:
        if dtypes.issubdtype(dtype, np.complexfloating):
            part = np.zeros((), dtype).real.dtype
            both = np.empty(tuple(dims_of_shape(shape)), dtype)
            both.real, both.imag = sample(both.shape, part), sample(both.shape, part)
            return cast_to_shape(both, shape, dtype)
        if not dtypes.issubdtype(dtype, np.floating):
            return base(shape, dtype)
        chosen = [rng.rand(*dims_of_shape(shape)) < _SOME for _ in special]
        values = base(shape, dtype)
        for where, value in zip(chosen, special):
            values = np.where(where, np.asarray(value, dtype), values)
        return cast_to_shape(np.asarray(values, dtype), shape, dtype)

    return sample


def rand_some_inf(rng: np.random.RandomState) -> Sampler:
    """Normal numbers and infinities of both signs."""
    return _with(rng, np.inf, -np.inf)


def rand_some_nan(rng: np.random.RandomState) -> Sampler:
    """Normal numbers and NaNs of both signs."""
    return _with(rng, np.nan, -np.nan)


def rand_some_inf_and_nan(rng: np.random.RandomState) -> Sampler:
    """Normal numbers, infinities and NaNs."""
    return _with(rng, np.inf, -np.inf, np.nan)


def rand_some_zero(rng: np.random.RandomState) -> Sampler:
    """Normal numbers and, about as many, zeros."""
    base = rand_default(rng)

    def sample(shape: Any, dtype: Any) -> Any:
        zero = rng.rand(*dims_of_shape(shape)) < 0.5
        values = np.where(zero, np.zeros((), dtype), base(shape, dtype))
        return cast_to_shape(np.asarray(values, dtype), shape, dtype)

    return sample


def rand_fullrange(rng: np.random.RandomState, standardize_nans: bool = False) -> Sampler:
    """Numbers of any bits; NaNs as NumPy writes them if asked for."""

    def sample(shape: Any, dtype: Any, post: Callable[[Any], Any] = lambda x: x) -> Any:
        dtype = np.dtype(dtype)
        size = dtype.itemsize * math.prod(dims_of_shape(shape))
        values = post(rng.randint(0, 255, size=size, dtype=np.uint8)).view(dtype)
        if (
            shape is PYTHON_SCALAR_SHAPE
            and dtype.kind == "u"
            and (dtype.itemsize == 8 or not config.settings.enable_x64)
        ):
            values = values.astype(dtype.name[1:])  # Python's numbers become signed ones, which hold no more
        values = values.reshape(tuple(dims_of_shape(shape)))
        if standardize_nans and np.issubdtype(dtype, np.floating):
            values[np.isnan(values)] = np.nan
        return cast_to_shape(values, shape, dtype)

    return sample


def rand_int(rng: np.random.RandomState, low: int = 0, high: int | None = None) -> Sampler:
    """Integers from `low` up to below `high`, which is the greatest of an integer dtype if not given."""

    def sample(shape: Any, dtype: Any) -> Any:
        is_integer, end = np.issubdtype(dtype, np.integer), high
        if end is None and low == 0:
            if not is_integer:
                raise errors.ArgumentValueError("rand_int needs `high` for dtypes that are no integers")
            end = np.iinfo(dtype).max
        return rng.randint(low, high=end, size=shape, dtype=dtype if is_integer else np.int64).astype(dtype)

    return sample


def rand_unique_int(rng: np.random.RandomState, high: int | None = None) -> Sampler:
    """Different integers below `high`, or below the number of elements."""
    return lambda shape, dtype: rng.choice(np.arange(high or math.prod(shape), dtype=dtype), size=shape, replace=False)


def rand_indices_unique_along_axis(rng: np.random.RandomState) -> Sampler:
    """Indices into `dim` elements, no two alike along an axis. Some count from the end, if `allow_negative`."""

    def sample(dim: int, shape: Sequence[int], axis: int, allow_negative: bool = True) -> np.ndarray:
        axis %= len(shape)
        others = [n for i, n in enumerate(shape) if i != axis]
        rows = [rng.choice(dim, size=shape[axis], replace=False) for _ in range(math.prod(others))]
        indices = np.moveaxis(np.reshape(rows, (*others, shape[axis])), -1, axis).astype(np.int64)
        if allow_negative:
            indices = indices - dim * rng.choice([0, 1], indices.shape)
        return indices

    return sample


def rand_bool(rng: np.random.RandomState) -> Sampler:
    """True and False, about as often."""

    def sample(shape: Any, dtype: Any) -> Any:
        return cast_to_shape(np.asarray(rng.rand(*dims_of_shape(shape)) < 0.5, dtype), shape, dtype)

    return functools.wraps(rand_bool)(sample)
