"""Details that programs meet, beside JAX: values, dtypes, weak types, kinds of errors. One row, one difference once."""

import re

import jax
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy

from ..beside import assert_alike

I8 = np.int8
SINC = np.float32([0, 0.5, 1, -2, 0.25])
CONVERTED = [
    (v, t) for v in (np.float32(1), 1, 1.5, True, np.ones(()), np.ones(2, np.int8)) for t in (np.float32, np.int32)
]
EDGES = np.float32([np.nan, 0, -0.0, -1, 2, 6, np.inf, -np.inf])
RELUS = ["relu", "relu6", "hard_sigmoid", "hard_tanh", "leaky_relu"]
C = np.complex64([1 + 2j, 1 - 2j, 1j, 0, complex(np.inf, 0), complex(-np.inf, 1), 3])
D = np.complex64([1 - 2j, 1 + 3j, 1j, -1j, complex(np.inf, 1), 0, 2 + 5j])
SORTED = np.complex64([1 + 1j, 1 + 2j, 2 - 1j, 2 + 5j, complex(np.nan, 0)])
F34 = np.arange(12, dtype=np.float32).reshape(3, 4)
NANS = np.float32([3, np.nan, -0.0, 0, -np.nan, -np.inf, 2, np.inf, 1, 0, -0.0])
FLAT = ["cumsum", "argmax", "sort", "diagflat", "vdot", "take"]


def _of_vectors(l, name):
    more, choices = {"vdot": [F34[1]], "take": [1]}.get(name, []), {"axis": None} if name == "sort" else {}
    return lambda x: getattr(l.numpy, name)(x, *more, **choices)


