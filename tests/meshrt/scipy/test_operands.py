"""What SciPy's functions make of Python numbers, lists and complex numbers: types and refusals, as JAX's."""

import functools
import inspect

import jax
import jax.scipy.stats
import numpy as np
import pytest

from tests.meshrt.beside import assert_alike

Z = np.complex64([1 + 1j])
SPECIAL = {
    "xlogy": 2, "xlog1py": 2, "entr": 1, "betaln": 2, "factorial": 1, "ndtr": 1, "log_ndtr": 1, "ndtri": 1,
    "kl_div": 2, "zeta": 2, "gammaln": 1, "i0": 1, "i1e": 1,
}  # fmt: skip
STATS = {
    **{("norm", f): () for f in ("cdf", "logcdf", "sf", "logsf")},
    **{("truncnorm", f): (-1.0, 2.0) for f in ("pdf", "cdf", "logsf")},
    **{("bernoulli", f): (0.5,) for f in ("pmf", "cdf", "ppf")},
    **{("uniform", f): () for f in ("pdf", "cdf")},
    ("binom", "pmf"): (3, 0.5), ("gamma", "logpdf"): (2.0,), ("poisson", "pmf"): (2.0,), ("geom", "pmf"): (0.5,),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECIAL)
def test_special(name):
    for x in (0.3, 1, Z):
        assert_alike(lambda l, x=x: getattr(l.scipy.special, name)(*[x] * SPECIAL[name]), rtol=1e-4)


@pytest.mark.parametrize("name", STATS, ids=".".join)
def test_distributions_at_python_numbers(name):
    function = lambda l: functools.reduce(getattr, name, l.scipy.stats)
    assert_alike(lambda l: function(l)(0.3, *STATS[name]), rtol=1e-4)


def test_lists():
    for name in ("ndtr", "log_ndtr", "ndtri"):
        assert_alike(lambda l, name=name: getattr(l.scipy.special, name)([0.3, 0.4]))


def test_one_axis_of_a_cosine_transform():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for name in ("dctn", "idctn"):
        assert_alike(lambda l, name=name: getattr(l.scipy.fft, name)(x, axes=0))
        assert_alike(lambda l, name=name: getattr(l.scipy.fft, name)(x, s=3, axes=0))


def test_ends_of_the_cauchy_distribution():
    for x in (-np.inf, np.inf, -1e6, 2.0):
        for f in ("cdf", "sf", "logcdf", "logsf"):
            assert_alike(lambda l, x=x, f=f: getattr(l.scipy.stats.cauchy, f)(x, 0.7, 1.2), rtol=1e-3)


DISTRIBUTIONS = [n for n in dir(jax.scipy.stats) if inspect.ismodule(getattr(jax.scipy.stats, n)) and n[0] != "_"]
W = np.float32([0.3, 0.5, 0.4])


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions_of_complex_numbers(name):
    module = getattr(jax.scipy.stats, name)
    for f in (n for n in dir(module) if n[0] != "_"):
        parameters = inspect.signature(getattr(module, f)).parameters.values()
        needed = [W for p in parameters if p.default is p.empty]
        for i, p in enumerate(parameters):
            args = [(W + 1j * W if i == j else x) for j, x in enumerate(needed)]
            options = {p.name: W + 1j * W} if i >= len(args) else {}
            program = lambda l: l.eval_shape(getattr(getattr(l.scipy.stats, name), f), *args, **options)
            assert_alike(program)


def test_cauchys_distribution_of_complex_numbers():
    assert_alike(lambda l: l.scipy.stats.cauchy.cdf(W + 1j * W))


def test_quantiles_of_the_normal_distribution():
    for f in ("ppf", "isf"):
        for q, loc in ((0.3, 0), (1, 0), (W, 1j), (W, np.float16(1)), (np.float16(0.3), 0), (0.3, np.int32([1, 2]))):
            assert_alike(lambda l: getattr(l.scipy.stats.norm, f)(q, loc), rtol=1e-5)
