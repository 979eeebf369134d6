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
from tests.meshrt.beside import assert_alike

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
    "dawsn": ([REAL], [0, 1e-10, 12, 1e5, -np.inf, np.nan]), "erfcx": ([REAL], [0, 26, 1e6, -np.inf, np.inf, np.nan]),
    "exp1": ([POSITIVE], [0, 2, 60, np.inf, -1, np.nan]), "expi": ([REAL], [0, 17, 39, 41, np.inf, -np.inf, np.nan]),
    "spence": ([POSITIVE], [0, 0.5, 1, 2, 1e9, -1, np.nan]), "owens_t": ([REAL, REAL], []),
    "hyp1f1": ([REAL, POSITIVE, (-30, 30)], []), "hyp2f1": ([REAL, REAL, POSITIVE, (-4, 0.95)], []),
}  # fmt: skip
# Not differentiable in all arguments, or with derivatives of JAX's that are NaN or inexact.
VALUES_ONLY = {"betainc", "betaln", "beta", "spence"}
# Loops, which JAX takes long to compile: their derivatives are judged by differences below.
BY_SCIPY_ONLY = {"hyp1f1", "hyp2f1"}


def drawn(name, dtype, count=40):
    ranges, beside = ROWS[name]
    rng = np.random.default_rng(sorted(ROWS).index(name))
    args = [rng.uniform(low, high, count).astype(dtype) for low, high in ranges]
    return [np.concatenate([args[0], np.array(beside, dtype)]), *args[1:]] if beside else args


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", ROWS)
def test_values_are_those_of_scipy(name):
    args = drawn(name, np.float64)
    with meshrt.enable_x64(True), np.errstate(all="ignore"):
        got = np.asarray(getattr(ours, name)(*args))
        wanted = getattr(scipy.special, name)(*args)
    near = name in ("log_ndtr",)  # its series has the three terms that it is asked for
    np.testing.assert_allclose(got, wanted, 1e-6 if near else 2e-11, 1e-300)


PAIRS = {"sici": [0, 4, 5, 1e9, np.inf, np.nan], "fresnel": [0, 1.6, 50, np.inf, -np.inf, np.nan]}


@pytest.mark.parametrize("name", PAIRS)
def test_pairs_of_integrals(name):
    x = np.concatenate([np.linspace(-9, 9, 40), PAIRS[name]])
    with meshrt.enable_x64(True):
        for got, wanted in zip(getattr(ours, name)(x), getattr(scipy.special, name)(x), strict=True):
            np.testing.assert_allclose(np.asarray(got), wanted, 1e-11, 1e-300)
        slopes = meshrt.jvp(getattr(ours, name), (x[:40],), (np.ones(40),))[1]
    angle, below = (x[:40], x[:40]) if name == "sici" else (np.pi / 2 * x[:40] ** 2, 1)
    np.testing.assert_allclose(np.asarray(slopes[0]), np.sin(angle) / below, 1e-10, 1e-13)
    np.testing.assert_allclose(np.asarray(slopes[1]), np.cos(angle) / below, 1e-10, 1e-13)


def test_faddeevas_function():
    rng = np.random.default_rng(0)
    z = np.concatenate([4 * rng.normal(size=200) + 4j * rng.normal(size=200), [0, 1e6 + 1e5j, 30, 7j, 5 + 5j, 3 - 0j]])
    with meshrt.enable_x64(True):
        np.testing.assert_allclose(np.asarray(ours.wofz(z)), scipy.special.wofz(z), 1e-12)
        np.testing.assert_allclose(np.asarray(ours.erfcx(z)), scipy.special.erfcx(z), 1e-12)
        slope = meshrt.jvp(ours.wofz, (z[:200],), (np.ones(200) + 0j,))[1]
        wanted = 2j / np.sqrt(np.pi) - 2 * z[:200] * scipy.special.wofz(z[:200])
        np.testing.assert_allclose(np.asarray(slope), wanted, 1e-11)
    assert ours.wofz(np.float32(1)).dtype == np.complex64


def test_exponential_integrals_of_any_order():
    n, x = np.meshgrid(np.arange(-1, 30), [0, 1e-8, 0.3, 2, 2.1, 9, 50, -1, np.inf])
    with meshrt.enable_x64(True):
        np.testing.assert_allclose(np.asarray(ours.expn(n, x)), scipy.special.expn(n, x), 1e-12)
        slope = meshrt.vmap(meshrt.vmap(meshrt.grad(ours.expn, argnums=1)))(n[1:7, 2:] * 1.0, x[1:7, 2:])
    np.testing.assert_allclose(np.asarray(slope), -scipy.special.expn(n[1:7, 2:] - 1, x[1:7, 2:]), 1e-11)