ROWS = {
    # NaNs with a sign come first in partitions, other NaNs last; zeros are told apart
    "partitions": lambda l: [l.numpy.partition(NANS.astype(t), k) for t in ("float32", "bfloat16") for k in (0, 5, -1)],
    "argpartitions": lambda l: [l.numpy.argpartition(np.stack([NANS, NANS[::-1]], 1), k, axis=0) for k in (0, 4)],
    "signs of partitioned zeros": lambda l: l.numpy.signbit(l.numpy.partition(NANS, 4)),
    "names of sums of powers": lambda l: [
        re.findall(r"custom_jvp_call\[\s*name=(\w+)", str(l.make_jaxpr(getattr(l.numpy, name))(F34, F34)))
        for name in ("logaddexp", "logaddexp2")
    ],
    # vectors are not flattened
    "reshapes": lambda l: [str(l.make_jaxpr(_of_vectors(l, name))(F34[0])).count("reshape[") for name in FLAT],
    # an integer exponent that is not static: the base's dtype, strong; the derivative at zero
    "decay": lambda l: 0.9 ** l.numpy.arange(3),
    "weak base": lambda l: l.numpy.asarray(0.9) ** l.numpy.arange(3),
    "half base": lambda l: l.numpy.ones((2, 3), "bfloat16") ** l.numpy.arange(3),
    "complex base": lambda l: 1j ** l.numpy.arange(3),
    "static array": lambda l: l.numpy.power(2.0, np.array(2)),
    "x**0 at 0": lambda l: l.jit(l.grad(lambda x, n: x**n))(np.float32(0), 0),
    "x**n at 0": lambda l: l.grad(lambda x: (x ** l.numpy.array([0, 2, -1])).sum())(np.float32(0)),
    "x**n at -2": lambda l: l.grad(lambda x: (x ** l.numpy.array([0, 2, 3])).sum())(np.float32(-2)),
    "x**n at inf": lambda l: l.vmap(l.grad(lambda x, n: x**n), (None, 0))(np.float32(np.inf), np.arange(3)),
    "x**n mapped": lambda l: l.vmap(lambda x, n: x**n)(l.numpy.arange(3.0), l.numpy.arange(3)),
    "x**n twice": lambda l: l.hessian(lambda x: x ** l.numpy.int32(3))(2.0),
    "lax.pow": lambda l: l.lax.pow(l.numpy.arange(3.0), l.numpy.arange(3)),
    # tests of numbers give strong booleans, whatever the numbers are
    "infinite": lambda l: [l.numpy.isinf(x) for x in (np.inf, 1, 1j, l.numpy.array(-1.0), -np.float32(np.inf))],
    "infinite up": lambda l: [l.numpy.isposinf(x) for x in (np.inf, 1, l.numpy.array(-1.0))],
    "infinite down": lambda l: [l.numpy.isneginf(x) for x in (np.inf, 1, l.numpy.array(-1.0))],
    "sign bit": lambda l: [l.numpy.signbit(x) for x in (-2, l.numpy.array(1), 1.5, -0.0)],
    "|x| at 0": lambda l: l.grad(l.numpy.abs)(np.float32(0)),
    "|x| twice": lambda l: l.vmap(l.grad(l.grad(lambda x: l.numpy.abs(x) ** 3)))(np.float32([-2, 0, 3])),
    "complex to real": lambda l: l.grad(lambda x: (l.numpy.abs(x) ** 2).sum())(np.complex64([1 + 2j, 3j])),
    "complex to complex": lambda l: l.grad(lambda x: x * x)(np.complex64(1j)),
    "argnums": lambda l: l.grad(lambda x: x, 1)(2.0),
    # captured NumPy arrays of 64 bits
    "float64": lambda l: l.jit(lambda: np.ones(2))(),
    "int64": lambda l: l.jit(lambda: np.arange(3))(),
    "complex128": lambda l: l.jit(lambda: np.ones(2) * 1j)(),
    "float64 operands": lambda l: l.jit(lambda: l.lax.add(np.ones(2), np.ones(2)))(),
    "float64 in a list": lambda l: l.jit(lambda x: l.lax.concatenate([np.ones(2), x], 0))(np.ones(3)),
    "int64 sliced": lambda l: l.jit(lambda i: l.lax.dynamic_index_in_dim(np.arange(5), i, keepdims=False))(3),
    "float64 chosen": lambda l: l.jit(lambda x: l.lax.select(np.array([True, False]), x, np.zeros(2)))(np.ones(2)),
    # a Python scalar beside a NumPy one of a lower kind
    "weak and int8": lambda l: l.numpy.add(2.5, I8(3)),
    "weak and bool": lambda l: l.numpy.add(3, np.bool_(1)),
    "weak and vector": lambda l: l.numpy.asarray(2.5) + np.ones(2, I8),
    "bool % 3": lambda l: l.numpy.ones(2, bool) % 3,
    "int % 0": lambda l: l.numpy.arange(3) % 0,
    # Python's protocols
    "round": lambda l: round(l.numpy.arange(3) / 2.0),
    "round to 2": lambda l: round(l.numpy.arange(3) / 7, 2),
    "equal to a list": lambda l: l.numpy.ones(3) == [1, 2, 3],
    "list times": lambda l: [1, 2, 3] * l.numpy.ones(3),
    "tuple plus": lambda l: l.numpy.ones(3) + (1, 2, 3),
    "equal to None": lambda l: l.numpy.ones(3) is not None and (l.numpy.ones(3) != None),  # noqa: E711
    "format": lambda l: f"{l.numpy.ones(()):.3f}",
    "format of many": lambda l: f"{l.numpy.ones(3):.3f}",
    "format of none": lambda l: f"{l.numpy.ones(3)}",
    "isscalar": lambda l: [l.numpy.isscalar(v) for v in (1, "a", np.array(1.0), l.numpy.ones(()), [1])],
    "iterable": lambda l: [l.numpy.iterable(v) for v in (1, [1])],
    # arguments
    "argmax of axes": lambda l: l.numpy.ones((2, 3)).argmax((0, 1)),
    "argsort method": lambda l: l.numpy.arange(3).argsort(descending=True),
    "argsort dtype": lambda l: l.numpy.ones(3).argsort(dtype=np.float32),
    "indices": lambda l: l.numpy.ones((3, 3))[np.array([0, 1]), np.array([0, 1, 2])],
    "index mode": lambda l: l.numpy.ones(3).at[5].get(mode="wrap"),
    "arange complex": lambda l: l.numpy.arange(1j),
    "arange of many": lambda l: l.numpy.arange(np.ones(2)),
    # what is asked for once and forgotten
    "dot of two dtypes": lambda l: str(l.make_jaxpr(l.numpy.dot)(np.ones(2, I8), np.ones(2)).eqns[0].primitive),
    "dot, strict": lambda l: _strict(l, l.numpy.matmul, np.ones(2, I8), np.ones(2), preferred_element_type="float32"),
    "array_equiv, strict": lambda l: _strict(l, l.numpy.array_equiv, np.ones(2, I8), np.ones(2, "f")),
    "ldexp of two ranks": lambda l: _strict(l, l.numpy.ldexp, np.ones((2, 2), "f"), np.ones(2, int)),
    "linspace of two ranks": lambda l: _strict(l, l.numpy.linspace, np.ones((2, 2), "f"), np.ones(2, "f")),
    "no nonzero": lambda l: l.numpy.nonzero(np.ones((0, 2)), size=2, fill_value=-1),
    "repeat longer": lambda l: l.numpy.repeat(np.arange(3), np.array([1, 0, 2]), total_repeat_length=5),
    "repeat nothing": lambda l: l.numpy.repeat(np.ones((0, 4)), 2, axis=0, total_repeat_length=4),
    "repeat a scalar": lambda l: l.numpy.repeat(3, 2, axis=0),
    "eye far out": lambda l: (l.numpy.eye(2, k=2**100), l.numpy.eye(2, 3, k=-(2**100))),
    "tri far out": lambda l: l.numpy.tri(2, k=2**33),
    "complex search": lambda l: l.numpy.searchsorted(SORTED, D[:4], "right"),
    "complex search left": lambda l: l.numpy.searchsorted(SORTED, SORTED, "left", method="compare_all"),
    "weak zeros_like": lambda l: l.numpy.zeros_like(l.numpy.asarray(1j), shape=(2,)),
    "split by a float": lambda l: l.numpy.hsplit(np.arange(4), 2.0),
    "reshape to nothing": lambda l: l.numpy.reshape(np.zeros((0, 2)), (-1, 0)),
    "reshape order A": lambda l: l.numpy.zeros(2).reshape((2, 1), order="A"),
    "reshape order K": lambda l: l.numpy.zeros(2).reshape((2, 1), order="K"),
    "masked": lambda l: l.numpy.array(np.ma.array([1, 2], mask=[True, False])),
    "masked asarray": lambda l: l.numpy.asarray(np.ma.array([1, 2], mask=[True, False])),
    "list of complex": lambda l: (l.numpy.iscomplexobj([1j]), l.numpy.isrealobj([1])),
    "bool to bytes": lambda l: l.numpy.array([True, False]).view(np.int8),
    "bytes to bool": lambda l: l.numpy.array([1, 0, 1], np.int8).view(bool),
    "halves of bytes": lambda l: l.numpy.array([1, 18, 255, 0], np.uint8).view("uint4").view("int16"),
    "view of one": lambda l: l.numpy.float32(1).view("int16"),
    "resize to less than nothing": lambda l: l.numpy.resize(np.ones(3), (-1,)),
    "squeeze by array": lambda l: l.numpy.squeeze(np.ones((3, 1)), np.array(-1)),
    "take, promised": lambda l: l.numpy.take(np.ones(3), np.array([1]), mode="promise_in_bounds"),
    "take by floats": lambda l: l.numpy.take(np.ones(3), np.array([1.0])),
    "by product": lambda l: l.numpy.take_along_axis(F34, np.array([[0], [2], [-1]]), 1, mode="one_hot"),
    "by product, first": lambda l: l.numpy.take_along_axis(F34, np.array([[0, 1, 2, 7]]), 0, mode="one_hot"),
    "by product, vector": lambda l: l.numpy.take_along_axis(np.arange(4), np.array([3, 0]), None, mode="one_hot"),
    "quantile of rows, strict": lambda l: _strict(l, l.numpy.nanquantile, F34, np.ones(2, "f") / 3, axis=1),
    "weighted, strict": lambda l: _strict(
        l, l.numpy.quantile, F34, np.ones(2, "f") / 3, weights=F34 + 1, method="inverted_cdf", keepdims=True
    ),
    "path": lambda l: l.numpy.einsum_path("ij,jk,kl", F34, F34.T, F34)[0],
    "either correction": lambda l: l.numpy.std(F34, ddof=1.5, correction=1),
    "apply to rows": lambda l: l.numpy.asarray(F34).at[np.array([0, 2, 0])].apply(lambda x: x * 2 + 1),
    "apply to elements": lambda l: l.jit(lambda x, i: x.at[i, i + 1].apply(l.numpy.square))(F34, np.array([1, 0, 1])),
    "apply, clipped": lambda l: l.numpy.arange(3).at[np.array([7, 1])].apply(l.numpy.negative, mode="clip"),
    "apply, dropped": lambda l: l.numpy.arange(3).at[np.array([7, 1])].apply(l.numpy.negative),
    "clip": lambda l: [l.numpy.clip(l.numpy.arange(3), 1, 1.5), l.numpy.clip(F34, np.float16(1), 4)],
    "clip a scalar": lambda l: l.numpy.clip(2, 0, 1),
    "clip by arrays": lambda l: l.numpy.clip(l.numpy.asarray(F34), l.numpy.arange(4), l.numpy.arange(3)[:, None] + 3),
    "clip nan": lambda l: l.numpy.clip(l.numpy.asarray(EDGES), -1, 3),
    "conditions in one array": lambda l: l.numpy.select(
        np.eye(2, dtype=bool), l.numpy.asarray(np.ones((2, 2), np.float32)), 3.0
    ),
    "weak choices": lambda l: l.numpy.select([np.array([True, False])], [np.ones(2, I8)], -2.5),
    "complex fill of integers": lambda l: l.numpy.full_like(l.numpy.asarray(1), 2j),
    "shapes as lists": lambda l: [int(n) for n in l.numpy.broadcast_shapes([1], [0, 1], np.array([2, 1, 1]), 1)],
    "where with size": lambda l: l.numpy.where(np.array([True]), 1, 2, size=1),
    "no identity": lambda l: l.numpy.max(F34, where=F34 > 2),
    "grid of no kind": lambda l: l.numpy.meshgrid(np.ones(2), indexing="x"),
    "split beyond the end": lambda l: l.numpy.split(np.arange(3), [1, 5]),
    "split backwards": lambda l: l.numpy.array_split(np.arange(3), [2, 1]),
    "complex to bytes": lambda l: (l.numpy.asarray(C[:2]).view(np.int8), l.numpy.asarray(C[0]).view("uint32").shape),
    "halves to complex": lambda l: l.numpy.arange(1, 9, dtype=np.float16).view(np.complex64).view("uint16"),
    # what the array API standard asks
    "api version": lambda l: (l.numpy.__array_api_version__, l.numpy.ones(2).__array_namespace__().__name__[-6:]),
    "api capabilities": lambda l: l.numpy.__array_namespace_info__().capabilities(),
    "api dtypes": lambda l: {k: str(v) for k, v in l.numpy.__array_namespace_info__().dtypes().items()},
    "api dtypes of kinds": lambda l: sorted(l.numpy.__array_namespace_info__().dtypes(kind=("bool", "integral"))),
    "api kinds": lambda l: l.numpy.__array_namespace_info__().dtypes(kind="whole"),
    "api defaults": lambda l: [str(d) for d in l.numpy.__array_namespace_info__().default_dtypes().values()],
    "api devices": lambda l: [str(d) for d in l.numpy.__array_namespace_info__().devices()][:2],
    # derivatives where operands are equal or infinite
    "logaddexp slopes": lambda l: _slopes(l, "logaddexp"),
    "logaddexp of weak complex numbers": lambda l: [l.numpy.logaddexp(1 + 2j, 0.0), l.nn.softplus(1 + 2j)],
    "logaddexp complex": lambda l: l.numpy.logaddexp(np.complex64([1 + 3j, -2j]), np.complex64([1 - 3j, 4 + 3j])),
    "logaddexp2 complex": lambda l: l.numpy.logaddexp2(np.complex64([1 + 3j, -2j]), np.complex64([1 - 3j, 4 + 3j])),
    "var of whole numbers": lambda l: l.numpy.var(np.float32([0, 1, 2, 3, 4, 5]), dtype="int32"),
    "std of whole numbers": lambda l: l.numpy.std(np.float32([0, 1, 2]), dtype="int32"),
    "real var of complex": lambda l: l.numpy.var(np.complex64([1j, 1]), dtype="float32"),
    "logaddexp2 slopes": lambda l: _slopes(l, "logaddexp2"),
    "sinc": lambda l: l.numpy.sinc(np.float32([0, -0.0, 1, 0.5, np.inf, -np.inf, np.nan, 1e-20])),
    "sinc slope": lambda l: l.vmap(l.grad(l.numpy.sinc))(SINC),
    "sinc curvature": lambda l: l.vmap(l.grad(l.grad(l.numpy.sinc)))(SINC),
    "sinc third": lambda l: l.jacfwd(l.grad(l.grad(l.numpy.sinc)))(np.float32(0)),
    "sinc fourth": lambda l: l.jacfwd(l.jacfwd(l.grad(l.grad(l.numpy.sinc))))(np.float32(0)),
    "angle of inf": lambda l: l.grad(lambda x: l.numpy.real(l.lax.complex(x, x) * 1j).sum())(np.float32([np.inf, 1])),
    "complex of inf": lambda l: l.numpy.imag(l.grad(lambda z: l.numpy.real(z * np.inf))(np.complex64(1))),
    # linear functions of integers
    "transposed": lambda l: l.linear_transpose(lambda x: 2 * x, 1)(3)[0],
    "transposed vector": lambda l: l.linear_transpose(lambda x: x[:2] * 3, np.arange(3))(np.int32([1, 2]))[0],
    "transposed float": lambda l: l.linear_transpose(lambda x: 2 * x, 1.0)(3.0)[0],
    "transposed mixed": lambda l: l.linear_transpose(lambda x: x.astype(np.float32), np.int32(1))(np.float32(1))[0],
    # nothing to do
    "diff of order 0": lambda l: l.numpy.diff(np.arange(3.0), n=0, prepend=7.0),
    "diff of order 0 of none": lambda l: l.numpy.diff(np.zeros((0, 2)), n=0, append=1.0),
    "diff of order -1": lambda l: l.numpy.diff(np.arange(3.0), n=-1),
    "diff of order 9": lambda l: l.numpy.diff(np.arange(3.0), n=9),
    "x**1": lambda l: l.lax.integer_pow(np.float32([1, 2]), 1),
    # dtypes by their names
    "names of 64 bits": lambda l: [np.dtype(getattr(l.numpy, n)).name for n in ("int_", "uint", "float_", "complex_")],
    "int_": lambda l: l.numpy.zeros(2, l.numpy.int_),
    "uint": lambda l: l.numpy.uint(3),
    "float_": lambda l: l.numpy.asarray([1, 2], l.numpy.float_),
    "complex_": lambda l: l.numpy.ones(2).astype(l.numpy.complex_),
    "any of unsigned": lambda l: l.numpy.any(np.uint8([0, 128])),
    "bool of unsigned": lambda l: l.numpy.uint32([0, 2**31]).astype(bool),
    # what is an array
    "traced": lambda l: l.jit(lambda x: x * isinstance(x, l.Array))(np.float32(3)),
    "differentiated": lambda l: l.grad(lambda x: x * isinstance(x, l.Array))(np.float32(3)),
    "mapped": lambda l: l.vmap(lambda x: x * isinstance(x, l.Array))(np.float32([3])),
    "of others": lambda l: [isinstance(v, l.Array) for v in (1.0, np.ones(2), [1], l.random.key(0), l.numpy.ones(()))],
    "converted": lambda l: [isinstance(l.lax.convert_element_type(v, t), l.Array) for v, t in CONVERTED],
    "converted in jit": lambda l: l.jit(lambda: l.lax.convert_element_type(np.float32(2), np.int32) * 3)(),
    "conj of a real": lambda l: l.lax.conj(np.float32([1, 2])),
    **{f"slope of {n}": lambda l, n=n: l.vmap(l.grad(getattr(l.nn, n)))(EDGES) for n in RELUS},
    **{n: lambda l, n=n: getattr(l.nn, n)(EDGES) for n in RELUS},
    "relu of bool": lambda l: l.nn.relu(np.array([True, False])),
    "relu of int": lambda l: l.nn.relu(np.int8([-1, 2])),
    "product with inf": lambda l: l.hessian(l.numpy.prod)(np.float32([np.inf, 2])),
    "product with inf and 0": lambda l: l.hessian(l.numpy.prod)(np.float32([2, np.inf, 3, 0, 1])),
    "product of rows": lambda l: l.hessian(lambda x: l.numpy.prod(x, 1).sum())(np.float32([[0, 2, 0], [1, 2, 3]])),
    "product of one": lambda l: l.hessian(l.numpy.prod)(np.float32([2])),
    # complex numbers: equal real parts, zero and infinity
    "maximum": lambda l: l.numpy.maximum(C, D),
    "minimum": lambda l: l.numpy.minimum(C, D),
    "maximum with a scalar": lambda l: l.jit(lambda x: l.numpy.maximum(x, 1))(C),
    "slope of maximum": lambda l: l.grad(lambda x: l.numpy.real(l.numpy.maximum(x, D)).sum())(C),
    "celu": lambda l: l.nn.celu(C[:5]),
    "log2": lambda l: l.numpy.log2(C),
    "log10": lambda l: l.numpy.log10(C),
    # dtypes of small integers, weak types
    "cumulative_prod": lambda l: l.numpy.cumulative_prod(np.uint8([1, 2, 3])),
    "cumulative_prod of bool": lambda l: l.numpy.cumulative_prod(np.array([True, False]), include_initial=True),
    "cumulative_sum": lambda l: l.numpy.cumulative_sum(np.uint8([1, 2, 3]), include_initial=True),
    "vander": lambda l: l.numpy.vander(np.uint8([1, 2, 3])),
    "nanmedian": lambda l: l.numpy.nanmedian(1.5),
    "nanmedian of int": lambda l: l.numpy.nanmedian(3),
    # NumPy operands and nothing to do
    "squeeze": lambda l: l.lax.squeeze(SINC, ()),
    "lax.broadcast": lambda l: l.lax.broadcast(SINC, ()),
    "expand_dims": lambda l: l.lax.expand_dims(SINC, ()),
    "collapse": lambda l: l.lax.collapse(SINC, 0, 1),
    "reshape": lambda l: l.lax.reshape(SINC, SINC.shape),
    # keys
    "keys equal": lambda l: l.random.split(l.random.key(1), 2) == l.random.key(1),
    "keys differ": lambda l: l.vmap(lambda k: k != l.random.key(0))(l.random.split(l.random.key(0), 2)),
    "zeros like keys": lambda l: l.random.key_data(l.numpy.zeros_like(l.random.split(l.random.key(3), 2))),
    "heaviside of several ranks": lambda l: _strict(
        l, l.numpy.heaviside, np.float32([[-1, 0, 1]]), np.float32([1, 2, 3])
    ),
    "one key": lambda l: l.random.normal(l.random.split(l.random.key(0), 2), (2,)),
}


