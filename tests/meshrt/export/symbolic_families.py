"""Functions that take arrays of symbolic sizes as they stand: by the arguments that they are given, names by module.

Those with choices of their own, and what is no plain call, are rows of `symbolic_rows.py`.
"""

from __future__ import annotations

import numpy as np

# (symbolic shape, kind of values) of each argument; the names of functions by module.
FAMILIES = {
    "one array": ((("b, c", "f"),), {
        "numpy": """abs absolute acos acosh all amax amin angle any arccos arccosh arcsin arcsinh arctan arctanh
            argmax argmin argsort around array asarray asin asinh atan atanh atleast_1d atleast_2d
            atleast_3d average block broadcast_arrays cbrt ceil clip column_stack concat concatenate
            conj conjugate copy corrcoef cos cosh count_nonzero cov cumprod cumsum deg2rad degrees diag
            diagflat diagonal diff dstack ediff1d empty_like exp exp2 expm1 fabs flip fliplr flipud
            floor frexp gradient histogram histogram_bin_edges hstack i0 imag iscomplex isfinite isinf
            isnan isneginf isposinf isreal log log10 log1p log2 logical_not matrix_transpose max mean
            median min modf nan_to_num nanargmax nanargmin nancumprod nancumsum nanmax nanmean nanmedian
            nanmin nanprod nanstd nansum nanvar negative ones_like positive prod ptp rad2deg radians
            ravel real reciprocal rint rot90 round shape sign signbit sin sinc sinh size sort
            sort_complex spacing sqrt square squeeze stack std sum tan tanh trace transpose trapezoid
            tril tril_indices_from triu triu_indices_from trunc unwrap var vstack zeros_like""",
        "numpy.fft": "fftshift ifftshift",
        "numpy.linalg": "cond diagonal matrix_norm matrix_rank matrix_transpose norm pinv svdvals trace vector_norm",
        "lax": """abs acos acosh asin asinh atan atanh bessel_i0e bessel_i1e cbrt ceil conj cos cosh
            cumlogsumexp cummax cummin cumprod cumsum digamma erf erf_inv erfc exp exp2 expm1 floor
            is_finite lgamma log log1p logistic neg optimization_barrier reciprocal round rsqrt sign sin
            sinh sort sqrt square stage stop_gradient tan tanh""",
        "nn": """celu elu gelu hard_sigmoid hard_silu hard_swish hard_tanh identity leaky_relu log1mexp
            log_sigmoid log_softmax logmeanexp logsumexp mish relu relu6 selu sigmoid silu soft_sign
            softmax softplus sparse_plus sparse_sigmoid squareplus standardize swish tanh""",
        "scipy.special": """dawsn digamma entr erf erfc erfcx erfinv exp1 expi expit factorial fresnel gamma gammaln
            gammasgn i0 i0e i1 i1e log_ndtr log_softmax loggamma logit logsumexp ndtr ndtri sici softmax
            spence wofz""",
        "scipy.linalg": "block_diag circulant companion fiedler hankel toeplitz",
        "scipy.stats": "mode rankdata sem",
        "scipy.integrate": "trapezoid",
    }),
    "two arrays": ((("b, c", "f"),) * 2, {
        "numpy": """add allclose append arctan2 array_equal array_equiv atan2 copysign divide divmod equal
            float_power floor_divide fmax fmin fmod full_like geomspace greater greater_equal heaviside
            hypot inner isclose isin kron less less_equal linspace logaddexp logaddexp2 logical_and
            logical_or logical_xor logspace maximum minimum mod multiply nextafter not_equal outer
            polyadd polysub polyval pow power remainder subtract tensordot true_divide vdot vecdot""",
        "numpy.linalg": "tensordot vecdot",
        "lax": """add atan2 broadcast_like complex div eq ge gt igamma igamma_grad_a igammac le lt max min mul
            ne nextafter pow random_gamma_grad rem sort_key_val sub zeta""",
        "scipy.special": """beta betaln boxcox boxcox1p comb expn gammainc gammaincc kl_div owens_t poch rel_entr
            xlog1py xlogy zeta""",
    }),
    "two arrays of integers": ((("b, c", "i"),) * 2, {
        "numpy": """bitwise_and bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor gcd lcm ldexp
            left_shift right_shift take""",
        "lax": "bitwise_and bitwise_or bitwise_xor mulhi shift_left shift_right_arithmetic shift_right_logical",
    }),
    "integers": ((("b, c", "i"),), {
        "numpy": "bitwise_count bitwise_invert bitwise_not invert packbits",
        "lax": "bitwise_not clz population_count",
    }),
    "two vectors": ((("b", "f"),) * 2, {
        "numpy": """convolve correlate digitize dot matmul nanpercentile nanquantile percentile polymul quantile
            searchsorted""",
        "numpy.linalg": "matmul outer",
        "lax": "dot",
        "scipy.signal": "convolve correlate",
    }),
    "a vector": ((("b", "f"),), {
        "numpy": "cumulative_prod cumulative_sum ix_ meshgrid polyder polyint vander",
        "scipy.linalg": "fiedler_companion",
    }),
    "square matrices": ((("n, n", "s"),), {
        "numpy": "diag_indices_from",
        "numpy.linalg": "cholesky det eigvalsh inv slogdet",
        "lax.linalg": "cholesky",
        "scipy.linalg": "cholesky det expm inv sqrtm",
    }),
    "matrices in a batch": ((("b, 3, 3", "s"),), {
        "numpy.linalg": "cholesky det eigvalsh inv slogdet svdvals",
        "lax.linalg": "cholesky",
        "scipy.linalg": "cholesky det expm inv",
    }),
    "known last sizes": ((("b, 4, 8", "f"),), {
        "numpy.fft": "fft fft2 hfft ifft ifft2 ihfft irfft irfft2 rfft rfft2",
        "scipy.fft": "dct idct",
        "nn": "glu",
    }),
    "three vectors": ((("b", "f"),) * 3, {"numpy": "interp"}),
    "three arrays": ((("b, c", "f"),) * 3, {
        "numpy": "where", "lax": "betainc clamp", "scipy.special": "betainc hyp1f1",
    }),
    "four arrays": ((("b, c", "f"),) * 4, {"scipy.special": "hyp2f1"}),
    "a matrix and a vector": ((("n, n", "s"), ("n", "f")), {
        "numpy.linalg": "solve", "lax.linalg": "triangular_solve", "scipy.linalg": "solve solve_triangular",
    }),
    "vectors of three": ((("b, 3", "f"),) * 2, {"numpy": "cross", "numpy.linalg": "cross"}),
    "complex numbers": ((("b, c", "c"),), {
        "lax": "real imag conj", "numpy": "angle conj real imag abs exp sort_complex",
    }),
    "a choice and two arrays": ((("b, c", "?"), ("b, c", "f"), ("b, c", "f")), {
        "lax": "select select_n", "numpy": "where",
    }),
}  # fmt: skip


def values(shape, kind, rng):
    """An array of this kind: floats within (0, 1), small integers, booleans, complex numbers, positive definite."""
    x = rng.random(shape, dtype=np.float32) * np.float32(0.9) + np.float32(0.05)
    if kind == "s":
        return x + np.swapaxes(x, -1, -2) + 4 * np.eye(shape[-1], dtype=np.float32)
    kinds = {"f": lambda: x, "i": lambda: rng.integers(0, 4, shape).astype(np.int32), "?": lambda: x > 0.5,
             "c": lambda: (x + 1j * rng.random(shape)).astype(np.complex64)}  # fmt: skip
    return kinds[kind]()