def test_bessel_functions_of_all_orders():
    z = np.array([[0.0, 1e-3, 0.5], [2.404825557695773, 7.0, -3.0]])
    with meshrt.enable_x64(True):
        got, slope = meshrt.jvp(lambda z: ours.bessel_jn(z, v=5), (z,), (np.ones_like(z),))
        orders = np.arange(6)[:, None, None]
        np.testing.assert_allclose(np.asarray(got), scipy.special.jn(orders, z), 1e-11, 1e-15)
        np.testing.assert_allclose(np.asarray(slope), scipy.special.jvp(orders, z), 1e-11, 1e-15)
    single = ours.bessel_jn(z.astype(np.float32), v=5, n_iter=100)
    np.testing.assert_allclose(np.asarray(single), scipy.special.jn(orders, z), 2e-5, 1e-6)


@pytest.mark.parametrize("n", [0, 1, 5])
def test_legendre_functions_of_all_orders(n):
    z = np.array([-0.99, -0.3, 0.0, 0.5, 0.9])
    with meshrt.enable_x64(True):
        values, slopes = ours.lpmn(n, n, z)
        step = (ours.lpmn_values(n, n, z + 1e-6, False) - ours.lpmn_values(n, n, z - 1e-6, False)) / 2e-6
        np.testing.assert_allclose(slopes, step, 1e-5, 1e-5)
        for order in range(n + 1):
            wanted = [scipy.special.assoc_legendre_p(l, order, z)[0] for l in range(n + 1)]
            np.testing.assert_allclose(values[order], wanted, 1e-11, 1e-13)
            angles = np.arccos(z)
            wanted = [np.real(scipy.special.sph_harm_y(l, order, angles, 0.0)) for l in range(n + 1)]
            np.testing.assert_allclose(ours.lpmn_values(n, n, z, True)[order], wanted, 1e-11, 1e-13)


def test_legendre_functions_refuse():
    for arguments, error in (
        ((1, 2, np.ones(2)), NotImplementedError),
        ((1, 1, np.ones((2, 2))), ValueError),
        ((1, 1, np.ones(2, int)), TypeError),
        ((-1, -1, np.ones(2)), ValueError),
    ):
        with pytest.raises(error):
            ours.lpmn(*arguments)


def test_spherical_harmonics():
    n, m = (np.array(x) for x in zip(*[(n, m) for n in range(5) for m in range(-n, n + 1)], strict=True))
    theta, phi = np.linspace(0, np.pi, len(n)), np.linspace(-3, 6, len(n))
    with meshrt.enable_x64(True):
        got = ours.sph_harm_y(n, m, theta, phi)
        np.testing.assert_allclose(np.asarray(got), scipy.special.sph_harm_y(n, m, theta, phi), 1e-12, 1e-14)
        traced = meshrt.jit(lambda *a: ours.sph_harm_y(*a, n_max=4))(n, m, theta, phi)
        np.testing.assert_allclose(np.asarray(traced), np.asarray(got), 1e-12)
        slope = meshrt.grad(lambda t: ours.sph_harm_y(3, 2, t, 0.3).real[0])(0.7)
        step = [scipy.special.sph_harm_y(3, 2, 0.7 + s, 0.3).real for s in (1e-6, -1e-6)]
        np.testing.assert_allclose(float(slope), (step[0] - step[1]) / 2e-6, 1e-6)


@pytest.mark.parametrize(
    "call",
    [
        lambda s, lib: s.spence(lib.numpy.arange(3)), lambda s, lib: s.exp1(lib.numpy.ones(2) * 1j),
        lambda s, lib: s.expi(lib.numpy.ones(2) * 1j), lambda s, lib: s.sici(lib.numpy.ones(2) * 1j),
        lambda s, lib: s.fresnel(lib.numpy.ones(2) * 1j), lambda s, lib: s.dawsn(lib.numpy.ones(2) * 1j),
        lambda s, lib: s.hyp1f1(1, 2, 1j),
        lambda s, lib: s.erfcx(np.arange(3)), lambda s, lib: s.wofz(np.arange(3)),
        lambda s, lib: s.sph_harm_y(np.array([1, 2]), np.array([0, -1]), np.float32(0.3), np.float32([0.1, 2])),
        lambda s, lib: s.sph_harm_y(np.array([1]), np.array([0]), np.ones(1), np.ones(1), diff_n=1),
        lambda s, lib: lib.jit(s.sph_harm_y)(np.array([1]), np.array([0]), np.ones(1), np.ones(1)),
        lambda s, lib: s.dawsn(lib.numpy.ones(2, "bfloat16")),
    ],
)  # fmt: skip
def test_arguments_are_jaxs(call):
    assert_alike(lambda lib: call(lib.scipy.special, lib), 1e-4)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", [n for n in ROWS if n not in BY_SCIPY_ONLY])
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


@pytest.mark.parametrize("name", ["rel_entr", "kl_div"])
def test_slopes_of_entropies_in_probabilities_whose_square_is_zero(name):
    p, q = np.float32([1, 0.5, 1e-30, 0]), np.float32([1e-25, 3e-30, 2e-30, 1e-25])

    def slopes(lib, module):
        return lib.jit(lib.grad(lambda p, q: getattr(module, name)(p, q).sum(), argnums=(0, 1)))(p, q)

    for got, wanted in zip(slopes(meshrt, ours), slopes(jax, theirs), strict=True):
        np.testing.assert_allclose(np.asarray(got), np.asarray(wanted), 1e-5)


