"""Special functions: values as SciPy's in 64 bits, derivatives and dtypes as JAX's in 32."""

import jax
import jax.scipy.special as theirs
import numpy as np
import pytest
import scipy.special

import meshrt
import meshrt.numpy as jnp
import meshrt.scipy.special as ours
from meshrt import errors

# Of every function: the ranges of its arguments, and values to be tried beside (borders, poles).
REAL, POSITIVE, UNIT = (-6, 6), (0.2, 8), (0.05, 0.95)
ROWS = {
    "gammaln": ([REAL], [0, 1, 2, np.inf, np.nan]), "gammasgn": ([REAL], [0.0, -0.0, -1, np.inf, np.nan]),
    "gamma": ([REAL], [0, -1, -2, 5, np.inf]), "loggamma": ([POSITIVE], [-1.5]), "digamma": ([POSITIVE], [50]),
    "factorial": ([(-3, 8)], [0, 1, -1]), "betaln": ([POSITIVE, (0.1, 40)], []), "beta": ([POSITIVE, (0.1, 40)], []),
    "gammainc": ([POSITIVE, POSITIVE], []), "gammaincc": ([POSITIVE, POSITIVE], []),
    "comb": ([(3, 9), (0, 3)], []), "poch": ([POSITIVE, POSITIVE], []), "zeta": ([(1.3, 6), POSITIVE], []),
    "logit": ([UNIT], [0, 1]), "expit": ([REAL], [-np.inf, np.inf]), "xlogy": ([REAL, POSITIVE], []),
    "xlog1py": ([REAL, POSITIVE], []), "entr": ([POSITIVE], [0, -1]), "rel_entr": ([POSITIVE, POSITIVE], []),
    "kl_div": ([POSITIVE, POSITIVE], []), "boxcox": ([POSITIVE, REAL], []), "boxcox1p": ([POSITIVE, REAL], []),
    "erf": ([REAL], []), "erfc": ([REAL], []), "erfinv": ([UNIT], []), "ndtr": ([REAL], [-12, 12, np.inf]),
    "ndtri": ([(0, 1)], [1e-12, 1e-5, 0.075, 0.5, 1]), "log_ndtr": ([(-40, 10)], [-np.inf, np.inf, -20, 5]),
    "i0": ([REAL], [0]), "i0e": ([REAL], [100, 0]), "i1": ([REAL], [0]), "i1e": ([REAL], [100, 0]),
    "betainc": ([POSITIVE, POSITIVE, UNIT], []),
}  # fmt: skip
# Not differentiable in all arguments, or with derivatives of JAX's that are NaN or inexact.
VALUES_ONLY = {"betainc", "betaln", "beta"}


def drawn(name, dtype, count=40):
    ranges, beside = ROWS[name]
    rng = np.random.default_rng(sorted(ROWS).index(name))
    args = [rng.uniform(low, high, count).astype(dtype) for low, high in ranges]
    return [np.concatenate([args[0], np.array(beside, dtype)]), *args[1:]] if beside else args


@pytest.mark.parametrize("name", ROWS)
def test_values_are_those_of_scipy(name):
    args = drawn(name, np.float64)
    with meshrt.enable_x64(True), np.errstate(all="ignore"):
        got = np.asarray(getattr(ours, name)(*args))
        wanted = getattr(scipy.special, name)(*args)
    near = name in ("log_ndtr",)  # its series has the three terms that it is asked for
    np.testing.assert_allclose(got, wanted, 1e-6 if near else 2e-11, 1e-300)


@pytest.mark.parametrize("name", ROWS)
def test_types_and_derivatives_are_those_of_jax(name):
    args = [a[:12] for a in drawn(name, np.float32)]
    where = tuple(range(len(args))) if name not in VALUES_ONLY else ()

    def both(lib, module):
        """Values, derivatives in every argument and the rows of a vmap, by one program."""

        def program(*args):
            f = getattr(module, name)
            slopes = lib.grad(lambda *a: f(*a).sum(), argnums=where)(*args) if where else ()
            return f(*args), slopes, lib.vmap(f)(*(lib.numpy.reshape(a, (3, 4)) for a in args))

        return lib.jit(program)(*args)

    (got, slopes, rows), (wanted, judged, _) = both(meshrt, ours), both(jax, theirs)
    assert got.dtype == wanted.dtype and got.shape == wanted.shape
    np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), 2e-4, 1e-5)
    np.testing.assert_allclose(np.asarray(rows).ravel(), np.asarray(got), 1e-5, 1e-6)
    for mine, judge in zip(slopes, judged, strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(judge), 2e-3, 2e-4)