def _slopes(l, name):
    pairs = np.array([[0, 0], [1, 1], [1, 2], [np.inf, 0], [0, np.inf], [np.inf, np.inf], [-np.inf, 0]], np.float32)
    return l.numpy.stack([l.vmap(l.grad(getattr(l.numpy, name), n))(*pairs.T) for n in (0, 1)])


def _strict(l, function, *args, **kwargs):
    with l.numpy_dtype_promotion("strict"), l.numpy_rank_promotion("raise"):
        return function(*args, **kwargs)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", ROWS)
def test_as_in_jax(name):
    assert_alike(ROWS[name])


@pytest.mark.parametrize("name", ["shape", "ndim", "size"])
def test_sizes_of_lists_are_deprecated(name):
    for library in (jax, meshrt):
        with pytest.warns(DeprecationWarning, match=f"{name} requires ndarray or scalar arguments"):
            assert getattr(library.numpy, name)([1, 2]) in ((2,), 1, 2)


def test_bfloat16_comes_back_from_a_file(tmp_path):
    for library in (jax, meshrt):
        path = tmp_path / f"{library.__name__}.npy"
        library.numpy.save(path, library.numpy.ones(3, "bfloat16"))
        assert library.numpy.load(path).dtype == "bfloat16"


@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16", None])
def test_complex_numbers_made_real_are_deprecated(dtype):
    for library in (jax, meshrt):
        with pytest.warns(DeprecationWarning, match="Casting from complex to real dtypes"):
            assert library.numpy.asarray(C[:1]).astype(dtype).tolist() == [1]
