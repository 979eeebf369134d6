"""`jax._src.internal_test_util.lax_test_util`: operations that tests go through; batches by hand."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from meshrt import lax
from meshrt.compat.layer._src import test_util as jtu
from meshrt.compat.layer._src.util import safe_map
from meshrt.contexts import enable_x64
from meshrt.numpy.names import missing as _missing

_kinds = jtu.dtypes
float_dtypes = _kinds.all_floating
complex_elem_dtypes = _kinds.floating
complex_dtypes = _kinds.complex
inexact_dtypes = _kinds.all_inexact
int_dtypes = _kinds.all_integer
uint_dtypes = _kinds.all_unsigned
bool_dtypes = _kinds.boolean
default_dtypes = float_dtypes + int_dtypes
number_dtypes = float_dtypes + complex_dtypes + int_dtypes + uint_dtypes
all_dtypes = number_dtypes + bool_dtypes
python_scalar_types = [bool, int, float, complex]
compatible_shapes = [[(5,)], [(2, 5), (2, 1), (1, 5)], [(3, 2, 5), (3, 1, 5)]]


class OpRecord(NamedTuple):
    """An operation of `nargs` operands by its name, the dtypes it takes, what makes operands, and how near is equal."""

    op: str
    nargs: int
    dtypes: Sequence[Any]
    rng_factory: Callable[..., Any]
    tol: Any


class ReducerOpRecord(NamedTuple):
    """What `lax.reduce` takes, with NumPy's function and the primitive that it becomes."""

    op: Callable[..., Any]
    reference_op: Callable[..., Any]
    init_val: Any
    dtypes: Sequence[Any]
    primitive: Any


class NamedReducerOpRecord(NamedTuple):
    """A reduction with a name of its own, and NumPy's."""

    op: Callable[..., Any]
    reference_op: Callable[..., Any]
    dtypes: Sequence[Any]


def op_record(op: str, nargs: int, dtypes: Sequence[Any], rng_factory: Callable[..., Any], tol: Any = None) -> OpRecord:
    """An `OpRecord`."""
    return OpRecord(op, nargs, dtypes, rng_factory, tol)


_f32, _f64, _c64, _c128 = np.float32, np.float64, np.complex64, np.complex128


def _float_ops() -> Iterator[OpRecord]:
    f, inexact, some, positive, small = (
        float_dtypes, inexact_dtypes, jtu.rand_default, jtu.rand_positive, jtu.rand_small,
    )  # fmt: skip
    x64 = enable_x64.value
    yield op_record("neg", 1, default_dtypes + complex_dtypes, small)
    yield op_record("sign", 1, default_dtypes + uint_dtypes, small)
    yield from (op_record(name, 1, f, small) for name in ("floor", "ceil"))
    yield op_record("round", 1, f, some)
    yield op_record("nextafter", 2, [d for d in f if d in (np.float16, np.float32, np.float64)], some, 0)
    yield op_record("is_finite", 1, f, small)
    yield from (op_record(name, 1, inexact, small) for name in ("exp", "exp2"))
    yield op_record("expm1", 1, inexact, small, {_f64: 1e-8})
    yield from (op_record(name, 1, inexact, positive) for name in ("log", "log1p"))
    yield op_record("tanh", 1, inexact, small, {_f64: 1e-9, _c128: 1e-7})
    yield from (op_record(name, 1, inexact, some) for name in ("logistic", "sin", "cos"))
    yield op_record("atan2", 2, f, some)
    for name in ("sqrt", "rsqrt"):
        yield op_record(name, 1, f, positive)
        yield op_record(name, 1, complex_dtypes, some)
    yield op_record("cbrt", 1, f, some)
    yield op_record("square", 1, inexact, some)
    yield op_record("reciprocal", 1, inexact, positive)
    yield op_record("tan", 1, inexact, some, {_f32: 3e-5})
    yield op_record("asin", 1, inexact, small, {_c128: 5e-12})
    yield from (op_record(name, 1, inexact, small) for name in ("acos", "atan"))
    yield op_record("asinh", 1, inexact, some, {_c64: 1e-4, _c128: 1e-5})
    yield op_record("acosh", 1, inexact, positive)
    yield op_record("atanh", 1, inexact, small, {_f64: 1e-9})
    yield from (op_record(name, 1, inexact, some) for name in ("sinh", "cosh"))
    yield op_record("lgamma", 1, f, positive, {_f32: 1e-3 if jtu.test_device_matches(["tpu"]) else 1e-5, _f64: 1e-14})
    yield op_record("digamma", 1, f, positive, {_f64: 1e-14})
    yield op_record("betainc", 3, f, jtu.rand_uniform, {_f32: 2e-5, _f64: 1e-12})
    wide = [d for d in f if d in (np.float32, np.float64)] if x64 else [np.float32]
    yield from (op_record(name, 2, wide, positive, {_f64: 1e-14}) for name in ("igamma", "igammac"))
    yield from (op_record(name, 1, f, small) for name in ("erf", "erfc"))
    yield op_record("erf_inv", 1, f, small, {_f64: 1e-9})
    yield from (op_record(name, 1, f, some) for name in ("bessel_i0e", "bessel_i1e"))