def test_integers_give_single_precision():
    assert ours.gammaln(3).dtype == ours.xlogy(2, 3).dtype == np.float32


def test_derivatives_are_finite_differences():
    a, b = np.array([0.4, 2.5, -1.5, 3.0]), np.array([0.7, 12.0, 1.2, 30.0])
    with meshrt.enable_x64(True):
        cases = (ours.betaln, ours.beta, lambda a, b: ours.hyp1f1(a, b, -2.5 * b),
                 lambda a, b: ours.hyp2f1(a, b, 1.7, 0.02 * b - 0.1 * a))  # fmt: skip
        for f in cases:
            f = meshrt.jit(f)
            for i, slope in enumerate(meshrt.jit(meshrt.grad(lambda *x, f=f: f(*x).sum(), argnums=(0, 1)))(a, b)):
                h = 1e-6
                up, down = ([a + s * h * (i == 0), b + s * h * (i == 1)] for s in (1, -1))
                numeric = (np.asarray(f(*up)) - np.asarray(f(*down))) / (2 * h)
                np.testing.assert_allclose(np.asarray(slope), numeric, 2e-6, 1e-8 * np.abs(numeric).max())


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("hyp1f1", ([0, 1, 2, -3, 0.5, 0.5, 1.5, np.nan, 2, -2, 3.5], [2, 1, 0, -4, 3, 3, 3, 1, 1, 1.5, 1.5],
                    [1, 2, 3, 4, 150, -800, 400, 0, 0, 100, -300])),
        ("hyp2f1", ([0, 1, -2, 1, 1, 0.3, 0.5, 2, 1, 0.2], [1, 2, 5, 2, 0.5, 1.25, 0.25, 3, 1, 0.1],
                    [2, -2, 3, 2, 3, 2.5, 1.0, 3, 2, 1.05], [0.5, 0.1, 3, 0.3, 1, 0.99, -30, -0.5, 1, 0.97])),
        ("owens_t", ([0, np.inf, 1, 1, -2, np.nan, 6, 0.1], [3, 1, np.inf, -np.inf, 0, 1, 1e-3, 40])),
    ],
)  # fmt: skip
def test_functions_of_several_arguments_at_edges(name, arguments):
    arguments = [np.array(a, float) for a in arguments]
    with meshrt.enable_x64(True), np.errstate(all="ignore"):
        got, wanted = getattr(ours, name)(*arguments), getattr(scipy.special, name)(*arguments)
    np.testing.assert_allclose(np.asarray(got), wanted, 1e-11, 1e-300)


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("hyp1f1", (2.0, 2.0, -2.3)),  # exp(x)
        ("hyp1f1", (0.0, 2.0, 1.5)),  # 1
        ("hyp2f1", (1.0, 0.3, 1.0, -0.3)),  # (1 - x)^-b
        ("hyp2f1", (0.3, 1.0, 1.0, 0.95)),  # behind a pole of gamma
        ("hyp2f1", (2.0, 1.0, 2.0, 0.95)),
        ("hyp2f1", (0.5, 0.7, 2.0, 0.0)),  # 1
        ("hyp2f1", (0.0, 0.7, 2.0, 0.4)),  # 1
        ("hyp2f1", (-2.0, 0.3, 0.3, 0.7)),  # a polynomial
    ],
)
def test_shorter_forms_have_the_slopes_of_all_parameters(name, at):
    step, f = 1e-5, getattr(scipy.special, name)
    moved = [[tuple(v + s * (i == j) for j, v in enumerate(at)) for s in (step, -step)] for i in range(len(at))]
    wanted = [(f(*up) - f(*down)) / (2 * step) for up, down in moved]
    got = meshrt.grad(getattr(ours, name), argnums=tuple(range(len(at))))(*map(np.float32, at))
    np.testing.assert_allclose(np.asarray(got), wanted, 2e-3, 1e-4)


@pytest.mark.parametrize("at", [(1.5, 1.5, 100), (0, 1.5, 120), (1.5, 1.5, -100), (0, 1.5, -120), (-2, 1.5, 100)])
def test_slopes_of_kummers_function_far_out(at):
    step = 1e-5
    moved = [[tuple(v + s * (i == j) for j, v in enumerate(at)) for s in (step, -step)] for i in range(3)]
    wanted = [(scipy.special.hyp1f1(*up) - scipy.special.hyp1f1(*down)) / (2 * step) for up, down in moved]
    with meshrt.enable_x64(True):
        got = meshrt.grad(ours.hyp1f1, argnums=(0, 1, 2))(*map(np.float64, at))
    np.testing.assert_allclose(np.asarray(got), wanted, 1e-6, 1e-9)


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
