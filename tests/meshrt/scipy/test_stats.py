"""Distributions and ranks: values as SciPy's in 64 bits, derivatives and dtypes as JAX's in 32."""

import jax
import jax.scipy.stats as theirs
import numpy as np
import pytest
import scipy.stats as judge

import meshrt
import meshrt.scipy.stats as ours

# Of every distribution: its shape parameters, and whether it takes loc and scale.
BOTH, LOC, NONE = ("loc", "scale"), ("loc",), ()
ROWS = {
    "norm": ((), BOTH), "expon": ((), BOTH), "cauchy": ((), BOTH), "gumbel_l": ((), BOTH), "gumbel_r": ((), BOTH),
    "laplace": ((), BOTH), "logistic": ((), BOTH), "uniform": ((), BOTH), "pareto": ((1.7,), BOTH),
    "beta": ((1.3, 2.4), BOTH), "gamma": ((1.8,), BOTH), "chi2": ((3.5,), BOTH), "t": ((4.5,), BOTH),
    "gennorm": ((1.6,), NONE), "vonmises": ((1.2,), NONE), "wrapcauchy": ((0.4,), NONE),
    "truncnorm": ((-1.2, 2.5), BOTH), "bernoulli": ((0.3,), LOC), "binom": ((7, 0.4), LOC),
    "betabinom": ((7, 1.5, 2.5), LOC), "nbinom": ((4, 0.35), LOC), "geom": ((0.3,), LOC), "poisson": ((2.3,), LOC),
}  # fmt: skip
FUNCTIONS = ("logpdf", "pdf", "cdf", "logcdf", "sf", "logsf", "ppf", "isf", "logpmf", "pmf")
CASES = [(d, f) for d in ROWS for f in FUNCTIONS if hasattr(getattr(theirs, d), f)]
PLACED = {"loc": 0.5, "scale": 1.7}


def arguments(name, function, dtype):
    shapes, placed = ROWS[name]
    discrete = placed == LOC
    if function in ("ppf", "isf"):
        x = np.array([0.01, 0.2, 0.5, 0.77, 0.999])
    elif discrete:
        x = np.array([-1.0, 0, 1, 2, 3, 7, 9])
    else:
        x = np.array([-3.0, -0.4, 0.3, 0.9, 1.6, 2.1, 5.0])
    options = {k: PLACED[k] for k in placed if name != "bernoulli" or function in ("logpmf", "pmf")}
    if discrete and options:
        options = {"loc": 1.0}
    return [x.astype(dtype), *(np.asarray(s, dtype) for s in shapes)], options


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("name", "function"), CASES)
def test_values_are_those_of_scipy(name, function):
    args, options = arguments(name, function, np.float64)
    with meshrt.enable_x64(True), np.errstate(all="ignore"):
        got = np.asarray(getattr(getattr(ours, name), function)(*args, **options))
        wanted = getattr(getattr(judge, name), function)(*args, **options)
    near = 1e-5 if name == "truncnorm" else 1e-9
    np.testing.assert_allclose(got, wanted, near, 1e-12)


# The others are these, or exponentials and logarithms of these.
DIFFERENT = ("logpdf", "cdf", "ppf", "logpmf")
REFUSED = [("gumbel_l", "ppf"), ("gumbel_r", "ppf")]  # by JAX, which multiplies a tangent of an integer


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("name", "function"),
    [
        pytest.param(*c, marks=() if c[1].startswith("log") else pytest.mark.slow)
        for c in CASES
        if c[1] in DIFFERENT and c not in REFUSED
    ],
)
def test_types_and_derivatives_are_those_of_jax(name, function):
    args, options = arguments(name, function, np.float32)
    if name == "wrapcauchy":
        args[0] = np.clip(args[0], 0, 6)
    f, g = (getattr(getattr(m, name), function) for m in (ours, theirs))

    def both(lib, h):
        return lib.jit(lambda x: lib.jvp(lambda x: h(x, *args[1:], **options), (x,), (np.ones_like(args[0]),)))(args[0])

    (got, slope), (wanted, judged) = both(meshrt, f), both(jax, g)
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), 2e-3, 1e-5)
    sure = np.isfinite(np.asarray(judged)) & np.isfinite(np.asarray(got))
    np.testing.assert_allclose(np.asarray(slope)[sure], np.asarray(judged)[sure], 5e-3, 1e-4)