def test_integers_give_single_precision():
    assert ours.gammaln(3).dtype == ours.xlogy(2, 3).dtype == np.float32


def test_derivatives_of_beta_are_finite_differences():
    a, b = np.array([0.4, 2.5, -1.5, 3.0]), np.array([0.7, 12.0, 1.2, 30.0])
    with meshrt.enable_x64(True):
        for f in (ours.betaln, ours.beta):
            for i, slope in enumerate(meshrt.grad(lambda *x, f=f: f(*x).sum(), argnums=(0, 1))(a, b)):
                h = 1e-6
                up, down = ([a + s * h * (i == 0), b + s * h * (i == 1)] for s in (1, -1))
                numeric = (np.asarray(f(*up)) - np.asarray(f(*down))) / (2 * h)
                np.testing.assert_allclose(np.asarray(slope), numeric, 1e-6)


@pytest.mark.parametrize("name", ["gamma", "loggamma"])
def test_complex_gamma(name):
    rng = np.random.default_rng(0)
    z = (rng.normal(size=60) * 4 + 1j * rng.normal(size=60) * 3).astype(np.complex128)
    with meshrt.enable_x64(True):
        np.testing.assert_allclose(np.asarray(getattr(ours, name)(z)), getattr(scipy.special, name)(z), 1e-12)
        assert np.isnan(np.asarray(getattr(ours, name)(np.array([-2 + 0j])))).all()


def test_numbers_and_orders():
    np.testing.assert_allclose(np.asarray(ours.bernoulli(20)), scipy.special.bernoulli(20), 1e-6)
    x = np.array([1.5, 3, 7.25], np.float32)
    np.testing.assert_allclose(np.asarray(ours.polygamma(2, x)), scipy.special.polygamma(2, x), 1e-4)
    np.testing.assert_allclose(np.asarray(ours.multigammaln(x, 3)), scipy.special.multigammaln(x, 3), 1e-5)
    np.testing.assert_allclose(
        np.asarray(ours.comb(np.arange(5), 2, repetition=True)), scipy.special.comb(np.arange(5), 2, repetition=True),
        1e-5,
    )  # fmt: skip
    for order in (0, 5, 10):
        got, wanted = (np.asarray(m.log_ndtr(-12.0, order)) for m in (ours, theirs))
        np.testing.assert_allclose(got, wanted, 1e-6)
    a = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    for f in ("logsumexp", "softmax", "log_softmax"):
        options = {} if f == "logsumexp" else {"axis": 1}
        np.testing.assert_allclose(
            np.asarray(getattr(ours, f)(a, **options)), np.asarray(getattr(theirs, f)(a, **options)), 1e-5
        )


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (lambda m: m.zeta(2.0), NotImplementedError), (lambda m: m.factorial(3, exact=True), NotImplementedError),
        (lambda m: m.ndtr(np.arange(3)), TypeError), (lambda m: m.ndtri(np.float16(0.5)), TypeError),
        (lambda m: m.log_ndtr(1.0, 2.0), TypeError), (lambda m: m.log_ndtr(1.0, -1), ValueError),
        (lambda m: m.log_ndtr(1.0, 31), ValueError), (lambda m: m.bernoulli(-1), ValueError),
        (lambda m: m.gammasgn(1j), ValueError), (lambda m: m.beta(1j, 1.0), ValueError),
        (lambda m: m.entr(1j), ValueError), (lambda m: m.gammaln([1.0]), TypeError),
        (lambda m: m.polygamma(1.5, 2.0), ValueError),
    ],
)  # fmt: skip
def test_what_jax_refuses_is_refused_alike(call, kind):
    with pytest.raises(kind):
        call(theirs)
    with pytest.raises(kind) as e:
        call(ours)
    assert isinstance(e.value, errors.MeshrtError)


def test_modules_are_there_without_an_import():
    assert meshrt.scipy.special.erf is ours.erf
    with pytest.raises(errors.MissingFunctionError, match="not implemented"):
        meshrt.scipy.special.airy
    assert jnp.isclose(meshrt.jit(ours.ndtr)(0.5), scipy.special.ndtr(0.5))
