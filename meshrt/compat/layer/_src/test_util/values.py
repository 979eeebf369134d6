"""Random arrays with what tests look for in them, of shapes that may stand for scalars of NumPy or Python.

`rand_<kind>(rng, ...)` gives a sampler: a function of a shape and a dtype.
"""

from __future__ import annotations

import dataclasses
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

Rng = np.random.RandomState
Sampler = Callable[..., Any]


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
    return bool(np.asarray(np.zeros((), dtype).item()).dtype == dtype)


def dims_of_shape(shape: Any) -> Sequence[int]:
    """A shape as a sequence of sizes."""
    if isinstance(shape, ScalarShape):
        return ()
    sizes = shape if np.ndim(shape) else (shape,)
    if not isinstance(sizes, (list, tuple)):
        raise errors.ArgumentTypeError(f"{shape!r} of type {type(shape)} is no shape")
    return sizes


def cast_to_shape(value: Any, shape: Any, dtype: Any) -> Any:
    """A value as the scalar, or array, that `shape` stands for."""
    if isinstance(shape, ScalarShape):
        scalar = np.asarray(value)[()]
        return scalar.item() if shape is PYTHON_SCALAR_SHAPE else np.dtype(dtype).type(scalar)
    if np.shape(value) != _sizes(shape):
        raise AssertionError(f"a value of shape {np.shape(value)} where {shape} is wanted")
    return value


def dtype_str(dtype: Any) -> str:
    """The name of a dtype."""
    return str(np.dtype(dtype).name)


def format_shape_dtype_string(shape: Any, dtype: Any) -> str:
    """`float32[2,3]`, `pyint32`, `float32`: for the names of tests."""
    name = dtype_str(dtype)
    if isinstance(shape, ScalarShape):
        return f"py{name}" if shape is PYTHON_SCALAR_SHAPE else name
    sizes = str(shape) if isinstance(shape, np.ndarray) else ",".join(map(str, dims_of_shape(shape)))
    return f"{name}[{sizes}{',' if isinstance(shape, int) else ''}]"


def _sizes(shape: Any) -> tuple[int, ...]:
    return tuple(dims_of_shape(shape))


def _as_is(x: np.ndarray) -> np.ndarray:
    return x


@dataclasses.dataclass(frozen=True, eq=False)
class _Numbers:
    """A sampler of numbers drawn one by one: times what, and how the array of them is changed in the end.

    The two parts of complex numbers are drawn one after the other; what has no sign takes the absolute value.
    """

    draw: Callable[..., Any]
    scale: float = 1.0
    post: Callable[[np.ndarray], Any] = _as_is

    def __call__(self, shape: Any, dtype: Any, scale: float | None = None, post: Any = None) -> Any:
        values: np.ndarray = np.empty(_sizes(shape), dtype)
        for part in (values.real, values.imag) if np.iscomplexobj(values) else (values,):
            drawn = self.draw(*values.shape)
            size = np.abs(drawn) if dtypes.issubdtype(dtype, np.unsignedinteger) else drawn
            with np.errstate(invalid="ignore"):  # narrow integers do not hold all that is drawn
                part[...] = np.asarray(size * (self.scale if scale is None else scale)).astype(part.dtype)
        return cast_to_shape(np.asarray((post or self.post)(values), dtype), shape, dtype)


def _maker(
    name: str, draw: str, scale: float, says: str, post: Callable[[np.ndarray], Any] = _as_is
) -> Callable[[Rng], Sampler]:
    def make(rng: Rng) -> Sampler:
        return _Numbers(getattr(rng, draw), scale, post)

    make.__name__ = make.__qualname__ = name  # which names of cases have in them
    make.__doc__ = says
    return make


rand_nonzero = _maker(
    "rand_nonzero", "randn", 3, "Normal numbers, ones for zeros.", lambda x: np.where(x == 0, np.ones_like(x), x)
)
rand_positive = _maker("rand_positive", "rand", 2, "Numbers from 1 to 3.", lambda x: 1 + x)
rand_small = _maker("rand_small", "randn", 1e-3, "Normal numbers of about a thousandth.")
rand_small_positive = _maker("rand_small_positive", "rand", 2e-5, "Numbers from 0 to 2e-5.")


def rand_default(rng: Rng, scale: float = 3) -> Sampler:
    """Normal numbers."""
    return _Numbers(rng.randn, scale)


def rand_not_small(rng: Rng, offset: float = 10.0) -> Sampler:
    """Normal numbers, each moved away from zero by `offset`."""
    return _Numbers(rng.randn, 3, lambda x: x + offset * np.where(x > 0, 1, -1))


def rand_uniform(rng: Rng, low: float = 0.0, high: float = 1.0) -> Sampler:
    """Numbers from `low` to `high`."""
    if not low < high:
        raise AssertionError(f"nothing lies from {low} to {high}")
    return _Numbers(rng.rand, 1.0, lambda x: low + x * (high - low))


def rand_some_equal(rng: Rng) -> Sampler:
    """Normal numbers, about half of which are the first one."""

    def post(x: np.ndarray) -> Any:
        again = rng.rand(*x.shape) < 0.5
        return np.where(again, x.flat[0], x) if x.size else x

    return _Numbers(rng.randn, 100, post)