NO_SHAPES = np.array([np.nan, 0, -1, -np.inf, 1e-3, 2], np.float32)


EDGES = {
    "a negative scale": ("norm", "logpdf", (1.0, 0.0, -2.0)),
    "the centre": ("laplace", "cdf", (0.3, 0.3, 1.0)),
    "the centre, a negative scale": ("laplace", "cdf", (0.3, 0.3, -1.0)),
    "left of the support": ("gamma", "cdf", (-1.0, 1.0, 0.5, 2.0)),
    "where the support begins": ("gamma", "cdf", (0.5, 0.5, 0.5, 1.0)),
    "a mirrored support": ("chi2", "cdf", (0.3, 2.0, 0.0, -1.0)),
}


@pytest.mark.parametrize("edge", EDGES)
def test_slopes_at_edges(edge):
    name, function, at = EDGES[edge]
    at = [np.float32(v) for v in at]
    got = meshrt.grad(getattr(getattr(ours, name), function), argnums=tuple(range(len(at))))(*at)
    wanted = jax.grad(getattr(getattr(theirs, name), function), argnums=tuple(range(len(at))))(*at)
    np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), 1e-5)


def test_a_whole_concentration_is_none_of_wrapped_cauchy():
    assert np.isnan(np.asarray(ours.wrapcauchy.pdf(0, np.array([[-1, 2, 3], [-3, 1, 0]])))).all()


@pytest.mark.parametrize("x", [-1.0, -0.0, 0.0, 1.0, np.nan])
@pytest.mark.parametrize("function", ["sf", "logsf", "cdf", "logcdf"])
@pytest.mark.parametrize("name", ["gamma", "chi2"])
def test_a_shape_that_is_none_gives_nan(name, function, x):
    """Left of the support too, but for `gamma.sf`, which is 1 there of any shape, as in JAX."""
    x = np.float32(x)
    got = np.asarray(getattr(getattr(ours, name), function)(x, NO_SHAPES))
    says_1 = name == "gamma" and function in ("sf", "logsf") and x < 0
    wanted = getattr(getattr(theirs, name), function)(x, NO_SHAPES)
    defined = (NO_SHAPES != 0) | (x <= 0)  # of shape 0 JAX has a value there, of `cdf` of chi2 NaN
    np.testing.assert_allclose(got[defined], np.asarray(wanted)[defined], 1e-5)
    assert np.isnan(got[:4]).all() or x > 0 or says_1


def test_vectors():
    rng = np.random.default_rng(0)
    assert ours.norm.logpdf(1).dtype == np.float32
    x, mean = rng.normal(size=(5, 3)).astype(np.float32), rng.normal(size=3).astype(np.float32)
    root = rng.normal(size=(3, 3)).astype(np.float32)
    cov = root @ root.T + np.eye(3, dtype=np.float32)
    for args in ((x, mean, cov), (x, mean, np.float32(2.0)), (x[:, 0], np.float32(0.3), np.float32(2.0)),
                 (x, np.zeros((5, 3), np.float32), np.broadcast_to(cov, (5, 3, 3)))):  # fmt: skip
        got, wanted = (np.asarray(m.multivariate_normal.logpdf(*args)) for m in (ours, theirs))
        np.testing.assert_allclose(got, wanted, 1e-4)
    np.testing.assert_allclose(
        np.asarray(ours.multivariate_normal.pdf(x, mean, cov)), judge.multivariate_normal.pdf(x, mean, cov), 1e-4
    )
    shares, alpha = rng.dirichlet([1.0, 2, 3], 4).T.astype(np.float32), np.array([1.5, 2, 0.7], np.float32)
    for given in (shares, shares[:2], np.array([0.5, 0.2, 0.3], np.float32), np.array([0.5, 0.9, 0.3], np.float32)):
        got, wanted = (np.asarray(m.dirichlet.logpdf(given, alpha)) for m in (ours, theirs))
        np.testing.assert_allclose(got, wanted, 1e-4)
    counts, p = np.array([1, 2, 3]), np.array([0.2, 0.3, 0.5])
    for n in (6, 7):
        got, wanted = (np.asarray(m.multinomial.pmf(counts, n, p)) for m in (ours, theirs))
        np.testing.assert_allclose(got, wanted, 1e-4)
    mu = np.array([0, 0.5, 3, 20, 60, 99, 150.0, 2000])
    np.testing.assert_allclose(np.asarray(ours.poisson.entropy(mu)), np.asarray(theirs.poisson.entropy(mu)), 1e-4)


