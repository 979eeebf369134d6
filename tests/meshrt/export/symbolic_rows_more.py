"""More functions with symbolic sizes, as `symbolic_rows.py`: of sets, of places in arrays, of windows and systems."""

from __future__ import annotations

import numpy as np

import meshrt
import meshrt.numpy as jnp
from meshrt import lax, random, scipy
from tests.meshrt.export.symbolic_rows import ints, keyed

AB, A = ("a, b",), ("a",)
MATRIX, VECTOR, NUMBERS = ((5, 4),), ((5,),), (ints(7),)


def sized(f, times=1):
    return lambda *xs: f(*xs, size=times * xs[0].shape[0])


MORE = [
    ("numpy.apply_along_axis", lambda x: jnp.apply_along_axis(jnp.cumsum, 1, x), AB, MATRIX),
    ("numpy.apply_over_axes", lambda x: jnp.apply_over_axes(jnp.sum, x, (0, 1)), AB, MATRIX),
    ("numpy.argpartition", lambda x: jnp.sort(x[jnp.argpartition(x, 2)][:3]), ("a + 3",), ((7,),)),
    ("numpy.partition", lambda x: jnp.partition(x, 2)[2], ("a + 3",), ((7,),)),
    ("numpy.argwhere", lambda x: jnp.argwhere(x > 0.5, size=x.shape[0]), A, VECTOR),
    ("numpy.nonzero", lambda x: jnp.nonzero(x > 0.5, size=x.shape[0], fill_value=-1), AB, MATRIX),
    ("numpy.flatnonzero", lambda x: jnp.flatnonzero(x > 0.5, size=x.shape[0]), A, VECTOR),
    ("numpy.choose", lambda i, x: jnp.choose(i % 2, [x, -x], mode="clip"), ("a", "a"), (ints(5), (5,))),
    ("numpy.compress", lambda x: jnp.compress(x[:, 0] > 0.5, x, axis=0, size=3), ("a + 2, b",), MATRIX),
    ("numpy.extract", lambda x: jnp.extract(x > 0.5, x, size=x.shape[0]), A, VECTOR),
    ("numpy.dsplit", lambda x: jnp.dsplit(x, 2), ("a, b, 4",), ((2, 3, 4),)),
    ("numpy.hsplit", lambda x: jnp.hsplit(x, 2), ("a, 2*b",), MATRIX),
    ("numpy.vsplit", lambda x: jnp.vsplit(x, [1]), ("a + 1, b",), MATRIX),
    ("numpy.identity", lambda x: jnp.identity(x.shape[0]), A, VECTOR),
    ("numpy.zeros", lambda x: jnp.zeros((x.shape[0], 2)), A, VECTOR),
    ("numpy.insert", lambda x: (jnp.insert(x, 1, 7.0, 0), jnp.insert(x, -1, 7.0, 0)), ("a + 1, b",), MATRIX),
    ("numpy.unique", lambda x: jnp.unique(x, True, True, True, size=x.shape[0]), A, NUMBERS),
    ("numpy.unique_all", lambda x: tuple(jnp.unique_all(x, size=x.shape[0])), A, NUMBERS),
    ("numpy.unique_counts", lambda x: tuple(jnp.unique_counts(x, size=x.shape[0])), A, NUMBERS),
    ("numpy.intersect1d", sized(jnp.intersect1d), ("a", "b"), (ints(7), ints(4))),
    ("numpy.setdiff1d", sized(jnp.setdiff1d), ("a", "b"), (ints(7), ints(4))),
    ("numpy.setxor1d", sized(jnp.setxor1d, 2), ("a", "b"), (ints(7), ints(4))),
    ("numpy.union1d", sized(jnp.union1d, 2), ("a", "b"), (ints(7), ints(4))),
    ("numpy.lexsort", lambda x, y: jnp.lexsort((x, y)), ("a", "a"), (ints(7), (7,))),
    ("numpy.mask_indices", lambda x: jnp.mask_indices(x.shape[0], jnp.triu, size=4), ("n, n",), ((3, 3),)),
    ("numpy.piecewise", lambda x: jnp.piecewise(x, [x < 0.3, x > 0.6], [0.0, 1.0, jnp.sin]), A, VECTOR),
    ("numpy.place", lambda x: jnp.place(x, x > 0.5, jnp.array([1.0, 2.0]), inplace=False), AB, MATRIX),
    ("numpy.put", lambda x, i: jnp.put(x, i, x[:, 0], mode="wrap", inplace=False), ("a, b", "a"), ((5, 4), ints(5))),
    ("numpy.put_along_axis", lambda x: jnp.put_along_axis(x, jnp.argmax(x, 1, keepdims=True), 9.0, 1, inplace=False),
     AB, MATRIX),
    ("numpy.ravel_multi_index", lambda x, i: jnp.ravel_multi_index((i, i % 2), x.shape, mode="clip"), ("a, b", "c"),
     ((5, 4), ints(6))),
    ("numpy.resize", lambda x: jnp.resize(x, (2 * x.shape[0], 3)), AB, MATRIX),
    ("numpy.rollaxis", lambda x: jnp.rollaxis(x, 1), AB, MATRIX),
    ("numpy.permute_dims", lambda x: jnp.permute_dims(x, (1, 0)), AB, MATRIX),
    ("numpy.polyfit", lambda x, y: jnp.polyfit(x, y, 2), ("a + 3", "a + 3"), ((6,), (6,))),
    ("numpy.packbits, along 0", lambda x: jnp.unpackbits(jnp.packbits(x > 0.5, axis=0), axis=0), AB, MATRIX),
    ("numpy.unpackbits", lambda x: jnp.unpackbits(x.astype("uint8")), A, NUMBERS),
    ("numpy.fromfunction", lambda x: jnp.fromfunction(lambda i, j: i + 2 * j, x.shape), AB, MATRIX),
    ("numpy.diag_indices", lambda x: jnp.diag_indices(x.shape[0]), A, VECTOR),
    ("numpy.histogram2d", lambda x, y: jnp.histogram2d(x, y, bins=4, range=[[0, 1], [0, 1]])[0], ("a", "a"),
     ((9,), (9,))),
    ("numpy.histogramdd", lambda x: jnp.histogramdd(x, bins=3, range=[[0, 1], [0, 1]])[0], ("a, 2",), ((9, 2),)),
    ("numpy.vectorize", lambda x: jnp.vectorize(jnp.sum, signature="(n)->()")(x), AB, MATRIX),
    ("numpy.squeeze, by bounds", lambda x: jnp.squeeze(x[None]), ("a + 1, b + 1",), MATRIX),
    ("numpy.fft.fftfreq", lambda x: (jnp.fft.fftfreq(x.shape[0]), jnp.fft.rfftfreq(x.shape[0])), A, VECTOR),
    ("numpy.linalg.matrix_power", lambda x: jnp.linalg.matrix_power(x, 3), ("n, n",), ((4, 4),)),
    ("numpy.linalg.multi_dot", lambda x, y: jnp.linalg.multi_dot([x, y, x]), ("a, b", "b, a"), ((5, 4), (4, 5))),
    ("numpy.linalg.lstsq", lambda x, y: jnp.linalg.lstsq(x, y)[0], ("a + b, b", "a + b"), ((6, 3), (6,))),
    ("numpy.linalg.tensorsolve", lambda x, y: jnp.linalg.tensorsolve(x + 4 * jnp.eye(x.shape[0]), y), ("n, n", "n"),
     ((4, 4), (4,))),
    ("lax.broadcast", lambda x: lax.broadcast(x, (x.shape[0], 2)), A, VECTOR),
    ("lax.collapse", lambda x: lax.collapse(x, 0, 2), ("a, b, 3",), ((2, 4, 3),)),
    ("lax.conv", lambda x, k: lax.conv(x, k, (2, 2), "SAME"), ("a, 3, 2*n, n", None), ((2, 3, 8, 4), (4, 3, 3, 3))),
    ("lax.conv_general_dilated_patches", lambda x: lax.conv_general_dilated_patches(x, (2, 2), (1, 1), "VALID"),
     ("a, 3, n, n",), ((2, 3, 4, 4),)),
    ("lax.custom_linear_solve", lambda x: lax.custom_linear_solve(lambda v: 3 * v, x, lambda _, v: v / 3,
     symmetric=True), A, VECTOR),
    ("lax.dynamic_update_slice_in_dim", lambda x: lax.dynamic_update_slice_in_dim(x, x[:1] * 2, 1, 0), AB, MATRIX),
    ("lax.dynamic_update_index_in_dim", lambda x: lax.dynamic_update_index_in_dim(x, x[0] * 2, 1, 0), AB, MATRIX),
    ("lax.integer_pow", lambda x: lax.integer_pow(x, 3), AB, MATRIX),
    ("lax.map, in batches", lambda x: lax.map(lambda r: r * 2, x, batch_size=2), ("2*a, b",), ((6, 2),)),
    ("lax.platform_dependent", lambda x: lax.platform_dependent(x, cpu=lambda v: v + v.shape[0], default=jnp.sin), A,
     VECTOR),
    ("lax.ragged_dot", lambda x, w: lax.ragged_dot(x, w, np.array([1, 3], np.int32)), ("a, 3", None),
     ((4, 3), (2, 3, 5))),
    ("lax.reduce_max", lambda x: (lax.reduce_max(x, (0,)), lax.reduce_sum(x, (1,)), lax.reduce_min(x, (0, 1))), AB,
     MATRIX),
    ("lax.reduce_precision", lambda x: lax.reduce_precision(x, 5, 10), AB, MATRIX),
    ("lax.bitcast_convert_type", lambda x: (
        (words := lax.bitcast_convert_type(x, np.uint8)), lax.bitcast_convert_type(words, np.int32),
        lax.bitcast_convert_type(x, np.int32)), AB, MATRIX),
    ("grad of indexing, in steps", lambda x: meshrt.grad(lambda x: (x[::2, 1::3] ** 2).sum())(x), AB, MATRIX),
    ("lax.reduce_window, of what may be empty", lambda x: lax.reduce_window(
        x[2:], 0.0, lax.add, (2, 2), (2, 1), "SAME"), AB, MATRIX),
    ("lax.split", lambda x: lax.split(x, (1, x.shape[0] - 1)), ("a + 1",), VECTOR),
    ("lax.switch", lambda x: lax.switch(1, [lambda v: v, lambda v: v * x.shape[0]], x), A, VECTOR),
    ("lax.tile", lambda x: lax.tile(x, (2, 3)), AB, MATRIX),
    ("lax.linalg.tridiagonal_solve", lambda x, y: lax.linalg.tridiagonal_solve(x, x + 4, x, y), ("a + 2", "a + 2, b"),
     ((5,), (5, 2))),
    ("scipy.linalg.cho_solve", lambda x: scipy.linalg.cho_solve(scipy.linalg.cho_factor(x @ x.T + 3 * jnp.eye(4)), x),
     ("4, n",), ((4, 3),)),
    ("scipy.linalg.lu_solve", lambda x, y: scipy.linalg.lu_solve(scipy.linalg.lu_factor(x), y), ("n, n", "n"),
     ((4, 4), (4,))),
    ("scipy.linalg.leslie", lambda x: scipy.linalg.leslie(x, x[1:]), ("a + 1",), VECTOR),
    ("scipy.linalg.convolution_matrix", lambda x: scipy.linalg.convolution_matrix(x, 3), ("a + 3",), VECTOR),
    *((f"scipy.linalg.{n}", lambda x, n=n: getattr(scipy.linalg, n)(x.shape[0]), A, VECTOR)
      for n in ("dft", "helmert", "hilbert", "invhilbert", "invpascal", "pascal")),
    ("lax.scan, over nothing", lambda x: lax.scan(lambda c, _: (c + 1, 2 * c), 0.0, length=x.shape[0]), A, VECTOR),
    *((f"numpy.{n}", lambda x, n=n: getattr(jnp, n)(x.shape[0]), A, VECTOR)
      for n in ("bartlett", "blackman", "hamming", "hanning")),
    ("numpy.kaiser", lambda x: jnp.kaiser(x.shape[0], x[0]), A, VECTOR),
    ("numpy.histogram, symbolic bins", lambda x: jnp.histogram(x, bins=x.shape[0]), A, VECTOR),
    ("x[::2] + ones((n + 1) // 2)", lambda x: x[::2] + jnp.ones((x.shape[0] + 1) // 2), A, VECTOR),
    ("scipy.special.multigammaln", lambda x: scipy.special.multigammaln(x + 3, 2), A, VECTOR),
    ("random.permutation", keyed(random.permutation), A, VECTOR),
    ("random.choice", keyed(lambda k, x: random.choice(k, x, x.shape)), A, VECTOR),
    ("random.gamma", keyed(lambda k, x: random.gamma(k, 2.0, x.shape)), A, VECTOR),
    ("random.dirichlet", keyed(lambda k, x: random.dirichlet(k, jnp.ones(3), x.shape)), A, VECTOR),
    ("random.poisson", keyed(lambda k, x: random.poisson(k, 2.0, x.shape)), A, VECTOR),
    ("random.truncated_normal", keyed(lambda k, x: random.truncated_normal(k, -1.0, 1.0, x.shape)), A, VECTOR),
]  # fmt: skip
