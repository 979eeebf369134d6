"""The words of messages that programs and their tests look for: JAX's has them, and so has ours."""

import re
import warnings

import jax
import jax.numpy
import numpy as np
import pytest

import meshrt
import meshrt.numpy

I2 = np.ones((2, 2), np.int32)
MASKED = np.ma.array([1, 2], mask=[True, False])
ROWS = {
    # reductions
    "attempt to get argmin of an empty sequence": lambda l, n: n.argmin(np.array([])),
    "attempt to get argmax of an empty sequence": lambda l, n: n.nanargmax(np.zeros((2, 0)), axis=1),
    r"initial value must be a scalar. Got array of shape \(1, 2\)": lambda l, n: n.nanmax(I2, -1, initial=I2[:1]),
    r"duplicate value in 'axis': \(0, 0\)": lambda l, n: n.sum(I2, (0, 0)),
    "The input must be non-scalar to take": lambda l, n: n.cumulative_sum(n.array(1)),
    r"The input array has rank \d*, however": lambda l, n: n.cumulative_prod(I2),
    "cov: dtype must be a subclass of float or complex": lambda l, n: n.cov(I2, dtype=int),
    "corrcoef: dtype must be a subclass of float or complex": lambda l, n: n.corrcoef(I2, dtype=int),
    # shapes
    "repeated axis": lambda l, n: n.expand_dims(I2, [3, -1]),
    "Cannot broadcast to shape with fewer dimensions": lambda l, n: n.broadcast_to(I2, (2,)),
    "rot90 requires its first argument to have ndim at least two": lambda l, n: n.rot90(n.ones(2)),
    "axis1 and axis2 can not be same": lambda l, n: n.trace(I2, axis1=1, axis2=-1),
    "add got incompatible shapes for broadcasting": lambda l, n: n.ones(2) + n.ones(3),
    r"Did you accidentally write `\w+\.numpy\.ones\(2, 3\)` when": lambda l, n: n.ones(2, 3),
    "Unimplemented padding mode 'None' for np.pad.": lambda l, n: n.pad(I2, 1, None),
    "unsupported keyword arguments for mode 'edge'": lambda l, n: n.pad(I2, 1, "edge", constant_values=0),
    # contractions
    "Number of tensordot axes.*exceeds input ranks": lambda l, n: n.tensordot(I2, n.ones(2), axes=2),
    "tensordot requires axes lists to have equal length": lambda l, n: n.tensordot(I2, I2, axes=([0], [0, 1])),
    "axes lists to be either ints, tuples or lists": lambda l, n: n.tensordot(I2, I2, axes=("bad", "axes")),
    "tensordot axes argument must be an int, a pair of ints, or": lambda l, n: n.tensordot(I2, I2, axes="badaxes"),
    "Need at least one array to concatenate": lambda l, n: n.concatenate([]),
    "Need at least one array to stack": lambda l, n: n.stack([]),
    "cannot modify arrays in-place, because JAX arrays ?are immutable": lambda l, n: n.put_along_axis(
        n.ones(2), n.array([0]), 1.0, 0
    ),
    "Slice entries must be static integers": lambda l, n: l.jit(lambda x, i: x[i : i + 1])(n.ones(3), 1),
    "Zero-dimensional arrays cannot be concatenated": lambda l, n: n.concatenate(n.ones(3)),
    r"cannot reshape array of shape \(2, 2\) \(size 4\) into shape \(3, -1\)": lambda l, n: n.reshape(
        n.array(I2), (3, -1)
    ),
    r"cannot reshape array of shape \(2, 2\) \(size 4\) into shape \(-2, 2\) \(size -4\)": lambda l, n: n.reshape(
        n.array(I2), (-2, 2)
    ),
    "Number of einsum subscripts, 2, must be equal to the number of operands, 1": lambda l, n: n.einsum("ij,jk", I2),
    "x must be at least two-dimensional for matrix_transpose; got ndim=1": lambda l, n: n.matrix_transpose(I2[0]),
    "convolve: inputs cannot be empty": lambda l, n: n.convolve(n.ones(0), n.ones(2)),
    "condition must be a 1D array": lambda l, n: n.compress(I2, I2),
    "digitize: bins must be a 1-dimensional array": lambda l, n: n.digitize(I2, I2),
    "arr and mask must be the same size": lambda l, n: n.place(I2, I2[0], I2, inplace=False),
    "isposinf/isneginf are not well defined for complex types": lambda l, n: n.isneginf(1j),
    "jnp.unwrap does not support complex inputs": lambda l, n: n.unwrap(n.array([1j])),
    "jnp.partition for complex dtype is not implemented": lambda l, n: n.partition(n.array([1j]), 0),
    # linear algebra
    "UPLO must be one of None, 'L', or 'U', got u": lambda l, n: n.linalg.eigh(I2, UPLO="u"),
    "Unknown slogdet method 'q'. Supported methods are": lambda l, n: n.linalg.slogdet(I2, method="q"),
    "slogdet method='qr' not implemented for complex": lambda l, n: n.linalg.slogdet(I2 * 1j, method="qr"),
    "1-dimensional array given. Array must be at least two": lambda l, n: n.linalg.matrix_power(I2[0], 2),
    "3-dimensional array given. Array must be two-dimensional": lambda l, n: n.linalg.lstsq(I2[None], I2[:1]),
    "Input 0 to svd must have rank at least 2": lambda l, n: n.linalg.svd(I2[0], subset_by_index=(0, 1)),
    "leading shape of a must match shape of b": lambda l, n: n.linalg.tensorsolve(I2, n.ones(3)),
    r"Invalid shapes for solve: \(1, 2, 2\), \(1, 2\)": lambda l, n: n.linalg.solve(1.0 * I2[None], I2[:1]),
    # Fourier transforms
    r"jax.numpy.fft.fft does not support multiple axes. .*Got axis = \(1, 1\)": lambda l, n: n.fft.fft(I2, axis=(1, 1)),
    r"jax.numpy.fft.fft2 only supports 2 axes. Got axes = \[0\]": lambda l, n: n.fft.fft2(I2, axes=[0]),
    r"fftfreq only takes an int. Got n = \[0, 1\]": lambda l, n: n.fft.fftfreq([0, 1]),
    r"fftfreq only takes a single value. Got d = \[0, 1\]": lambda l, n: n.fft.fftfreq(4, d=[0, 1]),
    # elementwise functions and values
    "Complex values have no ordering and cannot be clipped": lambda l, n: n.clip(n.ones(2, "complex64")),
    "jnp.hypot is not well defined for complex-valued inputs": lambda l, n: n.hypot(n.ones(2, "complex64"), 1),
    "xp and fp must be one-dimensional arrays of equal size": lambda l, n: n.interp(0.0, n.ones(2), n.ones(3)),
    "only valid string value of `left` is 'extra": lambda l, n: n.interp(0.0, n.ones(3), n.ones(3), left="inter"),
    "jnp.interp: complex x values not supported.": lambda l, n: n.interp(1j, 1j * np.arange(3.0), np.arange(3.0)),
    "period must be a scalar; got": lambda l, n: n.interp(0.0, n.ones(3), n.ones(3), period=np.array([1.0])),
    "Python int 9223372036854775808 too large to convert to int": lambda l, n: n.array(2**63),
    "None is not a valid value for jnp.array": lambda l, n: n.array([0.0, None]),
    # indices
    "a* ?non-empty jnp.take": lambda l, n: n.take(n.ones((2, 0)), n.array([0]), axis=1),
    "take_along_axis indices must be of integer type, got": lambda l, n: n.take_along_axis(I2, n.ones((2, 1)), axis=1),
    "index is out of bounds for axis .* with size 0": lambda l, n: n.ones((2, 0))[0, 0],
    "boolean index did not match shape": lambda l, n: n.arange(4)[n.array([True, False])],
    "Indexer must have integer or boolean type, got indexer with": lambda l, n: n.zeros((2, 2))[(0, 0.0)],
    r"non-tuple sequence.*is not allowed.*arr\[array\(seq\)\]": lambda l, n: n.zeros(3)[[0]],
    r"non-tuple sequence.*is not allowed.*arr\[tuple\(seq\)\]": lambda l, n: n.zeros((3, 2)).at[[0, None]].set(0),
    "arrays are immutable and do not support in-place item": lambda l, n: n.zeros(3).__setitem__(0, 1),
    # operands that are none, and those of a wrong rank or dtype
    "sum requires ndarray or scalar arguments, got <class 'list'> at position 0": lambda l, n: n.sum([1, 2]),
    "add requires ndarray or scalar arguments, got <class 'NoneType'> at position 1": lambda l, n: n.add(I2, None),
    "zero-size array to reduction operation max which has no identity": lambda l, n: n.max(n.ones(0)),
    "JAX does not support string indexing; got idx='abc'": lambda l, n: n.zeros(3)["abc"],
    "only 1-dimensional input supported": lambda l, n: n.bincount(I2),
    "x argument to bincount must have an integer type": lambda l, n: n.bincount(n.ones(2)),
    "Input must be a rank-1 array": lambda l, n: n.roots(n.ones((2, 2))),
    "x must be a one-dimensional array": lambda l, n: n.vander(I2),
    "expected 1D vector for x": lambda l, n: n.polyfit(n.ones((2, 2)), n.ones(2), 1),
    "expected x and y to have same length": lambda l, n: n.polyfit(n.ones(2), n.ones(3), 1),
    "only support 1-dimensional inputs": lambda l, n: n.convolve(n.ones((2, 2)), n.ones(2)),
    "does not support complex input, as the operation is poorly": lambda l, n: n.quantile(n.ones(2, "complex64"), 0.5),
    "diag input must be 1d or 2d": lambda l, n: n.diag(np.ones((2, 2, 2))),
    "tril must be at least 2D": lambda l, n: n.tril(n.ones(2)),
    "ix_ must be 1-dimensional": lambda l, n: n.ix_(I2),
    "Valid values for indexing are 'xy' and 'ij'": lambda l, n: n.meshgrid(n.ones(2), n.ones(2), indexing="x"),
    "Axis must be specified when shapes of a and weights differ": lambda l, n: n.average(I2, weights=n.ones(2)),
    "ddof and correction can't be provided simultaneously": lambda l, n: n.var(n.ones(2), ddof=1, correction=1),
    "matmul input operand 0 must have ndim at least 1": lambda l, n: n.matmul(1.0, n.ones(2)),
    "contracting dimensions to have the same shape, got": lambda l, n: n.matmul(n.ones((2, 3)), n.ones((2, 3))),
    "Expected an input array of unsigned byte data type": lambda l, n: n.unpackbits(n.ones(2)),
    "Expected an input array of integer or boolean data type": lambda l, n: n.packbits(n.ones(2)),
    "ldexp not supported for input types": lambda l, n: n.ldexp(n.ones(2), n.ones(2)),
    "Arguments to jax.numpy.gcd must be integers": lambda l, n: n.gcd(n.ones(2), 1),
    "transpose permutation isn't a permutation of operand dimensions": lambda l, n: n.transpose(I2, (0, 0)),
    "condlist must have length equal to choicelist": lambda l, n: n.select([n.ones(2) > 0], [I2, I2]),
    "condlist must be non-empty": lambda l, n: n.select([], []),
    "Unsupported QR decomposition mode 'x'": lambda l, n: n.linalg.qr(n.ones((2, 2)), mode="x"),
    "Last 2 dimensions of the array must be square": lambda l, n: n.linalg.matrix_power(n.ones((2, 3)), 2),
    r"must have shape \[..., n, n\], got \(2, 3\)": lambda l, n: n.linalg.det(n.ones((2, 3))),
    "Improper number of axes for norm": lambda l, n: n.linalg.norm(n.ones((2, 2, 2)), ord=2),
    "invalid argument side='x', expected 'left' or 'right'": lambda l, n: n.searchsorted(n.ones(2), 1.0, side="x"),
    "a should be 1-dimensional": lambda l, n: n.searchsorted(n.ones((2, 2)), 1.0),
    "must have every element be nonnegative, got": lambda l, n: n.ones((2, -1)),
    # what must be known while tracing
    "size argument of jnp.nonzero must be statically specified": lambda l, n: l.jit(n.nonzero)(n.ones(2)),
    "'x' of jnp.bincount": lambda l, n: l.jit(n.bincount)(n.arange(2)),
    "Shapes must be 1D sequences of concrete values of integer type": lambda l, n: n.zeros(1.0),
    r"of integer type.*\nIf using `jit`, try using `static_argnums`": lambda l, n: l.jit(n.zeros)(2),
    "1D sequences of concrete values": lambda l, n: l.jit(n.tri)(3, M=3),
    "Abstract tracer value encountered where concrete": lambda l, n: l.jit(lambda i: n.split(n.zeros(4), i))(2),
    "argument 'stop'": lambda l, n: l.jit(n.arange)(3),
    "argument 'start'": lambda l, n: l.jit(lambda start: n.arange(start, 3))(0),
    "slice start of jnp.mgrid": lambda l, n: l.jit(lambda a, b: n.mgrid[a:b])(0, 2),
    "slice start of jnp.r_": lambda l, n: l.jit(lambda a, b: n.r_[a:b])(0, 2),
    r"The tobytes\(\) method was called on traced array": lambda l, n: l.jit(lambda x: x.tobytes())(I2),
    r"The tolist\(\) method was called on traced array": lambda l, n: l.jit(lambda x: x.tolist())(I2),
    "because ravel_multi_index was jit-compiled with mode='raise'. Use": lambda l, n: l.jit(
        lambda x: n.ravel_multi_index(x, (3, 4))
    )((I2, I2)),
    "because jnp.choose was jit-compiled with mode='raise'. Use": lambda l, n: l.jit(lambda a: n.choose(a, [1, 2]))(I2),
    "Array boolean indices must be concrete": lambda l, n: l.jit(lambda m: n.ones(2)[m])(np.array([True, False])),
    "numpy masked arrays are not supported": lambda l, n: l.jit(n.asarray)(MASKED),
    # vectorize, fft
    "does not have enough dimensions": lambda l, n: n.vectorize(lambda x: x, signature="(n)->()")(1),
    "wrong number of output arguments": lambda l, n: n.vectorize(lambda x: (x, x), signature="()->()")(1),
    "wrong number of positional arguments": lambda l, n: n.vectorize(lambda x: x, signature="(n),()->()")(I2),
    "output shape": lambda l, n: n.vectorize(lambda x: n.ones(2), signature="()->()")(1),
    r"does not support repeated axes. Got axes \(0, 0\)": lambda l, n: n.fft.fftn(I2, axes=(0, 0)),
    "only takes an int": lambda l, n: n.fft.fftfreq([6]),
    "contains negative numbers": lambda l, n: n.vectorize(lambda x: x, excluded={-1}),
    # indices
    "Too many indices: array is 2-dimensional, but 3 were indexed": lambda l, n: n.asarray(I2)[0, 0, 0],
    'Unknown gather mode "bogus"': lambda l, n: n.asarray(I2).at[n.arange(2)].get(mode="bogus"),
    r"reduceat: indices must be one-dimensional, got indices.shape=\(1, 1\)": lambda l, n: n.add.reduceat(
        I2, I2[:1, :1]
    ),
    # values
    "is not a valid JAX array type. Only arrays of numeric types are supported by JAX": lambda l, n: n.asarray("a"),
    # norms, decompositions, systems
    "Pass one axis to compute a vector-norm, or two axes to compute a matrix-norm": lambda l, n: n.linalg.norm(
        n.ones((2, 2, 2)), axis=(0, 1, 2)
    ),
    "Invalid order '3' for matrix norm": lambda l, n: n.linalg.norm(n.ones((2, 2)), 3),
    r"left hand array must be at least two dimensional; got a.shape=\(2,\)": lambda l, n: n.linalg.solve(I2[0], I2[0]),
    "does not accept dtype int32 at position 0. Accepted dtypes at position 0 are subtypes of floating, complex": (
        lambda l, n: l.lax.linalg.svd(I2)
    ),
    # initializers
    "initializer requires at least a 2D shape": lambda l, n: l.nn.initializers.orthogonal()(l.random.key(0), (2,)),
    "initializer requires a 3D, 4D or 5D shape": lambda l, n: l.nn.initializers.delta_orthogonal()(
        l.random.key(0), (2, 2)
    ),
    "invalid distribution for variance scaling initializer: x": lambda l, n: l.nn.initializers.variance_scaling(
        1.0, "fan_in", "x"
    )(l.random.key(0), (2, 2)),
    "invalid mode for variance scaling initializer: x": lambda l, n: l.nn.initializers.variance_scaling(
        1.0, "x", "normal"
    )(l.random.key(0), (2, 2)),
    # random numbers
    "dtype argument to `bits` must be an unsigned int dtype": lambda l, n: l.random.bits(l.random.key(0), (), "int32"),
    "dtype argument to `geometric` must be an int dtype": lambda l, n: l.random.geometric(
        l.random.key(0), 0.5, (), "float32"
    ),
    r"pareto parameter shapes must be broadcast-compatible with .* got result \(3,\) for shape argument": (
        lambda l, n: l.random.pareto(l.random.key(0), n.ones(3), ())
    ),
    "In arguments to pareto, cannot safely cast argument of type float32 to float16": lambda l, n: l.random.pareto(
        l.random.key(0), n.ones(3), (3,), "float16"
    ),
    "p must be None or a 1D vector with the same size": lambda l, n: l.random.choice(l.random.key(0), 3, p=n.ones(2)),
}
ONE_KEY = [
    "cauchy", "exponential", "gumbel", "laplace", "logistic", "lognormal", "maxwell", "normal", "rademacher", "uniform",
]  # fmt: skip
MASKS = [
    "mean",
    "var",
    "std",
    "sum",
    "prod",
    "max",
    "all",
    "nanmean",
    "nanvar",
    "nanstd",
    "nansum",
    "nanprod",
    "nanmin",
]


def _message(library, program) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises((TypeError, ValueError, IndexError, OverflowError, NotImplementedError)) as caught:
            program(library, library.numpy)
    return str(caught.value)


@pytest.mark.parametrize("words", ROWS)
def test_words(words):
    assert re.search(words, _message(jax, ROWS[words])), "JAX says something else"
    assert re.search(words, _message(meshrt, ROWS[words]))


@pytest.mark.parametrize("name", ONE_KEY)
def test_several_keys_are_refused_by_the_function_called(name):
    program = lambda library, numpy: getattr(library.random, name)(library.random.split(library.random.key(0), 3))
    words = f"{name} accepts a single key, but was given a key array of shape (3,) != (). Use jax.vmap for batching."
    for library in (jax, meshrt):
        assert words in _message(library, program)


@pytest.mark.parametrize("name", MASKS)
def test_a_mask_of_integers_is_refused_by_the_function_called(name):
    initial = {"initial": 0.0} if name in ("max", "nanmin") else {}

    def program(library, numpy):
        return getattr(numpy, name)(numpy.ones(3), where=numpy.ones(3, int), **initial)

    for library in (jax, meshrt):
        assert f"jnp.{name}: where must be None or a boolean array" in _message(library, program)