@dataclasses.dataclass(frozen=True, eq=False)
class _Peppered:
    """A sampler of normal numbers with special values in place of some: each value and its share of the elements.

    `in_parts`: both parts of complex numbers have them; otherwise complex numbers have none, as integers have not.
    """

    rng: Rng
    shares: dict[float, float]
    in_parts: bool = False

    def __call__(self, shape: Any, dtype: Any) -> Any:
        values = np.asarray(rand_default(self.rng)(_sizes(shape), dtype))
        if dtypes.issubdtype(dtype, np.floating):
            self._sprinkle(values)
        elif self.in_parts and np.iscomplexobj(values):
            self._sprinkle(values.real)
            self._sprinkle(values.imag)
            lost = np.isnan(values.imag)  # a sum of the two parts has none either
            values.real[lost] = values.imag[lost]
        return cast_to_shape(values, shape, dtype)

    def _sprinkle(self, values: np.ndarray) -> None:
        found = np.searchsorted(np.cumsum([*self.shares.values()]), self.rng.rand(*values.shape), side="right")
        for i, special in enumerate(self.shares):
            values[found == i] = special


# The later of two values that fall on one element stays, so the earlier has a little less.
def rand_some_inf(rng: Rng) -> Sampler:
    """Normal numbers and infinities of both signs."""
    return _Peppered(rng, {-np.inf: 0.1, np.inf: 0.09})


def rand_some_nan(rng: Rng) -> Sampler:
    """Normal numbers and NaNs of both signs, in complex numbers too."""
    return _Peppered(rng, {np.nan: 0.05, -np.nan: 0.05}, in_parts=True)


def rand_some_inf_and_nan(rng: Rng) -> Sampler:
    """Normal numbers, infinities and NaNs."""
    return _Peppered(rng, {np.nan: 0.1, -np.inf: 0.09, np.inf: 0.081})


def rand_some_zero(rng: Rng) -> Sampler:
    """Normal numbers and, about as many, zeros."""

    def sample(shape: Any, dtype: Any) -> Any:
        kept = rng.rand(*_sizes(shape)) >= 0.5
        return rand_default(rng)(shape, dtype, post=lambda x: np.where(kept, x, np.zeros_like(x)))

    return sample


def rand_bool(rng: Rng) -> Sampler:
    """True and False, about as often."""
    return lambda shape, dtype: cast_to_shape(
        np.less(rng.rand(*_sizes(shape)), 0.5, dtype=bool).astype(dtype), shape, dtype
    )


def rand_fullrange(rng: Rng, standardize_nans: bool = False) -> Sampler:
    """Values of any bits; with `standardize_nans` all NaNs are the one that NumPy writes."""

    def sample(shape: Any, dtype: Any, post: Callable[[np.ndarray], np.ndarray] = _as_is) -> Any:
        dtype, sizes = np.dtype(dtype), _sizes(shape)
        drawn = rng.randint(255, size=math.prod(sizes) * dtype.itemsize, dtype=np.uint8)
        values = post(drawn).view(dtype).reshape(sizes)
        # Integers of Python's become signed ones, the widest of which holds but half of the unsigned range.
        widest = 8 if config.settings.enable_x64 else 4
        if shape is PYTHON_SCALAR_SHAPE and dtype.kind == "u" and dtype.itemsize >= widest:
            values = values.astype(f"int{8 * dtype.itemsize}")
        if standardize_nans and np.issubdtype(dtype, np.floating):
            values[np.isnan(values)] = np.nan
        return cast_to_shape(values, shape, dtype)

    return sample


def rand_int(rng: Rng, low: int = 0, high: int | None = None) -> Sampler:
    """Integers from `low` to below `high`. Without either: to below the greatest of the integer dtype."""

    def sample(shape: Any, dtype: Any) -> Any:
        drawn_as = np.dtype(dtype if np.issubdtype(dtype, np.integer) else np.int64)
        end = high
        if high is None and low == 0:
            if drawn_as != np.dtype(dtype):
                raise errors.ArgumentValueError(f"rand_int: {np.dtype(dtype)} has no greatest integer; pass `high`")
            end = np.iinfo(drawn_as).max
        return rng.randint(low, end, _sizes(shape), drawn_as).astype(dtype)

    return sample


def rand_unique_int(rng: Rng, high: int | None = None) -> Sampler:
    """Integers below `high`, or else below the number of elements, none of them twice."""

    def sample(shape: Any, dtype: Any) -> Any:
        sizes = _sizes(shape)
        return rng.permutation(high or math.prod(sizes))[: math.prod(sizes)].reshape(sizes).astype(dtype)

    return sample


def rand_indices_unique_along_axis(rng: Rng) -> Sampler:
    """Indices into `dim` elements, none of them twice along an axis; with `allow_negative` some count from the end."""

    def sample(dim: int, shape: Sequence[int], axis: int, allow_negative: bool = True) -> np.ndarray:
        indices: np.ndarray = np.empty(tuple(shape), np.int64)
        rows = np.moveaxis(indices, axis, -1)
        for place in np.ndindex(rows.shape[:-1]):
            rows[place] = rng.permutation(dim)[: shape[axis]]
        return indices - dim * rng.randint(2, size=indices.shape) if allow_negative else indices

    return sample