SAMPLES = [np.array([3, 1, 2, 2, 3.0]), np.array([[1, 1, 2], [3, 2, 2], [1, 2, 3]]), np.array([1.0, np.nan, 1.0])]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("x", SAMPLES, ids=["vector", "matrix", "nan"])
@pytest.mark.parametrize("axis", [None, 0, -1])
def test_samples(x, axis):
    for keepdims in (False, True):
        for got, wanted in zip(*(m.mode(x, axis=axis, keepdims=keepdims) for m in (ours, theirs))):
            assert got.shape == wanted.shape and got.dtype == wanted.dtype
            np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))
        np.testing.assert_allclose(*(np.asarray(m.sem(x, axis=axis, keepdims=keepdims)) for m in (ours, theirs)), 1e-5)
    np.testing.assert_allclose(*(np.asarray(m.sem(x, axis=axis, nan_policy="omit")) for m in (ours, theirs)), 1e-5)
    for method in ("average", "min", "max", "dense", "ordinal"):
        got, wanted = (m.rankdata(x, method, axis=axis) for m in (ours, theirs))
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(np.asarray(got), np.asarray(wanted))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("shape", [(9,), (2, 9)])
@pytest.mark.parametrize("method", [None, "silverman", 0.4])
def test_density_estimates(shape, method):
    rng = np.random.default_rng(0)
    points, weights = rng.normal(size=shape).astype(np.float32), rng.uniform(size=9).astype(np.float32)
    at = rng.normal(size=(*shape[:-1], 4)).astype(np.float32)
    mine, other = (m.gaussian_kde(points, method, weights) for m in (ours, theirs))
    mean, cov = np.zeros(mine.d, np.float32), np.eye(mine.d, dtype=np.float32)
    for name, args in (("evaluate", (at,)), ("logpdf", (at,)), ("integrate_gaussian", (mean, cov))):
        np.testing.assert_allclose(*(np.asarray(getattr(k, name)(*args)) for k in (mine, other)), 1e-3, 1e-5)
    np.testing.assert_allclose(float(mine.integrate_kde(mine)), float(other.integrate_kde(other)), 1e-3)
    if mine.d == 1:
        np.testing.assert_allclose(float(mine.integrate_box_1d(-1, 1)), float(other.integrate_box_1d(-1, 1)), 1e-4)
    drawn, wanted = mine.resample(meshrt.random.key(0), (5,)), other.resample(jax.random.key(0), (5,))
    np.testing.assert_allclose(np.asarray(drawn), np.asarray(wanted), 1e-4, 1e-5)
    np.testing.assert_allclose(np.asarray(meshrt.jit(lambda k: k(at))(mine)), np.asarray(mine(at)), 1e-5)


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda m: m.mode(np.ones(3), nan_policy="omit"), NotImplementedError),
        (lambda m: m.mode(np.ones(3), nan_policy="other"), ValueError),
        (lambda m: m.rankdata(np.ones(3), "best"), ValueError),
        (lambda m: m.sem(np.ones(3), nan_policy="raise"), ValueError),
        (lambda m: m.dirichlet.logpdf(np.ones(3) / 3, np.ones((3, 1))), ValueError),
        (lambda m: m.dirichlet.logpdf(np.ones(5) / 5, np.ones(3)), ValueError),
        (lambda m: m.multinomial.pmf(np.ones(3), 3, np.ones(3) / 3), ValueError),
        (lambda m: m.multivariate_normal.logpdf(np.ones(3), np.ones(3), np.eye(2)), ValueError),
        (lambda m: m.multivariate_normal.logpdf(np.ones(3), np.ones(3), np.eye(3), True), NotImplementedError),
        (lambda m: m.gaussian_kde(np.ones(1)), ValueError),
        (lambda m: m.gaussian_kde(np.arange(3.0), "best"), ValueError),
        (lambda m: m.gaussian_kde(np.arange(3.0), weights=np.ones(2)), ValueError),
        (lambda m: m.gaussian_kde(np.arange(3.0)).set_bandwidth(), NotImplementedError),
        (lambda m: m.norm.logpdf([1.0]), TypeError),
    ],
)  # fmt: skip
def test_what_jax_refuses_is_refused_alike(call, kind):
    for module in (theirs, ours):
        with pytest.raises(kind):
            call(module)