def _other_ops() -> Iterator[OpRecord]:
    some, small = jtu.rand_default, jtu.rand_small
    yield from (op_record(name, 1, complex_dtypes, some) for name in ("real", "imag"))
    yield op_record("complex", 2, complex_elem_dtypes, some)
    yield op_record("conj", 1, complex_elem_dtypes + complex_dtypes, some)
    yield op_record("abs", 1, default_dtypes + complex_dtypes, some)
    yield op_record("pow", 2, inexact_dtypes, jtu.rand_positive)
    for name, nargs in (("bitwise_and", 2), ("bitwise_not", 1), ("bitwise_or", 2), ("bitwise_xor", 2)):
        yield op_record(name, nargs, bool_dtypes, small)
    whole = int_dtypes + uint_dtypes
    yield from (op_record(name, 1, whole, jtu.rand_int) for name in ("population_count", "clz"))
    yield from (op_record(name, 2, default_dtypes + complex_dtypes, small) for name in ("add", "sub", "mul"))
    yield op_record("mulhi", 2, whole, jtu.rand_fullrange)
    yield op_record("div", 2, default_dtypes + complex_dtypes, jtu.rand_nonzero)
    yield op_record("rem", 2, default_dtypes, jtu.rand_nonzero)
    yield from (op_record(name, 2, all_dtypes, small) for name in ("max", "min"))
    yield op_record("eq", 2, all_dtypes, jtu.rand_some_equal)
    yield op_record("ne", 2, all_dtypes, small)
    yield from (op_record(name, 2, default_dtypes, small) for name in ("ge", "gt", "le", "lt"))


def lax_ops() -> list[OpRecord]:
    """The elementwise operations."""
    return [*_float_ops(), *_other_ops()]


def lax_out_dtype_ops() -> list[OpRecord]:
    """Those that take `out_dtype`."""
    return [op_record("mul", 2, default_dtypes + complex_dtypes, jtu.rand_small)]


def lax_reduce_ops() -> list[ReducerOpRecord]:
    """What `lax.reduce` combines elements with, from which value on."""
    record, bits = ReducerOpRecord, int_dtypes + uint_dtypes + bool_dtypes
    return [
        record(lax.add, np.add, 0, default_dtypes, lax.reduce_sum_p),
        record(lax.mul, np.multiply, 1, default_dtypes, lax.reduce_prod_p),
        record(lax.max, np.maximum, 0, uint_dtypes + bool_dtypes, lax.reduce_max_p),
        record(lax.max, np.maximum, -np.inf, float_dtypes, lax.reduce_max_p),
        *(record(lax.max, np.maximum, np.iinfo(d).min, [d], lax.reduce_max_p) for d in (np.int32, np.int64)),
        record(lax.min, np.minimum, np.inf, float_dtypes, lax.reduce_min_p),
        *(
            record(lax.min, np.minimum, np.iinfo(d).max, [d], lax.reduce_min_p)
            for d in (np.int32, np.int64, np.uint32, np.uint64)
        ),
        record(lax.bitwise_and, np.bitwise_and, -1, bits, lax.reduce_and_p),
        record(lax.bitwise_or, np.bitwise_or, 0, bits, lax.reduce_or_p),
        record(lax.bitwise_xor, np.bitwise_xor, 0, bits, lax.reduce_xor_p),
    ]


def lax_named_reduce_ops() -> list[NamedReducerOpRecord]:
    """The reductions with names of their own."""
    record, bits = NamedReducerOpRecord, bool_dtypes + int_dtypes + uint_dtypes
    return [
        record(lax.reduce_sum, np.sum, number_dtypes),
        record(lax.reduce_prod, np.prod, number_dtypes),
        record(lax.reduce_max, np.max, all_dtypes),
        record(lax.reduce_min, np.min, all_dtypes),
        record(lax.reduce_and, np.bitwise_and.reduce, bits),
        record(lax.reduce_or, np.bitwise_or.reduce, bits),
        record(lax.reduce_xor, np.bitwise_xor.reduce, bits),
    ]


# ----------------------------------------------------------------------------------------------------------------------
# Batches


def all_bdims(*shapes: Sequence[int]) -> Iterator[tuple[int | None, ...]]:
    """Every way to map some of the operands of these shapes, each along one of its dimensions or a new one."""
    ways = (itertools.chain([None], range(len(shape) + 1)) for shape in shapes)
    return (dims for dims in itertools.product(*ways) if any(d is not None for d in dims))


def add_bdim(bdim_size: int, bdim: int | None, shape: Sequence[int]) -> tuple[int, ...]:
    """`shape` with a dimension of a size at a place."""
    return tuple(shape) if bdim is None else (*shape[:bdim], bdim_size, *shape[bdim:])


def slicer(x: Any, bdim: int | None) -> Callable[[int], Any]:
    """The function that gives the member i of a batch: `x` itself, if it is none."""
    if bdim is None:
        return lambda _: x
    return lambda i: lax.index_in_dim(x, i, bdim, keepdims=False)


def args_slicer(args: Sequence[Any], bdims: Sequence[int | None]) -> Callable[[int], list[Any]]:
    """The function that gives the members i of several."""
    slicers = safe_map(slicer, args, bdims)
    return lambda i: [member(i) for member in slicers]


__getattr__ = _missing(
    "jax._src.internal_test_util.lax_test_util", [name for name in globals() if not name.startswith("_")]
)
